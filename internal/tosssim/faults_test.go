package tosssim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

func TestDropIsAReset(t *testing.T) {
	t.Parallel()
	for drop, approvals := range map[string]int{tosssim.DropBefore: 0, tosssim.DropAfter: 1} {
		t.Run(drop, func(t *testing.T) {
			t.Parallel()
			b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, Drop: drop, Next: 1})
			if r := b.confirm("test_a", "k"); !errors.Is(r.err, syscall.ECONNRESET) {
				t.Errorf("want a reset, got %d %v", r.status, r.err)
			}
			b.wantLedger("test_a", approvals, 0, int64(approvals)*15000)
			b.want(b.confirm("test_a", "k"), 200, "") // the first answer, or the first work
			b.wantLedger("test_a", 1, 0, 15000)
		})
	}
}

func TestHangEndsWithItsClient(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		fault     tosssim.Fault
		approvals int
	}{
		{"never seen by Toss", tosssim.Fault{Hang: true}, 0},
		{"work done", tosssim.Fault{Hang: true, Work: tosssim.WorkDo}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.fault.Op, tt.fault.Next = tosssim.OpConfirm, 1
			b := setup(t, tt.fault)
			ctx, hangUp := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				b.hangUpWith(ctx, `{"paymentKey":"test_a","orderId":"order-1","amount":15000}`)
			}()
			b.calls(tosssim.OpConfirm, 1, 1)
			if running := b.sim.CallsOf(tosssim.CallQuery{Running: true}); len(running) != 1 || running[0].PaymentKey != "test_a" || running[0].Fault != "hang" || running[0].Status != 0 {
				t.Errorf("running: %+v", running)
			}
			b.want(b.confirm("test_other", ""), 200, "") // nobody else waits
			hangUp()
			<-ended
			b.calls(tosssim.OpConfirm, 2, 0)
			b.wantLedger("test_a", tt.approvals, 0, int64(tt.approvals)*15000)
			if c := b.sim.Counters().Total; c.Unanswered != 1 || c.MaxRunning != 2 {
				t.Errorf("counters: %+v", c)
			}
		})
	}
}

func (b *bench) hangUpWith(ctx context.Context, body string) {
	req, err := newRequest(ctx, b.sim.URL()+"/v1/payments/confirm", body)
	if err != nil {
		b.t.Error(err)
		return
	}
	if res, err := b.hc.Do(req); err == nil {
		_ = res.Body.Close()
		b.t.Errorf("hung call was answered: %d", res.StatusCode)
	}
}

func TestHungClientSeesAResetAtClose(t *testing.T) {
	t.Parallel()
	b := setup(t, tosssim.Fault{Op: tosssim.OpAny, Hang: true})
	done := make(chan result)
	go func() { done <- b.confirm("test_a", "k") }()
	b.calls(tosssim.OpConfirm, 1, 1)
	if err := b.sim.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if r := <-done; r.err == nil {
		t.Errorf("want an error, got %d %s", r.status, r.raw)
	}
}

func TestWorkGoesOnWithoutItsClient(t *testing.T) {
	t.Parallel()
	b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, Hold: true})
	ctx, hangUp := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.hangUpWith(ctx, `{"paymentKey":"test_a","orderId":"order-test_a","amount":15000}`)
	}()
	b.calls(tosssim.OpConfirm, 1, 1)
	hangUp()
	<-ended
	b.sim.ClearFaults()
	b.calls(tosssim.OpConfirm, 1, 0)
	b.wantLedger("test_a", 1, 0, 15000)
}

func TestLateWork(t *testing.T) {
	t.Parallel()
	b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, Late: tosssim.Duration(time.Millisecond), Hold: true, Status: 502})
	r := b.confirm("test_a", "k")
	b.want(r, 502, "")
	if !strings.Contains(r.header.Get("Content-Type"), "html") {
		t.Errorf("a proxy's answer: want HTML, got %s %s", r.header, r.raw)
	}
	b.wantLedger("test_a", 0, 0, 0)
	b.sim.ClearFaults()
	if err := b.sim.Await(t.Context(), func(tosssim.Counters) bool { return b.sim.Ledger().Approvals == 1 }); err != nil {
		t.Fatal(err)
	}
	b.want(b.confirm("test_a", "k"), 200, "")
}

