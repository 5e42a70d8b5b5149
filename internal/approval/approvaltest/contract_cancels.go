package approvaltest

import (
	"reflect"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// asks is a full cancel of p that an operator asks for under a key.
func asks(p payment.Payment, key string, amount payment.Amount) approval.CancelAsked {
	return approval.CancelAsked{
		Payment: p, ID: payment.NewCancelID(), Key: key, Amount: amount, Asked: &amount, Reason: "contract", AskedBy: "ops",
		Failure: payment.FailGivenBack, Actor: payment.ByOperator, Lease: time.Minute,
	}
}

func (c *contract) paid(key string) payment.Payment {
	c.Helper()
	return c.was(payment.Applied)(c.settle(c.reserved(key, time.Minute), payment.Paid, ""))
}

func (c *contract) beginCancel(a approval.CancelAsked, want payment.Ending) (approval.Cancel, payment.Payment) {
	c.Helper()
	began, p, ending, err := c.store.BeginCancel(c.ctx, a)
	c.was(want)(p, ending, err)
	return began, p
}

func (c *contract) standing(q approval.CancelQuery) approval.Standing {
	c.Helper()
	st, found, err := c.store.FindCancels(c.ctx, q)
	if err != nil || !found {
		c.Fatalf("find cancels of %+v: %v, %v", q, found, err)
	}
	return st
}

// ended leaves the cancel refused, and the payment as it was.
func (c *contract) ended(held payment.Payment, began approval.Cancel) payment.Payment {
	c.Helper()
	return c.was(payment.Applied)(c.store.EndGiveBack(c.ctx, approval.GiveBackEnd{
		Payment: held, Cancel: began, Refused: true, RefusalCode: "CONTRACT", Quiet: true, Actor: payment.ByOperator,
	}))
}

func (c *contract) findCancels() { //nolint:cyclop // one story
	if st, found, err := c.store.FindCancels(c.ctx, approval.CancelQuery{OrderID: "contract-order", Key: "k"}); found || err != nil {
		c.Errorf("found %+v, %v", st, err)
	}
	first := c.reserved("a", time.Minute)
	ending, err := c.store.Release(c.ctx, approval.Release{Payment: first, DueIn: time.Hour, NotSent: true, Actor: payment.ByConfirm})
	c.was(payment.Applied)(first, ending, err)
	c.was(payment.Applied)(c.store.Abandon(c.ctx, asks(c.row("a"), "first", 1000)))
	second := c.paid("b")
	if st := c.standing(approval.CancelQuery{OrderID: "contract-order"}); st.Payment.PaymentKey != "b" || st.Open != nil || st.Asked != nil {
		c.Errorf("the holder of the order stands first: %+v", st)
	}
	if st := c.standing(approval.CancelQuery{OrderID: "contract-order", Key: "first"}); st.Payment.PaymentKey != "a" || st.Open != nil ||
		st.Asked == nil || st.Asked.State != payment.CancelMoot {
		c.Errorf("a key stands with its own payment: %+v", st)
	}
	began, held := c.beginCancel(asks(second, "second", 400), payment.Applied)
	for name, q := range map[string]approval.CancelQuery{
		"by order":     {OrderID: "contract-order", Key: "second"},
		"by id":        {ID: second.ID, Key: "second"},
		"another key":  {ID: second.ID, Key: "third"},
		"without key":  {ID: second.ID},
		"key of other": {ID: second.ID, Key: "first"},
	} {
		st := c.standing(q)
		if st.Payment.PaymentKey != "b" || st.Open == nil || st.Open.ID != began.ID || (st.Asked != nil) != (q.Key == "second") {
			c.Errorf("%s: %+v", name, st)
		}
	}
	c.ended(held, began)
	if st := c.standing(approval.CancelQuery{ID: second.ID, Key: "second"}); st.Open != nil || st.Asked == nil || !st.Asked.Refused() ||
		st.Asked.RefusalCode != "CONTRACT" {
		c.Errorf("an ended cancel is still found by its key alone: %+v", st)
	}
}

func (c *contract) askedCancel() {
	p := c.paid("a")
	stale := p
	stale.Version--
	c.beginCancel(asks(stale, "k", 400), payment.NoRows)
	for _, amount := range []payment.Amount{0, -1, 1001} {
		c.beginCancel(asks(p, "k", amount), payment.NoRows)
	}
	ask := asks(p, "k", 400)
	ask.NeedsAccount = true
	began, held := c.beginCancel(ask, payment.Applied)
	if held.Version <= p.Version || !approval.Held(held) || held.Status != payment.Paid {
		c.Errorf("held %+v after %+v", held, p)
	}
	want := approval.Cancel{
		ID: ask.ID, Sends: 1, Amount: 400, Reason: "contract", State: payment.CancelOpen, CreatedAt: began.CreatedAt, Key: "k",
		Asked: ask.Asked, AskedBy: "ops", NeedsAccount: true, Failure: payment.FailGivenBack,
	}
	if !reflect.DeepEqual(began, want) || began.CreatedAt.IsZero() {
		c.Errorf("begun %+v, want %+v", began, want)
	}
	c.beginCancel(asks(p, "k2", 400), payment.NoRows)
	c.beginCancel(asks(held, "k2", 400), payment.NoRows) // it is leased
	open := c.was(payment.Applied)(c.store.EndGiveBack(c.ctx, approval.GiveBackEnd{Payment: held, Cancel: began, Actor: payment.ByOperator}))
	c.beginCancel(asks(open, "k2", 400), payment.NoRows) // one is unfinished
	free := c.taken(open, began)
	c.beginCancel(asks(free, "k", 400), payment.NoRows) // the key was used
	c.beginCancel(asks(free, "k3", 1000), payment.Applied)
}

// taken takes the unfinished cancel up and ends it as refused.
func (c *contract) taken(open payment.Payment, began approval.Cancel) payment.Payment {
	c.Helper()
	again, held, ending, err := c.store.BeginGiveBack(c.ctx, approval.GiveBack{Payment: open, Amount: 400, Actor: payment.ByRecovery, Lease: time.Minute})
	c.was(payment.Applied)(held, ending, err)
	if again.ID != began.ID || again.Sends != 1 {
		c.Errorf("taken up %+v", again)
	}
	return c.ended(held, again)
}

// heldCancel: somebody who only looks holds the payment; nothing else is in the way.
func (c *contract) heldCancel() {
	p := c.paid("a")
	give := func(p payment.Payment) (approval.Cancel, payment.Payment) {
		began, held, ending, err := c.store.BeginGiveBack(c.ctx, approval.GiveBack{Payment: p, Amount: 1000, Actor: payment.ByRecovery, Lease: time.Minute})
		return began, c.was(payment.Applied)(held, ending, err)
	}
	began, held := give(p)
	again, held := give(c.ended(held, began)) // refused already: it is leased and nothing is begun
	if !again.Refused() {
		c.Fatalf("begun %+v", again)
	}
	c.beginCancel(asks(held, "k", 1000), payment.NoRows)
	c.beginCancel(asks(c.ended(held, again), "k", 1000), payment.Applied)
}

// unpaidCancels: only what is PAID or awaits its deposit can be canceled on request.
func (c *contract) unpaidCancels() {
	p := c.reserved("a", -time.Second)
	c.beginCancel(asks(p, "k", 1000), payment.NoRows)
	p = c.was(payment.Applied)(c.settle(p, payment.AwaitingDeposit, ""))
	_, held := c.beginCancel(asks(p, "k", 1000), payment.Applied)
	if held.Status != payment.AwaitingDeposit || !approval.Held(held) {
		c.Errorf("held %+v", held)
	}
}

func (c *contract) abandon() {
	abandon := func(a approval.CancelAsked, want payment.Ending) payment.Payment {
		c.Helper()
		return c.was(want)(c.store.Abandon(c.ctx, a))
	}
	p := c.reserved("a", time.Minute)
	abandon(asks(p, "k", 1000), payment.NoRows) // leased, and maybe sent
	ending, err := c.store.Release(c.ctx, approval.Release{Payment: p, DueIn: time.Hour, Told: true, Actor: payment.ByConfirm})
	c.was(payment.Applied)(p, ending, err)
	abandon(asks(c.row("a"), "k", 1000), payment.NoRows) // maybe sent
	p = c.was(payment.Applied)(c.store.TakeOver(c.ctx, c.row("a"), time.Minute))
	ending, err = c.store.Release(c.ctx, approval.Release{Payment: p, DueIn: time.Hour, NotSent: true, Actor: payment.ByConfirm})
	c.was(payment.Applied)(p, ending, err)
	p = c.row("a")
	stale := p
	stale.Version--
	abandon(asks(stale, "k", 1000), payment.NoRows)
	q := abandon(asks(p, "k", 1000), payment.Applied)
	if q.Status != payment.Failed || q.Failure == nil || q.Failure.Code != payment.FailAbandoned || q.HoldsOrder || q.Leased ||
		!q.DueAt.IsZero() || q.Version != p.Version+1 {
		c.Errorf("abandoned %+v", q)
	}
	abandon(asks(q, "k2", 1000), payment.NoRows)
	if st := c.standing(approval.CancelQuery{ID: q.ID, Key: "k"}); st.Open != nil || st.Asked == nil || st.Asked.Amount != 1000 ||
		st.Asked.AskedBy != "ops" || st.Asked.State != payment.CancelMoot {
		c.Errorf("the key is not kept: %+v", st)
	}
	c.probe(func(look Probe) {
		if n := look.NoticesOf("a", payment.NoticeFailed); n != 1 {
			c.Errorf("%d notices of what was told 202", n)
		}
	})
	c.reserved("b", time.Minute)
}

// cancelContract are the promises to who asks for a cancel.
func cancelContract() map[string]func(*contract) {
	return map[string]func(*contract){
		"cancels stand with their payment":     (*contract).findCancels,
		"a cancel is asked for once":           (*contract).askedCancel,
		"a cancel waits for the lease":         (*contract).heldCancel,
		"only what may hold money is canceled": (*contract).unpaidCancels,
		"what was never sent is abandoned":     (*contract).abandon,
	}
}
