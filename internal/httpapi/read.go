package httpapi

import (
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

// event is a payment.Event as operators see it.
type event struct {
	Version int64           `json:"version"`
	From    *payment.Status `json:"from"`
	To      payment.Status  `json:"to"`
	Actor   payment.Actor   `json:"actor"`
	Reason  string          `json:"reason"`
	At      time.Time       `json:"at"`
}

// read is GET /payments/{orderId}.
func (a *api) read(w http.ResponseWriter, r *http.Request) error {
	withEvents, err := wantsEvents(r)
	if err != nil {
		return err
	}
	orderID, err := pathOrderID(r)
	if err != nil {
		return err
	}
	p, found, err := a.Read.ByOrder(r.Context(), orderID)
	if err != nil {
		return readFailed(err)
	}
	if !found {
		return noPayment()
	}
	if !withEvents {
		return web.WriteJSON(w, http.StatusOK, payment.View(p))
	}
	events, err := a.Read.Events(r.Context(), p.ID)
	if err != nil {
		return readFailed(err)
	}
	return web.WriteJSON(w, http.StatusOK, struct {
		payment.Public
		Events []event `json:"events"`
	}{payment.View(p), viewEvents(events)})
}

// attempts is GET /payments/{orderId}/attempts.
func (a *api) attempts(w http.ResponseWriter, r *http.Request) error {
	orderID, err := pathOrderID(r)
	if err != nil {
		return err
	}
	payments, err := a.Read.Attempts(r.Context(), orderID)
	if err != nil {
		return readFailed(err)
	}
	if len(payments) == 0 {
		return noPayment()
	}
	views := make([]payment.Public, len(payments))
	for i, p := range payments {
		views[i] = payment.View(p)
	}
	return web.WriteJSON(w, http.StatusOK, struct {
		Attempts []payment.Public `json:"attempts"`
	}{views})
}

// wantsEvents reads ?events=, which is for operators alone.
func wantsEvents(r *http.Request) (bool, error) {
	query, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		return false, err
	}
	switch values := query["events"]; {
	case len(values) == 0 || (len(values) == 1 && values[0] == "false"):
		return false, nil
	case len(values) > 1 || values[0] != "true":
		return false, web.Invalid(payment.FieldError{Field: "events", Reason: "must be true or false"})
	}
	if web.EventOf(r.Context()).Key.Role != web.Operator {
		return false, &payment.Error{Code: payment.CodeForbidden, Public: "Events are for operators."}
	}
	return true, nil
}

// pathOrderID reads the order from the path; what cannot be an order is not found.
func pathOrderID(r *http.Request) (string, error) {
	// chi gives the raw segment when a client escaped more than it had to, as with "=".
	orderID, err := url.PathUnescape(chi.URLParam(r, "orderId"))
	if err != nil || !isOrderID(orderID) {
		return "", noPayment()
	}
	web.EventOf(r.Context()).OrderID = orderID
	return orderID, nil
}

func noPayment() error {
	return &payment.Error{Code: payment.CodeNotFound, Public: "There is no payment of this order."}
}

func viewEvents(events []payment.Event) []event {
	views := make([]event, len(events))
	for i, e := range events {
		views[i] = event{Version: e.Version, To: e.To, Actor: e.Actor, Reason: e.Reason, At: e.At.UTC()}
		if e.From != "" {
			views[i].From = &events[i].From
		}
	}
	return views
}
