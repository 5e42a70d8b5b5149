package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

func fieldErrors(t *testing.T, body []byte) (got []string) {
	t.Helper()
	var p web.Problem
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatal(err)
	}
	for _, e := range p.Errors {
		got = append(got, e.Field+" "+e.Reason)
	}
	return got
}

func TestRead(t *testing.T) {
	t.Parallel()
	const eventsJSON = `,"events":[{"version":1,"from":null,"to":"PENDING","actor":"confirm","reason":"reserved","at":"2026-03-01T00:00:00.25Z"},` +
		`{"version":2,"from":"PENDING","to":"PAID","actor":"recovery","reason":"approved","at":"2026-03-01T00:00:00.25Z"}]}`
	tests := []struct {
		name   string
		path   string
		secret string
		err    error
		status int
		want   string // the whole body if it succeeds, else a part
	}{
		{name: "checkout", path: "/payments/order-1", secret: checkoutSecret, status: 200, want: paidJSON},
		{name: "operator", path: "/payments/order-1", secret: operatorSecret, status: 200, want: paidJSON},
		{name: "events", path: "/payments/order-1?events=true", secret: operatorSecret, status: 200, want: strings.TrimSuffix(paidJSON, "}") + eventsJSON},
		{name: "events are not for checkouts", path: "/payments/order-1?events=true", secret: checkoutSecret, status: 403, want: `"code":"forbidden"`},
		{name: "no events wanted", path: "/payments/order-1?events=false", secret: checkoutSecret, status: 200, want: paidJSON},
		{name: "events of another kind", path: "/payments/order-1?events=1", secret: operatorSecret, status: 400, want: `"errors":[{"field":"events","reason":"must be true or false"}]`},
		{name: "events twice", path: "/payments/order-1?events=true&events=false", secret: operatorSecret, status: 400, want: `"field":"events"`},
		{name: "unknown order", path: "/payments/order-2", secret: checkoutSecret, status: 404, want: `"code":"not_found"`},
		{name: "what cannot be an order", path: "/payments/o", secret: checkoutSecret, status: 404, want: `"code":"not_found"`},
		{name: "escaped slash", path: "/payments/order%2F1", secret: checkoutSecret, status: 404, want: `"code":"not_found"`},
		{name: "escaped NUL", path: "/payments/order-1%00", secret: checkoutSecret, status: 404, want: `"code":"not_found"`},
		{name: "database away", path: "/payments/order-1", secret: checkoutSecret, err: errors.New("dial secret cause"), status: 503, want: `"code":"db_unavailable","retryAfter":1`},
		{name: "store says what it is", path: "/payments/order-1", secret: checkoutSecret, err: &payment.Error{Code: payment.CodeInternal}, status: 500, want: `"code":"internal"`},

		{name: "attempts", path: "/payments/order-1/attempts", secret: checkoutSecret, status: 200, want: `{"attempts":[` + paidJSON + `]}`},
		{name: "attempts of an unknown order", path: "/payments/order-2/attempts", secret: operatorSecret, status: 404, want: `"code":"not_found"`},
		{name: "attempts of no order", path: "/payments/o/attempts", secret: operatorSecret, status: 404, want: `"code":"not_found"`},
		{name: "attempts without a database", path: "/payments/order-1/attempts", secret: checkoutSecret, err: errors.New("dial secret cause"), status: 503, want: `"code":"db_unavailable"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.ledger = ledger{payments: []payment.Payment{paid()}, err: test.err, events: []payment.Event{
				{Version: 1, To: payment.Pending, Actor: payment.ByConfirm, Reason: "reserved", At: createdAt},
				{Version: 2, From: payment.Pending, To: payment.Paid, Actor: payment.ByRecovery, Reason: "approved", At: createdAt},
			}}
			w := f.send(t, call{method: http.MethodGet, path: test.path, secret: test.secret, outside: strings.Contains(test.path, "%2F")})
			body := strings.TrimSuffix(w.Body.String(), "\n")
			if w.Code != test.status {
				t.Errorf("%d, want %d: %s", w.Code, test.status, body)
			}
			if test.status == 200 {
				if diff := cmp.Diff(test.want, body); diff != "" {
					t.Errorf("body (-want +got):\n%s", diff)
				}
			} else if !strings.Contains(body, test.want) || strings.Contains(body, "secret cause") {
				t.Errorf("body %s, want %s in it", body, test.want)
			}
		})
	}
}

// TestReadEscapedOrder: a client may escape more than it has to (encodeURIComponent does with "=").
func TestReadEscapedOrder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := paid()
	p.OrderID = "a=b.c_d-9"
	f.ledger.payments = []payment.Payment{p}
	for _, path := range []string{"/payments/a=b.c_d-9", "/payments/a%3Db.c_d-9", "/payments/a%3Db%2Ec%5Fd%2D9/attempts", "/payments/" + url.PathEscape(p.OrderID)} {
		if w := f.send(t, call{method: http.MethodGet, path: path, secret: checkoutSecret}); w.Code != 200 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestSync(t *testing.T) {
	t.Parallel()
	report := payment.SyncReport{Checked: 2, Paid: 1, Waiting: 1, Results: []payment.SyncResult{
		{OrderID: "order-1", Before: payment.Pending, After: payment.Paid, Reason: "approved"},
		{OrderID: "order-2", Before: payment.Pending, After: payment.Pending, Reason: payment.SyncInProgress},
	}}
	const empty = `{"checked":0,"paid":0,"failed":0,"waiting":0,"canceled":0,"incidents":0,"errors":0,"results":[]}`
	tests := []struct {
		name    string
		body    string
		report  payment.SyncReport
		err     error
		request payment.SyncRequest
		status  int
		want    string
	}{
		{name: "everything", body: `{}`, status: 200, want: empty},
		{name: "nulls", body: `{"orderIds":null,"olderThan":null,"limit":null,"dryRun":null}`, status: 200, want: empty},
		{
			name: "all members", body: `{"orderIds":["order-1","order-2"],"olderThan":"1m30s","limit":50,"dryRun":true}`, report: report, status: 200,
			request: payment.SyncRequest{OrderIDs: []string{"order-1", "order-2"}, OlderThan: 90 * time.Second, Limit: 50, DryRun: true},
			want: `{"checked":2,"paid":1,"failed":0,"waiting":1,"canceled":0,"incidents":0,"errors":0,"results":[` +
				`{"orderId":"order-1","before":"PENDING","after":"PAID","reason":"approved"},` +
				`{"orderId":"order-2","before":"PENDING","after":"PENDING","reason":"in_progress"}]}`,
		},
		{
			name: "wrong values", body: `{"orderIds":[],"olderThan":"-1m","limit":0,"dryRun":"true","all":true}`, status: 400,
			want: "all is not known\norderIds must not be empty\nolderThan must be a duration such as 90s or 10m\n" +
				"limit must be an integer from 1 to 1000\ndryRun must be true or false",
		},
		{name: "fraction", body: `{"limit":1.5}`, status: 400, want: "limit must be an integer from 1 to 1000"},
		{name: "no unit", body: `{"olderThan":"90"}`, status: 400, want: "olderThan must be a duration such as 90s or 10m"},
		{name: "bad order", body: `{"orderIds":["order-1","o"]}`, status: 400, want: "orderIds every item must be 6 to 64 letters, digits or _ . = -"},
		{name: "too many", body: `{"orderIds":["order-1"` + strings.Repeat(`,"order-1"`, 100) + `]}`, status: 400, want: "orderIds has too many items"},
		{name: "database away", body: `{}`, err: &payment.Error{Code: payment.CodeDBUnavailable}, status: 503},
		{name: "database away before anything was done", body: `{}`, err: errors.New("SELECT"), status: 503},
		{
			name: "database away in the middle", body: `{}`, status: 200, err: errors.New("SELECT"),
			report: payment.SyncReport{Checked: 1, Paid: 1, Results: []payment.SyncResult{{OrderID: "order-1", Before: "PENDING", After: "PAID", Reason: "approved"}}},
			want: `{"checked":1,"paid":1,"failed":0,"waiting":0,"canceled":0,"incidents":0,"errors":1,` +
				`"results":[{"orderId":"order-1","before":"PENDING","after":"PAID","reason":"approved"}]}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.sync = func(r payment.SyncRequest) (payment.SyncReport, error) {
				if diff := cmp.Diff(test.request, r); diff != "" {
					t.Errorf("request (-want +got):\n%s", diff)
				}
				return test.report, test.err
			}
			w := f.send(t, call{method: http.MethodPost, path: "/payments/sync", secret: operatorSecret, body: test.body})
			got := strings.TrimSuffix(w.Body.String(), "\n")
			if test.status == 400 {
				got = strings.Join(fieldErrors(t, w.Body.Bytes()), "\n")
			}
			if w.Code != test.status || (test.status <= 400 && got != test.want) {
				t.Errorf("%d, want %d with\n%s\ngot\n%s", w.Code, test.status, test.want, got)
			}
			if test.status == 200 && (f.logLine(t)["key"] != "dev" || !strings.HasPrefix(f.logLine(t)["action"].(string), "sync ")) {
				t.Errorf("log %s", f.log)
			}
		})
	}
}

