package pg

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"paymentd/internal/payment"
)

var (
	errNotPayment = errors.New("unreadable payment object")
	errAmounts    = errors.New("unreadable amount in a payment object")
)

// The most characters of Toss's texts, which become rows, answers and notices: no more than Toss documents, and enough
// for what it does not.
const (
	maxField   = 100
	maxMessage = 510
	maxURL     = 2000
)

// optional takes a field if it has the expected form and is empty otherwise: Toss changes fields that decide
// nothing here (easyPay was a string once) without a new version.
type optional[T any] struct{ value T }

// UnmarshalJSON never fails on well-formed JSON.
func (o *optional[T]) UnmarshalJSON(b []byte) error {
	var v T
	if string(b) != "null" && json.Unmarshal(b, &v) == nil {
		o.value = v
	}
	return nil
}

// wirePayment is what paymentd reads of Toss's Payment object.
type wirePayment struct {
	paymentKey, orderID, status, currency string
	total, balance                        json.Number
	cancels                               []wireCancel
	method, approvedAt, receiptURL        string
	virtualAccount                        *wireVirtualAccount
	failure                               wireError
}

// readPayment takes a quarter of the time that encoding/json alone does, and less of the stack; what most payments do not
// have is left to that. Names are compared exactly, null is as good as nothing, of members that are there twice the last
// one counts (of a receipt, the last with a URL). ok is false if body is no object or what decides is missing or has another form.
func readPayment(body []byte) (w wirePayment, ok bool) {
	formed := true
	whole := payment.Members(body, func(name, value []byte) {
		if string(value) != "null" {
			formed = w.take(name, value) && formed
		}
	})
	return w, whole && formed && w.paymentKey != "" && w.status != ""
}

func (w *wirePayment) take(name, value []byte) (ok bool) {
	switch string(name) {
	case "paymentKey":
		w.paymentKey, ok = payment.Text(value)
	case "orderId":
		w.orderID, ok = payment.Text(value)
	case "status":
		w.status, ok = payment.Text(value)
	case "currency":
		w.currency, ok = payment.Text(value)
	case "totalAmount":
		w.total, ok = numberOf(value)
	case "balanceAmount":
		w.balance, ok = numberOf(value)
	case "cancels":
		w.cancels, ok = decoded[[]wireCancel](value)
	default:
		w.takeOptional(name, value)
		return true
	}
	return ok
}

// takeOptional reads the members that decide nothing.
func (w *wirePayment) takeOptional(name, value []byte) {
	switch string(name) {
	case "method":
		w.method, _ = payment.Text(value)
	case "approvedAt":
		w.approvedAt, _ = payment.Text(value)
	case "receipt":
		payment.Members(value, func(name, value []byte) {
			if string(name) == "url" {
				w.receiptURL, _ = payment.Text(value)
			}
		})
	case "virtualAccount":
		w.virtualAccount, _ = decoded[*wireVirtualAccount](value)
	case "failure":
		w.failure, _ = decoded[wireError](value)
	}
}

// numberOf is a number as it stands there.
func numberOf(value []byte) (n json.Number, ok bool) {
	if c := value[0]; c == '-' || '0' <= c && c <= '9' {
		return json.Number(value), true
	}
	return decoded[json.Number](value) // a number in a string
}

// decoded is what encoding/json makes of a value; empty if it has another form.
func decoded[T any](value []byte) (v T, ok bool) {
	var read T
	if json.Unmarshal(value, &read) != nil {
		return v, false
	}
	return read, true
}

type wireCancel struct {
	CancelAmount   json.Number      `json:"cancelAmount"`
	CancelStatus   optional[string] `json:"cancelStatus"`
	TransactionKey optional[string] `json:"transactionKey"`
	CancelReason   optional[string] `json:"cancelReason"`
	CanceledAt     optional[string] `json:"canceledAt"`
}

type wireVirtualAccount struct {
	BankCode      optional[string] `json:"bankCode"`
	AccountNumber optional[string] `json:"accountNumber"`
	CustomerName  optional[string] `json:"customerName"`
	DueDate       optional[string] `json:"dueDate"`
}

