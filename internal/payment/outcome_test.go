package payment_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"paymentd/internal/payment"
)

var allKinds = []payment.Kind{
	payment.KindPayment, payment.KindDeclined, payment.KindRejected, payment.KindSessionGone, payment.KindAmbiguous,
	payment.KindProcessing, payment.KindKeyBusy, payment.KindFault, payment.KindReset, payment.KindTimeout,
	payment.KindPanic, payment.KindThrottled, payment.KindMisconfigured, payment.KindNotFound,
	payment.KindNotConnected, payment.KindRefused,
}

// unknownKinds may have charged and do not tell.
var unknownKinds = []payment.Kind{
	payment.KindAmbiguous, payment.KindProcessing, payment.KindKeyBusy, payment.KindFault, payment.KindReset,
	payment.KindTimeout, payment.KindPanic, payment.KindNotFound,
}

func heard(k payment.Kind) payment.Answer {
	return payment.Answer{Kind: k, Code: "CODE", Message: "text"}
}

func heardPayment(s payment.Sighting) payment.Answer {
	return payment.Answer{Kind: payment.KindPayment, Observation: full(s)}
}

func refusedBy(r payment.Refuser) payment.Answer {
	return payment.Answer{Kind: payment.KindRefused, Refuser: r}
}

func TestAnswerOutcome(t *testing.T) {
	t.Parallel()
	want := map[payment.Kind]payment.Outcome{
		payment.KindPayment: payment.Unknown, payment.KindDeclined: payment.Declined, payment.KindRejected: payment.Declined,
		payment.KindSessionGone: payment.Declined, payment.KindThrottled: payment.Unknown,
		payment.KindMisconfigured: payment.Unavailable, payment.KindNotConnected: payment.Unavailable,
		payment.KindRefused: payment.Unavailable,
	}
	for _, kind := range unknownKinds {
		want[kind] = payment.Unknown
	}
	for _, kind := range allKinds {
		if got := heard(kind).Outcome(false); got != want[kind] {
			t.Errorf("%s: %s, want %s", kind, got, want[kind])
		}
		first := want[kind]
		if kind == payment.KindThrottled {
			first = payment.Unavailable
		}
		if got := heard(kind).Outcome(true); got != first {
			t.Errorf("%s to the first try: %s, want %s", kind, got, first)
		}
		if got, want := heard(kind).Sent(), kind != payment.KindNotConnected && kind != payment.KindRefused; got != want {
			t.Errorf("%s may have reached Toss: %v, want %v", kind, got, want)
		}
	}
	sightings := map[payment.Sighting]payment.Outcome{
		payment.SeenDone: payment.Approved, payment.SeenPartlyCanceled: payment.Approved, payment.SeenCanceled: payment.Approved,
		payment.SeenWaiting: payment.Approved, payment.SeenAborted: payment.Declined, payment.SeenExpired: payment.Declined,
		payment.SeenReady: payment.Unknown, payment.SeenInProgress: payment.Unknown, payment.SeenUnknownStatus: payment.Unknown,
	}
	for sighting, want := range sightings {
		if got := heardPayment(sighting).Outcome(true); got != want {
			t.Errorf("a payment object that says %s: %s, want %s", sighting, got, want)
		}
	}
	words := []string{"unavailable", "declined", "unknown", "approved"}
	for i, o := range []payment.Outcome{payment.Unavailable, payment.Declined, payment.Unknown, payment.Approved} {
		if o.String() != words[i] {
			t.Errorf("outcome %d is called %s, want %s", i, o, words[i])
		}
	}
}

// concluded is what a test sees of a Conclusion.
type concluded struct {
	Verdict  payment.Verdict
	Sighting payment.Sighting
	Failure  payment.FailureCode
}

func outside(c payment.Conclusion) concluded {
	got := concluded{Verdict: c.Verdict, Sighting: c.Observation.Sighting}
	if c.Failure != nil {
		got.Failure = c.Failure.Code
	}
	return got
}

