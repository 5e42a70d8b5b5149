package pg

import (
	"errors"
	"maps"
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

func (w expectation) meets(o *payment.Observation) bool {
	if w.orderID != "" {
		return o.OrderID == w.orderID
	}
	return o.PaymentKey == w.paymentKey && (w.order == nil || answers(w.order, o))
}

// classifier holds the codes of each operation.
type classifier map[string]codes

func newClassifier() classifier {
	return classifier{opConfirm: confirmCodes(), opLookup: lookupCodes(), opCancel: cancelCodes(), opTransactions: transactionsCodes()}
}

// classify concludes from an HTTP answer; listed is false for an error code that the table does not know.
func (c classifier) classify(op string, r reply, want expectation) (a answer, listed bool) {
	a = &payment.Answer{HTTPStatus: r.status, Observation: payment.Observation{Sighting: payment.SeenNoAnswer, TraceID: r.traceID}}
	if r.status >= 200 && r.status < 300 {
		classifyPayment(a, r, want)
		return a, true
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
func classifyPayment(a answer, r reply, want expectation) {
	a.Kind = payment.KindFault
	o, err := decodePayment(r.body)
	switch {
	case err != nil:
		a.Err = err
	case !want.meets(&o):
		a.Err = errMismatch
	default:
		o.TraceID = r.traceID
		a.Kind, a.Observation = payment.KindPayment, o
	}
}

// answers compares the payment in a confirm's answer with the request. A fresh approval has given nothing back.
func answers(order *payment.Order, o *payment.Observation) bool {
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

// codes says what may be concluded from Toss's error codes, per operation: by code and never by status, because
// many declines are 403 and a 400 may say "temporary". A code that is not here leaves the outcome unknown.
// Toss ships new codes without notice; testdata/codes.json lists those it documents.
type codes map[string]payment.Kind

// list maps all names to one kind.
func list(kind payment.Kind, names ...string) codes {
	c := codes{}
	for _, name := range names {
		c[name] = kind
	}
	return c
}

func join(parts ...codes) codes {
	all := codes{}
	for _, part := range parts {
		maps.Copy(all, part)
	}
	return all
}

// merchantCodes are answers to any operation by which Toss does not accept us.
func merchantCodes() codes {
	return list(payment.KindMisconfigured, "UNAUTHORIZED_KEY", "INVALID_API_KEY", "INCORRECT_BASIC_AUTH_FORMAT")
}

// transactionsCodes are answers to a question that we should not have asked; nothing else is documented of the feed.
func transactionsCodes() codes {
	return join(merchantCodes(), list(payment.KindRejected, "INVALID_DATE", "INVALID_REQUEST"))
}

func confirmCodes() codes {
	return join(merchantCodes(),
		list(payment.KindMisconfigured,
			"NOT_FOUND_TERMINAL_ID", "INVALID_UNREGISTERED_SUBMALL", "NOT_REGISTERED_BUSINESS"),
		list(payment.KindDeclined,
			"EXCEED_MAX_CARD_INSTALLMENT_PLAN", "NOT_ALLOWED_POINT_USE", "INVALID_REJECT_CARD", "BELOW_MINIMUM_AMOUNT",
			"INVALID_CARD_EXPIRATION", "INVALID_STOPPED_CARD", "EXCEED_MAX_DAILY_PAYMENT_COUNT",
			"NOT_SUPPORTED_INSTALLMENT_PLAN_CARD_OR_MERCHANT", "INVALID_CARD_INSTALLMENT_PLAN",
			"NOT_SUPPORTED_MONTHLY_INSTALLMENT_PLAN", "EXCEED_MAX_PAYMENT_AMOUNT", "INVALID_AUTHORIZE_AUTH",
			"INVALID_CARD_LOST_OR_STOLEN", "RESTRICTED_TRANSFER_ACCOUNT", "INVALID_CARD_NUMBER",
			"EXCEED_MAX_ONE_DAY_WITHDRAW_AMOUNT", "EXCEED_MAX_ONE_TIME_WITHDRAW_AMOUNT", "EXCEED_MAX_AMOUNT",
			"INVALID_ACCOUNT_INFO_RE_REGISTER", "NOT_AVAILABLE_PAYMENT", "EXCEED_MAX_MONTHLY_PAYMENT_AMOUNT",
			"REJECT_ACCOUNT_PAYMENT", "REJECT_CARD_PAYMENT", "REJECT_CARD_COMPANY", "REJECT_TOSSPAY_INVALID_ACCOUNT",
			"EXCEED_MAX_AUTH_COUNT", "EXCEED_MAX_ONE_DAY_AMOUNT", "NOT_AVAILABLE_BANK", "INVALID_PASSWORD", "FDS_ERROR"),
		// Our own words may be wrong, or a payment of that name is there already: a lookup shows no approval first.
		list(payment.KindRejected,
			"INVALID_REQUEST", "FORBIDDEN_REQUEST", "NOT_FOUND_PAYMENT", "INVALID_IDEMPOTENCY_KEY"),
		list(payment.KindSessionGone, "NOT_FOUND_PAYMENT_SESSION"),
		// UNAPPROVED_ORDER_ID has no explanation; CARD_PROCESSING_ERROR may follow an approval by the card company.
		list(payment.KindAmbiguous,
			"ALREADY_PROCESSED_PAYMENT", "PROVIDER_ERROR", "CARD_PROCESSING_ERROR", "UNAPPROVED_ORDER_ID", "DUPLICATED_ORDER_ID"),
		list(payment.KindProcessing, "ALREADY_PROCESSING_REQUEST"),
		list(payment.KindKeyBusy, "IDEMPOTENT_REQUEST_PROCESSING"),
		list(payment.KindFault,
			"FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING", "FAILED_INTERNAL_SYSTEM_PROCESSING", "UNKNOWN_PAYMENT_ERROR", "COMMON_ERROR"),
	)
}

// lookupCodes: a failed lookup never proves anything about the payment.
func lookupCodes() codes {
	return join(merchantCodes(),
		list(payment.KindNotFound, "NOT_FOUND_PAYMENT", "NOT_FOUND"),
		list(payment.KindThrottled, "FORBIDDEN_CONSECUTIVE_REQUEST"),
		list(payment.KindFault,
			"NOT_SUPPORTED_MONTHLY_INSTALLMENT_PLAN_BELOW_AMOUNT", "FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING"),
	)
}

func cancelCodes() codes {
	return join(merchantCodes(),
		// NOT_AVAILABLE_BANK to a cancel is the bank's closing time: the next key, later.
		list(payment.KindAmbiguous,
			"ALREADY_CANCELED_PAYMENT", "ALREADY_REFUND_PAYMENT", "NOT_MATCHES_REFUNDABLE_AMOUNT", "PROVIDER_ERROR", "NOT_AVAILABLE_BANK"),
		list(payment.KindDeclined,
			"INVALID_REFUND_ACCOUNT_INFO", "INVALID_REFUND_ACCOUNT_NUMBER", "INVALID_BANK",
			"EXCEED_CANCEL_AMOUNT_DISCOUNT_AMOUNT", "REFUND_REJECTED", "FORBIDDEN_BANK_REFUND_REQUEST",
			"NOT_CANCELABLE_AMOUNT", "NOT_CANCELABLE_PAYMENT", "NOT_CANCELABLE_PAYMENT_FOR_DORMANT_USER",
			"EXCEED_MAX_REFUND_DUE", "EXCEED_CANCEL_LIMIT", "NOT_ALLOWED_PARTIAL_REFUND",
			"NOT_ALLOWED_PARTIAL_REFUND_WAITING_DEPOSIT"),
		list(payment.KindRejected,
			"INVALID_REQUEST", "FORBIDDEN_REQUEST", "NOT_FOUND_PAYMENT", "INVALID_IDEMPOTENCY_KEY"),
		list(payment.KindKeyBusy, "IDEMPOTENT_REQUEST_PROCESSING"),
		list(payment.KindThrottled, "FORBIDDEN_CONSECUTIVE_REQUEST"),
		list(payment.KindFault,
			"FAILED_INTERNAL_SYSTEM_PROCESSING", "FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING", "FAILED_REFUND_PROCESS",
			"FAILED_METHOD_HANDLING_CANCEL", "COMMON_ERROR", "FAILED_PARTIAL_REFUND"),
	)
}
