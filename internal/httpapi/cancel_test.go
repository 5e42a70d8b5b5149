package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

func cancelCall(secret, body string, keys ...string) call {
	return call{method: http.MethodPost, path: "/payments/order-1/cancel", secret: secret, body: body, header: http.Header{idempotencyKey: keys}}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	const cancelJSON = `,"cancel":{"id":"c-1","amount":5000,"status":"`
	part := func(state payment.CancelState) *approval.Cancel {
		return &approval.Cancel{ID: "c-1", Amount: 5000, State: state, Key: "k", Reason: "r", AskedBy: "dev"}
	}
	abandoned := inState(payment.Failed)
	abandoned.Failure = &payment.Failure{Code: payment.FailAbandoned}
	for _, tt := range []struct {
		name    string
		answer  approval.CancelAnswer
		err     error
		status  int
		body    string
		headers map[string]string
	}{
		{name: "done", answer: approval.CancelAnswer{Payment: paid(), Cancel: part(payment.CancelDone)}, status: 200,
			body: strings.TrimSuffix(paidJSON, "}") + cancelJSON + `done"}}`},
		{name: "done before", answer: approval.CancelAnswer{Payment: paid(), Cancel: part(payment.CancelDone), Replayed: true}, status: 200,
			body: cancelJSON + `done"`, headers: map[string]string{"Idempotent-Replayed": "true"}},
		{name: "not known yet", answer: approval.CancelAnswer{Payment: paid(), Cancel: part(payment.CancelOpen), RetryAfter: 5 * time.Second},
			status: 202, body: cancelJSON + `pending"`, headers: map[string]string{"Location": "/payments/order-1", "Retry-After": "5"}},
		{name: "abandoned", answer: approval.CancelAnswer{Payment: abandoned}, status: 200, body: `,"cancel":null}`},
		{name: "refused by Toss", err: &payment.Error{Code: payment.CodeNotCancelable, GatewayCode: "EXCEED_MAX_REFUND_DUE", GatewayMessage: "기한"},
			status: 409, body: `"code":"not_cancelable","gatewayCode":"EXCEED_MAX_REFUND_DUE","gatewayMessage":"기한"`},
		{name: "refused before", answer: approval.CancelAnswer{Replayed: true}, err: &payment.Error{Code: payment.CodeNotCancelable}, status: 409,
			body: `"code":"not_cancelable"`, headers: map[string]string{"Idempotent-Replayed": "true"}},
		{name: "not stored", err: &payment.Error{Code: payment.CodeDBUnavailable, RetryAfter: 5 * time.Second}, status: 503,
			body: `"code":"db_unavailable","retryAfter":5`, headers: map[string]string{"Retry-After": "5"}},
		{name: "in progress", err: &payment.Error{Code: payment.CodeInProgress}, status: 409, body: `"code":"in_progress"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.cancel = func(approval.CancelRequest) (approval.CancelAnswer, error) { return tt.answer, tt.err }
			w := f.send(t, cancelCall(operatorSecret, `{"reason":"returned"}`, "k"))
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			for _, name := range []string{"Location", "Retry-After", "Idempotent-Replayed"} {
				if got := w.Header().Get(name); got != tt.headers[name] {
					t.Errorf("%s %q, want %q", name, got, tt.headers[name])
				}
			}
		})
	}
}

func TestCancelRequest(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var got []approval.CancelRequest
	f.cancel = func(r approval.CancelRequest) (approval.CancelAnswer, error) {
		if time.Since(r.ArrivedAt) > time.Minute {
			t.Errorf("arrived at %s", r.ArrivedAt)
		}
		r.ArrivedAt = time.Time{}
		got = append(got, r)
		return approval.CancelAnswer{Payment: paid()}, nil
	}
	const account = `{"bank":"20","accountNumber":"1002123456789","holderName":"구매자"}`
	f.send(t, cancelCall(checkoutSecret, `{"reason":"r"}`, "key with spaces ~"))
	f.send(t, cancelCall(operatorSecret, `{"amount":10.50,"reason":"`+strings.Repeat("가", 150)+`","refundReceiveAccount":`+account+`}`, strings.Repeat("k", 200)))
	f.send(t, cancelCall(operatorSecret, `{"amount":999999999999999,"reason":"r","refundReceiveAccount":null}`, "k"))
	want := []approval.CancelRequest{
		{OrderID: "order-1", Key: "key with spaces ~", Reason: "r", AskedBy: "shop"},
		{OrderID: "order-1", Key: strings.Repeat("k", 200), Amount: "10.50", Reason: strings.Repeat("가", 150), AskedBy: "dev", Operator: true,
			Account: &payment.RefundAccount{Bank: "20", AccountNumber: "1002123456789", HolderName: "구매자"}},
		{OrderID: "order-1", Key: "k", Amount: "999999999999999", Reason: "r", AskedBy: "dev", Operator: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if strings.Contains(f.log.String(), "1002123456789") || strings.Contains(f.log.String(), "구매자") {
		t.Errorf("the log holds the account: %s", f.log)
	}
}

func TestCancelRefusesRequests(t *testing.T) {
	t.Parallel()
	const key = "Idempotency-Key this header is required once, with 1 to 200 printable ASCII characters"
	for _, tt := range []struct {
		name, body string
		keys       []string
		want       []string
	}{
		{"no key", `{"reason":"r"}`, nil, []string{key}},
		{"an empty key", `{"reason":"r"}`, []string{""}, []string{key}},
		{"two keys", `{"reason":"r"}`, []string{"a", "b"}, []string{key}},
		{"a long key", `{"reason":"r"}`, []string{strings.Repeat("k", 201)}, []string{key}},
		{"a key that is not ASCII", `{"reason":"r"}`, []string{"é"}, []string{key}},
		{"everything", `{"amount":0,"reason":""}`, nil, []string{key, "amount must be more than 0", "reason must have 1 to 150 characters"}},
		{"no reason", `{"amount":"5"}`, []string{"k"}, []string{"reason is required", "amount must be a number"}},
		{"a long reason", `{"reason":"` + strings.Repeat("r", 151) + `"}`, []string{"k"}, []string{"reason must have 1 to 150 characters"}},
		{"an exponent", `{"reason":"r","amount":1e3}`, []string{"k"}, []string{"amount must be a plain number without sign or exponent"}},
		{"three decimals", `{"reason":"r","amount":1.234}`, []string{"k"}, []string{"amount has more decimals than USD allows (2)"}},
		{"account as text", `{"reason":"r","refundReceiveAccount":"x"}`, []string{"k"}, []string{"refundReceiveAccount must be an object"}},
		{"empty account", `{"reason":"r","refundReceiveAccount":{}}`, []string{"k"}, []string{
			"refundReceiveAccount.bank is required", "refundReceiveAccount.accountNumber is required", "refundReceiveAccount.holderName is required"}},
		{"bad account", `{"reason":"r","refundReceiveAccount":{"bank":"","accountNumber":"12-34","holderName":"` + strings.Repeat("x", 61) + `","other":1}}`,
			[]string{"k"}, []string{
				"refundReceiveAccount.other is not known", "refundReceiveAccount.bank must be Toss's code of the bank",
				"refundReceiveAccount.accountNumber must be 1 to 20 digits", "refundReceiveAccount.holderName must have 1 to 60 characters"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := setup(t).send(t, cancelCall(operatorSecret, tt.body, tt.keys...))
			if diff := cmp.Diff(tt.want, fieldErrors(t, w.Body.Bytes())); diff != "" || w.Code != 400 || strings.Contains(w.Body.String(), "12-34") {
				t.Errorf("%d %s (-want +got):\n%s", w.Code, w.Body, diff)
			}
		})
	}
}
