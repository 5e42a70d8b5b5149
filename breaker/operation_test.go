package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
)

func TestHalfOpenComesByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		b.calls(5, errSick)
		time.Sleep(10*time.Second - 1)
		synctest.Wait()
		wantMoves(t, b, "closed>open")
		if got := b.Snapshot().HalfOpenIn; got != 1 {
			t.Errorf("time to half-open = %v, want 1ns", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		// The listener is asked first: State would move the breaker by itself.
		wantMoves(t, b, "closed>open", "open>half_open")
		wantState(t, b, breaker.HalfOpen)
	})
}

func TestPeekTakesNoPermit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		config := standard()
		config.HalfOpenCalls = 1
		b := newBench(t, config)
		if err := b.Peek(); err != nil {
			t.Errorf("closed: %v", err)
		}
		b.calls(5, errSick)
		time.Sleep(3 * time.Second)
		want := &breaker.OpenError{State: breaker.Open, RetryAfter: 7 * time.Second}
		if diff := cmp.Diff(error(want), b.Peek()); diff != "" {
			t.Errorf("open (-want +got):\n%s", diff)
		}
		time.Sleep(7 * time.Second)
		for range 10 {
			if err := b.Peek(); err != nil {
				t.Fatalf("half-open: %v", err)
			}
		}
		trial := b.hang(t.Context())
		if diff := cmp.Diff(error(&breaker.OpenError{State: breaker.HalfOpen}), b.Peek()); diff != "" {
			t.Errorf("trial out (-want +got):\n%s", diff)
		}
		trial.finish(nil)
		if refused := b.Snapshot().Totals.Refused; refused != 0 {
			t.Errorf("Peek counted %d refusals", refused)
		}
	})
}

func TestHungTrialLosesItsLease(t *testing.T) {
	t.Parallel()
	for _, late := range []error{nil, errSick, refusal{}} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := standard()
				config.HalfOpenCalls = 1
				b := newBench(t, config)
				b.calls(5, errSick)
				time.Sleep(10 * time.Second)
				hung := b.hang(t.Context())
				time.Sleep(time.Minute - 1)
				if err := b.Peek(); !errors.Is(err, breaker.ErrOpen) {
					t.Fatalf("taken back too early: %v", err)
				}
				time.Sleep(time.Nanosecond)
				if err := b.Peek(); err != nil {
					t.Fatalf("never taken back: %v", err)
				}
				second := b.hang(t.Context())
				hung.finish(late)
				wantState(t, b, breaker.HalfOpen)
				want := breaker.Snapshot{
					State: breaker.HalfOpen, Window: 10, Calls: 5, Failures: 5,
					Trials: breaker.Trials{Allowed: 1, Admitted: 1, Running: 1},
					Totals: breaker.Totals{Failures: 5, Dropped: 1, Expired: 1},
				}
				if diff := cmp.Diff(want, b.Snapshot()); diff != "" {
					t.Errorf("snapshot (-want +got):\n%s", diff)
				}
				second.finish(nil)
				wantState(t, b, breaker.Closed)
			})
		})
	}

	t.Run("late although nobody asked meanwhile", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, standard())
			b.calls(5, errSick)
			time.Sleep(10 * time.Second)
			hung := b.hang(t.Context())
			time.Sleep(time.Minute)
			hung.finish(errSick)
			if got := b.Snapshot(); got.Totals.Dropped != 1 || got.Trials.Ended != 0 {
				t.Errorf("a late result was counted: %+v", got)
			}
		})
	})
}

// halfOpen is a bench that has just become half-open with so many trials.
func halfOpen(t *testing.T, trials int) *bench {
	t.Helper()
	config := standard()
	config.HalfOpenCalls = trials
	b := newBench(t, config)
	b.calls(5, errSick)
	if h := b.hang(breaker.Background(t.Context())); !h.refused() {
		t.Fatal("admitted while open")
	}
	time.Sleep(10 * time.Second)
	return b
}

