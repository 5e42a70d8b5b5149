package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

const (
	statusWebhook  = `{"eventType":"PAYMENT_STATUS_CHANGED","createdAt":"2022-01-01T00:00:00.65327","data":{"mId":"m","version":"2022-11-16","paymentKey":"tgen_1234567890Ab","orderId":"order-1","status":"DONE","card":{"amount":1},"cancels":null}}`
	depositWebhook = `{"createdAt":"2022-01-01T00:00:00.000000","secret":"ps_secret_of_the_payment","status":"WAITING_FOR_DEPOSIT","transactionKey":"9FF1","orderId":"order-1"}`
)

func (f *fixture) sendWebhook(t *testing.T, body, transmissionID string) (status int, problem web.Problem, header http.Header) {
	t.Helper()
	c := call{method: http.MethodPost, path: "/webhooks/toss", body: body, header: http.Header{}}
	if transmissionID != "" {
		c.header.Set("tosspayments-webhook-transmission-id", transmissionID)
	}
	w := f.send(t, c)
	if w.Code == http.StatusOK && w.Body.Len() > 0 {
		t.Errorf("a body that nobody reads: %s", w.Body)
	}
	_ = json.Unmarshal(w.Body.Bytes(), &problem) // empty on success
	return w.Code, problem, w.Header()
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	const key, order = "tgen_1234567890Ab", "order-1"
	tests := []struct {
		name, body, id string
		status         int
		want           *payment.Hint // nil: nobody hears of it
	}{
		{name: "status changed", body: statusWebhook, id: "whtrans_1", status: 200,
			want: &payment.Hint{TransmissionID: "whtrans_1", Event: "PAYMENT_STATUS_CHANGED", PaymentKey: key, OrderID: order, Claim: payment.SeenDone}},
		{name: "without Toss's id", body: statusWebhook, status: 200,
			want: &payment.Hint{Event: "PAYMENT_STATUS_CHANGED", PaymentKey: key, OrderID: order, Claim: payment.SeenDone}},
		{name: "id of nobody's making", body: statusWebhook, id: strings.Repeat("x", 101), status: 200,
			want: &payment.Hint{Event: "PAYMENT_STATUS_CHANGED", PaymentKey: key, OrderID: order, Claim: payment.SeenDone}},
		{name: "deposit", body: depositWebhook, id: "whtrans_2", status: 200,
			want: &payment.Hint{TransmissionID: "whtrans_2", Event: "DEPOSIT_CALLBACK", OrderID: order, Claim: payment.SeenWaiting}},
		{name: "key alone", body: `{"eventType":"PAYMENT_STATUS_CHANGED","data":{"paymentKey":"k","orderId":"o"}}`, status: 200,
			want: &payment.Hint{Event: "PAYMENT_STATUS_CHANGED", PaymentKey: "k", Claim: payment.SeenUnknownStatus}},
		{name: "order alone", body: `{"eventType":"PAYMENT_STATUS_CHANGED","data":{"orderId":"order-1","status":"NEW"}}`, status: 200,
			want: &payment.Hint{Event: "PAYMENT_STATUS_CHANGED", OrderID: order, Claim: payment.SeenUnknownStatus}},
		{name: "cancel of an overseas wallet", body: `{"eventType":"CANCEL_STATUS_CHANGED","data":{"transactionKey":"t"}}`, status: 200},
		{name: "event that is not known", body: `{"eventType":"payout.changed","data":[1]}`, status: 200},
		{name: "nothing named", body: `{}`, status: 400},
		{name: "no data", body: `{"eventType":"PAYMENT_STATUS_CHANGED"}`, status: 400},
		{name: "data that is no object", body: `{"eventType":"PAYMENT_STATUS_CHANGED","data":"tgen_1234567890Ab"}`, status: 400},
		{name: "key of another type", body: `{"eventType":"PAYMENT_STATUS_CHANGED","data":{"paymentKey":7}}`, status: 400},
		{name: "names that cannot be", body: `{"eventType":"PAYMENT_STATUS_CHANGED","data":{"paymentKey":"a b","orderId":"../x"}}`, status: 400},
		{name: "not JSON", body: `{"orderId":`, status: 400},
		{name: "array", body: `[` + statusWebhook + `]`, status: 400},
		{name: "two objects", body: depositWebhook + depositWebhook, status: 400},
		{name: "64 KiB", body: depositWebhook + strings.Repeat(" ", maxWebhook-len(depositWebhook)), status: 200,
			want: &payment.Hint{Event: "DEPOSIT_CALLBACK", OrderID: order, Claim: payment.SeenWaiting}},
		{name: "more than 64 KiB", body: depositWebhook + strings.Repeat(" ", maxWebhook-len(depositWebhook)+1), status: 413},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			var got *payment.Hint
			f.hint = func(h payment.Hint) (payment.HintState, error) {
				got = &h
				return payment.HandledHint, nil
			}
			status, _, _ := f.sendWebhook(t, test.body, test.id)
			if status != test.status {
				t.Errorf("answered %d, want %d", status, test.status)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("hint (-want +got):\n%s", diff)
			}
			if log := f.log.String(); strings.Contains(log, key) || strings.Contains(log, "ps_secret") {
				t.Errorf("the log holds a key or secret: %s", log)
			}
		})
	}
}

