package breaker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
)

// The tests here are named after things that go wrong with failsafe-go's own circuit breaker. Each
// shows first that it does ("theirs"), then that this one does not ("ours").

// theirCall hangs in a call through failsafe-go's breaker until told how to end.
func theirCall(exec failsafe.Executor[string]) *hanging {
	h := &hanging{end: make(chan error), done: make(chan error, 1)}
	go func() {
		_, err := exec.Get(func() (string, error) { return "", <-h.end })
		h.done <- err
	}()
	synctest.Wait()
	return h
}

func fail(exec failsafe.Executor[string], n int, err error) {
	for range n {
		_, _ = exec.Get(func() (string, error) { return "", err })
	}
}

func TestTrap3_UnhandledCountsAsSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		theirs := circuitbreaker.NewBuilder[string]().
			HandleIf(func(_ string, err error) bool { return err != nil && !errors.Is(err, context.Canceled) }).
			WithFailureThreshold(5).WithSuccessThreshold(2).WithDelay(10 * time.Second).Build()
		exec := failsafe.With[string](theirs)
		fail(exec, 5, errSick)
		time.Sleep(10 * time.Second)
		fail(exec, 2, context.Canceled)
		if theirs.State() != circuitbreaker.ClosedState {
			t.Fatal("the trap is gone: two cancellations no longer close theirs")
		}

		config := standard()
		config.HalfOpenCalls = 2
		config.IsIgnored = func(_ string, err error) bool { return errors.Is(err, context.Canceled) }
		b := newBench(t, config)
		b.calls(5, errSick)
		time.Sleep(10 * time.Second)
		b.calls(2, context.Canceled)
		wantState(t, b, breaker.HalfOpen)
		b.calls(2, nil)
		wantState(t, b, breaker.Closed)
	})
}

func TestTrap3_OurOwnRefusalsCountAsFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// breaker(bulkhead(call)), one slot, a healthy gateway with one slow call and a burst of 10.
		burst := func(policy failsafe.Policy[string]) {
			exec := failsafe.With(policy, bulkhead.New[string](1))
			slow := theirCall(exec)
			fail(exec, 10, nil)
			slow.finish(nil)
		}
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThresholdRatio(5, 10).Build()
		burst(theirs)
		if theirs.State() != circuitbreaker.OpenState {
			t.Fatal("the trap is gone: a full bulkhead no longer opens theirs")
		}

		config := standard()
		config.IsIgnored = func(_ string, err error) bool { return errors.Is(err, bulkhead.ErrFull) }
		b := newBench(t, config)
		burst(b.Breaker)
		want := breaker.Totals{Successes: 1, Ignored: 10}
		if diff := cmp.Diff(want, b.Snapshot().Totals); diff != "" || b.State() != breaker.Closed {
			t.Errorf("%v, totals (-want +got):\n%s", b.State(), diff)
		}

		b = newBench(t, standard())
		b.calls(100, refusal{}) // an error that says itself that it is a refusal needs no list
		wantState(t, b, breaker.Closed)
	})
}

func TestTrap4_NoMinimumOfCallsWithACountWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// 50 % of at least 10 calls, window 20: 6 of the first 10 fail.
		script := []error{nil, errSick, nil, errSick, nil, errSick, nil, errSick, errSick, errSick}
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThresholdRatio(10, 20).Build()
		config := standard()
		config.Window, config.MinCalls = 20, 10
		b := newBench(t, config)
		for i, err := range script {
			if got := b.State(); got != breaker.Closed {
				t.Fatalf("%v after %d calls, below the minimum", got, i)
			}
			fail(failsafe.With[string](theirs), 1, err)
			b.calls(1, err)
		}
		if theirs.State() != circuitbreaker.ClosedState {
			t.Fatal("the trap is gone: theirs opened at 60 % of 10 calls")
		}
		wantState(t, b, breaker.Open)
	})

	panicked := func() (p any) {
		defer func() { p = recover() }()
		circuitbreaker.NewBuilder[string]().WithFailureRateThreshold(50, 10, time.Minute)
		return nil
	}()
	if panicked == nil {
		t.Fatal("the trap is gone: theirs takes a rate of 50 without a panic")
	}
	config := standard()
	config.FailureRate = 50
	if _, err := breaker.New(config); err == nil {
		t.Error("a rate of 50 was accepted")
	}
}

func TestTrap5_PanicLeaksHalfOpenPermits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		panics := func(exec failsafe.Executor[string], n int) {
			for range n {
				func() {
					defer func() { _ = recover() }() // as net/http does around a handler
					_, _ = exec.Get(func() (string, error) { panic("bad parser") })
				}()
			}
		}
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThreshold(5).WithSuccessThreshold(2).WithDelay(10 * time.Second).Build()
		exec := failsafe.With[string](theirs)
		fail(exec, 5, errSick)
		time.Sleep(10 * time.Second)
		panics(exec, 2)
		time.Sleep(24 * time.Hour)
		if _, err := exec.Get(func() (string, error) { return "well again", nil }); !errors.Is(err, circuitbreaker.ErrOpen) {
			t.Fatal("the trap is gone: theirs recovers from panics")
		}

		b := newBench(t, standard())
		b.calls(5, errSick)
		time.Sleep(10 * time.Second)
		panics(b.exec, 100)
		b.calls(3, nil)
		wantState(t, b, breaker.Closed)
	})
}

