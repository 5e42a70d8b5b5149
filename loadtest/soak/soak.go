package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/plot"
	"paymentd/loadtest/rig"
)

// soak is one run.
type soak struct {
	plan
	result
	rig *rig.Rig
	in  *rig.Instance
	say io.Writer

	mu      sync.Mutex
	answers map[string]int
}

// result is what soak.json holds.
type result struct {
	Seconds  float64        `json:"seconds"`
	Rate     int            `json:"confirmsPerSecond"`
	Confirms int            `json:"confirms"`
	Answers  map[string]int `json:"answers"`
	Faults   int            `json:"faults"`
	Ledger   string         `json:"ledger"`
	Grown    []growth       `json:"grown"`
	Broken   []string       `json:"broken"`
	Samples  []sample       `json:"samples"`
}

// sample is what paymentd said of itself. Calm: no fault was on, and the last one over for a while.
type sample struct {
	At          float64 `json:"at"`
	Calm        bool    `json:"calm"`
	Heap        float64 `json:"heapMiB"`
	Resident    float64 `json:"residentMiB"`
	Goroutines  float64 `json:"goroutines"`
	Descriptors float64 `json:"descriptors"`
	Connections float64 `json:"connections"`
}

// growth compares medians of the calm samples of the first and the last third.
type growth struct {
	What        string  `json:"what"`
	FirstMedian float64 `json:"first"`
	LastMedian  float64 `json:"last"`
	Ratio       float64 `json:"ratio"`
}

// fault is one kind of trouble, on for a third of a cycle.
type fault struct {
	name string
	toss []tosssim.Fault
	// down closes the gateway's port; deaf makes the shop refuse; locked holds the table of payments.
	down, deaf, locked bool
}

func faults() []fault {
	c := tosssim.OpConfirm
	return []fault{
		{name: "hang", toss: []tosssim.Fault{{Op: c, Hang: true}}},
		{name: "5xx", toss: []tosssim.Fault{{Op: c, Status: 503, Rate: 0.7}}},
		{name: "slow", toss: []tosssim.Fault{{Op: c, Latency: tosssim.Fixed(3 * time.Second)}}},
		{name: "answer lost", toss: []tosssim.Fault{{Op: c, Drop: tosssim.DropAfter, Rate: 0.3}}},
		{name: "gateway down", down: true},
		{name: "late work", toss: []tosssim.Fault{{Op: c, Late: tosssim.Duration(2 * time.Second), Drop: tosssim.DropBefore, Rate: 0.3}}},
		{name: "shop deaf", deaf: true},
		{name: "table locked", locked: true},
		{name: "lookups fail", toss: []tosssim.Fault{{Op: c, Drop: tosssim.DropAfter, Rate: 0.2}, {Op: tosssim.OpLookup, Status: 500, Rate: 0.5}}},
		{name: "declined", toss: []tosssim.Fault{{Op: c, Code: "REJECT_CARD_PAYMENT", Rate: 0.5}}},
	}
}

