package approval

import (
	"context"
	"fmt"
	"time"

	"paymentd/internal/payment"
)

const (
	// commitPause and commitPauseMost bound the pace of the tries of one commit.
	commitPause, commitPauseMost = 50 * time.Millisecond, time.Second
	// cancelSlack is what must be left of the lease after a cancel.
	cancelSlack = 2 * time.Second
	// lostApproval is the cancelReason of a payment that could not be recorded.
	lostApproval = "approval could not be recorded"
)

// commit settles until it is certain, at most COMMIT_WITHIN and never past the lease. What it cannot write it
// does not claim: the answer is then 202 and recovery settles.
func (w *work) commit(ctx context.Context, st *Settlement) (*Answer, error) {
	st.Told = w.flight.wasTold() || st.Action.To == payment.AwaitingDeposit
	until := time.Now().Add(w.set.CommitWithin)
	if w.leaseEnd.Before(until) {
		until = w.leaseEnd
	}
	var doubtAt time.Time
	if w.takenOver && st.Action.To == payment.Paid {
		// The holder before us may have a cancel under way.
		st.Action.VerifyIn = payment.CrossingLook(payment.ByRecovery, payment.Paid)
	}
	for pause := commitPause; ; pause = min(2*pause, commitPauseMost) {
		done := w.db()
		p, ending, err := w.store.Settle(ctx, *st)
		done()
		switch ending {
		case payment.Applied:
			return answerRow(p)
		case payment.NoRows:
			return w.fromMoved(ctx, *st, until)
		case payment.MaybeApplied:
			doubtAt = time.Now()
			if _, moved := w.reread(ctx, st.Payment); moved {
				return w.fromMoved(ctx, *st, until)
			}
		case payment.NotApplied:
		}
		w.log.WarnContext(ctx, "commit the outcome", "order_id", st.Payment.OrderID, "to", string(st.Action.To),
			"ending", ending.String(), "error", err)
		if !pauseUntil(ctx, pause, until) {
			break
		}
	}
	if w.mayCancel(*st) && w.certainlyNot(ctx, st.Payment, doubtAt) {
		return w.compensate(ctx, *st)
	}
	return pendingAnswer(st.Payment, payment.ResultPendingUnknown), nil
}

// certainlyNot reports whether no try of a commit can be applied, now or later. A try that may have been (doubtAt is
// its end) can still run at the server until the statement time-out: only a look after that proves it.
func (w *work) certainlyNot(ctx context.Context, p payment.Payment, doubtAt time.Time) bool {
	if doubtAt.IsZero() {
		return true
	}
	if time.Since(doubtAt) < w.set.StatementTimeout {
		return false
	}
	seen, moved := w.reread(ctx, p)
	return seen && !moved
}

// reread looks whether somebody, or a try of ours whose answer was lost, moved the payment.
func (w *work) reread(ctx context.Context, p payment.Payment) (seen, moved bool) {
	q, found, err := w.store.Find(ctx, p.PaymentKey, "")
	seen = err == nil && found
	return seen, seen && (q.Version != p.Version || q.Status != payment.Pending)
}

// fromMoved answers a settle whose guard matched nothing, which is no failure, from the row as it is now. While Toss
// holds money for a FAILED row whose give back could not be begun, "nothing was charged" is not said.
func (w *work) fromMoved(ctx context.Context, st Settlement, until time.Time) (*Answer, error) {
	for pause := commitPause; ; pause = min(2*pause, commitPauseMost) {
		q, err := w.moved(ctx, st, OneTry)
		if err == nil {
			return answerRow(q)
		}
		w.log.ErrorContext(ctx, "read or give back a payment that moved", "order_id", q.OrderID, "error", err)
		if !pauseUntil(ctx, pause, until) {
			q.Status = payment.Pending
			return pendingAnswer(q, payment.ResultPendingUnknown), nil
		}
	}
}

// moved reads a payment that somebody else moved. What Toss holds for a FAILED row is given back now, so that it
// cannot be forgotten, unless somebody works on it. With an error the payment is the newest that is known.
func (s *Service) moved(ctx context.Context, st Settlement, tries Tries) (payment.Payment, error) {
	q, found, err := s.store.Find(ctx, st.Payment.PaymentKey, "")
	if err != nil || !found {
		return st.Payment, unwritten("read a payment that moved", payment.NoRows, err)
	}
	if q.Status != payment.Failed || Held(q) {
		return q, nil
	}
	action := s.set.Rules.Decide(q, st.Observation, q.ReadAt)
	if action.Do != payment.GiveBack && action.Do != payment.CancelDeposit {
		return q, nil
	}
	q, _, err = s.giveBack(ctx, debt{payment: q, seen: st.Observation, amount: st.Observation.Balance, action: action, actor: st.Actor, tries: tries})
	return q, err
}

// unwritten is the error of a statement that did not apply; 0 rows have no cause of their own.
func unwritten(noun string, ending payment.Ending, cause error) error {
	if cause == nil {
		return fmt.Errorf("%s: %s", noun, ending)
	}
	return fmt.Errorf("%s (%s): %w", noun, ending, cause)
}

func (w *work) mayCancel(st Settlement) bool {
	return w.set.CancelOnCommitFailure && st.Action.To == payment.Paid &&
		time.Until(w.leaseEnd) > w.set.CancelTimeout+cancelSlack
}

// compensate gives an approval back that certainly is not recorded: one cancel, which needs no database. Only a
// confirmed balance of 0 is told; after that nobody acts from memory, recovery reads Toss and decides.
func (w *work) compensate(ctx context.Context, st Settlement) (*Answer, error) {
	p, id := st.Payment, payment.NewCancelID()
	w.log.ErrorContext(ctx, "give back an approval that could not be recorded", "order_id", p.OrderID, "cancel_id", id)
	a := w.gateway.Cancel(ctx, CancelCall{
		PaymentKey: p.PaymentKey, Key: payment.CancelKey(id, 1), Reason: payment.MarkedReason(lostApproval, id),
		Amount: st.Observation.Balance, Balance: st.Observation.Balance, Currency: p.Currency, Full: true, Tries: OneTry,
	})
	w.gatewayT += a.Took
	if a.Kind != payment.KindPayment || !a.Observation.Returned() {
		return pendingAnswer(p, payment.ResultPendingUnknown), nil
	}
	p.Status, p.Failure = payment.Failed, &payment.Failure{Code: payment.FailGivenBack}
	st.Observation = a.Observation
	st.Action = payment.Action{Do: payment.Settle, To: payment.Failed, Failure: p.Failure, Reason: lostApproval}
	if _, ending, err := w.store.Settle(ctx, st); ending != payment.Applied {
		w.log.WarnContext(ctx, "record the give back", "order_id", p.OrderID, "ending", ending.String(), "error", err)
	}
	return answerRow(p)
}

// pauseUntil waits for d and reports whether there is time for another try before until.
func pauseUntil(ctx context.Context, d time.Duration, until time.Time) bool {
	if time.Until(until) <= d {
		return false
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
