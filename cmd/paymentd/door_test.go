package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/tosssim"
)

// TestBadConfirm: what is wrong over the wire is named by its field, leaves no row, sends nothing and repeats no key.
func TestBadConfirm(t *testing.T) {
	t.Parallel()
	const key = "test_echo1234567890123456789"
	w := newWorld(t)
	in := w.start()
	body := func(more string) string {
		return `{"paymentKey":"` + key + `","orderId":"order-bad","amount":15000` + more + `}`
	}
	for _, tc := range []struct {
		name, body string
		status     int
		code       string
		fields     []string
	}{
		{name: "empty", body: "", status: 400, code: "invalid_request", fields: []string{"body"}},
		{name: "no object", body: `[]`, status: 400, code: "invalid_request", fields: []string{"body"}},
		{name: "broken", body: body("")[:40], status: 400, code: "invalid_request", fields: []string{"body"}},
		{name: "trailing", body: body("") + `{}`, status: 400, code: "invalid_request", fields: []string{"body"}},
		{name: "duplicate", body: body(`,"amount":1`), status: 400, code: "invalid_request", fields: []string{"amount"}},
		{name: "unknown field", body: body(`,"total":1`), status: 400, code: "invalid_request", fields: []string{"total"}},
		{name: "other case", body: body(`,"memberID":"m"`), status: 400, code: "invalid_request", fields: []string{"memberID"}},
		{name: "nothing given", body: `{}`, status: 400, code: "invalid_request", fields: []string{"amount", "orderId", "paymentKey"}},
		{name: "NUL", body: `{"paymentKey":"` + key + `","orderId":"order\u0000bad","amount":1}`, status: 400, code: "invalid_request", fields: []string{"orderId"}},
		{name: "NUL in a member", body: body(`,"memberId":"m\u0000"`), status: 400, code: "invalid_request", fields: []string{"memberId"}},
		{name: "raw NUL", body: body(",\"memberId\":\"m\x00\""), status: 400, code: "invalid_request", fields: []string{"body"}},
		{name: "bad UTF-8", body: body(",\"memberId\":\"m\xff\""), status: 400, code: "invalid_request", fields: []string{"body"}},
		{name: "amount as text", body: `{"paymentKey":"` + key + `","orderId":"order-bad","amount":"15000"}`, status: 400, code: "invalid_request", fields: []string{"amount"}},
		{name: "amount with exponent", body: `{"paymentKey":"` + key + `","orderId":"order-bad","amount":1e3}`, status: 400, code: "invalid_request", fields: []string{"amount"}},
		{name: "amount of half a won", body: `{"paymentKey":"` + key + `","orderId":"order-bad","amount":1.5}`, status: 400, code: "invalid_request", fields: []string{"amount"}},
		{name: "amount 0", body: `{"paymentKey":"` + key + `","orderId":"order-bad","amount":0}`, status: 400, code: "invalid_request", fields: []string{"amount"}},
		{name: "amount null", body: `{"paymentKey":"` + key + `","orderId":"order-bad","amount":null}`, status: 400, code: "invalid_request", fields: []string{"amount"}},
		{name: "key with a space", body: `{"paymentKey":"` + key + ` ","orderId":"order-bad","amount":1}`, status: 400, code: "invalid_request", fields: []string{"paymentKey"}},
		{name: "order and mail", body: `{"paymentKey":"` + key + `","orderId":"o/1","amount":1,"receiptEmail":"a@b, c@d"}`, status: 400, code: "invalid_request", fields: []string{"orderId", "receiptEmail"}},
		{name: "oversize", body: body(`,"memberId":"` + strings.Repeat("m", 17<<10) + `"`), status: 413, code: "too_large"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			a.want(t, tc.status, tc.code)
			if diff := cmp.Diff(tc.fields, a.fields()); diff != "" {
				t.Errorf("fields (-want +got):\n%s%s", diff, a.raw)
			}
			if strings.Contains(a.raw, key) {
				t.Errorf("the answer repeats the paymentKey: %s", a.raw)
			}
			if got := a.header.Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("content type %s", got)
			}
		})
	}
	if n := w.count(`SELECT count(*) FROM payments`); n != 0 || w.sent() != 0 {
		t.Errorf("bad calls left %d rows and sent %d confirms", n, w.sent())
	}
	in.call(http.MethodPost, in.url+"/payments/confirm", checkoutSecret, strings.Replace(body(""), "15000", "15000.0", 1)).want(t, 200, "PAID")
}