func TestWebhookIsJSON(t *testing.T) {
	t.Parallel()
	f := setup(t)
	w := f.send(t, call{method: http.MethodPost, path: "/webhooks/toss", body: depositWebhook, header: http.Header{"Content-Type": {"text/plain"}}})
	if w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("answered %d", w.Code)
	}
}

// TestWebhookFails: everything but 200 makes Toss send it again, and says when.
func TestWebhookFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		err    error
		status int
		retry  string
	}{
		{"no answer of Toss", &payment.Error{Code: payment.CodePGUnavailable, RetryAfter: 5 * time.Second}, 503, "5"},
		{"no database", &payment.Error{Code: payment.CodeDBUnavailable, Err: errors.New("dial")}, 503, "1"},
		{"too many", &payment.Error{Code: payment.CodeRateLimited}, 429, "1"},
		{"bug", errors.New("panic"), 500, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.hint = func(payment.Hint) (payment.HintState, error) { return "", test.err }
			status, _, header := f.sendWebhook(t, statusWebhook, "whtrans_1")
			if status != test.status || header.Get("Retry-After") != test.retry {
				t.Errorf("answered %d, Retry-After %q", status, header.Get("Retry-After"))
			}
		})
	}
}

// TestWebhookFlood: the open route takes a burst of 100 and then 50 per second.
func TestWebhookFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t)
		f.hint = func(payment.Hint) (payment.HintState, error) { return payment.UnknownHint, nil }
		taken := func(calls int) (n int) {
			for range calls {
				switch status, problem, _ := f.sendWebhook(t, statusWebhook, ""); {
				case status == http.StatusOK:
					n++
				case problem.Code != payment.CodeRateLimited || problem.RetryAfter != 1:
					t.Fatalf("answered %d %+v", status, problem)
				}
			}
			return n
		}
		if n := taken(150); n != webhookBurst {
			t.Errorf("%d of 150 at once taken, want %d", n, webhookBurst)
		}
		time.Sleep(time.Second)
		if n := taken(100); n != webhookRate {
			t.Errorf("%d a second later, want %d", n, webhookRate)
		}
	})
}

// FuzzWebhook: no body makes the decoder panic; what it accepts names a payment or order that could be one, and means the same
// when it is written again.
func FuzzWebhook(f *testing.F) {
	f.Add([]byte(statusWebhook))
	f.Add([]byte(depositWebhook))
	f.Add([]byte(`{"eventType":"payout.changed"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		h, ours, err := parseWebhook(body)
		if err != nil {
			if refusal, ok := errors.AsType[*payment.Error](err); !ok || refusal.Code != payment.CodeInvalidRequest || ours {
				t.Fatalf("%q is refused with %v", body, err)
			}
			return
		}
		if !ours {
			return
		}
		if h.PaymentKey == "" && h.OrderID == "" || h.PaymentKey != "" && !isPaymentKey(h.PaymentKey) ||
			h.OrderID != "" && !isOrderID(h.OrderID) || h.TransmissionID != "" {
			t.Fatalf("accepted %+v", h)
		}
		text, err := json.Marshal(map[string]any{"eventType": eventStatusChanged, "data": map[string]any{
			"paymentKey": h.PaymentKey, "orderId": h.OrderID, "status": h.Claim,
		}})
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := parseWebhook(text)
		again.Event = h.Event
		if diff := cmp.Diff(h, again); diff != "" || err != nil {
			t.Fatalf("%q: %v (-first +again):\n%s", body, err, diff)
		}
	})
}
