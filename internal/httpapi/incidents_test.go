package httpapi

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"paymentd/internal/payment"

	gocmp "github.com/google/go-cmp/cmp"
)

// doubts are Incidents over fixed rows.
type doubts struct {
	rows     []payment.Incident
	err      error
	filter   payment.IncidentFilter
	resolved payment.ResolveIncident
}

func (d *doubts) Incidents(_ context.Context, f payment.IncidentFilter) (page []payment.Incident, err error) {
	d.filter = f
	for _, i := range d.rows {
		if len(page) < f.Limit && (f.Before == 0 || i.ID < f.Before) {
			page = append(page, i)
		}
	}
	return page, d.err
}

func (d *doubts) ResolveIncident(_ context.Context, r payment.ResolveIncident) (payment.Incident, error) {
	d.resolved = r
	i := d.rows[0]
	i.ResolvedAt, i.ResolvedBy, i.Note, i.Action = createdAt, r.By, r.Note, r.Action
	return i, d.err
}

func doubt(id int64) payment.Incident {
	return payment.Incident{
		ID: id, Kind: payment.Mismatch, OrderID: "order-1", PaymentKey: "tgen_1", OpenedAt: createdAt, Evidence: []byte(`{"total": 14000}`),
	}
}

const doubtJSON = `{"id":9,"kind":"mismatch","state":"open","orderId":"order-1","paymentKey":"tgen_1","openedAt":"2026-03-01T00:00:00.25Z",` +
	`"resolvedAt":null,"resolvedBy":null,"action":null,"note":null,"evidence":{"total":14000}}`

func TestListIncidents(t *testing.T) {
	t.Parallel()
	settled := payment.Incident{
		ID: 3, Kind: payment.DeadNotice, OpenedAt: createdAt, ResolvedAt: createdAt, ResolvedBy: "recovery", Action: payment.ResolveSettled, Note: "approved",
	}
	const settledJSON = `{"id":3,"kind":"dead_notice","state":"resolved","orderId":null,"paymentKey":null,"openedAt":"2026-03-01T00:00:00.25Z",` +
		`"resolvedAt":"2026-03-01T00:00:00.25Z","resolvedBy":"recovery","action":"settled","note":"approved","evidence":null}`
	open := payment.IncidentFilter{State: payment.IncidentOpen, Limit: 51}
	tests := []struct {
		name, query, secret string
		err                 error
		status              int
		want                string // the whole body if it succeeds, else a part
		filter              payment.IncidentFilter
	}{
		{name: "open ones", status: 200, want: `{"incidents":[` + doubtJSON + `,` + settledJSON + `],"nextCursor":null}`, filter: open},
		{name: "first page", query: "limit=1", status: 200, want: `{"incidents":[` + doubtJSON + `],"nextCursor":"` + cursorAfter(9) + `"}`, filter: payment.IncidentFilter{State: payment.IncidentOpen, Limit: 2}},
		{name: "last page", query: "limit=1&cursor=" + cursorAfter(9), status: 200, want: `{"incidents":[` + settledJSON + `],"nextCursor":null}`, filter: payment.IncidentFilter{State: payment.IncidentOpen, Limit: 2, Before: 9}},
		{name: "behind the last", query: "cursor=" + cursorAfter(3), status: 200, want: `{"incidents":[],"nextCursor":null}`, filter: payment.IncidentFilter{State: payment.IncidentOpen, Limit: 51, Before: 3}},
		{name: "every filter", query: "state=all&kind=mismatch&orderId=order-1&limit=200", status: 200, want: `{"incidents":[` + doubtJSON + `,` + settledJSON + `],"nextCursor":null}`,
			filter: payment.IncidentFilter{State: payment.AllIncidents, Kind: payment.Mismatch, OrderID: "order-1", Limit: 201}},
		{name: "everything wrong", query: "state=closed&kind=x&orderId=o&cursor=abc&limit=0", status: 400,
			want: `"errors":[{"field":"state","reason":"must be open, resolved or all"},{"field":"kind","reason":"must be one of unknown_outcome mismatch ` +
				`cancel_failed unexpected_state orphan_approval dead_notice"},{"field":"orderId","reason":"must be 6 to 64 letters, digits or _ . = -"},` +
				`{"field":"cursor","reason":"must be a nextCursor of this list"},{"field":"limit","reason":"must be an integer from 1 to 200"}]`},
		{name: "cursor that cannot be read", query: "cursor=%zz", status: 400, want: `"field":"query"`},
		{name: "semicolon", query: "state=open;kind=mismatch", status: 400, want: `"field":"query"`},
		{name: "unknown parameter", query: "kinds=mismatch", status: 400, want: `"field":"query"`},
		{name: "limit above", query: "limit=201", status: 400, want: `"field":"limit"`},
		{name: "limit no number", query: "limit=ten", status: 400, want: `"field":"limit"`},
		{name: "empty state", query: "state=", status: 400, want: `"field":"state"`},
		{name: "state twice", query: "state=open&state=all", status: 400, want: `{"field":"state","reason":"must not appear more than once"}`},
		{name: "empty cursor", query: "cursor=", status: 400, want: `"field":"cursor"`},
		{name: "cursor of another kind", query: "cursor=" + url.QueryEscape("aTIuOQ"), status: 400, want: `"field":"cursor"`},
		{name: "cursor below", query: "cursor=" + cursorAfter(0), status: 400, want: `"field":"cursor"`},
		{name: "checkout", secret: checkoutSecret, status: 403, want: `"code":"forbidden"`},
		{name: "database away", err: errors.New("dial secret cause"), status: 503, want: `"code":"db_unavailable","retryAfter":1`, filter: open},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.doubts.rows, f.doubts.err = []payment.Incident{doubt(9), settled}, test.err
			w := f.send(t, call{method: http.MethodGet, path: "/incidents?" + test.query, secret: cmp.Or(test.secret, operatorSecret)})
			got := strings.TrimSuffix(w.Body.String(), "\n")
			if w.Code != test.status || test.status == 200 && got != test.want || !strings.Contains(got, test.want) || strings.Contains(got, "secret cause") {
				t.Errorf("%d %s, want %d %s", w.Code, got, test.status, test.want)
			}
			if diff := gocmp.Diff(test.filter, f.doubts.filter); diff != "" {
				t.Errorf("filter (-want +got):\n%s", diff)
			}
		})
	}
}

