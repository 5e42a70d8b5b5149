// Package operator is the private door of paymentd: health, metrics, profiles and the breaker switch. It belongs
// on a listener that the world cannot reach.
package operator

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"paymentd/internal/web"
)

// Deps are the parts that the door needs; all but Breaker are required.
type Deps struct {
	// Checks must all pass for /readyz to answer 200.
	Checks []Check
	// Draining reports that the process is about to stop: not ready, still alive.
	Draining func() bool
	Gatherer prometheus.Gatherer
	// Breaker is nil if the breaker is off; then there is no switch.
	Breaker Breaker
	Keys    []web.Key
	Log     *slog.Logger
	// HTTP are the request metrics, shared with the public door.
	HTTP *web.Metrics
}

// New makes the private door; it refuses missing parts.
func New(d Deps) (*web.Door, error) {
	if d.Draining == nil || d.Gatherer == nil {
		return nil, errors.New("private door: Draining and Gatherer are required")
	}
	for _, c := range d.Checks {
		if c.Name == "" || c.Run == nil {
			return nil, errors.New("private door: a check needs a name and a function")
		}
	}
	door, err := web.NewDoor(web.Options{
		Log: d.Log, Metrics: d.HTTP, Keys: d.Keys, Quiet: []string{"/livez", "/readyz", "/metrics"},
	})
	if err != nil {
		return nil, err
	}
	d.routes(door)
	return door, nil
}

// routes are all routes of the private door.
func (d *Deps) routes(door *web.Door) {
	// scheduled: probes and scrapes
	door.Open(http.MethodGet, "/livez", livez)
	door.Open(http.MethodGet, "/readyz", d.readyz)
	door.Open(http.MethodGet, "/metrics", web.Plain(promhttp.HandlerFor(d.Gatherer, promhttp.HandlerOpts{
		// One broken collector must not hide the others.
		ErrorHandling: promhttp.ContinueOnError,
		ErrorLog:      slog.NewLogLogger(d.Log.Handler(), slog.LevelError),
	})))

	// operator: profiles
	door.Open(http.MethodGet, "/debug/pprof/*", web.Plain(http.HandlerFunc(pprof.Index)))
	door.Open(http.MethodGet, "/debug/pprof/cmdline", web.Plain(http.HandlerFunc(pprof.Cmdline)))
	door.Open(http.MethodGet, "/debug/pprof/profile", web.Plain(http.HandlerFunc(pprof.Profile)))
	door.Open(http.MethodGet, "/debug/pprof/symbol", web.Plain(http.HandlerFunc(pprof.Symbol)))
	door.Open(http.MethodPost, "/debug/pprof/symbol", web.Plain(http.HandlerFunc(pprof.Symbol)))
	door.Open(http.MethodGet, "/debug/pprof/trace", web.Plain(http.HandlerFunc(pprof.Trace)))

	// operator: the breaker switch
	if d.Breaker != nil {
		door.For(web.Roles{web.Operator}, http.MethodGet, "/breaker", d.breakerState)
		door.For(web.Roles{web.Operator}, http.MethodPost, "/breaker", d.breakerSwitch)
	}
}
