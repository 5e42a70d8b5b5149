package approval

import (
	"time"

	"paymentd/internal/payment"
)

// Answer is what a confirm call is answered, whether or not an error stands beside it.
type Answer struct {
	Result  payment.Result
	Payment payment.Payment
	// Replayed says that the answer was computed from an earlier call's payment.
	Replayed   bool
	RetryAfter time.Duration
	// Gateway and DB are the time this confirm spent there; Attempts counts the tries at Toss.
	Gateway, DB time.Duration
	Attempts    int
	// TraceID is Toss's name for its last word in this confirm.
	TraceID string
}

// retryHint is what a 202 or a refusal without a better knowledge asks to wait.
const retryHint = 5 * time.Second

// answerRow computes the answer to a confirm from the row as it is now.
func answerRow(p payment.Payment) (*Answer, error) {
	a := &Answer{Payment: p}
	switch p.Status {
	case payment.Paid:
		a.Result = payment.ResultApproved
		return a, nil
	case payment.AwaitingDeposit:
		a.Result, a.RetryAfter = payment.ResultAwaitingDeposit, retryHint
		return a, nil
	case payment.Pending:
		return pendingAnswer(p, pendingResult(p)), nil
	case payment.Canceled:
		a.Result = payment.ResultPaymentCanceled
		return a, &payment.Error{Code: payment.CodePaymentCanceled, Public: "The payment was canceled. Start a new payment for the order."}
	default:
		return failedAnswer(p)
	}
}

func pendingResult(p payment.Payment) payment.Result {
	switch {
	case Held(p):
		return payment.ResultPendingRunning
	case !p.MaybeSent:
		return payment.ResultPendingUnavailable
	default:
		return payment.ResultPendingUnknown
	}
}

func pendingAnswer(p payment.Payment, r payment.Result) *Answer {
	return &Answer{Result: r, Payment: p, RetryAfter: retryHint}
}

func failedAnswer(p payment.Payment) (*Answer, error) {
	a, f := &Answer{Payment: p}, payment.Failure{}
	if p.Failure != nil {
		f = *p.Failure
	}
	e := &payment.Error{}
	switch f.Code {
	case payment.FailDeclined:
		a.Result, e.Code, e.Public = payment.ResultDeclined, payment.CodeDeclined, "The payment was declined."
		e.GatewayCode, e.GatewayMessage = f.GatewayCode, f.Message
	case payment.FailExpired:
		a.Result, e.Code, e.Public = payment.ResultExpired, payment.CodeExpired, "The time to confirm this payment is over. Start a new payment for the order."
	case payment.FailGivenBack:
		a.Result, e.Code, e.Public = payment.ResultDBFailed, payment.CodeDBFailed, "The payment could not be recorded and was given back in full."
	case payment.FailPGUnavailable:
		a.Result, e.Code, e.Public = payment.ResultPGUnavailable, payment.CodePGUnavailable, "The payment gateway cannot be reached; nothing was charged."
		e.RetryAfter = retryHint
	case payment.FailBusy:
		a.Result, e.Code, e.Public = payment.ResultBusy, payment.CodeBusy, "Too many payments at once; nothing was charged."
		e.RetryAfter = retryHint
	case payment.FailMisconfigured:
		a.Result, e.Code, e.Public = payment.ResultMisconfigured, payment.CodeGatewayMisconfigured, "The payment gateway does not accept this merchant's set-up; nothing was charged."
	case payment.FailCanceledAtGateway, payment.FailMismatch, payment.FailAbandoned:
		a.Result, e.Code, e.Public = payment.ResultPaymentCanceled, payment.CodePaymentCanceled, "The payment was canceled. Start a new payment for the order."
	default:
		a.Result, e.Code, e.Public = payment.ResultInternal, payment.CodeInternal, "The payment failed for a reason this version does not know."
	}
	a.RetryAfter = e.RetryAfter
	return a, e
}

// duplicate is the answer of another caller of the same confirm.
func duplicate(a *Answer) *Answer {
	d := *a
	d.replayed()
	return &d
}

