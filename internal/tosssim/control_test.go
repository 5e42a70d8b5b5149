package tosssim_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

func newRequest(ctx context.Context, url, body string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewBufferString(body))
	if err == nil {
		req.Header.Set("Authorization", basic)
	}
	return req, err
}

func TestListenDownAndUp(t *testing.T) {
	t.Parallel()
	b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, PaymentKey: "test_hung", Hang: true})
	url := b.sim.URL()
	hung := make(chan result)
	go func() { hung <- b.confirm("test_hung", "") }()
	b.calls(tosssim.OpConfirm, 1, 1)
	b.want(b.confirm("test_a", "k"), 200, "")
	b.want(b.control("POST", "/control/listen", `{"up":false}`), 200, "")
	b.want(b.control("POST", "/control/listen", `{"up":false}`), 200, "")
	if r := <-hung; r.err == nil {
		t.Errorf("an open connection survived: %+v", r)
	}
	if r := b.confirm("test_b", "k"); !errors.Is(r.err, syscall.ECONNREFUSED) {
		t.Errorf("want a refused dial, got %d %v", r.status, r.err)
	}
	for range 200 { // another program, which asks for any port
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if "http://"+l.Addr().String() == url {
			t.Fatal("the closed port was given away")
		}
		_ = l.Close()
	}
	b.want(b.control("POST", "/control/listen", `{"up":true}`), 200, "")
	if b.sim.URL() != url {
		t.Errorf("address: want %s, got %s", url, b.sim.URL())
	}
	b.want(b.confirm("test_a", "k2"), 400, "ALREADY_PROCESSED_PAYMENT")
	b.want(b.control("POST", "/control/listen", `{}`), 400, "")
}

func TestListenStopsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	v, err := tosssim.New(tosssim.Options{}).Listen(ctx, "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tosssim.New(tosssim.Options{}).Listen(ctx, "127.0.0.1:0", strings.TrimPrefix(v.ControlURL(), "http://")); err == nil {
		t.Error("two simulators on one control port")
	}
	cancel()
	<-v.Done()
	b := &bench{t: t, sim: v, hc: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, url := range []string{v.URL(), v.ControlURL()} {
		if r := b.do("GET", url+"/", "", nil); !errors.Is(r.err, syscall.ECONNREFUSED) {
			t.Errorf("%s: want a refused dial, got %v", url, r.err)
		}
	}
	if err := v.SetListening(true); err == nil {
		t.Error("a closed server listens again")
	}
}

