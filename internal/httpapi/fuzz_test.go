package httpapi

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

// FuzzConfirmRequest: no body makes the decoder panic; what it accepts means the same when it is written again; what
// it refuses names a field and says why, and never repeats what may be a key.
func FuzzConfirmRequest(f *testing.F) {
	f.Add([]byte(goodOrder))
	f.Add([]byte(`{"receiptEmail":"b@example.com","memberId":"회원 7","currency":"USD","amount":10.50,"orderId":"A_b.c=d-9","paymentKey":"k/%?"}`))
	f.Add([]byte(`{"paymentKey":"tgen_1234567890Ab","orderId":"order-1","amount":1,"amount":2}`))
	f.Add([]byte(`{"paymentKey":"tgen_1234567890Ab","tgen_1234567890Ab":1,"orderId":null,"amount":1e3} x`))
	f.Fuzz(func(t *testing.T, body []byte) {
		order, err := decode(body)
		if err != nil {
			checkRefusal(t, body, err)
			return
		}
		again, err := decode(encode(t, order))
		if err != nil {
			t.Fatalf("accepted %q, but not what it means: %v", body, err)
		}
		if diff := cmp.Diff(order, again); diff != "" {
			t.Fatalf("%q (-first +again):\n%s", body, diff)
		}
		if !order.Currency.Supported() || order.Amount <= 0 || !isOrderID(order.OrderID) || !isPaymentKey(order.PaymentKey) {
			t.Fatalf("accepted %+v", order)
		}
	})
}

func decode(body []byte) (payment.Order, error) {
	object, err := web.ParseObject(body, orderMembers()...)
	if err != nil {
		return payment.Order{}, err
	}
	return parseOrder(object)
}

func encode(t *testing.T, o payment.Order) []byte {
	t.Helper()
	members := map[string]any{
		"paymentKey": o.PaymentKey, "orderId": o.OrderID, "amount": json.Number(o.Amount.Text(o.Currency)), "currency": o.Currency,
	}
	if o.MemberID != "" {
		members["memberId"] = o.MemberID
	}
	if o.ReceiptEmail != "" {
		members["receiptEmail"] = o.ReceiptEmail
	}
	body, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

var (
	jsonString = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	wordsAlone = regexp.MustCompile(`^[A-Za-z_]*$`)
)

func checkRefusal(t *testing.T, body []byte, err error) {
	t.Helper()
	refusal, ok := errors.AsType[*payment.Error](err)
	if !ok || refusal.Code != payment.CodeInvalidRequest || len(refusal.Fields) == 0 {
		t.Fatalf("%q is refused with %v", body, err)
	}
	said, jsonErr := json.Marshal(web.ProblemOf(err, "req-1"))
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	for _, field := range refusal.Fields {
		if field.Field == "" || field.Reason == "" {
			t.Fatalf("%q is refused with %s", body, said)
		}
	}
	// A member's own name may be repeated if it is letters alone; nothing else of the body.
	reasons := strings.ReplaceAll(string(said), "letters, digits or _ . = -", "")
	for _, quoted := range jsonString.FindAllString(string(body), -1) {
		var text string
		if json.Unmarshal([]byte(quoted), &text) == nil && len(text) >= 8 && !wordsAlone.MatchString(text) && !ours(text) &&
			strings.Contains(reasons, text) {
			t.Fatalf("%q is repeated in %s", text, said)
		}
	}
}

// ours tells whether a text of the input is one that every refusal holds.
func ours(text string) bool {
	said, err := json.Marshal(web.ProblemOf(web.Invalid(payment.FieldError{}), "req-1"))
	return err == nil && strings.Contains(string(said), text)
}
