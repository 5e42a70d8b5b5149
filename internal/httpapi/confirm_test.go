package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

func problem(code payment.Code, status int, rest string) string {
	return fmt.Sprintf(`"status":%d,"detail":"Public words.","instance":"req-1","code":"%s"%s}`, status, code, rest) + "\n"
}

// TestConfirmAnswers has one row per answer of design note §8.
func TestConfirmAnswers(t *testing.T) {
	t.Parallel()
	waiting := inState(payment.AwaitingDeposit)
	waiting.VirtualAccount = &payment.VirtualAccount{BankCode: "20", AccountNumber: "X1", CustomerName: "구매자", DueDate: createdAt}
	failed := func(code payment.Code) *payment.Error {
		return &payment.Error{Code: code, Public: "Public words.", Err: errors.New("SELECT secret cause"), RetryAfter: 3 * time.Second}
	}
	declined := failed(payment.CodeDeclined)
	declined.GatewayCode, declined.GatewayMessage = "REJECT", "거절"
	early := failed(payment.CodePGUnavailable)
	early.Earlier = payment.EarlierNone
	tests := []struct {
		name    string
		answer  approval.Answer
		err     error
		status  int
		headers map[string]string
		body    string // the whole body, or its end after the title
		result  payment.Result
	}{
		{name: "paid", answer: approval.Answer{Result: payment.ResultApproved, Payment: paid()}, status: 200, body: paidJSON + "\n"},
		{
			name: "replayed", answer: approval.Answer{Result: payment.ResultReplayed, Payment: paid(), Replayed: true}, status: 200,
			body: paidJSON + "\n", headers: map[string]string{"Idempotent-Replayed": "true"},
		},
		{
			name: "pending", answer: approval.Answer{Result: payment.ResultPendingUnknown, Payment: inState(payment.Pending), RetryAfter: 4500 * time.Millisecond},
			status: 202, body: pendingJSON + "\n", headers: map[string]string{"Location": "/payments/order-1", "Retry-After": "5"},
		},
		{
			name: "awaiting deposit", answer: approval.Answer{Result: payment.ResultAwaitingDeposit, Payment: waiting}, status: 202,
			body:    `"virtualAccount":{"bankCode":"20","accountNumber":"X1","customerName":"구매자","dueDate":"2026-03-01T00:00:00.25Z"},"failure":null,"createdAt":"2026-03-01T00:00:00.25Z","updatedAt":"2026-03-01T00:00:00.25Z"}` + "\n",
			headers: map[string]string{"Location": "/payments/order-1", "Retry-After": "1"},
		},
		{
			name: "declined", answer: approval.Answer{Result: payment.ResultDeclined}, err: declined, status: 402,
			body: problem("declined", 402, `,"gatewayCode":"REJECT","gatewayMessage":"거절"`),
		},
		{
			name: "replayed decline", answer: approval.Answer{Result: payment.ResultDeclined, Replayed: true}, err: failed(payment.CodeDeclined),
			status: 402, body: problem("declined", 402, ""), headers: map[string]string{"Idempotent-Replayed": "true"},
		},
		{name: "conflict", answer: approval.Answer{Result: payment.ResultOrderConflict}, err: failed(payment.CodeOrderConflict), status: 409, body: problem("order_conflict", 409, "")},
		{name: "canceled", answer: approval.Answer{Result: payment.ResultPaymentCanceled}, err: failed(payment.CodePaymentCanceled), status: 409, body: problem("payment_canceled", 409, "")},
		{name: "expired", answer: approval.Answer{Result: payment.ResultExpired}, err: failed(payment.CodeExpired), status: 410, body: problem("expired", 410, "")},
		{
			name: "member limit", answer: approval.Answer{Result: payment.ResultMemberRateLimited}, err: failed(payment.CodeMemberRateLimited),
			status: 429, body: problem("member_rate_limited", 429, `,"retryAfter":3`), headers: map[string]string{"Retry-After": "3"},
		},
		{
			name: "misconfigured", answer: approval.Answer{Result: payment.ResultMisconfigured}, err: failed(payment.CodeGatewayMisconfigured),
			status: 502, body: problem("gateway_misconfigured", 502, ""),
		},
		{
			name: "gateway away", answer: approval.Answer{Result: payment.ResultPGUnavailable}, err: early, status: 503,
			body: problem("pg_unavailable", 503, `,"retryAfter":3,"earlier":"none"`), headers: map[string]string{"Retry-After": "3"},
		},
		{
			name: "busy", answer: approval.Answer{Result: payment.ResultBusy}, err: failed(payment.CodeBusy), status: 503,
			body: problem("busy", 503, `,"retryAfter":3`), headers: map[string]string{"Retry-After": "3"},
		},
		{
			name: "database away", answer: approval.Answer{Result: payment.ResultDBUnavailable}, err: failed(payment.CodeDBUnavailable), status: 503,
			body: problem("db_unavailable", 503, `,"retryAfter":3`), headers: map[string]string{"Retry-After": "3"},
		},
		{
			name: "given back", answer: approval.Answer{Result: payment.ResultDBFailed}, err: failed(payment.CodeDBFailed), status: 503,
			body: problem("db_failed", 503, ""),
		},
		{
			name: "plain error", answer: approval.Answer{Result: payment.ResultApproved}, err: errors.New("SELECT secret cause"), status: 500,
			result: payment.ResultInternal, body: `"code":"internal"}` + "\n",
		},
		{
			name: "failed without an error is a fault of ours", answer: approval.Answer{Result: payment.ResultDeclined, Payment: inState(payment.Failed)},
			status: 500, result: payment.ResultInternal, body: `"code":"internal"}` + "\n",
		},
		{
			name: "no result is internal", answer: approval.Answer{Payment: paid()}, status: 200, result: payment.ResultInternal, body: paidJSON + "\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			test.answer.Gateway, test.answer.DB, test.answer.Attempts = 1500*time.Microsecond, 250*time.Microsecond, 2
			f.confirm = func(payment.Order) (approval.Answer, error) { return test.answer, test.err }
			w := f.sendConfirm(t, goodOrder)
			if w.Code != test.status || !strings.HasSuffix(w.Body.String(), test.body) || test.body == "" {
				t.Errorf("%d, want %d with\n%s\ngot\n%s", w.Code, test.status, test.body, w.Body)
			}
			for _, name := range []string{"Location", "Retry-After", "Idempotent-Replayed"} {
				if got := w.Header().Get(name); got != test.headers[name] {
					t.Errorf("%s %q, want %q", name, got, test.headers[name])
				}
			}
			if got := w.Header().Get("Server-Timing"); !regexp.MustCompile(`^gateway;dur=1\.500, db;dur=0\.250, app;dur=\d+\.\d{3}$`).MatchString(got) {
				t.Errorf("Server-Timing %q", got)
			}
			result := test.result
			if result == "" {
				result = test.answer.Result
			}
			if diff := cmp.Diff(map[string]int{string(result): 1}, f.counted(t)); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
			line := f.logLine(t)
			if line["result"] != string(result) || line["attempts"] != 2.0 || line["order_id"] != "order-1" || line["key"] != "shop" {
				t.Errorf("log %v", line)
			}
			if strings.Contains(w.Body.String(), "SELECT") {
				t.Errorf("the cause shows: %s", w.Body)
			}
			if strings.Contains(f.log.String(), "tgen_1234567890Ab") {
				t.Errorf("the paymentKey is in the log: %s", f.log)
			}
		})
	}
}