func TestScriptedAnswers(t *testing.T) {
	t.Parallel()
	no := false
	tests := []struct {
		name      string
		fault     tosssim.Fault
		status    int
		code      string
		again     int // status under the same key afterwards
		againCode string
		word      tosssim.Status
		approvals int
	}{
		{"code is kept under the key", tosssim.Fault{Code: "PROVIDER_ERROR"}, 400, "PROVIDER_ERROR", 400, "PROVIDER_ERROR", "", 0},
		{"unless told not to", tosssim.Fault{Code: "PROVIDER_ERROR", Cache: &no}, 400, "PROVIDER_ERROR", 200, "", tosssim.Done, 1},
		{"a bare status comes from a proxy", tosssim.Fault{Status: 503, RetryAfter: 7}, 503, "", 200, "", tosssim.Done, 1},
		{"throttled", tosssim.Fault{Code: "TOO_MANY_REQUESTS"}, 429, "TOO_MANY_REQUESTS", 200, "", tosssim.Done, 1},
		{"approved behind a 500", tosssim.Fault{Code: "UNKNOWN_PAYMENT_ERROR", Work: tosssim.WorkDo}, 500, "UNKNOWN_PAYMENT_ERROR", 200, "", tosssim.Done, 1},
		{"unknown code with a status", tosssim.Fault{Code: "NEW_CODE", Status: 418, Message: "new"}, 418, "NEW_CODE", 418, "NEW_CODE", "", 0},
		{"a decline is real", tosssim.Fault{Code: "INVALID_PASSWORD"}, 403, "INVALID_PASSWORD", 403, "INVALID_PASSWORD", tosssim.Aborted, 0},
		{"or not", tosssim.Fault{Code: "INVALID_PASSWORD", Abort: &no}, 403, "INVALID_PASSWORD", 403, "INVALID_PASSWORD", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.fault.Op, tt.fault.Next = tosssim.OpConfirm, 1
			b := setup(t, tt.fault)
			first := b.confirm("test_a", "k")
			b.want(first, tt.status, tt.code)
			if want := map[bool]string{true: "7"}[tt.fault.RetryAfter > 0]; first.header.Get("Retry-After") != want {
				t.Errorf("Retry-After: %v", first.header)
			}
			b.want(b.confirm("test_a", "k"), tt.again, tt.againCode)
			if e, _ := b.sim.Payment("test_a"); e.Status != tt.word || e.Approvals != tt.approvals {
				t.Errorf("ledger: want %s with %d approvals, got %+v", tt.word, tt.approvals, e)
			}
		})
	}
}

func TestMalformedAndPatchedBodies(t *testing.T) {
	t.Parallel()
	b := setup(t,
		tosssim.Fault{Op: tosssim.OpConfirm, PaymentKey: "test_cut*", Malformed: tosssim.MalformedTruncated},
		tosssim.Fault{Op: tosssim.OpConfirm, PaymentKey: "test_html", Malformed: tosssim.MalformedHTML},
		tosssim.Fault{Op: tosssim.OpConfirm, PaymentKey: "test_empty", Malformed: tosssim.MalformedEmpty},
		tosssim.Fault{Op: tosssim.OpLookup, OrderID: "order-test_patch", Patch: map[string]json.RawMessage{"status": []byte(`"NEW"`), "totalAmount": []byte(`1`)}})
	if r := b.confirm("test_cut_1", ""); !errors.Is(r.err, io.ErrUnexpectedEOF) {
		t.Errorf("truncated: want an unexpected EOF, got %v %s", r.err, r.raw)
	}
	if r := b.confirm("test_html", ""); r.status != 200 || !strings.HasPrefix(r.raw, "<html>") {
		t.Errorf("html: %s", r.raw)
	}
	if r := b.confirm("test_empty", ""); r.status != 200 || r.raw != "" {
		t.Errorf("empty: %s", r.raw)
	}
	b.confirm("test_patch", "")
	if r := b.lookup("test_patch"); r.str("status") != "NEW" || r.num("totalAmount") != "1" || r.str("paymentKey") != "test_patch" {
		t.Errorf("patched: %s", r.raw)
	}
	if l := b.sim.Ledger(); l.Approvals != 4 {
		t.Errorf("approvals: want 4, got %+v", l.Totals)
	}
}

