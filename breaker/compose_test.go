package breaker_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/common"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

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

// layer is a failsafe-go policy made of its one function.
type layer func(inner layered) layered

type layered = func(failsafe.Execution[string]) *common.PolicyResult[string]

func (l layer) ToExecutor(string) any       { return l }
func (l layer) Apply(inner layered) layered { return l(inner) }

// TestMarks gives both breakers every result that an inner policy can give.
func TestMarks(t *testing.T) {
	t.Parallel()
	well := errors.New("declined: the gateway is well")
	isFailure := func(_ string, err error) bool { return err != nil && err != well }
	config := standard()
	config.Window, config.MinCalls, config.FailureRate, config.IsFailure = 100, 100, 1, isFailure
	ours := newBench(t, config)
	theirs := circuitbreaker.NewBuilder[string]().HandleIf(isFailure).WithFailureThreshold(100).Build()

	through := func(policy failsafe.Policy[string], given common.PolicyResult[string]) (seen common.PolicyResult[string]) {
		outer := layer(func(inner layered) layered {
			return func(exec failsafe.Execution[string]) *common.PolicyResult[string] {
				result := inner(exec)
				seen = *result
				return result
			}
		})
		innermost := layer(func(layered) layered {
			return func(failsafe.Execution[string]) *common.PolicyResult[string] { return &given }
		})
		_, _ = failsafe.With[string](outer, policy, innermost).Get(func() (string, error) { return "", nil })
		return seen
	}
	for bits := range 8 {
		for _, err := range []error{nil, errSick, well, refusal{}} {
			given := common.PolicyResult[string]{Result: "r", Error: err, Done: bits&1 > 0, Success: bits&2 > 0, SuccessAll: bits&4 > 0}
			want := through(theirs, given)
			if err == (refusal{}) {
				want = given // an ignored result passes as it is
			}
			if diff := cmp.Diff(want, through(ours, given), cmpopts.EquateErrors()); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", given, diff)
			}
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	var words []string
	for _, s := range append(breaker.States(), 9) {
		words = append(words, s.String())
	}
	for _, r := range append(breaker.Results(), 9) {
		words = append(words, r.String())
	}
	for o := range breaker.Outcome(4) {
		words = append(words, o.String())
	}
	for s := range breaker.State(4) {
		words = append(words, (&breaker.OpenError{State: s, RetryAfter: time.Second}).Error())
	}
	want := []string{
		"closed", "open", "half_open", "forced_open", "State(9)",
		"success", "failure", "ignored", "dropped", "refused", "Result(9)",
		"ignored", "success", "failure", "ignored",
		"circuit breaker open for another 1s", "circuit breaker open for another 1s",
		"circuit breaker half-open: no trial left", "circuit breaker forced open",
	}
	if diff := cmp.Diff(want, words); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
}
