package pg

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
	"paymentd/internal/payment"
)

// TestDocumentedCodes holds the table against the list of codes that Toss documents, and shows that the code
// decides and not the status.
func TestDocumentedCodes(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/codes.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Op, Code string
		Status   int
		Kind     payment.Kind
	}
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	classify := newClassifier()
	documented := map[string]int{}
	for _, row := range rows {
		documented[row.Op]++
		for _, status := range []int{row.Status, 400, 403, 404, 409, 429, 500, 503} {
			r := reply{status: status, body: fmt.Appendf(nil, `{"code":%q,"message":"m"}`, row.Code), traceID: "trace"}
			a, listed := classify.classify(row.Op, r, expectation{paymentKey: "k"})
			if a.Kind != row.Kind || !listed {
				t.Errorf("%s %d %s: got %q listed %v, want %q", row.Op, status, row.Code, a.Kind, listed, row.Kind)
			}
			if a.Code != row.Code || a.Message != "m" || a.HTTPStatus != status || a.Observation.TraceID != "trace" {
				t.Errorf("%s: words lost: %+v", row.Code, a)
			}
		}
	}
	for op, known := range classify {
		for code := range known {
			if !inRows(raw, op, code) && code != "INVALID_API_KEY" { // documented for confirm only, true for all
				t.Errorf("%s %s is in the table but not documented", op, code)
			}
		}
	}
	want := map[string]int{opConfirm: 52, opLookup: 7, opCancel: 32, opTransactions: 4}
	if diff := cmp.Diff(want, documented); diff != "" {
		t.Errorf("documented codes (-want +got):\n%s", diff)
	}
}

func inRows(raw []byte, op, code string) bool {
	var rows []struct{ Op, Code string }
	_ = json.Unmarshal(raw, &rows)
	for _, row := range rows {
		if row.Op == op && row.Code == code {
			return true
		}
	}
	return false
}

func TestUnlistedAnswers(t *testing.T) {
	t.Parallel()
	coded := func(code string) string { return fmt.Sprintf(`{"code":%q,"message":"m"}`, code) }
	tests := []struct {
		name   string
		op     string
		status int
		body   string
		want   payment.Kind
		listed bool
	}{
		{"new code 400", opConfirm, 400, coded("BRAND_NEW"), payment.KindAmbiguous, false},
		{"new code 403", opConfirm, 403, coded("REJECT_BRAND_NEW"), payment.KindAmbiguous, false},
		{"new code 404", opConfirm, 404, coded("NOT_FOUND_NEW"), payment.KindAmbiguous, false},
		{"new code 500", opConfirm, 500, coded("BRAND_NEW"), payment.KindFault, false},
		{"new code 401", opConfirm, 401, coded("BRAND_NEW"), payment.KindMisconfigured, false},
		{"new code 409", opConfirm, 409, coded("BRAND_NEW"), payment.KindKeyBusy, false},
		{"new code 429", opConfirm, 429, coded("BRAND_NEW"), payment.KindThrottled, false},
		{"code of another operation", opConfirm, 403, coded("NOT_CANCELABLE_PAYMENT"), payment.KindAmbiguous, false},
		{"429 without body", opConfirm, 429, "", payment.KindThrottled, true},
		{"401 without body", opConfirm, 401, "", payment.KindMisconfigured, true},
		{"proxy's 403", opConfirm, 403, "<html>", payment.KindFault, true},
		{"proxy's 404", opLookup, 404, "<html>", payment.KindFault, true},
		{"proxy's 404 to a confirm", opConfirm, 404, "", payment.KindFault, true},
		{"proxy's 503", opConfirm, 503, "<html>", payment.KindFault, true},
		{"redirect", opConfirm, 302, "", payment.KindFault, true},
		{"v2 shape", opConfirm, 403, `{"error":{"code":"REJECT_CARD_PAYMENT","message":"m"}}`, payment.KindDeclined, true},
		{"lookup 404 of Toss", opLookup, 404, coded("NOT_FOUND_PAYMENT"), payment.KindNotFound, true},
		{"lookup 404 with a new code", opLookup, 404, coded("GONE_FISHING"), payment.KindAmbiguous, false},
		{"S008", opConfirm, 500, `{"code":"FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING","message":"[S008] 기존 요청을 처리중입니다."}`, payment.KindProcessing, true},
		{"S008 under a new code", opConfirm, 500, `{"code":"BRAND_NEW","message":"[S008] x"}`, payment.KindProcessing, true},
		{"S008 in the middle", opConfirm, 500, `{"code":"FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING","message":"x [S008]"}`, payment.KindFault, true},
		{"S008 to a cancel", opCancel, 500, `{"code":"COMMON_ERROR","message":"[S008] x"}`, payment.KindFault, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a, listed := newClassifier().classify(tt.op, reply{status: tt.status, body: []byte(tt.body)}, expectation{paymentKey: "k"})
			if a.Kind != tt.want || listed != tt.listed {
				t.Errorf("got %q listed %v, want %q %v", a.Kind, listed, tt.want, tt.listed)
			}
		})
	}
}

