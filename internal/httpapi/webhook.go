package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"time"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

const (
	// maxWebhook is the largest body of a webhook in bytes; a whole payment of Toss has about 3 KiB.
	maxWebhook = 64 << 10
	// webhookRate and webhookBurst limit the open route: a second of it sees at most 150 calls. Toss sends a refused one again.
	webhookRate, webhookBurst = 50, 100

	eventStatusChanged = "PAYMENT_STATUS_CHANGED"
	eventDeposit       = "DEPOSIT_CALLBACK"
)

// saneTransmissionID is what Toss's ids ("whtrans_…") look like; anything else is no id.
var saneTransmissionID = regexp.MustCompile(`^[\x21-\x7e]{1,100}$`)

// webhook is POST /webhooks/toss. Toss does not sign it, so nothing of the body is believed.
func (a *api) webhook(w http.ResponseWriter, r *http.Request) error {
	if !a.webhooks.Allow() {
		return &payment.Error{Code: payment.CodeRateLimited, RetryAfter: time.Second, Public: "Too many webhooks. Send it again later."}
	}
	body, err := web.ReadBody(w, r, maxWebhook)
	if err != nil {
		return err
	}
	hint, ours, err := parseWebhook(body)
	if err != nil {
		return err
	}
	e := web.EventOf(r.Context())
	e.OrderID = hint.OrderID
	if id := r.Header.Get("Tosspayments-Webhook-Transmission-Id"); saneTransmissionID.MatchString(id) {
		hint.TransmissionID = id
	}
	state := payment.IgnoredHint
	if ours {
		if state, err = a.Hints.Hint(r.Context(), hint); err != nil {
			return err
		}
	}
	e.Action = "webhook " + string(state)
	// Toss wants 200 and reads nothing. What became of it is not for whoever calls.
	w.WriteHeader(http.StatusOK)
	return nil
}

// webhookBody is all that is read of a webhook: of PAYMENT_STATUS_CHANGED, whose data is the payment, or of
// DEPOSIT_CALLBACK, which is flat and has no eventType. Toss adds members without notice.
type webhookBody struct {
	EventType string          `json:"eventType"`
	OrderID   string          `json:"orderId"`
	Status    string          `json:"status"`
	Data      json.RawMessage `json:"data"`
}

type webhookData struct {
	PaymentKey string `json:"paymentKey"`
	OrderID    string `json:"orderId"`
	Status     string `json:"status"`
}

// parseWebhook reads a webhook; ours is false for an event that says nothing of a payment's state.
func parseWebhook(body []byte) (h payment.Hint, ours bool, err error) {
	var b webhookBody
	if err := decodeLoosely(body, &b); err != nil {
		return h, false, badWebhook("body", "is not a JSON object of Toss")
	}
	d := webhookData{OrderID: b.OrderID, Status: b.Status}
	switch b.EventType {
	case eventStatusChanged:
		if err := decodeLoosely(b.Data, &d); err != nil {
			return h, false, badWebhook("data", "is not a payment")
		}
	case eventDeposit, "":
		b.EventType = eventDeposit
	default:
		return h, false, nil
	}
	h = payment.Hint{Event: b.EventType, PaymentKey: d.PaymentKey, OrderID: d.OrderID, Claim: payment.SightingOf(d.Status)}
	if !isPaymentKey(h.PaymentKey) {
		h.PaymentKey = ""
	}
	if !isOrderID(h.OrderID) {
		h.OrderID = ""
	}
	if h.PaymentKey == "" && h.OrderID == "" {
		return payment.Hint{}, false, badWebhook("body", "names no payment and no order")
	}
	return h, true, nil
}

// decodeLoosely reads exactly one JSON object, whatever members it has besides.
func decodeLoosely(text []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	var whole json.RawMessage
	if err := dec.Decode(&whole); err != nil {
		return err
	}
	if whole[0] != '{' {
		return errors.New("not an object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("data after the object")
	}
	return json.Unmarshal(whole, v)
}

func badWebhook(field, reason string) error {
	return web.Invalid(payment.FieldError{Field: field, Reason: reason})
}
