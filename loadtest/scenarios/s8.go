package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/plot"
	"paymentd/loadtest/rig"
)

// s8Gateway is the gateway's own time; it is never scaled, since the shape of the curve hangs on it.
const s8Gateway = 300 * time.Millisecond

// step is one size of the crowd, each of whom confirms again as soon as it is answered.
type step struct {
	callers       int
	perSecond     float64
	p50, p95, p99 time.Duration
	cpu           float64 // paymentd's share of one CPU
	other         int     // answers that are not the expected word
}

// s8 raises the crowd in front of a gateway of 0.3 s with every limit lifted.
func s8(ctx context.Context, p *play) error {
	p.chart.XLabel, p.chart.YLabel, p.chart.Log = "callers at once", "per second; milliseconds", true
	gateway := tosssim.Options{Faults: []tosssim.Fault{{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(s8Gateway)}}}
	return p.on(ctx, system{label: "S8", settings: unlimited(), gateway: gateway}, p.s8)
}

func (p *play) s8(ctx context.Context) error {
	if err := p.s8Memory(ctx, p.size(300, 60)); err != nil {
		return err
	}
	crowds := []int{50, 100, 200, 300}
	if p.short() {
		crowds = []int{10, 50}
	}
	if p.long {
		crowds = append(crowds, 1000, 3000)
	}
	var steps []step
	for _, n := range crowds {
		s := p.s8Step(ctx, n, "200 PAID", func(worker, i int) rig.Order {
			id := fmt.Sprintf("s8-%d-%d-%d", n, worker, i)
			return rig.Order{PaymentKey: "test_" + id, OrderID: "order-" + id, Amount: amount}
		})
		steps = append(steps, s)
		p.s8Row("confirm", s, float64(n)/s8Gateway.Seconds())
	}
	p.s8Knee(steps)
	first, last := crowds[0], crowds[len(crowds)-1]
	p.s8Replays(ctx, first, last)
	return p.s8Refusals(ctx, first, last)
}

// s8Step lets n callers confirm in a closed loop and measures what ended after the first fifth.
func (p *play) s8Step(ctx context.Context, n int, want string, next func(worker, i int) rig.Order) step {
	length := p.time(12*time.Second, 1500*time.Millisecond)
	begin, s := time.Now(), step{callers: n}
	from, to := begin.Add(length/5), begin.Add(length)
	var mu sync.Mutex
	var all []reply
	var callers sync.WaitGroup
	for worker := range n {
		callers.Go(func() {
			for i := 0; time.Now().Before(to) && ctx.Err() == nil; i++ {
				r := p.confirm(ctx, next(worker, i))
				mu.Lock()
				if r.word() != want {
					s.other++
				}
				if now := time.Now(); now.After(from) && now.Before(to) {
					all = append(all, r)
				}
				mu.Unlock()
			}
		})
	}
	pause(ctx, time.Until(from))
	cpu := p.metrics(ctx)["process_cpu_seconds_total"]
	pause(ctx, time.Until(to))
	s.cpu = (p.metrics(ctx)["process_cpu_seconds_total"] - cpu) / to.Sub(from).Seconds()
	callers.Wait()
	s.perSecond = float64(len(all)) / to.Sub(from).Seconds()
	s.p50, s.p95, s.p99 = quantile(all, 0.5), quantile(all, 0.95), quantile(all, 0.99)
	p.say("%d callers: %.0f per second, p95 %s", n, s.perSecond, s.p95)
	return s
}

// s8Row is one step in the table; ideal is the rate that the gateway's time allows, 0: none.
func (p *play) s8Row(what string, s step, ideal float64) {
	said := fmt.Sprintf("%.0f per s, p50 %s, p95 %s, p99 %s, %.2f CPU", s.perSecond, s.p50, s.p95, s.p99, s.cpu)
	if ideal > 0 {
		said += fmt.Sprintf(", %.0f %% of %.0f", 100*s.perSecond/ideal, ideal)
	}
	p.told(fmt.Sprintf("%s, %d callers", what, s.callers), "never measured", said)
	p.equal(fmt.Sprintf("%s, %d callers: other answers", what, s.callers), "-", s.other, 0)
}

