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