func TestControlCalls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tests := []struct {
		name, method, path, body string
		status                   int
		want                     string
	}{
		{"list", "GET", "/control/", "", 200, "POST /control/faults"},
		{"unknown path", "GET", "/control/none", "", 400, "no call GET /control/none"},
		{"payment", "POST", "/control/payments", `{"paymentKey":"pay_1","orderId":"order-1","amount":100,"method":"card"}`, 200, `"status":"IN_PROGRESS"`},
		{"payment twice", "POST", "/control/payments", `{"paymentKey":"pay_1","orderId":"order-1","amount":100}`, 400, "exists already"},
		{"bad payment", "POST", "/control/payments", `{"paymentKey":"","orderId":"o","amount":-1,"method":"gold","status":"PAID","decline":"NO"}`, 400, `method: \"gold\"`},
		{"no edge", "POST", "/control/status", `{"paymentKey":"pay_1","status":"CANCELED"}`, 400, "no way from IN_PROGRESS to CANCELED"},
		{"paid behind our back", "POST", "/control/status", `{"paymentKey":"pay_1","status":"DONE"}`, 200, `"approvals":1`},
		{"cancel in part", "POST", "/control/cancel", `{"paymentKey":"pay_1","amount":40}`, 200, `"balance":60`},
		{"cancel too much", "POST", "/control/cancel", `{"paymentKey":"pay_1","amount":61}`, 400, "not within the balance of 60"},
		{"cancel the rest", "POST", "/control/status", `{"paymentKey":"pay_1","status":"CANCELED"}`, 200, `"balance":0`},
		{"cancel an unknown", "POST", "/control/cancel", `{"paymentKey":"pay_9"}`, 400, "is not known"},
		{"ledger", "GET", "/control/ledger", "", 200, `"approvals":1,"cancels":2,"approvedSum":100,"canceledSum":100,"payments":[{"paymentKey":"pay_1"`},
		{"ledger summary", "GET", "/control/ledger?summary=true", "", 200, `{"approvals":1,"cancels":2,"approvedSum":100,"canceledSum":100}`},
		{"ledger of none", "GET", "/control/ledger?paymentKey=none", "", 200, `"payments":[]`},
		{"ledger typo", "GET", "/control/ledger?payment=1", "", 400, "payment: unknown; possible: paymentKey"},
		{"calls", "GET", "/control/calls?limit=0", "", 200, `"calls":[]`},
		{"calls typo", "GET", "/control/calls?limit=-1", "", 400, "limit: must be"},
		{"options", "POST", "/control/options", `{"windowSeconds":1.5,"busyAsS008":true}`, 200, `"idempotency":true,"singleUse":true,"windowSeconds":1.5`},
		{"bad window", "POST", "/control/options", `{"windowSeconds":0}`, 400, "windowSeconds: must be above 0"},
		{"options typo", "POST", "/control/options", `{"singleuse":true,"x":1}`, 400, `unknown field`},
		{"one fault", "POST", "/control/faults", `{"op":"lookup","hang":true,"next":2}`, 200, `[{"op":"lookup","hang":true,"next":2,"hits":0}]`},
		{"one more", "POST", "/control/faults?add=true", `[{"op":"cancel","latency":250}]`, 200, `{"op":"cancel","latency":{"min":"250ms","max":"250ms"},"hits":0}]`},
		{"other faults", "POST", "/control/faults", `[{"op":"cancel","drop":"after"}]`, 200, `[{"op":"cancel","drop":"after","hits":0}]`},
		{"clear", "DELETE", "/control/faults", "", 200, `[]`},
		{"clock back", "POST", "/control/clock", `{"advanceSeconds":-1}`, 400, "forward only"},
		{"clock", "POST", "/control/clock", `{"advanceSeconds":60}`, 200, "+09:00"},
		{"webhook to nowhere", "POST", "/control/webhook", `{"paymentKey":"pay_1","url":"http://127.0.0.1:1/"}`, 400, "send webhook"},
		{"deposit of a card", "POST", "/control/deposit", `{"paymentKey":"pay_1"}`, 400, "no way from CANCELED"},
		{"reset", "POST", "/control/reset", "", 200, `"approvals":0`},
		{"settings after reset", "GET", "/control/options", "", 200, `"windowSeconds":600`},
	}
	for _, tt := range tests { // one story, in this order
		r := b.control(tt.method, tt.path, tt.body)
		if r.err != nil || r.status != tt.status || !strings.Contains(r.raw, tt.want) {
			t.Errorf("%s: want %d %s, got %d %s %v", tt.name, tt.status, tt.want, r.status, r.raw, r.err)
		}
	}
}

func TestCallsAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	b := setupWith(t, tosssim.Options{CallLog: 5})
	for _, key := range []string{"test_1", "test_2", "test_3", "test_4", "test_5", "test_6"} {
		b.confirm(key, key+":1")
	}
	b.confirm("test_6", "test_6:2")
	calls := b.sim.Calls()
	if len(calls) != 5 || calls[0].PaymentKey != "test_3" || calls[4].Code != "ALREADY_PROCESSED_PAYMENT" || calls[4].Seq != 7 {
		t.Errorf("calls: %+v", calls)
	}
	one := b.sim.CallsOf(tosssim.CallQuery{OrderID: "order-test_6", Limit: 1})
	if len(one) != 1 || one[0].IdempotencyKey != "test_6:2" || one[0].Status != 400 || one[0].Ended.Before(one[0].Started) {
		t.Errorf("newest of the order: %+v", one)
	}
	c := b.sim.Counters()
	if n := c.Ops[tosssim.OpConfirm]; n.Calls != 7 || n.OK != 6 || n.Errors != 1 || n.Running != 0 || c.Codes["ALREADY_PROCESSED_PAYMENT"] != 1 {
		t.Errorf("counters: %+v", c)
	}
	var answer struct {
		Counters tosssim.Counters
		Calls    []tosssim.Call
	}
	r := b.control("GET", "/control/calls?op=confirm&limit=2", "")
	if err := json.Unmarshal([]byte(r.raw), &answer); err != nil || len(answer.Calls) != 2 || answer.Counters.Total.Calls != 7 {
		t.Errorf("over HTTP: %v %s", err, r.raw)
	}
}

