package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
	"paymentd/loadtest/baseline"
	"paymentd/loadtest/rig"
)

// s1Waves are the 50 and the 100 of the report; they share 30 members.
func s1Waves(kind string) [2][]rig.Order {
	all := orders(kind, 150)
	for i := range all {
		all[i].MemberID = fmt.Sprintf("member-%d", i%30)
	}
	return [2][]rig.Order{all[:50], all[50:]}
}

func s1Latency(p *play) time.Duration { return p.time(5*time.Second, 1500*time.Millisecond) }

// s1 is a gateway that takes 5 s, in front of two architectures that fail and ours.
func s1(ctx context.Context, p *play) error {
	p.chart.XLabel, p.chart.YLabel = "seconds since the first call", "approved of 150"
	err := p.together(ctx,
		func(ctx context.Context, p *play) error { return p.s1Baseline(ctx, baseline.InsideTransaction) },
		func(ctx context.Context, p *play) error { return p.s1Baseline(ctx, baseline.AfterCommit) },
	)
	if err != nil {
		return err
	}
	gateway := tosssim.Options{Faults: []tosssim.Fault{{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(s1Latency(p))}}}
	return p.inTurn(ctx,
		func(ctx context.Context, p *play) error {
			s := system{label: "ours", settings: []string{setting("RATE_LIMIT", 0), setting("BULKHEAD", 0)}, gateway: gateway}
			return p.on(ctx, s, func(ctx context.Context) error { return p.s1Ours(ctx, "ours", 0) })
		},
		func(ctx context.Context, p *play) error {
			s := system{label: "S1b", gateway: gateway}
			return p.on(ctx, s, func(ctx context.Context) error { return p.s1Ours(ctx, "S1b", 30) })
		},
	)
}

// s1Play is the load of S1 at whatever confirms.
func (p *play) s1Play(ctx context.Context, kind string, volley func([]rig.Order) []reply) (replies []reply, begin time.Duration) {
	waves := s1Waves(kind)
	begun := time.Now()
	begin = time.Since(p.begun)
	var callers sync.WaitGroup
	answers := make([][]reply, 2)
	for i, wave := range waves {
		if i > 0 {
			pause(ctx, time.Until(begun.Add(p.time(90*time.Second, 7*time.Second))))
		}
		callers.Go(func() { answers[i] = volley(wave) })
	}
	callers.Wait()
	return append(answers[0], answers[1]...), begin
}

// s1Ours counts answers and measures what we add to the gateway's time. perSecond is the limiter, 0: off.
func (p *play) s1Ours(ctx context.Context, label string, perSecond int) error {
	latency := s1Latency(p)
	watched, watching := make(chan int, 1), make(chan struct{})
	var looks atomic.Int64
	go func() { watched <- p.s1Watch(ctx, watching, &looks) }()
	replies, begin := p.s1Play(ctx, "s1-"+label, func(wave []rig.Order) []reply {
		if !p.short() {
			return p.volley(ctx, wave)
		}
		release, err := p.held(latency)
		all := make(chan []reply, 1)
		seen := looks.Load()
		go func() { all <- p.volley(ctx, wave) }()
		if err == nil {
			err = p.awaits(ctx, "a look at the whole wave", time.Minute, func() bool { return looks.Load() > seen })
			err = errors.Join(err, release())
		}
		if err != nil {
			p.broke("%v", err)
		}
		return <-all
	})
	close(watching)
	inUse := <-watched
	ok := only(replies, "200 PAID")
	p.draw(grown(label, begin, ok))
	p.must(label+": approved", "150 of 150", fmt.Sprintf("%d of 150", len(ok)), len(ok) == 150)
	for i := range ok {
		ok[i].Took -= latency
	}
	worst := quantile(ok, 1)
	if perSecond == 0 {
		own := quantile(ok, 0.99)
		p.goal(label+": own time on top of the gateway, p50 / p99 / longest", "about 1s", fmt.Sprintf("%s / %s / %s", quantile(ok, 0.5), own, worst), own <= 100*time.Millisecond)
	} else {
		wait := time.Duration(float64(100-5) / float64(perSecond) * float64(time.Second)).Round(10 * time.Millisecond)
		p.goal(label+": the last of the 100, above the gateway and its limiter wait of "+wait.String(), "-", worst-wait, worst-wait <= 100*time.Millisecond)
	}
	if perSecond == 0 || !p.short() {
		p.equal(label+": connections in use while all wait for the gateway", "-", inUse, 0)
	}
	p.equal(label+": waits for a connection that ended in vain", "-", p.number(ctx, `paymentd_db_acquire_timeouts_total{pool="request"}`), 0)
	return nil
}

