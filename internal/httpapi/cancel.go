package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"unicode/utf8"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
	"paymentd/internal/web"
)

const (
	idempotencyKey  = "Idempotency-Key"
	maxCancelReason = 150
	maxBank         = 20
	maxHolderName   = 60
)

var (
	saneIdempotencyKey = regexp.MustCompile(`^[\x20-\x7e]{1,200}$`)
	saneAccountNumber  = regexp.MustCompile(`^[0-9]{1,20}$`)
)

// canceled is a payment with its cancel; null if it was abandoned before anything was sent.
type canceled struct {
	payment.Public
	Cancel *cancelView `json:"cancel"`
}

type cancelView struct {
	ID     string      `json:"id"`
	Amount json.Number `json:"amount"`
	Status string      `json:"status"`
}

// cancel is POST /payments/{orderId}/cancel.
func (a *api) cancel(w http.ResponseWriter, r *http.Request) error {
	orderID, err := pathOrderID(r)
	if err != nil {
		return err
	}
	object, err := web.ReadObject(w, r, "amount", "reason", "refundReceiveAccount")
	if err != nil {
		return err
	}
	request, err := parseCancel(object, r.Header.Values(idempotencyKey))
	if err != nil {
		return err
	}
	e := web.EventOf(r.Context())
	request.OrderID, request.ArrivedAt = orderID, web.ArrivedAt(r)
	request.AskedBy, request.Operator = e.Key.Name, e.Key.Role == web.Operator
	e.Action = "cancel all"
	if request.Amount != "" {
		e.Action = "cancel a part"
	}
	answer, err := a.Cancel.Cancel(r.Context(), request)
	if answer.Replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	if err != nil {
		return fmt.Errorf("cancel payment: %w", err)
	}
	view := canceled{Public: payment.View(answer.Payment)}
	status := http.StatusOK
	if c := answer.Cancel; c != nil {
		view.Cancel = &cancelView{ID: c.ID, Amount: json.Number(c.Amount.Text(answer.Payment.Currency)), Status: "done"}
		if c.State == payment.CancelOpen {
			view.Cancel.Status = "pending"
		}
	}
	if answer.RetryAfter > 0 {
		status = http.StatusAccepted
		w.Header().Set("Location", "/payments/"+url.PathEscape(orderID))
		w.Header().Set("Retry-After", strconv.Itoa(web.Seconds(answer.RetryAfter)))
	}
	return web.WriteJSON(w, status, view)
}

// parseCancel reads the body and the key, and reports everything that is wrong with them at once. How many decimals the
// amount may have is the payment's matter.
func parseCancel(o *web.Object, keys []string) (approval.CancelRequest, error) {
	var request approval.CancelRequest
	if len(keys) == 1 && saneIdempotencyKey.MatchString(keys[0]) {
		request.Key = keys[0]
	} else {
		o.Refuse(idempotencyKey, "this header is required once, with 1 to 200 printable ASCII characters")
	}
	o.Require("reason")
	if number, ok := o.Number("amount"); ok {
		_, why := parseAmount(number, payment.KRW)
		if why != "" {
			_, why = parseAmount(number, "USD")
		}
		if why != "" {
			o.Refuse("amount", why)
		}
		request.Amount = number
	}
	if reason, ok := o.Text("reason"); ok {
		if n := utf8.RuneCountInString(reason); n < 1 || n > maxCancelReason {
			o.Refuse("reason", "must have 1 to 150 characters")
		}
		request.Reason = reason
	}
	if account, ok := o.Object("refundReceiveAccount", "bank", "accountNumber", "holderName"); ok {
		request.Account = parseRefundAccount(account)
	}
	if err := o.Err(); err != nil {
		return approval.CancelRequest{}, err
	}
	return request, nil
}

func parseRefundAccount(o *web.Object) *payment.RefundAccount {
	o.Require("bank", "accountNumber", "holderName")
	var account payment.RefundAccount
	for _, field := range []struct {
		name string
		into *string
		good func(string) bool
		why  string
	}{
		{"bank", &account.Bank, shorter(maxBank), "must be Toss's code of the bank"},
		{"accountNumber", &account.AccountNumber, saneAccountNumber.MatchString, "must be 1 to 20 digits"},
		{"holderName", &account.HolderName, shorter(maxHolderName), "must have 1 to 60 characters"},
	} {
		if text, ok := o.Text(field.name); ok {
			if !field.good(text) {
				o.Refuse(field.name, field.why)
			}
			*field.into = text
		}
	}
	return &account
}

func shorter(most int) func(string) bool {
	return func(s string) bool { n := utf8.RuneCountInString(s); return n >= 1 && n <= most }
}
