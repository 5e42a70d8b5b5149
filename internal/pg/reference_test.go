package pg

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

// decodedByLibrary reads a Payment object by encoding/json alone, as the first versions did.
func decodedByLibrary(body []byte) (w wirePayment, ok bool) {
	var p struct {
		PaymentKey    string           `json:"paymentKey"`
		OrderID       string           `json:"orderId"`
		Status        string           `json:"status"`
		Currency      string           `json:"currency"`
		TotalAmount   json.Number      `json:"totalAmount"`
		BalanceAmount json.Number      `json:"balanceAmount"`
		Cancels       []wireCancel     `json:"cancels"`
		Method        optional[string] `json:"method"`
		ApprovedAt    optional[string] `json:"approvedAt"`
		Receipt       optional[struct {
			URL string `json:"url"`
		}] `json:"receipt"`
		VirtualAccount optional[*wireVirtualAccount] `json:"virtualAccount"`
		Failure        optional[wireError]           `json:"failure"`
	}
	if err := json.Unmarshal(body, &p); err != nil || p.PaymentKey == "" || p.Status == "" {
		return wirePayment{}, false
	}
	return wirePayment{
		paymentKey: p.PaymentKey, orderID: p.OrderID, status: p.Status, currency: p.Currency, total: p.TotalAmount, balance: p.BalanceAmount,
		cancels: p.Cancels, method: p.Method.value, approvedAt: p.ApprovedAt.value, receiptURL: p.Receipt.value.URL,
		virtualAccount: p.VirtualAccount.value, failure: p.Failure.value,
	}, true
}

// ambiguous reports whether an object in text has a member twice, or one whose name is that of another but for its case:
// encoding/json takes both for the same and mixes their values, which is not wanted.
func ambiguous(text []byte) (yes bool) {
	known := []string{
		"paymentKey", "orderId", "status", "currency", "totalAmount", "balanceAmount", "cancels", "method", "approvedAt", "receipt", "url",
		"virtualAccount", "failure",
	}
	seen := map[string]bool{}
	payment.Members(text, func(name, value []byte) {
		n := string(name)
		for _, k := range known {
			yes = yes || n != k && strings.EqualFold(n, k)
		}
		yes = yes || seen[n] || ambiguous(value)
		seen[n] = true
	})
	return yes
}

func sameAsLibrary(t *testing.T, body []byte) {
	t.Helper()
	if ambiguous(body) {
		return
	}
	want, wantOK := decodedByLibrary(body)
	got, ok := readPayment(body)
	if ok != wantOK {
		t.Fatalf("%q is a payment: %t, want %t", body, ok, wantOK)
	}
	if !ok {
		return
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(wirePayment{}, optional[string]{})); diff != "" {
		t.Fatalf("%q (-encoding/json +readPayment):\n%s", body, diff)
	}
}

// oddPayments is the payment in body with each member as null, as a value of every form, and left out.
func oddPayments(t testing.TB, body []byte) (odd [][]byte) {
	t.Helper()
	forms := []string{
		`null`, `1`, `-1.50`, `1e3`, `"1"`, `""`, `"x"`, `"\u0041\n"`, "\"\xff\"", `true`, `[]`, `[null]`, `[1]`, `[{}]`, `{}`, `{"url":1}`, `{"url":null}`,
		`{"url":"u"}`, `{"code":"C","message":"m"}`, `{"code":1,"message":"m"}`, `{"bankCode":"20","dueDate":1}`, `[{"cancelAmount":"5","cancelReason":[]}]`,
		`[{"cancelAmount":true}]`, `"12a"`, `01`, `nul`,
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatal(err)
	}
	for changed := range members {
		for _, form := range append(forms, "") {
			var parts []string
			for name, value := range members {
				if name == changed {
					value = []byte(form)
				}
				if len(value) > 0 {
					parts = append(parts, `"`+name+`":`+string(value))
				}
			}
			odd = append(odd, []byte("{"+strings.Join(parts, ",")+"}"))
		}
	}
	return odd
}

func wirePayments(t testing.TB) (bodies [][]byte) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "wire", "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatal("no payments", err)
	}
	for _, name := range names {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

func TestPaymentsAreReadAsByEncodingJSON(t *testing.T) {
	t.Parallel()
	for _, body := range wirePayments(t) {
		sameAsLibrary(t, body)
		for _, odd := range oddPayments(t, body) {
			sameAsLibrary(t, odd)
		}
		for end := range body {
			sameAsLibrary(t, body[:end])
		}
	}
}

func FuzzReadPayment(f *testing.F) {
	for _, body := range wirePayments(f) {
		f.Add(body)
	}
	f.Add([]byte(`{"paymentKey":"k","status":"DONE","totalAmount":"1","cancels":[{"cancelAmount":1}],"failure":{"code":"X"}}`))
	f.Fuzz(sameAsLibrary)
}

// TestNamesAreExact: what encoding/json would take for a member that is not there is not one, and the last of two counts.
func TestNamesAreExact(t *testing.T) {
	t.Parallel()
	body := `{"PaymentKey":"a","paymentKey":"b","paymentKey":"c","paymentkey":"d","status":"READY","status":"DONE","STATUS":"X","receipt":{"url":"u","URL":"v"},
		"cancels":[{"cancelAmount":1},{"cancelAmount":2}],"cancels":[{"cancelReason":"r"}]}`
	got, ok := readPayment([]byte(body))
	want := wirePayment{
		paymentKey: "c", status: "DONE", receiptURL: "u", cancels: []wireCancel{{CancelReason: optional[string]{"r"}}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(wirePayment{}, optional[string]{})); !ok || diff != "" {
		t.Errorf("payment %t (-want +got):\n%s", ok, diff)
	}
}
