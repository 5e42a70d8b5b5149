package approval

import (
	"context"
	"time"

	"paymentd/internal/payment"
)

const (
	// reserveRounds bounds the chase after a holder that lets go just when we look.
	reserveRounds = 4
	// pollFirst and pollMost bound the pace at which a confirm of another instance is watched.
	pollFirst, pollMost = 100 * time.Millisecond, time.Second
)

// reserve makes the payment ours: a nil payment comes with the answer instead.
func (w *work) reserve(ctx context.Context) (*payment.Payment, *Answer, error) {
	var lastErr error
	for range reserveRounds {
		p, answer, err := w.reserveOnce(ctx)
		if p != nil || answer != nil {
			return p, answer, err
		}
		lastErr = err
	}
	a, err := dbUnavailable(lastErr)
	return nil, a, err
}

// reserveOnce is one round: all nil means that what was in the way went away.
func (w *work) reserveOnce(ctx context.Context) (*payment.Payment, *Answer, error) {
	done := w.db()
	w.leaseEnd = time.Now().Add(w.set.Lease)
	p, ending, err := w.store.Reserve(ctx, w.order, w.set.Lease)
	done()
	switch ending {
	case payment.Applied:
		return &p, nil, nil
	case payment.NotApplied:
		a, err := dbUnavailable(err)
		return nil, a, err
	case payment.MaybeApplied:
		w.log.WarnContext(ctx, "reserve payment: unknown whether it committed", "order_id", w.order.OrderID, "error", err)
		a := pendingAnswer(*w.flight.payment, payment.ResultPendingUnknown)
		return nil, a, nil
	default:
		return w.meet(ctx)
	}
}

// meet reads who is in the way, in a statement of its own: the snapshot of the insert need not see the winner.
func (w *work) meet(ctx context.Context) (*payment.Payment, *Answer, error) {
	done := w.db()
	p, found, err := w.store.Find(ctx, w.order.PaymentKey, w.order.OrderID)
	done()
	if err != nil {
		a, err := dbUnavailable(err)
		return nil, a, err
	}
	if !found {
		return nil, nil, nil
	}
	if !w.order.SameAs(p) {
		a, err := w.differs(p)
		return nil, a, err
	}
	switch {
	case p.Status == payment.Pending:
		a, again, err := w.inFlight(ctx, p)
		if again {
			return nil, nil, nil
		}
		return nil, a, err
	case reopens(p):
		return w.reopen(ctx, p)
	default:
		a, err := answerRow(p)
		a.replayed()
		return nil, a, err
	}
}

// Held reports whether somebody works on p: a lease that ran out by the time of the read holds nobody off.
func Held(p payment.Payment) bool {
	return p.Leased && (p.DueAt.IsZero() || p.DueAt.After(p.ReadAt))
}

// reopens reports whether this call may take the edge out of FAILED.
func reopens(p payment.Payment) bool {
	return p.Status == payment.Failed && p.Failure.Reopens() && !p.MaybeSent
}

// differs answers a call whose key or order is taken by a payment with other data.
func (w *work) differs(p payment.Payment) (*Answer, error) {
	if p.PaymentKey == w.order.PaymentKey {
		return conflict("This paymentKey was used before with another orderId, amount or currency.")
	}
	return conflict("Another payment holds this order.")
}

// reopen takes the one edge out of FAILED. Losing the race means another round, losing the order a conflict.
func (w *work) reopen(ctx context.Context, p payment.Payment) (*payment.Payment, *Answer, error) {
	defer w.db()()
	w.leaseEnd = time.Now().Add(w.set.Lease)
	q, ending, err := w.store.Reopen(ctx, p, w.set.Lease)
	switch ending {
	case payment.Applied:
		return &q, nil, nil
	case payment.NotApplied:
		a, err := dbUnavailable(err)
		return nil, a, err
	case payment.MaybeApplied:
		a := pendingAnswer(*w.flight.payment, payment.ResultPendingUnknown)
		return nil, a, nil
	default:
		return w.notReopened(ctx, p)
	}
}

// notReopened tells a lost race (another round) from an order that another payment holds by now.
func (w *work) notReopened(ctx context.Context, p payment.Payment) (*payment.Payment, *Answer, error) {
	now, found, err := w.store.Find(ctx, p.PaymentKey, "")
	if err == nil && found && now.Version == p.Version {
		a, err := conflict("Another payment holds this order.")
		return nil, a, err
	}
	return nil, nil, nil
}

// inFlight handles a PENDING payment with our data: wait while its holder works, else look at Toss ourselves. again
// asks for another round because the row changed.
func (w *work) inFlight(ctx context.Context, p payment.Payment) (a *Answer, again bool, err error) {
	w.flight.follows(p)
	p = w.follow(ctx, p)
	if p.Status == payment.Pending && !Held(p) && p.MaybeSent {
		return w.takeOver(ctx, p)
	}
	a, err = answerRow(p)
	a.replayed()
	return a, false, err
}

// follow watches a payment that another holder works on, until it moves, the lease ends or our time is over. A read
// that fails is no news: the next one may work.
func (w *work) follow(ctx context.Context, p payment.Payment) payment.Payment {
	pause := pollFirst
	for p.Status == payment.Pending && Held(p) {
		left := time.Until(w.answerBy)
		if left <= 0 {
			break
		}
		select {
		case <-time.After(min(pause, left)):
		case <-ctx.Done():
			return p
		}
		pause = min(2*pause, pollMost)
		q, found, err := w.store.Find(ctx, p.PaymentKey, "")
		if err != nil || !found {
			continue
		}
		p = q
		w.flight.follows(p)
	}
	return p
}

// takeOver goes on with a payment that nobody holds: one lookup, and what the table allows a live confirm.
func (w *work) takeOver(ctx context.Context, p payment.Payment) (*Answer, bool, error) {
	done := w.db()
	w.leaseEnd = time.Now().Add(w.set.Lease)
	q, ending, err := w.store.TakeOver(ctx, p, w.set.Lease)
	done()
	switch ending {
	case payment.NoRows:
		return nil, true, nil
	case payment.Applied:
		ctx, cancel := context.WithDeadline(ctx, w.leaseEnd.Add(w.set.Deadline-w.set.Lease))
		defer cancel()
		w.flight.follows(q)
		w.takenOver = true
		st, a, err := w.decide(ctx, q, w.lookup(ctx))
		if st != nil {
			a, err = w.commit(ctx, st)
		}
		a.Replayed = true
		return a, false, err
	default:
		w.log.WarnContext(ctx, "take over payment", "order_id", p.OrderID, "error", err)
		a := pendingAnswer(p, payment.ResultPendingUnknown)
		a.Replayed = true
		return a, false, nil
	}
}
