package approvaltest

import (
	"context"
	"maps"
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// StoreContract holds a store to the promises of approval's ports, as far as the use cases rely on them. open returns
// an empty store each time.
func StoreContract(t *testing.T, open func(t *testing.T) approval.Store) {
	checks := map[string]func(*contract){
		"reserve is refused by key and by order": (*contract).reserve,
		"find prefers the key":                   (*contract).find,
		"a lease keeps others out until it ends": (*contract).lease,
		"a failure needs the fence":              (*contract).fence,
		"a record keeps off another's lease":     (*contract).record,
		"final states stay":                      (*contract).final,
		"reopen is fenced and wants the order":   (*contract).reopen,
		"a send is stored before it happens":     (*contract).send,
		"release":                                (*contract).release,
		"give back holds the order until done":   (*contract).giveBack,
		"a refused cancel is not begun again":    (*contract).refused,
		"a give back names the failure":          (*contract).givenBack,
		"a failure is news for who was told 202": (*contract).notices,
		"a second look where it is asked for":    (*contract).verify,
		"cancels of a failure are recorded":      (*contract).returned,
	}
	maps.Copy(checks, cancelContract())
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(&contract{T: t, ctx: t.Context(), store: open(t)})
		})
	}
}

// Probe shows the contract what no port shows. What a store that does not offer it wrote besides its rows is not
// checked.
type Probe interface {
	// NoticesOf counts the notices of a payment, by kind.
	NoticesOf(paymentKey string, kind payment.NoticeKind) int
	// DoneCancelsOf counts the cancels of a payment that are recorded as done, ours and foreign ones.
	DoneCancelsOf(paymentKey string) int
}

type contract struct {
	*testing.T
	ctx   context.Context
	store approval.Store
}

func contractOrder(key string) payment.Order {
	return payment.Order{PaymentKey: key, OrderID: "contract-order", Amount: 1000, Currency: payment.KRW}
}

// was returns a function that takes the results of a write and checks its ending.
func (c *contract) was(want payment.Ending) func(payment.Payment, payment.Ending, error) payment.Payment {
	c.Helper()
	return func(p payment.Payment, got payment.Ending, err error) payment.Payment {
		c.Helper()
		if got != want || (err != nil) != (got == payment.NotApplied || got == payment.MaybeApplied) {
			c.Fatalf("ended %s, %v; want %s", got, err, want)
		}
		return p
	}
}

func (c *contract) reserved(key string, lease time.Duration) payment.Payment {
	c.Helper()
	return c.was(payment.Applied)(c.store.Reserve(c.ctx, contractOrder(key), lease))
}

func (c *contract) settle(p payment.Payment, to payment.Status, failure payment.FailureCode) (payment.Payment, payment.Ending, error) {
	s := approval.Settlement{Payment: p, Actor: payment.ByConfirm, Action: payment.Action{Do: payment.Settle, To: to, Reason: "contract"}}
	s.Observation = payment.Observation{Sighting: payment.SeenDone, PaymentKey: p.PaymentKey, OrderID: p.OrderID, Total: p.Amount,
		Balance: p.Amount, Currency: p.Currency}
	if failure != "" {
		s.Action.Failure, s.Observation = &payment.Failure{Code: failure}, payment.Observation{}
		s.NotSent = s.Action.Failure.Reopens()
	}
	return c.store.Settle(c.ctx, s)
}

func (c *contract) row(key string) payment.Payment {
	c.Helper()
	p, found, err := c.store.Find(c.ctx, key, "")
	if err != nil || !found {
		c.Fatalf("find %s: %v, %v", key, found, err)
	}
	return p
}

func (c *contract) reserve() {
	p := c.reserved("a", time.Minute)
	if p.Status != payment.Pending || !p.HoldsOrder || !p.MaybeSent || !approval.Held(p) || p.Sends != 1 || p.ReadAt.IsZero() {
		c.Errorf("reserved %+v", p)
	}
	c.was(payment.NoRows)(c.store.Reserve(c.ctx, contractOrder("a"), time.Minute))
	c.was(payment.NoRows)(c.store.Reserve(c.ctx, contractOrder("b"), time.Minute))
	c.was(payment.Applied)(c.settle(p, payment.Failed, payment.FailDeclined))
	c.was(payment.NoRows)(c.store.Reserve(c.ctx, contractOrder("a"), time.Minute))
	c.reserved("b", time.Minute)
}