// s1Watch looks at the pool whenever all callers of a wave are at the gateway, and returns the most connections that it
// saw in use.
func (p *play) s1Watch(ctx context.Context, quit <-chan struct{}, looks *atomic.Int64) (most int) {
	for {
		select {
		case <-quit:
			if looks.Load() == 0 {
				return -1 // never were all of a wave at the gateway
			}
			return most
		case <-time.After(20 * time.Millisecond):
		}
		before := p.at(tosssim.OpConfirm)
		if before.Running != 50 && before.Running != 100 {
			continue
		}
		used := p.number(ctx, `paymentd_db_connections{pool="request",state="in_use"}`)
		if after := p.at(tosssim.OpConfirm); after.Running == before.Running && after.Calls == before.Calls {
			most = max(most, used)
			looks.Add(1)
		}
	}
}

// s1Baseline plays the same load at a server that is not ours, with a gateway and a database of its own.
func (p *play) s1Baseline(ctx context.Context, a baseline.Architecture) (err error) {
	slow := tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(s1Latency(p))}
	toss, err := tosssim.New(tosssim.Options{Faults: []tosssim.Fault{slow}}).Listen(context.WithoutCancel(ctx), "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, toss.Close()) }()
	db, err := devdb.Start(ctx, devdb.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Stop()) }()
	s, err := baseline.Open(ctx, baseline.Options{
		Architecture: a, DSN: db.DSN("postgres"), Gateway: toss.URL(), Secret: rig.TossSecret, Conns: 10, Wait: p.time(30*time.Second, 3*time.Second),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p.say("%s: up", a)
	replies, begin := p.s1Play(ctx, "s1", func(wave []rig.Order) []reply { return p.at3rd(ctx, s.URL+"/confirm", wave) })
	stuck, err := s.Stuck(ctx)
	if err != nil {
		return err
	}
	ledger, ok := toss.Ledger(), only(replies, "200")
	p.draw(grown(string(a), begin, ok))
	sent, back := int(toss.Counters().Ops[tosssim.OpConfirm].Calls), int(ledger.Cancels)
	label, theirs, most := "baseline, "+string(a), "20 of 150", 75
	if p.short() {
		most = 120 // waits of 3 s are stretched by a busy machine, so that more find a connection
	}
	if a == baseline.AfterCommit {
		theirs = "27 of 150"
		p.must(label+": approved, then given back", "123", back, back > 150-most)
		p.told(label+": stuck in progress for ever", "40", stuck)
	} else {
		p.must(label+": never reached the gateway", "130", 150-sent, 150-sent > 150-most)
	}
	p.must(label+": approved", theirs, fmt.Sprintf("%d of 150", len(ok)), len(ok) < most)
	return nil
}

// at3rd confirms all at once at a server that is not ours.
func (p *play) at3rd(ctx context.Context, url string, all []rig.Order) []reply {
	replies := make([]reply, len(all))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	defer client.CloseIdleConnections()
	var callers sync.WaitGroup
	for i, o := range all {
		callers.Go(func() {
			r := reply{order: o, at: time.Since(p.begun)}
			r.Status, r.err = post(ctx, client, url, o)
			r.Took = time.Since(p.begun) - r.at
			replies[i] = r
		})
	}
	callers.Wait()
	return replies
}

// post sends an order as JSON with the gateway's key, which ours and baselines ignore.
func post(ctx context.Context, client *http.Client, url string, o rig.Order) (int, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.SetBasicAuth(rig.TossSecret, "")
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