func TestResolveIncident(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("가", 1000)
	refused := func(code payment.Code) error { return &payment.Error{Code: code, Public: "No."} }
	tests := []struct {
		name, id, body, secret string
		err                    error
		status                 int
		want                   string
		asked                  payment.ResolveIncident
	}{
		{name: "note", body: `{"note":"asked Toss"}`, status: 200, want: `"state":"resolved"`, asked: payment.ResolveIncident{ID: 9, Note: "asked Toss", By: "dev"}},
		{name: "action", body: `{"note":"n","action":"accept"}`, status: 200, asked: payment.ResolveIncident{ID: 9, Note: "n", Action: payment.ResolveAccept, By: "dev"},
			want: `"resolvedAt":"2026-03-01T00:00:00.25Z","resolvedBy":"dev","action":"accept","note":"n","evidence":{"total":14000}}`},
		{name: "no action", body: `{"note":"n","action":null}`, status: 200, want: `"action":null`, asked: payment.ResolveIncident{ID: 9, Note: "n", By: "dev"}},
		{name: "the longest note", body: `{"note":"` + long + `"}`, status: 200, want: long, asked: payment.ResolveIncident{ID: 9, Note: long, By: "dev"}},
		{name: "too long", body: `{"note":"` + long + `나"}`, status: 400, want: `"errors":[{"field":"note","reason":"must have 1 to 1000 characters and not only spaces"}]`},
		{name: "empty", body: `{"note":""}`, status: 400, want: `"field":"note"`},
		{name: "blank", body: `{"note":"  "}`, status: 400, want: `"field":"note"`},
		{name: "missing", body: `{"action":"accept"}`, status: 400, want: `{"field":"note","reason":"is required"}`},
		{name: "both wrong", body: `{"action":"settled"}`, status: 400, want: `{"field":"action","reason":"must be accept, give_back or not_ours"}`},
		{name: "unknown member", body: `{"note":"n","by":"kim"}`, status: 400, want: `{"field":"by","reason":"is not known"}`},
		{name: "no object", body: `[]`, status: 400, want: `"field":"body"`},
		{name: "id no number", id: "nine", body: `{"note":"n"}`, status: 404, want: `"code":"not_found"`},
		{name: "id too long", id: strings.Repeat("9", 30), body: `{"note":"n"}`, status: 404, want: `"code":"not_found"`},
		{name: "checkout", body: `{"note":"n"}`, secret: checkoutSecret, status: 403, want: `"code":"forbidden"`},
		{name: "unknown", body: `{"note":"n"}`, err: refused(payment.CodeNotFound), status: 404, want: `"code":"not_found"`, asked: payment.ResolveIncident{ID: 9, Note: "n", By: "dev"}},
		{name: "leased", body: `{"note":"n"}`, err: refused(payment.CodeInProgress), status: 409, want: `"code":"in_progress"`, asked: payment.ResolveIncident{ID: 9, Note: "n", By: "dev"}},
		{name: "cancel under way", body: `{"note":"n"}`, err: refused(payment.CodeCancelInProgress), status: 409, want: `"code":"cancel_in_progress"`, asked: payment.ResolveIncident{ID: 9, Note: "n", By: "dev"}},
		{name: "order held", body: `{"note":"n"}`, err: refused(payment.CodeOrderConflict), status: 409, want: `"code":"order_conflict"`, asked: payment.ResolveIncident{ID: 9, Note: "n", By: "dev"}},
		{name: "database away", body: `{"note":"n"}`, err: errors.New("dial secret cause"), status: 503, want: `"code":"db_unavailable"`, asked: payment.ResolveIncident{ID: 9, Note: "n", By: "dev"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.doubts.rows, f.doubts.err = []payment.Incident{doubt(9)}, test.err
			w := f.send(t, call{
				method: http.MethodPost, path: "/incidents/" + cmp.Or(test.id, "9") + "/resolve", secret: cmp.Or(test.secret, operatorSecret), body: test.body,
			})
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) || strings.Contains(w.Body.String(), "secret cause") {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, test.status, test.want)
			}
			if diff := gocmp.Diff(test.asked, f.doubts.resolved); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			if test.status == 200 {
				line := f.logLine(t)
				if line["key"] != "dev" || line["order_id"] != "order-1" || line["action"] != "resolve incident=9 action="+string(test.asked.Action) {
					t.Errorf("log %v", line)
				}
				if strings.Contains(f.log.String(), `"asked Toss"`) {
					t.Error("the note is in the log")
				}
			}
		})
	}
}

func TestViewIncidentTimes(t *testing.T) {
	t.Parallel()
	if v := viewIncident(payment.Incident{OpenedAt: createdAt}); v.OpenedAt.Location() != time.UTC || v.ResolvedAt != nil {
		t.Errorf("%+v", v)
	}
}
