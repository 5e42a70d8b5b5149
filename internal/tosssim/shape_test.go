package tosssim_test

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/tosssim"
)

func TestPaymentObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.confirm("test_a", "k")
	want := strings.Fields(`approvedAt balanceAmount cancels card cashReceipt cashReceipts checkout country cultureExpense currency discount easyPay
		easyPayAmount easyPayDiscountAmount failure foreignEasyPay giftCertificate isPartialCancelable lastTransactionKey mId metadata method mobilePhone
		orderId orderName paymentKey receipt requestedAt secret status suppliedAmount taxExemptionAmount taxFreeAmount totalAmount transactionKey transfer
		type useEscrow vat version virtualAccount`)
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(r.body))); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	for _, name := range []string{"cancels", "virtualAccount", "transfer", "mobilePhone", "easyPay", "giftCertificate", "cashReceipt", "failure", "metadata", "discount"} {
		if v, there := r.body[name]; !there || v != nil {
			t.Errorf("%s: want null, got %v", name, v)
		}
	}
	for field, want := range map[string]string{"status": "DONE", "method": "카드", "type": "NORMAL", "orderId": "order-test_a", "currency": "KRW"} {
		if got := r.str(field); got != want {
			t.Errorf("%s: want %q, got %q", field, want, got)
		}
	}
	for field, want := range map[string]string{"totalAmount": "15000", "balanceAmount": "15000", "suppliedAmount": "13636", "vat": "1364"} {
		if got := r.num(field); got != want {
			t.Errorf("%s: want %s, got %s", field, want, got)
		}
	}
	korean := regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+09:00$`)
	for _, field := range []string{"requestedAt", "approvedAt"} {
		at, err := time.Parse(time.RFC3339, r.str(field))
		if err != nil || !korean.MatchString(r.str(field)) || time.Since(at).Abs() > time.Minute {
			t.Errorf("%s: %q %v", field, r.str(field), err)
		}
	}
	if byKey, byOrder := b.lookup("test_a"), b.toss("GET", "/v1/payments/orders/order-test_a", "", nil); byKey.raw != r.raw || byOrder.raw != r.raw {
		t.Errorf("look-ups differ from the confirm:\n%s\n%s\n%s", r.raw, byKey.raw, byOrder.raw)
	}
	b.want(b.toss("GET", "/v1/payments/orders/order-none", "", nil), 404, "NOT_FOUND_PAYMENT")
	b.want(b.lookup("test_none"), 404, "NOT_FOUND_PAYMENT")
	b.want(b.toss("GET", "/v2/payments", "", nil), 404, "NOT_FOUND")
}

func TestOtherMethodsCurrenciesAndLanguages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	usd := b.confirmFor("test_usd_1", "order-1", "12.50", "")
	if usd.num("totalAmount") != "12.5" || usd.str("currency") != "USD" {
		t.Errorf("dollars: %s", usd.raw)
	}
	big := b.confirmFor("test_big", "order-2", "50000000000", "")
	if big.num("totalAmount") != "50000000000" {
		t.Errorf("big: %s", big.raw)
	}
	for method, field := range map[tosssim.Method]string{
		tosssim.Card: "card", tosssim.VirtualAccount: "virtualAccount", tosssim.EasyPay: "easyPay", tosssim.Transfer: "transfer", tosssim.MobilePhone: "mobilePhone",
	} {
		key := "pay_" + string(method)
		if _, err := b.sim.AddPayment(tosssim.NewPayment{PaymentKey: key, OrderID: "order-1", Amount: 1000, Method: method, Status: tosssim.Done}); err != nil {
			t.Fatal(err)
		}
		if r := b.lookup(key); r.body[field] == nil {
			t.Errorf("%s: no %s in %s", method, field, r.raw)
		}
	}
	english := b.toss("GET", "/v1/payments/pay_virtual_account", "", header{"Accept-Language": "en-US"})
	if english.str("method") != "Virtual account" {
		t.Errorf("english: %s", english.raw)
	}
	// Keys that need escaping in path and JSON come back as they went out.
	odd := `pay/"한"%?#`
	if _, err := b.sim.AddPayment(tosssim.NewPayment{PaymentKey: odd, OrderID: "order-9", Amount: 1}); err != nil {
		t.Fatal(err)
	}
	if r := b.lookup(`pay%2F%22%ED%95%9C%22%25%3F%23`); r.str("paymentKey") != odd {
		t.Errorf("odd key: %s", r.raw)
	}
}

func TestNewestAttemptAnswersForTheOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.confirmFor("test_decline_1", "order-1", "100", ""), 403, "REJECT_CARD_PAYMENT")
	b.want(b.confirmFor("test_2", "order-1", "100", ""), 200, "")
	if r := b.toss("GET", "/v1/payments/orders/order-1", "", nil); r.str("paymentKey") != "test_2" {
		t.Errorf("newest: %s", r.raw)
	}
	l := b.sim.LedgerOf(tosssim.LedgerQuery{OrderID: "order-1"})
	if len(l.Payments) != 2 || l.Payments[0].PaymentKey != "test_decline_1" || l.Approvals != 1 {
		t.Errorf("ledger: %+v", l)
	}
}

