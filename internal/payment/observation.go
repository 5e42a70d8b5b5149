package payment

import (
	"regexp"
	"time"
)

// Sighting is what an answer of Toss shows of a payment: the status words of Toss (docs: Payment object,
// "status") and what stands for the absence of one.
type Sighting string

// The sightings. Toss may add status words without notice: they are SeenUnknownStatus.
const (
	// SeenNothing means that no lookup was made, which is right only for a payment that was never sent.
	SeenNothing        Sighting = "NO_LOOKUP"
	SeenNoAnswer       Sighting = "NO_ANSWER"
	SeenUnknownStatus  Sighting = "UNKNOWN_STATUS"
	SeenNotFound       Sighting = "NOT_FOUND"
	SeenReady          Sighting = "READY"
	SeenInProgress     Sighting = "IN_PROGRESS"
	SeenWaiting        Sighting = "WAITING_FOR_DEPOSIT"
	SeenDone           Sighting = "DONE"
	SeenPartlyCanceled Sighting = "PARTIAL_CANCELED"
	SeenCanceled       Sighting = "CANCELED"
	SeenAborted        Sighting = "ABORTED"
	SeenExpired        Sighting = "EXPIRED"
	// SeenDeclined is the definite "no" of a confirm; SeenSessionGone is NOT_FOUND_PAYMENT_SESSION to a
	// confirm, after a lookup that did not show an approval.
	SeenDeclined    Sighting = "DECLINED"
	SeenSessionGone Sighting = "SESSION_GONE"
)

// Sightings lists every sighting; Decide is total over them.
func Sightings() []Sighting {
	return []Sighting{
		SeenNothing, SeenNoAnswer, SeenUnknownStatus, SeenNotFound, SeenReady, SeenInProgress, SeenWaiting, SeenDone,
		SeenPartlyCanceled, SeenCanceled, SeenAborted, SeenExpired, SeenDeclined, SeenSessionGone,
	}
}

// SightingOf maps a status word of Toss to a sighting.
func SightingOf(word string) Sighting {
	switch s := Sighting(word); s {
	case SeenReady, SeenInProgress, SeenWaiting, SeenDone, SeenPartlyCanceled, SeenCanceled, SeenAborted, SeenExpired:
		return s
	default:
		return SeenUnknownStatus
	}
}

// Observation is what one answer of Toss (confirm, lookup, cancel) tells about a payment. Fields below
// Sighting are filled only when Toss sent a payment object.
type Observation struct {
	Sighting       Sighting
	PaymentKey     string
	OrderID        string
	Total          Amount
	Balance        Amount
	Currency       Currency
	Method         string
	ApprovedAt     time.Time
	ReceiptURL     string
	VirtualAccount *VirtualAccount
	Cancels        []GatewayCancel
	// FailureCode and FailureMessage are Toss's reason of a decline or an ABORTED payment.
	FailureCode    string
	FailureMessage string
	// TraceID is X-TossPayments-Trace-Id, which Toss's support asks for.
	TraceID string
}

// GatewayCancel is one entry of Toss's cancels[].
type GatewayCancel struct {
	TransactionKey string
	Amount         Amount
	Reason         string
	At             time.Time
}

// Ours reports whether paymentd itself asked for the cancel: its reason ends with our mark.
func (c GatewayCancel) Ours() bool { return CancelMark(c.Reason) != "" }

var cancelMark = regexp.MustCompile(` \[(c-[a-z2-7]{26})\]$`)

// CancelMark returns the cancel id at the end of a cancelReason of ours, or "".
func CancelMark(reason string) string {
	if m := cancelMark.FindStringSubmatch(reason); m != nil {
		return m[1]
	}
	return ""
}

// Matches reports whether the observation is of p: same paymentKey, orderId, amount and currency.
func (o Observation) Matches(p Payment) bool {
	return o.PaymentKey == p.PaymentKey && o.OrderID == p.OrderID && o.Total == p.Amount && o.Currency == p.Currency
}

// Returned reports whether all the money went back. Toss documents a full cancel that says
// PARTIAL_CANCELED, so the balance decides and not the word.
func (o Observation) Returned() bool {
	return (o.Sighting == SeenCanceled || o.Sighting == SeenPartlyCanceled) && o.Balance == 0
}

// Charged reports whether Toss holds money of the buyer.
func (o Observation) Charged() bool {
	switch o.Sighting {
	case SeenDone, SeenPartlyCanceled, SeenCanceled:
		return o.Balance > 0
	default:
		return false
	}
}

// Final reports whether a lookup inside a confirm settles it whatever was heard before (design: only DONE,
// balance 0, ABORTED and EXPIRED do; an issued virtual account is as definite).
func (o Observation) Final() bool {
	switch o.Sighting {
	case SeenDone, SeenPartlyCanceled, SeenCanceled, SeenAborted, SeenExpired, SeenWaiting:
		return true
	default:
		return false
	}
}

