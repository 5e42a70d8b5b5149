package approvaltest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// Try is what happens to one try at the gateway. The zero value answers from the truth: a confirm approves, a cancel
// gives back, a lookup tells.
type Try struct {
	// Latency passes before the answer; Hang waits for the context to end, and the answer is a time-out.
	Latency time.Duration
	Hang    bool
	// Kind, if not empty, is answered instead of the truth, with Code, Message, Refuser and RetryAfter.
	Kind          payment.Kind
	Code, Message string
	Refuser       payment.Refuser
	RetryAfter    time.Duration
	// Works says that the work is done although the answer is Kind; Late that it is done that much later.
	Works bool
	Late  time.Duration
	// See changes the observation of the answer.
	See func(*payment.Observation)
	// Before runs first; Panic, if not nil, is thrown.
	Before func()
	Panic  any
}

// Sent is one try that reached the gateway.
type Sent struct {
	PaymentKey, Key string
	At              time.Time
	Background      bool
}

// Gateway is an approval.Gateway that keeps the truth about money and retries like the pipeline: once per allowed
// retry, after a fault, a reset or a failed connection. Make one with NewGateway.
type Gateway struct {
	// Retries are the tries after the first; RetryDelay passes before each.
	Retries    int
	RetryDelay time.Duration

	mu       sync.Mutex
	truth    map[string]*payment.Observation
	confirms []Try
	lookups  []Try
	cancels  []Try
	random   func(op string) Try
	peek     *payment.Answer
	sent     []Sent
	canceled []approval.CancelCall
	looked   []approval.Tries
	approved map[string]int
}

var _ approval.Gateway = (*Gateway)(nil)

// NewGateway returns a gateway at which every payment can be approved.
func NewGateway() *Gateway {
	return &Gateway{truth: map[string]*payment.Observation{}, approved: map[string]int{}}
}

// Confirms scripts the next tries to confirm, one each.
func (g *Gateway) Confirms(t ...Try) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.confirms = append(g.confirms, t...)
}

// Lookups scripts the next lookups, one each.
func (g *Gateway) Lookups(t ...Try) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lookups = append(g.lookups, t...)
}

// Cancels scripts the next cancels, one each.
func (g *Gateway) Cancels(t ...Try) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancels = append(g.cancels, t...)
}

// Random is asked ("confirm", "lookup", "cancel") when nothing is scripted; it must be safe for concurrent use.
func (g *Gateway) Random(f func(op string) Try) { g.mu.Lock(); defer g.mu.Unlock(); g.random = f }

// Refuse sets what Peek answers.
func (g *Gateway) Refuse(a *payment.Answer) { g.mu.Lock(); defer g.mu.Unlock(); g.peek = a }

// Set makes o the truth about its payment.
func (g *Gateway) Set(o payment.Observation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.truth[o.PaymentKey] = &o
}

// Truth is what the gateway holds of a payment; false if it knows nothing.
func (g *Gateway) Truth(paymentKey string) (payment.Observation, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.truth[paymentKey]
	if !ok {
		return payment.Observation{}, false
	}
	return *o, true
}

// All is everything that the gateway holds, by paymentKey.
func (g *Gateway) All() []payment.Observation {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []payment.Observation
	for _, o := range g.truth {
		all = append(all, *o)
	}
	slices.SortFunc(all, func(a, b payment.Observation) int { return cmp.Compare(a.PaymentKey, b.PaymentKey) })
	return all
}

// Sends are the tries to confirm that reached the gateway, in order.
func (g *Gateway) Sends() []Sent { g.mu.Lock(); defer g.mu.Unlock(); return slices.Clone(g.sent) }

// CancelCalls are the cancels asked for, in order.
func (g *Gateway) CancelCalls() []approval.CancelCall {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.canceled)
}

// LookupCalls are the lookups asked for, in order.
func (g *Gateway) LookupCalls() []approval.Tries {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.looked)
}

// Peek implements approval.Gateway.
func (g *Gateway) Peek() *payment.Answer { g.mu.Lock(); defer g.mu.Unlock(); return g.peek }

// Confirm implements approval.Gateway.
func (g *Gateway) Confirm(ctx context.Context, call approval.ConfirmCall) []payment.Answer {
	var tries []payment.Answer
	key := call.Key
	for i := 0; ; i++ {
		a := g.confirm(ctx, call, key)
		tries = append(tries, a)
		again := a.Kind == payment.KindFault || a.Kind == payment.KindReset || a.Kind == payment.KindNotConnected
		if !again || i >= g.Retries || call.Next == nil || !wait(ctx, g.RetryDelay) {
			return tries
		}
		next, send, heard := call.Next(ctx, a)
		if !send {
			if heard.Kind != "" {
				tries = append(tries, heard)
			}
			return tries
		}
		key = next
	}
}

