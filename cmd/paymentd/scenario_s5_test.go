package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

const (
	s5Slots, s5Burst, s5Rate = 20, 20, 30
	// s5Jitter is how much closer than at their sending two calls may arrive at the gateway on a busy machine.
	s5Jitter = 500 * time.Millisecond
)

// withinRate fails if any window of time saw more sends than burst + rate·t. Calls that left one after the other arrive
// together after a standstill: it is added to the windows that it overlaps, or that begin with what arrived right after it.
func (w *world) withinRate(stood func(from, to time.Time) time.Duration) {
	w.t.Helper()
	at := w.starts()
	for i := range at {
		for j := i; j < len(at); j++ {
			most := s5Burst + s5Rate*(at[j].Sub(at[i])+s5Jitter).Seconds()
			if n := float64(j - i + 1); n > most && n > most+s5Rate*stood(at[i].Add(-s5Jitter), at[j]).Seconds() {
				w.t.Fatalf("%.0f sends within %s, want at most %.0f", n, at[j].Sub(at[i]), most)
			}
		}
	}
}

// split parts the callers who were paid from those who were refused as busy.
func split(replies []reply) (paid, busy, others []reply) {
	for _, r := range replies {
		switch {
		case r.status == 200:
			paid = append(paid, r)
		case r.status == 503 && r.word() == "busy" && r.header.Get("Retry-After") != "":
			busy = append(busy, r)
		default:
			others = append(others, r)
		}
	}
	return paid, busy, others
}

// reads asks for one payment over and over until the returned function is called.
func (in *instance) reads(o order) (stop func() []reply) {
	quit, out := make(chan struct{}), make(chan []reply, 1)
	go func() {
		var all []reply
		for {
			select {
			case <-quit:
				out <- all
				return
			case <-time.After(5 * time.Millisecond):
			}
			begin := time.Now()
			a, err := call(in.t, http.MethodGet, in.url+"/payments/"+o.id, checkoutSecret, "")
			if err != nil {
				a.raw = err.Error()
			}
			all = append(all, reply{a, time.Since(begin)})
		}
	}()
	return func() []reply { close(quit); return <-out }
}

// TestScenarioS5Load: a burst of 100 at a slow gateway meets the bulkhead, then more than the rate at a fast one meets
// the limiter. Refusals answer at once, the breaker does not hear of them, and reads are answered all the while.
func TestScenarioS5Load(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.scenario("layered", nil, "PAYMENTD_TOSS_CONFIRM_TIMEOUT=60s", "PAYMENTD_ANSWER_WITHIN=60s")
	stood := rig.Standstill(t.Context())
	known := newOrder("s5-known")
	in.confirm(known).want(t, 200, "PAID")
	time.Sleep(2 * time.Second / s5Rate) // its token comes back
	stop := in.reads(known)

	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hold: true})
	burst := make(chan []reply, 1)
	go func() { burst <- in.volley(newOrders("s5burst", 100)) }()
	awaits(t, "all but the 20 are refused", time.Minute, func() bool { return in.confirmed("busy") == 100-s5Slots })
	w.arrived(tosssim.OpConfirm, 1+s5Slots)
	w.equal("confirms still at the gateway when the last one had been refused", int(w.toss.Counters().Ops[tosssim.OpConfirm].Running), s5Slots)
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(100 * time.Millisecond)})
	paid, busy, others := split(<-burst)
	for _, r := range others {
		t.Errorf("answered %d %s", r.status, r.raw)
	}
	w.equal("confirms at the gateway at once", int(w.toss.Counters().Ops[tosssim.OpConfirm].MaxRunning), s5Slots)
	w.equal("paid in the burst", len(paid), s5Slots)

	var paid2, busy2 []reply
	others = nil
	for round := range 10 { // a machine that is busy does not come to 80 per second at once
		p, b, o := split(in.pace(newOrders(fmt.Sprintf("s5rate%d-", round), 160), 80))
		paid2, busy2, others = append(paid2, p...), append(busy2, b...), append(others, o...)
		if in.number(`paymentd_refused_total{by="limiter"}`) > 0 {
			break
		}
	}
	for _, r := range others {
		t.Errorf("answered %d %s", r.status, r.raw)
	}
	reads := stop()
	for _, r := range reads {
		r.want(t, 200, "PAID")
	}
	w.withinRate(stood)
	if most := w.toss.Counters().Ops[tosssim.OpConfirm].MaxRunning; most > s5Slots {
		t.Errorf("%d confirms at the gateway at once", most)
	}
	sent := 1 + len(paid) + len(paid2)
	w.equal("confirms at the gateway", int(w.sent()), sent)
	w.equal("successes that the breaker counted", in.result("success"), sent)
	w.equal("failures that the breaker counted", in.result("failure"), 0)
	byLimiter := in.number(`paymentd_refused_total{by="limiter"}`)
	byBulkhead := in.number(`paymentd_refused_total{by="bulkhead"}`)
	w.equal("refusals", byLimiter+byBulkhead, len(busy)+len(busy2))
	if ignored := in.result("ignored"); ignored < byLimiter || ignored > byLimiter+byBulkhead {
		t.Errorf("the breaker ignored %d, the limiter refused %d and the bulkhead %d", ignored, byLimiter, byBulkhead)
	}
	if byLimiter == 0 || byBulkhead == 0 {
		t.Errorf("the limiter refused %d and the bulkhead %d: one of them was not shown", byLimiter, byBulkhead)
	}
	w.equal("breaker closed", in.number(`paymentd_breaker_state{state="closed"}`), 1)
	w.equal("closed→open", in.moves("closed", "open"), 0)
	w.equal("sequences with a retry", in.sequences("absorbed")+in.sequences("exhausted"), 0)
	awaits(t, "all places are free again", 10*time.Second, func() bool { return in.number(`paymentd_bulkhead_in_flight`) == 0 })
	w.ledgerHolds()
	t.Logf(`
S5, bulkhead 20, 30 per s                | ours
burst of 100: paid, refused as busy      | %d, %d
most at the gateway at once              | %d of 20
80 per s for 2 s: paid, refused          | %d, %d
refused by limiter, by bulkhead          | %d, %d
refused in p50, p99; paid in p50         | %s, %s; %s (p50 ratio %.3f)
breaker: success, failure, ignored       | %d, %d, %d
reads meanwhile: all 200, p50, p99       | %d, %s, %s`,
		len(paid), len(busy), w.toss.Counters().Ops[tosssim.OpConfirm].MaxRunning, len(paid2), len(busy2), byLimiter, byBulkhead,
		quantile(busy, 0.5), quantile(busy, 0.99), quantile(paid, 0.5), quantile(busy, 0.5).Seconds()/quantile(paid, 0.5).Seconds(),
		in.result("success"), in.result("failure"), in.result("ignored"), len(reads), quantile(reads, 0.5), quantile(reads, 0.99))
}

