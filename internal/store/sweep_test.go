package store

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

// TestTrap17_SweepStuck: rows as a crash, a bug or a hand in the database would leave them, each of which no due time
// leads to. The sweep frees exactly those, and the next claim gets them.
func TestTrap17_SweepStuck(t *testing.T) {
	t.Parallel()
	f := setup(t)
	cancel := `INSERT INTO cancels (id, payment_id, payment_key, amount, state, ours, done_at)
		SELECT 'c-' || payment_key, id, payment_key, 1, $2, true, CASE WHEN $2 <> 'open' THEN now() END FROM payments WHERE payment_key = $1`
	incident := `INSERT INTO incidents (payment_key, kind) VALUES ($1, $2)`
	account := `UPDATE payments SET status = 'AWAITING_DEPOSIT', virtual_account = jsonb_build_object('dueDate', now() + $2::interval),
		due_at = now() + $3::interval WHERE payment_key = $1`
	type step struct {
		sql  string
		args []any
	}
	set := func(sql string) step { return step{"UPDATE payments SET " + sql + " WHERE payment_key = $1", nil} }
	for _, tt := range []struct {
		name  string
		state payment.Status
		steps []step
		freed bool
	}{
		{"pending, due in a year", payment.Pending, []step{set("due_at = now() + interval '1 year'")}, true},
		{"pending, waiting", payment.Pending, []step{set("due_at = now() + interval '10 min'")}, false},
		{"parked, incident closed", payment.Pending, []step{set("due_at = 'infinity'")}, true},
		{"parked, incident open", payment.Pending, []step{set("due_at = 'infinity'"), {incident, []any{"mismatch"}}}, false},
		{"parked, another incident open", payment.Pending, []step{set("due_at = 'infinity'"), {incident, []any{"cancel_failed"}}}, true},
		{"lease of a day", payment.Pending, []step{set("leased = true, due_at = now() + interval '1 day'")}, true},
		{"lease", payment.Pending, []step{set("leased = true, due_at = now() + interval '1 min'")}, false},
		{"deposit, never due", payment.AwaitingDeposit, []step{set("due_at = NULL")}, true},
		{"deposit, due in a year", payment.AwaitingDeposit, []step{set("due_at = now() + interval '1 year'")}, true},
		{"deposit, near its due date", payment.AwaitingDeposit, []step{{account, []any{"30 min", "5 h"}}}, true},
		{"deposit, due date passed", payment.AwaitingDeposit, []step{{account, []any{"-23 h", "5 h"}}}, true},
		{"deposit, overdue", payment.AwaitingDeposit, []step{{account, []any{"-30 h", "5 h"}}}, true},
		{"deposit, overdue, looked at", payment.AwaitingDeposit, []step{{account, []any{"-30 h", "10 min"}}}, false},
		{"deposit, no due date", payment.AwaitingDeposit, []step{set("virtual_account = '{}', due_at = now() + interval '5 h'")}, false},
		{"deposit, waiting", payment.AwaitingDeposit, []step{{account, []any{"30 h", "5 h"}}}, false},
		{"failed, cancel open", payment.Failed, []step{set("due_at = NULL"), {cancel, []any{"open"}}}, true},
		{"failed, cancel open, due in a year", payment.Failed, []step{set("due_at = now() + interval '1 year'"), {cancel, []any{"open"}}}, true},
		{"paid, cancel open", payment.Paid, []step{set("due_at = NULL"), {cancel, []any{"open"}}}, true},
		{"failed, cancel refused", payment.Failed, []step{set("due_at = NULL, holds_order = true"), {cancel, []any{"refused"}},
			{incident, []any{"cancel_failed"}}}, true},
		{"failed, holds its order for nothing", payment.Failed, []step{set("due_at = NULL, holds_order = true")}, true},
		{"failed, cancel done", payment.Failed, []step{set("due_at = NULL"), {cancel, []any{"done"}}}, false},
		{"failed", payment.Failed, []step{set("due_at = NULL")}, false},
		{"paid", payment.Paid, []step{set("due_at = NULL")}, false},
		{"second look later", payment.Failed, []step{set("due_at = now() + interval '2 h'")}, false},
	} {
		f.inState(tt.name, tt.state)
		for _, s := range tt.steps {
			f.exec(s.sql, append([]any{"pk_" + tt.name}, s.args...)...)
		}
		n, err := f.SweepStuck(t.Context(), time.Hour, 10)
		if err != nil || n == 1 != tt.freed || n > 1 {
			t.Errorf("%s: freed %d, %v", tt.name, n, err)
		}
		p := f.row("pk_" + tt.name)
		if tt.freed && (p.Leased || !p.DueAt.Before(p.ReadAt) || p.Version != 2) {
			t.Errorf("%s: %+v", tt.name, p)
		}
		if list, err := f.ClaimDue(t.Context(), 10, lease); err != nil || len(list) == 1 != tt.freed {
			t.Errorf("%s: claimed %d, %v", tt.name, len(list), err)
		}
	}
}

