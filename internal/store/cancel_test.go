package store

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

func asked(p payment.Payment, key string, amount payment.Amount) approval.CancelAsked {
	return approval.CancelAsked{
		Payment: p, ID: payment.NewCancelID(), Key: key, Amount: amount, Asked: &amount, Reason: "returned", AskedBy: "ops",
		Actor: payment.ByOperator, Lease: lease,
	}
}

func (f *fixture) beginCancel(a approval.CancelAsked) (approval.Cancel, payment.Payment) {
	f.t.Helper()
	c, p, e, err := f.BeginCancel(f.t.Context(), a)
	return c, applied(f.t, p, e, err)
}

func (f *fixture) standing(q approval.CancelQuery) approval.Standing {
	f.t.Helper()
	st, found, err := f.FindCancels(f.t.Context(), q)
	if err != nil || !found {
		f.t.Fatalf("find cancels: %v, %v", found, err)
	}
	return st
}

// partly is Toss's answer to a cancel of ours that leaves something.
func partly(p payment.Payment, c approval.Cancel, balance payment.Amount, before ...payment.GatewayCancel) payment.Observation {
	return seen(p, payment.SeenPartlyCanceled, balance, append(before,
		payment.GatewayCancel{TransactionKey: "t-" + c.ID, Amount: c.Amount, Reason: payment.MarkedReason(c.Reason, c.ID)})...)
}

func TestBeginCancel(t *testing.T) {
	t.Parallel()
	f := setup(t)
	paid := f.inState("a", payment.Paid)
	for name, ask := range map[string]approval.CancelAsked{
		"more than left": asked(paid, "k", 15001), "nothing": asked(paid, "k", 0), "another version": asked(paid, "k", 1),
		"failed": asked(f.settle(settlement(f.reserved("b"), payment.Failed, payment.ByConfirm)), "k", 1), "pending": asked(f.reserved("c"), "k", 1),
	} {
		if name == "another version" {
			ask.Payment.Version--
		}
		if _, _, e, err := f.BeginCancel(t.Context(), ask); e != payment.NoRows || err != nil {
			t.Errorf("%s: %s, %v", name, e, err)
		}
	}
	ask := asked(paid, "k1", 5000)
	c, held := f.beginCancel(ask)
	five := payment.Amount(5000)
	want := approval.Cancel{ID: ask.ID, Sends: 1, Amount: 5000, Reason: "returned", State: payment.CancelOpen, CreatedAt: held.ReadAt,
		Key: "k1", Asked: &five, AskedBy: "ops"}
	if diff := cmp.Diff(want, c); diff != "" || !held.Leased || held.Version != paid.Version+1 || held.Status != payment.Paid {
		t.Errorf("%+v (-want +got):\n%s", held, diff)
	}
	st := f.standing(approval.CancelQuery{OrderID: paid.OrderID, Key: "k1"})
	if cmp.Diff(&want, st.Open) != "" || cmp.Diff(&want, st.Asked) != "" || st.Payment.Version != held.Version {
		t.Errorf("standing %+v", st)
	}
	if st := f.standing(approval.CancelQuery{ID: paid.ID}); st.Open == nil || st.Asked != nil {
		t.Errorf("standing of one %+v", st)
	}
	// One unfinished cancel per payment, also when the lease has run out.
	f.exec("UPDATE payments SET due_at = now() - interval '1 s' WHERE id = $1", paid.ID)
	if _, _, e, err := f.BeginCancel(t.Context(), asked(held, "k2", 1)); e != payment.NoRows || err != nil {
		t.Errorf("a second one: %s, %v", e, err)
	}
	p := f.endGiveBack(approval.GiveBackEnd{Payment: held, Cancel: c, Done: true, Observation: partly(held, c, 10000)})
	if p.Status != payment.Paid || p.CanceledAmount != 5000 || p.Leased || p.DueAt.Sub(p.ReadAt) != 2*time.Minute {
		t.Errorf("partly canceled %+v", p)
	}
	if _, _, e, err := f.BeginCancel(t.Context(), asked(p, "k1", 5000)); e != payment.NoRows || err != nil {
		t.Errorf("the same key: %s, %v", e, err)
	}
	if _, _, e, err := f.BeginCancel(t.Context(), asked(p, "k3", 10001)); e != payment.NoRows || err != nil {
		t.Errorf("more than is left: %s, %v", e, err)
	}
	last, held := f.beginCancel(asked(p, "k3", 10000))
	p = f.endGiveBack(approval.GiveBackEnd{Payment: held, Cancel: last, Done: true, Observation: partly(held, last, 0,
		payment.GatewayCancel{TransactionKey: "t-" + c.ID, Amount: 5000, Reason: payment.MarkedReason("returned", c.ID)})})
	if p.Status != payment.Canceled || p.CanceledAmount != 15000 || !p.DueAt.IsZero() || f.count("cancels WHERE state = 'done'") != 2 {
		t.Errorf("canceled %+v", p)
	}
	if got := f.count("notices WHERE payment_id = $1 AND kind = 'payment.canceled'", paid.ID); got != 2 {
		t.Errorf("%d notices of 2 cancels", got)
	}
}

