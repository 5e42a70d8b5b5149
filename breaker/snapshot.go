package breaker

import "time"

// Snapshot is everything about a [Breaker] at one moment.
type Snapshot struct {
	// State is the state at that moment, half-open by time included.
	State State
	// Window is the size of the window, Calls how many results are in it and Failures how many of
	// them failed. They are kept while open, half-open and forced open: they show why it opened.
	Window, Calls, Failures int
	// HalfOpenIn is the time to half-open; 0 unless State is Open.
	HalfOpenIn time.Duration
	// Trials are those of the current half-open generation; all but Allowed are 0 in other states.
	Trials Trials
	// Totals count since New.
	Totals Totals
}

// Trials are the permits of a half-open generation.
type Trials struct {
	// Allowed is HalfOpenCalls.
	Allowed int
	// Admitted is how many permits are out or used up: Running + Ended, never more than Allowed.
	Admitted int
	// Running is how many trials have not ended.
	Running int
	// Ended is how many trials ended as success or failure.
	Ended int
	// Failed is how many of the ended ones failed.
	Failed int
}

// Totals count calls since New by their [Result], and leases that were taken back.
type Totals struct {
	Successes, Failures, Ignored, Dropped, Refused uint64
	// Expired is how many trials lost their permit after MaxTrial. Their results, if they ever
	// come, are among Dropped.
	Expired uint64
}

func (t *Totals) count(r Result) {
	switch r {
	case ResultSuccess:
		t.Successes++
	case ResultFailure:
		t.Failures++
	case ResultIgnored:
		t.Ignored++
	case ResultDropped:
		t.Dropped++
	case ResultRefused:
		t.Refused++
	}
}

func (c *core) snapshot() (s Snapshot) {
	c.look(func(now time.Time) {
		s = Snapshot{
			State:    c.state,
			Window:   len(c.window.failed),
			Calls:    c.window.calls,
			Failures: c.window.failures,
			Trials: Trials{
				Allowed:  len(c.trials.slots),
				Admitted: c.trials.running + c.trials.ended,
				Running:  c.trials.running,
				Ended:    c.trials.ended,
				Failed:   c.trials.failures,
			},
			Totals: c.totals,
		}
		if c.state == Open {
			s.HalfOpenIn = c.openUntil.Sub(now)
		}
	})
	return s
}
