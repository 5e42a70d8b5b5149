package payment

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
	var decline, final, last Answer
	worst := Unavailable
	for i, a := range tries {
		last = a
		out := a.Outcome(i == 0 && !earlier)
		switch {
		case out == Approved:
			return Conclusion{Verdict: VerdictSettle, Observation: a.Observation, Last: a}
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
	c := Conclusion{Last: last}
	switch {
	case final.Kind != "":
		c.Verdict, c.Observation = VerdictSettle, final.Observation
	case worst == Unknown:
		c.Verdict = VerdictLookup
	case worst == Declined && decline.Kind == KindDeclined:
		c.Verdict, c.Observation = VerdictSettle, declined(decline)
	case worst == Declined:
		c.Verdict, c.fallback = VerdictLookup, declined(decline)
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