// confirm is the load, the faults and the samples.
func (s *soak) confirm(ctx context.Context) error {
	begin := time.Now()
	ctx, cancel := context.WithDeadline(ctx, begin.Add(s.length))
	defer cancel()
	var calls sync.WaitGroup
	defer calls.Wait()
	load := time.NewTicker(time.Second / time.Duration(s.rate))
	defer load.Stop()
	look := time.NewTicker(s.every)
	defer look.Stop()
	third := time.NewTicker(s.cycle / 3)
	defer third.Stop()
	turn, calmAt := 0, begin
	s.Rate = s.rate
	for {
		select {
		case <-ctx.Done():
			s.Seconds = time.Since(begin).Seconds()
			return s.quiet(context.WithoutCancel(ctx))
		case <-load.C:
			n := s.Confirms
			s.Confirms++
			calls.Go(func() { s.one(context.WithoutCancel(ctx), n) })
		case <-third.C:
			turn++
			switch turn % 3 {
			case 2:
				if err := s.trouble(ctx, faults()[s.Faults%len(faults())]); err != nil {
					return err
				}
				s.Faults++
				calmAt = time.Now().Add(s.length) // not before it ends
			case 0:
				if err := s.quiet(ctx); err != nil {
					return err
				}
				calmAt = time.Now().Add(s.cycle / 6)
			}
		case <-look.C:
			if err := s.sample(ctx, time.Since(begin), time.Now().After(calmAt)); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func (s *soak) one(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	a, err := s.in.Confirm(ctx, rig.Order{
		PaymentKey: fmt.Sprintf("test_soak_%d", n), OrderID: fmt.Sprintf("soak-%d", n), Amount: 15000, MemberID: fmt.Sprintf("m-%d", n%500),
		ReceiptEmail: "buyer@shop.example",
	})
	word := a.String()
	if err != nil {
		word = "no answer"
	}
	s.mu.Lock()
	s.answers[word]++
	s.mu.Unlock()
}

func (s *soak) trouble(ctx context.Context, f fault) error {
	if f.deaf {
		s.rig.Shop.Refuse(1)
	}
	if f.locked {
		go func() { // ends by itself, well within the statement time-out of the store
			_ = s.rig.Session(ctx, "BEGIN", "LOCK TABLE payments IN EXCLUSIVE MODE", "SELECT pg_sleep(2)", "ROLLBACK")
		}()
	}
	if err := s.rig.Toss.SetFaults(append(f.toss, pace())...); err != nil {
		return fmt.Errorf("fault %s: %w", f.name, err)
	}
	return s.rig.Toss.SetListening(!f.down)
}

// pace is a healthy gateway's latency.
func pace() tosssim.Fault {
	return tosssim.Fault{Op: tosssim.OpAny, Latency: tosssim.Latency{Min: tosssim.Duration(50 * time.Millisecond), Max: tosssim.Duration(300 * time.Millisecond)}}
}

func (s *soak) quiet(_ context.Context) error {
	s.rig.Shop.Refuse(0)
	if err := s.rig.Toss.SetFaults(pace()); err != nil {
		return fmt.Errorf("end of a fault: %w", err)
	}
	return s.rig.Toss.SetListening(true)
}

// sample reads paymentd's own figures.
func (s *soak) sample(ctx context.Context, at time.Duration, calm bool) error {
	m, err := s.in.Metrics(ctx)
	if err != nil {
		return err
	}
	const mib = 1 << 20
	now := sample{
		At: at.Seconds(), Calm: calm, Heap: m["go_memstats_heap_inuse_bytes"] / mib, Resident: m["process_resident_memory_bytes"] / mib,
		Goroutines: m["go_goroutines"], Descriptors: m["process_open_fds"],
	}
	for series, v := range m {
		if strings.HasPrefix(series, "paymentd_db_connections{") {
			now.Connections += v
		}
	}
	s.Samples = append(s.Samples, now)
	if len(s.Samples)%12 == 0 {
		fmt.Fprintf(s.say, "%4.0f s  %d confirms, %d faults, heap %.1f MiB, resident %.0f MiB, %.0f goroutines, %.0f connections\n",
			now.At, s.Confirms, s.Faults, now.Heap, now.Resident, now.Goroutines, now.Connections)
	}
	return nil
}

// books waits for recovery and compares the ledgers.
func (s *soak) books(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	err := rig.Await(within, "recovery", func() bool {
		_ = s.rig.Hasten(within)
		n, err := s.rig.Unfinished(within)
		return err == nil && n == 0 && len(s.rig.Toss.CallsOf(tosssim.CallQuery{Running: true})) == 0
	})
	if err != nil {
		s.Broken = append(s.Broken, err.Error())
	}
	l, err := s.rig.Ledger(ctx)
	if err != nil {
		return err
	}
	s.Ledger = l.String()
	if !l.Holds() || l.Doubt > 0 {
		s.Broken = append(s.Broken, s.Ledger)
	}
	wrong, err := s.rig.Notices(ctx)
	s.Broken = append(s.Broken, wrong...)
	s.Answers = s.answers
	return err
}

// mostGrowth is how much larger the last third may be: more than a pool or a cache that fills late, less than a leak.
const mostGrowth = 1.25

// judge compares the thirds.
func (s *soak) judge() {
	from := s.warm.Seconds()
	third := (s.Seconds - from) / 3
	blind := false
	for _, q := range quantities() {
		var first, last []float64
		for _, x := range s.Samples {
			switch {
			case !x.Calm || x.At < from:
			case x.At < from+third:
				first = append(first, q.of(x))
			case x.At > from+2*third:
				last = append(last, q.of(x))
			}
		}
		blind = len(first) == 0 || len(last) == 0
		g := growth{What: q.name, FirstMedian: median(first), LastMedian: median(last)}
		if g.FirstMedian > 0 {
			g.Ratio = g.LastMedian / g.FirstMedian
		}
		s.Grown = append(s.Grown, g)
		if !blind && (g.Ratio == 0 || g.Ratio > mostGrowth) {
			s.Broken = append(s.Broken, fmt.Sprintf("%s: %.1f in the first third, %.1f in the last", q.name, g.FirstMedian, g.LastMedian))
		}
	}
	if blind {
		s.Broken = append(s.Broken, "growth: no calm sample in the first third or in the last; run longer, or sample more often (--every)")
	}
}

type quantity struct {
	name string
	of   func(sample) float64
}

func quantities() []quantity {
	return []quantity{
		{"heap, MiB", func(x sample) float64 { return x.Heap }},
		{"resident memory, MiB", func(x sample) float64 { return x.Resident }},
		{"goroutines", func(x sample) float64 { return x.Goroutines }},
		{"file descriptors", func(x sample) float64 { return x.Descriptors }},
		{"database connections", func(x sample) float64 { return x.Connections }},
	}
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func (s *soak) chart() plot.Chart {
	c := plot.Chart{
		Title:  fmt.Sprintf("%d confirms in %.0f s, %d faults on and off", s.Confirms, s.Seconds, s.Faults),
		XLabel: "seconds", YLabel: "see the legend",
	}
	for _, q := range quantities() {
		series := plot.Series{Name: q.name, Kind: plot.Line}
		for _, x := range s.Samples {
			series.Points = append(series.Points, plot.Point{X: x.At, Y: q.of(x)})
		}
		c.Series = append(c.Series, series)
	}
	return c
}

func (s *soak) print() {
	table := tabwriter.NewWriter(s.say, 0, 4, 2, ' ', 0)
	fmt.Fprintf(table, "\n%d confirms in %.0f s, %d faults\n%s\n\n", s.Confirms, s.Seconds, s.Faults, s.Ledger)
	for _, word := range slices.Sorted(maps.Keys(s.Answers)) {
		fmt.Fprintf(table, "%s\t%d\n", word, s.Answers[word])
	}
	fmt.Fprint(table, "\nmedian of calm samples\tfirst third\tlast third\tratio\n")
	for _, g := range s.Grown {
		fmt.Fprintf(table, "%s\t%.1f\t%.1f\t%.2f\n", g.What, g.FirstMedian, g.LastMedian, g.Ratio)
	}
	for _, b := range s.Broken[:min(len(s.Broken), 20)] {
		fmt.Fprintf(table, "BROKEN\t%s\n", b)
	}
	_ = table.Flush()
}
