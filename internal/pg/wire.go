package pg

import (
	"encoding/json"
	"errors"
	"regexp"
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
	PaymentKey     string                        `json:"paymentKey"`
	OrderID        string                        `json:"orderId"`
	Status         string                        `json:"status"`
	Currency       string                        `json:"currency"`
	TotalAmount    json.Number                   `json:"totalAmount"`
	BalanceAmount  json.Number                   `json:"balanceAmount"`
	Cancels        []wireCancel                  `json:"cancels"`
	Method         optional[string]              `json:"method"`
	ApprovedAt     optional[string]              `json:"approvedAt"`
	Receipt        optional[wireReceipt]         `json:"receipt"`
	VirtualAccount optional[*wireVirtualAccount] `json:"virtualAccount"`
	Failure        optional[wireError]           `json:"failure"`
}

type wireCancel struct {
	CancelAmount   json.Number      `json:"cancelAmount"`
	CancelStatus   optional[string] `json:"cancelStatus"`
	TransactionKey optional[string] `json:"transactionKey"`
	CancelReason   optional[string] `json:"cancelReason"`
	CanceledAt     optional[string] `json:"canceledAt"`
}

type wireReceipt struct {
	URL string `json:"url"`
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
	var w wirePayment
	if err := json.Unmarshal(body, &w); err != nil || w.PaymentKey == "" || w.Status == "" {
		return payment.Observation{}, errNotPayment
	}
	currency := payment.Currency(w.Currency)
	o := payment.Observation{
		Sighting:       payment.SightingOf(w.Status),
		PaymentKey:     w.PaymentKey,
		OrderID:        w.OrderID,
		Currency:       currency,
		Method:         firstOf(w.Method.value, maxField),
		ApprovedAt:     parseTime(w.ApprovedAt.value),
		ReceiptURL:     firstOf(w.Receipt.value.URL, maxURL),
		FailureCode:    failureCode(w.Failure.value.Code, w.PaymentKey),
		FailureMessage: firstOf(w.Failure.value.Message, maxMessage),
	}
	var errs [2]error
	o.Total, errs[0] = payment.ParseAmount(w.TotalAmount.String(), currency)
	o.Balance, errs[1] = payment.ParseAmount(w.BalanceAmount.String(), currency)
	if errors.Join(errs[:]...) != nil || o.Balance > o.Total {
		return payment.Observation{}, errAmounts
	}
	if v := w.VirtualAccount.value; v != nil {
		o.VirtualAccount = &payment.VirtualAccount{
			BankCode: firstOf(v.BankCode.value, maxField), AccountNumber: firstOf(v.AccountNumber.value, maxField),
			CustomerName: firstOf(v.CustomerName.value, maxField), DueDate: parseTime(v.DueDate.value),
		}
	}
	for _, c := range w.Cancels {
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
	if !codeShape.MatchString(e.Code) {
		return wireError{}, false
	}
	return wireError{Code: e.Code, Message: firstOf(e.Message, maxMessage)}, true
}

// codeShape is what a code of Toss can be.
var codeShape = regexp.MustCompile(`^[A-Z0-9_]{1,64}$`)

// failureCode is the code of a payment's failure, empty if it is no code or repeats the key.
func failureCode(code, paymentKey string) string {
	if !codeShape.MatchString(code) || echoes(code, paymentKey) {
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
	return encode(wireConfirm{json.Number(o.Amount.Text(o.Currency)), o.OrderID, o.PaymentKey})
}

type wireConfirm struct {
	Amount     json.Number `json:"amount"`
	OrderID    string      `json:"orderId"`
	PaymentKey string      `json:"paymentKey"`
}

// encode marshals strings and numbers, which cannot fail.
func encode(fields any) []byte {
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return b
}