func (c *contract) find() {
	if _, found, err := c.store.Find(c.ctx, "a", "contract-order"); found || err != nil {
		c.Errorf("found %v, %v", found, err)
	}
	c.was(payment.Applied)(c.settle(c.reserved("a", time.Minute), payment.Failed, payment.FailDeclined))
	c.reserved("b", time.Minute)
	for key, want := range map[string]string{"a": "a", "b": "b", "c": "b"} {
		if p, _, err := c.store.Find(c.ctx, key, "contract-order"); err != nil || p.PaymentKey != want {
			c.Errorf("find %s = %s, %v; want %s", key, p.PaymentKey, err, want)
		}
	}
}

func (c *contract) lease() {
	p := c.reserved("a", time.Minute)
	c.was(payment.NoRows)(c.store.TakeOver(c.ctx, p, time.Minute))
	c.was(payment.Applied)(c.store.BeginSend(c.ctx, approval.BeginSend{Payment: p, Lease: -time.Second, Actor: payment.ByConfirm}))
	p = c.row("a")
	if approval.Held(p) {
		c.Error("a lease that ran out holds others off")
	}
	q := c.was(payment.Applied)(c.store.TakeOver(c.ctx, p, time.Minute))
	if q.Version <= p.Version || !approval.Held(q) || !q.Told {
		c.Errorf("taken over from a holder that died %+v", q)
	}
	c.was(payment.NoRows)(c.store.TakeOver(c.ctx, p, time.Minute))
}

func (c *contract) fence() {
	old := c.reserved("a", -time.Second)
	held := c.was(payment.Applied)(c.store.TakeOver(c.ctx, old, time.Minute))
	c.was(payment.NoRows)(c.settle(old, payment.Failed, payment.FailDeclined))
	if got := c.was(payment.Applied)(c.settle(old, payment.Paid, "")); got.Status != payment.Paid || got.Leased {
		c.Errorf("settled %+v", got)
	}
	c.was(payment.NoRows)(c.settle(held, payment.Failed, payment.FailDeclined))
}

// record is news that moves nothing, of an earlier cancel, while an operator's cancel is under way: it would take the
// lease and the next look from it.
func (c *contract) record() {
	paid := c.was(payment.Applied)(c.settle(c.reserved("a", time.Minute), payment.Paid, ""))
	cancel, held, ending, err := c.store.BeginCancel(c.ctx, approval.CancelAsked{
		Payment: paid, ID: payment.NewCancelID(), Key: "k", Amount: 400, Reason: "contract", AskedBy: "ops", Actor: payment.ByOperator,
		Lease: time.Minute,
	})
	c.was(payment.Applied)(held, ending, err)
	c.was(payment.NoRows)(c.settle(paid, payment.Paid, ""))
	if now := c.row("a"); now.Version != held.Version || !now.Leased {
		c.Errorf("the lease was taken: %+v", now)
	}
	held = c.was(payment.Applied)(c.store.EndGiveBack(c.ctx, approval.GiveBackEnd{Payment: held, Cancel: cancel, Actor: payment.ByOperator}))
	if held.DueAt.IsZero() {
		c.Error("nobody looks at the unfinished cancel")
	}
	c.was(payment.Applied)(c.settle(held, payment.Paid, ""))
}

func (c *contract) final() {
	p := c.was(payment.Applied)(c.settle(c.reserved("a", time.Minute), payment.Failed, payment.FailDeclined))
	if p.HoldsOrder || p.Failure == nil || p.Failure.Code != payment.FailDeclined {
		c.Errorf("failed %+v", p)
	}
	c.was(payment.NoRows)(c.settle(p, payment.Paid, ""))
	c.was(payment.NoRows)(c.settle(p, payment.AwaitingDeposit, ""))
	c.was(payment.NoRows)(c.store.Reopen(c.ctx, p, time.Minute))
}

func (c *contract) reopen() {
	p := c.was(payment.Applied)(c.settle(c.reserved("a", time.Minute), payment.Failed, payment.FailBusy))
	if p.MaybeSent {
		c.Error("maybe sent")
	}
	other := c.reserved("b", time.Minute)
	c.was(payment.NoRows)(c.store.Reopen(c.ctx, p, time.Minute))
	if now := c.row("a"); now.Version != p.Version {
		c.Error("a refused reopening raised the version")
	}
	c.was(payment.Applied)(c.settle(other, payment.Failed, payment.FailDeclined))
	q := c.was(payment.Applied)(c.store.Reopen(c.ctx, p, time.Minute))
	if q.Status != payment.Pending || q.Sends != p.Sends+1 || !q.MaybeSent || !q.HoldsOrder || q.Failure != nil || q.KeySpent {
		c.Errorf("reopened %+v", q)
	}
	c.was(payment.NoRows)(c.store.Reopen(c.ctx, p, time.Minute))
}

