package breaker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// core is the state machine. It knows nothing of result types and of failsafe-go.
type core struct {
	minCalls     int
	failureRate  float64
	openFor      time.Duration
	maxTrial     time.Duration
	onTransition func(from, to State)
	onResult     func(Result)

	// closed is the generation while closed and 0 otherwise: admission then takes no lock.
	closed atomic.Uint64

	mu         sync.Mutex
	state      State
	generation uint64
	stamps     uint64 // last number given to a generation or a trial; none is given twice
	openUntil  time.Time
	timer      *time.Timer
	stopped    bool
	window     window
	trials     trials
	totals     Totals
	pending    []transition
	delivering bool
}

type transition struct{ from, to State }

// pass is a permit as the hot path carries it: the generation that admitted a call, or the stamp of
// a trial and its slot.
type pass struct {
	stamp uint64
	slot  int
}

const noSlot = -1

// admit gives a pass or says why not.
func (c *core) admit(ctx context.Context) (pass, *OpenError) {
	if generation := c.closed.Load(); generation != 0 {
		return pass{stamp: generation, slot: noSlot}, nil
	}
	background := isBackground(ctx)
	c.mu.Lock()
	p, refusal := c.admitLocked(background, time.Now())
	if refusal != nil {
		c.totals.count(ResultRefused)
	}
	changed := len(c.pending) > 0
	c.mu.Unlock()

	if refusal != nil && c.onResult != nil {
		c.onResult(ResultRefused)
	}
	if changed {
		c.deliver()
	}
	return p, refusal
}

func (c *core) admitLocked(background bool, now time.Time) (pass, *OpenError) {
	if refusal := c.refusal(background, now); refusal != nil {
		return pass{}, refusal
	}
	if c.state == Closed {
		return pass{stamp: c.generation, slot: noSlot}, nil
	}
	c.stamps++
	slot := c.trials.admit(lease{stamp: c.stamps, until: now.Add(c.maxTrial), background: background}, now)
	return pass{stamp: c.stamps, slot: slot}, nil
}

// refusal says whether a call would be refused now; it takes no permit.
func (c *core) refusal(background bool, now time.Time) *OpenError {
	c.advance(now)
	switch c.state {
	case Closed: // admits everybody
	case Open:
		return &OpenError{State: Open, RetryAfter: c.openUntil.Sub(now)}
	case ForcedOpen:
		return &OpenError{State: ForcedOpen}
	case HalfOpen:
		if !c.trials.available(background, now, c.openFor) {
			return &OpenError{State: HalfOpen}
		}
	}
	return nil
}

// finish ends a pass with what its call came to.
func (c *core) finish(p pass, outcome Outcome) {
	c.mu.Lock()
	var result Result
	if p.slot == noSlot {
		result = c.finishCall(p, outcome)
	} else {
		result = c.finishTrial(p, outcome, time.Now())
	}
	c.totals.count(result)
	changed := len(c.pending) > 0
	c.mu.Unlock()

	if c.onResult != nil {
		c.onResult(result)
	}
	if changed {
		c.deliver()
	}
}

// finishCall counts the result of a call that a closed breaker admitted.
func (c *core) finishCall(p pass, outcome Outcome) Result {
	if p.stamp != c.generation {
		return ResultDropped
	}
	if outcome.result() == ResultIgnored {
		return ResultIgnored
	}
	c.window.add(outcome == Failure)
	if c.window.calls >= c.minCalls && reaches(c.failureRate, c.window.failures, c.window.calls) {
		c.move(Open, time.Now())
	}
	return outcome.result()
}

// finishTrial counts the result of a half-open trial.
func (c *core) finishTrial(p pass, outcome Outcome, now time.Time) Result {
	c.advance(now)
	trial, ours := c.trials.release(p.slot, p.stamp)
	if !ours {
		return ResultDropped
	}
	if outcome.result() == ResultIgnored {
		c.trials.giveBack(trial)
		return ResultIgnored
	}
	c.trials.ended++
	if outcome == Failure {
		c.trials.failures++
	}
	count := len(c.trials.slots)
	switch {
	case reaches(c.failureRate, c.trials.failures, count):
		c.move(Open, now)
	case c.trials.ended == count:
		c.move(Closed, now)
	}
	return outcome.result()
}

// advance does what time alone brings: half-open after OpenFor, leases back after MaxTrial.
func (c *core) advance(now time.Time) {
	switch c.state {
	case Open:
		if !now.Before(c.openUntil) {
			c.move(HalfOpen, now)
		}
	case HalfOpen:
		c.totals.Expired += c.trials.expire(now)
	case Closed, ForcedOpen: // only a result or a hand ends them
	}
}

// move changes the state and begins a new generation.
func (c *core) move(to State, now time.Time) {
	if c.onTransition != nil {
		c.pending = append(c.pending, transition{from: c.state, to: to})
	}
	c.stamps++
	c.state, c.generation = to, c.stamps
	c.trials.reset(now)
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	c.closed.Store(0)
	switch to {
	case Closed:
		c.window.reset()
		c.closed.Store(c.generation)
	case Open:
		c.openUntil = now.Add(c.openFor)
		c.arm()
	case HalfOpen, ForcedOpen: // the trials are reset already
	}
}

// arm makes half-open come by itself.
func (c *core) arm() {
	if c.stopped {
		return
	}
	generation := c.generation
	c.timer = time.AfterFunc(c.openFor, func() { c.wake(generation) })
}

func (c *core) wake(generation uint64) {
	c.mu.Lock()
	if c.generation == generation { // else somebody was faster
		c.move(HalfOpen, time.Now())
	}
	changed := len(c.pending) > 0
	c.mu.Unlock()
	if changed {
		c.deliver()
	}
}

// look runs f under the lock after time has had its say.
func (c *core) look(f func(now time.Time)) {
	c.mu.Lock()
	now := time.Now()
	c.advance(now)
	f(now)
	changed := len(c.pending) > 0
	c.mu.Unlock()
	if changed {
		c.deliver()
	}
}

// deliver tells the listener of transitions in their order. One goroutine at a time does it; what
// others add meanwhile is delivered by the same one.
func (c *core) deliver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.delivering {
		return
	}
	c.delivering = true
	defer func() { c.delivering = false }()
	for len(c.pending) > 0 {
		next := c.pending[0]
		c.pending = c.pending[1:]
		c.tell(next)
	}
	c.pending = nil
}

func (c *core) tell(t transition) {
	c.mu.Unlock()
	defer c.mu.Lock()
	c.onTransition(t.from, t.to)
}
