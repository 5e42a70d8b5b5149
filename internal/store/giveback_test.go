package store

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

func (f *fixture) beginGiveBack(p payment.Payment) (approval.Cancel, payment.Payment) {
	f.t.Helper()
	c, p, e, err := f.BeginGiveBack(f.t.Context(), approval.GiveBack{
		Payment: p, Amount: p.Amount, Reason: "may not stand", Actor: payment.ByRecovery, Lease: lease,
	})
	return c, applied(f.t, p, e, err)
}

func (f *fixture) endGiveBack(e approval.GiveBackEnd) payment.Payment {
	f.t.Helper()
	e.Actor, e.Reason = payment.ByRecovery, "cancel"
	p, ending, err := f.EndGiveBack(f.t.Context(), e)
	return applied(f.t, p, ending, err)
}

func done(p payment.Payment, c approval.Cancel) approval.GiveBackEnd {
	return approval.GiveBackEnd{Payment: p, Cancel: c, Done: true, Observation: seen(p, payment.SeenCanceled, 0,
		payment.GatewayCancel{TransactionKey: "t", Amount: p.Amount, Reason: payment.MarkedReason("x", c.ID)})}
}

func TestGiveBackOfFailed(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.settle(settlement(f.reserved("a"), payment.Failed, payment.ByConfirm))
	c, held := f.beginGiveBack(p)
	if !regexp.MustCompile(`^c-[a-z2-7]{26}$`).MatchString(c.ID) || c.Sends != 1 || c.Amount != 15000 || c.Reason != "may not stand" || !c.CreatedAt.Equal(held.ReadAt) {
		t.Errorf("cancel %+v", c)
	}
	if !held.HoldsOrder || !held.Leased || held.Version != p.Version+1 || held.Status != payment.Failed || !held.DueAt.Equal(held.ReadAt.Add(lease)) {
		t.Errorf("held %+v", held)
	}
	if _, e, err := f.Reserve(t.Context(), payment.Order{PaymentKey: "pk_b", OrderID: p.OrderID, Amount: 1, Currency: "KRW"}, lease); e != payment.NoRows {
		t.Errorf("the order was let go while money is owed: %s, %v", e, err)
	}
	q := f.endGiveBack(done(held, c))
	if q.HoldsOrder || q.Leased || !q.DueAt.IsZero() || q.CanceledAmount != 15000 || q.Failure.Code != payment.FailDeclined {
		t.Errorf("done: %+v", q)
	}
	if got := ask[string](f, "SELECT state || transaction_key FROM cancels"); got != "donet" {
		t.Errorf("cancel %s", got)
	}
	if got := f.noticed(); got != "" {
		t.Errorf("a payment that the buyer saw fail needs no notice: %s", got)
	}
	if _, e, err := f.EndGiveBack(t.Context(), done(held, c)); e != payment.NoRows || err != nil {
		t.Errorf("twice: %s, %v", e, err)
	}
}

// TestGiveBackKeys is traps 19 and 38: nothing heard keeps the key, an error heard takes the next, never a second cancel.
func TestGiveBackKeys(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.settle(settlement(f.reserved("a"), payment.Failed, payment.ByConfirm))
	first, p := f.beginGiveBack(p)
	for _, tt := range []struct {
		name  string
		spent bool
		sends int
	}{
		{"time-out", false, 1}, {"an error", true, 2}, {"time-out again", false, 2}, {"another error", true, 3},
	} {
		p = f.endGiveBack(approval.GiveBackEnd{Payment: p, Cancel: first, KeySpent: tt.spent})
		if p.Leased || p.DueAt.Sub(p.ReadAt) != 5*time.Second || !p.HoldsOrder {
			t.Errorf("%s: %+v", tt.name, p)
		}
		var c approval.Cancel
		c, p = f.beginGiveBack(p)
		if c.ID != first.ID || c.Sends != tt.sends || !c.CreatedAt.Equal(first.CreatedAt) {
			t.Errorf("%s: %+v", tt.name, c)
		}
	}
	if n := f.count("cancels"); n != 1 {
		t.Errorf("%d cancels", n)
	}
}

