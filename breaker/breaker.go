package breaker

import (
	"context"
	"errors"
	"time"

	"github.com/failsafe-go/failsafe-go"
)

// Breaker is a circuit breaker for calls that return R. Make one with [New]; it is safe for
// concurrent use. It is a [failsafe.Policy] and can be composed with others in any order.
type Breaker[R any] struct {
	core      core
	isFailure func(R, error) bool
	isIgnored func(R, error) bool
	executor  *executor[R]
}

var _ failsafe.ResultAgnosticPolicy[any] = (*Breaker[any])(nil)

// New makes a closed breaker. It refuses contradictory settings with one error that names all of
// them, and never panics.
func New[R any](config Config[R]) (*Breaker[R], error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	b := &Breaker[R]{
		core: core{
			minCalls:     config.MinCalls,
			failureRate:  config.FailureRate,
			openFor:      config.OpenFor,
			maxTrial:     config.MaxTrial,
			onTransition: config.OnTransition,
			onResult:     config.OnResult,
			state:        Closed,
			generation:   1,
			stamps:       1,
			window:       newWindow(config.Window),
			trials:       newTrials(config.HalfOpenCalls),
		},
		isFailure: config.IsFailure,
		isIgnored: config.IsIgnored,
	}
	b.core.closed.Store(1)
	b.executor = newExecutor(b)
	return b, nil
}

// Do makes the call if a permit is to be had, without a failsafe-go executor around it. It returns
// what the call returned, or an [OpenError]. ctx is only asked whether it is [Background].
func (b *Breaker[R]) Do(ctx context.Context, call func() (R, error)) (R, error) {
	p, refusal := b.core.admit(ctx)
	if refusal != nil {
		return *new(R), refusal
	}
	outcome := Ignored // stands if the call panics
	defer func() { b.core.finish(p, outcome) }()
	result, err := call()
	outcome = b.Classify(result, err)
	return result, err
}

// Acquire takes a permit for a caller that makes the call itself, or returns an [OpenError]. The
// permit must be ended with [Permit.Done]. ctx is only asked whether it is [Background].
func (b *Breaker[R]) Acquire(ctx context.Context) (*Permit, error) {
	p, refusal := b.core.admit(ctx)
	if refusal != nil {
		return nil, refusal
	}
	return &Permit{core: &b.core, pass: p}, nil
}

// Peek says whether a call would be refused now: nil or an [OpenError]. It takes no permit and
// counts nothing, so a call right after it may still be refused.
func (b *Breaker[R]) Peek() error {
	if b.core.closed.Load() != 0 {
		return nil
	}
	var refusal *OpenError
	b.core.look(func(now time.Time) { refusal = b.core.refusal(false, now) })
	if refusal != nil {
		return refusal
	}
	return nil
}

// State returns the current state; half-open shows as soon as OpenFor is over.
func (b *Breaker[R]) State() State {
	if b.core.closed.Load() != 0 {
		return Closed
	}
	var state State
	b.core.look(func(time.Time) { state = b.core.state })
	return state
}

// Snapshot returns everything about the breaker at this moment.
func (b *Breaker[R]) Snapshot() Snapshot { return b.core.snapshot() }

// ForceOpen refuses every call until [Breaker.Release]. Results of calls that are under way will be
// dropped. It does nothing if the breaker is forced open already.
func (b *Breaker[R]) ForceOpen() {
	b.core.look(func(now time.Time) {
		if b.core.state != ForcedOpen {
			b.core.move(ForcedOpen, now)
		}
	})
}

// Release ends [Breaker.ForceOpen] and goes to half-open. It does nothing in any other state.
func (b *Breaker[R]) Release() {
	b.core.look(func(now time.Time) {
		if b.core.state == ForcedOpen {
			b.core.move(HalfOpen, now)
		}
	})
}

// Stop ends the timer that makes half-open come by itself, for a breaker that is no longer needed.
// Without Stop an open breaker stays in memory until OpenFor is over, not longer. A stopped breaker
// still works; it then becomes half-open when somebody asks.
func (b *Breaker[R]) Stop() {
	b.core.mu.Lock()
	defer b.core.mu.Unlock()
	b.core.stopped = true
	if b.core.timer != nil {
		b.core.timer.Stop()
		b.core.timer = nil
	}
}

// Classify says how the breaker counts what a call returned: [Ignored] if an error in the chain or
// Config.IsIgnored says so, else what Config.IsFailure says.
func (b *Breaker[R]) Classify(result R, err error) Outcome {
	failed := err != nil
	if failed {
		if i, ok := errors.AsType[ignorable](err); ok && i.Ignored() {
			return Ignored
		}
	}
	if b.isIgnored != nil && b.isIgnored(result, err) {
		return Ignored
	}
	if b.isFailure != nil {
		failed = b.isFailure(result, err)
	}
	if failed {
		return Failure
	}
	return Success
}

// ignorable is an error that can say that it tells nothing about the dependency.
type ignorable interface {
	error
	Ignored() bool
}
