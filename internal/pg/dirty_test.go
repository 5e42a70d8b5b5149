package pg

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"paymentd/internal/payment"
)

// TestDirtyFields: whatever Toss's texts hold, the payment is read, and what is kept of them has an end and can be
// written as JSON.
func TestDirtyFields(t *testing.T) {
	t.Parallel()
	long := strconv.Quote(strings.Repeat("가", 100_000))
	account := `{"bankCode":` + long + `,"accountNumber":` + long + `,"customerName":` + long + `,"dueDate":"0000-01-01T00:00:00Z"}`
	for name, field := range map[string]string{
		"NUL": `"method":"card\u0000x"`, "lone surrogate": `"method":"\ud800"`, "long method": `"method":` + long,
		"object for a text": `"method":{"a":1}`, "list for an object": `"receipt":[]`, "number for a text": `"receipt":{"url":5}`,
		"long url": `"receipt":{"url":` + long + `}`, "year 0": `"approvedAt":"0000-01-01T00:00:00Z"`,
		"year 9999": `"approvedAt":"9999-12-31T23:59:59-23:59"`, "year 1 is 0 in UTC": `"approvedAt":"0001-01-01T00:00:00+09:00"`,
		"account": `"virtualAccount":` + account, "long failure": `"failure":{"code":` + long + `,"message":` + long + `}`,
		"code with NUL": `"failure":{"code":"A\u0000","message":"\u0000"}`, "code that repeats the key": `"failure":{"code":"KEY_1"}`,
		"long reason": `"cancels":[{"cancelAmount":1,"cancelReason":` + long + `,"transactionKey":` + long + `,"canceledAt":"9999-12-31"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := decodePayment([]byte(`{"paymentKey":"KEY_1","orderId":"o","status":"DONE","currency":"KRW","totalAmount":15000,"balanceAmount":15000,` + field + `}`))
			if err != nil || o.Sighting != payment.SeenDone || o.Total != 15000 {
				t.Fatalf("read %+v, %v", o, err)
			}
			texts := map[string]int{o.Method: 100, o.ReceiptURL: 2000, o.FailureMessage: 510}
			if v := o.VirtualAccount; v != nil {
				texts[v.BankCode], texts[v.AccountNumber], texts[v.CustomerName] = 100, 100, 100
			}
			for _, c := range o.Cancels {
				texts[c.Reason], texts[c.TransactionKey] = 510, 100
			}
			for text, most := range texts {
				if n := utf8.RuneCountInString(text); n > most || !utf8.ValidString(text) {
					t.Errorf("kept %d characters, want at most %d", n, most)
				}
			}
			if o.FailureCode != "" || !o.ApprovedAt.IsZero() || o.VirtualAccount != nil && !o.VirtualAccount.DueDate.IsZero() {
				t.Errorf("kept %q, %v, %v", o.FailureCode, o.ApprovedAt, o.VirtualAccount)
			}
			if _, err := json.Marshal(o); err != nil {
				t.Errorf("cannot be written: %v", err)
			}
		})
	}
	e, ok := decodeError([]byte(`{"code":"REJECT_CARD_PAYMENT","message":` + long + `}`))
	if n := utf8.RuneCountInString(e.Message); !ok || n != 510 {
		t.Errorf("an error with a long message: %v, %d characters", ok, n)
	}
	if _, ok := decodeError([]byte(`{"code":"` + strings.Repeat("A", 65) + `"}`)); ok {
		t.Error("a code of 65 characters passed")
	}
}

// TestDescribed: what net/http says of a peer's bytes stays out; who asks for a known error still finds it.
func TestDescribed(t *testing.T) {
	t.Parallel()
	raw := errors.New("malformed HTTP response \"GET /v1/payments/secret\"")
	if got := described(raw); strings.Contains(got.Error(), "secret") {
		t.Error(got)
	}
	if described(nil) != nil {
		t.Error("an error out of nothing")
	}
	if err := described(http.ErrSchemeMismatch); !errors.Is(err, http.ErrSchemeMismatch) {
		t.Error(err)
	}
}
