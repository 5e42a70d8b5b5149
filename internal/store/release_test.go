package store

import (
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

func TestRelease(t *testing.T) {
	t.Parallel()
	never := time.Duration(-1)
	for _, tt := range []struct {
		name  string
		state payment.Status
		setup string
		r     approval.Release
		// due after now; never means NULL.
		due time.Duration
	}{
		{"as asked", payment.Pending, "looks = 0", approval.Release{DueIn: 7 * time.Second}, 7 * time.Second},
		{"at once", payment.Pending, "looks = 0", approval.Release{}, 0},
		{"first look", payment.Pending, "looks = 0", approval.Release{DueIn: -1}, 5 * time.Second},
		{"second look", payment.Pending, "looks = 1", approval.Release{DueIn: -1}, 15 * time.Second},
		{"third look", payment.Pending, "looks = 2", approval.Release{DueIn: -1}, time.Minute},
		{"fourth look", payment.Pending, "looks = 3", approval.Release{DueIn: -1}, 5 * time.Minute},
		{"many looks", payment.Pending, "looks = 99", approval.Release{DueIn: -1}, 10 * time.Minute},
		{"a pending row is never forgotten", payment.Pending, "looks = 0", approval.Release{DueIn: -1, Forget: true}, 5 * time.Second},
		{"deposit", payment.AwaitingDeposit, "looks = 1", approval.Release{DueIn: -1}, 20 * time.Minute},
		{"finished, no answer", payment.Paid, "leased = true, due_at = now(), looks = 1", approval.Release{DueIn: -1}, 15 * time.Second},
		{"finished, seen", payment.Paid, "leased = true, due_at = now()", approval.Release{DueIn: -1, Forget: true}, never},
		{"a finished row is not parked", payment.Paid, "leased = true, due_at = now()", approval.Release{DueIn: -1, Forget: true, Park: true}, never},
		{"finished, not leased, nothing due", payment.Failed, "leased = false", approval.Release{DueIn: -1, Forget: true}, never},
		{"failed, owed", payment.Failed, "holds_order = true", approval.Release{DueIn: -1, Forget: true}, 5 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			p := f.inState("a", tt.state)
			f.exec("UPDATE payments SET " + tt.setup)
			tt.r.Payment = f.row(p.PaymentKey)
			before := ask[time.Time](f, "SELECT clock_timestamp()")
			if e, err := f.Release(t.Context(), tt.r); e != payment.Applied || err != nil {
				t.Fatalf("%s, %v", e, err)
			}
			q := f.row(p.PaymentKey)
			if q.Leased || q.Version != p.Version || q.Status != tt.state {
				t.Errorf("%+v", q)
			}
			if tt.due == never {
				if !q.DueAt.IsZero() {
					t.Errorf("due %s", q.DueAt)
				}
				return
			}
			if q.DueAt.Before(before.Add(tt.due)) || q.DueAt.After(q.ReadAt.Add(tt.due)) {
				t.Errorf("due %s, asked for between %s and %s, want %s later", q.DueAt, before, q.ReadAt, tt.due)
			}
		})
	}
}

func TestReleaseRemembers(t *testing.T) {
	t.Parallel()
	f := setup(t)
	release := func(name string, r approval.Release) payment.Payment {
		r.Payment = f.reserved(name)
		if e, err := f.Release(t.Context(), r); e != payment.Applied || err != nil {
			t.Fatalf("%s: %s, %v", name, e, err)
		}
		return f.row(r.Payment.PaymentKey)
	}
	if p := release("plain", approval.Release{}); p.Told || p.KeySpent || !p.MaybeSent || !p.LastSentAt.Equal(p.ReservedAt) {
		t.Errorf("plain: %+v", p)
	}
	if p := release("sent", approval.Release{Sent: true, KeySpent: true, Told: true}); !p.Told || !p.KeySpent || !p.MaybeSent ||
		!p.LastSentAt.After(p.ReservedAt) || !p.FirstSentAt.Equal(p.ReservedAt) {
		t.Errorf("sent: %+v", p)
	}
	if p := release("not sent", approval.Release{NotSent: true}); p.MaybeSent || !p.FirstSentAt.IsZero() || !p.LastSentAt.IsZero() {
		t.Errorf("not sent: %+v", p)
	}
	p := release("parked", approval.Release{Park: true, Incident: payment.Mismatch, Reason: "differs"})
	if !ask[bool](f, "SELECT due_at = 'infinity' FROM payments WHERE id = $1", p.ID) {
		t.Error("not parked")
	}
	if got := ask[string](f, "SELECT kind || ' ' || (evidence->>'reason') FROM incidents"); got != "mismatch differs" {
		t.Errorf("incident %s", got)
	}
}