func TestConclude(t *testing.T) {
	t.Parallel()
	settles := func(s payment.Sighting) concluded { return concluded{Verdict: payment.VerdictSettle, Sighting: s} }
	notSent := func(f payment.FailureCode) concluded { return concluded{Verdict: payment.VerdictNotSent, Failure: f} }
	lookup := concluded{Verdict: payment.VerdictLookup}
	const none, before = false, true
	tests := []struct {
		name    string
		earlier bool
		tries   []payment.Answer
		want    concluded
	}{
		{"approved", none, []payment.Answer{heardPayment(payment.SeenDone)}, settles(payment.SeenDone)},
		{"approved after a time-out", none, []payment.Answer{heard(payment.KindTimeout), heardPayment(payment.SeenDone)}, settles(payment.SeenDone)},
		{"approved, then refused", none, []payment.Answer{heardPayment(payment.SeenDone), refusedBy(payment.RefusedByBreaker)}, settles(payment.SeenDone)},
		{"aborted, then approved", none, []payment.Answer{heardPayment(payment.SeenAborted), heardPayment(payment.SeenDone)}, settles(payment.SeenDone)},
		{"aborted after a reset", none, []payment.Answer{heard(payment.KindReset), heardPayment(payment.SeenAborted)}, settles(payment.SeenAborted)},
		{"expired, earlier unknown", before, []payment.Answer{heardPayment(payment.SeenExpired)}, settles(payment.SeenExpired)},
		{"account issued", none, []payment.Answer{heardPayment(payment.SeenWaiting)}, settles(payment.SeenWaiting)},
		{"still in progress", none, []payment.Answer{heardPayment(payment.SeenInProgress)}, lookup},
		{"declined", none, []payment.Answer{heard(payment.KindDeclined)}, settles(payment.SeenDeclined)},
		{"declined after a refused dial", none, []payment.Answer{heard(payment.KindNotConnected), heard(payment.KindDeclined)}, settles(payment.SeenDeclined)},
		{"declined after a reset", none, []payment.Answer{heard(payment.KindReset), heard(payment.KindDeclined)}, lookup},
		{"declined, earlier unknown", before, []payment.Answer{heard(payment.KindDeclined)}, lookup},
		{"declined, then rejected", none, []payment.Answer{heard(payment.KindDeclined), heard(payment.KindRejected)}, settles(payment.SeenDeclined)},
		{"rejected", none, []payment.Answer{heard(payment.KindRejected)}, lookup},
		{"session gone", none, []payment.Answer{heard(payment.KindSessionGone)}, lookup},
		{"time-out", none, []payment.Answer{heard(payment.KindTimeout)}, lookup},
		{"429 first", none, []payment.Answer{heard(payment.KindThrottled)}, notSent(payment.FailPGUnavailable)},
		{"429 to a later try", none, []payment.Answer{heard(payment.KindNotConnected), heard(payment.KindThrottled)}, lookup},
		{"429 first, earlier unknown", before, []payment.Answer{heard(payment.KindThrottled)}, lookup},
		{"misconfigured", none, []payment.Answer{heard(payment.KindMisconfigured)}, notSent(payment.FailMisconfigured)},
		{"misconfigured, then refused", none, []payment.Answer{heard(payment.KindMisconfigured), refusedBy(payment.RefusedByLimiter)}, notSent(payment.FailMisconfigured)},
		{"misconfigured after a reset", none, []payment.Answer{heard(payment.KindReset), heard(payment.KindMisconfigured)}, lookup},
		{"misconfigured, earlier unknown", before, []payment.Answer{heard(payment.KindMisconfigured)}, lookup},
		{"limiter", none, []payment.Answer{refusedBy(payment.RefusedByLimiter)}, notSent(payment.FailBusy)},
		{"bulkhead", none, []payment.Answer{refusedBy(payment.RefusedByBulkhead)}, notSent(payment.FailBusy)},
		{"breaker", none, []payment.Answer{refusedBy(payment.RefusedByBreaker)}, notSent(payment.FailPGUnavailable)},
		{"lease", none, []payment.Answer{refusedBy(payment.RefusedByLease)}, notSent(payment.FailPGUnavailable)},
		{"dial refused twice", none, []payment.Answer{heard(payment.KindNotConnected), heard(payment.KindNotConnected)}, notSent(payment.FailPGUnavailable)},
		{"dial refused, then limiter", none, []payment.Answer{heard(payment.KindNotConnected), refusedBy(payment.RefusedByLimiter)}, notSent(payment.FailPGUnavailable)},
		{"limiter, earlier unknown", before, []payment.Answer{refusedBy(payment.RefusedByLimiter)}, lookup},
		{"dial refused, earlier unknown", before, []payment.Answer{heard(payment.KindNotConnected)}, lookup},
		{"nothing heard at all", none, nil, lookup},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := payment.Conclude(test.tries, test.earlier)
			if diff := cmp.Diff(test.want, outside(c)); diff != "" {
				t.Errorf("conclusion (-want +got):\n%s", diff)
			}
		})
	}
}

