package payment

import (
	"crypto/rand"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Verdict says what a finished sequence of tries is worth.
type Verdict int

// The verdicts.
const (
	// VerdictSettle: Observation says what to settle.
	VerdictSettle Verdict = iota
	// VerdictLookup: one lookup decides; give its answer to AfterLookup.
	VerdictLookup
	// VerdictNotSent: no try reached Toss; Failure says why.
	VerdictNotSent
	// VerdictUnknown: nobody may decide now; recovery will look.
	VerdictUnknown
)

// Conclusion is what a sequence of tries tells, by the rule "the worst heard since the reservation wins".
type Conclusion struct {
	Verdict     Verdict
	Observation Observation
	Failure     *Failure
	// Last is the answer that spoke last, for the log and Retry-After.
	Last Answer
	// fallback is what a lookup that shows no approval leaves standing; empty means unknown.
	fallback Observation
}

// Conclude folds the answers of all tries: an approval anywhere settles, then ABORTED or EXPIRED anywhere. earlier says that a try before them may have reached Toss (of this
// or another process): then a refusal, a 429 or a decline settles nothing.
func Conclude(tries []Answer, earlier bool) Conclusion {
	var none Answer
	decline, final, last := &none, &none, &none
	worst := Unavailable
	for i := range tries {
		a := &tries[i]
		last = a
		out := a.Outcome(i == 0 && !earlier)
		switch {
		case out == Approved:
			return Conclusion{Verdict: VerdictSettle, Observation: a.Observation, Last: *a}
		case out != Declined:
		case a.Kind == KindPayment:
			final = a
		case decline.Kind != KindDeclined:
			decline = a
		}
		worst = max(worst, out)
	}
	if earlier || len(tries) == 0 {
		// Nothing heard at all is no proof that nothing was sent.
		worst = max(worst, Unknown)
	}
	c := Conclusion{Last: *last}
	switch {
	case final.Kind != "":
		c.Verdict, c.Observation = VerdictSettle, final.Observation
	case worst == Unknown:
		c.Verdict = VerdictLookup
	case worst == Declined && decline.Kind == KindDeclined:
		c.Verdict, c.Observation = VerdictSettle, declined(*decline)
	case worst == Declined:
		c.Verdict, c.fallback = VerdictLookup, declined(*decline)
	default:
		c.Verdict, c.Failure = VerdictNotSent, notSent(tries)
	}
	return c
}

// AfterLookup concludes with the one lookup that Conclude asked for.
func (c Conclusion) AfterLookup(a Answer) Conclusion {
	c.Verdict = VerdictUnknown
	switch {
	case a.Kind == KindPayment && a.Observation.Final():
		c.Verdict, c.Observation = VerdictSettle, a.Observation
	case c.fallback.Sighting != "" && OpenForNextKey(a):
		c.Verdict, c.Observation = VerdictSettle, c.fallback
	}
	return c
}

func declined(a Answer) Observation {
	o := Observation{Sighting: SeenDeclined, FailureCode: a.Code, FailureMessage: a.Message, TraceID: a.Observation.TraceID}
	if a.Kind == KindSessionGone {
		o.Sighting = SeenSessionGone
	}
	return o
}

// notSent names why nothing reached Toss: "busy" only if our own limits alone were in the way.
func notSent(tries []Answer) *Failure {
	f := &Failure{Code: FailBusy}
	for _, a := range tries {
		busy := a.Kind == KindRefused && (a.Refuser == RefusedByLimiter || a.Refuser == RefusedByBulkhead)
		switch {
		case a.Kind == KindMisconfigured:
			return &Failure{Code: FailMisconfigured, GatewayCode: a.Code}
		case !busy:
			f = &Failure{Code: FailPGUnavailable, GatewayCode: a.Code}
		}
	}
	return f
}

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