// fields are the names in a problem's errors, sorted.
func (a answer) fields() []string {
	var p struct{ Errors []struct{ Field string } }
	_ = json.Unmarshal([]byte(a.raw), &p)
	var out []string
	for _, e := range p.Errors {
		if e.Field != "" {
			out = append(out, e.Field)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// TestRoles: each route is for its roles, whatever else is right with the call.
func TestRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("roles")
	in.confirm(o).want(t, 200, "PAID")
	for _, tc := range []struct {
		name, method, path, key, body string
		status                        int
		code                          string
	}{
		{"nobody confirms", "POST", "/payments/confirm", "", o.json(), 401, "unauthorized"},
		{"a wrong key", "POST", "/payments/confirm", checkoutSecret + "x", o.json(), 401, "unauthorized"},
		{"operator confirms", "POST", "/payments/confirm", operatorSecret, o.json(), 403, "forbidden"},
		{"checkout syncs", "POST", "/payments/sync", checkoutSecret, `{}`, 403, "forbidden"},
		{"nobody syncs", "POST", "/payments/sync", "", `{}`, 401, "unauthorized"},
		{"checkout reads", "GET", "/payments/" + o.id, checkoutSecret, "", 200, "PAID"},
		{"operator reads", "GET", "/payments/" + o.id, operatorSecret, "", 200, "PAID"},
		{"nobody reads", "GET", "/payments/" + o.id, "", "", 401, "unauthorized"},
		{"checkout reads events", "GET", "/payments/" + o.id + "?events=true", checkoutSecret, "", 403, "forbidden"},
		{"no such order", "GET", "/payments/order-nowhere", operatorSecret, "", 404, "not_found"},
		{"no such order's attempts", "GET", "/payments/order-nowhere/attempts", checkoutSecret, "", 404, "not_found"},
		{"no such route", "GET", "/paymints", checkoutSecret, "", 404, "not_found"},
		{"wrong method", "GET", "/payments/confirm/", checkoutSecret, "", 404, "not_found"},
		{"delete", "DELETE", "/payments/" + o.id, operatorSecret, "", 405, "method_not_allowed"},
		{"spec is open", "GET", "/openapi.yaml", "", "", 200, ""},
		{"sync of nothing", "POST", "/payments/sync", operatorSecret, `{"orderIds":[]}`, 400, "invalid_request"},
		{"sync of a bad age", "POST", "/payments/sync", operatorSecret, `{"olderThan":"soon"}`, 400, "invalid_request"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := call(t, tc.method, in.url+tc.path, tc.key, tc.body)
			if err != nil {
				t.Fatal(err)
			}
			a.want(t, tc.status, tc.code)
		})
	}
}

// TestHistory: attempts and events tell a payment's whole story.
func TestHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	declined := newOrder("decline_")
	in.confirm(declined).want(t, 402, "declined")
	in.read(declined).want(t, 200, "FAILED")
	paid := declined
	paid.key = newOrder("again").key
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Status: 429})
	in.confirm(paid).want(t, 503, "pg_unavailable")
	w.faults()
	in.confirm(paid).want(t, 200, "PAID")
	in.read(paid).want(t, 200, "PAID")
	in.confirm(declined).want(t, 402, "declined")

	var list struct{ Attempts []struct{ Status string } }
	a := in.call(http.MethodGet, in.url+"/payments/"+paid.id+"/attempts", checkoutSecret, "").want(t, 200, "")
	if err := json.Unmarshal([]byte(a.raw), &list); err != nil || len(list.Attempts) != 2 {
		t.Fatalf("attempts: %v %s", err, a.raw)
	}
	var story struct {
		Status string
		Events []struct {
			From      *string
			To, Actor string
		}
	}
	a = in.call(http.MethodGet, in.url+"/payments/"+paid.id+"?events=true", operatorSecret, "").want(t, 200, "PAID")
	if err := json.Unmarshal([]byte(a.raw), &story); err != nil {
		t.Fatal(err)
	}
	var moves []string
	for _, e := range story.Events {
		from := ""
		if e.From != nil {
			from = *e.From
		}
		moves = append(moves, from+">"+e.To+" by "+e.Actor)
	}
	want := []string{"PENDING>FAILED by confirm", "FAILED>PENDING by confirm", "PENDING>PAID by confirm"}
	if diff := cmp.Diff(want, moves); diff != "" {
		t.Errorf("events (-want +got):\n%s%s", diff, a.raw)
	}
	w.ledgerHolds()
}