// TestConcludeLaterRefusalDecidesNothing is trap 36: the connection broke (and Toss had approved), then the dial was
// refused. Read by the last error it is "unavailable", the order is let go and charged again.
func TestConcludeLaterRefusalDecidesNothing(t *testing.T) {
	t.Parallel()
	lasts := []payment.Answer{
		heard(payment.KindNotConnected), refusedBy(payment.RefusedByBreaker), refusedBy(payment.RefusedByLimiter),
		refusedBy(payment.RefusedByBulkhead), refusedBy(payment.RefusedByLease), heard(payment.KindThrottled),
		heard(payment.KindMisconfigured),
	}
	for _, last := range lasts {
		c := payment.Conclude([]payment.Answer{heard(payment.KindReset), last}, false)
		if c.Verdict != payment.VerdictLookup || c.Failure != nil {
			t.Fatalf("reset, then %s: %+v, want a lookup", last.Kind, c)
		}
		if c.Last.Kind != last.Kind {
			t.Errorf("last is %s, want %s", c.Last.Kind, last.Kind)
		}
		for _, open := range []payment.Answer{heard(payment.KindNotFound), heardPayment(payment.SeenReady), heard(payment.KindTimeout)} {
			if got := c.AfterLookup(open); got.Verdict != payment.VerdictUnknown {
				t.Errorf("reset, %s, lookup %s: %+v, want unknown", last.Kind, open.Kind, got)
			}
		}
		if got := c.AfterLookup(heardPayment(payment.SeenDone)); got.Verdict != payment.VerdictSettle || got.Observation.Sighting != payment.SeenDone {
			t.Errorf("reset, %s, lookup DONE: %+v, want settled", last.Kind, got)
		}
	}
}

func TestAfterLookup(t *testing.T) {
	t.Parallel()
	unknown := concluded{Verdict: payment.VerdictUnknown}
	settles := func(s payment.Sighting) concluded { return concluded{Verdict: payment.VerdictSettle, Sighting: s} }
	afterRejected, afterSession := settles(payment.SeenDeclined), settles(payment.SeenSessionGone)
	tests := []struct {
		name                         string
		lookup                       payment.Answer
		ambiguous, rejected, session concluded
	}{
		{"DONE", heardPayment(payment.SeenDone), settles(payment.SeenDone), settles(payment.SeenDone), settles(payment.SeenDone)},
		{"CANCELED", heardPayment(payment.SeenCanceled), settles(payment.SeenCanceled), settles(payment.SeenCanceled), settles(payment.SeenCanceled)},
		{"ABORTED", heardPayment(payment.SeenAborted), settles(payment.SeenAborted), settles(payment.SeenAborted), settles(payment.SeenAborted)},
		{"EXPIRED", heardPayment(payment.SeenExpired), settles(payment.SeenExpired), settles(payment.SeenExpired), settles(payment.SeenExpired)},
		{"WAITING_FOR_DEPOSIT", heardPayment(payment.SeenWaiting), settles(payment.SeenWaiting), settles(payment.SeenWaiting), settles(payment.SeenWaiting)},
		{"READY", heardPayment(payment.SeenReady), unknown, afterRejected, afterSession},
		{"IN_PROGRESS", heardPayment(payment.SeenInProgress), unknown, afterRejected, afterSession},
		{"not found", heard(payment.KindNotFound), unknown, afterRejected, afterSession},
		{"unknown word", heardPayment(payment.SeenUnknownStatus), unknown, unknown, unknown},
		{"time-out", heard(payment.KindTimeout), unknown, unknown, unknown},
		{"5xx", heard(payment.KindFault), unknown, unknown, unknown},
		{"429", heard(payment.KindThrottled), unknown, unknown, unknown},
		{"no lookup token", refusedBy(payment.RefusedByLimiter), unknown, unknown, unknown},
		{"misconfigured", heard(payment.KindMisconfigured), unknown, unknown, unknown},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			firsts := map[payment.Kind]concluded{
				payment.KindAmbiguous: test.ambiguous, payment.KindRejected: test.rejected, payment.KindSessionGone: test.session,
			}
			for kind, want := range firsts {
				c := payment.Conclude([]payment.Answer{heard(kind)}, false).AfterLookup(test.lookup)
				if diff := cmp.Diff(want, outside(c)); diff != "" {
					t.Errorf("after %s (-want +got):\n%s", kind, diff)
				}
				// With a try before, only Toss's final word settles.
				if want.Sighting == payment.SeenDeclined || want.Sighting == payment.SeenSessionGone {
					want = unknown
				}
				c = payment.Conclude([]payment.Answer{heard(kind)}, true).AfterLookup(test.lookup)
				if diff := cmp.Diff(want, outside(c)); diff != "" {
					t.Errorf("after %s, earlier unknown (-want +got):\n%s", kind, diff)
				}
			}
		})
	}
}

