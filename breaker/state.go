package breaker

import (
	"errors"
	"fmt"
	"time"
)

// State is what a [Breaker] currently does with calls. Its String is fit for a metric label.
type State uint8

// The four states.
const (
	// Closed admits every call and counts its result.
	Closed State = iota
	// Open refuses every call until OpenFor is over.
	Open
	// HalfOpen admits HalfOpenCalls trials and decides by them.
	HalfOpen
	// ForcedOpen refuses every call until an operator releases it.
	ForcedOpen
)

// States lists every state, for callers that register one metric series each in advance.
func States() []State { return []State{Closed, Open, HalfOpen, ForcedOpen} }

// String returns closed, open, half_open or forced_open.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	case HalfOpen:
		return "half_open"
	case ForcedOpen:
		return "forced_open"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Outcome is how a call ended. The zero value is Ignored, so that forgetting to say counts nothing.
type Outcome uint8

// The three outcomes.
const (
	// Ignored says nothing about the dependency: the permit comes back, nothing is counted.
	Ignored Outcome = iota
	// Success says that the dependency is well.
	Success
	// Failure says that the dependency is sick.
	Failure
)

// String returns ignored, success or failure.
func (o Outcome) String() string {
	switch o {
	case Success:
		return "success"
	case Failure:
		return "failure"
	default:
		return "ignored"
	}
}

func (o Outcome) result() Result {
	switch o {
	case Success:
		return ResultSuccess
	case Failure:
		return ResultFailure
	default:
		return ResultIgnored
	}
}

// Result is what became of a call at the breaker. Its String is fit for a metric label.
type Result uint8

// The five results. Each call that asks for a permit and ends has exactly one.
const (
	// ResultSuccess was counted as a success.
	ResultSuccess Result = iota
	// ResultFailure was counted as a failure.
	ResultFailure
	// ResultIgnored ended as [Ignored] in the generation that admitted it.
	ResultIgnored
	// ResultDropped came from an earlier generation or after MaxTrial, whatever its outcome.
	ResultDropped
	// ResultRefused got no permit.
	ResultRefused
)

// Results lists every result, for callers that register one metric series each in advance.
func Results() []Result {
	return []Result{ResultSuccess, ResultFailure, ResultIgnored, ResultDropped, ResultRefused}
}

// String returns success, failure, ignored, dropped or refused.
func (r Result) String() string {
	switch r {
	case ResultSuccess:
		return "success"
	case ResultFailure:
		return "failure"
	case ResultIgnored:
		return "ignored"
	case ResultDropped:
		return "dropped"
	case ResultRefused:
		return "refused"
	}
	return fmt.Sprintf("Result(%d)", uint8(r))
}

// ErrOpen matches every refusal: errors.Is(err, ErrOpen) is true for any [OpenError].
var ErrOpen = errors.New("circuit breaker open")

// OpenError is a refusal: the call was not made.
type OpenError struct {
	// State is the state that refused: Open, HalfOpen or ForcedOpen.
	State State
	// RetryAfter is how long the breaker stays open. It is 0 where nobody can know: half-open with
	// no trial left, and forced open.
	RetryAfter time.Duration
}

// Error names the state and, while open, the time that is left.
func (e *OpenError) Error() string {
	switch e.State {
	case HalfOpen:
		return "circuit breaker half-open: no trial left"
	case ForcedOpen:
		return "circuit breaker forced open"
	default:
		return fmt.Sprintf("circuit breaker open for another %v", e.RetryAfter)
	}
}

// Is makes every refusal match [ErrOpen].
func (e *OpenError) Is(target error) bool { return target == ErrOpen }

// Ignored is true: a refusal says nothing about the dependency, so no other breaker counts it.
func (e *OpenError) Ignored() bool { return true }
