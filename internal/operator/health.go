package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"paymentd/internal/web"
)

// checkWithin bounds all checks of one probe together.
const checkWithin = 2 * time.Second

// Check is one thing that must work for the process to be ready. What its error says goes to the log alone.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

type readiness struct {
	Ready    bool          `json:"ready"`
	Draining bool          `json:"draining"`
	Checks   []checkResult `json:"checks"`
}

type checkResult struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
}

// livez is GET /livez: the process answers, whatever else is wrong. A restart repairs nothing that readyz shows.
func livez(w http.ResponseWriter, _ *http.Request) error {
	return web.WriteJSON(w, http.StatusOK, map[string]bool{"alive": true})
}

// readyz is GET /readyz.
func (d *Deps) readyz(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), checkWithin)
	defer cancel()
	state := readiness{Draining: d.Draining(), Checks: make([]checkResult, len(d.Checks))}
	causes := make([]error, len(d.Checks))
	var checks sync.WaitGroup
	for i, c := range d.Checks {
		checks.Go(func() {
			if err := c.run(ctx); err != nil {
				causes[i] = fmt.Errorf("%s: %w", c.Name, err)
			}
			state.Checks[i] = checkResult{Name: c.Name, OK: causes[i] == nil}
		})
	}
	checks.Wait()
	cause := errors.Join(causes...)
	state.Ready = cause == nil && !state.Draining
	if state.Ready {
		return web.WriteJSON(w, http.StatusOK, state)
	}
	web.EventOf(r.Context()).Note(cause)
	return web.WriteJSON(w, http.StatusServiceUnavailable, state)
}

// run turns a panic into an error: it happens on a goroutine that no handler guards.
func (c Check) run(ctx context.Context) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic of type %T", fault)
		}
	}()
	return c.Run(ctx)
}
