package pg

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"paymentd/breaker"
	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

type script = func(n int, req *http.Request) (*http.Response, error)

func TestSequences(t *testing.T) {
	t.Parallel()
	once := func(first func(*http.Request) (*http.Response, error)) script {
		return func(n int, req *http.Request) (*http.Response, error) {
			if n == 1 {
				return first(req)
			}
			return approve(req)
		}
	}
	always := func(answer func(*http.Request) (*http.Response, error)) script {
		return func(_ int, req *http.Request) (*http.Response, error) { return answer(req) }
	}
	say := func(status int, code string) func(*http.Request) (*http.Response, error) {
		return func(*http.Request) (*http.Response, error) {
			return respond(status, fmt.Sprintf(`{"code":%q,"message":"m"}`, code))
		}
	}
	dial := func(*http.Request) (*http.Response, error) { return refusedDial() }
	five := func(*http.Request) (*http.Response, error) { return fault() }
	tests := []struct {
		name    string
		answer  script
		want    []string
		keys    []string
		breaker breaker.Totals // of one sequence, retry inside
		retried string         // result of paymentd_retry_sequences_total
	}{
		{"approved", always(approve), []string{"payment"}, []string{"k:1"}, breaker.Totals{Successes: 1}, ""},
		{"dial refused once", once(dial), []string{"not_connected", "payment"}, []string{"k:1", "k:1"}, breaker.Totals{Successes: 1}, "absorbed"},
		{"reset once", once(reset), []string{"reset", "payment"}, []string{"k:1", "k:1"}, breaker.Totals{Successes: 1}, "absorbed"},
		{"5xx once", once(five), []string{"fault", "payment"}, []string{"k:1", "k:2"}, breaker.Totals{Successes: 1}, "absorbed"},
		{"5xx for good", always(five), []string{"fault", "fault"}, []string{"k:1", "k:2"}, breaker.Totals{Failures: 1}, "exhausted"},
		{"time-out is never retried", always(hang), []string{"timeout"}, []string{"k:1"}, breaker.Totals{Failures: 1}, ""},
		{"declined", always(say(403, "REJECT_CARD_PAYMENT")), []string{"declined"}, []string{"k:1"}, breaker.Totals{Successes: 1}, ""},
		{"ambiguous", always(say(400, "PROVIDER_ERROR")), []string{"ambiguous"}, []string{"k:1"}, breaker.Totals{Successes: 1}, ""},
		{"key busy", always(say(409, "IDEMPOTENT_REQUEST_PROCESSING")), []string{"key_busy"}, []string{"k:1"}, breaker.Totals{Successes: 1}, ""},
		{"throttled", always(say(429, "")), []string{"throttled"}, []string{"k:1"}, breaker.Totals{Ignored: 1}, ""},
		{"wrong key", always(say(401, "UNAUTHORIZED_KEY")), []string{"misconfigured"}, []string{"k:1"}, breaker.Totals{Ignored: 1}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, layered(), tt.answer)
				got := b.Confirm(t.Context(), call("k"))
				if diff := cmp.Diff(tt.want, kinds(got)); diff != "" {
					t.Errorf("answers (-want +got):\n%s", diff)
				}
				var keys []string
				for _, r := range b.gateway.requests {
					keys = append(keys, r.key)
				}
				if diff := cmp.Diff(tt.keys, keys); diff != "" {
					t.Errorf("keys sent (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tt.breaker, b.Breaker().Snapshot().Totals); diff != "" {
					t.Errorf("breaker (-want +got):\n%s", diff)
				}
				for _, result := range []string{"absorbed", "exhausted"} {
					want := 0.0
					if result == tt.retried {
						want = 1
					}
					if n := b.value(t, fmt.Sprintf(`retry_sequences_total{result=%q}`, result)); n != want {
						t.Errorf("retry sequences %s: got %v, want %v", result, n, want)
					}
				}
			})
		})
	}
}