func TestGiveBackRefused(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.settle(settlement(f.reserved("a"), payment.Failed, payment.ByConfirm))
	c, p := f.beginGiveBack(p)
	p = f.endGiveBack(approval.GiveBackEnd{Payment: p, Cancel: c, Refused: true, Observation: seen(p, payment.SeenDone, 15000)})
	if !p.HoldsOrder || p.DueAt.IsZero() || f.count("incidents WHERE kind = 'cancel_failed' AND resolved_at IS NULL") != 1 {
		t.Errorf("refused: %+v", p)
	}
	if got := ask[string](f, "SELECT state FROM cancels"); got != "refused" {
		t.Errorf("cancel %s", got)
	}
	if in := p.DueAt.Sub(p.ReadAt); in != 5*time.Second {
		t.Errorf("looked at again in %s", in)
	}
	// Every later look finds the refused cancel and sends none.
	for looks := 1; looks <= 3; looks++ {
		f.exec("UPDATE payments SET due_at = now()")
		claimed, e, err := f.ClaimOne(t.Context(), p.PaymentKey, lease)
		applied(t, claimed, e, err)
		again, held := f.beginGiveBack(claimed)
		if !again.Refused() || again.ID != c.ID || again.Sends != 1 || !held.Leased || f.count("cancels") != 1 {
			t.Errorf("look %d: %+v, %d cancels", looks, again, f.count("cancels"))
		}
		p = f.endGiveBack(approval.GiveBackEnd{Payment: held, Cancel: again, Refused: true, Observation: seen(p, payment.SeenDone, 15000)})
		if in := p.DueAt.Sub(p.ReadAt); !p.HoldsOrder || in != payment.LookIn(held.Looks) || f.count("incidents") != 1 {
			t.Errorf("look %d: in %s, %d incidents", held.Looks, in, f.count("incidents"))
		}
	}
	if got := ask[string](f, "SELECT state || ' ' || (done_at IS NOT NULL) FROM cancels"); got != "refused true" {
		t.Errorf("cancel %s", got)
	}
	// Recovery keeps looking; a balance of 0, by whosoever hand, lets the order go and closes the incident.
	claimed, e, err := f.ClaimOne(t.Context(), p.PaymentKey, lease)
	applied(t, claimed, e, err)
	if e, err := f.Release(t.Context(), approval.Release{Payment: claimed, DueIn: -1, Forget: true, Observation: seen(p, payment.SeenInProgress, 0)}); e != payment.Applied || err != nil {
		t.Fatalf("%s, %v", e, err)
	}
	if p = f.row(p.PaymentKey); !p.HoldsOrder || p.DueAt.IsZero() {
		t.Errorf("forgotten: %+v", p)
	}
	e, err = f.Release(t.Context(), approval.Release{Payment: p, DueIn: -1, Forget: true, Actor: payment.ByRecovery,
		Observation: seen(p, payment.SeenCanceled, 0, payment.GatewayCancel{TransactionKey: "t", Amount: 15000, Reason: "by hand"})})
	if e != payment.Applied || err != nil {
		t.Fatalf("%s, %v", e, err)
	}
	p = f.row(p.PaymentKey)
	if p.HoldsOrder || !p.DueAt.IsZero() || p.CanceledAmount != 15000 || f.count("incidents WHERE resolved_at IS NULL") != 0 {
		t.Errorf("returned: %+v", p)
	}
}

func TestGiveBackOfOthers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		from    payment.Status
		want    payment.Status
		code    payment.FailureCode
		notices string
	}{
		{payment.Pending, payment.Failed, payment.FailGivenBack, ""},
		{payment.AwaitingDeposit, payment.Failed, payment.FailGivenBack, ""},
		{payment.Paid, payment.Canceled, "", "payment.canceled/3"},
	} {
		t.Run(string(tt.from), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			c, p := f.beginGiveBack(f.inState("a", tt.from))
			p = f.endGiveBack(done(p, c))
			code := payment.FailureCode("")
			if p.Failure != nil {
				code = p.Failure.Code
			}
			if p.Status != tt.want || code != tt.code || p.Leased || !p.DueAt.IsZero() || p.HoldsOrder != (tt.want == payment.Canceled) {
				t.Errorf("%+v", p)
			}
			if got := f.noticed(); got != tt.notices {
				t.Errorf("notices %s", got)
			}
		})
	}
	t.Run("canceled", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		_, _, e, err := f.BeginGiveBack(t.Context(), approval.GiveBack{Payment: f.inState("a", payment.Canceled), Amount: 1, Lease: lease})
		if e != payment.NoRows || err != nil {
			t.Errorf("%s, %v", e, err)
		}
	})
	t.Run("overdue deposit", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		c, p := f.beginGiveBack(f.inState("a", payment.AwaitingDeposit))
		end := done(p, c)
		end.Failure = payment.FailExpired
		if p = f.endGiveBack(end); p.Status != payment.Failed || p.Failure.Code != payment.FailExpired || p.HoldsOrder {
			t.Errorf("%+v", p)
		}
	})
	t.Run("partly", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		c, p := f.beginGiveBack(f.inState("a", payment.Paid))
		end := done(p, c)
		end.Observation = seen(p, payment.SeenPartlyCanceled, 5000)
		if p = f.endGiveBack(end); p.Status != payment.Paid || p.CanceledAmount != 10000 || f.count("cancels WHERE state = 'done'") != 1 {
			t.Errorf("%+v", p)
		}
	})
	t.Run("not stored before", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		p := f.reserved("a")
		p = f.endGiveBack(done(p, approval.Cancel{ID: payment.NewCancelID()}))
		if p.Status != payment.Failed || f.count("cancels WHERE ours AND state = 'done'") != 1 {
			t.Errorf("%+v", p)
		}
	})
	t.Run("poisoned notice", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		c, p := f.beginGiveBack(f.inState("a", payment.Paid))
		f.exec("ALTER TABLE notices ADD CONSTRAINT poison CHECK (kind = '') NOT VALID")
		if p = f.endGiveBack(done(p, c)); p.Status != payment.Canceled || !strings.Contains(f.log.String(), "23514") {
			t.Errorf("%+v\n%s", p, f.log)
		}
	})
}