// TestReleaseStays: an incident about a finished payment changes neither its state nor its second look.
func TestReleaseStays(t *testing.T) {
	t.Parallel()
	f := setup(t)
	paid := f.settle(settlement(f.reserved("b"), payment.Paid, payment.ByRecovery))
	e, err := f.Release(t.Context(), approval.Release{
		Payment: paid, DueIn: -1, Forget: true, Incident: payment.UnexpectedState, Actor: payment.BySync, Reason: "contradicts PAID",
	})
	if e != payment.Applied || err != nil {
		t.Fatalf("%s, %v", e, err)
	}
	if q := f.row("pk_b"); q.Status != payment.Paid || !q.DueAt.Equal(paid.DueAt) {
		t.Errorf("%+v", q)
	}
	if n := f.count("incidents WHERE kind = 'unexpected_state' AND resolved_at IS NULL"); n != 1 {
		t.Errorf("%d incidents", n)
	}
}

// TestReturnedFailure: balance 0 at Toss for a payment that failed here is recorded, also when its order was let go,
// or the ledger would find the approval in no box.
func TestReturnedFailure(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		cancels  []payment.GatewayCancel
		done     int
		canceled payment.Amount
	}{
		{"approved late, canceled by hand", []payment.GatewayCancel{{TransactionKey: "t", Amount: 15000, Reason: "by hand"}}, 1, 15000},
		{"never approved", nil, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			st := settlement(f.reserved("a"), payment.Failed, payment.ByRecovery)
			st.Action.VerifyIn = time.Minute
			p := f.settle(st)
			f.exec("UPDATE payments SET due_at = now()")
			for range 2 { // a second sync changes nothing
				claimed, e, err := f.ClaimOne(t.Context(), p.PaymentKey, lease)
				applied(t, claimed, e, err)
				e, err = f.Release(t.Context(), approval.Release{
					Payment: claimed, DueIn: -1, Forget: true, Actor: payment.ByRecovery, Reason: "as known",
					Observation: seen(p, payment.SeenCanceled, 0, tt.cancels...),
				})
				if e != payment.Applied || err != nil {
					t.Fatalf("%s, %v", e, err)
				}
			}
			q := f.row(p.PaymentKey)
			if q.Status != payment.Failed || q.Failure.Code != payment.FailDeclined || q.HoldsOrder || q.Leased || !q.DueAt.IsZero() ||
				q.CanceledAmount != tt.canceled {
				t.Errorf("%+v", q)
			}
			if n := f.count("cancels WHERE state = 'done'"); n != tt.done || n != f.count("cancels") {
				t.Errorf("%d cancels done of %d", n, f.count("cancels"))
			}
			if n := f.count("incidents") + f.count("notices WHERE kind <> 'payment.failed'"); n != 0 {
				t.Errorf("%d incidents or notices", n)
			}
		})
	}
}

// TestTrap39: a holder that was paused past its lease finds that somebody else is at work.
func TestTrap39_PausedHolder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	paused := f.reserved("a")
	f.exec("UPDATE payments SET due_at = now() - interval '1 s'")
	claimed, err := f.ClaimDue(t.Context(), 1, lease)
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%v, %v", claimed, err)
	}
	if _, e, err := f.BeginSend(t.Context(), approval.BeginSend{Payment: paused, Lease: lease}); e != payment.NoRows || err != nil {
		t.Errorf("send: %s, %v", e, err)
	}
	if e, err := f.Release(t.Context(), approval.Release{Payment: paused}); e != payment.NoRows || err != nil {
		t.Errorf("release: %s, %v", e, err)
	}
	if _, e, err := f.Settle(t.Context(), settlement(paused, payment.Failed, payment.ByConfirm)); e != payment.NoRows || err != nil {
		t.Errorf("fail: %s, %v", e, err)
	}
	if _, _, e, err := f.BeginGiveBack(t.Context(), approval.GiveBack{Payment: paused, Amount: 1, Lease: lease}); e != payment.NoRows || err != nil {
		t.Errorf("give back: %s, %v", e, err)
	}
	if _, e, err := f.TakeOver(t.Context(), paused, lease); e != payment.NoRows || err != nil {
		t.Errorf("take over: %s, %v", e, err)
	}
	if _, e, err := f.BeginSend(t.Context(), approval.BeginSend{Payment: claimed[0], Lease: lease}); e != payment.Applied || err != nil {
		t.Errorf("the claimant's send: %s, %v", e, err)
	}
}