// replayed turns an answer into that of a duplicate.
func (a *Answer) replayed() {
	a.Replayed, a.Gateway, a.DB, a.Attempts, a.TraceID = true, 0, 0, 0, ""
	if a.Result == payment.ResultApproved {
		a.Result = payment.ResultReplayed
	}
}

// refusedAnswer is the answer of a call that sent nothing because a layer of ours refused.
func refusedAnswer(refusal *payment.Answer, earlier payment.Earlier) (*Answer, error) {
	a := &Answer{Result: payment.ResultPGUnavailable}
	e := &payment.Error{Code: payment.CodePGUnavailable, Earlier: earlier, RetryAfter: max(refusal.RetryAfter, time.Second)}
	if refusal.Refuser != payment.RefusedByBreaker {
		a.Result, e.Code = payment.ResultBusy, payment.CodeBusy
	}
	e.Public = "This call sent nothing to the payment gateway, which is not available now."
	if earlier == payment.EarlierUnknown {
		e.Public += " An earlier call may have: read the order before offering another payment."
	}
	a.RetryAfter = e.RetryAfter
	return a, e
}

// dbUnavailable knows of this call alone: what an earlier one did stands in the database that cannot be asked.
func dbUnavailable(err error) (*Answer, error) {
	return &Answer{Result: payment.ResultDBUnavailable, RetryAfter: retryHint}, &payment.Error{
		Code: payment.CodeDBUnavailable, RetryAfter: retryHint, Earlier: payment.EarlierUnknown, Err: err,
		Public: "This call could not be saved and sent nothing to the payment gateway. An earlier call may have: " +
			"read the order before offering another payment.",
	}
}

func conflict(why string) (*Answer, error) {
	return &Answer{Result: payment.ResultOrderConflict}, &payment.Error{Code: payment.CodeOrderConflict, Public: why}
}

// cancelAnswer computes the answer from the rows as they are.
func cancelAnswer(p payment.Payment, c Cancel) (CancelAnswer, error) {
	a := CancelAnswer{Payment: p, Cancel: &c}
	switch {
	case c.State == payment.CancelOpen:
		a.RetryAfter = retryHint
		return a, nil
	case c.State == payment.CancelDone:
		return a, nil
	case c.State == payment.CancelMoot && p.Abandoned():
		a.Cancel = nil
		return a, nil
	case c.State == payment.CancelMoot:
		return a, refusal(payment.CodePaymentCanceled, "Everything was given back by another cancel.")
	default:
		return a, refusedCancel(c.RefusalCode, "")
	}
}

// refusedCancel is the answer to a cancel that was refused, by Toss or before it was sent.
func refusedCancel(code, message string) error {
	switch code {
	case payment.RefusedDepositArrived:
		return refusal(payment.CodeRefundAccountRequired, "The deposit has arrived: cancel again with refundReceiveAccount and a new Idempotency-Key.")
	case payment.RefusedAccountNeeded:
		return refusal(payment.CodeRefundAccountRequired, "The cancel never reached the gateway: send refundReceiveAccount again, with a new Idempotency-Key.")
	case payment.RefusedMoreThanLeft:
		return refusal(payment.CodeNotCancelable, "The gateway holds less than the amount. Read the payment again.")
	case payment.RefusedKeyTooOld:
		return refusal(payment.CodeNotCancelable, "The cancel could not be sent in time.")
	default:
		return &payment.Error{
			Code: payment.CodeNotCancelable, Public: "The gateway refused the cancel.", GatewayCode: code, GatewayMessage: message,
		}
	}
}

func refusal(code payment.Code, why string) error { return &payment.Error{Code: code, Public: why} }

// unsaved is the answer of a call that certainly stored nothing.
func unsaved(err error) error {
	return &payment.Error{
		Code: payment.CodeDBUnavailable, RetryAfter: retryHint, Err: err,
		Public: "This call could not be saved and sent nothing. Repeat it with the same Idempotency-Key.",
	}
}
