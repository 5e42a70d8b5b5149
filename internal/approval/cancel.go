package approval

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"paymentd/internal/payment"
)

// CancelRequest is what an operator, or a checkout that gives a payment up, asks for.
type CancelRequest struct {
	OrderID string
	// Key is the Idempotency-Key: a repetition is answered from the first call's cancel.
	Key string
	// Amount is the text of a JSON number, read in the payment's currency; empty asks for all that is left.
	Amount string
	Reason string
	// Account is where a paid virtual account is refunded to; it is passed on and kept nowhere.
	Account *payment.RefundAccount
	// AskedBy is the name of the caller's key. Operator is false for a checkout, which may only abandon a payment that
	// was never sent.
	AskedBy  string
	Operator bool
	// ArrivedAt is when the headers of the call were read; ANSWER_WITHIN counts from there.
	ArrivedAt time.Time
}

// CancelAnswer is what a cancel is answered, whether or not an error stands beside it.
type CancelAnswer struct {
	Payment payment.Payment
	// Cancel is nil if the payment was abandoned: nothing was there to cancel. Open means not known yet.
	Cancel *Cancel
	// Replayed says that the answer was computed from an earlier call's cancel.
	Replayed   bool
	RetryAfter time.Duration
}

// Cancel gives back all or a part of a payment, whatever the caller does meanwhile: the cancel is stored before it is
// sent, and the work is detached from ctx. It answers within Settings.AnswerWithin; what is not known by then is
// an open cancel. The error, if any, is a *payment.Error.
func (s *Service) Cancel(ctx context.Context, r CancelRequest) (CancelAnswer, error) {
	if r.ArrivedAt.IsZero() {
		r.ArrivedAt = time.Now()
	}
	w := &canceling{Service: s, request: r, answerBy: r.ArrivedAt.Add(s.set.AnswerWithin), done: make(chan struct{})}
	timer := time.NewTimer(time.Until(w.answerBy))
	defer timer.Stop()
	s.running.run(func() { w.fly(context.WithoutCancel(ctx)) })
	select {
	case <-w.done:
		return w.answer, w.err
	case <-timer.C:
		return w.late()
	}
}

// canceling is the state of one call of Cancel.
type canceling struct {
	*Service
	request  CancelRequest
	answerBy time.Time
	done     chan struct{}
	// answer and err are written before done is closed and never after.
	answer CancelAnswer
	err    error

	mu sync.Mutex
	// known is the answer that may be given from the moment a cancel may be stored; gone says that the caller's time is
	// over.
	known *CancelAnswer
	gone  bool
}

func (w *canceling) fly(ctx context.Context) {
	defer close(w.done)
	w.err = &payment.Error{Code: payment.CodeInternal, Public: "The cancel ended unexpectedly.", Err: errors.New("cancel panicked")}
	defer func() {
		if r := recover(); r != nil {
			w.log.ErrorContext(ctx, "cancel panicked", "order_id", w.request.OrderID, "panic", fmt.Sprintf("%T", r), "stack", string(debug.Stack()))
		}
	}()
	w.answer, w.err = w.run(ctx)
}

// late answers a caller whose time is over: with the open cancel if one may be stored, else none will be.
func (w *canceling) late() (CancelAnswer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	if w.known == nil {
		return CancelAnswer{}, unsaved(context.DeadlineExceeded)
	}
	return *w.known, nil
}

// begins marks the moment from which a cancel may be stored; false if the caller was told that none will be.
func (w *canceling) begins(known CancelAnswer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone {
		return false
	}
	w.known = &known
	return true
}

// begunNot takes begins back: the store refused.
func (w *canceling) begunNot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = nil
}

func (w *canceling) isGone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// run reads the payment, decides, and acts under the version read; whoever loses a race reads again. A payment that
// is only being looked at is waited for.
func (w *canceling) run(ctx context.Context) (CancelAnswer, error) {
	r := w.request
	for pause := commitPause; ; pause = min(2*pause, commitPauseMost) {
		st, found, err := w.store.FindCancels(ctx, CancelQuery{OrderID: r.OrderID, Key: r.Key})
		p := st.Payment
		var again bool
		var a CancelAnswer
		switch {
		case err != nil:
			return a, unsaved(err)
		case !found:
			return a, &payment.Error{Code: payment.CodeNotFound, Public: "There is no payment of this order."}
		case st.Asked != nil:
			return w.repeated(p, *st.Asked)
		case p.Abandoned():
			return CancelAnswer{Payment: p, Replayed: true}, nil
		case p.Status == payment.Pending && !p.MaybeSent && Held(p):
			again = true
		case p.Status == payment.Pending && !p.MaybeSent:
			a, again, err = w.abandon(ctx, p)
		case !r.Operator:
			return a, &payment.Error{Code: payment.CodeForbidden, Public: "A checkout may only give up a payment that was never sent."}
		default:
			a, again, err = w.ask(ctx, st)
		}
		if !again {
			return a, err
		}
		if !pauseUntil(ctx, pause, w.answerBy.Add(-time.Second)) {
			return a, refusal(payment.CodeInProgress, "Somebody works on the payment at this moment; ask again.")
		}
	}
}