// TestGiveBackWhileAnotherHolds: the money goes back all the same.
func TestGiveBackWhileAnotherHolds(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.settle(settlement(f.reserved("a"), payment.Failed, payment.ByConfirm))
	o := order("a")
	o.PaymentKey = "pk_b"
	if _, e, err := f.Reserve(t.Context(), o, lease); e != payment.Applied {
		t.Fatalf("%s, %v", e, err)
	}
	c, p := f.beginGiveBack(p)
	if p.HoldsOrder || c.ID == "" {
		t.Errorf("%+v", p)
	}
	if p = f.endGiveBack(done(p, c)); p.HoldsOrder || p.CanceledAmount != 15000 {
		t.Errorf("%+v", p)
	}
	// The same, decided in the very moment of the statement.
	q := f.settle(settlement(f.reserved("c"), payment.Failed, payment.ByConfirm))
	if _, r, e, err := f.beginGiveBackSQL(q); e != payment.Applied || r.HoldsOrder {
		t.Errorf("%s, %v", e, err)
	}
}

func (f *fixture) beginGiveBackSQL(p payment.Payment) (approval.Cancel, payment.Payment, payment.Ending, error) {
	return f.Store.beginGiveBack(f.t.Context(), approval.GiveBack{Payment: p, Amount: 1, Lease: lease}, false)
}

// TestGiveBackRacesReserve: whoever takes the order, nobody fails and exactly one holds it.
func TestGiveBackRacesReserve(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i := range 200 {
		p := f.settle(settlement(f.reserved(fmt.Sprint(i)), payment.Failed, payment.ByConfirm))
		var all sync.WaitGroup
		all.Go(func() { f.beginGiveBack(p) })
		all.Go(func() {
			o := payment.Order{PaymentKey: p.PaymentKey + "b", OrderID: p.OrderID, Amount: 1, Currency: "KRW"}
			if _, _, err := f.Reserve(t.Context(), o, lease); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		if n := f.count("payments WHERE order_id = $1 AND holds_order", p.OrderID); n != 1 {
			t.Fatalf("%d hold the order", n)
		}
	}
}

// TestReopenRacesGiveBack: guarded by status alone both won 1,999 of 2,000 races; under the version none may.
func TestReopenRacesGiveBack(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var both, reopened, given int
	for i := range 2000 {
		p := f.unsent(f.reserved(fmt.Sprint(i)))
		var endings [2]payment.Ending
		var all sync.WaitGroup
		all.Go(func() {
			var err error
			if _, endings[0], err = f.Reopen(t.Context(), p, lease); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			var err error
			if _, _, endings[1], err = f.BeginGiveBack(t.Context(), approval.GiveBack{Payment: p, Amount: 1, Lease: lease}); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		switch endings {
		case [2]payment.Ending{payment.Applied, payment.Applied}:
			both++
		case [2]payment.Ending{payment.Applied, payment.NoRows}:
			reopened++
		case [2]payment.Ending{payment.NoRows, payment.Applied}:
			given++
		default:
			t.Fatalf("race %d: %v", i, endings)
		}
	}
	t.Logf("both won %d, reopened %d, gave back %d", both, reopened, given)
	if both != 0 || reopened == 0 || given == 0 {
		t.Errorf("both won %d of 2000 (reopened %d, gave back %d)", both, reopened, given)
	}
}