// wireError is Toss's error: bare in v1, under "error" in v2.
type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// decodePayment reads a Payment object. Its errors are fixed texts: the decoder's own would repeat what was sent.
func decodePayment(body []byte) (payment.Observation, error) {
	w, ok := readPayment(body)
	if !ok {
		return payment.Observation{}, errNotPayment
	}
	currency := payment.Currency(w.currency)
	o := payment.Observation{
		Sighting:       payment.SightingOf(w.status),
		PaymentKey:     w.paymentKey,
		OrderID:        w.orderID,
		Currency:       currency,
		Method:         firstOf(w.method, maxField),
		ApprovedAt:     parseTime(w.approvedAt),
		ReceiptURL:     firstOf(w.receiptURL, maxURL),
		FailureCode:    failureCode(w.failure.Code, w.paymentKey),
		FailureMessage: firstOf(w.failure.Message, maxMessage),
	}
	var errs [2]error
	o.Total, errs[0] = payment.ParseAmount(w.total.String(), currency)
	o.Balance, errs[1] = payment.ParseAmount(w.balance.String(), currency)
	if errors.Join(errs[:]...) != nil || o.Balance > o.Total {
		return payment.Observation{}, errAmounts
	}
	if v := w.virtualAccount; v != nil {
		o.VirtualAccount = &payment.VirtualAccount{
			BankCode: firstOf(v.BankCode.value, maxField), AccountNumber: firstOf(v.AccountNumber.value, maxField),
			CustomerName: firstOf(v.CustomerName.value, maxField), DueDate: parseTime(v.DueDate.value),
		}
	}
	for _, c := range w.cancels {
		if s := c.CancelStatus.value; s == "IN_PROGRESS" || s == "ABORTED" {
			continue // an overseas wallet's cancel that gave nothing back yet
		}
		amount, err := payment.ParseAmount(c.CancelAmount.String(), currency)
		if err != nil {
			return payment.Observation{}, errAmounts
		}
		o.Cancels = append(o.Cancels, payment.GatewayCancel{
			TransactionKey: firstOf(c.TransactionKey.value, maxField), Amount: amount,
			Reason: firstOf(c.CancelReason.value, maxMessage), At: parseTime(c.CanceledAt.value),
		})
	}
	return o, nil
}

// decodeError reads an error of either shape; ok is false if the body holds no code.
func decodeError(body []byte) (e wireError, ok bool) {
	var w struct {
		Code    optional[string]    `json:"code"`
		Message optional[string]    `json:"message"`
		Error   optional[wireError] `json:"error"`
	}
	if json.Unmarshal(body, &w) != nil {
		return wireError{}, false
	}
	e = wireError{Code: w.Code.value, Message: w.Message.value}
	if e.Code == "" {
		e = w.Error.value
	}
	// Codes become log fields and rows: keep what a code can be, so that nothing else passes for one.
	if !isCode(e.Code) {
		return wireError{}, false
	}
	return wireError{Code: e.Code, Message: firstOf(e.Message, maxMessage)}, true
}

// isCode reports whether the text can be a code of Toss: 1 to 64 of A-Z, 0-9 and _.
func isCode(text string) bool {
	return text != "" && len(text) <= 64 && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'A' || 'Z' < c) && (c < '0' || '9' < c) && c != '_'
	})
}

// failureCode is the code of a payment's failure, empty if it is no code or repeats the key.
func failureCode(code, paymentKey string) string {
	if !isCode(code) || echoes(code, paymentKey) {
		return ""
	}
	return code
}

// firstOf keeps the first n characters.
func firstOf(text string, n int) string {
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}

// parseTime reads Toss's times, with an offset or in Korean local time; the zero time if it is none, or so far off that
// it cannot be written in every offset: no caller must be answered 500 for a payment that is PAID.
func parseTime(text string) time.Time {
	t := parseAnyTime(text)
	if t.Year() < 1 || t.Year() > 9998 || t.UTC().Year() < 1 || t.UTC().Year() > 9998 {
		return time.Time{}
	}
	return t
}

func parseAnyTime(text string) time.Time {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t
	}
	korea := time.FixedZone("KST", 9*60*60)
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, korea); err == nil {
			return t
		}
	}
	return time.Time{}
}

// confirmBody is the JSON of a confirm.
func confirmBody(o payment.Order) []byte {
	b := make([]byte, 0, 50+len(o.OrderID)+len(o.PaymentKey))
	b = append(append(b, `{"amount":`...), o.Amount.Text(o.Currency)...)
	b = payment.AppendText(append(b, `,"orderId":`...), o.OrderID)
	b = payment.AppendText(append(b, `,"paymentKey":`...), o.PaymentKey)
	return append(b, '}')
}

// encode marshals strings and numbers, which cannot fail.
func encode(fields any) []byte {
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return b
}
