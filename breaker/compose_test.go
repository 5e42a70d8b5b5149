package breaker_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
)

func TestPlaces(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		inside bool // breaker(retry(call)), else retry(breaker(call))
		ours   int  // calls at the gateway until it opens, minimum 5, 2 retries
	}{
		{"retry inside", true, 15},
		{"retry outside", false, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, standard())
			defer b.Stop()
			retry := retrypolicy.NewBuilder[string]().WithMaxRetries(2).AbortOnErrors(breaker.ErrOpen).Build()
			exec := failsafe.With[string](retry, b.Breaker)
			if tt.inside {
				exec = failsafe.With[string](b.Breaker, retry)
			}
			calls := 0
			for b.Peek() == nil {
				_, _ = exec.Get(func() (string, error) { calls++; return "", errSick })
			}
			if calls != tt.ours {
				t.Errorf("opened after %d calls, want %d", calls, tt.ours)
			}
		})
	}
}

// TestPolicyResult compares what outer layers see with failsafe-go's own breaker.
func TestPolicyResult(t *testing.T) {
	t.Parallel()
	outcomes := func(policy failsafe.Policy[string], err error) (heard []string) {
		exec := failsafe.With(policy).
			OnSuccess(func(failsafe.ExecutionDoneEvent[string]) { heard = append(heard, "success") }).
			OnFailure(func(failsafe.ExecutionDoneEvent[string]) { heard = append(heard, "failure") }).
			OnDone(func(e failsafe.ExecutionDoneEvent[string]) {
				heard = append(heard, fmt.Sprint("done ", e.Result, e.Error))
			})
		_, _ = exec.Get(func() (string, error) { return "r", err })
		return heard
	}
	for _, err := range []error{nil, errSick} {
		b := newBench(t, standard())
		theirs := circuitbreaker.NewBuilder[string]().WithFailureThreshold(100).Build()
		if diff := cmp.Diff(outcomes(theirs, err), outcomes(b.Breaker, err)); diff != "" {
			t.Errorf("%v (-theirs +ours):\n%s", err, diff)
		}
	}

	anything, err := breaker.New(breaker.Config[any]{
		Window: 1, MinCalls: 1, FailureRate: 1, OpenFor: time.Hour, HalfOpenCalls: 1, MaxTrial: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer anything.Stop()
	exec := failsafe.WithAny[int](anything)
	if got, err := exec.Get(func() (int, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("composed as any: %v, %v", got, err)
	}
	_, _ = exec.Get(func() (int, error) { return 0, errSick })
	if _, err := exec.Get(func() (int, error) { return 7, nil }); !errors.Is(err, breaker.ErrOpen) {
		t.Errorf("composed as any, open: %v", err)
	}
}