// pace confirms so many per second, whatever the answers take.
func (in *instance) pace(orders []order, perSecond int) []reply {
	replies := make([]reply, len(orders))
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	var callers sync.WaitGroup
	for i, o := range orders {
		callers.Go(func() { replies[i] = in.timed(o) })
		<-tick.C
	}
	callers.Wait()
	return replies
}

func (in *instance) confirmed(result string) int {
	in.t.Helper()
	return in.number(`paymentd_confirm_total{result="` + result + `"}`)
}

func (in *instance) sequences(result string) int {
	in.t.Helper()
	return in.number(`paymentd_retry_sequences_total{result="` + result + `"}`)
}

// TestScenarioS5Absorbed: a single 5xx or reset is absorbed, and a sequence is one result.
func TestScenarioS5Absorbed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Recovery is another's, so that what the breaker counts is of these calls alone.
	in := w.scenario("layered", append(asleep, "PAYMENTD_RESEND_WITHIN=0"), "PAYMENTD_RETRY_DELAY=50ms")
	c := tosssim.OpConfirm
	orders := newOrders("s5absorbed", 3)
	for i, f := range []tosssim.Fault{
		{Op: c, Status: 503, Next: 1},
		{Op: c, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Next: 1},
		{Op: c, Drop: tosssim.DropBefore, Next: 1},
	} {
		w.faults(f)
		in.confirm(orders[i]).want(t, 200, "PAID")
		w.equal("absorbed", in.sequences("absorbed"), i+1)
		w.equal("results of the breaker", in.result("success"), i+1)
	}
	w.faults(tosssim.Fault{Op: c, Status: 503, Next: 2})
	both := newOrder("s5-both")
	in.confirm(both).want(t, 202, "PENDING")
	w.equal("exhausted", in.sequences("exhausted"), 1)
	w.equal("successes of the breaker", in.result("success"), 3)
	w.equal("sequences absorbed", in.sequences("absorbed"), 3)
	w.equal("failures of the breaker, of eight tries", in.result("failure"), 1)
	w.start()
	w.settledAlone(30 * time.Second)
	w.chargedOnce(append(orders, both))
	w.ledgerHolds()
}

// TestScenarioS5Refused: a gateway that refuses one connection is absorbed as well.
func TestScenarioS5Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The port is open again before the first retry, or, where the machine stands still, before a later one.
	in := w.scenario("layered", []string{"PAYMENTD_RETRY_DELAY=1s", "PAYMENTD_RETRY_MAX=10"})
	failed := `paymentd_gateway_attempts_total{op="confirm",outcome="unavailable"}`
	w.listen(false)
	o := newOrder("s5-refused")
	later := in.confirmLater(o)
	awaits(t, "the first try has failed", 10*time.Second, func() bool { return in.number(failed) >= 1 })
	w.listen(true)
	later().want(t, 200, "PAID")
	w.equal("absorbed", in.sequences("absorbed"), 1)
	w.equal("exhausted", in.sequences("exhausted"), 0)
	w.equal("failures of the breaker", in.result("failure"), 0)
	w.equal("successes of the breaker", in.result("success"), 1)
	w.chargedOnce([]order{o})
	w.ledgerHolds()
}