func TestPaymentMustBeTheOneAskedFor(t *testing.T) {
	t.Parallel()
	order := payment.Order{PaymentKey: "k", OrderID: "order-1", Amount: 15000, Currency: "KRW"}
	body := func(change map[string]any) []byte {
		fields := map[string]any{
			"paymentKey": "k", "orderId": "order-1", "status": "DONE", "currency": "KRW", "totalAmount": 15000, "balanceAmount": 15000,
		}
		maps.Copy(fields, change)
		return encode(fields)
	}
	tests := []struct {
		name            string
		change          map[string]any
		confirm, lookup payment.Kind
	}{
		{"as asked for", nil, payment.KindPayment, payment.KindPayment},
		{"another paymentKey", map[string]any{"paymentKey": "other"}, payment.KindFault, payment.KindFault},
		{"another order", map[string]any{"orderId": "order-2"}, payment.KindFault, payment.KindPayment},
		{"another amount", map[string]any{"totalAmount": 15001, "balanceAmount": 15001}, payment.KindFault, payment.KindPayment},
		{"another currency", map[string]any{"currency": "USD", "totalAmount": 150, "balanceAmount": 150}, payment.KindFault, payment.KindPayment},
		{"done without the money", map[string]any{"balanceAmount": 14000}, payment.KindFault, payment.KindPayment},
		{"waiting", map[string]any{"status": "WAITING_FOR_DEPOSIT"}, payment.KindPayment, payment.KindPayment},
		{"canceled", map[string]any{"status": "CANCELED", "balanceAmount": 0}, payment.KindPayment, payment.KindPayment},
		{"new status", map[string]any{"status": "BRAND_NEW"}, payment.KindPayment, payment.KindPayment},
		{"no payment", map[string]any{"paymentKey": nil}, payment.KindFault, payment.KindFault},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := reply{status: 200, body: body(tt.change), traceID: "trace"}
			a, _ := newClassifier().classify(opConfirm, r, expectation{paymentKey: "k", order: &order})
			if a.Kind != tt.confirm {
				t.Errorf("confirm: got %q, want %q", a.Kind, tt.confirm)
			}
			b, _ := newClassifier().classify(opLookup, r, expectation{paymentKey: "k"})
			if b.Kind != tt.lookup || b.Observation.TraceID != "trace" {
				t.Errorf("lookup: got %q trace %q, want %q", b.Kind, b.Observation.TraceID, tt.lookup)
			}
		})
	}
}

// TestVerdicts walks every kind: a kind that is forgotten counts as ignored here and fails.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	want := map[payment.Kind]breaker.Outcome{
		payment.KindPayment: breaker.Success, payment.KindDeclined: breaker.Success, payment.KindRejected: breaker.Success,
		payment.KindSessionGone: breaker.Success, payment.KindAmbiguous: breaker.Success, payment.KindProcessing: breaker.Success,
		payment.KindKeyBusy: breaker.Success, payment.KindNotFound: breaker.Success,
		payment.KindFault: breaker.Failure, payment.KindReset: breaker.Failure, payment.KindTimeout: breaker.Failure,
		payment.KindNotConnected: breaker.Failure,
		payment.KindPanic:        breaker.Ignored, payment.KindThrottled: breaker.Ignored, payment.KindMisconfigured: breaker.Ignored,
		payment.KindRefused: breaker.Ignored,
	}
	for kind, outcome := range want {
		if got := verdict(payment.Answer{Kind: kind}); got != outcome {
			t.Errorf("%s: got %v, want %v", kind, got, outcome)
		}
	}
	if got := deciding(nil, errors.New("no answer")); got != breaker.Ignored {
		t.Errorf("without an answer: got %v, want it ignored", got)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{"": "0s", "2": "2s", "-1": "0s", "99999999": "1h0m0s", "Wed, 21 Oct 2026 07:28:00 GMT": "0s"} {
		if got := retryAfter(header).String(); got != want {
			t.Errorf("%q: got %s, want %s", header, got, want)
		}
	}
}
