package breaker

import (
	"errors"
	"fmt"
	"time"
)

// maxSize bounds Window and HalfOpenCalls, whose memory is taken in New.
const maxSize = 1 << 20

// Config says when a [Breaker] opens and closes. Only the functions are optional: a number that is
// not given is a mistake, because no default fits every dependency.
type Config[R any] struct {
	// Window is how many results the closed breaker remembers, 1 to 1,048,576.
	Window int
	// MinCalls is how many results must be in the window before it may open, 1 to Window.
	MinCalls int
	// FailureRate is the share of failures, in (0, 1], at which it opens.
	FailureRate float64
	// OpenFor is how long it refuses before it becomes half-open, more than 0.
	OpenFor time.Duration
	// HalfOpenCalls is how many trials decide between closed and open, 1 to 1,048,576.
	HalfOpenCalls int
	// MaxTrial is how long a half-open trial may keep its permit, more than 0. Choose it longer than
	// the longest honest call: the result of a trial that takes longer is dropped.
	MaxTrial time.Duration

	// IsIgnored says whether what a call returned tells nothing about the dependency, for errors that
	// cannot say Ignored() themselves, such as those of failsafe-go's own bulkhead and rate limiter.
	// nil means: nothing more is ignored.
	IsIgnored func(result R, err error) bool
	// IsFailure says whether what a call returned is a failure of the dependency. nil means: any
	// error is. It is not asked about what is ignored.
	IsFailure func(result R, err error) bool
	// OnTransition hears every change of state, in order, one call at a time, outside the breaker's
	// lock: it may call the breaker. It may hear of a change shortly after another goroutine saw it.
	OnTransition func(from, to State)
	// OnResult hears what became of every call, outside the breaker's lock and concurrently. It
	// stands on the call's path, so it must be quick.
	OnResult func(Result)
}

// validate reports every contradiction at once and names the field.
func (c Config[R]) validate() error {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("breaker: "+format, args...))
	}
	if c.Window < 1 || c.Window > maxSize {
		refuse("Window is %d, must be 1 to %d", c.Window, maxSize)
	}
	if c.MinCalls < 1 {
		refuse("MinCalls is %d, must be at least 1", c.MinCalls)
	}
	if c.MinCalls > c.Window {
		refuse("MinCalls %d is more than Window %d: it could never open", c.MinCalls, c.Window)
	}
	// Written so that NaN is refused too.
	if !(c.FailureRate > 0 && c.FailureRate <= 1) {
		refuse("FailureRate is %v, must be above 0 and at most 1", c.FailureRate)
	}
	if c.OpenFor <= 0 {
		refuse("OpenFor is %v, must be above 0", c.OpenFor)
	}
	if c.HalfOpenCalls < 1 || c.HalfOpenCalls > maxSize {
		refuse("HalfOpenCalls is %d, must be 1 to %d", c.HalfOpenCalls, maxSize)
	}
	if c.MaxTrial <= 0 {
		refuse("MaxTrial is %v, must be above 0", c.MaxTrial)
	}
	return errors.Join(problems...)
}