func TestConfirmPassesTheOrderOn(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		body string
		want payment.Order
	}{
		{name: "least", body: goodOrder, want: payment.Order{PaymentKey: "tgen_1234567890Ab", OrderID: "order-1", Amount: 15000, Currency: "KRW"}},
		{
			name: "all", body: `{"receiptEmail":"b@example.com","memberId":"회원 7","currency":"USD","amount":10.5,"orderId":"A_b.c=d-9","paymentKey":"k/%?"}`,
			want: payment.Order{PaymentKey: "k/%?", OrderID: "A_b.c=d-9", Amount: 1050, Currency: "USD", MemberID: "회원 7", ReceiptEmail: "b@example.com"},
		},
		{
			name: "nulls", body: `{"paymentKey":"k","orderId":"order-1","amount":15000.0,"currency":null,"memberId":null,"receiptEmail":null}`,
			want: payment.Order{PaymentKey: "k", OrderID: "order-1", Amount: 15000, Currency: "KRW"},
		},
		{
			name: "largest", body: `{"paymentKey":"k","orderId":"order-1","amount":999999999999999}`,
			want: payment.Order{PaymentKey: "k", OrderID: "order-1", Amount: 999_999_999_999_999, Currency: "KRW"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			var got payment.Order
			f.confirm = func(o payment.Order) (approval.Answer, error) {
				got = o
				return approval.Answer{Result: payment.ResultApproved, Payment: paid()}, nil
			}
			before := time.Now()
			f.sendConfirm(t, test.body)
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(payment.Order{}, "ArrivedAt")); diff != "" {
				t.Errorf("order (-want +got):\n%s", diff)
			}
			if got.ArrivedAt.Before(before) || got.ArrivedAt.After(time.Now()) {
				t.Errorf("arrived at %s", got.ArrivedAt)
			}
		})
	}
}

