package pg

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// TestTrap1_CallerEnds: the context ends while Toss approves. The approval is kept, and the breaker counts what
// happened and not the context.
func TestTrap1_CallerEnds(t *testing.T) {
	t.Parallel()
	for _, place := range []Place{Inside, Outside} {
		t.Run(string(place), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				o := layered()
				o.Retry.Place = place
				b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) {
					cancel()
					return approve(req)
				})
				got := b.Confirm(ctx, call("k"))
				if diff := cmp.Diff([]string{"payment"}, kinds(got)); diff != "" {
					t.Errorf("answers (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(breaker.Totals{Successes: 1}, b.Breaker().Snapshot().Totals); diff != "" {
					t.Errorf("breaker (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestTrap1_CallerEndsBetweenTries: what was heard before is returned, and nothing is sent any more.
func TestTrap1_CallerEndsBetweenTries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := setup(t, layered(), func(_ int, req *http.Request) (*http.Response, error) {
			cancel()
			return reset(req)
		})
		got := b.Confirm(ctx, call("k"))
		if diff := cmp.Diff([]string{"reset", "refused by lease"}, kinds(got)); diff != "" || b.gateway.calls() != 1 {
			t.Errorf("%d calls, answers (-want +got):\n%s", b.gateway.calls(), diff)
		}
	})
}

// TestTrap2_LateApproval: no policy carries a time-out, so an approval at the last moment counts.
func TestTrap2_LateApproval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := layered()
		b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) {
			time.Sleep(o.ConfirmTimeout - time.Nanosecond)
			return approve(req)
		})
		if got := b.Confirm(t.Context(), call("k")); len(got) != 1 || got[0].Kind != payment.KindPayment {
			t.Errorf("answers: %+v", got)
		}
	})
}

// TestTrap5_Panic: a panic in the call is an answer, and permit, slot and gauge come back.
func TestTrap5_Panic(t *testing.T) {
	t.Parallel()
	for _, place := range []Place{Inside, Outside} {
		t.Run(string(place), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := layered()
				o.Retry.Place, o.Bulkhead.Max, o.Rate, o.Breaker.HalfOpenCalls = place, 1, Rate{}, 1
				sick := true
				b := setup(t, o, func(_ int, req *http.Request) (*http.Response, error) {
					if sick {
						panic("secret of the caller")
					}
					return approve(req)
				})
				b.Breaker().ForceOpen()
				b.Breaker().Release()
				for range 5 {
					got := b.Confirm(t.Context(), call("k"))
					if len(got) != 1 || got[0].Kind != payment.KindPanic || got[0].Outcome(true) != payment.Unknown {
						t.Fatalf("answers: %+v", got)
					}
					if strings.Contains(got[0].Err.Error(), "secret of the caller") {
						t.Error("the panic's value is in the error")
					}
				}
				sick = false
				if got := b.Confirm(t.Context(), call("k")); got[0].Kind != payment.KindPayment {
					t.Errorf("after the panics: %+v", got)
				}
				if b.value(t, "bulkhead_in_flight") != 0 || b.Breaker().State() != breaker.Closed {
					t.Errorf("in flight %v, breaker %v", b.value(t, "bulkhead_in_flight"), b.Breaker().State())
				}
			})
		})
	}
}

// TestTrap9_BothPlaces: with a minimum of 5 and two retries the breaker opens after 15 calls with the retry
// inside and after 5 with the retry outside.
func TestTrap9_BothPlaces(t *testing.T) {
	t.Parallel()
	for place, want := range map[Place]int{Inside: 15, Outside: 5} {
		t.Run(string(place), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := layered()
				o.Retry.Max, o.Retry.Place, o.Breaker.MinCalls, o.Rate = 2, place, 5, Rate{}
				b := setup(t, o, func(int, *http.Request) (*http.Response, error) { return refusedDial() })
				for range 10 {
					b.Confirm(t.Context(), call("k"))
				}
				if b.gateway.calls() != want {
					t.Errorf("opened after %d calls, want %d", b.gateway.calls(), want)
				}
			})
		})
	}
}

// slowBody sends its second half after a while and fails when the request's context has ended before.
type slowBody struct {
	ctx  context.Context
	rest []string
}

func (s *slowBody) Read(p []byte) (int, error) {
	time.Sleep(2 * time.Second)
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.rest[0])
	s.rest = s.rest[1:]
	return n, nil
}

func (s *slowBody) Close() error { return nil }

