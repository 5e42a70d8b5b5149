package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

// keysBetween reads all pages.
func (f *fixture) keysBetween(from, to time.Time) (keys []string, pages int) {
	f.t.Helper()
	for after := int64(0); ; pages++ {
		page, next, err := f.ApprovedBetween(f.t.Context(), from, to, after)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, r := range page {
			keys = append(keys, strings.TrimPrefix(r.PaymentKey, "pk_"))
		}
		if next == 0 {
			return keys, pages + 1
		}
		if next <= after {
			f.t.Fatalf("page after %d goes on at %d", after, next)
		}
		after = next
	}
}

// TestApprovedBetween: by the time of approval, over gaps in the ids, and nothing that is not PAID or CANCELED.
func TestApprovedBetween(t *testing.T) {
	t.Parallel()
	f := setup(t)
	now := ask[time.Time](f, "SELECT now()")
	if keys, pages := f.keysBetween(now, now.Add(time.Hour)); len(keys) != 0 || pages != 1 {
		t.Errorf("of no payments: %v in %d pages", keys, pages)
	}
	const day = 24 * time.Hour
	approve := func(name string, reserved, approved time.Duration) {
		f.settle(settlement(f.reserved(name), payment.Paid, payment.ByConfirm))
		f.exec(`UPDATE payments SET created_at = $2, reserved_at = $2, approved_at = $3 WHERE payment_key = $1`,
			"pk_"+name, now.Add(reserved), now.Add(approved))
	}
	skip := func() {
		f.exec(`SELECT setval(pg_get_serial_sequence('payments', 'id'), nextval(pg_get_serial_sequence('payments', 'id')) + 20000)`)
	}
	for n := range 20 { // years before
		approve(fmt.Sprintf("old%d", n), time.Duration(n-1000)*day, time.Duration(n-1000)*day)
	}
	approve("late_deposit", -60*day, -time.Hour)
	approve("before", -2*day, -2*day)
	skip()
	approve("first", -day, -day)
	f.settle(settlement(f.row("pk_first"), payment.Canceled, payment.ByRecovery))
	f.settle(settlement(f.reserved("failed"), payment.Failed, payment.ByConfirm))
	f.reserved("pending")
	skip()
	approve("unknown_time", -time.Hour, 0)
	f.exec(`UPDATE payments SET approved_at = NULL WHERE payment_key = 'pk_unknown_time'`)
	approve("last", -time.Second, -time.Second)
	approve("to", 0, 0)

	keys, pages := f.keysBetween(now.Add(-day-time.Second), now) // Toss tells whole seconds
	if diff := cmp.Diff([]string{"late_deposit", "first", "unknown_time", "last"}, keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if pages != 3 {
		t.Errorf("%d pages", pages)
	}
	if id, err := f.lastIDBefore(t.Context(), now.Add(-500*day)); err != nil || id != ask[int64](f, "SELECT id FROM payments WHERE payment_key = 'pk_old19'") {
		t.Errorf("begins after id %d, %v", id, err)
	}
	if keys, pages := f.keysBetween(now.Add(-10*day), now.Add(-3*day)); len(keys) != 0 || pages != 1 {
		t.Errorf("of a week without approvals: %v in %d pages", keys, pages)
	}
}

// TestAuditRows: the payment of a key, else the incident about it.
func TestAuditRows(t *testing.T) {
	t.Parallel()
	f := setup(t)
	paid := f.settle(settlement(f.reserved("paid"), payment.Paid, payment.ByConfirm))
	f.settle(settlement(f.settle(settlement(f.reserved("gone"), payment.Paid, payment.ByConfirm)), payment.Canceled, payment.ByRecovery))
	f.reserved("pending")
	f.exec(`INSERT INTO incidents (payment_key, kind) VALUES ('pk_pending', 'mismatch'), ('pk_paid', 'dead_notice'),
		('pk_nowhere', 'orphan_approval'), ('pk_dead', 'dead_notice')`)
	f.exec(`INSERT INTO incidents (payment_key, kind, resolved_at, action)
		VALUES ('pk_paid', 'mismatch', now(), 'settled'), ('pk_closed', 'orphan_approval', now(), 'settled')`)
	rows, err := f.AuditRows(t.Context(), []string{"pk_paid", "pk_gone", "pk_pending", "pk_nowhere", "pk_dead", "pk_closed", "pk_never"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, fmt.Sprint(r.PaymentKey, " ", r.Status, " ", r.Amount, " ", r.CanceledAmount, " ", r.MoneyIncident, " ", r.DoneCancels))
		if r.PaymentKey == "pk_paid" && (!r.ApprovedAt.Equal(paid.ApprovedAt) || r.Currency != payment.KRW || r.OrderID != "order_paid" || r.ReadAt.IsZero()) {
			t.Errorf("paid: %+v", r)
		}
		if r.PaymentKey == "pk_pending" && !r.ApprovedAt.IsZero() {
			t.Errorf("pending: approved at %v", r.ApprovedAt)
		}
	}
	slices.Sort(got)
	want := []string{
		"pk_closed  0 0 false true", "pk_gone CANCELED 15000 15000 false true", "pk_nowhere  0 0 true false", "pk_paid PAID 15000 0 false false", "pk_pending PENDING 15000 0 true false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// TestCloseOrphan: one whose money went back meanwhile is returned, for an audit too. What was back when it was opened, and
// what an operator answered for, stays as it is.
func TestCloseOrphan(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := payment.Observation{Sighting: payment.SeenDone, PaymentKey: "pk_1", OrderID: "order_1", Total: 15000, Balance: 15000, Currency: payment.KRW}
	gone := o
	gone.Sighting, gone.Balance = payment.SeenCanceled, 0
	step := func(what string, closes, want bool, seen payment.Observation) {
		t.Helper()
		var got bool
		var err error
		if closes {
			got, err = f.CloseOrphan(t.Context(), seen, payment.ByWebhook)
		} else {
			got, err = f.OpenOrphan(t.Context(), seen, "found")
		}
		if got != want || err != nil {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	step("nothing to close", true, false, gone)
	step("open", false, true, o)
	step("the money is there", true, false, o)
	step("the money went back", true, true, gone)
	step("closed already", true, false, gone)
	rows, err := f.AuditRows(t.Context(), []string{"pk_1"})
	if err != nil || len(rows) != 1 || !rows[0].DoneCancels || rows[0].MoneyIncident || rows[0].ByHand {
		t.Errorf("rows %+v, %v", rows, err)
	}
	gone.PaymentKey = "pk_2"
	step("open about what is back", false, true, gone)
	step("which waits for a person", true, false, gone)
	if got := f.stillOpen(); got != "orphan_approval" {
		t.Errorf("open: %s", got)
	}
}

// TestSweepOrphans: the plain approval of a payment that turned up leaves the incident to the sweep.
func TestSweepOrphans(t *testing.T) {
	t.Parallel()
	f := setup(t)
	cancel := `INSERT INTO cancels (id, payment_id, payment_key, amount, state, ours, done_at)
		SELECT 'c-' || $2 || payment_key, id, payment_key, 1, $2, true, CASE WHEN $2 <> 'open' THEN now() END FROM payments WHERE payment_key = $1`
	for _, tt := range []struct {
		name    string
		state   payment.Status
		cancels []string
	}{
		{"closed paid", payment.Paid, nil},
		{"closed canceled", payment.Canceled, nil},
		{"closed given back", payment.Failed, []string{"done"}},
		{"open failed", payment.Failed, nil},
		{"open, a part given back", payment.Failed, []string{"done", "refused"}},
		{"open pending", payment.Pending, nil},
	} {
		p := f.inState(tt.name, tt.state)
		for _, state := range tt.cancels {
			f.exec(cancel, p.PaymentKey, state)
		}
		f.inDoubt(payment.OrphanApproval, p.PaymentKey, p.OrderID, seen(p, payment.SeenDone, 15000))
	}
	f.inDoubt(payment.OrphanApproval, "pk_open nowhere", "order", payment.Observation{})
	if n, err := f.SweepOrphans(t.Context()); n != 3 || err != nil {
		t.Errorf("closed %d, %v", n, err)
	}
	if n := f.count(`incidents WHERE (resolved_at IS NULL) <> (payment_key LIKE 'pk_open%') OR resolved_at IS NOT NULL AND payment_id IS NULL`); n != 0 {
		t.Errorf("%d incidents are not as they should be", n)
	}
	if n, err := f.SweepOrphans(t.Context()); n != 0 || err != nil {
		t.Errorf("closed again: %d, %v", n, err)
	}
}

// TestOpenOrphan: one is open at a time, and none about a payment that is here.
func TestOpenOrphan(t *testing.T) {
	t.Parallel()
	f := setup(t)
	open := func(key string) bool {
		t.Helper()
		opened, err := f.OpenOrphan(t.Context(), payment.Observation{
			Sighting: payment.SeenDone, PaymentKey: key, OrderID: "order\x00", Total: 15000, Balance: 15000, Currency: payment.KRW,
		}, "found")
		if err != nil {
			t.Fatal(err)
		}
		return opened
	}
	f.reserved("here")
	for n, tt := range []struct {
		key  string
		want bool
	}{{"pk_1", true}, {"pk_1", false}, {"pk_2", true}, {"pk_here", false}} {
		if got := open(tt.key); got != tt.want {
			t.Errorf("%d: %s opened %v", n, tt.key, got)
		}
	}
	f.exec(`UPDATE incidents SET resolved_at = now(), action = 'settled' WHERE payment_key = 'pk_1'`)
	if !open("pk_1") || f.count("incidents WHERE kind = 'orphan_approval' AND payment_id IS NULL AND order_id = 'order'") != 3 {
		t.Error("after a resolution it may be opened again")
	}
}
