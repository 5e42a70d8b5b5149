package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"paymentd/internal/tosssim"
)

// s2 is a gateway that accepts confirms and never answers; lookups and cancels are well.
func s2(ctx context.Context, p *play) error {
	p.chart.XLabel, p.chart.YLabel, p.chart.Log = "seconds since the first call", "seconds until answered", true
	return p.inTurn(ctx,
		func(ctx context.Context, p *play) error {
			return p.on(ctx, p.s2System("S2a", setting("BREAKER_WINDOW", 0)), p.s2a)
		},
		func(ctx context.Context, p *play) error { return p.on(ctx, p.s2System("S2b"), p.s2b) },
	)
}

func (p *play) s2System(label string, more ...string) system {
	return system{label: label, profile: "fail-fast", settings: slices.Concat(more, []string{
		setting("TOSS_CONFIRM_TIMEOUT", p.s2Timeout()), setting("ANSWER_WITHIN", p.s2Within()),
		setting("BREAKER_OPEN_FOR", 30*time.Second),
	}), gateway: tosssim.Options{Faults: []tosssim.Fault{{Op: tosssim.OpConfirm, Hang: true}}}}
}

func (p *play) s2Timeout() time.Duration { return 15 * time.Second }

func (p *play) s2Within() time.Duration { return p.time(10*time.Second, 5*time.Second) }

// timedOut waits until n calls have ended without an answer and nobody works on their payments.
func (p *play) timedOut(ctx context.Context, n int) error {
	return p.awaits(ctx, "all calls have timed out", p.s2Timeout()+5*time.Second, func() bool {
		leased, err := p.rig.Count(ctx, `SELECT count(*) FROM payments WHERE leased`)
		return err == nil && leased == 0 && p.number(ctx, `paymentd_gateway_attempts_total{op="confirm",outcome="unknown"}`) >= n
	})
}

// s2a: no breaker, 50 callers at once.
func (p *play) s2a(ctx context.Context) error {
	replies := p.volley(ctx, orders("s2a", 50))
	p.draw(dots("S2a: no breaker, 50 at once", replies[0].at, replies))
	longest, theirs := quantile(replies, 1), 2*p.s2Timeout()
	p.equal("S2a: answered 202, the work goes on", "-", len(only(replies, "202 PENDING")), 50)
	p.goal("S2a: longest wait of a caller", theirs.String(), longest, longest <= p.s2Within()+500*time.Millisecond)
	if err := p.timedOut(ctx, 50); err != nil {
		return err
	}
	p.equal("S2a: calls at the gateway", "50", int(p.at(tosssim.OpConfirm).Calls), 50)
	p.rig.Toss.ClearFaults()
	if err := p.s2After(ctx, "S2a", "50 incidents, 50 mails"); err != nil {
		return err
	}
	paid, err := p.paid(ctx)
	p.equal("S2a: paid without a hand", "-", paid, 50)
	return err
}

// s2After waits for recovery and looks for what a person would have been called for.
func (p *play) s2After(ctx context.Context, label, theirs string) error {
	took, err := p.settles(ctx)
	if err != nil {
		return err
	}
	p.told(label+": settled after the gateway is back", "by hand", took)
	incidents, err := p.rig.Count(ctx, `SELECT count(*) FROM incidents`)
	p.equal(label+": incidents, one per payment", theirs, incidents, 0)
	p.equal(label+": cancels at the gateway", "-", int(p.at(tosssim.OpCancel).Calls), 0)
	return err
}

// s2b: with the breaker the first 20 suffer; 50 more come after the time-out.
func (p *play) s2b(ctx context.Context) error {
	if err := p.connect(ctx, 70); err != nil {
		return err
	}
	begin := time.Now()
	first := p.volley(ctx, orders("s2b", 20))
	if err := p.timedOut(ctx, 20); err != nil {
		return err
	}
	if !p.short() {
		pause(ctx, time.Until(begin.Add(17*time.Second)))
	}
	const waits = `paymentd_db_acquire_duration_seconds_count{pool="request"}`
	reads := p.number(ctx, waits)
	second := p.volley(ctx, orders("s2b-refused", 50))
	open := p.is(ctx, "open")
	reads = p.number(ctx, waits) - reads
	p.draw(dots("S2b: 20 with a breaker", first[0].at, first))
	p.draw(dots("S2b: 50 more", first[0].at, second))
	p.must("S2b: the breaker was open all the while", "-", open, open)
	longest, p50, p99 := quantile(first, 1), quantile(second, 0.5), quantile(second, 0.99)
	p.goal("S2b: longest wait of the 20", (2 * p.s2Timeout()).String(), longest, longest <= p.s2Within()+500*time.Millisecond)
	p.equal("S2b: refused with 503 pg_unavailable", "50", len(only(second, "503 pg_unavailable")), 50)
	p.goal("S2b: refused in, p50 / p99", "500ms", fmt.Sprintf("%s / %s", p50, p99), p99 <= 5*time.Millisecond)
	rows, err := p.rig.Count(ctx, `SELECT count(*) FROM payments`)
	if err != nil {
		return err
	}
	p.equal("S2b: rows written for the 50", "-", rows-20, 0)
	p.must("S2b: reads for the 50", "-", reads, reads <= 50)
	p.equal("S2b: calls at the gateway", "20", int(p.at(tosssim.OpConfirm).Calls), 20)
	p.equal("S2b: failures that opened it, of 20", "-", p.results(ctx, "failure"), 10)
	p.rig.Toss.ClearFaults()
	p.mark(time.Since(begin), "gateway back")
	if p.short() { // nobody waits out how long it stays open
		if err := errors.Join(p.force(ctx, "open"), p.force(ctx, "none")); err != nil {
			return err
		}
	}
	if err := p.closesAgain(ctx, "s2b-after", 35*time.Second); err != nil {
		return err
	}
	p.mark(time.Since(begin), "closed")
	if err := p.s2After(ctx, "S2b", "20"); err != nil {
		return err
	}
	paid, err := p.rig.Count(ctx, `SELECT count(*) FROM payments WHERE status = 'PAID' AND order_id LIKE 'order-s2b-%' AND order_id NOT LIKE 'order-s2b-after%'`)
	p.equal("S2b: of the 20 paid without a hand", "-", paid, 20)
	p.equal("S2b: closed→open, for one alert", "-", p.moves(ctx, "closed", "open"), 1)
	return err
}

// closesAgain waits for the trials and sends buyers until the breaker is closed.
func (p *play) closesAgain(ctx context.Context, kind string, most time.Duration) error {
	if err := p.awaits(ctx, "trials may pass", most, func() bool { return !p.is(ctx, "open") }); err != nil {
		return err
	}
	for _, o := range orders(kind, 4) {
		if err := p.awaits(ctx, "a buyer pays", 20*time.Second, func() bool { return p.confirm(ctx, o).word() == "200 PAID" }); err != nil {
			return err
		}
	}
	return p.awaits(ctx, "the breaker closes", 20*time.Second, func() bool { return p.is(ctx, "closed") })
}
