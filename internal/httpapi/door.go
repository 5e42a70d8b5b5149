// Package httpapi is the public door of paymentd: the routes of design note §8, described by openapi.yaml.
package httpapi

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

// Deps are the parts that the door needs; all but Breaker are required.
type Deps struct {
	Confirm   Confirmer
	Cancel    Canceler
	Read      Reader
	Sync      Syncer
	Hints     Hinter
	Incidents Incidents
	Keys      []web.Key
	Log       *slog.Logger
	// HTTP are the request metrics, shared with the private door; Registry takes the door's own.
	HTTP     *web.Metrics
	Registry prometheus.Registerer
	// Breaker names the state of the gateway's breaker for the log; nil where there is none.
	Breaker func() string
}

// api holds what the handlers use.
type api struct {
	Deps
	metrics  *metrics
	webhooks *rate.Limiter
}

// New makes the public door; it refuses missing parts.
func New(d Deps) (*web.Door, error) {
	if d.Confirm == nil || d.Cancel == nil || d.Read == nil || d.Sync == nil || d.Hints == nil || d.Incidents == nil || d.Registry == nil {
		return nil, errors.New("public door: Confirm, Cancel, Read, Sync, Hints, Incidents and Registry are required")
	}
	door, err := web.NewDoor(web.Options{Log: d.Log, Metrics: d.HTTP, Keys: d.Keys})
	if err != nil {
		return nil, err
	}
	a := &api{Deps: d, metrics: newMetrics(d.Registry), webhooks: rate.NewLimiter(webhookRate, webhookBurst)}
	a.routes(door)
	return door, nil
}

// routes are all routes of the public door.
func (a *api) routes(door *web.Door) {
	checkout, operator := web.Roles{web.Checkout}, web.Roles{web.Operator}
	both := web.Roles{web.Checkout, web.Operator}

	door.For(checkout, http.MethodPost, "/payments/confirm", a.confirm)
	door.For(both, http.MethodGet, "/payments/{orderId}", a.read)
	door.For(both, http.MethodGet, "/payments/{orderId}/attempts", a.attempts)
	door.For(both, http.MethodPost, "/payments/{orderId}/cancel", a.cancel)
	door.For(operator, http.MethodPost, "/payments/sync", a.sync)
	door.Open(http.MethodPost, "/webhooks/toss", a.webhook)
	door.For(operator, http.MethodGet, "/incidents", a.listIncidents)
	door.For(operator, http.MethodPost, "/incidents/{id}/resolve", a.resolveIncident)
	door.Open(http.MethodGet, "/openapi.yaml", a.spec)
}

// readFailed is the error of a read that the database did not answer.
func readFailed(err error) error {
	if _, ok := errors.AsType[*payment.Error](err); ok {
		return err
	}
	return &payment.Error{Code: payment.CodeDBUnavailable, Public: "The payment could not be read now.", Err: err}
}