func TestDeclineKeepsTossWords(t *testing.T) {
	t.Parallel()
	want := payment.Observation{Sighting: payment.SeenDeclined, FailureCode: "CODE", FailureMessage: "text"}
	c := payment.Conclude([]payment.Answer{heard(payment.KindDeclined)}, false)
	if diff := cmp.Diff(want, c.Observation); diff != "" {
		t.Errorf("definite decline (-want +got):\n%s", diff)
	}
	c = payment.Conclude([]payment.Answer{heard(payment.KindRejected)}, false).AfterLookup(heard(payment.KindNotFound))
	if diff := cmp.Diff(want, c.Observation); diff != "" {
		t.Errorf("decline after a lookup (-want +got):\n%s", diff)
	}
}

func answerGen(t *rapid.T) payment.Answer {
	a := heard(rapid.SampledFrom(allKinds).Draw(t, "kind"))
	switch a.Kind {
	case payment.KindPayment:
		a.Observation = full(rapid.SampledFrom([]payment.Sighting{
			payment.SeenReady, payment.SeenInProgress, payment.SeenUnknownStatus, payment.SeenAborted, payment.SeenExpired, payment.SeenDone,
		}).Draw(t, "sighting"))
	case payment.KindRefused:
		a.Refuser = rapid.SampledFrom([]payment.Refuser{
			payment.RefusedByBreaker, payment.RefusedByLimiter, payment.RefusedByBulkhead, payment.RefusedByLease,
		}).Draw(t, "refuser")
	}
	return a
}

// TestConcludeProperties draws whole sequences, also such as the pipeline cannot make.
func TestConcludeProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tries := rapid.SliceOfN(rapid.Custom(answerGen), 1, 5).Draw(t, "tries")
		earlier := rapid.Bool().Draw(t, "earlier")
		shuffled := rapid.Permutation(tries).Draw(t, "shuffled")
		c, d := payment.Conclude(tries, earlier), payment.Conclude(shuffled, earlier)

		says := func(s ...payment.Sighting) bool {
			return slices.ContainsFunc(tries, func(a payment.Answer) bool {
				return a.Kind == payment.KindPayment && slices.Contains(s, a.Observation.Sighting)
			})
		}
		approved, over := says(payment.SeenDone), says(payment.SeenAborted, payment.SeenExpired)
		unknown := earlier || says(payment.SeenReady, payment.SeenInProgress, payment.SeenUnknownStatus) ||
			slices.ContainsFunc(tries, func(a payment.Answer) bool { return slices.Contains(unknownKinds, a.Kind) })
		switch {
		case approved:
			for _, got := range []payment.Conclusion{c, d} {
				if got.Verdict != payment.VerdictSettle || got.Observation.Sighting != payment.SeenDone {
					t.Fatalf("an approval was heard: %+v", got)
				}
			}
		case over:
			if c.Verdict != payment.VerdictSettle || c.Observation.Sighting == payment.SeenDeclined {
				t.Fatalf("the end of the payment was heard: %+v", c)
			}
		case unknown:
			if c.Verdict != payment.VerdictLookup || d.Verdict != payment.VerdictLookup || c.Failure != nil {
				t.Fatalf("an unknown try: %+v, shuffled %+v", c, d)
			}
			open := heardPayment(payment.SeenReady)
			if got := c.AfterLookup(open); got.Verdict != payment.VerdictUnknown {
				t.Fatalf("an unknown try and an open payment: %+v", got)
			}
		case c.Verdict == payment.VerdictUnknown:
			t.Fatal("Conclude gave up without a lookup")
		}
		if c.Verdict == payment.VerdictNotSent && (c.Failure == nil || !c.Failure.Reopens()) {
			t.Fatalf("not sent, but not to be reopened: %+v", c.Failure)
		}
	})
}
