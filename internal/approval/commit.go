package approval

import (
	"context"
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
func (w *work) commit(ctx context.Context, st Settlement) (Answer, error) {
	st.Told = w.flight.wasTold()
	until := time.Now().Add(w.set.CommitWithin)
	if w.leaseEnd.Before(until) {
		until = w.leaseEnd
	}
	certainlyNot := true
	for pause := commitPause; ; pause = min(2*pause, commitPauseMost) {
		done := w.db()
		p, ending, err := w.store.Settle(ctx, st)
		done()
		switch ending {
		case payment.Applied:
			p.Told = st.Told
			return answerRow(p)
		case payment.NoRows:
			return w.moved(ctx, st)
		case payment.MaybeApplied:
			q, found, readErr := w.store.Find(ctx, st.Payment.PaymentKey, "")
			switch {
			case readErr != nil || !found:
				certainlyNot = false
			case q.Version != st.Payment.Version || q.Status != payment.Pending:
				return w.moved(ctx, st)
			}
		}
		w.log.WarnContext(ctx, "commit the outcome", "order_id", st.Payment.OrderID, "to", string(st.Action.To),
			"ending", ending.String(), "error", err)
		if !pauseUntil(ctx, pause, until) {
			break
		}
	}
	if certainlyNot && w.mayCancel(st) {
		return w.compensate(ctx, st)
	}
	return pendingAnswer(st.Payment, payment.ResultPendingUnknown), nil
}

// moved answers a settle whose guard matched nothing: somebody else moved the row, which is no failure. An approval
// that met a FAILED row is given back now, so that it cannot be forgotten.
func (w *work) moved(ctx context.Context, st Settlement) (Answer, error) {
	q, found, err := w.store.Find(ctx, st.Payment.PaymentKey, "")
	if err != nil || !found {
		return pendingAnswer(st.Payment, payment.ResultPendingUnknown), nil
	}
	if st.Observation.Charged() && q.Status == payment.Failed {
		action := w.set.Rules.Decide(q, st.Observation, q.ReadAt)
		if after, err := w.giveBack(ctx, q, st.Observation, action, payment.ByConfirm, OneTry); err == nil {
			q = after
		}
	}
	return answerRow(q)
}

func (w *work) mayCancel(st Settlement) bool {
	return w.set.CancelOnCommitFailure && st.Action.To == payment.Paid &&
		time.Until(w.leaseEnd) > w.set.CancelTimeout+cancelSlack
}

// compensate gives an approval back that certainly is not recorded: one cancel, which needs no database. Only a
// confirmed balance of 0 is told; after that nobody acts from memory, recovery reads Toss and decides.
func (w *work) compensate(ctx context.Context, st Settlement) (Answer, error) {
	p, id := st.Payment, payment.NewCancelID()
	w.log.ErrorContext(ctx, "give back an approval that could not be recorded", "order_id", p.OrderID, "cancel_id", id)
	a := w.gateway.Cancel(ctx, CancelCall{
		PaymentKey: p.PaymentKey, Key: payment.CancelKey(id, 1), Reason: payment.MarkedReason(lostApproval, id),
		Amount: p.Amount, Balance: p.Amount, Currency: p.Currency, Full: true, Tries: OneTry,
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
