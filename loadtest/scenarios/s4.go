package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/plot"
	"paymentd/loadtest/rig"
)

// s4Case is one way in which the gateway does the work and the caller does not hear of it.
type s4Case struct {
	name   string
	fault  tosssim.Fault
	answer string
}

// s4 is a gateway that neither keeps idempotency keys nor charges a payment only once. The breaker is off: it would
// keep most calls from being made at all.
func s4(ctx context.Context, p *play) error {
	p.chart.XLabel, p.chart.YLabel = "case", "charges per order"
	settings := tosssim.DefaultSettings()
	settings.Idempotency, settings.SingleUse = false, false
	timeout := p.time(5*time.Second, 2*time.Second)
	cases := []s4Case{
		{"slow answer", tosssim.Fault{Hang: true, Work: tosssim.WorkDo}, "200 PAID"},
		{"worked on after the time-out", tosssim.Fault{Late: tosssim.Duration(timeout + timeout/2), Hold: true}, "202 PENDING"},
		{"reset after the work", tosssim.Fault{Drop: tosssim.DropAfter}, "200 PAID"},
		{"5xx after the work", tosssim.Fault{Status: http.StatusBadGateway, Work: tosssim.WorkDo}, "200 PAID"},
	}
	theirs := plot.Series{Name: "retrying every error", Kind: plot.Bars}
	ours := plot.Series{Name: "ours", Kind: plot.Bars}
	s := system{
		label: "S4", profile: "connect-only-pending", settings: []string{setting("RESEND_WITHIN", 0), setting("TOSS_CONFIRM_TIMEOUT", timeout), setting("BREAKER_WINDOW", 0),
			setting("LOOKUP_RATE", "100/s")},
		gateway: tosssim.Options{Settings: &settings},
	}
	err := p.on(ctx, s, func(ctx context.Context) error {
		for i, c := range cases {
			c.fault.Op = tosssim.OpConfirm
			naive, own, err := p.s4Case(ctx, i, c, timeout)
			if err != nil {
				return err
			}
			theirs.Points = append(theirs.Points, plot.Point{X: float64(i+1) - 0.08, Y: float64(naive)})
			ours.Points = append(ours.Points, plot.Point{X: float64(i+1) + 0.08, Y: float64(own)})
			p.chart.Marks = append(p.chart.Marks, plot.Mark{X: float64(i + 1), Text: c.name})
		}
		return nil
	})
	p.draw(theirs)
	p.draw(ours)
	return err
}

// s4Case charges ten orders each by a client that tries again after every error, and by us, and returns the charges
// per order.
func (p *play) s4Case(ctx context.Context, i int, c s4Case, timeout time.Duration) (naive, own int, err error) {
	const n = 10
	if naive, err = p.s4Naive(ctx, c, orders(fmt.Sprintf("naive%d", i), n), timeout); err != nil {
		return 0, 0, err
	}
	p.say("%s: three tries charge %d times", c.name, naive)
	if err := p.rig.Toss.SetFaults(c.fault); err != nil {
		return 0, 0, err
	}
	all := orders(fmt.Sprintf("s4-%d", i), n)
	begin := p.at(tosssim.OpConfirm).Calls
	replies := p.pace(ctx, all, 50*time.Millisecond)
	p.must(c.name+": answered "+c.answer, "-", tally(replies), len(only(replies, c.answer)) == n)
	p.rig.Toss.ClearFaults()
	if _, err = p.settles(ctx); err != nil {
		return 0, 0, err
	}
	charged, most := 0, 0
	for _, o := range all {
		e, _ := p.rig.Toss.Payment(o.PaymentKey)
		charged += e.Approvals
		most = max(most, e.Approvals)
	}
	p.equal(c.name+": charges of 10 orders", "30", charged, n)
	p.equal(c.name+": calls that tried again", "20", int(p.at(tosssim.OpConfirm).Calls-begin)-n, 0)
	return naive, most, nil
}

// s4Naive sends every order up to three times, whatever the error was, to a gateway of its own.
func (p *play) s4Naive(ctx context.Context, c s4Case, all []rig.Order, timeout time.Duration) (times int, err error) {
	settings := p.rig.Toss.Settings()
	toss, err := tosssim.New(tosssim.Options{Settings: &settings, Faults: []tosssim.Fault{c.fault}}).Listen(context.WithoutCancel(ctx), "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, toss.Close()) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var callers sync.WaitGroup
	for _, o := range all {
		callers.Go(func() {
			for try := range 3 {
				within, giveUp := context.WithCancel(ctx)
				go func() { // its time-out begins when the gateway has the call
					got := func(tosssim.Counters) bool {
						return len(toss.CallsOf(tosssim.CallQuery{Op: tosssim.OpConfirm, PaymentKey: o.PaymentKey})) > try
					}
					if toss.Await(within, got) == nil {
						time.AfterFunc(timeout/2, giveUp)
					}
				}()
				status, err := post(within, client, toss.URL()+"/v1/payments/confirm", o)
				giveUp()
				if err == nil && status == http.StatusOK {
					return
				}
			}
		})
	}
	callers.Wait()
	toss.ClearFaults()
	approvals := func() int { return int(toss.Ledger().Approvals) }
	// On a busy machine a try may time out before the gateway has it.
	_ = p.awaits(ctx, "the naive client has charged", 2*timeout+5*time.Second, func() bool {
		return approvals() == 3*len(all) || len(toss.CallsOf(tosssim.CallQuery{Running: true})) == 0 && approvals() >= 2*len(all)
	})
	p.must(c.name+": charges of 10 orders by three tries", "30", approvals(), approvals() >= 2*len(all))
	return approvals() / len(all), ctx.Err()
}
