package breaker_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"paymentd/breaker"
)

// model is the breaker as its documentation describes it, as plainly as can be: no generations, no
// slots, no timers. Every call remembers the period (time between two transitions) it began in.
type model struct {
	window, min, num, den, k int // opens at num/den
	openFor, maxTrial        time.Duration

	now       time.Duration
	state     breaker.State
	period    int
	history   []bool // results of this closed period, newest last
	openUntil time.Duration
	callerAt  time.Duration // last trial that is not background, else when half-open began
	trials    []*modelCall  // all admitted trials of this half-open period that were not given back
	totals    breaker.Totals
	moves     []string
}

type modelCall struct {
	period     int
	began      time.Duration
	trial      bool
	background bool
	gone       bool // lease taken back
	ended      bool
	failed     bool
}

func (m *model) move(to breaker.State) {
	m.moves = append(m.moves, fmt.Sprintf("%v>%v", m.state, to))
	m.state = to
	m.period++
	m.trials = nil
	switch to {
	case breaker.Closed:
		m.history = nil
	case breaker.Open:
		m.openUntil = m.now + m.openFor
	case breaker.HalfOpen:
		m.callerAt = m.now
	}
}

func (m *model) seen() (calls, failures int) {
	recent := m.history[max(0, len(m.history)-m.window):]
	for _, failed := range recent {
		if failed {
			failures++
		}
	}
	return len(recent), failures
}

func (m *model) sleep(d time.Duration) {
	m.now += d
	if m.state == breaker.Open && m.now >= m.openUntil {
		m.move(breaker.HalfOpen)
		m.callerAt = m.openUntil
	}
	kept := m.trials[:0:0]
	for _, call := range m.trials {
		if !call.ended && m.now >= call.began+m.maxTrial {
			call.gone = true
			m.totals.Expired++
			continue
		}
		kept = append(kept, call)
	}
	m.trials = kept
}

// start returns nil if the call is refused.
func (m *model) start(background bool) *modelCall {
	call := &modelCall{period: m.period, began: m.now, background: background}
	switch m.state {
	case breaker.Closed:
		return call
	case breaker.HalfOpen:
		call.trial = true
		others, running := 0, 0
		for _, trial := range m.trials {
			if trial.background {
				others++
				if !trial.ended {
					running++
				}
			}
		}
		left := m.k - len(m.trials)
		refused := background && (others > 0 || left == 1 && m.k > 1)
		if background && m.now >= m.callerAt+m.openFor {
			refused = running > 0
		}
		if left > 0 && !refused {
			m.trials = append(m.trials, call)
			if !background {
				m.callerAt = m.now
			}
			return call
		}
	}
	m.totals.Refused++
	return nil
}

func (m *model) end(call *modelCall, outcome breaker.Outcome) {
	switch {
	case call.gone || call.period != m.period:
		m.totals.Dropped++
	case outcome == breaker.Ignored:
		m.totals.Ignored++
		for i, trial := range m.trials {
			if trial == call {
				m.trials = append(m.trials[:i:i], m.trials[i+1:]...)
				break
			}
		}
	default:
		call.ended, call.failed = true, outcome == breaker.Failure
		if call.failed {
			m.totals.Failures++
		} else {
			m.totals.Successes++
		}
		m.decide(call)
	}
}

func (m *model) decide(call *modelCall) {
	if !call.trial {
		m.history = append(m.history, call.failed)
		if calls, failures := m.seen(); calls >= m.min && failures*m.den >= m.num*calls {
			m.move(breaker.Open)
		}
		return
	}
	t := m.snapshot().Trials
	if t.Failed*m.den >= m.num*m.k {
		m.move(breaker.Open)
	} else if t.Ended == m.k {
		m.move(breaker.Closed)
	}
}

func (m *model) snapshot() breaker.Snapshot {
	s := breaker.Snapshot{State: m.state, Window: m.window, Totals: m.totals}
	s.Calls, s.Failures = m.seen()
	if m.state == breaker.Open {
		s.HalfOpenIn = m.openUntil - m.now
	}
	s.Trials.Allowed = m.k
	for _, call := range m.trials {
		s.Trials.Admitted++
		switch {
		case !call.ended:
			s.Trials.Running++
		case call.failed:
			s.Trials.Failed++
			fallthrough
		default:
			s.Trials.Ended++
		}
	}
	return s
}

// step is one thing that happens; n chooses among what is possible.
type step struct {
	kind string
	n    int
}

func steps() *rapid.Generator[[]step] {
	// Kinds that stand more than once are more frequent.
	kinds := []string{"call", "call", "call", "background", "success", "success", "failure", "failure", "failure",
		"ignored", "panic", "sleep", "sleep", "peek", "force", "release", "release"}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{kind: rapid.SampledFrom(kinds).Draw(t, "kind"), n: rapid.IntRange(0, 11).Draw(t, "n")}
	}), 1, 150)
}