func TestVirtualAccount(t *testing.T) {
	t.Parallel()
	b := setup(t)
	issued := b.confirm("test_va_a", "k")
	account, _ := issued.body["virtualAccount"].(map[string]any)
	if issued.str("status") != "WAITING_FOR_DEPOSIT" || issued.body["approvedAt"] != nil || issued.body["lastTransactionKey"] != nil ||
		!strings.HasPrefix(issued.str("secret"), "ps_") || !strings.HasPrefix(account["accountNumber"].(string), "X") ||
		!strings.HasSuffix(account["dueDate"].(string), "+09:00") || account["settlementStatus"] != "INCOMPLETED" {
		t.Errorf("issued: %s", issued.raw)
	}
	b.want(b.confirm("test_va_a", "k2"), 400, "ALREADY_PROCESSED_PAYMENT")
	b.wantLedger("test_va_a", 0, 0, 0)
	b.want(b.control("POST", "/control/deposit", `{"paymentKey":"test_va_a"}`), 200, "")
	b.wantLedger("test_va_a", 1, 0, 15000)
	if r := b.lookup("test_va_a"); r.str("status") != "DONE" || r.body["approvedAt"] == nil {
		t.Errorf("deposited: %s", r.raw)
	}
	b.want(b.control("POST", "/control/deposit", `{"paymentKey":"test_va_a","reverse":true}`), 200, "")
	b.wantLedger("test_va_a", 0, 0, 0)
	if r := b.lookup("test_va_a"); r.raw != issued.raw {
		t.Errorf("reversed: want as issued\n%s\ngot\n%s", issued.raw, r.raw)
	}
	if r := b.confirm("test_va_a", "k"); r.raw != issued.raw {
		t.Errorf("replay: %s", r.raw)
	}
	b.want(b.control("POST", "/control/deposit", `{"paymentKey":"test_va_a","reverse":true}`), 400, "")
}

func TestTransactions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, key := range []string{"test_1", "test_2", "test_3"} {
		b.confirm(key, key)
		b.sim.Advance(time.Minute)
	}
	b.cancel("test_2", `{"cancelReason":"x","cancelAmount":5000}`, "c")
	korea := time.FixedZone("", 9*3600)
	at := func(d time.Duration) string { return b.sim.Now().Add(d).In(korea).Format("2006-01-02T15:04:05") }
	feed := func(query string) []map[string]any {
		t.Helper()
		r := b.toss("GET", "/v1/transactions?"+query, "", nil)
		if r.status != 200 {
			t.Fatalf("feed %s: %d %s", query, r.status, r.raw)
		}
		return decodeList(t, r.raw)
	}
	whole := "startDate=" + at(-time.Hour) + "&endDate=" + at(time.Second)
	all := feed(whole)
	if len(all) != 4 || all[0]["paymentKey"] != "test_1" || all[3]["status"] != "PARTIAL_CANCELED" || all[3]["amount"] != -5000.0 {
		t.Fatalf("all: %v", all)
	}
	page := feed(whole + "&limit=2")
	rest := feed(whole + "&limit=10&startingAfter=" + page[1]["transactionKey"].(string))
	if diff := cmp.Diff(all, append(page, rest...)); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	if got := feed("startDate=" + at(-150*time.Second) + "&endDate=" + at(-90*time.Second)); len(got) != 1 || got[0]["paymentKey"] != "test_2" {
		t.Errorf("part: %v", got)
	}
	if got := feed("startDate=2001-01-01&endDate=2001-01-02"); len(got) != 0 {
		t.Errorf("long ago: %v", got)
	}
	for _, q := range []string{"startDate=2026-01-01T00:00:00Z&endDate=2026-01-02T00:00:00Z", "startDate=2026-01-01T00:00:00%2B09:00&endDate=2026-01-02", "endDate=2026-01-02"} {
		b.want(b.toss("GET", "/v1/transactions?"+q, "", nil), 400, "INVALID_DATE")
	}
	for _, q := range []string{"&limit=5001", "&limit=x", "&startingAfter=none"} {
		b.want(b.toss("GET", "/v1/transactions?"+whole+q, "", nil), 400, "INVALID_REQUEST")
	}
}

func TestTestCode(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tests := map[string]int{
		"REJECT_CARD_PAYMENT": 403, "ALREADY_PROCESSED_PAYMENT": 400, "IDEMPOTENT_REQUEST_PROCESSING": 409, "DUPLICATED_ORDER_ID": 400,
		"FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING": 500, "COMMON_ERROR": 500, "NOT_FOUND_PAYMENT_SESSION": 404, "INVALID_API_KEY": 400,
		"FDS_ERROR": 403, "UNAUTHORIZED_KEY": 401, "PROVIDER_ERROR": 400, "A_CODE_OF_TOMORROW": 400,
	}
	for code, status := range tests {
		h := header{"TossPayments-Test-Code": code, "Idempotency-Key": code}
		body := `{"paymentKey":"never_made","orderId":"order-1","amount":100}`
		b.want(b.toss("POST", "/v1/payments/confirm", body, h), status, code)
		delete(h, "TossPayments-Test-Code")
		b.want(b.toss("POST", "/v1/payments/confirm", body, h), status, code) // kept under the key
		b.want(b.toss("POST", "/v1/payments/never_made/cancel", `{"cancelReason":"x"}`, header{"TossPayments-Test-Code": code}), status, code)
		b.want(b.toss("GET", "/v1/payments/never_made", "", header{"TossPayments-Test-Code": code}), status, code)
	}
	if l := b.sim.Ledger(); len(l.Payments) != 0 {
		t.Errorf("ledger: want empty, got %+v", l)
	}
}
