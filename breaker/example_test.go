package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/retrypolicy"

	"paymentd/breaker"
)

func Example() {
	b, err := breaker.New(breaker.Config[string]{
		Window: 10, MinCalls: 5, FailureRate: 0.5,
		OpenFor: 30 * time.Second, HalfOpenCalls: 3, MaxTrial: time.Minute,
		// A full bulkhead is our own doing and says nothing about the gateway.
		IsIgnored:    func(_ string, err error) bool { return errors.Is(err, bulkhead.ErrFull) },
		OnTransition: func(from, to breaker.State) { fmt.Println(from, "→", to) },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Stop()
	once := retrypolicy.NewBuilder[string]().WithMaxRetries(1).Build()
	slots := bulkhead.New[string](20)

	// breaker(retry(bulkhead(call))): a retry sequence is one result for the breaker.
	gateway := failsafe.With[string](b, once, slots)
	for range 5 {
		_, _ = gateway.Get(func() (string, error) { return "", errors.New("connection refused") })
	}
	_, err = gateway.Get(func() (string, error) { return "not reached", nil })

	if refusal, ok := errors.AsType[*breaker.OpenError](err); ok {
		fmt.Println(refusal.State, refusal.RetryAfter.Round(time.Second), errors.Is(err, breaker.ErrOpen))
	}
	fmt.Println(b.Snapshot().Totals.Failures, "failures,", b.Snapshot().Totals.Refused, "refused")
	// Output:
	// closed → open
	// open 30s true
	// 5 failures, 1 refused
}

func ExampleBreaker_Acquire() {
	b, err := breaker.New(breaker.Config[any]{
		Window: 10, MinCalls: 5, FailureRate: 0.5,
		OpenFor: 30 * time.Second, HalfOpenCalls: 3, MaxTrial: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	work := func() error {
		permit, err := b.Acquire(context.Background())
		if err != nil {
			return err
		}
		defer permit.Done(breaker.Ignored) // whatever path forgets
		// … make the call …
		permit.Done(breaker.Success)
		return nil
	}
	fmt.Println(work(), b.Snapshot().Calls, b.State())
	// Output: <nil> 1 closed
}
