// Package bench compares breakers that do nothing but admit and count. It is a module of its own, so
// that what it compares with stays out of paymentd's go.mod.
package bench

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/sony/gobreaker/v2"

	"paymentd/breaker"
)

const (
	window   = 20
	minCalls = 10
	rate     = 0.5
	trials   = 3
	openFor  = time.Hour
)

var errSick = errors.New("gateway sick")

func ours(b *testing.B) *breaker.Breaker[int] {
	b.Helper()
	made, err := breaker.New(breaker.Config[int]{
		Window: window, MinCalls: minCalls, FailureRate: rate,
		OpenFor: openFor, HalfOpenCalls: trials, MaxTrial: time.Minute,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(made.Stop)
	return made
}

func failsafes() circuitbreaker.CircuitBreaker[int] {
	return circuitbreaker.NewBuilder[int]().
		WithFailureThresholdRatio(minCalls, window).WithSuccessThreshold(trials).WithDelay(openFor).Build()
}

func sonys() *gobreaker.CircuitBreaker[int] {
	return gobreaker.NewCircuitBreaker[int](gobreaker.Settings{
		MaxRequests: trials, Timeout: openFor,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.Requests >= minCalls && float64(c.TotalFailures) >= rate*float64(c.Requests)
		},
	})
}

// sequence is one call in five failing, so that rings turn and nothing opens.
func sequence() func() (int, error) {
	n := 0
	return func() (int, error) {
		if n++; n%5 == 0 {
			return 0, errSick
		}
		return n, nil
	}
}

// mustBeClosed fails a benchmark that has measured refusals by mistake.
func mustBeClosed(b *testing.B, closed bool) {
	b.Helper()
	if !closed {
		b.Fatal("the breaker opened during the benchmark")
	}
}

// each runs a new copy of the call in one goroutine and in 64 per processor.
func each(b *testing.B, make func() func()) {
	b.Run("1", func(b *testing.B) {
		call := make()
		b.ReportAllocs()
		for b.Loop() {
			call()
		}
	})
	b.Run("many", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(64)
		b.RunParallel(func(pb *testing.PB) {
			call := make()
			for pb.Next() {
				call()
			}
		})
	})
}

// BenchmarkExecutor is a call through failsafe-go's executor with one policy.
func BenchmarkExecutor(b *testing.B) {
	through := func(b *testing.B, policies ...failsafe.Policy[int]) {
		exec := failsafe.With(policies...)
		each(b, func() func() {
			call := sequence()
			return func() { _, _ = exec.Get(call) }
		})
	}
	b.Run("none", func(b *testing.B) { through(b) })
	b.Run("ours", func(b *testing.B) {
		policy := ours(b)
		through(b, policy)
		mustBeClosed(b, policy.State() == breaker.Closed)
	})
	b.Run("failsafe", func(b *testing.B) {
		policy := failsafes()
		through(b, policy)
		mustBeClosed(b, policy.IsClosed())
	})
}

// BenchmarkDirect is a call without an executor.
func BenchmarkDirect(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		policy, ctx := ours(b), context.Background()
		each(b, func() func() {
			call := sequence()
			return func() { _, _ = policy.Do(ctx, call) }
		})
		mustBeClosed(b, policy.State() == breaker.Closed)
	})
	b.Run("failsafe", func(b *testing.B) {
		policy := failsafes()
		each(b, func() func() {
			call := sequence()
			return func() {
				if !policy.TryAcquirePermit() {
					return
				}
				if _, err := call(); err != nil {
					policy.RecordError(err)
				} else {
					policy.RecordSuccess()
				}
			}
		})
		mustBeClosed(b, policy.IsClosed())
	})
	b.Run("gobreaker", func(b *testing.B) {
		policy := sonys()
		each(b, func() func() {
			call := sequence()
			return func() { _, _ = policy.Execute(call) }
		})
		mustBeClosed(b, policy.State() == gobreaker.StateClosed)
	})
}

// BenchmarkOpen is a refusal by an open breaker, without an executor.
func BenchmarkOpen(b *testing.B) {
	sick := func() (int, error) { return 0, errSick }
	b.Run("ours", func(b *testing.B) {
		policy, ctx := ours(b), context.Background()
		for policy.State() == breaker.Closed {
			_, _ = policy.Do(ctx, sick)
		}
		each(b, func() func() { return func() { _, _ = policy.Do(ctx, sick) } })
	})
	b.Run("failsafe", func(b *testing.B) {
		policy := failsafes()
		policy.Open()
		each(b, func() func() { return func() { _ = policy.TryAcquirePermit() } })
	})
	b.Run("gobreaker", func(b *testing.B) {
		policy := sonys()
		for policy.State() != gobreaker.StateOpen {
			_, _ = policy.Execute(sick)
		}
		each(b, func() func() { return func() { _, _ = policy.Execute(sick) } })
	})
}
