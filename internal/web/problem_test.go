package web_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

func TestProblem(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name       string
		err        error
		status     int
		retryAfter string
		want       string
	}{
		{
			name:   "declined with Toss's words",
			err:    &payment.Error{Code: payment.CodeDeclined, Public: "No.", GatewayCode: "REJECT", GatewayMessage: "거절", RetryAfter: time.Second},
			status: 402,
			want: `{"type":"urn:paymentd:problem:declined","title":"The payment was declined","status":402,"detail":"No.",` +
				`"instance":"req-1","code":"declined","gatewayCode":"REJECT","gatewayMessage":"거절"}`,
		},
		{
			name:   "no gateway words on other codes, no text: the title",
			err:    &payment.Error{Code: payment.CodeExpired, GatewayCode: "X", GatewayMessage: "Y"},
			status: 410,
			want: `{"type":"urn:paymentd:problem:expired","title":"The payment expired","status":410,` +
				`"detail":"The payment expired.","instance":"req-1","code":"expired"}`,
		},
		{
			name: "unavailable, rounded up", status: 503, retryAfter: "2",
			err: &payment.Error{Code: payment.CodePGUnavailable, Public: "Down.", RetryAfter: 1001 * time.Millisecond, Earlier: payment.EarlierUnknown},
			want: `{"type":"urn:paymentd:problem:pg_unavailable","title":"The gateway cannot be reached","status":503,` +
				`"detail":"Down.","instance":"req-1","code":"pg_unavailable","retryAfter":2,"earlier":"unknown"}`,
		},
		{
			name: "db_failed never says when", status: 503,
			err: &payment.Error{Code: payment.CodeDBFailed, Public: "Given back.", RetryAfter: time.Second},
			want: `{"type":"urn:paymentd:problem:db_failed","title":"The approval could not be kept and was given back",` +
				`"status":503,"detail":"Given back.","instance":"req-1","code":"db_failed"}`,
		},
		{
			name: "member limit without a wait: at least 1 s", status: 429, retryAfter: "1",
			err: &payment.Error{Code: payment.CodeMemberRateLimited, Public: "Slow."},
			want: `{"type":"urn:paymentd:problem:member_rate_limited","title":"The member confirms too often",` +
				`"status":429,"detail":"Slow.","instance":"req-1","code":"member_rate_limited","retryAfter":1}`,
		},
		{
			name: "fields", status: 400, err: web.Invalid(payment.FieldError{Field: "amount", Reason: "is required"}),
			want: `{"type":"urn:paymentd:problem:invalid_request","title":"The request is not valid","status":400,` +
				`"detail":"Nothing was saved or sent; errors says what to repair.","instance":"req-1","code":"invalid_request",` +
				`"errors":[{"field":"amount","reason":"is required"}]}`,
		},
		{name: "wrapped", status: 404, err: fmt.Errorf("read: %w", &payment.Error{Code: payment.CodeNotFound, Public: "None.", Err: errors.New("secret cause")}),
			want: `{"type":"urn:paymentd:problem:not_found","title":"Not found","status":404,"detail":"None.","instance":"req-1","code":"not_found"}`},
		{name: "plain error", status: 500, err: errors.New("SELECT secret cause"), want: internalBody},
		{name: "internal with words of its own", status: 500, err: &payment.Error{Code: payment.CodeInternal, Public: "secret cause"}, want: internalBody},
		{name: "code outside the set", status: 500, err: &payment.Error{Code: "teapot", Public: "secret cause"}, want: internalBody},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.Open(http.MethodGet, "/", func(http.ResponseWriter, *http.Request) error { return test.err })
			w := f.send(t, http.MethodGet, "/", "")
			if w.Code != test.status || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("status %d, %s", w.Code, w.Header().Get("Content-Type"))
			}
			if got := w.Header().Get("Retry-After"); got != test.retryAfter {
				t.Errorf("Retry-After %q, want %q", got, test.retryAfter)
			}
			if diff := cmp.Diff(test.want+"\n", w.Body.String()); diff != "" {
				t.Errorf("problem (-want +got):\n%s", diff)
			}
			if got := f.log.one(t)["error"]; got != test.err.Error() {
				t.Errorf("logged error %q, want the whole chain %q", got, test.err)
			}
		})
	}
}

const internalBody = `{"type":"urn:paymentd:problem:internal","title":"Internal fault","status":500,"detail":"An unexpected fault. ` +
	`It says nothing about the money: send the same request again, or read the order.","instance":"req-1","code":"internal"}`

// TestEveryCodeHasAStatus walks the closed set against the statuses of the design note.
func TestEveryCodeHasAStatus(t *testing.T) {
	t.Parallel()
	want := map[int]string{
		400: "invalid_request", 401: "unauthorized", 402: "declined", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
		409: "order_conflict payment_canceled in_progress cancel_in_progress not_cancelable refund_account_required idempotency_key_reused",
		410: "expired", 413: "too_large", 415: "unsupported_media_type", 429: "member_rate_limited rate_limited", 500: "internal",
		502: "gateway_misconfigured", 503: "pg_unavailable busy db_unavailable db_failed",
	}
	got := map[int]string{}
	titles := map[string]payment.Code{}
	for _, code := range payment.Codes() {
		status := web.StatusOf(code)
		got[status] = strings.TrimSpace(got[status] + " " + string(code))
		p := web.ProblemOf(&payment.Error{Code: code, RetryAfter: time.Second}, "req-1")
		if p.Code != code || p.Title == "" || titles[p.Title] != "" {
			t.Errorf("%s: code %s, title %q as %q", code, p.Code, p.Title, titles[p.Title])
		}
		titles[p.Title] = code
		if waits := status == 429 || (status == 503 && code != payment.CodeDBFailed); (p.RetryAfter > 0) != waits {
			t.Errorf("%s: retryAfter %d", code, p.RetryAfter)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("codes by status (-want +got):\n%s", diff)
	}
}
