package approvaltest

import (
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// probe is called only if the store offers one.
func (c *contract) probe(look func(Probe)) {
	if p, ok := c.store.(Probe); ok {
		look(p)
	}
}

func returnedBy(p payment.Payment, cancels ...payment.GatewayCancel) payment.Observation {
	return payment.Observation{Sighting: payment.SeenCanceled, PaymentKey: p.PaymentKey, OrderID: p.OrderID, Total: p.Amount,
		Currency: p.Currency, Cancels: cancels}
}

// returned is a payment that failed here, let its order go, and turns out to have been approved and canceled by hand.
func (c *contract) returned() {
	for key, cancels := range map[string][]payment.GatewayCancel{
		"a": {{TransactionKey: "t", Amount: 1000, Reason: "by hand"}},
		"b": nil, // a virtual account that was canceled before anybody paid into it
	} {
		p := c.was(payment.Applied)(c.settle(c.reserved(key, time.Minute), payment.Failed, payment.FailExpired))
		ending, err := c.store.Release(c.ctx, approval.Release{
			Payment: p, DueIn: -1, Forget: true, Actor: payment.ByRecovery, Reason: "as known", Observation: returnedBy(p, cancels...),
		})
		c.was(payment.Applied)(p, ending, err)
		if q := c.row(key); q.Status != payment.Failed || q.HoldsOrder || q.Leased || !q.DueAt.IsZero() ||
			q.Failure == nil || q.Failure.Code != payment.FailExpired {
			c.Errorf("returned %+v", q)
		}
		c.probe(func(look Probe) {
			if n := look.DoneCancelsOf(key); n != len(cancels) {
				c.Errorf("%d of %d cancels are recorded", n, len(cancels))
			}
			if n := look.NoticesOf(key, payment.NoticeCanceled); n != 0 {
				c.Errorf("%d notices of the return of a payment that failed", n)
			}
		})
	}
}

// verify is a confirm that took a payment over: who held it before may still cancel.
func (c *contract) verify() {
	p := c.reserved("a", time.Minute)
	plain := approval.Settlement{Payment: p, Actor: payment.ByConfirm, Action: payment.Action{
		Do: payment.Settle, To: payment.Paid, VerifyIn: 2 * time.Minute, Reason: "contract",
	}}
	plain.Observation = payment.Observation{Sighting: payment.SeenDone, PaymentKey: "a", OrderID: p.OrderID, Total: p.Amount,
		Balance: p.Amount, Currency: p.Currency}
	q := c.was(payment.Applied)(c.store.Settle(c.ctx, plain))
	if in := q.DueAt.Sub(q.ReadAt); q.Status != payment.Paid || q.Leased || in < time.Minute || in > 2*time.Minute {
		c.Errorf("looked at again in %s: %+v", in, q)
	}
}

// notices: the checkout hears of a failure only if a caller was answered 202 before, whoever found it.
func (c *contract) notices() {
	for _, by := range []payment.Actor{payment.ByConfirm, payment.ByRecovery} {
		for when, want := range map[string]int{"never": 0, "before": 1, "by the settle": 1, "after": 1} {
			key := string(by) + " " + when
			p := c.reserved(key, time.Minute)
			told := func() {
				if err := c.store.MarkTold(c.ctx, key); err != nil {
					c.Fatalf("mark told: %v", err)
				}
			}
			if when == "before" {
				told()
			}
			q := c.was(payment.Applied)(c.store.Settle(c.ctx, approval.Settlement{
				Payment: p, Actor: by, Told: when == "by the settle", Action: payment.Action{
					Do: payment.Settle, To: payment.Failed, Failure: &payment.Failure{Code: payment.FailExpired}, Reason: "contract",
				},
			}))
			if when == "after" {
				told()
				told()
			}
			c.probe(func(look Probe) {
				if n := look.NoticesOf(key, payment.NoticeFailed); n != want {
					c.Errorf("failed by %s, told %s: %d notices, want %d", by, when, n, want)
				}
			})
			if when != "after" && q.Told != (want > 0) {
				c.Errorf("failed by %s, told %s: %v", by, when, q.Told)
			}
		}
	}
	c.paidNotices()
}

func (c *contract) paidNotices() {
	p := c.was(payment.Applied)(c.settle(c.reserved("paid", time.Minute), payment.Paid, ""))
	c.probe(func(look Probe) {
		for kind, want := range map[payment.NoticeKind]int{payment.NoticePaid: 1, payment.NoticeReceipt: 1, payment.NoticeFailed: 0} {
			if n := look.NoticesOf(p.PaymentKey, kind); n != want {
				c.Errorf("paid: %d notices %s, want %d", n, kind, want)
			}
		}
	})
	o := returnedBy(p, payment.GatewayCancel{TransactionKey: "t", Amount: p.Amount})
	c.was(payment.Applied)(c.store.Settle(c.ctx, approval.Settlement{
		Payment: p, Actor: payment.ByRecovery, Observation: o, Action: payment.Action{Do: payment.Settle, To: payment.Canceled, Reason: "contract"},
	}))
	c.probe(func(look Probe) {
		if n := look.NoticesOf(p.PaymentKey, payment.NoticeCanceled); n != 1 {
			c.Errorf("canceled: %d notices", n)
		}
	})
}

func (c *contract) givenBack() {
	for give, want := range map[payment.FailureCode]payment.FailureCode{
		"": payment.FailGivenBack, payment.FailExpired: payment.FailExpired,
	} {
		key := "ended " + string(want)
		p := c.reserved(key, time.Minute)
		cancel, held, ending, err := c.store.BeginGiveBack(c.ctx, approval.GiveBack{Payment: p, Amount: 1000, Actor: payment.ByRecovery, Lease: time.Minute})
		c.was(payment.Applied)(held, ending, err)
		end := c.was(payment.Applied)(c.store.EndGiveBack(c.ctx, approval.GiveBackEnd{
			Payment: held, Cancel: cancel, Done: true, Failure: give, Observation: returnedBy(p), Actor: payment.ByRecovery, Reason: "contract",
		}))
		if end.Status != payment.Failed || end.Failure == nil || end.Failure.Code != want || end.HoldsOrder {
			c.Errorf("given back as %q: %+v", give, end)
		}
	}
}

// refused: only another balance begins another cancel, and only a balance of 0 lets the order go.
func (c *contract) refused() {
	p := c.was(payment.Applied)(c.settle(c.reserved("a", time.Minute), payment.Failed, payment.FailExpired))
	var ids []string
	for _, amount := range []payment.Amount{1000, 1000, 1000, 400, 400} {
		cancel, held, ending, err := c.store.BeginGiveBack(c.ctx, approval.GiveBack{Payment: p, Amount: amount, Actor: payment.ByRecovery, Lease: time.Minute})
		c.was(payment.Applied)(held, ending, err)
		if known := len(ids) > 0 && ids[len(ids)-1] == cancel.ID; known != cancel.Refused() || cancel.Amount != amount || !held.HoldsOrder {
			c.Errorf("begun %+v after %v", cancel, ids)
		}
		if !cancel.Refused() {
			ids = append(ids, cancel.ID)
		}
		p = c.was(payment.Applied)(c.store.EndGiveBack(c.ctx, approval.GiveBackEnd{Payment: held, Cancel: cancel, Refused: true, Actor: payment.ByRecovery}))
		if !p.HoldsOrder || p.Leased || p.DueAt.IsZero() {
			c.Errorf("refused %+v", p)
		}
	}
	if len(ids) != 2 {
		c.Errorf("cancels %v", ids)
	}
	ending, err := c.store.Release(c.ctx, approval.Release{Payment: p, DueIn: -1, Forget: true, Actor: payment.ByRecovery,
		Observation: returnedBy(p, payment.GatewayCancel{TransactionKey: "t", Amount: 1000, Reason: "by hand"})})
	c.was(payment.Applied)(p, ending, err)
	if q := c.row("a"); q.HoldsOrder || !q.DueAt.IsZero() {
		c.Errorf("returned %+v", q)
	}
}