func TestBeginSend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change string
		b      approval.BeginSend
		want   payment.Ending
		sends  int
		spent  bool
	}{
		{"same key", "key_spent = false", approval.BeginSend{}, payment.Applied, 1, false},
		{"same key, which is spent", "key_spent = true", approval.BeginSend{}, payment.Applied, 1, true},
		{"next key", "key_spent = true", approval.BeginSend{NextKey: true}, payment.Applied, 2, false},
		// Trap 42: the age is by PostgreSQL's clock alone.
		{"young enough", "reserved_at = now() - interval '59 s'", approval.BeginSend{Within: 2 * time.Minute}, payment.Applied, 1, false},
		{"too old", "reserved_at = now() - interval '121 s'", approval.BeginSend{Within: 2 * time.Minute}, payment.NoRows, 0, false},
		{"age does not matter", "reserved_at = now() - interval '1 h'", approval.BeginSend{}, payment.Applied, 1, false},
		{"another version", "version = 7", approval.BeginSend{}, payment.NoRows, 0, false},
		{"no longer pending", "status = 'PAID'", approval.BeginSend{}, payment.NoRows, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			tt.b.Payment, tt.b.Lease = f.reserved("a"), 2*lease
			f.exec("UPDATE payments SET " + tt.change)
			p, e, err := f.BeginSend(t.Context(), tt.b)
			if e != tt.want || err != nil {
				t.Fatalf("%s, %v", e, err)
			}
			if e == payment.Applied && (p.Sends != tt.sends || p.KeySpent != tt.spent || p.Version != 2 || !p.Leased || !p.MaybeSent ||
				!p.DueAt.Equal(p.ReadAt.Add(2*lease)) || !p.LastSentAt.Equal(p.ReadAt) || p.FirstSentAt.Equal(p.ReadAt)) {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestBeginFirstSend: the times of a row that was never sent begin with its first send.
func TestBeginFirstSend(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	if e, err := f.Release(t.Context(), approval.Release{Payment: p, NotSent: true}); e != payment.Applied {
		t.Fatalf("%s, %v", e, err)
	}
	p, e, err := f.BeginSend(t.Context(), approval.BeginSend{Payment: p, Lease: lease})
	applied(t, p, e, err)
	if !p.MaybeSent || !p.FirstSentAt.Equal(p.ReadAt) || !p.LastSentAt.Equal(p.ReadAt) {
		t.Errorf("%+v", p)
	}
}

// TestTrap42_OneClock: every time that a rule compares is PostgreSQL's, whatever the clock of the instance says.
func TestTrap42_OneClock(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	if got := ask[time.Duration](f, "SELECT due_at - reserved_at FROM payments"); got != lease {
		t.Errorf("lease %s", got)
	}
	if !p.ReadAt.Equal(ask[time.Time](f, "SELECT reserved_at FROM payments")) {
		t.Errorf("ReadAt %s is not the statement's now()", p.ReadAt)
	}
}

func TestDepositLook(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	due := func(in time.Duration) *payment.VirtualAccount {
		return &payment.VirtualAccount{DueDate: now.Add(in)}
	}
	for _, tt := range []struct {
		name    string
		account *payment.VirtualAccount
		looks   int
		want    time.Duration
	}{
		{"first", nil, 0, 10 * time.Minute},
		{"grows", due(100 * time.Hour), 2, 40 * time.Minute},
		{"at most", due(100 * time.Hour), 90, 6 * time.Hour},
		{"no due date", &payment.VirtualAccount{}, 1, 20 * time.Minute},
		{"when it is due", due(3 * time.Minute), 0, 4 * time.Minute},
		{"just due", due(-30 * time.Second), 9, 30 * time.Second},
		{"after that", due(-time.Hour), 90, 6 * time.Hour},
		{"when the account closes", due(3*time.Minute - 24*time.Hour), 9, 4 * time.Minute},
		{"closed already", due(-25 * time.Hour), 0, 5 * time.Second},
		{"closed for long", due(-99 * time.Hour), 99, 10 * time.Minute},
	} {
		if got := depositLook(tt.account, tt.looks, now); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
