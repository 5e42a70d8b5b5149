package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
)

func TestNew(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*breaker.Config[string])
		want   []string // empty: accepted
	}{
		{"standard", func(*breaker.Config[string]) {}, nil},
		{"everything 1", func(c *breaker.Config[string]) { c.Window, c.MinCalls, c.HalfOpenCalls, c.FailureRate = 1, 1, 1, 1 }, nil},
		{"window 0", func(c *breaker.Config[string]) { c.Window, c.MinCalls = 0, 0 }, []string{"Window", "MinCalls"}},
		{"window negative", func(c *breaker.Config[string]) { c.Window = -1 }, []string{"Window", "MinCalls"}},
		{"window without end", func(c *breaker.Config[string]) { c.Window = math.MaxInt }, []string{"Window"}},
		{"minimum above window", func(c *breaker.Config[string]) { c.MinCalls = 11 }, []string{"MinCalls 11 is more than Window 10"}},
		{"minimum 0", func(c *breaker.Config[string]) { c.MinCalls = 0 }, []string{"MinCalls"}},
		{"rate 0", func(c *breaker.Config[string]) { c.FailureRate = 0 }, []string{"FailureRate"}},
		{"rate 50", func(c *breaker.Config[string]) { c.FailureRate = 50 }, []string{"FailureRate"}},
		{"rate NaN", func(c *breaker.Config[string]) { c.FailureRate = math.NaN() }, []string{"FailureRate"}},
		{"no open time", func(c *breaker.Config[string]) { c.OpenFor = 0 }, []string{"OpenFor"}},
		{"no trials", func(c *breaker.Config[string]) { c.HalfOpenCalls = 0 }, []string{"HalfOpenCalls"}},
		{"trials without end", func(c *breaker.Config[string]) { c.HalfOpenCalls = math.MaxInt }, []string{"HalfOpenCalls"}},
		{"no lease", func(c *breaker.Config[string]) { c.MaxTrial = -time.Second }, []string{"MaxTrial"}},
		{"nothing given", func(c *breaker.Config[string]) { *c = breaker.Config[string]{} },
			[]string{"Window", "MinCalls", "FailureRate", "OpenFor", "HalfOpenCalls", "MaxTrial"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			config := standard()
			tt.change(&config)
			b, err := breaker.New(config)
			if (err == nil) != (len(tt.want) == 0) || (b == nil) != (err != nil) {
				t.Fatalf("New = %v, %v", b, err)
			}
			for _, word := range tt.want {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("error %q does not name %q", err, word)
				}
			}
		})
	}
}

func TestOpening(t *testing.T) {
	t.Parallel()
	const ok, ko, skip = 's', 'f', 'i'
	tests := []struct {
		name           string
		window, min    int
		rate           float64
		before, opener string // stays closed after before, opens with the last of opener
	}{
		{"exactly the minimum of failed calls", 10, 5, 0.5, "ffff", "f"},
		{"healthy traffic before: 5 of the last 10", 10, 5, 0.5, "ssssssssssssssffff", "f"},
		{"a success completes the minimum", 10, 5, 0.5, "ffff", "s"},
		{"rate exactly reached", 5, 5, 0.6, "ssff", "f"},
		{"a third", 3, 3, 1.0 / 3, "ss", "f"},
		{"4 of 10 stays closed, 5 of 10 opens", 10, 10, 0.5, "sfsfsfsfss", "f"},
		{"rate 1 needs all of them", 4, 2, 1, "sfff", "f"},
		{"ignored calls neither count nor fill", 10, 5, 0.5, "iiiiiiiiiiffffiiii", "f"},
		{"old failures leave the window", 4, 4, 0.75, "ffssffss", "fff"},
		{"window 1", 1, 1, 1, "sss", "f"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			config := standard()
			config.Window, config.MinCalls, config.FailureRate = tt.window, tt.min, tt.rate
			b := newBench(t, config)
			defer b.Stop()
			letters := map[rune]error{ok: nil, ko: errSick, skip: refusal{}}
			for i, letter := range tt.before + tt.opener {
				if got := b.State(); got != breaker.Closed {
					t.Fatalf("%v after %d calls of %s+%s", got, i, tt.before, tt.opener)
				}
				b.calls(1, letters[letter])
			}
			wantState(t, b, breaker.Open)
		})
	}
}

