package pg

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

func korean(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestDecodePaymentGolden(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		want payment.Observation
	}{
		{"card_done", payment.Observation{
			Sighting: payment.SeenDone, PaymentKey: "5EnNZRJGvaBX7zk2yd8ydw26XvwXkLrx9POLqKQjmAw4b0e1", OrderID: "a4CWyWY5m89PNh7xJwhk1",
			Total: 50000000000, Balance: 50000000000, Currency: "KRW", Method: "카드",
			ApprovedAt: korean(t, "2026-02-13T12:18:14+09:00"), ReceiptURL: "https://dashboard.example/receipt/abc",
		}},
		{"virtual_account", payment.Observation{
			Sighting: payment.SeenWaiting, PaymentKey: "va-1", OrderID: "order-va-1", Total: 15000, Balance: 15000, Currency: "KRW", Method: "가상계좌",
			VirtualAccount: &payment.VirtualAccount{
				BankCode: "20", AccountNumber: "X6505636518308", CustomerName: "박토스", DueDate: korean(t, "2026-02-14T21:05:09+09:00"),
			},
		}},
		{"partly_canceled_usd", payment.Observation{
			Sighting: payment.SeenPartlyCanceled, PaymentKey: "usd-1", OrderID: "order-usd-1", Total: 1250, Balance: 1125, Currency: "USD",
			ApprovedAt: korean(t, "2026-02-13T12:18:14.653+09:00"),
			Cancels: []payment.GatewayCancel{{
				TransactionKey: "t-1", Amount: 125, Reason: "size [c-abcdefghijklmnopqrstuvwxyz]", At: korean(t, "2026-02-13T13:00:00+09:00"),
			}},
		}},
		{"expired", payment.Observation{
			Sighting: payment.SeenExpired, PaymentKey: "exp-1", OrderID: "order-exp-1", Total: 1000, Balance: 1000, Currency: "KRW",
			FailureCode: "EXPIRED_PAYMENT", FailureMessage: "결제 시간이 만료되어 결제 진행 데이터가 존재하지 않습니다.",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			body, err := os.ReadFile(filepath.Join("testdata", "wire", tt.name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := decodePayment(body)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("observation (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodePaymentRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, body string }{
		{"nothing", ""},
		{"html", "<html>"},
		{"null", "null"},
		{"list", "[]"},
		{"cut short", `{"paymentKey":"k","status":"DONE","currency":"KRW","totalAmount":1`},
		{"no key", `{"status":"DONE","currency":"KRW","totalAmount":1,"balanceAmount":1}`},
		{"no status", `{"paymentKey":"k","currency":"KRW","totalAmount":1,"balanceAmount":1}`},
		{"no amount", `{"paymentKey":"k","status":"DONE","currency":"KRW","balanceAmount":1}`},
		{"null balance", `{"paymentKey":"k","status":"DONE","currency":"KRW","totalAmount":1,"balanceAmount":null}`},
		{"half a won", `{"paymentKey":"k","status":"DONE","currency":"KRW","totalAmount":1.5,"balanceAmount":1}`},
		{"exponent", `{"paymentKey":"k","status":"DONE","currency":"KRW","totalAmount":1e3,"balanceAmount":1000}`},
		{"negative", `{"paymentKey":"k","status":"DONE","currency":"KRW","totalAmount":1,"balanceAmount":-1}`},
		{"balance above total", `{"paymentKey":"k","status":"DONE","currency":"KRW","totalAmount":1,"balanceAmount":2}`},
		{"cancel without amount", `{"paymentKey":"k","status":"DONE","currency":"KRW","totalAmount":1,"balanceAmount":1,"cancels":[{}]}`},
		{"an error", `{"code":"INVALID_REQUEST","message":"no"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got, err := decodePayment([]byte(tt.body)); err == nil {
				t.Errorf("read %+v from %s", got, tt.body)
			}
		})
	}
}

func TestDecodeError(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		want       wireError
		ok         bool
	}{
		{"v1", `{"code":"FDS_ERROR","message":"stop","data":null}`, wireError{"FDS_ERROR", "stop"}, true},
		{"v2", `{"version":"x","traceId":"y","entityType":"error","error":{"code":"FDS_ERROR","message":"stop"}}`, wireError{"FDS_ERROR", "stop"}, true},
		{"no message", `{"code":"FDS_ERROR"}`, wireError{"FDS_ERROR", ""}, true},
		{"message of another form", `{"code":"FDS_ERROR","message":{"ko":"x"}}`, wireError{"FDS_ERROR", ""}, true},
		{"html", `<html>`, wireError{}, false},
		{"empty", ``, wireError{}, false},
		{"number", `{"code":403}`, wireError{}, false},
		{"not a code", `{"code":"a b\nc"}`, wireError{}, false},
		{"list", `[1]`, wireError{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok := decodeError([]byte(tt.body))
			if got != tt.want || ok != tt.ok {
				t.Errorf("got %+v %v, want %+v %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// TestConfirmBody: what is sent is what encoding/json writes of the same members.
func TestConfirmBody(t *testing.T) {
	t.Parallel()
	for _, o := range []payment.Order{
		{PaymentKey: "tgen_20260301090000AbC12", OrderID: "order-20260301-0001", Amount: 15000, Currency: payment.KRW},
		{PaymentKey: `"<&>\`, OrderID: "=._-", Amount: 105, Currency: "USD"},
		{PaymentKey: "k", OrderID: "o", Amount: 999999999999999, Currency: "JPY"},
	} {
		want, err := json.Marshal(struct {
			Amount     json.Number `json:"amount"`
			OrderID    string      `json:"orderId"`
			PaymentKey string      `json:"paymentKey"`
		}{json.Number(o.Amount.Text(o.Currency)), o.OrderID, o.PaymentKey})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(confirmBody(o))); diff != "" {
			t.Errorf("body (-encoding/json +ours):\n%s", diff)
		}
	}
}

func TestParseTime(t *testing.T) {
	t.Parallel()
	tests := []struct{ text, want string }{
		{"2026-02-13T12:18:14+09:00", "2026-02-13T03:18:14Z"},
		{"2026-02-13T12:18:14", "2026-02-13T03:18:14Z"},
		{"2026-02-13T12:18:14.65327", "2026-02-13T03:18:14.65327Z"},
		{"2026-02-13", "2026-02-12T15:00:00Z"},
		{"2026-02-13T12:18:14Z", "2026-02-13T12:18:14Z"},
		{"", "0001-01-01T00:00:00Z"},
		{"tomorrow", "0001-01-01T00:00:00Z"},
	}
	for _, tt := range tests {
		if got := parseTime(tt.text).UTC().Format(time.RFC3339Nano); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.text, got, tt.want)
		}
	}
}

// FuzzDecode: whatever the gateway sends, nothing panics and no error quotes it; a payment that is read has the
// fields that money is decided by.
func FuzzDecode(f *testing.F) {
	names, err := filepath.Glob(filepath.Join("testdata", "wire", "*.json"))
	if err != nil || len(names) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, name := range names {
		body, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body, 200)
	}
	for _, body := range []string{"", "null", "[]", `{"code":"REJECT_CARD_PAYMENT","message":"x"}`, `{"error":{"code":"X"}}`, `{"error":null,"code":null}`} {
		f.Add([]byte(body), 400)
	}
	classify := newClassifier()
	f.Fuzz(func(t *testing.T, body []byte, status int) {
		for _, op := range []string{opConfirm, opLookup, opCancel} {
			a, _ := classify.classify(op, reply{status: status, body: body}, expectation{paymentKey: "usd-1"})
			switch {
			case a.Kind == "":
				t.Error("no kind")
			case a.Kind == payment.KindPayment && (a.Observation.PaymentKey != "usd-1" || a.Observation.Sighting == ""):
				t.Errorf("accepted %+v", a.Observation)
			case a.Kind == payment.KindPayment && a.Observation.Balance > a.Observation.Total:
				t.Errorf("balance above total: %+v", a.Observation)
			case a.Kind == payment.KindDeclined && a.Code == "":
				t.Error("declined without a code")
			case a.Err != nil && a.Err != errMismatch && a.Err != errUnreadable && a.Err != errNotPayment && a.Err != errAmounts:
				t.Errorf("an error that may quote the answer: %v", a.Err)
			}
		}
	})
}
