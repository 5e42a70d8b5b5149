package pg

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
	"paymentd/internal/tosssim"
)

// world is the client against the simulator over sockets.
type world struct {
	*Client
	sim *tosssim.Server
	reg *prometheus.Registry
	log *bytes.Buffer
}

func against(t *testing.T, change func(*Options), faults ...tosssim.Fault) *world {
	t.Helper()
	w := &world{sim: tosssim.Start(t, tosssim.Options{Seed: 1, Faults: faults}), reg: prometheus.NewRegistry(), log: new(bytes.Buffer)}
	o := layered()
	o.BaseURL, o.Registerer = w.sim.URL(), w.reg
	o.Logger = slog.New(slog.NewJSONHandler(w.log, nil))
	o.Retry.Delay = time.Millisecond
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	w.Client = c
	return w
}

// keyRule is approval's, without its store: a lookup before the next key.
func (w *world) keyRule(key string) approval.NextTry {
	n := 1
	return func(ctx context.Context, last payment.Answer) (string, bool, payment.Answer) {
		if payment.KeyStepAfter(last) == payment.KeepKey {
			return payment.ConfirmKey(key, n), true, payment.Answer{}
		}
		seen := w.Lookup(ctx, key, approval.OneTry)
		if !payment.OpenForNextKey(seen) {
			return "", false, seen
		}
		n++
		return payment.ConfirmKey(key, n), true, payment.Answer{}
	}
}

func (w *world) confirm(t *testing.T, key string) []payment.Answer {
	c := call(key)
	c.Next = w.keyRule(key)
	return w.Confirm(t.Context(), c)
}

func TestAgainstSimulator(t *testing.T) {
	t.Parallel()
	const key = "test_1"
	tests := []struct {
		name      string
		key       string
		fault     tosssim.Fault
		want      []string
		approvals int
		calls     int64
		outcome   string // of the last try, as a metric
	}{
		{"approved", key, tosssim.Fault{}, []string{"payment"}, 1, 1, "approved"},
		{"declined", "test_decline_1", tosssim.Fault{}, []string{"declined"}, 0, 1, "declined"},
		{"session gone", "test_expired_1", tosssim.Fault{}, []string{"session_gone"}, 0, 1, "declined"},
		{"virtual account", "test_va_1", tosssim.Fault{}, []string{"payment"}, 0, 1, "other"},
		{"dropped before the work", key, tosssim.Fault{Drop: tosssim.DropBefore, Next: 1}, []string{"reset", "payment"}, 1, 2, "approved"},
		{"dropped after the work", key, tosssim.Fault{Drop: tosssim.DropAfter, Next: 1}, []string{"reset", "payment"}, 1, 2, "approved"},
		{"proxy's 502", key, tosssim.Fault{Status: 502, Next: 1}, []string{"fault", "payment"}, 1, 2, "approved"},
		{"500 after the work", key, tosssim.Fault{Status: 500, Work: tosssim.WorkDo, Next: 1}, []string{"fault", "payment"}, 1, 1, "unknown"},
		{"500 kept under the key", key, tosssim.Fault{Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Next: 1}, []string{"fault", "payment"}, 1, 2, "approved"},
		{"cut short", key, tosssim.Fault{Malformed: tosssim.MalformedTruncated, Next: 1}, []string{"reset", "payment"}, 1, 2, "approved"},
		{"html", key, tosssim.Fault{Malformed: tosssim.MalformedHTML, Next: 1}, []string{"fault", "payment"}, 1, 1, "unknown"},
		{"another payment's answer", key, tosssim.Fault{Patch: map[string]jsonRaw{"orderId": jsonRaw(`"order-other"`)}, Next: 1}, []string{"fault", "payment"}, 1, 1, "unknown"},
		{"null fields", key, tosssim.Fault{Patch: map[string]jsonRaw{"method": jsonRaw("null"), "receipt": jsonRaw("null"), "cancels": jsonRaw("null"), "more": jsonRaw("[1]")}}, []string{"payment"}, 1, 1, "approved"},
		{"temporary, says the provider", key, tosssim.Fault{Code: "PROVIDER_ERROR", Next: 1}, []string{"ambiguous"}, 0, 1, "unknown"},
		{"throttled", key, tosssim.Fault{Status: 429, RetryAfter: 2, Next: 1}, []string{"throttled"}, 0, 1, "unavailable"},
		{"wrong key", key, tosssim.Fault{Code: "UNAUTHORIZED_KEY", Next: 1}, []string{"misconfigured"}, 0, 1, "misconfigured"},
		{"unlisted code", key, tosssim.Fault{Code: "BRAND_NEW", Next: 1}, []string{"ambiguous"}, 0, 1, "unknown"},
		{"never answers", key, tosssim.Fault{Hang: true, Next: 1}, []string{"timeout"}, 0, 1, "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := against(t, func(o *Options) {
				if tt.fault.Hang {
					o.ConfirmTimeout = 3 * time.Second
				}
			})
			if tt.fault.Next > 0 || tt.fault.Patch != nil {
				tt.fault.Op = tosssim.OpConfirm
				if err := w.sim.SetFaults(tt.fault); err != nil {
					t.Fatal(err)
				}
			}
			got := w.confirm(t, tt.key)
			if diff := cmp.Diff(tt.want, kinds(got)); diff != "" {
				t.Errorf("answers (-want +got):\n%s", diff)
			}
			if e, _ := w.sim.Payment(tt.key); e.Approvals != tt.approvals {
				t.Errorf("approved %d times, want %d", e.Approvals, tt.approvals)
			}
			if n := w.sim.Counters().Ops[tosssim.OpConfirm].Calls; n != tt.calls {
				t.Errorf("%d confirms at the simulator, want %d", n, tt.calls)
			}
			if n := valueOf(t, w.reg, fmt.Sprintf(`gateway_attempts_total{op="confirm",outcome=%q}`, tt.outcome)); n != 1 {
				t.Errorf("outcome %s counted %v times", tt.outcome, n)
			}
			for _, secret := range []string{"test_sk", `"` + tt.key, tt.key + ":", "Basic"} {
				if strings.Contains(w.log.String(), secret) {
					t.Errorf("%s is in the log: %s", secret, w.log)
				}
			}
			if last := got[len(got)-1]; last.Kind != payment.KindPayment && !strings.Contains(w.log.String(), `"order_id":"order-`+tt.key) {
				t.Errorf("nothing in the log: %s", w.log)
			}
			if tt.name == "throttled" && got[0].RetryAfter != 2*time.Second {
				t.Errorf("Retry-After %v", got[0].RetryAfter)
			}
			if tt.name == "unlisted code" && !strings.Contains(w.log.String(), `"level":"WARN","msg":"gateway said a code that is not listed"`) {
				t.Errorf("no warning: %s", w.log)
			}
		})
	}
}

