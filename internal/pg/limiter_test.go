package pg

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"paymentd/internal/payment"
)

// TestTrap8_Limiter: of many at once the burst and what fits into the wait get through, everybody else is told on
// arrival, and no window sees more than burst + rate·t.
func TestTrap8_Limiter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(50, 5)
		var mu sync.Mutex
		var passed []time.Duration
		refused := 0
		start := time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				before := time.Now()
				end := l.take(t.Context(), time.Second)
				mu.Lock()
				defer mu.Unlock()
				if end == nil {
					passed = append(passed, time.Since(start))
					return
				}
				refused++
				if time.Since(before) != 0 || end.answer.Refuser != payment.RefusedByLimiter || end.answer.RetryAfter <= 0 {
					t.Errorf("refused after %v: %+v", time.Since(before), end.answer)
				}
			})
		}
		wg.Wait()
		if len(passed) != 55 || refused != 45 {
			t.Errorf("%d passed and %d refused, want 5 + 50 and 45", len(passed), refused)
		}
		checkWindows(t, passed, 50, 5)
		if last := slices.Max(passed); last > time.Second {
			t.Errorf("somebody waited %v", last)
		}
	})
}

// TestTrap8_GivingUp: a waiter who gives up does not keep the token.
func TestTrap8_GivingUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1, 1)
		if l.take(t.Context(), 0) != nil {
			t.Fatal("a full bucket refused")
		}
		wait := func(ctx context.Context, limit time.Duration) <-chan time.Duration {
			done := make(chan time.Duration, 1)
			start := time.Now()
			go func() {
				if l.take(ctx, limit) == nil {
					done <- time.Since(start)
					return
				}
				done <- -1
			}()
			synctest.Wait()
			return done
		}
		leaving, leave := context.WithCancel(t.Context())
		first := wait(leaving, time.Minute)
		second := wait(leaving, time.Minute)
		third := wait(t.Context(), time.Minute)
		if d := <-wait(t.Context(), 3*time.Second); d != -1 {
			t.Errorf("the fourth got through after %v", d)
		}
		time.Sleep(500 * time.Millisecond)
		leave()
		if <-first != -1 || <-second != -1 {
			t.Error("who left got through")
		}
		if d := <-third; d < time.Second || d > time.Second+time.Millisecond {
			t.Errorf("the third waited %v, want the first token", d)
		}
	})
}

// TestLimiterAnyWindow drives it with random arrivals and departures.
func TestLimiterAnyWindow(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 1))
			l := newLimiter(7, 3)
			var mu sync.Mutex
			var passed []time.Duration
			start := time.Now()
			var wg sync.WaitGroup
			for range 200 {
				time.Sleep(time.Duration(dice.Int64N(int64(200 * time.Millisecond))))
				patience := time.Duration(dice.Int64N(int64(2 * time.Second)))
				limit := time.Duration(dice.Int64N(int64(2 * time.Second)))
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					before := time.Now()
					end := l.take(ctx, limit)
					if time.Since(before) > limit+time.Millisecond {
						t.Errorf("seed %d: waited %v, at most %v was allowed", seed, time.Since(before), limit)
					}
					if end == nil {
						mu.Lock()
						passed = append(passed, time.Since(start))
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			if len(passed) < 50 {
				t.Errorf("seed %d: only %d passed", seed, len(passed))
			}
			checkWindows(t, passed, 7, 3)
		})
	}
}

func checkWindows(t *testing.T, passed []time.Duration, perSecond float64, burst int) {
	t.Helper()
	slices.Sort(passed)
	for i := range passed {
		for j := i; j < len(passed); j++ {
			window := (passed[j] - passed[i]).Seconds()
			if n := j - i + 1; float64(n) > float64(burst)+perSecond*window+1e-3 {
				t.Fatalf("%d within %.3f s", n, window)
			}
		}
	}
}

func TestNoLimiter(t *testing.T) {
	t.Parallel()
	if l := newLimiter(0, 0); l.take(t.Context(), 0) != nil {
		t.Error("off, but it refused")
	}
}

// TestTrap41_SpareTokens: webhooks leave half of the bucket, and all of it while somebody waits.
func TestTrap41_SpareTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(10, 10)
		for n := 1; l.spare() == nil; n++ {
			if n > 5 {
				t.Fatalf("%d of 10 tokens taken", n)
			}
		}
		if end := l.spare(); end.answer.Refuser != payment.RefusedByLimiter || end.answer.RetryAfter != 100*time.Millisecond {
			t.Errorf("refused with %+v", end.answer)
		}
		for n := range 5 {
			if l.take(t.Context(), 0) != nil {
				t.Fatalf("the other half has %d tokens", n)
			}
		}
		go func() { _ = l.take(t.Context(), time.Minute) }()
		synctest.Wait()
		if l.spare() == nil {
			t.Error("passed somebody who waits")
		}
		time.Sleep(2 * time.Second)
		if l.spare() != nil || (*limiter)(nil).spare() != nil {
			t.Error("a full bucket refused")
		}
		if one := newLimiter(1, 1); one.spare() != nil {
			t.Error("a bucket of one token gives none")
		}
	})
}
