package pg

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go"
	failsafebulkhead "github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"

	"paymentd/internal/payment"
)

// The tests here keep the compositions that one writes first, to show that each trap is real: the test of the same
// number in traps_test.go or limiter_test.go passes where these go wrong. A release of failsafe-go that mends one of
// them fails here, and the layer of ours may go.

// naiveApproval is what the naive calls return.
var naiveApproval = payment.Answer{Kind: payment.KindPayment, Observation: payment.Observation{Sighting: payment.SeenDone}}

// TestTrap1_Naive: breaker(retry(bulkhead(call))) on the caller's context throws the approval away and counts a failure.
func TestTrap1_Naive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := circuitbreaker.NewBuilder[payment.Answer]().Build()
		got, err := failsafe.With(b, retrypolicy.NewWithDefaults[payment.Answer](), failsafebulkhead.New[payment.Answer](2)).
			WithContext(ctx).Get(func() (payment.Answer, error) {
			cancel()
			return naiveApproval, nil
		})
		if !errors.Is(err, context.Canceled) || got.Kind != "" || b.Metrics().Failures() != 1 {
			t.Errorf("answer %q, error %v, %d failures: the trap is gone", got.Kind, err, b.Metrics().Failures())
		}
	})
}

// TestTrap2_Naive: a time-out policy throws a late approval away.
func TestTrap2_Naive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		got, err := failsafe.With(timeout.New[payment.Answer](time.Second)).Get(func() (payment.Answer, error) {
			time.Sleep(1100 * time.Millisecond)
			return naiveApproval, nil
		})
		if !errors.Is(err, timeout.ErrExceeded) || got.Kind != "" {
			t.Errorf("answer %q, error %v: the trap is gone", got.Kind, err)
		}
	})
}

// TestTrap5_Naive: two recovered panics fill a bulkhead of two for ever.
func TestTrap5_Naive(t *testing.T) {
	t.Parallel()
	full := failsafebulkhead.New[payment.Answer](2)
	for range 2 {
		func() {
			defer func() { _ = recover() }()
			_, _ = failsafe.With(full).Get(func() (payment.Answer, error) { panic("bug") })
		}()
	}
	if _, err := failsafe.With(full).Get(func() (payment.Answer, error) { return naiveApproval, nil }); !errors.Is(err, failsafebulkhead.ErrFull) {
		t.Errorf("error %v: the trap is gone", err)
	}
}

// TestTrap8_Naive: the smooth limiter admits one of fifty that come together, the bursty one twice its rate at an edge.
func TestTrap8_Naive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		admitted := func(l ratelimiter.RateLimiter[payment.Answer], n int) (passed int) {
			for range n {
				if l.TryAcquirePermit() {
					passed++
				}
			}
			return passed
		}
		if n := admitted(ratelimiter.NewSmooth[payment.Answer](50, time.Second), 50); n != 1 {
			t.Errorf("smooth: %d of 50 at once: the trap is gone", n)
		}
		bursty := ratelimiter.NewBursty[payment.Answer](50, time.Second)
		time.Sleep(999 * time.Millisecond)
		before := admitted(bursty, 100)
		time.Sleep(2 * time.Millisecond)
		if n := before + admitted(bursty, 100); n != 100 {
			t.Errorf("bursty: %d within 2 ms at 50 per second: the trap is gone", n)
		}
	})
}

// TestTrap10_Naive: a request that is sent again has no body left, and a body cannot be read after its context.
func TestTrap10_Naive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://toss.example", io.NopCloser(strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = failsafe.With(retrypolicy.NewBuilder[payment.Answer]().WithMaxRetries(1).Build()).Get(func() (payment.Answer, error) {
			body, _ := io.ReadAll(req.Body)
			sent = append(sent, string(body))
			return payment.Answer{}, errors.New("reset")
		})
		if len(sent) != 2 || sent[0] != "body" || sent[1] != "" {
			t.Errorf("sent %q: the trap is gone", sent)
		}
		answer := &slowBody{ctx: ctx, rest: []string{"half"}}
		cancel()
		if _, err := io.ReadAll(answer); !errors.Is(err, context.Canceled) {
			t.Errorf("read after the context ended: %v", err)
		}
	})
}

// TestTrap36_Naive: the last error of a sequence hides that a try before may have been approved.
func TestTrap36_Naive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		tries := 0
		_, err := failsafe.With(retrypolicy.NewBuilder[payment.Answer]().WithMaxRetries(1).ReturnLastFailure().Build()).
			Get(func() (payment.Answer, error) {
				tries++
				if tries == 1 {
					return payment.Answer{}, errors.New("connection reset") // Toss may have approved
				}
				return payment.Answer{}, refused
			})
		if !errors.Is(err, refused) || strings.Contains(err.Error(), "reset") {
			t.Errorf("error %v: the trap is gone", err)
		}
	})
}
