package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/tosssim"
)

// sensitive are settings with a breaker that two failures open.
var sensitive = append([]string{
	"PAYMENTD_BREAKER_WINDOW=4", "PAYMENTD_BREAKER_MIN_CALLS=2", "PAYMENTD_BREAKER_OPEN_FOR=1s", "PAYMENTD_BREAKER_HALF_OPEN_CALLS=1",
}, quick...)

// metric reads one line of /metrics.
func (in *instance) metric(series string) string {
	in.t.Helper()
	for line := range strings.Lines(in.call(http.MethodGet, in.admin+"/metrics", "", "").raw) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	in.t.Errorf("metrics lack %s", series)
	return ""
}

// TestOutageRejected: with the breaker open a confirm is refused without a trace, and a duplicate is answered from
// its row. Once trials may pass, one that goes well closes the breaker, and what was refused is paid.
func TestOutageRejected(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sensitive...)
	in := w.start("PAYMENTD_BREAKER_OPEN_FOR=5m")
	old := newOrder("old")
	// By another instance: an idle connection that breaks is a reset, not a refused dial.
	w.start().confirm(old).want(t, 200, "PAID")
	w.listen(false)
	lost := []order{newOrder("lost"), newOrder("lost")}
	for _, o := range lost {
		in.confirm(o).want(t, 503, "pg_unavailable")
		if r, _ := w.row(o); r.Status != "FAILED" || r.MaybeSent || r.Holds {
			t.Errorf("a payment that was never sent: %+v", r)
		}
	}
	if got := in.metric(`paymentd_breaker_state{state="open"}`); got != "1" {
		t.Fatalf("breaker open: %s", got)
	}
	o := newOrder("refused")
	if a := in.refused(o).want(t, 503, "pg_unavailable"); a.text("earlier") != "none" || a.header.Get("Retry-After") == "" {
		t.Errorf("refusal: %v %s", a.header, a.raw)
	}
	if _, found := w.row(o); found {
		t.Error("a refused call wrote a row")
	}
	if a := in.refused(old).want(t, 200, "PAID"); a.header.Get("Idempotent-Replayed") != "true" {
		t.Error("a duplicate while the breaker is open is no replay")
	}
	in.refused(order{key: old.key, id: old.id, amount: 9}).want(t, 409, "order_conflict")
	if a := in.refused(lost[0]).want(t, 503, "pg_unavailable"); a.text("earlier") != "none" {
		t.Errorf("a payment that never reached the gateway: %s", a.raw)
	}
	w.listen(true)
	in.breaker("open").want(t, 200, "")
	in.breaker("none").want(t, 200, "")
	for _, o := range append(lost, o) {
		in.confirm(o).want(t, 200, "PAID")
	}
	if got := in.metric(`paymentd_breaker_state{state="closed"}`); got != "1" {
		t.Errorf("breaker closed: %s", got)
	}
	w.ledgerHolds()
}

// refused is a confirm while the breaker is open. On a busy machine the read behind the answer may take more than
// its 50 ms; then "unknown" is the honest answer, and the caller asks again.
func (in *instance) refused(o order) (a answer) {
	in.t.Helper()
	eventually(in.t, "an answer that knows what was before", func() bool {
		a = in.confirm(o)
		return a.text("earlier") != "unknown"
	})
	return a
}

// TestOutagePending: under the policy "pending" an outage is invisible to the buyer, and every payment is sent when
// the gateway is back. Nothing is hastened here: this is the pace that people get.
func TestOutagePending(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sensitive...)
	in := w.start("PAYMENTD_ON_UNAVAILABLE=pending", "PAYMENTD_RETRY_PLACE=outside")
	w.listen(false)
	orders := make([]order, 6)
	for i := range orders {
		orders[i] = newOrder("outage")
		in.confirm(orders[i]).want(t, 202, "PENDING")
		if r, _ := w.row(orders[i]); r.MaybeSent || !r.Holds || r.Status != "PENDING" {
			t.Errorf("a payment that was never sent: %+v", r)
		}
	}
	second := orders[0]
	second.key += "9"
	in.confirm(second).want(t, 409, "order_conflict")
	in.confirm(orders[0]).want(t, 202, "PENDING")
	if w.sent() != 0 {
		t.Errorf("%d confirms passed a closed port", w.sent())
	}
	w.listen(true)
	for _, o := range orders {
		w.becomes(o, "PAID")
	}
	if w.sent() != int64(len(orders)) {
		t.Errorf("%d confirms for %d orders", w.sent(), len(orders))
	}
	w.ledgerHolds()
}