func TestLatenciesAddUpAndTheFirstActDecides(t *testing.T) {
	t.Parallel()
	b := setup(t,
		tosssim.Fault{Op: tosssim.OpAny, Latency: tosssim.Latency{Min: tosssim.Duration(40 * time.Millisecond), Max: tosssim.Duration(60 * time.Millisecond)}},
		tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(50 * time.Millisecond), Code: "PROVIDER_ERROR", Next: 1},
		tosssim.Fault{Op: tosssim.OpConfirm, Code: "COMMON_ERROR", Next: 1})
	for _, want := range []struct {
		code string
		min  time.Duration
	}{{"PROVIDER_ERROR", 90 * time.Millisecond}, {"COMMON_ERROR", 40 * time.Millisecond}, {"", 40 * time.Millisecond}} {
		began := time.Now()
		if r := b.confirm("test_a", ""); r.code != want.code || time.Since(began) < want.min {
			t.Errorf("want %q after %s, got %q after %s", want.code, want.min, r.code, time.Since(began))
		}
	}
	if f := b.sim.Faults(); f[0].Hits != 3 || f[1].Hits != 1 || f[2].Hits != 1 {
		t.Errorf("hits: %+v", f)
	}
}

func TestRateIsRepeatable(t *testing.T) {
	t.Parallel()
	run := func() (codes string) {
		b := setup(t, tosssim.Fault{Op: tosssim.OpLookup, Code: "COMMON_ERROR", Rate: 0.3})
		for range 200 {
			codes += b.lookup("none").code[:1]
		}
		return codes
	}
	first, second := run(), run()
	if hits := strings.Count(first, "C"); first != second || hits < 35 || hits > 85 {
		t.Errorf("want about 60 of 200, the same twice:\n%s\n%s", first, second)
	}
}

func TestSlowCallsDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, PaymentKey: "test_slow*", Hold: true})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { b.want(b.confirm(fmt.Sprint("test_slow_", i), ""), 200, "") })
	}
	b.calls(tosssim.OpConfirm, 50, 50)
	b.want(b.confirm("test_fast", ""), 200, "")
	if c := b.sim.Counters().Ops[tosssim.OpConfirm]; c.MaxRunning < 50 {
		t.Errorf("most at once: want 50 or more, got %+v", c)
	}
	b.sim.ClearFaults()
	wg.Wait()
}

func TestBadFaultsAreExplained(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for body, want := range map[string]string{
		`[{"op":"pay"}]`:                      `op: "pay" is not one of confirm, lookup, cancel, transactions, *`,
		`{"op":"confirm"} x`:                  "something follows",
		``:                                    "empty",
		`[{"op":"confirm","delay":1}]`:        `unknown field "delay"`,
		`[{"op":"confirm","latency":"soon"}]`: `"soon" is not like "300ms"`,
		`[{"op":"confirm","latency":{"min":"2s","max":"1s"}}]`:           "0 <= min <= max",
		`[{"op":"confirm","latency":{"mean":1}}]`:                        `unknown field "mean"`,
		`[{"op":"confirm","rate":50}]`:                                   "rate: must be 0 to 1",
		`[{"op":"confirm","hang":true,"drop":"after"}]`:                  "exclude each other",
		`[{"op":"lookup","late":"1s"}]`:                                  "only for confirm and cancel",
		`[{"op":"confirm","late":"1s","drop":"after"}]`:                  "late: goes with",
		`[{"op":"confirm","status":42}]`:                                 "status: must be 200 to 599",
		`[{"op":"*","code":"INVALID_PASSWORD","abort":true}]`:            "abort: goes with op confirm",
		`[{"op":"confirm","retryAfter":1}]`:                              "retryAfter: goes with",
		`[{"op":"confirm"},{"op":"confirm","malformed":"x","next":-1}]`:  "fault 2:",
		`[{"op":"confirm","drop":"sometimes","work":"maybe","hang":""}]`: "cannot unmarshal",
	} {
		r := b.control("POST", "/control/faults", body)
		if r.status != 400 || !strings.Contains(r.str("error"), want) {
			t.Errorf("%s: want 400 %q, got %d %s", body, want, r.status, r.raw)
		}
	}
	if f := b.sim.Faults(); len(f) != 0 {
		t.Errorf("a bad list was taken: %+v", f)
	}
}

