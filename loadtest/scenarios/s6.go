package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"paymentd/internal/tosssim"
)

// s6Callers are in flight when the database fails.
const s6Callers = 20

// s6 is a commit that fails after the gateway has taken the money, under both policies.
func s6(ctx context.Context, p *play) error {
	p.chart.XLabel, p.chart.YLabel = "seconds since the calls of the part", "seconds until answered"
	var parts []func(context.Context, *play) error
	for _, policy := range []string{"hold", "cancel"} {
		parts = append(parts, func(ctx context.Context, p *play) error {
			s := p.s6System("b "+policy, policy)
			if p.short() {
				s.settings = append(s.settings, setting("COMMIT_WITHIN", "30s"))
			}
			return p.on(ctx, s, func(ctx context.Context) error { return p.s6Held(ctx, s.label) })
		}, func(ctx context.Context, p *play) error {
			s := p.s6System("a "+policy, policy)
			return p.on(ctx, s, func(ctx context.Context) error { return p.s6Stopped(ctx, s.label, policy) })
		})
	}
	return p.together(ctx, parts...)
}

func (p *play) s6System(label, policy string) system {
	return system{
		label: label, gateway: tosssim.Options{Faults: []tosssim.Fault{{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(p.s6Latency())}}},
		settings: append(unlimited(),
			setting("ON_COMMIT_FAILURE", policy), setting("COMMIT_WITHIN", p.s6CommitWithin()), setting("ANSWER_WITHIN", 10*time.Second),
			setting("BREAKER_WINDOW", 0), setting("RATE_WAIT", 0), setting("RETRY_MAX", 0),
			setting("TOSS_CONFIRM_TIMEOUT", 15*time.Second), setting("TOSS_CANCEL_TIMEOUT", p.time(15*time.Second, 1500*time.Millisecond)),
			setting("TOSS_LOOKUP_TIMEOUT", p.time(5*time.Second, time.Second))),
	}
}

func (p *play) s6Latency() time.Duration { return p.time(3*time.Second, 1500*time.Millisecond) }

func (p *play) s6CommitWithin() time.Duration { return p.time(8*time.Second, 5*time.Second) }

// s6Flight confirms s6Callers orders and returns when all are at the gateway; wait lets them be answered, and returns
// their answers.
func (p *play) s6Flight(ctx context.Context, kind string) (wait func() []reply, err error) {
	release, err := p.held(p.s6Latency())
	if err != nil {
		return nil, err
	}
	before, done := p.at(tosssim.OpConfirm).Calls, make(chan []reply, 1)
	go func() { done <- p.volley(ctx, orders(kind, s6Callers)) }()
	err = p.awaits(ctx, "all are at the gateway", p.s6Latency(), func() bool { return p.at(tosssim.OpConfirm).Calls-before == s6Callers })
	return func() []reply {
		if err := release(); err != nil {
			p.broke("%v", err)
		}
		return <-done
	}, err
}

// s6Held: all 10 connections are held by sleepers at the moment of the commit, and for 3 s after it.
func (p *play) s6Held(ctx context.Context, label string) error {
	wait, err := p.s6Flight(ctx, "s6b")
	if err != nil {
		return err
	}
	var holders sync.WaitGroup
	sleep, wake := context.WithCancel(ctx)
	defer wake()
	released := make(chan struct{})
	holders.Go(func() {
		defer close(released)
		_ = p.rig.Session(sleep, `BEGIN`, `LOCK payments IN ACCESS EXCLUSIVE MODE`, `SELECT pg_sleep(120)`)
	})
	for range 20 {
		holders.Go(func() {
			for {
				select {
				case <-released:
					return
				default:
					_, _ = p.in.Read(ctx, "order-s6-nobody")
				}
			}
		})
	}
	err = p.awaits(ctx, "all connections sleep", p.s6Latency(), func() bool {
		return p.number(ctx, `paymentd_db_connections{pool="request",state="in_use"}`) == 10
	})
	holders.Go(func() {
		pause(ctx, p.time(3*time.Second, 2*time.Second)) // in which the commit waits
		wake()
	})
	replies := wait()
	holders.Wait()
	if err != nil {
		return err
	}
	if _, err := p.settles(ctx); err != nil {
		return err
	}
	paid, err := p.paid(ctx)
	p.draw(dots(label, replies[0].at, replies))
	p.told(label+", pool held: answered", "approved, then given back", tally(replies))
	p.equal(label+", pool held: cancels", "one each", int(p.at(tosssim.OpCancel).Calls), 0)
	p.equal(label+", pool held: PAID", "40 stuck for ever", paid, s6Callers)
	return err
}

// s6Stopped: the database stops before the commit and comes back after COMMIT_WITHIN.
func (p *play) s6Stopped(ctx context.Context, label, policy string) error {
	wait, err := p.s6Flight(ctx, "s6a")
	if err != nil {
		return err
	}
	if err := p.rig.Database.Kill(ctx); err != nil {
		return err
	}
	replies := wait()
	pause(ctx, p.s6CommitWithin())
	if err := p.rig.Database.Restart(ctx); err != nil {
		return err
	}
	took, err := p.settles(ctx)
	if err != nil {
		return err
	}
	paid, err := p.paid(ctx)
	if err != nil {
		return err
	}
	failed, err := p.rig.Count(ctx, `SELECT count(*) FROM payments WHERE status = 'FAILED'`)
	if err != nil {
		return err
	}
	p.draw(dots(label, replies[0].at, replies))
	p.must(label+", database stopped: answered", "approved, then given back", tally(replies), len(only(replies, "202 PENDING", "503 db_failed")) == s6Callers)
	p.told(label+", database stopped: settled after it is back", "by hand", took)
	cancels := int(p.rig.Toss.Ledger().Cancels)
	if policy == "hold" {
		p.equal(label+", database stopped: cancels", "one each", cancels, 0)
		p.equal(label+", database stopped: PAID", "-", paid, s6Callers)
		return nil
	}
	p.must(label+", database stopped: PAID + given back", "-", fmt.Sprintf("%d + %d", paid, failed), paid+failed == s6Callers && failed == cancels)
	return p.s6Truth(ctx, label, replies)
}

// s6Truth: who was told that the money went back has it back.
func (p *play) s6Truth(ctx context.Context, label string, replies []reply) error {
	lied := 0
	for _, r := range only(replies, "503 db_failed") {
		if e, _ := p.rig.Toss.Payment(r.order.PaymentKey); e.Balance != 0 || e.Cancels != 1 {
			lied++
		}
	}
	p.equal(label+", database stopped: told db_failed, and not given back", "-", lied, 0)
	crossed, err := p.rig.Text(ctx, `SELECT payment_key FROM payments WHERE status = 'PAID'`)
	n := 0
	for _, key := range crossed {
		if e, _ := p.rig.Toss.Payment(key); e.Balance == 0 {
			n++
		}
	}
	p.equal(label+", database stopped: PAID here and canceled there", "-", n, 0)
	return errors.Join(err, ctx.Err())
}
