package operator

import (
	"net/http"

	"paymentd/internal/web"
)

// Breaker is the switch of the gateway's circuit breaker.
type Breaker interface {
	// ForceOpen refuses every confirm until Release.
	ForceOpen()
	// Release ends ForceOpen: trials decide what follows.
	Release()
	// State is closed, open, half_open or forced_open.
	State() string
}

type breakerView struct {
	State string `json:"state"`
}

// breakerState is GET /breaker.
func (d *Deps) breakerState(w http.ResponseWriter, _ *http.Request) error {
	return web.WriteJSON(w, http.StatusOK, breakerView{d.Breaker.State()})
}

// breakerSwitch is POST /breaker. The log keeps who did it.
func (d *Deps) breakerSwitch(w http.ResponseWriter, r *http.Request) error {
	o, err := web.ReadObject(w, r, "force")
	if err != nil {
		return err
	}
	o.Require("force")
	force, ok := o.Text("force")
	if ok && force != "open" && force != "none" {
		o.Refuse("force", "must be open or none")
	}
	if err := o.Err(); err != nil {
		return err
	}
	before := d.Breaker.State()
	if force == "open" {
		d.Breaker.ForceOpen()
	} else {
		d.Breaker.Release()
	}
	web.EventOf(r.Context()).Action = "breaker force=" + force + " was=" + before
	return web.WriteJSON(w, http.StatusOK, breakerView{d.Breaker.State()})
}