// TestTrap20_CancelsNeverExceedTheBalance: 20 partial cancels at once, of which five fit. One is open at a time, and
// what they sum up to is never more than was paid.
func TestTrap20_CancelsNeverExceedTheBalance(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.inState("a", payment.Paid)
	var begun, open, worst atomic.Int64
	var mu sync.Mutex
	var listed []payment.GatewayCancel
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for {
				st, _, err := f.FindCancels(t.Context(), approval.CancelQuery{OrderID: p.OrderID})
				if err != nil || st.Payment.Left() < 3000 {
					return
				}
				c, held, e, err := f.BeginCancel(t.Context(), asked(st.Payment, fmt.Sprint("k", i), 3000))
				if err != nil {
					t.Error(err)
				}
				if e != payment.Applied {
					continue
				}
				worst.Store(max(worst.Load(), open.Add(1)))
				mu.Lock()
				o := partly(held, c, 15000-3000*payment.Amount(begun.Add(1)), listed...)
				listed = o.Cancels
				mu.Unlock()
				open.Add(-1)
				if _, e, err := f.EndGiveBack(t.Context(), approval.GiveBackEnd{Payment: held, Cancel: c, Done: true, Observation: o}); e != payment.Applied {
					t.Errorf("%s, %v", e, err)
				}
				return
			}
		})
	}
	all.Wait()
	if q := f.row(p.PaymentKey); begun.Load() != 5 || worst.Load() != 1 || q.CanceledAmount != 15000 || q.Status != payment.Canceled {
		t.Errorf("%d begun, %d at once, %+v", begun.Load(), worst.Load(), q)
	}
	if sum := ask[int](f, "SELECT sum(amount)::int FROM cancels WHERE state = 'done'"); sum != 15000 || f.count("cancels") != 5 {
		t.Errorf("canceled %d", sum)
	}
}

func TestCancelRefused(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{true, false} {
		t.Run(fmt.Sprint("quiet ", quiet), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			c, p := f.beginCancel(asked(f.inState("a", payment.Paid), "k1", 5000))
			p = f.endGiveBack(approval.GiveBackEnd{Payment: p, Cancel: c, Refused: true, RefusalCode: "EXCEED_MAX_REFUND_DUE", Quiet: quiet})
			if p.Status != payment.Paid || p.Leased || p.DueAt.Sub(p.ReadAt) != 2*time.Minute {
				t.Errorf("%+v", p)
			}
			if got := f.count("incidents WHERE kind = 'cancel_failed' AND resolved_at IS NULL") == 0; got != quiet {
				t.Errorf("no incident: %v", got)
			}
			st := f.standing(approval.CancelQuery{OrderID: p.OrderID, Key: "k1"})
			if st.Open != nil || st.Asked == nil || !st.Asked.Refused() || st.Asked.RefusalCode != "EXCEED_MAX_REFUND_DUE" {
				t.Errorf("%+v", st)
			}
			// A later one is free to begin, and its end closes the incident.
			c, p = f.beginCancel(asked(p, "k2", 5000))
			f.endGiveBack(approval.GiveBackEnd{Payment: p, Cancel: c, Done: true, Observation: partly(p, c, 10000)})
			if n := f.count("incidents WHERE resolved_at IS NULL"); n != 0 {
				t.Errorf("%d incidents are open", n)
			}
		})
	}
}

