package approval_test

import (
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// TestTrap42_ClocksDiffer: an instance whose clock is minutes off decides as the others do, because every time that it
// compares is PostgreSQL's.
func TestTrap42_ClocksDiffer(t *testing.T) {
	t.Parallel()
	for _, off := range []time.Duration{-20 * time.Minute, 0, 20 * time.Minute} {
		inBubble(t, off.String(), func(r *rig) {
			database := time.Now().Add(off) // the process says time.Now()
			p := row(payment.Pending)
			p.ReadAt = database
			p.ReservedAt, p.FirstSentAt, p.LastSentAt = database.Add(-time.Minute), database.Add(-time.Minute), database.Add(-time.Minute)
			if a, _ := r.service.Plan(r.Context(), p); a.Do != payment.Send {
				r.Errorf("a minute old by PostgreSQL: %+v", a)
			}
			p.ReservedAt, p.FirstSentAt, p.LastSentAt = database.Add(-14*time.Minute), database.Add(-14*time.Minute), database.Add(-14*time.Minute)
			if a, _ := r.service.Plan(r.Context(), p); a.Do != payment.Wait {
				r.Errorf("within window and margin by PostgreSQL: %+v", a)
			}
			p.Leased, p.DueAt = true, database.Add(time.Second)
			if !approval.Held(p) {
				r.Error("a living lease is taken for one that is over")
			}
			p.DueAt = database.Add(-time.Second)
			if approval.Held(p) {
				r.Error("a lease that is over keeps everybody away")
			}
		})
	}
}