func TestLifeCycle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		b.calls(10, nil)
		b.calls(5, errSick)
		wantState(t, b, breaker.Open)

		time.Sleep(4 * time.Second)
		err := b.calls(1, nil)
		want := &breaker.OpenError{State: breaker.Open, RetryAfter: 6 * time.Second}
		got, _ := errors.AsType[*breaker.OpenError](err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("refusal (-want +got):\n%s", diff)
		}
		if !errors.Is(err, breaker.ErrOpen) || !got.Ignored() {
			t.Errorf("%v must be ErrOpen and ignored", err)
		}

		time.Sleep(6 * time.Second) // the gateway is still down
		b.calls(2, errSick)
		wantState(t, b, breaker.Open)
		time.Sleep(10 * time.Second)
		b.calls(3, nil)
		wantState(t, b, breaker.Closed)
		wantMoves(t, b, "closed>open", "open>half_open", "half_open>open", "open>half_open", "half_open>closed")

		wantSnapshot := breaker.Snapshot{
			State: breaker.Closed, Window: 10, Trials: breaker.Trials{Allowed: 3},
			Totals: breaker.Totals{Successes: 13, Failures: 7, Refused: 1},
		}
		if diff := cmp.Diff(wantSnapshot, b.Snapshot()); diff != "" {
			t.Errorf("snapshot: the window begins empty (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]int{"success": 13, "failure": 7, "refused": 1}, b.results); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
}

func TestHalfOpen(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		trials int
		rate   float64
		script string // outcomes in order
		want   breaker.State
	}{
		{"2 of 3 at 50 %", 3, 0.5, "ff", breaker.Open},
		{"1 of 3 at 50 % is not certain", 3, 0.5, "f", breaker.HalfOpen},
		{"1 of 3 at 50 %, all ended", 3, 0.5, "fss", breaker.Closed},
		{"the last one decides for open", 3, 0.5, "fsf", breaker.Open},
		{"two good ones do not close", 3, 0.5, "ss", breaker.HalfOpen},
		{"1 of 2 at 50 %", 2, 0.5, "f", breaker.Open},
		{"1 of 1", 1, 0.5, "f", breaker.Open},
		{"single good trial", 1, 0.5, "s", breaker.Closed},
		{"rate 1 with one good trial cannot open", 3, 1, "sff", breaker.Closed},
		{"ignored trials decide nothing", 3, 0.5, "iiiiiiii", breaker.HalfOpen},
		{"ignored trials leave room for K others", 3, 0.5, "isisis", breaker.Closed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				config := standard()
				config.HalfOpenCalls, config.FailureRate = tt.trials, tt.rate
				b := newBench(t, config)
				b.calls(5, errSick)
				time.Sleep(10 * time.Second)
				for _, letter := range tt.script {
					b.calls(1, map[rune]error{'s': nil, 'f': errSick, 'i': refusal{}}[letter])
				}
				wantState(t, b, tt.want)
			})
		})
	}
}

func TestHalfOpenAdmitsNoMoreThanK(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		b.calls(5, errSick)
		time.Sleep(10 * time.Second)
		var trials []*hanging
		for range 3 {
			trials = append(trials, b.hang(t.Context()))
		}
		err := b.calls(1, nil)
		if got, _ := errors.AsType[*breaker.OpenError](err); got == nil || got.State != breaker.HalfOpen || got.RetryAfter != 0 {
			t.Fatalf("fourth trial: %v", err)
		}
		trials[0].finish(nil)
		if err := b.calls(1, nil); !errors.Is(err, breaker.ErrOpen) {
			t.Fatalf("an ended trial made room for a fourth: %v", err)
		}
		trials[1].finish(nil)
		wantState(t, b, breaker.HalfOpen)
		trials[2].finish(nil)
		wantState(t, b, breaker.Closed)
	})
}

func TestPermitComesBack(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		end  func() error
	}{
		{"ignored", func() error { return refusal{} }},
		{"ignored deep in the chain", func() error { return fmt.Errorf("confirm: %w", errors.Join(errSick, refusal{})) }},
		{"refused by an inner breaker", func() error { return fmt.Errorf("inner: %w", &breaker.OpenError{}) }},
		{"panic", func() error { panic("parser") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, standard())
				b.calls(5, errSick)
				time.Sleep(10 * time.Second)
				for range 10 {
					func() {
						defer func() {
							if p := recover(); p != nil && p != "parser" {
								t.Errorf("the panic changed: %v", p)
							}
						}()
						_, _ = b.exec.Get(func() (string, error) { return "", tt.end() })
					}()
				}
				got := b.Snapshot()
				if got.Trials != (breaker.Trials{Allowed: 3}) || got.Totals.Ignored != 10 {
					t.Errorf("permits leak: %+v", got)
				}
				b.calls(3, nil)
				wantState(t, b, breaker.Closed)
			})
		})
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	config := standard()
	config.IsIgnored = func(result string, _ error) bool { return result == "429" }
	config.IsFailure = func(result string, err error) bool {
		return result == "500" || err != nil && !errors.Is(err, context.Canceled)
	}
	b := newBench(t, config)
	tests := []struct {
		name   string
		result string
		err    error
		want   breaker.Outcome
	}{
		{"result", "200", nil, breaker.Success},
		{"result that is a failure", "500", nil, breaker.Failure},
		{"result that is ignored", "429", nil, breaker.Ignored},
		{"error", "", errSick, breaker.Failure},
		{"error that the user calls well", "", context.Canceled, breaker.Success},
		{"ignored goes before failure", "500", refusal{}, breaker.Ignored},
		{"refusal that takes it back", "", &refusedNot{}, breaker.Failure},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := b.Classify(tt.result, tt.err); got != tt.want {
				t.Errorf("Classify = %v, want %v", got, tt.want)
			}
		})
	}
}

type refusedNot struct{}

func (*refusedNot) Error() string { return "says Ignored() == false" }
func (*refusedNot) Ignored() bool { return false }

func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		ctx, cancel := context.WithCancel(t.Context())
		call := b.hang(ctx)
		cancel()
		synctest.Wait()
		if err := call.finish(nil); err != nil {
			t.Errorf("the breaker threw an answer away: %v", err)
		}
		call = b.hang(ctx)
		_ = call.finish(context.Canceled)
		want := breaker.Totals{Successes: 1, Failures: 1} // what was returned decides, not the context
		if diff := cmp.Diff(want, b.Snapshot().Totals); diff != "" {
			t.Errorf("totals (-want +got):\n%s", diff)
		}
	})
}
