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

// optional takes a field if it has the expected form and is empty otherwise: Toss changes fields that decide
// nothing here (easyPay was a string once) without a new version.
type optional[T any] struct{ value T }

// UnmarshalJSON never fails on well-formed JSON.
func (o *optional[T]) UnmarshalJSON(b []byte) error {
	var v T
	if json.Unmarshal(b, &v) == nil {
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
		Method:         w.Method.value,
		ApprovedAt:     parseTime(w.ApprovedAt.value),
		ReceiptURL:     w.Receipt.value.URL,
		FailureCode:    w.Failure.value.Code,
		FailureMessage: w.Failure.value.Message,
	}
	var errs [2]error
	o.Total, errs[0] = payment.ParseAmount(w.TotalAmount.String(), currency)
	o.Balance, errs[1] = payment.ParseAmount(w.BalanceAmount.String(), currency)
	if errors.Join(errs[:]...) != nil || o.Balance > o.Total {
		return payment.Observation{}, errAmounts
	}
	if v := w.VirtualAccount.value; v != nil {
		o.VirtualAccount = &payment.VirtualAccount{
			BankCode: v.BankCode.value, AccountNumber: v.AccountNumber.value,
			CustomerName: v.CustomerName.value, DueDate: parseTime(v.DueDate.value),
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
			TransactionKey: c.TransactionKey.value, Amount: amount,
			Reason: c.CancelReason.value, At: parseTime(c.CanceledAt.value),
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
	if e.Code == "" || len(e.Code) > 100 || strings.ContainsFunc(e.Code, notOfCode) {
		return wireError{}, false
	}
	return e, true
}

func notOfCode(r rune) bool {
	return r != '_' && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
}

// parseTime reads Toss's times, with an offset or in Korean local time; the zero time if it is none.
func parseTime(text string) time.Time {
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
	return encode(map[string]any{
		"paymentKey": o.PaymentKey, "orderId": o.OrderID, "amount": json.Number(o.Amount.Text(o.Currency)),
	})
}

// encode marshals strings and numbers, which cannot fail.
func encode(fields map[string]any) []byte {
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return b
}
