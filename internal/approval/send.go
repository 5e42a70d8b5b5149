package approval

import (
	"cmp"
	"context"
	"errors"
	"time"

	"paymentd/internal/payment"
)

// send is the second half: call Toss through the pipeline, outside any transaction, conclude, commit.
func (w *work) send(ctx context.Context, p *payment.Payment) (*Answer, error) {
	ctx, cancel := context.WithDeadline(ctx, w.leaseEnd.Add(w.set.Deadline-w.set.Lease))
	defer cancel()
	q := &sequence{Service: w.Service, payment: p, actor: payment.ByConfirm, leaseEnd: w.leaseEnd}
	tries := q.send(ctx)
	st, a, err := w.heard(ctx, q, tries)
	if st != nil {
		a, err = w.commit(ctx, st)
	}
	return w.stamp(a), err
}

// heard concludes from what the tries of a confirm say. A nil settlement comes with the answer instead. An approval
// is not committed here: its frame and decide's are large, and the database driver below them would outgrow the stack.
func (w *work) heard(ctx context.Context, q *sequence, tries []payment.Answer) (*Settlement, *Answer, error) {
	c := q.conclude(ctx, tries, false)
	w.attempts += q.attempts
	w.gatewayT += q.took
	w.dbT += q.dbT
	w.traceID = cmp.Or(c.Observation.TraceID, c.Last.Observation.TraceID)
	p := *q.payment
	switch c.Verdict {
	case payment.VerdictSettle:
		return w.decide(ctx, p, c.Observation)
	case payment.VerdictNotSent:
		a, err := w.notSent(ctx, p, c)
		return nil, a, err
	default:
		a, err := w.release(ctx, p, Release{
			DueIn: LookAgainIn, Sent: true, KeySpent: q.keySpent, Reason: "no answer settles it",
			Observation: payment.Observation{Sighting: payment.SeenNoAnswer, TraceID: c.Last.Observation.TraceID},
		}, payment.ResultPendingUnknown)
		return nil, a, err
	}
}

// decide goes by the table, as far as a live confirm may: sending again and waiting both mean that the lease goes back
// and recovery looks in a few seconds. A nil settlement comes with the answer instead.
func (w *work) decide(ctx context.Context, p payment.Payment, o payment.Observation) (*Settlement, *Answer, error) {
	action := w.set.Rules.Decide(p, o, p.ReadAt)
	r := Release{Incident: action.Incident, Reason: action.Reason, Observation: o}
	switch action.Do {
	case payment.Settle:
		return &Settlement{Payment: p, Action: action, Observation: o, Actor: payment.ByConfirm}, nil, nil
	case payment.Park:
		r.Park, r.Sent = true, true
	default:
		r.DueIn = LookAgainIn
	}
	a, err := w.release(ctx, p, r, payment.ResultPendingUnknown)
	return nil, a, err
}

// notSent ends a confirm of which no try can have reached Toss.
func (w *work) notSent(ctx context.Context, p payment.Payment, c payment.Conclusion) (*Answer, error) {
	if w.set.KeepPending && c.Failure.Code == payment.FailPGUnavailable {
		return w.release(ctx, p, Release{
			DueIn: LookAgainIn, NotSent: true, KeySpent: c.Last.SpendsKey(), Reason: "could not be sent",
		}, payment.ResultPendingUnavailable)
	}
	a, err := w.commit(ctx, &Settlement{
		Payment: p, Actor: payment.ByConfirm, NotSent: true,
		Action: payment.Action{Do: payment.Settle, To: payment.Failed, Failure: c.Failure, Reason: "could not be sent"},
	})
	if e, ok := errors.AsType[*payment.Error](err); ok && e.RetryAfter > 0 && c.Last.RetryAfter > 0 {
		a.RetryAfter, e.RetryAfter = c.Last.RetryAfter, c.Last.RetryAfter
	}
	return a, err
}

// release gives the lease back and answers 202. If it cannot be written the lease runs out by itself.
func (w *work) release(ctx context.Context, p payment.Payment, r Release, result payment.Result) (*Answer, error) {
	defer w.db()()
	r.Payment, r.Actor, r.Told = p, payment.ByConfirm, true
	ending, err := w.store.Release(ctx, r)
	if ending != payment.Applied {
		w.log.WarnContext(ctx, "give the lease back", "order_id", p.OrderID, "ending", ending.String(), "error", err)
		if ending == payment.NoRows {
			return w.fromRow(ctx, p)
		}
	}
	p.Leased, p.Told = false, p.Told || ending == payment.Applied
	return pendingAnswer(p, result), nil
}

// fromRow answers from the row because somebody else moved it.
func (w *work) fromRow(ctx context.Context, p payment.Payment) (*Answer, error) {
	q, found, err := w.store.Find(ctx, p.PaymentKey, "")
	if err != nil {
		w.log.WarnContext(ctx, "read a payment that moved", "order_id", p.OrderID, "error", err)
	}
	if !found {
		return pendingAnswer(p, payment.ResultPendingUnknown), nil
	}
	return answerRow(q)
}