func (o Observation) returnedByUs() bool {
	return len(o.Cancels) > 0 && o.Cancels[len(o.Cancels)-1].Ours()
}

// Kind classifies one try to reach Toss by what may be concluded from it (docs/design.md, "The pipeline").
type Kind string

// The kinds. Toss's codes are mapped to them in internal/pg; a code that is not listed there is a Fault.
const (
	// KindPayment is a payment object that answers the request.
	KindPayment Kind = "payment"
	// KindDeclined is a definite no for this paymentKey.
	KindDeclined Kind = "declined"
	// KindRejected leaves a decline to one lookup: if that does not show an approval, it is one.
	KindRejected Kind = "rejected"
	// KindSessionGone is NOT_FOUND_PAYMENT_SESSION: expired, unless a lookup shows an approval.
	KindSessionGone Kind = "session_gone"
	// KindAmbiguous is decided by a lookup alone.
	KindAmbiguous Kind = "ambiguous"
	// KindProcessing means that another request for the payment runs at Toss: look up, never send again now.
	KindProcessing Kind = "processing"
	// KindKeyBusy is 409: our request with the same key still runs; the same key collects its result.
	KindKeyBusy Kind = "key_busy"
	// KindFault is an HTTP answer that leaves the payment open: 5xx, unreadable, or not of our request.
	KindFault Kind = "fault"
	// KindReset is a connection that broke after the request may have been written.
	KindReset Kind = "reset"
	// KindTimeout is no answer in time.
	KindTimeout Kind = "timeout"
	// KindPanic is a bug of ours while a request may have been under way.
	KindPanic Kind = "panic"
	// KindThrottled is 429.
	KindThrottled Kind = "throttled"
	// KindMisconfigured means that Toss does not accept us as a merchant.
	KindMisconfigured Kind = "misconfigured"
	// KindNotFound is 404 to a lookup.
	KindNotFound Kind = "not_found"
	// KindNotConnected means that the request certainly never left: dial, DNS, TLS handshake.
	KindNotConnected Kind = "not_connected"
	// KindRefused is our own refusal, before anything was sent: breaker, limiter, bulkhead or lease.
	KindRefused Kind = "refused"
)

// Refuser names the layer of ours that refused a send.
type Refuser string

// The refusers; the first three are values of paymentd_refused_total{by}.
const (
	RefusedByBreaker  Refuser = "breaker"
	RefusedByLimiter  Refuser = "limiter"
	RefusedByBulkhead Refuser = "bulkhead"
	RefusedByLease    Refuser = "lease"
)

// Answer is all that one try to reach Toss told us. Code and Message are Toss's own words.
type Answer struct {
	Kind        Kind
	Refuser     Refuser
	RetryAfter  time.Duration
	HTTPStatus  int
	Code        string
	Message     string
	Observation Observation
	// Err is the transport's or decoder's error, for the log alone; it holds no key.
	Err error
	// Took is the time at the gateway, zero for a refusal.
	Took time.Duration
}

// Outcome ranks what a try tells about money; a larger one is worse and wins.
type Outcome int

// The outcomes, from "certainly never reached Toss" to "Toss has taken the money".
const (
	Unavailable Outcome = iota
	Declined
	Unknown
	Approved
)

// String names the outcome as in paymentd_gateway_attempts_total.
func (o Outcome) String() string {
	return [...]string{"unavailable", "declined", "unknown", "approved"}[o]
}

// Outcome ranks the answer. A 429 to the very first try of a row was not processed; to a later one it says
// nothing about the tries before. A rejected or expired session ranks as a decline that needs a lookup.
func (a Answer) Outcome(firstTry bool) Outcome {
	switch a.Kind {
	case KindPayment:
		if a.Observation.Final() {
			return outcomeOfFinal(a.Observation.Sighting)
		}
		return Unknown
	case KindDeclined, KindRejected, KindSessionGone:
		return Declined
	case KindNotConnected, KindRefused, KindMisconfigured:
		return Unavailable
	case KindThrottled:
		if firstTry {
			return Unavailable
		}
		return Unknown
	default:
		return Unknown
	}
}

func outcomeOfFinal(s Sighting) Outcome {
	if s == SeenAborted || s == SeenExpired {
		return Declined
	}
	return Approved
}

// Sent reports whether the try may have reached Toss.
func (a Answer) Sent() bool { return a.Kind != KindNotConnected && a.Kind != KindRefused }

// SpendsKey reports whether Toss answered an error under the key: it would replay it for 15 days.
func (a Answer) SpendsKey() bool {
	switch a.Kind {
	case KindReset, KindTimeout, KindPanic, KindKeyBusy, KindNotConnected, KindRefused:
		return false
	default:
		return true
	}
}