// TestCancelByOthers: everything went back by another hand, so ours is moot and nothing is counted twice.
func TestCancelByOthers(t *testing.T) {
	t.Parallel()
	f := setup(t)
	c, p := f.beginCancel(asked(f.inState("a", payment.Paid), "k1", 15000))
	p = f.endGiveBack(approval.GiveBackEnd{Payment: p, Cancel: c, Done: true, Observation: seen(p, payment.SeenCanceled, 0,
		payment.GatewayCancel{TransactionKey: "t", Amount: 15000, Reason: "by hand"})})
	if st := f.standing(approval.CancelQuery{ID: p.ID, Key: "k1"}); p.Status != payment.Canceled || st.Asked.State != payment.CancelMoot {
		t.Errorf("%+v, %+v", p, st.Asked)
	}
	if n := ask[int](f, "SELECT sum(amount)::int FROM cancels WHERE state = 'done'"); n != 15000 {
		t.Errorf("%d canceled", n)
	}
}

func TestAbandon(t *testing.T) {
	t.Parallel()
	f := setup(t)
	sent := f.reserved("a")
	if _, e, err := f.Abandon(t.Context(), asked(sent, "k1", 15000)); e != payment.NoRows || err != nil {
		t.Errorf("leased: %s, %v", e, err)
	}
	if e, err := f.Release(t.Context(), approval.Release{Payment: sent, NotSent: true, Told: true, Actor: payment.ByConfirm}); e != payment.Applied {
		t.Fatalf("%s, %v", e, err)
	}
	p := f.row(sent.PaymentKey)
	q, e, err := f.Abandon(t.Context(), asked(p, "k1", 15000))
	applied(t, q, e, err)
	if !q.Abandoned() || q.HoldsOrder || !q.DueAt.IsZero() || q.Version != p.Version+1 || f.noticed() != "payment.failed/"+fmt.Sprint(q.Version) {
		t.Errorf("%+v, %s", q, f.noticed())
	}
	if _, e, err := f.Abandon(t.Context(), asked(p, "k2", 15000)); e != payment.NoRows || err != nil {
		t.Errorf("twice: %s, %v", e, err)
	}
	events, err := f.Events(t.Context(), q.ID)
	if err != nil || len(events) != 1 || events[0].Reason != "abandoned by ops" || events[0].Actor != payment.ByOperator {
		t.Errorf("%v, %v", events, err)
	}
	// A repetition finds the abandoned payment also when another holds the order by now.
	other := payment.Order{PaymentKey: "pk_b", OrderID: p.OrderID, Amount: 15000, Currency: "KRW"}
	if _, e, err := f.Reserve(t.Context(), other, lease); e != payment.Applied {
		t.Fatalf("%s, %v", e, err)
	}
	if st := f.standing(approval.CancelQuery{OrderID: p.OrderID, Key: "k1"}); st.Payment.ID != q.ID || st.Asked.State != payment.CancelMoot {
		t.Errorf("%+v", st)
	}
	if st := f.standing(approval.CancelQuery{OrderID: p.OrderID, Key: "k9"}); st.Payment.PaymentKey != "pk_b" || st.Asked != nil {
		t.Errorf("%+v", st)
	}
	if _, found, err := f.FindCancels(t.Context(), approval.CancelQuery{OrderID: "nothing-here"}); found || err != nil {
		t.Errorf("%v, %v", found, err)
	}
}

// TestCanceledDepositExpires: a refused cancel of an account that ends by itself holds no order, and its incident is over.
func TestCanceledDepositExpires(t *testing.T) {
	t.Parallel()
	f := setup(t)
	c, p := f.beginCancel(asked(f.inState("a", payment.AwaitingDeposit), "k1", 15000))
	p = f.endGiveBack(approval.GiveBackEnd{Payment: p, Cancel: c, Refused: true})
	if in := p.DueAt.Sub(p.ReadAt); in != 5*time.Second {
		t.Errorf("looked at again in %s", in)
	}
	st := settlement(p, payment.Failed, payment.ByRecovery)
	st.Observation = payment.Observation{Sighting: payment.SeenExpired}
	if p = f.settle(st); p.HoldsOrder || !p.DueAt.IsZero() {
		t.Errorf("%+v", p)
	}
	if n := f.count("incidents WHERE resolved_at IS NULL"); n != 0 {
		t.Errorf("%d incidents about a cancel that nothing needs any more", n)
	}
}