func TestRetryWaitsWithJitter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := layered()
		o.Retry.Max, o.Breaker.Window = 2, 0
		b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return refusedDial() })
		waits := map[time.Duration]bool{}
		for range 20 {
			before := b.gateway.calls()
			b.Confirm(t.Context(), call("k"))
			for i := before + 1; i < b.gateway.calls(); i++ {
				w := b.gateway.requests[i].at.Sub(b.gateway.requests[i-1].at)
				if w < 250*time.Millisecond || w > 750*time.Millisecond {
					t.Errorf("waited %v", w)
				}
				waits[w] = true
			}
		}
		if b.gateway.calls() != 60 || len(waits) < 10 {
			t.Errorf("%d calls with %d different waits, want 60 calls", b.gateway.calls(), len(waits))
		}
	})
}

// TestKeyRule shows where the sequence ends when the key rule says so, and that nothing is spent then.
func TestKeyRule(t *testing.T) {
	t.Parallel()
	settled := payment.Answer{Kind: payment.KindPayment, Observation: payment.Observation{Sighting: payment.SeenDone}}
	tests := []struct {
		name string
		next approval.NextTry
		want []string
	}{
		{"lookup settles", func(context.Context, payment.Answer) (string, bool, payment.Answer) { return "", false, settled }, []string{"fault", "payment"}},
		{"lookup has no answer", func(context.Context, payment.Answer) (string, bool, payment.Answer) {
			return "", false, payment.Answer{}
		}, []string{"fault"}},
		{"no rule given", nil, []string{"fault"}},
		{"panic in the rule", func(context.Context, payment.Answer) (string, bool, payment.Answer) { panic("bug") }, []string{"fault", "panic"}},
	}
	for _, tt := range tests {
		for _, place := range []Place{Inside, Outside} {
			t.Run(tt.name+" "+string(place), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					o := layered()
					o.Retry.Place, o.Rate = place, Rate{PerSecond: 0.001, Burst: 1}
					b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return fault() })
					c := call("k")
					c.Next = tt.next
					if diff := cmp.Diff(tt.want, kinds(b.Confirm(t.Context(), c))); diff != "" {
						t.Errorf("answers (-want +got):\n%s", diff)
					}
					if b.gateway.calls() != 1 || b.value(t, `refused_total{by="limiter"}`) != 0 || b.value(t, "bulkhead_in_flight") != 0 {
						t.Errorf("%d calls, or a token or slot was asked for", b.gateway.calls())
					}
					totals := b.Breaker().Snapshot().Totals
					if tt.name != "panic in the rule" && totals.Failures != 1 || totals.Successes != 0 {
						t.Errorf("breaker: %+v, want the failed try to count", totals)
					}
				})
			})
		}
	}
}

// TestRefusalAfterFailure: a refusal ends the sequence and is no result, but the failed try before it is one.
func TestRefusalAfterFailure(t *testing.T) {
	t.Parallel()
	for _, place := range []Place{Inside, Outside} {
		t.Run(string(place), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := layered()
				o.Retry.Max, o.Retry.Place, o.Rate = 3, place, Rate{PerSecond: 0.001, Burst: 1}
				b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return fault() })
				got := b.Confirm(t.Context(), call("k"))
				if diff := cmp.Diff([]string{"fault", "refused by limiter"}, kinds(got)); diff != "" {
					t.Errorf("answers (-want +got):\n%s", diff)
				}
				if s := b.Breaker().Snapshot(); s.Calls != 1 || s.Failures != 1 {
					t.Errorf("breaker counted %d calls, %d failures, want the one failure", s.Calls, s.Failures)
				}
				if n := b.value(t, `retry_sequences_total{result="exhausted"}`); n != 1 {
					t.Errorf("exhausted %v, want 1", n)
				}
			})
		})
	}
}

// TestLease: nothing is sent past the lease or after the deadline of the work.
func TestLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, layered(), func(int, *http.Request) (*http.Response, error) { return refusedDial() })
		c := call("k")
		c.NotAfter = time.Now().Add(200 * time.Millisecond) // over before the retry
		if diff := cmp.Diff([]string{"not_connected", "refused by lease"}, kinds(b.Confirm(t.Context(), c))); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		c.NotAfter = time.Now()
		if diff := cmp.Diff([]string{"refused by lease"}, kinds(b.Confirm(t.Context(), c))); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if diff := cmp.Diff([]string{"refused by lease"}, kinds(b.Confirm(over, call("k")))); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		want := breaker.Totals{Failures: 1, Ignored: 2}
		if diff := cmp.Diff(want, b.Breaker().Snapshot().Totals); b.gateway.calls() != 1 || diff != "" {
			t.Errorf("%d calls, breaker (-want +got):\n%s", b.gateway.calls(), diff)
		}
	})
}