type jsonRaw = json.RawMessage

// TestTrap31_Simulator: five warm connections and a simulator that works and drops: calls are tries counted.
func TestTrap31_Simulator(t *testing.T) {
	t.Parallel()
	w := against(t, func(o *Options) { o.Rate = Rate{} }, tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(200 * time.Millisecond)})
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { w.confirm(t, fmt.Sprintf("test_warm_%d", i)) })
	}
	wg.Wait()
	if err := w.sim.SetFaults(tosssim.Fault{Op: tosssim.OpConfirm, Drop: tosssim.DropAfter}); err != nil {
		t.Fatal(err)
	}
	got := w.confirm(t, "test_dropped")
	if diff := cmp.Diff([]string{"reset", "reset"}, kinds(got)); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	calls := w.sim.CallsOf(tosssim.CallQuery{PaymentKey: "test_dropped", Op: tosssim.OpConfirm})
	if len(calls) != len(got) {
		t.Errorf("%d calls at the simulator for %d tries", len(calls), len(got))
	}
	if n := valueOf(t, w.reg, `gateway_attempts_total{op="confirm",outcome="unknown"}`); n != 2 {
		t.Errorf("%v tries counted", n)
	}
}

func TestLookupAndCancelAgainstSimulator(t *testing.T) {
	t.Parallel()
	w := against(t, nil)
	ctx := t.Context()
	if got := w.Lookup(ctx, "nobody", approval.OneTry); got.Kind != payment.KindNotFound || got.Observation.Sighting != payment.SeenNotFound {
		t.Errorf("unknown payment: %+v", got)
	}
	w.confirm(t, "test_1")
	seen := w.Lookup(ctx, "test_1", approval.Patient)
	if o := seen.Observation; seen.Kind != payment.KindPayment || o.Sighting != payment.SeenDone || o.Total != 15000 || o.ApprovedAt.IsZero() || o.TraceID == "" {
		t.Errorf("lookup: %+v", seen)
	}
	order := seen.Observation.OrderID
	if got := w.LookupByOrder(ctx, order, approval.OneTry); got.Kind != payment.KindPayment || got.Observation.PaymentKey != "test_1" {
		t.Errorf("lookup by order: %+v", got)
	}
	if got := w.LookupByOrder(ctx, "no-such-order", approval.OneTry); got.Kind != payment.KindNotFound {
		t.Errorf("unknown order: %+v", got)
	}
	if err := w.sim.SetFaults(tosssim.Fault{Op: tosssim.OpLookup, Patch: map[string]json.RawMessage{"orderId": json.RawMessage(`"another"`)}, Next: 1}); err != nil {
		t.Fatal(err)
	}
	if got := w.LookupByOrder(ctx, order, approval.OneTry); got.Kind != payment.KindFault {
		t.Errorf("lookup by order that shows another: %+v", got)
	}
	c := approval.CancelCall{
		PaymentKey: "test_1", Key: "c-a-1", Reason: "size [c-abcdefghijklmnopqrstuvwxyz]", Amount: 5000, Balance: 15000, Currency: "KRW", Tries: approval.Patient,
	}
	if err := w.sim.SetFaults(tosssim.Fault{Op: tosssim.OpCancel, Drop: tosssim.DropAfter, Next: 1}); err != nil {
		t.Fatal(err)
	}
	got := w.Cancel(ctx, c)
	if o := got.Observation; got.Kind != payment.KindPayment || o.Sighting != payment.SeenPartlyCanceled || o.Balance != 10000 || len(o.Cancels) != 1 || !o.Cancels[0].Ours() {
		t.Errorf("cancel whose first answer was lost: %+v", got)
	}
	c.Key = "c-b-1" // the balance is 10000 now
	if got := w.Cancel(ctx, c); got.Kind != payment.KindAmbiguous || got.Code != "NOT_MATCHES_REFUNDABLE_AMOUNT" {
		t.Errorf("cancel by a wrong balance: %+v", got)
	}
	c.Key, c.Balance, c.Full = "c-c-1", 10000, true
	if got := w.Cancel(ctx, c); got.Kind != payment.KindPayment || !got.Observation.Returned() {
		t.Errorf("cancel of the rest: %+v", got)
	}
	c.Key, c.Balance = "c-d-1", 0
	if got := w.Cancel(ctx, c); got.Kind != payment.KindAmbiguous {
		t.Errorf("cancel of nothing: %+v", got)
	}
	w.confirm(t, "test_va_1")
	c.PaymentKey, c.Key, c.Balance = "test_va_1", "c-e-1", 15000
	if got := w.Cancel(ctx, c); got.Kind != payment.KindPayment {
		t.Errorf("cancel of an unpaid virtual account: %+v", got)
	}
	if e, _ := w.sim.Payment("test_1"); e.Balance != 0 || e.Cancels != 2 {
		t.Errorf("ledger: %+v", e)
	}
}

// TestBusy: while one confirm runs, the same key and another key are told apart.
func TestBusy(t *testing.T) {
	t.Parallel()
	w := against(t, nil, tosssim.Fault{Op: tosssim.OpConfirm, Hold: true, Next: 1})
	var wg sync.WaitGroup
	wg.Go(func() { w.confirm(t, "test_1") })
	err := w.sim.Await(t.Context(), func(c tosssim.Counters) bool { return c.Ops[tosssim.OpConfirm].Running == 1 })
	if err != nil {
		t.Fatal(err)
	}
	c := call("test_1")
	if got := w.Confirm(t.Context(), c); got[0].Kind != payment.KindKeyBusy {
		t.Errorf("same key: %+v", got)
	}
	for _, asS008 := range []bool{false, true} {
		w.sim.Configure(func(s *tosssim.Settings) { s.BusyAsS008 = asS008 })
		c.Key = fmt.Sprintf("other:%v", asS008)
		if got := w.Confirm(t.Context(), c); len(got) != 1 || got[0].Kind != payment.KindProcessing {
			t.Errorf("other key, S008 %v: %+v", asS008, got)
		}
	}
	w.sim.ClearFaults()
	wg.Wait()
}
