package payment

import (
	"crypto/rand"
	"strconv"
	"strings"
	"unicode/utf16"
)

// maxCancelReason is the length that Toss allows for a cancelReason.
const maxCancelReason = 200

// ConfirmKey is the Idempotency-Key of the n-th key of a payment: "<paymentKey>:<n>", at most 204 characters
// (Toss allows 300). It is built from the paymentKey and never from a row id, which a restored database
// would give out again inside the 15 days for which Toss replays answers.
func ConfirmKey(paymentKey string, n int) string { return paymentKey + ":" + strconv.Itoa(n) }

// KeyStep is what the key rule allows after a try that did not settle the payment.
type KeyStep int

// The steps of the key rule.
const (
	// KeepKey: nothing was heard under the key, so the same key collects the result.
	KeepKey KeyStep = iota
	// LookupThenNextKey: Toss would replay the error under this key; only a lookup that shows the payment
	// open allows the next key.
	LookupThenNextKey
	// LookupOnly: another request runs at Toss; sending again, with whatever key, is wrong.
	LookupOnly
)

// KeyStepAfter names the step after an answer (Toss documentation, "Idempotency-Key"; errors are replayed too).
func KeyStepAfter(a Answer) KeyStep {
	switch {
	case a.Kind == KindProcessing:
		return LookupOnly
	case a.SpendsKey():
		return LookupThenNextKey
	default:
		return KeepKey
	}
}

// OpenForNextKey reports whether a lookup shows the payment open, so that the next key may be sent.
func OpenForNextKey(lookup Answer) bool {
	switch lookup.Kind {
	case KindNotFound:
		return true
	case KindPayment:
		return lookup.Observation.Sighting == SeenReady || lookup.Observation.Sighting == SeenInProgress
	default:
		return false
	}
}

// NewCancelID makes the id of a cancel of ours: "c-" and 26 random characters (130 bits). It is the mark at the
// end of cancelReason and the stem of the Idempotency-Key.
func NewCancelID() string { return "c-" + strings.ToLower(rand.Text()) }

// CancelKey is the Idempotency-Key of the n-th key of a cancel.
func CancelKey(cancelID string, n int) string { return cancelID + "-" + strconv.Itoa(n) }

// MarkedReason is a cancelReason that ends with our mark; the reason is cut so that both fit into Toss's 200
// characters. They are counted as UTF-16 units, as the JVM and JavaScript do: whoever counts whole characters
// instead, counts fewer.
func MarkedReason(reason, cancelID string) string {
	mark := " [" + cancelID + "]"
	room := maxCancelReason - len(mark)
	for i, r := range reason {
		if room -= max(1, utf16.RuneLen(r)); room < 0 {
			reason = reason[:i]
			break
		}
	}
	return reason + mark
}
