package pg

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// TestTries: patience is three tries with 1 s and 2 s between them, and only after answers that leave it open.
func TestTries(t *testing.T) {
	t.Parallel()
	coded := func(status int, code string) script {
		return func(int, *http.Request) (*http.Response, error) { return respond(status, `{"code":"`+code+`"}`) }
	}
	dial := func(int, *http.Request) (*http.Response, error) { return refusedDial() }
	tests := []struct {
		name           string
		op             string
		tries          approval.Tries
		answer         script
		want           payment.Kind
		calls, seconds int
	}{
		{"lookup, 5xx, patient", opLookup, approval.Patient, coded(500, "X"), payment.KindFault, 3, 3},
		{"lookup, 5xx, one try", opLookup, approval.OneTry, coded(500, "X"), payment.KindFault, 1, 0},
		{"lookup, dial", opLookup, approval.Patient, dial, payment.KindNotConnected, 3, 3},
		{"lookup, throttled", opLookup, approval.Patient, coded(403, "FORBIDDEN_CONSECUTIVE_REQUEST"), payment.KindThrottled, 3, 3},
		{"lookup, not found", opLookup, approval.Patient, coded(404, "NOT_FOUND_PAYMENT"), payment.KindNotFound, 1, 0},
		{"lookup, wrong key", opLookup, approval.Patient, coded(401, "UNAUTHORIZED_KEY"), payment.KindMisconfigured, 1, 0},
		{"cancel, dial", opCancel, approval.Patient, dial, payment.KindNotConnected, 3, 3},
		{"cancel, key busy", opCancel, approval.Patient, coded(409, "IDEMPOTENT_REQUEST_PROCESSING"), payment.KindKeyBusy, 3, 3},
		{"cancel, key spent by 5xx", opCancel, approval.Patient, coded(500, "COMMON_ERROR"), payment.KindFault, 1, 0},
		{"cancel, refused for good", opCancel, approval.Patient, coded(403, "NOT_CANCELABLE_PAYMENT"), payment.KindDeclined, 1, 0},
		{"cancel, one try", opCancel, approval.OneTry, dial, payment.KindNotConnected, 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := layered()
				o.Breaker.MinCalls = 1
				b := setup(t, o, tt.answer)
				start := time.Now()
				var got payment.Answer
				if tt.op == opLookup {
					got = b.Lookup(t.Context(), "k", tt.tries)
				} else {
					got = b.Cancel(t.Context(), approval.CancelCall{PaymentKey: "k", Key: "c-1-1", Currency: "KRW", Tries: tt.tries})
				}
				took := time.Since(start)
				if got.Kind != tt.want || b.gateway.calls() != tt.calls || took != time.Duration(tt.seconds)*time.Second {
					t.Errorf("got %q after %d calls and %v, want %q, %d, %d s", got.Kind, b.gateway.calls(), took, tt.want, tt.calls, tt.seconds)
				}
				if got.Observation.Sighting == "" {
					t.Error("no sighting")
				}
				if s := b.Breaker().Snapshot(); s.Calls != 0 {
					t.Errorf("the breaker counted %d", s.Calls)
				}
			})
		})
	}
}

// TestBudgets: one try never waits for the rate, patience does, and neither budget is the other's.
func TestBudgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := plain()
		o.LookupRate, o.CancelRate = 2, 1
		b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return respond(200, doneBody("k")) })
		start := time.Now()
		for range 2 {
			b.Lookup(t.Context(), "k", approval.OneTry)
		}
		refused := b.Lookup(t.Context(), "k", approval.OneTry)
		if refused.Kind != payment.KindRefused || refused.Refuser != payment.RefusedByLimiter || time.Since(start) != 0 {
			t.Errorf("without a token: %+v after %v", refused, time.Since(start))
		}
		if got := b.Cancel(t.Context(), approval.CancelCall{PaymentKey: "k", Key: "c-1-1", Currency: "KRW"}); got.Kind != payment.KindPayment {
			t.Errorf("the cancel had no budget of its own: %+v", got)
		}
		if got := b.Lookup(t.Context(), "k", approval.Patient); got.Kind != payment.KindPayment || time.Since(start) < 500*time.Millisecond {
			t.Errorf("patient: %q after %v", got.Kind, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if got := b.Lookup(ctx, "k", approval.Patient); got.Kind != payment.KindRefused {
			t.Errorf("ended while waiting: %+v", got)
		}
		if n := b.value(t, `refused_total{by="limiter"}`); n != 0 {
			t.Errorf("%v lookups counted as refused confirms", n)
		}
	})
}

func TestRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := plain()
		o.BaseURL = "http://gateway.test/base/"
		b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return respond(200, doneBody("k")) })
		b.Lookup(t.Context(), "a/b?c#d%2F~é", approval.OneTry)
		cancel := approval.CancelCall{PaymentKey: "a/../b", Key: "c-x-1", Reason: "size [c-x]", Amount: 125, Balance: 1250, Currency: "USD"}
		b.Cancel(t.Context(), cancel)
		cancel.Full, cancel.Currency = true, "KRW"
		b.Cancel(t.Context(), cancel)
		var got []string
		for _, r := range b.gateway.requests {
			got = append(got, r.path+" "+r.key+" "+r.body)
		}
		want := []string{
			"/base/v1/payments/a%2Fb%3Fc%23d%252F~%C3%A9  ",
			`/base/v1/payments/a%2F..%2Fb/cancel c-x-1 {"cancelAmount":1.25,"cancelReason":"size [c-x]","currency":"USD","refundableAmount":12.50}`,
			`/base/v1/payments/a%2F..%2Fb/cancel c-x-1 {"cancelReason":"size [c-x]","refundableAmount":1250}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

// TestTrap41_Strangers: lookups of unknown payments have one token per second of their own, and those of known ones are
// refused at once when lookups are short.
func TestTrap41_Strangers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := layered()
		o.LookupRate = 2
		b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return respond(404, `{"code":"NOT_FOUND_PAYMENT"}`) })
		start := time.Now()
		for range 4 {
			if a := b.Lookup(t.Context(), "k", approval.Stranger); a.Kind != payment.KindNotFound {
				t.Errorf("answered %+v", a)
			}
		}
		if a := b.LookupByOrder(t.Context(), "order-1", approval.Stranger); a.Kind != payment.KindNotFound {
			t.Errorf("answered %+v", a)
		}
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("5 lookups of strangers took %s", took)
		}
		for n, want := range []payment.Kind{payment.KindNotFound, payment.KindRefused} {
			if a := b.Lookup(t.Context(), "k", approval.Hinted); a.Kind != want {
				t.Errorf("hinted lookup %d: %+v", n, a)
			}
		}
		if a := b.Lookup(t.Context(), "k", approval.OneTry); a.Kind != payment.KindNotFound {
			t.Errorf("a confirm finds the bucket empty: %+v", a)
		}
	})
}