// repeated answers a call whose key is known, from the cancel as it is now.
func (w *canceling) repeated(p payment.Payment, c Cancel) (CancelAnswer, error) {
	r := w.request
	if !r.Operator && !(c.State == payment.CancelMoot && p.Abandoned()) {
		return CancelAnswer{}, &payment.Error{Code: payment.CodeForbidden, Public: "This cancel is an operator's."}
	}
	asked, err := askedAmount(r.Amount, p.Currency)
	if err != nil || c.Reason != r.Reason || (asked == nil) != (c.Asked == nil) || asked != nil && *asked != *c.Asked {
		return CancelAnswer{}, refusal(payment.CodeIdempotencyKeyReused, "This Idempotency-Key was used for a cancel with another amount or reason.")
	}
	a, err := cancelAnswer(p, c)
	a.Replayed = true
	return a, err
}

func askedAmount(text string, c payment.Currency) (*payment.Amount, error) {
	if text == "" {
		return nil, nil
	}
	amount, err := payment.ParseAmount(text, c)
	if err == nil && amount < 1 {
		err = errors.New("must be more than 0")
	}
	if err != nil {
		return nil, &payment.Error{
			Code: payment.CodeInvalidRequest, Public: "Nothing was saved or sent; errors says what to repair.",
			Fields: []payment.FieldError{{Field: "amount", Reason: err.Error()}},
		}
	}
	return &amount, nil
}

// newAsk is what the store needs of the request.
func (w *canceling) newAsk(p payment.Payment) (CancelAsked, error) {
	asked, err := askedAmount(w.request.Amount, p.Currency)
	ask := CancelAsked{
		Payment: p, ID: payment.NewCancelID(), Key: w.request.Key, Amount: p.Left(), Asked: asked, Reason: w.request.Reason,
		AskedBy: w.request.AskedBy, Actor: payment.ByOperator, Lease: w.cancelWithin() + cancelSlack,
	}
	if !w.request.Operator {
		ask.Actor = payment.ByConfirm // the checkout's own end of the payment
	}
	if asked != nil {
		ask.Amount = *asked
	}
	if p.Status == payment.AwaitingDeposit {
		ask.Failure = payment.FailAbandoned
	}
	ask.NeedsAccount = p.Status == payment.Paid && p.ByVirtualAccount()
	return ask, err
}

// abandon ends a payment that was never sent, which needs nothing of Toss.
func (w *canceling) abandon(ctx context.Context, p payment.Payment) (CancelAnswer, bool, error) {
	ask, err := w.newAsk(p)
	if err != nil {
		return CancelAnswer{}, false, err
	}
	if ask.Asked != nil && *ask.Asked != p.Amount {
		return CancelAnswer{}, false, refusal(payment.CodeNotCancelable, "Nothing was charged: the payment can only be given up as a whole.")
	}
	open := CancelAnswer{Payment: p, RetryAfter: retryHint}
	if !w.begins(open) {
		return open, false, unsaved(context.DeadlineExceeded)
	}
	q, ending, err := w.store.Abandon(ctx, ask)
	switch ending {
	case payment.Applied:
		return CancelAnswer{Payment: q}, false, nil
	case payment.NoRows:
		w.begunNot()
		return CancelAnswer{}, true, nil
	case payment.NotApplied:
		return CancelAnswer{}, false, unsaved(err)
	default:
		w.log.WarnContext(ctx, "abandon payment: unknown whether it committed", "order_id", p.OrderID, "error", err)
		return open, false, nil
	}
}

// check says why a payment cannot be canceled as asked.
func (w *canceling) check(st Standing, ask CancelAsked) error {
	p := st.Payment
	switch {
	case p.Status == payment.Pending:
		return refusal(payment.CodeInProgress, "The payment may have been sent and is not settled yet; ask again.")
	case p.Status == payment.Canceled:
		return refusal(payment.CodePaymentCanceled, "The payment was canceled before.")
	case p.Status == payment.Failed:
		return refusal(payment.CodeNotCancelable, "The payment failed: there is nothing to cancel.")
	case st.Open != nil:
		return refusal(payment.CodeCancelInProgress, "An earlier cancel of the payment is unfinished; wait for it.")
	case ask.Amount > p.Left():
		return refusal(payment.CodeNotCancelable, "Less than the amount is left.")
	case p.Status == payment.AwaitingDeposit && ask.Amount != p.Left():
		return refusal(payment.CodeNotCancelable, "Nobody has paid yet: a virtual account can only be canceled as a whole.")
	case ask.NeedsAccount && w.request.Account == nil:
		return refusal(payment.CodeRefundAccountRequired, "A paid virtual account is refunded to an account that must be named.")
	default:
		return nil
	}
}