// TestSweepLostSecondLook: a move that asked for a second look is still the last thing that happened to the row, and
// nothing is due.
func TestSweepLostSecondLook(t *testing.T) {
	t.Parallel()
	f := setup(t)
	lose := func(key string) {
		f.exec("UPDATE payments SET due_at = NULL, leased = false WHERE payment_key = $1", key)
	}
	st := settlement(f.reserved("expired"), payment.Failed, payment.ByRecovery)
	st.Action.Reason, st.Action.VerifyIn = payment.WindowOver, 30*time.Minute
	f.settle(st)
	f.settle(settlement(f.reserved("taken"), payment.Paid, payment.ByRecovery))
	f.settle(settlement(f.reserved("own"), payment.Paid, payment.ByConfirm))
	f.settle(settlement(f.reserved("declined"), payment.Failed, payment.ByRecovery))
	for _, key := range []string{"pk_expired", "pk_taken", "pk_own", "pk_declined"} {
		lose(key)
	}
	if n, err := f.SweepStuck(t.Context(), time.Hour, 10); n != 2 || err != nil {
		t.Fatalf("freed %d, %v", n, err)
	}
	list, err := f.ClaimDue(t.Context(), 10, lease)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range list {
		got = append(got, p.PaymentKey)
		lose(p.PaymentKey) // looked at now; that nothing more is due is right
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"pk_expired", "pk_taken"}, got); diff != "" {
		t.Errorf("freed (-want +got):\n%s", diff)
	}
	if n, err := f.SweepStuck(t.Context(), time.Hour, 10); n != 0 || err != nil {
		t.Errorf("after the look freed %d, %v", n, err)
	}
}

// TestSweepDeadHolder: a lease beyond any holder's counts as one whose holder may have told its caller to wait.
func TestSweepDeadHolder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.reserved("a")
	f.inState("b", payment.Pending)
	f.exec("UPDATE payments SET told = false, due_at = now() + interval '1 day'")
	if n, err := f.SweepStuck(t.Context(), time.Hour, 10); n != 2 || err != nil {
		t.Fatalf("freed %d, %v", n, err)
	}
	if a, b := f.row("pk_a"), f.row("pk_b"); !a.Told || b.Told {
		t.Errorf("told: %v for the dead holder's, %v for the other", a.Told, b.Told)
	}
}

// TestSweepTenThousand: as many leftovers as a long outage leaves are freed page by page, and two sweeps share them.
func TestSweepTenThousand(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const all, page = 10_000, 1000
	f.exec(`INSERT INTO payments (order_id, payment_key, amount, currency, status, holds_order, version, maybe_sent, leased, due_at,
			reserved_at, sends, created_at, updated_at)
		SELECT 'o' || n, 'k' || n, 1000, 'KRW', 'PENDING', true, 1, false, false, 'infinity', now(), 1, now(), now()
		FROM generate_series(1, $1) AS n`, all)
	freed := make(chan int)
	for range 2 {
		go func() {
			sum := 0
			for {
				n, err := f.SweepStuck(t.Context(), time.Hour, page)
				if sum += n; err != nil || n > page {
					t.Errorf("a page of %d, %v", n, err)
				}
				if n == 0 || err != nil {
					break
				}
			}
			freed <- sum
		}()
	}
	if n := <-freed + <-freed; n != all {
		t.Errorf("freed %d, want each of %d once", n, all)
	}
	if n := f.count("payments WHERE version = 2 AND due_at <= now()"); n != all {
		t.Errorf("%d are due", n)
	}
}

// TestSweepMeetsNonsense: a due date that is none keeps nothing else from being freed.
func TestSweepMeetsNonsense(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.inState("nonsense", payment.AwaitingDeposit)
	f.inState("parked", payment.Pending)
	f.exec(`UPDATE payments SET virtual_account = '{"dueDate":"soon"}', due_at = now() + interval '5 h' WHERE payment_key = 'pk_nonsense'`)
	f.exec("UPDATE payments SET due_at = 'infinity' WHERE payment_key = 'pk_parked'")
	if n, err := f.SweepStuck(t.Context(), time.Hour, 10); n != 1 || err != nil {
		t.Errorf("freed %d, %v", n, err)
	}
}
