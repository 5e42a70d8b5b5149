package approval_test

import (
	"sync"
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// TestDuplicatesHere is traps 11: in one process everybody gets the first caller's answer.
func TestDuplicatesHere(t *testing.T) {
	t.Parallel()
	inBubble(t, "100 callers, one call, 100 equal answers", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 2 * time.Second})
		var wg sync.WaitGroup
		count, mu := map[said]int{}, sync.Mutex{}
		for range 100 {
			wg.Go(func() {
				got := r.confirm(anOrder())
				mu.Lock()
				count[got]++
				mu.Unlock()
			})
		}
		wg.Wait()
		if count[approved] != 1 || count[replayed] != 99 {
			r.Errorf("answers %v", count)
		}
		r.wantSends(1)
		if n := r.store.Calls(approvaltest.Reserve); n != 1 {
			r.Errorf("%d reservations", n)
		}
	})
	inBubble(t, "a late duplicate waits for its own time", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 12 * time.Second})
		first := make(chan said, 1)
		go func() { first <- r.confirm(anOrder()) }()
		time.Sleep(5 * time.Second)
		r.want(r.confirm(anOrder()), replayed)
		r.want(<-first, running)
		r.wantSends(1)
	})
}

// TestDuplicatesElsewhere follows the row that another instance has leased.
func TestDuplicatesElsewhere(t *testing.T) {
	t.Parallel()
	inBubble(t, "until it is final", func(r *rig) {
		r.store.Put(row(payment.Pending, leasedFor(time.Minute)))
		time.AfterFunc(3*time.Second, func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Leased = payment.Paid, false })
		})
		start := time.Now()
		r.want(r.confirm(anOrder()), replayed)
		if took := time.Since(start); took > 4*time.Second {
			r.Errorf("seen after %v", took)
		}
	})
	inBubble(t, "also when a read fails", func(r *rig) {
		r.store.Put(row(payment.Pending, leasedFor(time.Minute)))
		r.store.Script(approvaltest.Find, approvaltest.None(), approvaltest.Not(), approvaltest.Not())
		time.AfterFunc(3*time.Second, func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Leased = payment.Paid, false })
		})
		r.want(r.confirm(anOrder()), replayed)
	})
	inBubble(t, "until ANSWER_WITHIN", func(r *rig) {
		r.store.Put(row(payment.Pending, leasedFor(time.Minute)))
		start := time.Now()
		got := r.confirm(anOrder())
		if took := time.Since(start); took != 10*time.Second {
			r.Errorf("answered after %v", took)
		}
		r.want(got, running.again())
		r.drain()
		if !r.store.Row("key-1").Told {
			r.Error("the 202 is not remembered")
		}
	})
	inBubble(t, "a later caller watches on when the first one's time is over", func(r *rig) {
		r.store.Put(row(payment.Pending, leasedFor(time.Minute)))
		time.AfterFunc(12*time.Second, func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Leased = payment.Paid, false })
		})
		first := make(chan said, 1)
		go func() { first <- r.confirm(anOrder()) }()
		time.Sleep(5 * time.Second)
		r.want(r.confirm(anOrder()), replayed)
		r.want(<-first, running.again())
	})
	inBubble(t, "100 duplicates share one poller", func(r *rig) {
		r.store.Put(row(payment.Pending, leasedFor(time.Minute)))
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { r.confirm(anOrder()) })
		}
		wg.Wait()
		if n := r.store.Calls(approvaltest.Find); n > 20 {
			r.Errorf("%d reads", n)
		}
	})
	inBubble(t, "the lease runs out: take over", func(r *rig) {
		r.store.Put(row(payment.Pending, leasedFor(3*time.Second)))
		r.gateway.Set(done())
		r.want(r.confirm(anOrder()), approved.again())
		// The holder before may have a cancel under way.
		if p := r.ends(payment.Paid, ""); time.Until(p.DueAt) != 2*time.Minute {
			r.Errorf("the second look is at %s", p.DueAt)
		}
		r.wantSends(0)
	})
	inBubble(t, "take over loses the race", func(r *rig) {
		r.store.Put(row(payment.Pending))
		r.store.Script(approvaltest.TakeOver, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status = payment.Paid })
		}})
		r.want(r.confirm(anOrder()), replayed)
	})
	inBubble(t, "take over not applied", func(r *rig) {
		r.store.Put(row(payment.Pending))
		r.store.Script(approvaltest.TakeOver, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown.again())
	})
	inBubble(t, "take over finds it open: recovery sends", func(r *rig) {
		r.store.Put(row(payment.Pending))
		r.want(r.confirm(anOrder()), unknown.again())
		p := r.ends(payment.Pending, "")
		r.wantSends(0)
		if in := time.Until(p.DueAt); in != approval.LookAgainIn {
			r.Errorf("due in %v", in)
		}
	})
	inBubble(t, "kept and never sent: recovery sends", func(r *rig) {
		r.store.Put(row(payment.Pending, func(p *payment.Payment) { p.MaybeSent = false }))
		r.want(r.confirm(anOrder()), said{Result: payment.ResultPendingUnavailable, Status: payment.Pending, Replayed: true})
		r.wantSends(0)
	}, keepPending)
}
