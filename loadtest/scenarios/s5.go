package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

// The numbers of the profile layered.
const (
	s5Slots, s5Burst, s5Rate = 20, 20, 30
	// s5Jitter is how much closer than at their sending two calls may arrive at the gateway.
	s5Jitter = 500 * time.Millisecond
)

// s5 is the profile layered: a bulkhead, a limiter, one retry inside the breaker.
func s5(ctx context.Context, p *play) error {
	p.chart.XLabel, p.chart.YLabel, p.chart.Log = "seconds since the burst", "seconds until answered", true
	// Three tokens for three trials, and no more within the part; recovery stays out of it.
	bucket := []string{
		setting("RATE_LIMIT", "1/m"), setting("RATE_BURST", 3), setting("RECOVERY_DUE_EVERY", "1000h"), setting("RECOVERY_EVERY", "1000h"),
		setting("RESEND_WITHIN", 0),
	}
	parts := []func(context.Context, *play) error{
		func(ctx context.Context, p *play) error {
			return p.on(ctx, system{label: "load", profile: "layered", settings: []string{setting("DB_ACQUIRE_TIMEOUT", "10s")}}, p.s5Load)
		},
		func(ctx context.Context, p *play) error {
			return p.on(ctx, system{label: "faults", profile: "layered", settings: []string{setting("RETRY_DELAY", time.Second)}}, p.s5Faults)
		},
		func(ctx context.Context, p *play) error {
			return p.on(ctx, system{label: "open breaker", profile: "layered", settings: bucket}, p.s5Open)
		},
	}
	if p.short() { // the port is open again before the first retry or, where the machine stands still, before a later one
		parts = append(parts, func(ctx context.Context, p *play) error {
			s := system{label: "refused", profile: "layered", settings: []string{setting("RETRY_DELAY", time.Second), setting("RETRY_MAX", 10)}}
			return p.on(ctx, s, func(ctx context.Context) error { return p.s5Refused(ctx, orders("s5-refused", 1)[0]) })
		})
	}
	return p.inTurn(ctx, parts...)
}

// s5Load is a burst of 100 at a slow gateway, then 80 per second at a fast one, with somebody reading all the while.
func (p *play) s5Load(ctx context.Context) error {
	known := orders("s5-known", 1)[0]
	if r := p.confirm(ctx, known); r.word() != "200 PAID" {
		return errors.New("confirm: " + r.word())
	}
	pause(ctx, 2*time.Second/s5Rate) // its token comes back
	calm := p.reads(ctx, known)
	pause(ctx, p.time(3*time.Second, time.Second))
	before := calm()
	stop, stood := p.reads(ctx, known), rig.Standstill(ctx)
	confirm := tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(p.time(5*time.Second, 3*time.Second))}
	if err := p.rig.Toss.SetFaults(confirm); err != nil {
		return err
	}
	burst, err := p.s5Crowd(ctx)
	if err != nil {
		return err
	}
	confirm.Latency = tosssim.Fixed(100 * time.Millisecond)
	if err := p.rig.Toss.SetFaults(confirm); err != nil {
		return err
	}
	rate := p.pace(ctx, orders("s5-rate", p.size(800, 160)), time.Second/80)
	for round := 0; p.short() && round < 10 && p.number(ctx, `paymentd_refused_total{by="limiter"}`) == 0; round++ {
		// A machine that is busy does not come to 80 per second at once.
		rate = append(rate, p.pace(ctx, orders(fmt.Sprintf("s5-rate%d", round), 160), time.Second/80)...)
	}
	reads := stop()
	paid, busy := only(slices.Concat(burst, rate), "200 PAID"), only(slices.Concat(burst, rate), "503 busy")
	p.draw(dots("200 PAID", burst[0].at, paid))
	p.draw(dots("503 busy", burst[0].at, busy))
	p.draw(dots("reads", burst[0].at, reads))
	p.equal("burst of 100: paid", "-", len(only(burst, "200 PAID")), s5Slots)
	p.equal("burst of 100: refused as busy", "-", len(only(burst, "503 busy")), 100-s5Slots)
	most := int(p.at(tosssim.OpConfirm).MaxRunning)
	p.must("most at the gateway at once", "-", most, most <= s5Slots)
	p.equal("other answers than 200 and 503 busy", "-", len(burst)+len(rate)-len(paid)-len(busy), 0)
	over := p.s5Over(stood)
	p.must("worst window of sends above burst + 30·t", "-", fmt.Sprintf("%.1f", over), over <= s5Rate*s5Jitter.Seconds())
	p.told("80 per second: paid / refused", "-", fmt.Sprintf("%d / %d", len(only(rate, "200 PAID")), len(only(rate, "503 busy"))))
	p.goal("refused in, p50 / p99", "-", fmt.Sprintf("%s / %s", quantile(busy, 0.5), quantile(busy, 0.99)), quantile(busy, 0.5) <= 50*time.Millisecond)
	p.goal("reads in, p50 without load / with", "-", fmt.Sprintf("%s / %s", quantile(before, 0.5), quantile(reads, 0.5)), quantile(reads, 0.5) <= 2*quantile(before, 0.5)+2*time.Millisecond)
	p.equal("reads not answered", "-", len(reads)-len(only(reads, "200 PAID")), 0)
	p.s5Counts(ctx, 1+len(paid), len(busy))
	return nil
}