func TestBackground(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		trials int
		play   func(t *testing.T, b *bench, background context.Context)
	}{
		{"one of three", 3, func(t *testing.T, b *bench, background context.Context) {
			job := b.hang(background)
			if second := b.hang(background); job.refused() || !second.refused() {
				t.Fatal("want the first admitted, the second refused")
			}
			if err := b.Peek(); err != nil {
				t.Errorf("buyers have two trials left: %v", err)
			}
			job.finish(refusal{}) // unused: another one may
			job = b.hang(background)
			job.finish(nil) // used up for this generation
			if h := b.hang(background); !h.refused() {
				t.Fatal("a second background trial was counted")
			}
			b.calls(2, nil)
			wantState(t, b, breaker.Closed)
		}},
		{"never the last of three", 3, func(t *testing.T, b *bench, background context.Context) {
			first, second := b.hang(t.Context()), b.hang(t.Context())
			if h := b.hang(background); !h.refused() {
				t.Fatal("background took the last trial")
			}
			last := b.hang(t.Context())
			for _, h := range []*hanging{first, second, last} {
				h.finish(nil)
			}
			wantState(t, b, breaker.Closed)
		}},
		{"a hung one does not block the next", 3, func(t *testing.T, b *bench, background context.Context) {
			job := b.hang(background)
			time.Sleep(time.Minute) // its lease is over
			again := b.hang(background)
			if again.refused() {
				t.Fatal("refused")
			}
			job.finish(nil)
			again.finish(nil)
		}},
		{"one of an earlier generation does not block", 3, func(t *testing.T, b *bench, background context.Context) {
			job := b.hang(background)
			b.calls(2, errSick) // open again while it runs
			time.Sleep(10 * time.Second)
			next := b.hang(background)
			if next.refused() {
				t.Fatal("refused")
			}
			next.finish(nil)
			job.finish(nil)
		}},
		{"alone for OpenFor it gets the rest, one at a time", 3, func(t *testing.T, b *bench, background context.Context) {
			b.hang(background).finish(nil)
			time.Sleep(10*time.Second - time.Nanosecond)
			if h := b.hang(background); !h.refused() {
				t.Fatal("admitted before OpenFor was over")
			}
			time.Sleep(time.Nanosecond)
			second := b.hang(background)
			if h := b.hang(background); second.refused() || !h.refused() {
				t.Fatal("want one more at a time")
			}
			second.finish(nil)
			b.hang(background).finish(nil)
			wantState(t, b, breaker.Closed)
		}},
		{"a buyer's trial begins its wait anew", 3, func(t *testing.T, b *bench, background context.Context) {
			b.hang(background).finish(nil)
			time.Sleep(9 * time.Second)
			b.hang(t.Context()).finish(nil)
			time.Sleep(9 * time.Second)
			if h := b.hang(background); !h.refused() {
				t.Fatal("admitted while buyers come")
			}
			time.Sleep(time.Second)
			b.hang(background).finish(nil)
			wantState(t, b, breaker.Closed)
		}},
		// Else an idle service would never close.
		{"the only trial is open to it", 1, func(t *testing.T, b *bench, background context.Context) {
			job := b.hang(background)
			if job.refused() {
				t.Fatal("refused")
			}
			job.finish(nil)
			wantState(t, b, breaker.Closed)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tt.play(t, halfOpen(t, tt.trials), breaker.Background(t.Context()))
			})
		})
	}
}

func TestForcedOpen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		running := b.hang(t.Context())
		b.Release() // nothing to release
		b.ForceOpen()
		b.ForceOpen()
		time.Sleep(time.Hour)
		wantState(t, b, breaker.ForcedOpen)
		err := b.calls(1, nil)
		if diff := cmp.Diff(error(&breaker.OpenError{State: breaker.ForcedOpen}), err); diff != "" {
			t.Errorf("refusal (-want +got):\n%s", diff)
		}
		running.finish(errSick)
		b.Release()
		wantState(t, b, breaker.HalfOpen)
		b.calls(3, nil)
		wantMoves(t, b, "closed>forced_open", "forced_open>half_open", "half_open>closed")

		b.calls(5, errSick)
		time.Sleep(5 * time.Second)
		b.ForceOpen() // the timer of open must not undo it
		time.Sleep(time.Minute)
		wantState(t, b, breaker.ForcedOpen)
		if got := b.Snapshot().Totals.Dropped; got != 1 {
			t.Errorf("dropped = %d, want the call from before the operator's hand", got)
		}
	})
}

func TestPermit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		permit, err := b.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		permit.Done(breaker.Failure)
		permit.Done(breaker.Failure)
		permit.Done(breaker.Success)
		if got := b.Snapshot(); got.Calls != 1 || got.Failures != 1 {
			t.Errorf("Done is not idempotent: %+v", got)
		}
		b.calls(4, errSick)
		if permit, err := b.Acquire(t.Context()); permit != nil || !errors.Is(err, breaker.ErrOpen) {
			t.Errorf("open: %v, %v", permit, err)
		}
		time.Sleep(10 * time.Second)
		for range 3 {
			permit, err := b.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			permit.Done(breaker.Success)
			permit.Done(breaker.Failure)
		}
		wantState(t, b, breaker.Closed)
	})
}

func TestDo(t *testing.T) {
	t.Parallel()
	b := newBench(t, standard())
	defer b.Stop()
	got, err := b.Do(t.Context(), func() (string, error) { return "paid", nil })
	if got != "paid" || err != nil {
		t.Errorf("Do = %q, %v", got, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = b.Do(t.Context(), func() (string, error) { panic("parser") })
	}()
	for range 4 {
		_, err = b.Do(t.Context(), func() (string, error) { return "", errSick })
	}
	if _, refused := b.Do(t.Context(), func() (string, error) { return "", nil }); err != errSick || !errors.Is(refused, breaker.ErrOpen) {
		t.Errorf("Do = %v, then %v", err, refused)
	}
	if diff := cmp.Diff(breaker.Totals{Successes: 1, Failures: 4, Ignored: 1, Refused: 1}, b.Snapshot().Totals); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
}
