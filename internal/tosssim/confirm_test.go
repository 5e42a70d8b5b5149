package tosssim_test

import (
	"encoding/base64"
	"fmt"
	"sync"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

func TestConfirm(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		paymentKey string
		orderID    string
		amount     string
		status     int
		code       string
		approvals  int
	}{
		{"approves any test key", "test_a", "order-1", "15000", 200, "", 1},
		{"takes a whole number with a point", "test_a", "order-1", "15000.0", 200, "", 1},
		{"refuses a fraction of a won", "test_a", "order-1", "15000.5", 400, "INVALID_REQUEST", 0},
		{"takes cents", "test_usd_a", "order-1", "12.5", 200, "", 1},
		{"refuses an exponent", "test_a", "order-1", "15e3", 400, "INVALID_REQUEST", 0},
		{"refuses text for an amount", "test_a", "order-1", `"15000"`, 400, "INVALID_REQUEST", 0},
		{"refuses a missing amount", "test_a", "order-1", "null", 400, "INVALID_REQUEST", 0},
		{"refuses a short orderId", "test_a", "o", "15000", 400, "INVALID_REQUEST", 0},
		{"refuses an orderId with a space", "test_a", "order 1", "15000", 400, "INVALID_REQUEST", 0},
		{"refuses no paymentKey", "", "order-1", "15000", 400, "INVALID_REQUEST", 0},
		{"does not know other keys", "pay_a", "order-1", "15000", 404, "NOT_FOUND_PAYMENT_SESSION", 0},
		{"declines", "test_decline_a", "order-1", "15000", 403, "REJECT_CARD_PAYMENT", 0},
		{"says that the session is gone", "test_expired_a", "order-1", "15000", 404, "NOT_FOUND_PAYMENT_SESSION", 0},
		{"issues a virtual account", "test_va_a", "order-1", "15000", 200, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.want(b.confirmFor(tt.paymentKey, tt.orderID, tt.amount, ""), tt.status, tt.code)
			if e, _ := b.sim.Payment(tt.paymentKey); e.Approvals != tt.approvals {
				t.Errorf("approvals: want %d, got %+v", tt.approvals, e)
			}
		})
	}
}

func TestConfirmReadsUnusualJSON(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, body := range []string{
		` { "orderId" : "order-1", "paymentKey":"test_%d" , "amount": 15000 } `,
		`{"paymentKey":"test_\u002d%d","orderId":"order-1","amount":15000}`,
		`{"extra":{"a":[1]},"paymentKey":"test_,}%d","orderId":"order-1","amount":15000}`,
		`{"amount":15000.00,"paymentKey":"test_%d","orderId":"order-1"}`,
	} {
		b.want(b.toss("POST", "/v1/payments/confirm", fmt.Sprintf(body, i), nil), 200, "")
	}
	for _, body := range []string{``, `{`, `[]`, `{"paymentKey":"test_x","orderId":"order-1","amount":15000}x`,
		`{"paymentKey":"test_x","orderId":"order-1","amount":15000,}`, `{"paymentKey":"test_x,"orderId":"order-1","amount":15000}`,
		`{"paymentKey":"test_x","orderId":"order-1","amount":015000}`, `{"paymentKey":"test_x","orderId":"order-1","amount":}`} {
		b.want(b.toss("POST", "/v1/payments/confirm", body, nil), 400, "INVALID_REQUEST")
	}
	if l := b.sim.Ledger(); l.Approvals != 4 {
		t.Errorf("approvals: want 4, got %+v", l)
	}
}

func TestConfirmOfAFinishedPayment(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.confirm("test_a", "k1"), 200, "")
	b.want(b.confirm("test_a", "k2"), 400, "ALREADY_PROCESSED_PAYMENT")
	b.want(b.confirmFor("test_a", "order-other", "1", ""), 400, "ALREADY_PROCESSED_PAYMENT")
	b.want(b.confirm("test_decline_a", "k3"), 403, "REJECT_CARD_PAYMENT")
	b.want(b.confirm("test_decline_a", "k4"), 400, "ALREADY_PROCESSED_PAYMENT")
	if r := b.lookup("test_decline_a"); r.str("status") != "ABORTED" {
		t.Errorf("declined: want ABORTED, got %s", r.raw)
	}
	b.wantLedger("test_a", 1, 0, 15000)
}

func TestConfirmThatDiffersFromTheWindow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.sim.AddPayment(tosssim.NewPayment{PaymentKey: "pay_a", OrderID: "order-1", Amount: 15000}); err != nil {
		t.Fatal(err)
	}
	b.want(b.confirmFor("pay_a", "order-1", "14999", "k1"), 400, "INVALID_REQUEST")
	b.want(b.confirmFor("pay_a", "order-2", "15000", "k2"), 403, "FORBIDDEN_REQUEST")
	b.want(b.confirmFor("pay_a", "order-1", "15000", "k1"), 400, "INVALID_REQUEST") // the first answer of k1
	b.want(b.confirmFor("pay_a", "order-1", "15000", "k3"), 200, "")
	b.wantLedger("pay_a", 1, 0, 15000)
}