func (g *Gateway) confirm(ctx context.Context, call approval.ConfirmCall, key string) payment.Answer {
	t := g.next(&g.confirms, "confirm")
	if t.Before != nil {
		t.Before()
	}
	if t.Kind == payment.KindRefused {
		return t.answer(payment.Observation{Sighting: payment.SeenNoAnswer}, 0)
	}
	if ctx.Err() != nil || !call.NotAfter.IsZero() && !time.Now().Before(call.NotAfter) {
		return payment.Answer{Kind: payment.KindRefused, Refuser: payment.RefusedByLease}
	}
	if t.Kind != payment.KindNotConnected {
		g.mu.Lock()
		g.sent = append(g.sent, Sent{call.Order.PaymentKey, key, time.Now(), call.Background})
		g.mu.Unlock()
	}
	return g.carry(ctx, t, func() payment.Answer { return g.approve(call.Order) })
}

func (g *Gateway) approve(o payment.Order) payment.Answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := g.truth[o.PaymentKey]
	if seen == nil || seen.Sighting == payment.SeenReady || seen.Sighting == payment.SeenInProgress {
		g.approved[o.PaymentKey]++
		seen = &payment.Observation{
			Sighting: payment.SeenDone, PaymentKey: o.PaymentKey, OrderID: o.OrderID, Total: o.Amount, Balance: o.Amount,
			Currency: o.Currency, Method: "CARD", ApprovedAt: time.Now(),
		}
		g.truth[o.PaymentKey] = seen
	}
	return payment.Answer{Kind: payment.KindPayment, HTTPStatus: 200, Observation: *seen}
}

// Lookup implements approval.Gateway.
func (g *Gateway) Lookup(ctx context.Context, paymentKey string, tries approval.Tries) payment.Answer {
	t := g.next(&g.lookups, "lookup")
	g.mu.Lock()
	g.looked = append(g.looked, tries)
	g.mu.Unlock()
	if t.Before != nil {
		t.Before()
	}
	return g.carry(ctx, t, func() payment.Answer {
		o, ok := g.Truth(paymentKey)
		if !ok {
			return payment.Answer{Kind: payment.KindNotFound, HTTPStatus: 404}
		}
		return payment.Answer{Kind: payment.KindPayment, HTTPStatus: 200, Observation: o}
	})
}

// Cancel implements approval.Gateway. A balance that is not the truth is refused.
func (g *Gateway) Cancel(ctx context.Context, call approval.CancelCall) payment.Answer {
	t := g.next(&g.cancels, "cancel")
	g.mu.Lock()
	g.canceled = append(g.canceled, call)
	g.mu.Unlock()
	if t.Before != nil {
		t.Before()
	}
	return g.carry(ctx, t, func() payment.Answer { return g.giveBack(call) })
}

func (g *Gateway) giveBack(call approval.CancelCall) payment.Answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.truth[call.PaymentKey]
	if o == nil || o.Balance != call.Balance || o.Balance == 0 {
		return payment.Answer{Kind: payment.KindDeclined, HTTPStatus: 400, Code: "NOT_CANCELABLE_PAYMENT"}
	}
	amount := call.Amount
	if call.Full {
		amount = o.Balance
	}
	next := *o
	next.Balance, next.Sighting = o.Balance-amount, payment.SeenCanceled
	if next.Balance > 0 {
		next.Sighting = payment.SeenPartlyCanceled
	}
	next.Cancels = append(slices.Clone(o.Cancels), payment.GatewayCancel{Amount: amount, Reason: call.Reason, At: time.Now()})
	g.truth[call.PaymentKey] = &next
	return payment.Answer{Kind: payment.KindPayment, HTTPStatus: 200, Observation: next}
}

func (g *Gateway) next(script *[]Try, op string) Try {
	g.mu.Lock()
	defer g.mu.Unlock()
	if q := *script; len(q) > 0 {
		*script = q[1:]
		return q[0]
	}
	if g.random != nil {
		return g.random(op)
	}
	return Try{}
}

// carry lets one try happen; work is what the gateway does with it.
func (g *Gateway) carry(ctx context.Context, t Try, work func() payment.Answer) payment.Answer {
	start := time.Now()
	if t.Panic != nil {
		panic(t.Panic)
	}
	if t.Works && t.Late == 0 {
		work()
	}
	if t.Works && t.Late > 0 {
		time.AfterFunc(t.Late, func() { work() })
	}
	if t.Hang {
		<-ctx.Done()
		t.Kind = payment.KindTimeout
	}
	if !wait(ctx, t.Latency) && t.Kind == "" {
		t.Kind = payment.KindTimeout
	}
	if t.Kind != "" && t.Kind != payment.KindPayment {
		return t.answer(payment.Observation{Sighting: payment.SeenNoAnswer, FailureCode: t.Code}, time.Since(start))
	}
	a := work()
	a.Took = time.Since(start)
	if t.See != nil {
		t.See(&a.Observation)
	}
	return a
}

func (t Try) answer(o payment.Observation, took time.Duration) payment.Answer {
	return payment.Answer{
		Kind: t.Kind, Refuser: t.Refuser, RetryAfter: t.RetryAfter, Code: t.Code, Message: t.Message, Observation: o, Took: took,
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
