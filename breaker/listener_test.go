package breaker_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
)

func TestListenerMayUseTheBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b *breaker.Breaker[string]
		var heard []string
		config := standard()
		config.OnTransition = func(from, to breaker.State) {
			heard = append(heard, fmt.Sprintf("%v>%v", from, to))
			if to == breaker.Open {
				b.ForceOpen() // a transition inside: told afterwards, not in between
				heard = append(heard, "now "+b.State().String())
			}
		}
		b, err := breaker.New(config)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			_, _ = b.Do(t.Context(), func() (string, error) { return "", errSick })
		}
		want := []string{"closed>open", "now forced_open", "open>forced_open"}
		if diff := cmp.Diff(want, heard); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
	})
}

func TestPanickingListenerDoesNotBlock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told := 0
		config := standard()
		config.OnTransition = func(_, to breaker.State) {
			told++
			if to == breaker.ForcedOpen {
				panic("listener")
			}
		}
		b, err := breaker.New(config)
		if err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() { _ = recover() }()
			b.ForceOpen()
		}()
		b.Release()
		if told != 2 || b.State() != breaker.HalfOpen {
			t.Errorf("told %d times, state %v", told, b.State())
		}
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, standard())
		b.calls(5, errSick)
		b.Stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		wantMoves(t, b, "closed>open")
		wantState(t, b, breaker.HalfOpen) // it still works for those who ask
		b.calls(2, errSick)
		time.Sleep(time.Hour)
		synctest.Wait()
		wantMoves(t, b, "closed>open", "open>half_open", "half_open>open")
	})
}

func TestNothingHoldsABreaker(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		last func(*breaker.Breaker[string])
	}{
		{"stopped while open", (*breaker.Breaker[string]).Stop},
		{"forced open while open", (*breaker.Breaker[string]).ForceOpen},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			config := standard()
			config.OpenFor = time.Hour
			pointer := func() weak.Pointer[breaker.Breaker[string]] {
				b, err := breaker.New(config)
				if err != nil {
					t.Fatal(err)
				}
				for range 5 {
					_, _ = b.Do(context.Background(), func() (string, error) { return "", errSick })
				}
				tt.last(b)
				return weak.Make(b)
			}()
			for range 3 {
				runtime.GC()
			}
			if pointer.Value() != nil {
				t.Error("the timer holds the breaker")
			}
		})
	}
}