// TestHangOpensTheBreaker: a gateway that accepts and never answers costs each caller at most ANSWER_WITHIN, then
// nothing is sent; what hung is settled when it is well.
func TestHangOpensTheBreaker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sensitive...)
	in := w.start("PAYMENTD_ANSWER_WITHIN=10s", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s", "PAYMENTD_BREAKER_OPEN_FOR=5m")
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hang: true})
	orders := []order{newOrder("hung"), newOrder("hung"), newOrder("hung")}
	storm(t, len(orders), func(i int) (answer, error) {
		a, err := call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, orders[i].json())
		if a.status != 202 {
			err = fmt.Errorf("answered %d %s, %w", a.status, a.raw, err)
		}
		return a, err
	})
	w.equal("calls that hang when all have been answered", int(w.toss.Counters().Ops[tosssim.OpConfirm].Running), len(orders))
	eventually(t, "the breaker opens", func() bool { return in.metric(`paymentd_breaker_state{state="open"}`) == "1" })
	before := w.sent()
	answers, _ := storm(t, 20, func(int) (answer, error) {
		return call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, newOrder("refused").json())
	})
	for _, a := range answers {
		a.want(t, 503, "pg_unavailable")
	}
	if w.sent() != before || w.count(`SELECT count(*) FROM payments`) != len(orders) {
		t.Errorf("an open breaker let %d calls and %d rows through", w.sent()-before, w.count(`SELECT count(*) FROM payments`)-len(orders))
	}
	w.faults()
	in.breaker("none").want(t, 200, "")
	stop := w.start() // another instance, whose breaker knows nothing of the outage
	for _, o := range orders {
		w.settles(o, "PAID")
	}
	stop.confirm(newOrder("after")).want(t, 200, "PAID")
	w.ledgerHolds()
}

func (in *instance) breaker(force string) answer {
	in.t.Helper()
	return in.call(http.MethodPost, in.admin+"/breaker", operatorSecret, `{"force":"`+force+`"}`)
}

// TestForcedOpen: an operator takes the gateway away and gives it back; a payment that runs is not disturbed.
func TestForcedOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(400 * time.Millisecond), Next: 1})
	running := newOrder("running")
	done := make(chan answer)
	go func() {
		a, _ := call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, running.json())
		done <- a
	}()
	w.arrived(tosssim.OpConfirm, 1)
	if a := in.breaker("open").want(t, 200, ""); a.text("state") != "forced_open" {
		t.Errorf("forced: %s", a.raw)
	}
	in.confirm(newOrder("refused")).want(t, 503, "pg_unavailable")
	(<-done).want(t, 200, "PAID")
	if got := in.metric(`paymentd_breaker_state{state="forced_open"}`); got != "1" {
		t.Errorf("forced open: %s", got)
	}
	in.breaker("none").want(t, 200, "")
	eventually(t, "confirms pass again", func() bool { return in.confirm(newOrder("after")).status == 200 })

	in.breaker("sideways").want(t, 400, "invalid_request")
	in.call(http.MethodPost, in.admin+"/breaker", checkoutSecret, `{"force":"open"}`).want(t, 403, "forbidden")
	in.call(http.MethodPost, in.admin+"/breaker", "nobody", `{"force":"open"}`).want(t, 401, "unauthorized")
	w.ledgerHolds()
}

// hold takes all of payments until the returned function: whoever touches it keeps a connection meanwhile.
func (w *world) hold() (release func()) {
	w.t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, w.db.DSN)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `BEGIN; LOCK TABLE payments IN ACCESS EXCLUSIVE MODE`); err != nil {
		w.t.Fatal(err)
	}
	release = func() { _ = conn.Close(ctx) }
	w.t.Cleanup(release)
	return release
}