// s5Crowd is a hundred confirms at once. In a short run none is answered before the last one has been refused.
func (p *play) s5Crowd(ctx context.Context) ([]reply, error) {
	all := orders("s5-burst", 100)
	if !p.short() {
		return p.volley(ctx, all), nil
	}
	release, err := p.held(p.time(5*time.Second, 3*time.Second))
	if err != nil {
		return nil, err
	}
	replies := make(chan []reply, 1)
	go func() { replies <- p.volley(ctx, all) }()
	err = p.awaits(ctx, "all but the slots are refused", time.Minute, func() bool {
		return p.number(ctx, `paymentd_confirm_total{result="busy"}`) == len(all)-s5Slots && int(p.at(tosssim.OpConfirm).Running) == s5Slots
	})
	err = errors.Join(err, release())
	return <-replies, err
}

// s5Counts compares the breaker and the refusals with what the callers saw.
func (p *play) s5Counts(ctx context.Context, sent, refused int) {
	p.equal("confirms at the gateway beside the paid ones", "-", int(p.at(tosssim.OpConfirm).Calls)-sent, 0)
	p.equal("breaker: successes beside the paid ones", "-", p.results(ctx, "success")-sent, 0)
	p.equal("breaker: failures by refusals", "-", p.results(ctx, "failure"), 0)
	limiter, bulkhead := p.number(ctx, `paymentd_refused_total{by="limiter"}`), p.number(ctx, `paymentd_refused_total{by="bulkhead"}`)
	p.must("refused by limiter / by bulkhead", "-", fmt.Sprintf("%d / %d", limiter, bulkhead), limiter > 0 && bulkhead > 0 && limiter+bulkhead == refused)
	p.equal("retries of a refusal", "-", p.sequences(ctx, "absorbed")+p.sequences(ctx, "exhausted"), 0)
	p.equal("places in the bulkhead still taken", "-", p.number(ctx, "paymentd_bulkhead_in_flight"), 0)
}

func (p *play) sequences(ctx context.Context, result string) int {
	return p.number(ctx, fmt.Sprintf(`paymentd_retry_sequences_total{result=%q}`, result))
}

// s5Over is by how many sends the worst of all windows of time exceeds burst + rate·t, as the gateway saw them. Calls that
// left one after the other arrive together after a standstill: it is added to the windows that it overlaps, or that begin
// with what arrived right after it.
func (p *play) s5Over(stood func(from, to time.Time) time.Duration) float64 {
	var at []time.Time
	for _, c := range p.rig.Toss.CallsOf(tosssim.CallQuery{Op: tosssim.OpConfirm}) {
		at = append(at, c.Started)
	}
	slices.SortFunc(at, time.Time.Compare)
	worst := 0.0
	for i := range at {
		for j := i; j < len(at); j++ {
			over := float64(j-i+1) - s5Burst - s5Rate*at[j].Sub(at[i]).Seconds()
			if over > s5Rate*s5Jitter.Seconds() {
				over -= s5Rate * stood(at[i].Add(-s5Jitter), at[j]).Seconds()
			}
			worst = max(worst, over)
		}
	}
	return worst
}

