package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/plot"
	"paymentd/loadtest/rig"
)

const amount = 15000

// reply is what one caller got. At is when it asked, since the scenario began.
type reply struct {
	rig.Answer

	order rig.Order
	at    time.Duration
	err   error
}

// word is the status with the problem's code or the payment's state.
func (r reply) word() string {
	if r.err != nil {
		return "no answer"
	}
	return r.String()
}

// orders are n new ones; kind keeps the parts of a scenario apart.
func orders(kind string, n int) []rig.Order {
	all := make([]rig.Order, n)
	for i := range all {
		all[i] = rig.Order{PaymentKey: fmt.Sprintf("test_%s_%d", kind, i), OrderID: fmt.Sprintf("order-%s-%d", kind, i), Amount: amount}
	}
	return all
}

// confirm confirms once.
func (p *play) confirm(ctx context.Context, o rig.Order) reply {
	r := reply{order: o, at: time.Since(p.begun)}
	begin := time.Now()
	r.Answer, r.err = p.in.Confirm(ctx, o)
	r.Took = time.Since(begin)
	return r
}

// volley confirms all at once.
func (p *play) volley(ctx context.Context, all []rig.Order) []reply { return p.pace(ctx, all, 0) }

// pace begins a confirm every so often, whatever the answers take, and returns when all have ended.
func (p *play) pace(ctx context.Context, all []rig.Order, every time.Duration) []reply {
	replies := make([]reply, len(all))
	var callers sync.WaitGroup
	begin := time.Now()
	for i, o := range all {
		if every > 0 {
			pause(ctx, time.Until(begin.Add(time.Duration(i)*every)))
		}
		callers.Go(func() { replies[i] = p.confirm(ctx, o) })
	}
	callers.Wait()
	return replies
}

// connect opens so many of the checkout's connections: a shop that has buyers has them, and what a hand-shake costs is not
// the time of an answer.
func (p *play) connect(ctx context.Context, n int) error {
	errs := make([]error, n)
	var callers sync.WaitGroup
	for i := range n {
		callers.Go(func() {
			a, err := p.in.Read(ctx, "order-of-nobody")
			if err == nil && a.Status != http.StatusNotFound {
				err = fmt.Errorf("read of no order: %s", a)
			}
			errs[i] = err
		})
	}
	callers.Wait()
	return errors.Join(errs...)
}

// tally counts answers by word, the most frequent first.
func tally(replies []reply) string {
	n := map[string]int{}
	for _, r := range replies {
		n[r.word()]++
	}
	var words []string
	for word := range n {
		words = append(words, word)
	}
	slices.SortFunc(words, func(a, b string) int {
		if n[a] != n[b] {
			return n[b] - n[a]
		}
		return strings.Compare(a, b)
	})
	for i, word := range words {
		words[i] = fmt.Sprintf("%d × %s", n[word], word)
	}
	return strings.Join(words, ", ")
}

// only are the replies with one of the words.
func only(replies []reply, words ...string) []reply {
	var some []reply
	for _, r := range replies {
		if slices.Contains(words, r.word()) {
			some = append(some, r)
		}
	}
	return some
}

// quantile is the q-th of the waiting times.
func quantile(replies []reply, q float64) time.Duration {
	took := make([]time.Duration, 0, len(replies))
	for _, r := range replies {
		took = append(took, r.Took)
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	at := int(math.Ceil(q*float64(len(took)))) - 1
	return took[max(at, 0)].Round(100 * time.Microsecond)
}

// dots are the waiting times in seconds over the time at which they began, since begin.
func dots(name string, begin time.Duration, replies []reply) plot.Series {
	s := plot.Series{Name: name, Kind: plot.Dots}
	for _, r := range replies {
		s.Points = append(s.Points, plot.Point{X: (r.at - begin).Seconds(), Y: r.Took.Seconds()})
	}
	return s
}

// grown is how many of the replies had come since begin.
func grown(name string, begin time.Duration, replies []reply) plot.Series {
	s := plot.Series{Name: name, Kind: plot.Line, Points: []plot.Point{{}}}
	for _, r := range replies {
		s.Points = append(s.Points, plot.Point{X: (r.at + r.Took - begin).Seconds()})
	}
	slices.SortFunc(s.Points, func(a, b plot.Point) int { return int(1e6 * (a.X - b.X)) })
	for i := range s.Points {
		s.Points[i].Y = float64(i)
	}
	return s
}

// metrics reads /metrics. What cannot be read breaks the scenario.
func (p *play) metrics(ctx context.Context) map[string]float64 {
	all, err := p.in.Metrics(ctx)
	if err != nil {
		p.broke("metrics cannot be read: %v", err)
	}
	return all
}

// number is one series as a whole number. A series that does not exist breaks the scenario.
func (p *play) number(ctx context.Context, series string) int {
	v, found := p.metrics(ctx)[series]
	if !found {
		p.broke("metrics lack %s", series)
		return -1
	}
	return int(v)
}

// moves counts the breaker's transitions.
func (p *play) moves(ctx context.Context, from, to string) int {
	return p.number(ctx, fmt.Sprintf(`paymentd_breaker_transitions_total{from=%q,to=%q}`, from, to))
}

// results counts what the breaker heard.
func (p *play) results(ctx context.Context, kind string) int {
	return p.number(ctx, fmt.Sprintf(`paymentd_breaker_results_total{result=%q}`, kind))
}

// is reports whether the breaker is in a state.
func (p *play) is(ctx context.Context, state string) bool {
	return p.number(ctx, fmt.Sprintf(`paymentd_breaker_state{state=%q}`, state)) == 1
}

// force is the operator's hand at the breaker: "open" or "none".
func (p *play) force(ctx context.Context, word string) error {
	a, err := p.in.Call(ctx, rig.Request{
		Method: http.MethodPost, Path: "/breaker", Secret: rig.OperatorSecret, Body: `{"force":"` + word + `"}`, Private: true,
	})
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("force the breaker: %s", a)
	}
	return err
}

// at are the counts of one operation at the gateway.
func (p *play) at(op string) tosssim.Count { return p.rig.Toss.Counters().Ops[op] }

// paid counts PAID rows.
func (p *play) paid(ctx context.Context) (int, error) {
	return p.rig.Count(ctx, `SELECT count(*) FROM payments WHERE status = 'PAID'`)
}
