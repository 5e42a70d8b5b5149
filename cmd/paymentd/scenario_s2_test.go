package main

import (
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// silent is a gateway that accepts confirms and never answers; lookups and cancels are well.
var silent = tosssim.Fault{Op: tosssim.OpConfirm, Hang: true}

// s2Quick keeps the shape of S2: callers are answered long before the time-out of the gateway. A quick run shows that by
// what still hangs at the gateway; how long they waited is held to in real time alone. The breaker stays open until the
// test has seen what it refuses, however busy the machine is.
var s2Quick = []string{
	"PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s", "PAYMENTD_ANSWER_WITHIN=10s", "PAYMENTD_BREAKER_OPEN_FOR=5m",
}

// TestScenarioS2a: no breaker, 50 callers at once, the gateway is silent. Everybody is answered while all 50
// still hang there (in real time: within ANSWER_WITHIN), and all 50 are paid when it is back.
func TestScenarioS2a(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.scenario("fail-fast", append(rested(), "PAYMENTD_BREAKER_WINDOW=0"), s2Quick...)
	const within = 10 * time.Second
	timeout := either(30*time.Second, 15*time.Second)
	w.faults(silent)
	orders := newOrders("s2a", 50)
	answered := make(chan []reply, 1)
	go func() { answered <- in.volley(orders) }()
	w.arrived(tosssim.OpConfirm, 50)
	awaits(t, "no connection is in use while all wait for the gateway", timeout, func() bool {
		return in.number(`paymentd_db_connections{pool="request",state="in_use"}`) == 0
	})
	w.equal("confirms that wait at the gateway", int(w.toss.Counters().Ops[tosssim.OpConfirm].Running), 50)
	replies := <-answered
	w.equal("confirms that wait there when the last caller has been answered", int(w.toss.Counters().Ops[tosssim.OpConfirm].Running), 50)
	longest := quantile(replies, 1)
	for _, r := range replies {
		r.want(t, 202, "PENDING")
	}
	if realTime() && longest > within+2*time.Second {
		t.Errorf("a caller waited %s, want at most ANSWER_WITHIN, %s", longest, within)
	}
	awaits(t, "all calls have timed out", timeout, func() bool {
		return in.number(`paymentd_gateway_attempts_total{op="confirm",outcome="unknown"}`) >= 50 &&
			w.count(`SELECT count(*) FROM payments WHERE leased`) == 0
	})
	calls := w.sent()
	w.equal("confirms at the gateway when all have timed out", int(calls), 50)
	w.faults()
	w.recovers()
	took := w.settledAlone(90 * time.Second)
	w.chargedOnce(orders)
	w.equal("cancels", int(w.toss.Counters().Ops[tosssim.OpCancel].Calls), 0)
	w.equal("incidents", w.count(`SELECT count(*) FROM incidents`), 0)
	w.equal("callers told that it runs", in.number(`paymentd_confirm_total{result="pending_running"}`), 50)
	w.ledgerHolds()
	t.Logf(`
S2a, no breaker, 50 at once      | theirs                 | ours
longest wait of a caller         | %-22s | %s (ratio %.2f)
calls at the gateway             | 50                     | %d
incidents, mails                 | 50                     | 0
paid after the gateway is back   | by hand                | %d of 50, %s later`,
		2*timeout, longest, longest.Seconds()/(2*timeout).Seconds(), calls, w.paid(), took)
}

// TestScenarioS2b: with the breaker the first 20 suffer and the next 50 are refused without a trace; the 20 are paid
// when the gateway is back.
func TestScenarioS2b(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.scenario("fail-fast", rested(), s2Quick...)
	timeout := either(30*time.Second, 15*time.Second)
	w.faults(silent)
	orders := newOrders("s2b", 20)
	first := in.volley(orders)
	for _, r := range first {
		r.want(t, 202, "PENDING")
	}
	awaits(t, "the first 20 have timed out", timeout, func() bool {
		return in.number(`paymentd_gateway_attempts_total{op="confirm",outcome="unknown"}`) == 20 &&
			w.count(`SELECT count(*) FROM payments WHERE leased`) == 0
	})
	w.equal("failures that the breaker counted", in.result("failure"), 10)
	w.equal("results of calls admitted before it opened", in.result("dropped"), 10)
	second := in.volley(newOrders("s2b-refused", 50))
	for _, r := range second {
		r.want(t, 503, "pg_unavailable")
		if e := r.text("earlier"); e != "none" && e != "unknown" || r.header.Get("Retry-After") == "" {
			t.Errorf("a refusal: %v %s", r.header, r.raw)
		}
	}
	if !in.is("open") {
		t.Fatal("the breaker was not open for the whole volley: nothing is shown")
	}
	w.equal("rows", w.count(`SELECT count(*) FROM payments`), 20)
	w.equal("confirms at the gateway", int(w.sent()), 20)
	w.equal("cancels", int(w.toss.Counters().Ops[tosssim.OpCancel].Calls), 0)
	w.equal("closed→open", in.moves("closed", "open"), 1)
	w.equal("refused by the breaker", in.number(`paymentd_confirm_total{result="pg_unavailable"}`), 50)
	w.faults()
	w.recovers()

	from := "open"
	if !realTime() {
		in.breaker("open").want(t, 200, "")
		in.breaker("none").want(t, 200, "")
		from = "forced_open"
	}
	awaits(t, "trials may pass", 40*time.Second, func() bool { return in.is("half_open") })
	buyers := newOrders("s2b-after", 4)
	for _, o := range buyers {
		awaits(t, "a buyer pays", 10*time.Second, func() bool { return in.confirm(o).status == 200 })
	}
	took := w.settledAlone(90 * time.Second)
	w.chargedOnce(append(orders, buyers...))
	w.equal("closed→open", in.moves("closed", "open"), 1)
	w.equal(from+"→half_open", in.moves(from, "half_open"), 1)
	w.equal("half_open→closed", in.moves("half_open", "closed"), 1)
	w.equal("incidents", w.count(`SELECT count(*) FROM incidents`), 0)
	w.ledgerHolds()
	t.Logf(`
S2b, 20, then 50                 | theirs  | ours
longest wait of the 20           | %-7s | %s
calls at the gateway             | 20      | 20
the 50 refused within            | 500ms   | p50 %s, p99 %s
rows written for the 50          | -       | 0
incidents                        | 20      | 0
the 20 paid after it closed      | by hand | 20 of 20, %s later`,
		2*timeout, quantile(first, 1), quantile(second, 0.5), quantile(second, 0.99), took)
}