func (c *contract) send() {
	p := c.reserved("a", time.Minute)
	next := approval.BeginSend{Payment: p, NextKey: true, Lease: time.Minute, Actor: payment.ByConfirm}
	q := c.was(payment.Applied)(c.store.BeginSend(c.ctx, next))
	if q.Sends != 2 || q.Version <= p.Version || !q.MaybeSent || q.KeySpent {
		c.Errorf("sending %+v", q)
	}
	c.was(payment.NoRows)(c.store.BeginSend(c.ctx, next))
	c.was(payment.NoRows)(c.store.BeginSend(c.ctx, approval.BeginSend{Payment: q, Within: time.Microsecond, Lease: time.Minute}))
	c.was(payment.Applied)(c.store.BeginSend(c.ctx, approval.BeginSend{Payment: q, Within: time.Hour, Lease: time.Minute}))
}

func (c *contract) release() {
	p := c.reserved("a", time.Minute)
	stale := p
	stale.Version--
	release := func(r approval.Release, want payment.Ending) {
		c.Helper()
		if got, err := c.store.Release(c.ctx, r); got != want || err != nil {
			c.Fatalf("release ended %s, %v; want %s", got, err, want)
		}
	}
	release(approval.Release{Payment: stale, DueIn: time.Second, Actor: payment.ByConfirm}, payment.NoRows)
	release(approval.Release{
		Payment: p, DueIn: time.Hour, Told: true, NotSent: true, KeySpent: true, Actor: payment.ByConfirm, Reason: "contract",
	}, payment.Applied)
	if q := c.row("a"); q.Leased || !q.Told || q.MaybeSent || !q.KeySpent || q.DueAt.IsZero() {
		c.Errorf("released %+v", q)
	}
	if err := c.store.MarkTold(c.ctx, "nobody"); err != nil {
		c.Errorf("mark told: %v", err)
	}
}

func (c *contract) giveBack() {
	p := c.was(payment.Applied)(c.settle(c.reserved("a", time.Minute), payment.Failed, payment.FailExpired))
	ask := approval.GiveBack{Payment: p, Amount: 1000, Reason: "contract", Actor: payment.ByRecovery, Lease: time.Minute}
	first, held, ending, err := c.store.BeginGiveBack(c.ctx, ask)
	c.was(payment.Applied)(held, ending, err)
	if !held.HoldsOrder || first.Sends != 1 || payment.CancelMark(payment.MarkedReason("", first.ID)) != first.ID {
		c.Errorf("begun %+v, %+v", first, held)
	}
	_, _, ending, err = c.store.BeginGiveBack(c.ctx, ask)
	c.was(payment.NoRows)(payment.Payment{}, ending, err)
	c.was(payment.NoRows)(c.store.Reserve(c.ctx, contractOrder("b"), time.Minute))
	open := c.was(payment.Applied)(c.store.EndGiveBack(c.ctx, approval.GiveBackEnd{Payment: held, Cancel: first, KeySpent: true, Actor: payment.ByRecovery}))
	if !open.HoldsOrder || open.DueAt.IsZero() {
		c.Errorf("unfinished %+v", open)
	}
	ask.Payment = open
	second, held, ending, err := c.store.BeginGiveBack(c.ctx, ask)
	c.was(payment.Applied)(held, ending, err)
	if second.ID != first.ID || second.Sends != 2 {
		c.Errorf("taken up %+v after %+v", second, first)
	}
	o := payment.Observation{Sighting: payment.SeenCanceled, PaymentKey: "a", OrderID: p.OrderID, Total: 1000, Currency: payment.KRW,
		Cancels: []payment.GatewayCancel{{TransactionKey: "t", Amount: 1000, Reason: payment.MarkedReason("contract", first.ID)}}}
	end := c.was(payment.Applied)(c.store.EndGiveBack(c.ctx, approval.GiveBackEnd{Payment: held, Cancel: second, Done: true, Observation: o, Actor: payment.ByRecovery}))
	if end.HoldsOrder || end.Status != payment.Failed {
		c.Errorf("ended %+v", end)
	}
	c.reserved("b", time.Minute)
}