// lookup is the one try of a live confirm.
func (w *work) lookup(ctx context.Context) payment.Observation {
	a := w.gateway.Lookup(ctx, w.order.PaymentKey, OneTry)
	w.gatewayT += a.Took
	return observe(a)
}

// observe reads a lookup's answer: what is no payment object and no 404 says nothing.
func observe(a payment.Answer) payment.Observation {
	switch a.Kind {
	case payment.KindPayment:
		return a.Observation
	case payment.KindNotFound:
		return payment.Observation{Sighting: payment.SeenNotFound, TraceID: a.Observation.TraceID}
	default:
		return payment.Observation{Sighting: payment.SeenNoAnswer, TraceID: a.Observation.TraceID}
	}
}

// look is how patient a lookup is; stop, if not nil, ends it when it is closed.
type look struct {
	tries Tries
	stop  <-chan struct{}
}

// lookup reads a payment at the gateway. It changes nothing there, so a stop may cut it short.
func (s *Service) lookup(ctx context.Context, paymentKey string, l look) payment.Answer {
	if l.stop != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-l.stop:
				cancel()
			case <-ended:
			}
		}()
	}
	return s.gateway.Lookup(ctx, paymentKey, l.tries)
}

// sequence is one run of the pipeline for a payment that its holder has leased.
type sequence struct {
	*Service
	payment  *payment.Payment
	actor    payment.Actor
	leaseEnd time.Time
	// stop, if not nil, ends a patient lookup when it is closed.
	stop     <-chan struct{}
	took     time.Duration
	dbT      time.Duration
	attempts int
	// resends counts the further tries that next allowed; keySpent says that Toss answered an error under the key
	// in use.
	resends         int
	keySpent        bool
	settledByLookup bool
}

// send returns what the tries were answered. Its frame is on the stack of every confirm that waits, so it does no more.
func (q *sequence) send(ctx context.Context) []payment.Answer {
	p := q.payment
	return q.gateway.Confirm(ctx, ConfirmCall{
		Order: payment.Order{PaymentKey: p.PaymentKey, OrderID: p.OrderID, Amount: p.Amount, Currency: p.Currency},
		Key:   payment.ConfirmKey(p.PaymentKey, p.Sends), NotAfter: q.leaseEnd, Next: q.next,
		Background: q.actor != payment.ByConfirm,
	})
}

// conclude goes by the worst that was heard; earlier says that a try before may have reached Toss.
func (q *sequence) conclude(ctx context.Context, tries []payment.Answer, earlier bool) payment.Conclusion {
	q.count(tries)
	c := payment.Conclude(tries, earlier)
	if c.Verdict == payment.VerdictLookup {
		patience := Patient
		if q.actor == payment.ByConfirm {
			patience = OneTry
		}
		a := q.lookup(ctx, q.payment.PaymentKey, look{patience, q.stop})
		q.took += a.Took
		c = c.AfterLookup(a)
	}
	return c
}

// count sums the tries up. A lookup of next that settled the payment is the last answer but no try; a refusal after
// next has stored a key leaves that key unused.
func (q *sequence) count(tries []payment.Answer) {
	begun := 0
	for i := range tries {
		a := &tries[i]
		q.took += a.Took
		if q.settledByLookup && i == len(tries)-1 || a.Kind == payment.KindRefused {
			continue
		}
		begun++
		q.keySpent = a.SpendsKey()
		if a.Sent() {
			q.attempts++
		}
	}
	q.keySpent = q.keySpent && begun > q.resends
}

// next is the key rule between two tries (payment.KeyStepAfter). The next key is stored before it is sent.
func (q *sequence) next(ctx context.Context, last payment.Answer) (string, bool, payment.Answer) {
	switch payment.KeyStepAfter(last) {
	case payment.KeepKey:
		q.resends++
		return payment.ConfirmKey(q.payment.PaymentKey, q.payment.Sends), true, payment.Answer{}
	case payment.LookupOnly:
		return "", false, payment.Answer{}
	default:
		return q.nextKey(ctx)
	}
}

// nextKey looks up, and only if the payment is open stores the next key.
func (q *sequence) nextKey(ctx context.Context) (string, bool, payment.Answer) {
	a := q.gateway.Lookup(ctx, q.payment.PaymentKey, OneTry)
	if a.Kind == payment.KindPayment && a.Observation.Final() {
		q.settledByLookup = true
		return "", false, a
	}
	q.took += a.Took
	if !payment.OpenForNextKey(a) {
		return "", false, payment.Answer{}
	}
	start := time.Now()
	p, ending, err := q.store.BeginSend(ctx, BeginSend{
		Payment: *q.payment, NextKey: true, Lease: time.Until(q.leaseEnd), Actor: q.actor,
		Reason: "open after an error answer, next key",
	})
	q.dbT += time.Since(start)
	if ending != payment.Applied {
		q.log.WarnContext(ctx, "store the next key", "order_id", q.payment.OrderID, "ending", ending.String(), "error", err)
		return "", false, payment.Answer{}
	}
	q.payment = &p
	q.resends++
	return payment.ConfirmKey(p.PaymentKey, p.Sends), true, payment.Answer{}
}