// s8Knee is the first step that falls 10 % short of callers ÷ 0.3 s.
func (p *play) s8Knee(steps []step) {
	rate := plot.Series{Name: "confirms per second", Kind: plot.Line}
	ideal := plot.Series{Name: "callers / 0.3 s", Kind: plot.Line}
	p95 := plot.Series{Name: "p95 in ms", Kind: plot.Line}
	knee, slow, below := "above "+fmt.Sprint(steps[len(steps)-1].callers), 0, 0
	for _, s := range steps {
		x, most := float64(s.callers), float64(s.callers)/s8Gateway.Seconds()
		rate.Points = append(rate.Points, plot.Point{X: x, Y: s.perSecond})
		ideal.Points = append(ideal.Points, plot.Point{X: x, Y: most})
		p95.Points = append(p95.Points, plot.Point{X: x, Y: float64(s.p95.Milliseconds())})
		if s.perSecond < 0.9*most {
			if knee == "above "+fmt.Sprint(steps[len(steps)-1].callers) {
				knee = fmt.Sprintf("between %d and %d callers", below, s.callers)
			}
			continue
		}
		below = s.callers
		if s.p95 > s8Gateway+s8Gateway/10 {
			slow++
		}
	}
	p.draw(rate)
	p.draw(ideal)
	p.draw(p95)
	p.told("knee (10 % short of callers / 0.3 s)", "about 450 per s on 10 CPUs, another team's", knee)
	p.goal("steps below the knee with a p95 above 0.3 s + 10 %", "-", slow, slow == 0)
}

// s8Replays asks for payments that are PAID already.
func (p *play) s8Replays(ctx context.Context, crowds ...int) {
	known := orders("s8-known", 50)
	p.volley(ctx, known)
	for _, n := range crowds {
		p.s8Row("replay", p.s8Step(ctx, n, "200 PAID", func(worker, i int) rig.Order { return known[(worker+i)%len(known)] }), 0)
	}
}

// s8Refusals asks while the breaker is open.
func (p *play) s8Refusals(ctx context.Context, crowds ...int) error {
	if err := p.force(ctx, "open"); err != nil {
		return err
	}
	for _, n := range crowds {
		p.s8Row("open breaker", p.s8Step(ctx, n, "503 pg_unavailable", func(worker, i int) rig.Order {
			id := fmt.Sprintf("s8-no-%d-%d-%d", n, worker, i)
			return rig.Order{PaymentKey: "test_" + id, OrderID: "order-" + id, Amount: amount}
		}), 0)
	}
	return p.force(ctx, "none")
}

// s8Memory is what one more confirm costs that waits at the gateway, its connections included: heap and stacks after a
// collection, with a quarter of the crowd waiting and with all of it.
func (p *play) s8Memory(ctx context.Context, n int) error {
	release, err := p.held(p.time(time.Second, time.Second))
	if err != nil {
		return err
	}
	all, done := orders("s8-wait", n), make(chan []reply, 2)
	var live [2]memory
	for i, some := range [][]rig.Order{all[:n/4], all[n/4:]} {
		want := []int{n / 4, n}[i]
		go func() { done <- p.volley(ctx, some) }()
		if err := p.awaits(ctx, "all wait at the gateway", 8*time.Second, func() bool { return int(p.at(tosssim.OpConfirm).Running) == want }); err != nil {
			return err
		}
		live[i] = p.s8Live(ctx)
	}
	running := int(p.at(tosssim.OpConfirm).Running)
	if err := release(); err != nil {
		return err
	}
	replies := slices.Concat(<-done, <-done)
	per := 1 / 1024.0 / float64(n-n/4)
	heap, stacks, routines := (live[1].heap-live[0].heap)*per, (live[1].stacks-live[0].stacks)*per, (live[1].routines-live[0].routines)*1024*per
	p.goal(fmt.Sprintf("memory per waiting confirm, %d of %d still waiting", running, n), "-",
		fmt.Sprintf("%.1f KiB: heap %.1f, stacks %.1f of %.1f goroutines", heap+stacks, heap, stacks, routines), heap+stacks <= 40 && running == n)
	p.equal("waiting confirms that were not paid", "-", n-len(only(replies, "200 PAID")), 0)
	return p.rig.Toss.SetFaults(tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(s8Gateway)})
}

// memory is what lives in paymentd, in bytes, and its goroutines.
type memory struct {
	heap, stacks, routines float64
}

// s8Live is the memory after collections: each of them halves stacks that have become too large.
func (p *play) s8Live(ctx context.Context) memory {
	for range 4 {
		_, _ = p.in.Call(ctx, rig.Request{Method: http.MethodGet, Path: "/debug/pprof/heap?gc=1", Private: true})
	}
	m := p.metrics(ctx)
	return memory{m["go_memstats_heap_alloc_bytes"], m["go_memstats_stack_inuse_bytes"], m["go_goroutines"]}
}