func TestResetForgetsWorkUnderWay(t *testing.T) {
	t.Parallel()
	b := setup(t, tosssim.Fault{Op: tosssim.OpConfirm, Hold: true, Next: 1})
	done := make(chan result)
	go func() { done <- b.confirm("test_a", "k") }()
	b.calls(tosssim.OpConfirm, 1, 1)
	b.sim.Reset()
	b.want(<-done, 200, "")
	if l := b.sim.Ledger(); l.Approvals != 0 || len(l.Payments) != 0 || len(b.sim.Calls()) != 0 {
		t.Errorf("after reset: %+v", l)
	}
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type delivery struct {
		header http.Header
		body   map[string]any
	}
	got := make(chan delivery, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		d := delivery{header: r.Header}
		if err := json.Unmarshal(raw, &d.body); err != nil {
			t.Errorf("body: %v in %s", err, raw)
		}
		got <- d
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(receiver.Close)

	b.confirm("test_a", "")
	sent := b.control("POST", "/control/webhook", `{"paymentKey":"test_a","url":"`+receiver.URL+`","transmissionId":"whtrans_1","retried":2}`)
	if sent.num("status") != "503" || sent.str("transmissionId") != "whtrans_1" {
		t.Errorf("delivery: %s", sent.raw)
	}
	d := <-got
	data, _ := d.body["data"].(map[string]any)
	if d.body["eventType"] != "PAYMENT_STATUS_CHANGED" || data["paymentKey"] != "test_a" || data["status"] != "DONE" ||
		d.header.Get("tosspayments-webhook-transmission-id") != "whtrans_1" || d.header.Get("tosspayments-webhook-transmission-retried-count") != "2" ||
		d.header.Get("tosspayments-webhook-signature") != "" {
		t.Errorf("status changed: %+v", d)
	}
	if _, err := time.Parse("2006-01-02T15:04:05.000000", d.body["createdAt"].(string)); err != nil {
		t.Errorf("createdAt: %v", err)
	}
	if _, err := time.Parse(time.RFC3339, d.header.Get("tosspayments-webhook-transmission-time")); err != nil {
		t.Errorf("transmission time: %v", err)
	}

	issued := b.confirm("test_va_a", "")
	if _, err := b.sim.Deposit("test_va_a"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.sim.SendWebhook(t.Context(), tosssim.Webhook{PaymentKey: "test_va_a", URL: receiver.URL}); err != nil {
		t.Fatal(err)
	}
	d = <-got
	if d.body["status"] != "DONE" || d.body["secret"] != issued.str("secret") || d.body["orderId"] != "order-test_va_a" ||
		d.body["transactionKey"] == nil || d.body["eventType"] != nil || d.body["paymentKey"] != nil {
		t.Errorf("deposit callback: %+v", d.body)
	}
	if _, err := b.sim.AddPayment(tosssim.NewPayment{PaymentKey: "pay_1", OrderID: "order-1", Amount: 1}); err != nil {
		t.Fatal(err)
	}
	for _, h := range []tosssim.Webhook{{PaymentKey: "pay_1"}, {PaymentKey: "test_a", Event: tosssim.EventDeposit}, {PaymentKey: "test_a", Event: "OTHER"}, {PaymentKey: "none"}} {
		h.URL = receiver.URL
		if _, err := b.sim.SendWebhook(t.Context(), h); err == nil {
			t.Errorf("sent what Toss does not send: %+v", h)
		}
	}
}

func TestHandlersWithoutAPortOfTheirOwn(t *testing.T) {
	t.Parallel()
	sim := tosssim.New(tosssim.Options{})
	w := httptest.NewRecorder()
	sim.Control().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/control/listen", strings.NewReader(`{"up":false}`)))
	if w.Code != 400 || !strings.Contains(w.Body.String(), "no port of its own") {
		t.Errorf("listen: %d %s", w.Code, w.Body)
	}
}
