package pg

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"paymentd/breaker"
	"paymentd/internal/payment"
)

// The operations, as values of the metrics' label op.
const (
	opConfirm      = "confirm"
	opLookup       = "lookup"
	opCancel       = "cancel"
	opTransactions = "transactions"
)

// busyMark begins the message of a 500 to a confirm that meets a running one. Toss gives it the code of an
// internal failure, so here, alone in this program, words decide.
const busyMark = "[S008]"

var (
	errMismatch   = errors.New("the payment in the answer is not the one asked for")
	errUnreadable = errors.New("unreadable error body")
)

// reply is an HTTP answer, read to its end.
type reply struct {
	status     int
	body       []byte
	traceID    string
	retryAfter string
}

// expectation is what a payment in the answer must be of; empty fields but PaymentKey are not compared.
type expectation struct {
	paymentKey string
	orderID    string // of a lookup by order, which knows no key
	order      *payment.Order
}

func (w expectation) meets(o payment.Observation) bool {
	if w.orderID != "" {
		return o.OrderID == w.orderID
	}
	return o.PaymentKey == w.paymentKey && (w.order == nil || answers(*w.order, o))
}

// classifier holds the codes of each operation.
type classifier map[string]codes

func newClassifier() classifier {
	return classifier{opConfirm: confirmCodes(), opLookup: lookupCodes(), opCancel: cancelCodes()}
}

// classify concludes from an HTTP answer; listed is false for an error code that the table does not know.
func (c classifier) classify(op string, r reply, want expectation) (a payment.Answer, listed bool) {
	a = payment.Answer{HTTPStatus: r.status, Observation: payment.Observation{Sighting: payment.SeenNoAnswer, TraceID: r.traceID}}
	if r.status >= 200 && r.status < 300 {
		return classifyPayment(a, r, want), true
	}
	body, ok := decodeError(r.body)
	a.Code, a.Message = body.Code, body.Message
	kind, known := c[op][a.Code]
	if !known && echoes(a.Code, want.paymentKey) {
		a.Code = ""
	}
	switch {
	case op == opConfirm && r.status == http.StatusInternalServerError && strings.HasPrefix(a.Message, busyMark):
		a.Kind, known = payment.KindProcessing, true
	case known:
		a.Kind = kind
	default:
		a.Kind = kindOfStatus(r.status, ok)
	}
	if !ok {
		a.Err = errUnreadable
	}
	switch a.Kind {
	case payment.KindThrottled:
		a.RetryAfter = retryAfter(r.retryAfter)
	case payment.KindNotFound:
		a.Observation.Sighting = payment.SeenNotFound
	default:
	}
	return a, known || a.Code == ""
}

// kindOfStatus is for answers without a listed code. Whoever sent them, nothing definite follows for the
// payment: a lookup decides.
func kindOfStatus(status int, readable bool) payment.Kind {
	switch {
	case status == http.StatusUnauthorized:
		return payment.KindMisconfigured
	case status == http.StatusTooManyRequests:
		return payment.KindThrottled
	case !readable:
		return payment.KindFault // a proxy, not Toss: Toss always says a code
	case status == http.StatusConflict:
		return payment.KindKeyBusy
	case status >= 400 && status < 500:
		return payment.KindAmbiguous
	default:
		return payment.KindFault
	}
}

// classifyPayment accepts a payment only if it is the one asked for: a key used twice makes Toss replay the
// answer to another payment.
func classifyPayment(a payment.Answer, r reply, want expectation) payment.Answer {
	a.Kind = payment.KindFault
	o, err := decodePayment(r.body)
	if err != nil {
		a.Err = err
		return a
	}
	if !want.meets(o) {
		a.Err = errMismatch
		return a
	}
	o.TraceID = r.traceID
	a.Kind, a.Observation = payment.KindPayment, o
	return a
}

// answers compares the payment in a confirm's answer with the request. A fresh approval has given nothing back.
func answers(order payment.Order, o payment.Observation) bool {
	return o.OrderID == order.OrderID && o.Total == order.Amount && o.Currency == order.Currency &&
		(o.Sighting != payment.SeenDone || o.Balance == o.Total)
}

// retryAfter reads a Retry-After of whole seconds, at most an hour; 0 if there is none.
func retryAfter(header string) time.Duration {
	seconds, err := strconv.Atoi(header)
	if err != nil || seconds < 0 {
		return 0
	}
	return min(time.Duration(min(seconds, 3600))*time.Second, time.Hour)
}

// verdict is how the breaker counts an answer to a confirm: a decline shows that Toss is well, a refusal of
// ours or a wrong key shows nothing.
func verdict(a payment.Answer) breaker.Outcome {
	switch a.Kind {
	case payment.KindPayment, payment.KindDeclined, payment.KindRejected, payment.KindSessionGone,
		payment.KindAmbiguous, payment.KindProcessing, payment.KindKeyBusy, payment.KindNotFound:
		return breaker.Success
	case payment.KindFault, payment.KindReset, payment.KindTimeout, payment.KindNotConnected:
		return breaker.Failure
	default:
		return breaker.Ignored
	}
}