// TestRoles walks every route without a key, with a wrong one and with the wrong role.
func TestRoles(t *testing.T) {
	t.Parallel()
	allowed := map[string][]string{
		"POST /payments/confirm":           {checkoutSecret},
		"GET /payments/{orderId}":          {checkoutSecret, operatorSecret},
		"GET /payments/{orderId}/attempts": {checkoutSecret, operatorSecret},
		"POST /payments/{orderId}/cancel":  {checkoutSecret, operatorSecret}, // the rest is approval's: see TestCancel
		"POST /payments/sync":              {operatorSecret},
		"POST /webhooks/toss":              {"", "wrong-secret-0123456789", checkoutSecret, operatorSecret},
		"GET /incidents":                   {operatorSecret},
		"POST /incidents/{id}/resolve":     {operatorSecret},
		"GET /openapi.yaml":                {"", "wrong-secret-0123456789", checkoutSecret, operatorSecret},
	}
	f := setup(t)
	err := chi.Walk(f.Routes(), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		secrets, listed := allowed[method+" "+route]
		if !listed {
			t.Errorf("%s %s: say here who may call it", method, route)
		}
		for _, secret := range []string{"", "wrong-secret-0123456789", checkoutSecret, operatorSecret} {
			want := http.StatusForbidden
			if !strings.HasPrefix(secret, "checkout") && !strings.HasPrefix(secret, "operator") {
				want = http.StatusUnauthorized
			}
			may := false
			for _, s := range secrets {
				may = may || s == secret
			}
			w := f.send(t, call{method: method, path: strings.ReplaceAll(route, "{orderId}", "order-9"), secret: secret})
			if got := w.Code; may == (got == 401 || got == 403) || (!may && got != want) {
				t.Errorf("%s %s with %q: %d", method, route, secret, got)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOtherPathsAndMethods(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method, path string
		status             int
		body               string
	}{
		{name: "root", method: "GET", path: "/", status: 404, body: `"code":"not_found"`},
		{name: "later route", method: "POST", path: "/webhooks/other", status: 404, body: `"code":"not_found"`},
		{name: "delete", method: "DELETE", path: "/payments/order-1", status: 405, body: `"code":"method_not_allowed"`},
		{name: "put", method: "PUT", path: "/payments/confirm", status: 405, body: `"code":"method_not_allowed"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := setup(t).send(t, call{method: test.method, path: test.path, outside: true})
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.body) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if (w.Header().Get("Allow") != "") != (test.status == 405) {
				t.Errorf("Allow %q", w.Header()["Allow"])
			}
		})
	}
}

func TestNewRefusesMissingParts(t *testing.T) {
	t.Parallel()
	if _, err := New(Deps{}); err == nil {
		t.Error("a door without parts")
	}
}