// TestSync: an operator settles what is open by name or by age, sees it first by a dry run, and leaves alone what
// somebody works on.
func TestSync(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "PAYMENTD_RETRY_MAX=0")
	in := w.start("PAYMENTD_RESEND_WITHIN=0", "PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h")
	left := []order{in.doubt("left"), in.doubt("left")}
	one := fmt.Sprintf(`"orderIds":[%q]`, left[0].id)

	dry := in.sync(`{`+one+`,"dryRun":true}`).want(t, 200, "")
	dry.synced(t, "paid", syncRow{left[0].id, "PENDING", "PAID", ""})
	if r, _ := w.row(left[0]); r.Status != "PENDING" {
		t.Errorf("a dry run moved it: %+v", r)
	}

	w.holds()
	busy := newOrder("busy")
	answered := in.confirmLater(busy)
	w.arrived(tosssim.OpConfirm, 3)
	in.sync(`{"orderIds":["`+busy.id+`"]}`).want(t, 200, "").synced(t, "waiting", syncRow{busy.id, "PENDING", "PENDING", "in_progress"})
	w.faults()
	answered().want(t, 200, "PAID")

	in.sync(`{`+one+`}`).want(t, 200, "").synced(t, "paid", syncRow{left[0].id, "PENDING", "PAID", ""})
	in.sync(`{"olderThan":"1h"}`).want(t, 200, "").synced(t, "")
	in.sync(`{}`).want(t, 200, "").synced(t, "paid", syncRow{left[1].id, "PENDING", "PAID", ""})
	in.sync(`{"orderIds":["`+left[1].id+`"]}`).want(t, 200, "").synced(t, "", syncRow{left[1].id, "PAID", "PAID", ""})
	in.sync(`{"orderIds":["order-nowhere"]}`).want(t, 200, "").synced(t, "errors", syncRow{OrderID: "order-nowhere", Reason: "not_found"})
	w.ledgerHolds()
}

type syncRow struct{ OrderID, Before, After, Reason string }

// synced compares a report; an empty reason in want matches all.
func (a answer) synced(t *testing.T, counted string, want ...syncRow) {
	t.Helper()
	var report struct{ Results []syncRow }
	if err := json.Unmarshal([]byte(a.raw), &report); err != nil {
		t.Fatal(err)
	}
	got := slices.Clone(report.Results)
	for i := range got {
		if i < len(want) && want[i].Reason == "" {
			got[i].Reason = ""
		}
	}
	if diff := cmp.Diff(want, got, cmp.Transformer("none", func(rows []syncRow) []syncRow { return append([]syncRow{}, rows...) })); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if counted != "" && a.body[counted] != float64(len(want)) || a.body["checked"] != float64(len(want)) {
		t.Errorf("counts: %s", a.raw)
	}
}
