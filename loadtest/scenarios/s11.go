package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

// s11 is a nightly batch that runs twice at the same time, the second time with fresh paymentKeys; the first run is
// killed and started again.
func s11(ctx context.Context, p *play) error {
	p.chart.XLabel, p.chart.YLabel = "seconds since the batch began", "answers"
	gateway := tosssim.Options{Faults: []tosssim.Fault{{
		Op: tosssim.OpConfirm, Latency: tosssim.Latency{Min: tosssim.Duration(20 * time.Millisecond), Max: tosssim.Duration(80 * time.Millisecond)},
	}}}
	return p.on(ctx, system{label: "S11", settings: unlimited(), gateway: gateway}, p.s11)
}

func (p *play) s11(ctx context.Context) error {
	first := orders("s11", p.size(1000, 200))
	second := slices.Clone(first)
	for i := range second {
		second[i].PaymentKey = "test_s11-again_" + fmt.Sprint(i)
	}
	slices.Reverse(second)
	var both sync.WaitGroup
	var killed, again, other []reply
	var done atomic.Int64
	begin := time.Since(p.begun)
	both.Go(func() {
		life, kill := context.WithCancel(ctx)
		killed = p.batch(life, first, func() {
			if int(done.Add(1)) == len(first)/3 {
				kill() // every connection of the run breaks, whatever waits for an answer
			}
		})
		kill()
		p.say("the first run is killed after %d answers, and starts again", done.Load())
		again = p.batch(ctx, first, func() {})
	})
	both.Go(func() { other = p.batch(ctx, second, func() {}) })
	both.Wait()
	if _, err := p.settles(ctx); err != nil {
		return err
	}
	p.draw(grown("first run, until it was killed", begin, only(killed, "200 PAID")))
	p.draw(grown("first run, started again: 200", begin, only(again, "200 PAID")))
	p.draw(grown("second run: 200", begin, only(other, "200 PAID")))
	p.draw(grown("second run: 409", begin, only(other, "409 order_conflict")))
	n := len(first)
	approvals := int(p.rig.Toss.Ledger().Approvals)
	p.must(fmt.Sprintf("approvals of %d orders in two runs", n), "-", approvals, approvals == n)
	replayed := 0
	for _, r := range slices.Concat(killed, again, other) {
		if r.Header.Get("Idempotent-Replayed") == "true" {
			replayed++
		}
	}
	cut := len(killed) - len(only(killed, "200 PAID", "409 order_conflict"))
	p.told("first run until it was killed", "-", tally(killed))
	p.told("first run, started again", "-", tally(again))
	p.told("second run with other keys", "-", tally(other))
	p.must("calls cut by the kill", "-", cut, cut > 0 && cut <= 2*batchCallers)
	odd := len(again) + len(other) - len(only(slices.Concat(again, other), "200 PAID", "409 order_conflict"))
	p.equal("duplicates answered with anything but 200 or 409", "-", odd, 0)
	won := len(only(slices.Concat(again, other), "200 PAID"))
	p.equal("orders of which exactly one run hears 200", "-", won, n)
	p.must("duplicates replayed", "-", replayed, replayed > 0)
	return nil
}

// batchCallers is how many orders a run confirms at the same time.
const batchCallers = 10

// batch confirms all in their order, until ctx ends.
func (p *play) batch(ctx context.Context, all []rig.Order, answered func()) []reply {
	var mu sync.Mutex
	var replies []reply
	work := make(chan rig.Order)
	var callers sync.WaitGroup
	for range batchCallers {
		callers.Go(func() {
			for o := range work {
				r := p.confirm(ctx, o)
				mu.Lock()
				replies = append(replies, r)
				mu.Unlock()
				if r.err == nil {
					answered()
				}
			}
		})
	}
	for _, o := range all {
		select {
		case work <- o:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(work)
	callers.Wait()
	return replies
}