// TestTrap10_Bodies: every try carries the whole body, and the context lives until the answer is read.
func TestTrap10_Bodies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := layered()
		o.Retry.Max = 2
		b := setup(t, o, func(n int, req *http.Request) (*http.Response, error) {
			if n < 3 {
				return reset(req)
			}
			res, err := approve(req)
			whole := doneBody("k")
			res.Body = &slowBody{ctx: req.Context(), rest: []string{whole[:20], whole[20:]}}
			return res, err
		})
		got := b.Confirm(t.Context(), call("k"))
		if diff := cmp.Diff([]string{"reset", "reset", "payment"}, kinds(got)); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		for i, r := range b.gateway.requests {
			if r.body != `{"amount":15000,"orderId":"order-k","paymentKey":"k"}` {
				t.Errorf("try %d sent %q", i+1, r.body)
			}
		}
		if got[2].Took != 6*time.Second {
			t.Errorf("took %v, want the time until the end of the body", got[2].Took)
		}
	})
}

// TestTrap36_LastErrorDoesNotDecide: reset (approved!) and then refused is unknown, never unavailable.
func TestTrap36_LastErrorDoesNotDecide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, layered(), func(n int, req *http.Request) (*http.Response, error) {
			if n == 1 {
				return reset(req)
			}
			return refusedDial()
		})
		got := b.Confirm(t.Context(), call("k"))
		if diff := cmp.Diff([]string{"reset", "not_connected"}, kinds(got)); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if c := payment.Conclude(got, false); c.Verdict != payment.VerdictLookup {
			t.Errorf("concluded %+v, want a lookup", c)
		}
	})
}

// TestTrap36_Cancel: the same for a cancel, whose one answer must be the worst.
func TestTrap36_Cancel(t *testing.T) {
	t.Parallel()
	say := func(status int, code string) script {
		return func(int, *http.Request) (*http.Response, error) {
			return respond(status, `{"code":"`+code+`","message":"m"}`)
		}
	}
	again := func(_ int, req *http.Request) (*http.Response, error) { return reset(req) }
	tests := []struct {
		name string
		then script
		want payment.Kind
	}{
		{"then refused", func(int, *http.Request) (*http.Response, error) { return refusedDial() }, payment.KindReset},
		{"then reset", again, payment.KindReset},
		{"then throttled", say(429, "X"), payment.KindReset},
		{"then misconfigured", say(401, "UNAUTHORIZED_KEY"), payment.KindReset},
		{"then a final refusal", say(403, "NOT_CANCELABLE_PAYMENT"), payment.KindAmbiguous},
		{"then already canceled", say(400, "ALREADY_CANCELED_PAYMENT"), payment.KindAmbiguous},
		{"then done", func(int, *http.Request) (*http.Response, error) { return respond(200, doneBody("k")) }, payment.KindPayment},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, plain(), func(n int, req *http.Request) (*http.Response, error) {
					if n == 1 {
						return reset(req)
					}
					return tt.then(n, req)
				})
				c := approval.CancelCall{PaymentKey: "k", Key: "c-1-1", Amount: 1, Balance: 1, Currency: "KRW", Tries: approval.Patient}
				if got := b.Cancel(t.Context(), c); got.Kind != tt.want {
					t.Errorf("got %q, want %q", got.Kind, tt.want)
				}
			})
		})
	}
}

// TestTrap5_WayBack: lookups and cancels survive a panic as well, and it is counted as a try.
func TestTrap5_WayBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, plain(), func(int, *http.Request) (*http.Response, error) { panic("bug") })
		if got := b.Lookup(t.Context(), "k", approval.OneTry); got.Kind != payment.KindPanic {
			t.Errorf("lookup: %+v", got)
		}
		if got := b.Cancel(t.Context(), approval.CancelCall{PaymentKey: "k", Key: "c-1-1", Currency: "KRW"}); got.Kind != payment.KindPanic {
			t.Errorf("cancel: %+v", got)
		}
		b.Confirm(t.Context(), call("k"))
		for _, op := range []string{opConfirm, opLookup, opCancel} {
			if n := b.value(t, `gateway_attempts_total{op="`+op+`",outcome="unknown"}`); n != 1 {
				t.Errorf("%s counted %v times", op, n)
			}
		}
	})
}

// TestTrap5_Slot: a slot comes back even from a panic that nobody inside caught.
func TestTrap5_Slot(t *testing.T) {
	t.Parallel()
	b := setup(t, layered(), nil)
	layer := b.pipeline.bulkhead.policy(t.Context())(func(execution) *result { panic("bug") })
	for range 3 {
		func() {
			defer func() { _ = recover() }()
			layer(nil)
		}()
	}
	if n := len(b.pipeline.bulkhead.slots); n != 0 || b.value(t, "bulkhead_in_flight") != 0 {
		t.Errorf("%d slots lost", n)
	}
}