func TestRude(t *testing.T) {
	t.Parallel()
	o := tosssim.Rude(7)
	o.Faults[0].Latency = tosssim.Latency{} // as fast as it goes
	for i := range o.Faults {
		o.Faults[i].Late = min(o.Faults[i].Late, tosssim.Duration(50*time.Millisecond))
		if o.Faults[i].Late > 0 {
			o.Faults[i].Drop = tosssim.DropBefore // in place of hanging
		}
	}
	b := setupWith(t, o)
	answers := map[string]int{}
	for i := range 600 {
		r := b.confirm(fmt.Sprint("test_", i), "")
		answers[fmt.Sprintf("%d%s %v", r.status, r.code, r.err != nil)]++
	}
	for _, want := range []string{"200 false", "0 true", "400ALREADY_PROCESSED_PAYMENT false", "500FAILED_INTERNAL_SYSTEM_PROCESSING false", "400PROVIDER_ERROR false"} {
		if answers[want] == 0 {
			t.Errorf("never seen: %s in %v", want, answers)
		}
	}
	if good := answers["200 false"]; good < 450 || good > 560 {
		t.Errorf("good answers: want about 520, got %v", answers)
	}
}

// TestHold: what is held goes on when the rules are replaced, and not when some are added.
func TestHold(t *testing.T) {
	t.Parallel()
	b := setup(t,
		tosssim.Fault{Op: tosssim.OpConfirm, PaymentKey: "test_late", Late: 1, Hold: true},
		tosssim.Fault{Op: tosssim.OpConfirm, Hold: true, Drop: tosssim.DropAfter, Next: 1},
		tosssim.Fault{Op: tosssim.OpLookup, Hold: true})
	ctx, hangUp := context.WithCancel(t.Context())
	late, dropped, looked := make(chan bool), make(chan result), make(chan result)
	go func() {
		b.hangUpWith(ctx, `{"paymentKey":"test_late","orderId":"order-1","amount":15000}`)
		close(late)
	}()
	b.calls(tosssim.OpConfirm, 1, 1)
	go func() { dropped <- b.confirm("test_a", "") }()
	b.calls(tosssim.OpConfirm, 2, 2)
	go func() { looked <- b.lookup("test_a") }()
	b.calls(tosssim.OpLookup, 1, 1)
	if err := b.sim.AddFaults(tosssim.Fault{Op: tosssim.OpCancel, Status: 500}); err != nil {
		t.Fatal(err)
	}
	if n := b.sim.Counters().Total.Running; n != 3 || b.sim.Ledger().Approvals != 0 {
		t.Errorf("before the rules are replaced %d run, with %d approvals", n, b.sim.Ledger().Approvals)
	}
	b.sim.ClearFaults()
	if r := <-dropped; !errors.Is(r.err, syscall.ECONNRESET) {
		t.Errorf("want a reset, got %d %v", r.status, r.err)
	}
	if r := <-looked; r.status != 200 && r.status != 404 { // it may come before the approval
		t.Errorf("the lookup is answered %d %v", r.status, r.err)
	}
	if err := b.sim.Await(t.Context(), func(tosssim.Counters) bool { return b.sim.Ledger().Approvals == 2 }); err != nil {
		t.Error(err)
	}
	hangUp()
	<-late
}