func TestTrap6_ResultsOfAnEarlierGeneration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Five calls are under way, the gateway dies, the only probe hangs; then the five come back.
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThreshold(5).WithSuccessThreshold(3).WithDelay(10 * time.Second).Build()
		exec := failsafe.With[string](theirs)
		var early []*hanging
		for range 5 {
			early = append(early, theirCall(exec))
		}
		fail(exec, 5, errSick)
		time.Sleep(10 * time.Second)
		probe := theirCall(exec)
		for _, call := range early {
			call.finish(nil)
		}
		if theirs.State() != circuitbreaker.ClosedState {
			t.Fatal("the trap is gone: calls from before the outage no longer close theirs")
		}
		probe.finish(errSick)

		b := newBench(t, standard())
		early = nil
		for range 5 {
			early = append(early, b.hang(t.Context()))
		}
		b.calls(5, errSick)
		time.Sleep(10 * time.Second)
		probe = b.hang(t.Context())
		for _, call := range early {
			call.finish(nil)
		}
		wantState(t, b, breaker.HalfOpen)
		if got := b.Snapshot(); got.Totals.Dropped != 5 || b.results["dropped"] != 5 || got.Trials.Ended != 0 {
			t.Errorf("want 5 dropped and counted: %+v, %v", got, b.results)
		}
		probe.finish(errSick)
		b.calls(1, errSick)
		wantState(t, b, breaker.Open)
	})
}

func TestTrap6_FailuresOfAnEarlierGenerationDoNotOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		var early []*hanging
		for range 8 {
			early = append(early, b.hang(t.Context()))
		}
		b.calls(5, errSick)
		time.Sleep(10 * time.Second)
		b.calls(3, nil) // closed again
		for _, call := range early {
			call.finish(errSick)
		}
		wantState(t, b, breaker.Closed)
		if got := b.Snapshot(); got.Calls != 0 || got.Totals.Dropped != 8 {
			t.Errorf("old failures entered the new window: %+v", got)
		}
	})
}

func TestTrap7_StateSaysOpenUntilSomebodyAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThreshold(5).WithDelay(10 * time.Second).Build()
		fail(failsafe.With[string](theirs), 5, errSick)
		b := newBench(t, standard())
		b.calls(5, errSick)
		time.Sleep(time.Hour)
		synctest.Wait()
		if theirs.State() != circuitbreaker.OpenState {
			t.Fatal("the trap is gone: theirs becomes half-open by itself")
		}
		wantMoves(t, b, "closed>open", "open>half_open")
		wantState(t, b, breaker.HalfOpen)
	})
}

func TestTrap28_HalfOpenTrialsAreCustomers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// 100 buyers come while the gateway is still down: how many have to fail?
		failed := func(exec failsafe.Executor[string]) (n int) {
			time.Sleep(10 * time.Second)
			for range 100 {
				_, _ = exec.Get(func() (string, error) { n++; return "", errSick })
			}
			return n
		}
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThresholdRatio(10, 20).WithDelay(10 * time.Second).Build()
		exec := failsafe.With[string](theirs)
		fail(exec, 10, errSick)
		if n := failed(exec); n != 10 {
			t.Fatalf("the trap is gone: theirs spends %d buyers on the way back to open", n)
		}
		b := newBench(t, standard())
		b.calls(5, errSick)
		if n := failed(b.exec); n != 2 {
			t.Errorf("%d buyers failed, want 2: after 2 of 3 the rate must reach 50 %%", n)
		}
		wantState(t, b, breaker.Open)
	})
}

func TestTrap28_HungTrialBlocksForever(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThreshold(5).WithSuccessThreshold(1).WithDelay(10 * time.Second).Build()
		exec := failsafe.With[string](theirs)
		fail(exec, 5, errSick)
		time.Sleep(10 * time.Second)
		hung := theirCall(exec)
		time.Sleep(24 * time.Hour)
		if _, err := exec.Get(func() (string, error) { return "", nil }); !errors.Is(err, circuitbreaker.ErrOpen) {
			t.Fatal("the trap is gone: theirs takes permits of hung trials back")
		}
		hung.finish(nil)

		b := newBench(t, standard())
		b.calls(5, errSick)
		time.Sleep(10 * time.Second)
		trials := []*hanging{b.hang(t.Context()), b.hang(t.Context()), b.hang(t.Context())}
		time.Sleep(time.Minute)
		b.calls(3, nil)
		wantState(t, b, breaker.Closed)
		for _, trial := range trials {
			trial.finish(errSick)
		}
		wantState(t, b, breaker.Closed)
	})
}