// TestModel plays random histories on the breaker, through failsafe-go, and on the model.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		rate := rapid.SampledFrom([][2]int{{1, 100}, {1, 4}, {1, 3}, {1, 2}, {3, 5}, {2, 3}, {1, 1}}).Draw(r, "rate")
		m := &model{
			window: rapid.IntRange(1, 8).Draw(r, "window"), num: rate[0], den: rate[1],
			k:        rapid.IntRange(1, 5).Draw(r, "trials"),
			openFor:  time.Duration(rapid.IntRange(1, 6).Draw(r, "open")) * time.Second,
			maxTrial: time.Duration(rapid.IntRange(1, 6).Draw(r, "lease")) * time.Second,
		}
		m.min = rapid.IntRange(1, m.window).Draw(r, "min")
		history := steps().Draw(r, "steps")
		var problem error
		synctest.Test(t, func(t *testing.T) { problem = play(t, m, history) })
		if problem != nil {
			r.Fatal(problem)
		}
	})
}

type running struct {
	real  *hanging
	model *modelCall
}

func play(t *testing.T, m *model, history []step) (problem error) {
	b := newBench(t, breaker.Config[string]{
		Window: m.window, MinCalls: m.min, FailureRate: float64(m.num) / float64(m.den),
		OpenFor: m.openFor, HalfOpenCalls: m.k, MaxTrial: m.maxTrial,
	})
	defer b.Stop()
	var calls []running
	defer func() {
		for _, call := range calls { // the bubble must end empty
			_ = call.real.finish(nil)
		}
	}()
	for i, s := range history {
		if calls, problem = one(t, b, m, calls, s); problem != nil {
			return fmt.Errorf("step %d, %s: %w", i, s.kind, problem)
		}
		if s.kind == "sleep" { // what the timer alone did, before anybody asks
			synctest.Wait()
			if diff := cmp.Diff(m.moves, b.heard()); diff != "" {
				return fmt.Errorf("step %d, transitions after sleep (-model +breaker):\n%s", i, diff)
			}
		}
		got := b.Snapshot()
		if got.Trials.Admitted > m.k {
			return fmt.Errorf("step %d: %d trials admitted of %d", i, got.Trials.Admitted, m.k)
		}
		if diff := cmp.Diff(m.snapshot(), got); diff != "" {
			return fmt.Errorf("step %d, %s (-model +breaker):\n%s", i, s.kind, diff)
		}
		if diff := cmp.Diff(m.moves, b.heard()); diff != "" {
			return fmt.Errorf("step %d, transitions (-model +breaker):\n%s", i, diff)
		}
	}
	return nil
}

func one(t *testing.T, b *bench, m *model, calls []running, s step) ([]running, error) {
	switch s.kind {
	case "call", "background":
		ctx := t.Context()
		if s.kind == "background" {
			ctx = breaker.Background(ctx)
		}
		peek := b.Peek()
		real, expected := b.hang(ctx), m.start(s.kind == "background")
		if real.refused() != (expected == nil) {
			return calls, fmt.Errorf("refused %v, model %v", real.refused(), expected == nil)
		}
		if s.kind == "call" && (peek != nil) != real.refused() {
			return calls, fmt.Errorf("peek said %v, refused %v", peek, real.refused())
		}
		if expected != nil {
			calls = append(calls, running{real, expected})
		}
	case "success", "failure", "ignored", "panic":
		if len(calls) == 0 {
			return calls, nil
		}
		i := s.n % len(calls)
		call := calls[i]
		calls = append(calls[:i:i], calls[i+1:]...)
		outcome := map[string]breaker.Outcome{"success": breaker.Success, "failure": breaker.Failure}[s.kind]
		err := map[string]error{"failure": errSick, "ignored": refusal{}, "panic": errPanic}[s.kind]
		if got := call.real.finish(err); !errors.Is(got, err) {
			return calls, fmt.Errorf("call returned %v, want %v", got, err)
		}
		m.end(call.model, outcome)
	case "sleep":
		d := time.Duration(s.n) * time.Second / 2 // meets deadlines exactly
		time.Sleep(d)
		m.sleep(d)
	case "peek":
		got, ok := errors.AsType[*breaker.OpenError](b.Peek())
		if ok && (got.State != m.state || got.RetryAfter != m.snapshot().HalfOpenIn) {
			return calls, fmt.Errorf("peek said %+v", got)
		}
	case "force":
		if s.n > 2 { // seldom, or nothing else would happen
			return calls, nil
		}
		b.ForceOpen()
		if m.state != breaker.ForcedOpen {
			m.move(breaker.ForcedOpen)
		}
	case "release":
		b.Release()
		if m.state == breaker.ForcedOpen {
			m.move(breaker.HalfOpen)
		}
	}
	return calls, nil
}
