package httpapi

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

const (
	maxIncidents     = 200
	defaultIncidents = 50
	maxNote          = 1000
)

// incident is a payment.Incident as JSON; what is not known is null.
type incident struct {
	ID         int64                   `json:"id"`
	Kind       payment.IncidentKind    `json:"kind"`
	State      payment.IncidentState   `json:"state"`
	OrderID    *string                 `json:"orderId"`
	PaymentKey *string                 `json:"paymentKey"`
	OpenedAt   time.Time               `json:"openedAt"`
	ResolvedAt *time.Time              `json:"resolvedAt"`
	ResolvedBy *string                 `json:"resolvedBy"`
	Action     *payment.IncidentAction `json:"action"`
	Note       *string                 `json:"note"`
	Evidence   json.RawMessage         `json:"evidence"`
}

func viewIncident(i payment.Incident) incident {
	view := incident{
		ID: i.ID, Kind: i.Kind, State: i.State(), OrderID: known(i.OrderID), PaymentKey: known(i.PaymentKey),
		OpenedAt: i.OpenedAt.UTC(), ResolvedBy: known(i.ResolvedBy), Action: known(i.Action), Note: known(i.Note),
		Evidence: json.RawMessage("null"),
	}
	if !i.ResolvedAt.IsZero() {
		view.ResolvedAt = new(i.ResolvedAt.UTC())
	}
	if len(i.Evidence) > 0 {
		view.Evidence = i.Evidence
	}
	return view
}

// known is nil for an empty text.
func known[T ~string](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}

// listIncidents is GET /incidents.
func (a *api) listIncidents(w http.ResponseWriter, r *http.Request) error {
	filter, err := parseIncidentFilter(r.URL.RawQuery)
	if err != nil {
		return err
	}
	limit := filter.Limit
	filter.Limit++ // one more tells whether another page follows
	found, err := a.Incidents.Incidents(r.Context(), filter)
	if err != nil {
		return incidentsFailed(err)
	}
	page := struct {
		Incidents  []incident `json:"incidents"`
		NextCursor *string    `json:"nextCursor"`
	}{Incidents: []incident{}}
	if len(found) > limit {
		found = found[:limit]
		page.NextCursor = new(cursorAfter(found[limit-1].ID))
	}
	for _, i := range found {
		page.Incidents = append(page.Incidents, viewIncident(i))
	}
	return web.WriteJSON(w, http.StatusOK, page)
}

// parseIncidentFilter reads the query and reports everything that is wrong with it at once.
func parseIncidentFilter(raw string) (payment.IncidentFilter, error) {
	query, err := parseQuery(raw)
	if err != nil {
		return payment.IncidentFilter{}, err
	}
	filter := payment.IncidentFilter{State: payment.IncidentOpen, Limit: defaultIncidents}
	var refused []payment.FieldError
	read := func(name string, accept func(string) string) {
		values, ok := query[name]
		delete(query, name)
		if !ok {
			return
		}
		why := "must not appear more than once"
		if len(values) == 1 {
			why = accept(values[0])
		}
		if why != "" {
			refused = append(refused, payment.FieldError{Field: name, Reason: why})
		}
	}
	read("state", func(s string) string {
		filter.State = payment.IncidentState(s)
		if !slices.Contains([]payment.IncidentState{payment.IncidentOpen, payment.IncidentResolved, payment.AllIncidents}, filter.State) {
			return "must be open, resolved or all"
		}
		return ""
	})
	read("kind", func(s string) string {
		filter.Kind = payment.IncidentKind(s)
		if !slices.Contains(payment.IncidentKinds(), filter.Kind) {
			return "must be one of " + strings.Trim(fmt.Sprint(payment.IncidentKinds()), "[]")
		}
		return ""
	})
	read("orderId", func(s string) string {
		filter.OrderID = s
		return checkOrderID(s)
	})
	read("cursor", func(s string) (why string) {
		filter.Before, why = readCursor(s)
		return why
	})
	read("limit", func(s string) string {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > maxIncidents {
			return "must be an integer from 1 to 200"
		}
		filter.Limit = n
		return ""
	})
	// A filter with a slip in its name would show what it should hide.
	if len(query) > 0 {
		refused = append(refused, payment.FieldError{Field: "query", Reason: "has a parameter that is not known"})
	}
	if refused != nil {
		return payment.IncidentFilter{}, web.Invalid(refused...)
	}
	return filter, nil
}

// parseQuery refuses what url.URL.Query leaves out in silence.
func parseQuery(raw string) (url.Values, error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, web.Invalid(payment.FieldError{Field: "query", Reason: "cannot be read: a semicolon or a broken %XX"})
	}
	return query, nil
}

// cursorMark tells our cursors, and the way they are built, from other text.
const cursorMark = "i1."

// cursorAfter continues behind the incident with the id. Clients must not look into it.
func cursorAfter(id int64) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorMark + strconv.FormatInt(id, 10)))
}

func readCursor(text string) (before int64, why string) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	digits, ours := strings.CutPrefix(string(raw), cursorMark)
	before, bad := strconv.ParseInt(digits, 10, 64)
	if err != nil || !ours || bad != nil || before < 1 {
		return 0, "must be a nextCursor of this list"
	}
	return before, ""
}

// resolveIncident is POST /incidents/{id}/resolve.
func (a *api) resolveIncident(w http.ResponseWriter, r *http.Request) error {
	object, err := web.ReadObject(w, r, "note", "action")
	if err != nil {
		return err
	}
	request, err := parseResolve(object)
	if err != nil {
		return err
	}
	if request.ID, err = strconv.ParseInt(chi.URLParam(r, "id"), 10, 64); err != nil {
		return &payment.Error{Code: payment.CodeNotFound, Public: "There is no such incident."}
	}
	event := web.EventOf(r.Context())
	request.By = event.Key.Name
	event.Action = fmt.Sprintf("resolve incident=%d action=%s", request.ID, request.Action)
	i, err := a.Incidents.ResolveIncident(r.Context(), request)
	event.OrderID = i.OrderID
	if err != nil {
		return incidentsFailed(err)
	}
	return web.WriteJSON(w, http.StatusOK, viewIncident(i))
}

func parseResolve(o *web.Object) (request payment.ResolveIncident, err error) {
	o.Require("note")
	if note, ok := o.Text("note"); ok {
		request.Note = note
		if n := utf8.RuneCountInString(note); n > maxNote || strings.TrimSpace(note) == "" {
			o.Refuse("note", "must have 1 to 1000 characters and not only spaces")
		}
	}
	if action, ok := o.Text("action"); ok {
		request.Action = payment.IncidentAction(action)
		if !request.Action.Asked() {
			o.Refuse("action", "must be accept, give_back or not_ours")
		}
	}
	return request, o.Err()
}

// incidentsFailed is the error of an incident that the database did not answer for.
func incidentsFailed(err error) error {
	if _, ok := errors.AsType[*payment.Error](err); ok {
		return err
	}
	return &payment.Error{
		Code: payment.CodeDBUnavailable, Public: "The database did not answer. Ask again: what is resolved already is answered as it is.", Err: err,
	}
}