// reads asks for one payment over and over until the returned function is called.
func (p *play) reads(ctx context.Context, o rig.Order) (stop func() []reply) {
	quit, out := make(chan struct{}), make(chan []reply, 1)
	go func() {
		var all []reply
		for {
			select {
			case <-quit:
				out <- all
				return
			case <-time.After(20 * time.Millisecond):
			}
			r := reply{order: o, at: time.Since(p.begun)}
			r.Answer, r.err = p.in.Read(ctx, o.OrderID)
			all = append(all, r)
		}
	}()
	return func() []reply { close(quit); return <-out }
}

// s5Faults: one fault is absorbed, and a sequence is one result.
func (p *play) s5Faults(ctx context.Context) error {
	c := tosssim.OpConfirm
	all := orders("s5-fault", 5)
	for i, f := range []tosssim.Fault{
		{Op: c, Status: 503, Next: 1}, {Op: c, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Next: 1}, {Op: c, Drop: tosssim.DropBefore, Next: 1},
	} {
		if err := p.rig.Toss.SetFaults(f); err != nil {
			return err
		}
		r := p.confirm(ctx, all[i])
		p.must(fmt.Sprintf("one fault (%s): the buyer sees", []string{"503", "500 with a code", "reset"}[i]), "-", r.word(), r.word() == "200 PAID")
	}
	absorbed := 3
	if !p.short() { // else it has a system of its own
		absorbed++
		if err := p.s5Refused(ctx, all[4]); err != nil {
			return err
		}
	}
	p.equal("sequences absorbed", "-", p.sequences(ctx, "absorbed"), absorbed)
	p.equal(fmt.Sprintf("breaker: successes of %d tries", 2*absorbed), "-", p.results(ctx, "success"), absorbed)
	if err := p.rig.Toss.SetFaults(tosssim.Fault{Op: c, Status: 503, Next: 2}); err != nil {
		return err
	}
	r := p.confirm(ctx, all[3])
	p.must("two faults: the buyer sees", "-", r.word(), r.word() == "202 PENDING")
	p.equal("sequences exhausted", "-", p.sequences(ctx, "exhausted"), 1)
	p.equal("breaker: failures of 2 tries", "-", p.results(ctx, "failure"), 1)
	return nil
}

// s5Refused: the gateway refuses one connection and listens again before the retry.
func (p *play) s5Refused(ctx context.Context, o rig.Order) error {
	if err := p.rig.Toss.SetListening(false); err != nil {
		return err
	}
	failures := func() int {
		const confirms = `paymentd_gateway_attempts_total{op="confirm",outcome=`
		return p.number(ctx, confirms+`"unavailable"}`) + p.number(ctx, confirms+`"unknown"}`)
	}
	pause(ctx, 300*time.Millisecond) // its idle connections are gone, so that it dials
	before, done := failures(), make(chan reply, 1)
	go func() { done <- p.confirm(ctx, o) }()
	failed := p.awaits(ctx, "the first try has failed", 10*time.Second, func() bool { return failures() > before })
	err := p.rig.Toss.SetListening(true)
	r := <-done
	p.must("one fault (refused): the buyer sees", "-", r.word(), r.word() == "200 PAID")
	return errors.Join(failed, err)
}

// s5Open: while the breaker is open a confirm takes no token, no place and no retry; what the bucket held is there
// afterwards.
func (p *play) s5Open(ctx context.Context) error {
	if err := p.force(ctx, "open"); err != nil {
		return err
	}
	replies := p.volley(ctx, orders("s5-open", 30))
	p.equal("open breaker: refused with 503 pg_unavailable", "-", len(only(replies, "503 pg_unavailable")), 30)
	spent := map[string]int{
		"calls": int(p.at(tosssim.OpConfirm).Calls), "tokens": p.number(ctx, `paymentd_refused_total{by="limiter"}`),
		"places": p.number(ctx, `paymentd_refused_total{by="bulkhead"}`), "retries": p.sequences(ctx, "absorbed") + p.sequences(ctx, "exhausted"),
	}
	total := 0
	for n := range maps.Values(spent) {
		total += n
	}
	p.equal("open breaker: calls, refused tokens and places, retries", "-", total, 0)
	if err := p.force(ctx, "none"); err != nil {
		return err
	}
	trials := p.pace(ctx, orders("s5-trial", 3), 200*time.Millisecond)
	p.equal("open breaker: trials that found a token afterwards", "-", len(only(trials, "200 PAID")), 3)
	last := p.confirm(ctx, orders("s5-empty", 1)[0])
	p.must("open breaker: the bucket held three, the next is", "-", last.word(), last.word() == "503 busy")
	return nil
}
