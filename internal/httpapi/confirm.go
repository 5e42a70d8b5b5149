package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
	"paymentd/internal/web"
)

// confirm is POST /payments/confirm. Every answer to a caller with a key is counted once; what ends without a
// result of its own, a panic included, counts as internal.
func (a *api) confirm(w http.ResponseWriter, r *http.Request) error {
	e := web.EventOf(r.Context())
	e.Result = payment.ResultInternal
	defer func() { a.metrics.answered(e.Result, time.Since(e.ArrivedAt)) }()

	order, err := readOrder(w, r)
	if err != nil {
		e.Result = payment.ResultInvalidRequest
		setTiming(w, e)
		return err
	}
	e.OrderID = order.OrderID
	answer, err := a.confirmed(r.Context(), order)
	return a.tell(w, e, answer, err)
}

// tell answers the caller and tells the event.
func (a *api) tell(w http.ResponseWriter, e *web.Event, answer *approval.Answer, err error) error {
	e.Attempts, e.Gateway, e.DB, e.TraceID = answer.Attempts, answer.Gateway, answer.DB, answer.TraceID
	if a.Breaker != nil {
		e.Breaker = a.Breaker()
	}
	if answer.Replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	setTiming(w, e)
	if err != nil {
		e.Result = answer.Result
		return err
	}
	status, err := statusOf(answer.Payment)
	if err != nil {
		return err
	}
	e.Result = answer.Result
	if status == http.StatusAccepted {
		w.Header().Set("Location", "/payments/"+url.PathEscape(answer.Payment.OrderID))
		w.Header().Set("Retry-After", strconv.Itoa(web.Seconds(answer.RetryAfter)))
	}
	return web.WriteJSON(w, status, payment.View(answer.Payment))
}

func readOrder(w http.ResponseWriter, r *http.Request) (payment.Order, error) {
	object, err := web.ReadObject(w, r, orderMembers()...)
	if err != nil {
		return payment.Order{}, err
	}
	order, err := parseOrder(object)
	order.ArrivedAt = web.ArrivedAt(r)
	return order, err
}

// confirmed waits for the answer.
func (a *api) confirmed(ctx context.Context, o payment.Order) (*approval.Answer, error) {
	return a.counted(a.Confirm.Confirm(ctx, o))
}

// counted never returns a result outside the closed set: it is a metric label.
func (a *api) counted(answer approval.Answer, err error) (*approval.Answer, error) {
	if err != nil {
		if _, ok := errors.AsType[*payment.Error](err); !ok || !a.metrics.known(answer.Result) {
			answer.Result = payment.ResultInternal
		}
		return &answer, fmt.Errorf("confirm payment: %w", err)
	}
	if !a.metrics.known(answer.Result) {
		answer.Result = payment.ResultInternal
	}
	return &answer, nil
}

// statusOf is the status of a confirm that ended without an error. Anything but these three has one.
func statusOf(p payment.Payment) (int, error) {
	switch p.Status {
	case payment.Paid:
		return http.StatusOK, nil
	case payment.Pending, payment.AwaitingDeposit:
		return http.StatusAccepted, nil
	default:
		return 0, fmt.Errorf("confirm payment: %s without an error", p.Status)
	}
}

func setTiming(w http.ResponseWriter, e *web.Event) {
	text := make([]byte, 0, 64)
	text = strconv.AppendFloat(append(text, "gateway;dur="...), web.Milliseconds(e.Gateway), 'f', 3, 64)
	text = strconv.AppendFloat(append(text, ", db;dur="...), web.Milliseconds(e.DB), 'f', 3, 64)
	text = strconv.AppendFloat(append(text, ", app;dur="...), web.Milliseconds(e.Own(time.Since(e.ArrivedAt))), 'f', 3, 64)
	w.Header().Set("Server-Timing", string(text))
}