// confirmLater is a confirm whose answer is waited for by the returned function.
func (in *instance) confirmLater(o order) func() answer {
	done := make(chan answer, 1)
	go func() {
		a, err := call(in.t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, o.json())
		if err != nil {
			a.raw = err.Error()
		}
		done <- a
	}()
	return func() answer {
		in.t.Helper()
		select {
		case a := <-done:
			return a
		case <-time.After(2 * time.Minute):
			in.t.Fatal("no answer to a confirm")
			return answer{}
		}
	}
}

// allLent waits until every connection for requests of a paymentd with one connection is in use.
func (in *instance) allLent() {
	in.t.Helper()
	eventually(in.t, "the connection is in use", func() bool {
		return in.metric(`paymentd_db_connections{pool="request",state="in_use"}`) == "1"
	})
}

// TestPoolExhausted: no connection for the reservation is a refusal that sends nothing; with the breaker open as well
// nobody claims to know what was before.
func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start("PAYMENTD_DB_MAX_CONNS=1", "PAYMENTD_DB_ACQUIRE_TIMEOUT=3s",
		"PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h")
	release := w.hold()
	first := in.confirmLater(newOrder("first"))
	in.allLent()
	o := newOrder("second")
	a := in.confirm(o).want(t, 503, "db_unavailable")
	if a.header.Get("Retry-After") == "" {
		t.Errorf("headers of a 503: %v", a.header)
	}
	if w.sent() != 0 {
		t.Errorf("%d confirms were sent without a reservation", w.sent())
	}
	in.breaker("open").want(t, 200, "")
	if a := in.confirm(o).want(t, 503, "pg_unavailable"); a.text("earlier") != "unknown" {
		t.Errorf("refused with no connection free: %s", a.raw)
	}
	in.breaker("none").want(t, 200, "")
	release()
	first().want(t, 200, "PAID")
	in.confirm(o).want(t, 200, "PAID")
	w.ledgerHolds()
}

// TestClientHangsUp: the payment settles all the same, by its own confirm.
func TestClientHangsUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	w.holds()
	o := newOrder("hangup")
	ctx, hangUp := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, in.url+"/payments/confirm", strings.NewReader(o.json()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+checkoutSecret)
	req.Header.Set("Content-Type", "application/json")
	gone := make(chan error)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		gone <- err
	}()
	w.arrived(tosssim.OpConfirm, 1)
	hangUp()
	if <-gone == nil {
		t.Fatal("the client was answered before it hung up")
	}
	w.faults()
	w.becomes(o, "PAID")
	if got := in.metric(`paymentd_settled_total{actor="confirm",status="PAID"}`); got != "1" {
		t.Errorf("settled by its confirm: %s", got)
	}
	in.confirm(o).want(t, 200, "PAID")
	w.ledgerHolds()
}

// TestMemberLimit: the fourth order of a member in a moment is refused and leaves no row; duplicates and other
// members pass.
func TestMemberLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start("PAYMENTD_MEMBER_LIMIT=3/m")
	orders := make([]order, 4)
	for i := range orders[:3] {
		orders[i] = newOrder("member")
		in.confirm(orders[i]).want(t, 200, "PAID")
		in.confirm(orders[i]).want(t, 200, "PAID")
	}
	orders[3] = newOrder("member")
	if a := in.confirm(orders[3]).want(t, 429, "member_rate_limited"); a.header.Get("Retry-After") == "" {
		t.Errorf("headers of a 429: %v", a.header)
	}
	if _, found := w.row(orders[3]); found {
		t.Error("a refused call wrote a row")
	}
	if a := in.confirm(orders[0]).want(t, 200, "PAID"); a.header.Get("Idempotent-Replayed") != "true" {
		t.Error("a duplicate of a limited member is no replay")
	}
	other := strings.Replace(orders[3].json(), "m-1", "m-2", 1)
	in.call(http.MethodPost, in.url+"/payments/confirm", checkoutSecret, other).want(t, 200, "PAID")
	w.ledgerHolds()
}