// TestScenarioS5OpenSpendsNothing: while the breaker is open, here by an operator's hand, a confirm takes no token, no
// place and no retry, under both policies: what the bucket held is there afterwards.
func TestScenarioS5OpenSpendsNothing(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]string{"reject": "503 pg_unavailable", "pending": "202 PENDING"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			// Three tokens for the three trials, and no more within the test; recovery stays out of it.
			in := w.scenario("layered", []string{
				"PAYMENTD_ON_UNAVAILABLE=" + policy, "PAYMENTD_RATE_LIMIT=1/m", "PAYMENTD_RATE_BURST=3",
				"PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h", "PAYMENTD_RESEND_WITHIN=0",
			})
			in.breaker("open").want(t, 200, "")
			got := tally(in.volley(newOrders("s5open", 30)))
			if !maps.Equal(got, map[string]int{want: 30}) {
				t.Errorf("answered %v, want 30 times %s", got, want)
			}
			w.equal("confirms at the gateway", int(w.sent()), 0)
			w.equal("refused by the breaker", in.number(`paymentd_refused_total{by="breaker"}`), 30)
			w.equal("refused by the limiter", in.number(`paymentd_refused_total{by="limiter"}`), 0)
			w.equal("refused by the bulkhead", in.number(`paymentd_refused_total{by="bulkhead"}`), 0)
			w.equal("in flight", in.number(`paymentd_bulkhead_in_flight`), 0)
			w.equal("retried", in.sequences("absorbed")+in.sequences("exhausted"), 0)
			in.breaker("none").want(t, 200, "")
			for _, o := range newOrders("s5trial", 3) {
				in.confirm(o).want(t, 200, "PAID")
			}
			in.confirm(newOrder("s5-empty")).want(t, 503, "busy") // the bucket is what refuses now
			w.equal("half_open→closed", in.moves("half_open", "closed"), 1)
		})
	}
}

// TestScenarioS5Hang: a silent gateway holds its 20 places for the time-out; everybody else is refused at once, the
// breaker then opens, and what hung is paid when the gateway is back.
func TestScenarioS5Hang(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.scenario("layered", rested(), "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s", "PAYMENTD_ANSWER_WITHIN=10s", "PAYMENTD_BREAKER_OPEN_FOR=1500ms")
	timeout := either(30*time.Second, 60*time.Second)
	w.faults(silent)
	hung := newOrders("s5hang", s5Slots)
	first := make(chan []reply, 1)
	go func() { first <- in.volley(hung) }()
	w.arrived(tosssim.OpConfirm, s5Slots)
	refused := in.volley(newOrders("s5busy", 30))
	for _, r := range refused {
		r.want(t, 503, "busy")
	}
	waited := <-first
	for _, r := range waited {
		r.want(t, 202, "PENDING")
	}
	w.equal("failures while the 20 hang", in.result("failure"), 0)
	awaits(t, "the breaker opens", timeout+5*time.Second, func() bool { return in.moves("closed", "open") == 1 })
	w.equal("confirms at the gateway when it opened", int(w.sent()), s5Slots)
	w.faults()
	w.recovers()
	awaits(t, "the 20 are in nobody's hands", 10*time.Second, func() bool {
		return w.count(`SELECT count(*) FROM payments WHERE leased`) == 0
	})
	awaits(t, "trials may pass", 40*time.Second, func() bool { return in.is("half_open") })
	buyers := newOrders("s5after", 4)
	for _, o := range buyers {
		awaits(t, "a buyer pays", 10*time.Second, func() bool { return in.confirm(o).status == 200 })
	}
	took := w.settledAlone(90 * time.Second)
	w.chargedOnce(slices.Concat(hung, buyers))
	w.equal("failures that the breaker counted", in.result("failure"), 10)
	w.equal("results of calls admitted before it opened", in.result("dropped"), 10)
	w.equal("closed→open", in.moves("closed", "open"), 1)
	w.equal("sequences with a retry", in.sequences("absorbed")+in.sequences("exhausted"), 0)
	w.equal("incidents", w.count(`SELECT count(*) FROM incidents`), 0)
	w.ledgerHolds()
	t.Logf(`
S5, silent gateway, time-out %s        | ours
at the gateway, refused as busy          | %d, %d
longest wait of a caller                 | %s
refused in p50, p99                      | %s, %s
the 20 paid after it closed              | 20 of 20, %s later`,
		timeout, s5Slots, len(refused), quantile(waited, 1), quantile(refused, 0.5), quantile(refused, 0.99), took)
}