// ask stores the cancel and sends it.
func (w *canceling) ask(ctx context.Context, st Standing) (CancelAnswer, bool, error) {
	p := st.Payment
	ask, err := w.newAsk(p)
	if err == nil {
		err = w.check(st, ask)
	}
	if err != nil {
		return CancelAnswer{}, false, err
	}
	if Held(p) {
		return CancelAnswer{}, true, nil
	}
	open := CancelAnswer{Payment: p, RetryAfter: retryHint, Cancel: &Cancel{
		ID: ask.ID, Amount: ask.Amount, State: payment.CancelOpen,
	}}
	if !w.begins(open) {
		return open, false, unsaved(context.DeadlineExceeded)
	}
	ctx, stop := context.WithTimeout(ctx, w.cancelWithin())
	defer stop()
	c, held, ending, err := w.store.BeginCancel(ctx, ask)
	switch ending {
	case payment.Applied:
		open.Payment = held
		w.begins(open)
		a, err := w.send(ctx, held, c, ask)
		return a, false, err
	case payment.NoRows:
		w.begunNot()
		return CancelAnswer{}, true, nil
	case payment.NotApplied:
		return CancelAnswer{}, false, unsaved(err)
	default:
		w.log.WarnContext(ctx, "begin cancel: unknown whether it committed", "order_id", p.OrderID, "error", err)
		return open, false, nil
	}
}

// send looks at Toss once, for the balance of this moment, sends the cancel and stores how it ended.
func (w *canceling) send(ctx context.Context, p payment.Payment, c Cancel, ask CancelAsked) (CancelAnswer, error) {
	end := GiveBackEnd{Payment: p, Cancel: c, Actor: ask.Actor, Reason: "canceled by " + ask.AskedBy, Failure: c.Failure}
	seen := w.seen(ctx, p)
	var said payment.Answer
	switch {
	case p.Status == payment.AwaitingDeposit && seen.Charged():
		end.Refused, end.RefusalCode = true, payment.RefusedDepositArrived
	case c.Amount > seen.Balance:
		end.Refused, end.RefusalCode = true, payment.RefusedMoreThanLeft
	default:
		call := CancelCall{Balance: seen.Balance, Tries: Patient}
		if c.NeedsAccount {
			call.Account = w.request.Account
		}
		end, said = w.sendCancel(ctx, end, call, seen)
	}
	return w.end(ctx, end, said)
}

// seen is what Toss has of the payment now, or if it does not say what we know: Toss compares the balance.
func (w *canceling) seen(ctx context.Context, p payment.Payment) payment.Observation {
	if a := w.gateway.Lookup(ctx, p.PaymentKey, OneTry); a.Kind == payment.KindPayment && (holds(a.Observation) || a.Observation.Returned()) {
		return a.Observation
	}
	o := payment.Observation{Sighting: payment.SeenDone, Total: p.Amount, Balance: p.Left(), Currency: p.Currency}
	if p.Status == payment.AwaitingDeposit {
		o.Sighting = payment.SeenWaiting
	}
	return o
}

// end stores how the cancel ended, as long as COMMIT_WITHIN allows. What is not stored is open: recovery finds it done
// or goes on.
func (w *canceling) end(ctx context.Context, end GiveBackEnd, said payment.Answer) (CancelAnswer, error) {
	open := end.Cancel
	until := time.Now().Add(w.set.CommitWithin)
	for pause := commitPause; ; pause = min(2*pause, commitPauseMost) {
		// Nobody needs an incident for what the caller is told.
		end.Quiet = !w.isGone()
		p, ending, err := w.store.EndGiveBack(ctx, end)
		switch {
		case ending == payment.Applied && end.Refused:
			return CancelAnswer{Payment: p}, refusedCancel(end.RefusalCode, said.Message)
		case ending == payment.Applied && end.Done && end.Observation.Shows(open.ID):
			open.State = payment.CancelDone
			return CancelAnswer{Payment: p, Cancel: &open}, nil
		case ending == payment.Applied || ending == payment.NoRows:
			return w.asItIs(ctx, end)
		}
		w.log.WarnContext(ctx, "end cancel", "order_id", end.Payment.OrderID, "ending", ending.String(), "error", err)
		if !pauseUntil(ctx, pause, until) {
			return cancelAnswer(end.Payment, open)
		}
	}
}

// asItIs answers from the rows, which somebody else may have changed.
func (w *canceling) asItIs(ctx context.Context, end GiveBackEnd) (CancelAnswer, error) {
	st, found, err := w.store.FindCancels(ctx, CancelQuery{ID: end.Payment.ID, Key: w.request.Key})
	if err != nil || !found || st.Asked == nil {
		return cancelAnswer(end.Payment, end.Cancel)
	}
	return cancelAnswer(st.Payment, *st.Asked)
}