func TestConfirmRefuses(t *testing.T) {
	t.Parallel()
	with := func(member string) string {
		name, _, _ := strings.Cut(strings.TrimPrefix(member, `"`), `"`)
		body := regexp.MustCompile(`"`+name+`":("[^"]*"|\d+),?`).ReplaceAllString(goodOrder, "")
		return strings.Replace(strings.Replace(body, "{", "{"+member+",", 1), ",}", "}", 1)
	}
	const (
		badKey   = "paymentKey must be 1 to 200 printable ASCII characters without spaces"
		badOrder = "orderId must be 6 to 64 letters, digits or _ . = -"
		badEmail = "receiptEmail must be one plain e-mail address"
		badPlain = "amount must be a plain number without sign or exponent"
	)
	tests := []struct {
		name   string
		body   string
		status int
		want   []string
	}{
		{name: "empty object", body: `{}`, want: []string{"paymentKey is required", "orderId is required", "amount is required"}},
		{name: "nulls", body: `{"paymentKey":null,"orderId":null,"amount":null}`, want: []string{"paymentKey must not be null", "orderId must not be null", "amount must not be null"}},
		{
			name: "all at once", body: `{"x":1,"paymentKey":"a b","orderId":"o","amount":-1,"currency":"EUR","memberId":"","receiptEmail":"x"}`,
			want: []string{"x is not known", badKey, badOrder, "currency must be KRW, USD or JPY", badPlain, "memberId must have 1 to 100 characters", badEmail},
		},
		{name: "amount twice", body: `{"paymentKey":"k","orderId":"order-1","amount":1,"amount":2}`, want: []string{"amount appears more than once"}},
		{name: "trailing", body: goodOrder + "x", want: []string{"body has data after its JSON value"}},
		{name: "paymentKey empty", body: with(`"paymentKey":""`), want: []string{badKey}},
		{name: "paymentKey too long", body: with(`"paymentKey":"` + strings.Repeat("k", 201) + `"`), want: []string{badKey}},
		{name: "paymentKey not ASCII", body: with(`"paymentKey":"kéy"`), want: []string{badKey}},
		{name: "paymentKey with NUL", body: with(`"paymentKey":"k\u0000"`), want: []string{"paymentKey must not contain control characters"}},
		{name: "paymentKey a number", body: with(`"paymentKey":7`), want: []string{"paymentKey must be a string"}},
		{name: "orderId short", body: with(`"orderId":"order"`), want: []string{badOrder}},
		{name: "orderId long", body: with(`"orderId":"` + strings.Repeat("o", 65) + `"`), want: []string{badOrder}},
		{name: "orderId with a slash", body: with(`"orderId":"order/1"`), want: []string{badOrder}},
		{name: "orderId with a line break at the end", body: with(`"orderId":"order-1\n"`), want: []string{"orderId must not contain control characters"}},
		{name: "amount zero", body: with(`"amount":0`), want: []string{"amount must be more than 0"}},
		{name: "amount zero in decimals", body: with(`"amount":0.00`), want: []string{"amount must be more than 0"}},
		{name: "amount with exponent", body: with(`"amount":15e3`), want: []string{badPlain}},
		{name: "amount as text", body: with(`"amount":"15000"`), want: []string{"amount must be a number"}},
		{name: "half a won", body: with(`"amount":15000.5`), want: []string{"amount has more decimals than KRW allows (0)"}},
		{name: "16 digits", body: with(`"amount":1000000000000000`), want: []string{"amount has more than 15 digits"}},
		{name: "currency in other case", body: with(`"currency":"krw"`), want: []string{"currency must be KRW, USD or JPY"}},
		{name: "memberId too long", body: with(`"memberId":"` + strings.Repeat("회", 101) + `"`), want: []string{"memberId must have 1 to 100 characters"}},
		{name: "memberId not printable", body: with(`"memberId":"a\u200bb"`), want: []string{"memberId must be printable"}},
		{name: "mail with a name", body: with(`"receiptEmail":"B <b@example.com>"`), want: []string{badEmail}},
		{name: "mail in brackets", body: with(`"receiptEmail":"<b@example.com>"`), want: []string{badEmail}},
		{name: "two mails", body: with(`"receiptEmail":"b@example.com,c@example.com"`), want: []string{badEmail}},
		{name: "mail without a domain", body: with(`"receiptEmail":"b@"`), want: []string{badEmail}},
		{name: "mail to a bare host", body: with(`"receiptEmail":"b@localhost"`), want: []string{badEmail}},
		{name: "mail to an address literal", body: with(`"receiptEmail":"b@[127.0.0.1]"`), want: []string{badEmail}},
		{name: "mail with a header", body: with(`"receiptEmail":"b@example.com\r\nBcc: c@example.com"`), want: []string{"receiptEmail must not contain control characters"}},
		{name: "mail quoted", body: with(`"receiptEmail":"\"b c\"@example.com"`), want: []string{badEmail}},
		{name: "mail quoted for nothing", body: with(`"receiptEmail":"\"b\"@example.com"`), want: []string{badEmail}},
		{name: "mail too long", body: with(`"receiptEmail":"` + strings.Repeat("b", 243) + `@example.com"`), want: []string{"receiptEmail must have at most 254 characters"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.confirm = func(payment.Order) (approval.Answer, error) {
				t.Error("a refused call went on")
				return approval.Answer{}, nil
			}
			w := f.sendConfirm(t, test.body)
			if diff := cmp.Diff(test.want, fieldErrors(t, w.Body.Bytes())); diff != "" || w.Code != http.StatusBadRequest {
				t.Errorf("%d (-want +got):\n%s", w.Code, diff)
			}
			if diff := cmp.Diff(map[string]int{"invalid_request": 1}, f.counted(t)); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfirmRefusesOtherBodies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		call   call
		status int
		count  map[string]int
	}{
		{name: "too large", call: call{body: strings.Repeat(" ", 16<<10+1)}, status: 413, count: map[string]int{"invalid_request": 1}},
		{name: "form", call: call{body: "amount=1", header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}}, status: 415, count: map[string]int{"invalid_request": 1}},
		{name: "no body", call: call{header: http.Header{"Content-Type": {"application/json"}}}, status: 400, count: map[string]int{"invalid_request": 1}},
		{name: "no key is not counted", call: call{body: goodOrder, header: http.Header{"Authorization": nil}}, status: 401, count: map[string]int{}},
		{name: "wrong role is not counted", call: call{body: goodOrder, header: http.Header{"Authorization": {"Bearer " + operatorSecret}}}, status: 403, count: map[string]int{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			test.call.method, test.call.path, test.call.secret = http.MethodPost, "/payments/confirm", checkoutSecret
			if w := f.send(t, test.call); w.Code != test.status {
				t.Errorf("%d, want %d: %s", w.Code, test.status, w.Body)
			}
			if diff := cmp.Diff(test.count, f.counted(t)); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfirmPanic(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.confirm = func(payment.Order) (approval.Answer, error) { panic("secret cause") }
	w := f.sendConfirm(t, goodOrder)
	if w.Code != 500 || strings.Contains(w.Body.String(), "secret cause") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if diff := cmp.Diff(map[string]int{"internal": 1}, f.counted(t)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestTrap24_ConfirmMetricsStartAtZero(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, name := range []string{"paymentd_confirm_total", "paymentd_confirm_duration_seconds"} {
		n, err := testutil.GatherAndCount(f.reg, name)
		if err != nil || n != len(payment.Results()) {
			t.Errorf("%s has %d series at the start, want %d (%v)", name, n, len(payment.Results()), err)
		}
	}
	if problems, err := testutil.GatherAndLint(f.reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}