func TestConfirmWindow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, p := range []tosssim.NewPayment{
		{PaymentKey: "pay_in_time", OrderID: "order-1", Amount: 100}, {PaymentKey: "pay_late", OrderID: "order-2", Amount: 100},
		{PaymentKey: "pay_ready", OrderID: "order-3", Amount: 100, Status: tosssim.Ready},
	} {
		if _, err := b.sim.AddPayment(p); err != nil {
			t.Fatal(err)
		}
	}
	b.want(b.confirmFor("pay_ready", "order-3", "100", ""), 404, "NOT_FOUND_PAYMENT_SESSION")
	b.sim.Advance(9*time.Minute + 50*time.Second)
	b.want(b.confirmFor("pay_in_time", "order-1", "100", ""), 200, "")
	b.sim.Advance(11 * time.Second)
	b.want(b.confirmFor("pay_late", "order-2", "100", ""), 404, "NOT_FOUND_PAYMENT_SESSION")
	r := b.lookup("pay_late")
	b.want(r, 200, "")
	if failure, _ := r.body["failure"].(map[string]any); r.str("status") != "EXPIRED" || failure["code"] != "EXPIRED_PAYMENT" ||
		r.num("balanceAmount") != "100" || r.body["method"] != nil || r.body["useEscrow"] != nil {
		t.Errorf("expired: got %s", r.raw)
	}
	if r := b.lookup("pay_ready"); r.str("status") != "READY" {
		t.Errorf("ready before 30 minutes: got %s", r.raw)
	}
	b.sim.Advance(20 * time.Minute)
	if r := b.lookup("pay_ready"); r.str("status") != "EXPIRED" {
		t.Errorf("ready after 30 minutes: got %s", r.raw)
	}
	b.sim.Configure(func(s *tosssim.Settings) { s.ForgetExpired = true })
	b.want(b.lookup("pay_late"), 404, "NOT_FOUND_PAYMENT")
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.confirm("test_a", "k")
	b.want(b.cancel("test_a", `{"cancelReason":"x","cancelAmount":5000}`, "c"), 200, "")
	if again := b.confirm("test_a", "k"); again.raw != first.raw {
		t.Errorf("replay: want the first answer\n%s\ngot\n%s", first.raw, again.raw)
	}
	// The body is not compared: another payment under the same key gets the first one's answer, and no approval.
	if other := b.confirm("test_b", "k"); other.raw != first.raw {
		t.Errorf("other body: want the first answer, got %s", other.raw)
	}
	b.wantLedger("test_b", 0, 0, 0)
	// Another secret key is another key.
	other := b.do("POST", b.sim.URL()+"/v1/payments/confirm", `{"paymentKey":"test_c","orderId":"order-c","amount":1}`, header{
		"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte("test_sk_other:")), "Idempotency-Key": "k",
	})
	if other.str("paymentKey") != "test_c" {
		t.Errorf("other API key: got %s", other.raw)
	}
	// Another URL too: a cancel under the confirm's key is worked on.
	b.want(b.cancel("test_a", `{"cancelReason":"x","cancelAmount":1000}`, "k"), 200, "")
	b.wantLedger("test_a", 1, 2, 9000)
	b.sim.Advance(15*24*time.Hour + time.Minute)
	b.want(b.confirm("test_a", "k"), 400, "ALREADY_PROCESSED_PAYMENT")
	long := make([]byte, 301)
	for i := range long {
		long[i] = 'k'
	}
	b.want(b.confirm("test_d", string(long)), 400, "INVALID_IDEMPOTENCY_KEY")
	b.want(b.confirm("test_d", string(long[:300])), 200, "")
}

func TestErrorsAreReplayed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.confirmFor("pay_a", "order-1", "100", "k"), 404, "NOT_FOUND_PAYMENT_SESSION")
	b.want(b.cancel("pay_a", `{"cancelReason":"x"}`, "c"), 404, "NOT_FOUND_PAYMENT")
	if _, err := b.sim.AddPayment(tosssim.NewPayment{PaymentKey: "pay_a", OrderID: "order-1", Amount: 100, Status: tosssim.Done}); err != nil {
		t.Fatal(err)
	}
	b.want(b.confirmFor("pay_a", "order-1", "100", "k"), 404, "NOT_FOUND_PAYMENT_SESSION")
	b.want(b.cancel("pay_a", `{"cancelReason":"x"}`, "c"), 404, "NOT_FOUND_PAYMENT")
	b.want(b.cancel("pay_a", `{"cancelReason":"x"}`, "c2"), 200, "")
	if c := b.sim.Counters().Total; c.Replayed != 2 || c.Errors != 4 {
		t.Errorf("counters: want 2 replayed and 4 errors, got %+v", c)
	}
}

func TestWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	for _, s008 := range []bool{false, true} {
		t.Run(fmt.Sprintf("S008 %v", s008), func(t *testing.T) {
			t.Parallel()
			b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, Late: tosssim.Duration(time.Millisecond), Hold: true, Drop: tosssim.DropBefore, Next: 1})
			b.sim.Configure(func(s *tosssim.Settings) { s.BusyAsS008 = s008 })
			if r := b.confirm("test_a", "k1"); r.err == nil {
				t.Errorf("dropped: got an answer %+v", r)
			}
			b.want(b.confirm("test_a", "k1"), 409, "IDEMPOTENT_REQUEST_PROCESSING")
			busy := b.confirm("test_a", "k2")
			if s008 {
				b.want(busy, 500, "FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING")
				if m := busy.str("message"); len(m) < 6 || m[:6] != "[S008]" {
					t.Errorf("message: %q", m)
				}
			} else {
				b.want(busy, 400, "ALREADY_PROCESSING_REQUEST")
			}
			b.wantLedger("test_a", 0, 0, 0)
			b.sim.ClearFaults()
			if err := b.sim.Await(t.Context(), func(tosssim.Counters) bool { return b.sim.Ledger().Approvals == 1 }); err != nil {
				t.Fatal(err)
			}
			b.want(b.confirm("test_a", "k1"), 200, "")
			b.want(b.confirm("test_a", "k2"), busy.status, busy.code) // kept under the key that received it
			b.want(b.confirm("test_a", "k3"), 400, "ALREADY_PROCESSED_PAYMENT")
			b.wantLedger("test_a", 1, 0, 15000)
		})
	}
}

func TestHundredConfirmsAtOnceAreOneApproval(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{0, 100 * time.Millisecond} {
		t.Run(latency.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(latency)})
			results := make([]result, 100)
			var wg sync.WaitGroup
			for i := range results {
				wg.Go(func() { results[i] = b.confirm("test_a", fmt.Sprint("k", i)) })
			}
			wg.Wait()
			approved := 0
			for _, r := range results {
				switch {
				case r.err == nil && r.status == 200:
					approved++
				case r.code != "ALREADY_PROCESSED_PAYMENT" && r.code != "ALREADY_PROCESSING_REQUEST":
					t.Errorf("loser: got %d %s %v", r.status, r.code, r.err)
				}
			}
			if approved != 1 {
				t.Errorf("approved answers: want 1, got %d", approved)
			}
			b.wantLedger("test_a", 1, 0, 15000)
		})
	}
}

func TestGatewayThatChargesAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.control("POST", "/control/options", `{"idempotency":false,"singleUse":false}`)
	for range 3 {
		b.want(b.confirm("test_a", "k"), 200, "")
	}
	b.wantLedger("test_a", 3, 0, 45000)
	b.want(b.cancel("test_a", `{"cancelReason":"x"}`, ""), 200, "")
	b.wantLedger("test_a", 3, 1, 30000)
	if l := b.sim.LedgerOf(tosssim.LedgerQuery{Summary: true}); l.ApprovedSum != 45000 || l.CanceledSum != 15000 || l.Payments != nil {
		t.Errorf("summary: %+v", l)
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	b := setupWith(t, tosssim.Options{SecretKeys: []string{"test_sk_mine"}})
	encode := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	tests := []struct {
		name, authorization string
		status              int
		code                string
	}{
		{"good", encode("test_sk_mine:"), 404, "NOT_FOUND_PAYMENT"},
		{"none", "", 401, "UNAUTHORIZED_KEY"},
		{"bearer", "Bearer test_sk_mine", 401, "UNAUTHORIZED_KEY"},
		{"not base64", "Basic %%%", 401, "UNAUTHORIZED_KEY"},
		{"unknown", encode("test_sk_yours:"), 401, "UNAUTHORIZED_KEY"},
		{"live", encode("live_sk_mine:"), 401, "UNAUTHORIZED_KEY"},
		{"byte order mark", encode("\ufefftest_sk_mine:"), 401, "UNAUTHORIZED_KEY"},
		{"no colon", encode("test_sk_mine"), 403, "INCORRECT_BASIC_AUTH_FORMAT"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := &bench{t: t, sim: b.sim, hc: b.hc}
			for range 2 { // the second time from the cache
				r := b.do("GET", b.sim.URL()+"/v1/payments/none", "", header{"Authorization": tt.authorization})
				b.want(r, tt.status, tt.code)
				if len(r.header.Get("X-TossPayments-Trace-Id")) != 32 {
					t.Errorf("trace id: %v", r.header)
				}
			}
		})
	}
}

func TestLiveKeyAtStart(t *testing.T) {
	t.Parallel()
	if err := (tosssim.Options{SecretKeys: []string{"live_sk_x"}}).Validate(); err == nil {
		t.Error("a live key was accepted")
	}
	defer func() {
		if recover() == nil {
			t.Error("New took a live key")
		}
	}()
	tosssim.New(tosssim.Options{SecretKeys: []string{"live_sk_x"}})
}