// TestScenarioS3 is the breaker's life: it opens after exactly the minimum of failed calls, refuses at once, and
// closes after three good trials.
func TestScenarioS3(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := plain()
		o.Retry = Retry{Max: 2, Delay: 500 * time.Millisecond, On: []Cause{CauseConnect}, Place: Outside}
		o.Breaker = Breaker{Window: 10, MinCalls: 5, FailureRate: 0.5, OpenFor: 10 * time.Second, HalfOpenCalls: 3}
		up := false
		b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) {
			if !up {
				return refusedDial()
			}
			time.Sleep(200 * time.Millisecond)
			return approve(req)
		})
		b.Confirm(t.Context(), call("a"))
		got := b.Confirm(t.Context(), call("b"))
		want := []string{"not_connected", "not_connected", "refused by breaker"}
		if diff := cmp.Diff(want, kinds(got)); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if b.gateway.calls() != 5 || b.Breaker().State() != breaker.Open {
			t.Fatalf("%d calls, %v, want open after 5", b.gateway.calls(), b.Breaker().State())
		}
		start := time.Now()
		for range 50 {
			refused := b.Confirm(t.Context(), call("c"))
			if len(refused) != 1 || refused[0].Refuser != payment.RefusedByBreaker || refused[0].RetryAfter <= 0 {
				t.Fatalf("while open: %+v", refused)
			}
		}
		if time.Since(start) != 0 || b.gateway.calls() != 5 {
			t.Errorf("refusing took %v and %d calls", time.Since(start), b.gateway.calls()-5)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if b.value(t, `breaker_state{state="half_open"}`) != 1 {
			t.Error("not half-open by itself")
		}
		up = true
		for i := range 3 {
			if got := kinds(b.Confirm(t.Context(), call("d"))); got[0] != "payment" {
				t.Fatalf("trial %d: %v", i, got)
			}
		}
		if b.value(t, `breaker_state{state="closed"}`) != 1 || b.value(t, `breaker_transitions_total{from="half_open",to="closed"}`) != 1 {
			t.Errorf("not closed after three good trials: %v", b.Breaker().State())
		}
	})
}

// TestScenarioS5: the bulkhead bounds what is at the gateway, the limiter what is sent, refusals come at once
// and leave the breaker's counts alone.
func TestScenarioS5(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := layered()
		o.Rate.Burst = 40
		b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) {
			time.Sleep(10 * time.Second)
			return approve(req)
		})
		var mu sync.Mutex
		var waited []time.Duration
		count := map[string]int{}
		var wg sync.WaitGroup
		for range 300 {
			wg.Go(func() {
				start := time.Now()
				last := b.Confirm(t.Context(), call("k"))
				mu.Lock()
				defer mu.Unlock()
				word := kinds(last)[len(last)-1]
				count[word]++
				if word == "refused by limiter" {
					waited = append(waited, time.Since(start))
				}
			})
		}
		time.Sleep(5 * time.Second)
		if refused := b.Peek(); refused == nil || refused.Refuser != payment.RefusedByBulkhead || b.value(t, "bulkhead_in_flight") != 20 {
			t.Errorf("full, but Peek says %+v", refused)
		}
		wg.Wait()
		// 40 at once and 30/s for 4 s find a token; 20 of these a slot.
		want := map[string]int{"payment": 20, "refused by bulkhead": 140, "refused by limiter": 140}
		if diff := cmp.Diff(want, count); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		for _, w := range waited {
			if w != 0 {
				t.Errorf("a limiter's refusal took %v", w)
			}
		}
		if s := b.Breaker().Snapshot(); s.Calls != 20 || s.Failures != 0 || s.Totals.Ignored != 280 {
			t.Errorf("breaker: %+v", s)
		}
		if b.gateway.most != 20 || b.value(t, "bulkhead_in_flight") != 0 || b.Peek() != nil {
			t.Errorf("at most %d at once, %v left", b.gateway.most, b.value(t, "bulkhead_in_flight"))
		}
		if n := b.value(t, `refused_total{by="bulkhead"}`); n != 141 { // Peek's refusal counts as well
			t.Errorf("refused by bulkhead %v, want 141", n)
		}
	})
}

func TestBulkheadWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := plain()
		o.Bulkhead = Bulkhead{Max: 1, Wait: 3 * time.Second}
		b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return approve(req)
		})
		var wg sync.WaitGroup
		var mu sync.Mutex
		count := map[string]int{}
		for range 3 {
			wg.Go(func() {
				got := kinds(b.Confirm(t.Context(), call("k")))
				mu.Lock()
				defer mu.Unlock()
				count[got[0]]++
			})
		}
		synctest.Wait()
		if flying, waiting := testutil.ToFloat64(b.metrics.inFlight), testutil.ToFloat64(b.metrics.waiting); flying != 1 || waiting != 2 {
			t.Errorf("%v in flight, %v waiting, want 1 and 2", flying, waiting)
		}
		wg.Wait()
		if flying, waiting := testutil.ToFloat64(b.metrics.inFlight), testutil.ToFloat64(b.metrics.waiting); flying != 0 || waiting != 0 {
			t.Errorf("%v in flight, %v waiting at the end, want 0", flying, waiting)
		}
		if diff := cmp.Diff(map[string]int{"payment": 2, "refused by bulkhead": 1}, count); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
	})
}

// TestOpenBreakerSpendsNothing: no token, no slot, no retry, no lookup of the key rule.
func TestOpenBreakerSpendsNothing(t *testing.T) {
	t.Parallel()
	for _, place := range []Place{Inside, Outside} {
		t.Run(string(place), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := layered()
				o.Retry.Place, o.Rate = place, Rate{PerSecond: 0.001, Burst: 1}
				b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) { return approve(req) })
				b.Breaker().ForceOpen()
				c := call("k")
				c.Next = func(context.Context, payment.Answer) (string, bool, payment.Answer) {
					t.Error("the key rule was asked")
					return "", false, payment.Answer{}
				}
				for range 3 {
					if diff := cmp.Diff([]string{"refused by breaker"}, kinds(b.Confirm(t.Context(), c))); diff != "" {
						t.Errorf("answers (-want +got):\n%s", diff)
					}
				}
				if refused := b.Peek(); refused == nil || refused.Refuser != payment.RefusedByBreaker {
					t.Errorf("Peek says %+v", refused)
				}
				b.Breaker().Release()
				if got := kinds(b.Confirm(t.Context(), c)); got[0] != "payment" {
					t.Errorf("the token was spent: %v", got)
				}
			})
		})
	}
}

// TestBackground: recovery's sends take at most one trial of three.
func TestBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := layered()
		o.Rate, o.Bulkhead = Rate{}, Bulkhead{}
		b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return approve(req)
		})
		b.Breaker().ForceOpen()
		b.Breaker().Release()
		count := map[string]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				c := call("k")
				c.Background = true
				got := kinds(b.Confirm(t.Context(), c))
				mu.Lock()
				defer mu.Unlock()
				count[got[0]]++
			})
		}
		wg.Wait()
		if diff := cmp.Diff(map[string]int{"payment": 1, "refused by breaker": 2}, count); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
	})
}

func TestBreakerOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, plain(), func(int, *http.Request) (*http.Response, error) { return fault() })
		for range 30 {
			b.Confirm(t.Context(), call("k"))
		}
		if b.gateway.calls() != 30 || b.Breaker() != nil || b.Peek() != nil || b.value(t, `breaker_state{state="closed"}`) != 1 {
			t.Errorf("%d calls, breaker %v", b.gateway.calls(), b.Breaker())
		}
	})
}

// TestBreakerOpensBetweenTries: with the retry outside, no lookup is made and no key taken for a try that the
// breaker would refuse.
func TestBreakerOpensBetweenTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := layered()
		o.Retry.Place, o.Breaker.MinCalls = Outside, 1
		b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return fault() })
		c := call("k")
		c.Next = func(context.Context, payment.Answer) (string, bool, payment.Answer) {
			t.Error("the key rule was asked")
			return "", false, payment.Answer{}
		}
		if diff := cmp.Diff([]string{"fault", "refused by breaker"}, kinds(b.Confirm(t.Context(), c))); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
	})
}
