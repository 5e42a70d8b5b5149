package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

const (
	callers = 10
	amount  = 15000
	// healWithin is how long recovery has after the faults, leases and late work of the gateway included.
	healWithin = 3 * time.Minute
)

// counts are what happened.
type counts struct {
	Confirms     int `json:"confirms"`
	Sigkill      int `json:"sigkill"`
	Sigterm      int `json:"sigterm"`
	Pauses       int `json:"pauses"`
	DBKills      int `json:"databaseKills"`
	DBRestarts   int `json:"databaseRestarts"`
	Disconnects  int `json:"disconnects"`
	Locks        int `json:"locks"`
	Crowds       int `json:"crowds"`
	GatewayDowns int `json:"gatewayDowns"`
	Paid         int `json:"paid"`
	Returned     int `json:"returned"`
	// Narrow counts callers who were told PAID for a payment that ended CANCELED (docs: ON_COMMIT_FAILURE=cancel).
	Narrow int `json:"narrow"`
}

type countRow struct {
	name string
	n    int
}

func (c *counts) rows() []countRow {
	return []countRow{
		{"confirms", c.Confirms}, {"SIGKILL", c.Sigkill}, {"SIGTERM", c.Sigterm}, {"pauses", c.Pauses}, {"database kills", c.DBKills},
		{"database restarts", c.DBRestarts}, {"connections broken", c.Disconnects}, {"locks", c.Locks}, {"connections exhausted", c.Crowds},
		{"gateway down", c.GatewayDowns}, {"payments paid", c.Paid}, {"given back", c.Returned}, {"paid, then canceled", c.Narrow},
	}
}

func (c *counts) add(d counts) {
	c.Confirms += d.Confirms
	c.Sigkill += d.Sigkill
	c.Sigterm += d.Sigterm
	c.Pauses += d.Pauses
	c.DBKills += d.DBKills
	c.DBRestarts += d.DBRestarts
	c.Disconnects += d.Disconnects
	c.Locks += d.Locks
	c.Crowds += d.Crowds
	c.GatewayDowns += d.GatewayDowns
	c.Paid += d.Paid
	c.Returned += d.Returned
	c.Narrow += d.Narrow
}

// result is one round.
type result struct {
	counts
	Seed       uint64
	Instances  int
	Healed     time.Duration
	Ledger     string
	Violations []string
}

func (r result) String() string {
	var parts []string
	for _, row := range r.rows() {
		if row.n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", row.name, row.n))
		}
	}
	return fmt.Sprintf("%d instances, %s; healed in %s; %s", r.Instances, strings.Join(parts, ", "), r.Healed.Round(10*time.Millisecond), r.Ledger)
}

// told is what one caller was answered.
type told struct {
	order  rig.Order
	answer rig.Answer
}

// round is one run of S10.
type round struct {
	plan
	number uint64
	out    io.Writer
	rig    *rig.Rig
	mixed  []tosssim.Fault
	// cancels says that an instance gives back what it cannot save.
	cancels bool
	begin   time.Time

	mu     sync.Mutex
	result result
	told   []told
}

func newRound(p plan, seed uint64, out io.Writer) *round {
	return &round{plan: p, number: seed, out: out, begin: time.Now(), result: result{Seed: seed}}
}

// rng is the source of one actor: what one draws does not depend on the pace of the others.
func (r *round) rng(actor uint64) *rand.Rand {
	return rand.New(rand.NewPCG(r.number, actor))
}

// did counts and, with -v, tells one event.
func (r *round) did(n *int, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
	if r.verbose {
		fmt.Fprintf(r.out, "  %7.3fs %s\n", time.Since(r.begin).Seconds(), what)
	}
}

func (r *round) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Violations = append(r.result.Violations, fmt.Sprintf(format, args...))
}

// run starts the system, lets everything fail, heals it and looks. An error is one of the machine, no violation.
func (r *round) run(ctx context.Context) (res result, err error) {
	rng := r.rng(7)
	n := r.fewest + rng.IntN(r.most-r.fewest+1)
	shared, own := settings(rng, n)
	r.mixed = mix(rng)
	r.cancels = slices.ContainsFunc(own, func(set []string) bool { return slices.Contains(set, "PAYMENTD_ON_COMMIT_FAILURE=cancel") })
	r.rig, err = rig.Start(ctx, rig.Options{
		Program: r.program, Settings: shared, Instances: own, Gateway: tosssim.Options{Seed: r.number},
		Database: devdb.Options{Settings: map[string]string{"max_connections": "80"}},
	})
	if err != nil {
		return r.result, err
	}
	defer func() {
		if closed := r.rig.Close(); err == nil {
			err = closed
		}
	}()
	r.result.Instances = n
	if err := r.storm(ctx); err != nil {
		return r.result, err
	}
	if err := r.heal(ctx); err != nil {
		return r.result, err
	}
	if err := r.check(ctx); err != nil {
		return r.result, err
	}
	if len(r.result.Violations) > 0 {
		return r.result, r.keep(ctx)
	}
	return r.result, nil
}

// storm is the time of the faults: callers, killers, and who breaks the rest.
func (r *round) storm(ctx context.Context) error {
	if err := r.rig.Toss.SetFaults(r.mixed...); err != nil {
		return err
	}
	r.rig.Shop.Refuse(0.1)
	ctx, calm := context.WithTimeout(ctx, 8*r.spread)
	defer calm()
	var load, evil sync.WaitGroup
	for c := range callers {
		load.Go(func() { r.call(ctx, r.rng(uint64(100+c)), c) })
	}
	for i, in := range r.rig.Instances {
		evil.Go(func() { r.kill(ctx, r.rng(uint64(200+i)), in) })
	}
	evil.Go(func() { r.harm(ctx, r.rng(300)) })
	load.Wait()
	calm()
	evil.Wait()
	return nil
}

// call is one checkout: its share of the confirms, of a fifth as many orders, some with a second paymentKey and some
// with another amount.
func (r *round) call(ctx context.Context, rng *rand.Rand, caller int) {
	share := r.confirms / callers
	if caller < r.confirms%callers {
		share++
	}
	pause := r.spread / time.Duration(max(share, 1))
	for range share {
		o := r.order(rng)
		in := r.rig.Instances[rng.IntN(len(r.rig.Instances))]
		wait := time.Duration(float64(pause) * (0.5 + rng.Float64()))
		// Where it goes is drawn; that it goes somewhere is not.
		for ctx.Err() == nil && in.URL() == "" {
			sleep(ctx, 20*time.Millisecond)
		}
		if ctx.Err() != nil {
			return
		}
		begin := time.Now()
		a, err := in.Confirm(context.WithoutCancel(ctx), o)
		r.mu.Lock()
		r.result.Confirms++
		if err == nil {
			r.told = append(r.told, told{o, a})
		}
		r.mu.Unlock()
		sleep(ctx, wait-time.Since(begin))
	}
}

func (r *round) order(rng *rand.Rand) rig.Order {
	n := rng.IntN(max(r.confirms/5, 1))
	o := rig.Order{
		PaymentKey: fmt.Sprintf("test_chaos%d_%d_1", r.number, n), OrderID: fmt.Sprintf("order-%d-%d", r.number, n), Amount: amount,
		MemberID: fmt.Sprintf("m-%d", n%7), ReceiptEmail: "buyer@shop.example",
	}
	switch rng.IntN(8) {
	case 0:
		o.PaymentKey += "9"
	case 1:
		o.Amount -= 1000
	}
	return o
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// keep writes what a person needs to find the cause.
func (r *round) keep(ctx context.Context) error {
	dir := filepath.Join(r.logs, fmt.Sprint("seed-", r.number))
	if err := r.rig.Logs(dir); err != nil {
		return err
	}
	lines, err := r.rig.Text(ctx, `SELECT p.order_id || ' ' || p.payment_key || ' ' || p.status || ' ' || p.failure_code || ' v' || p.version
		|| ' holds=' || p.holds_order || ' sent=' || p.maybe_sent || ' due=' || COALESCE(p.due_at::text, '-') || ' told=' || p.told || ' events='
		|| COALESCE((SELECT string_agg(e.version || ':' || e.from_status || '>' || e.to_status || '/' || e.actor || '/' || e.reason, ' | ' ORDER BY version)
			FROM payment_events AS e WHERE e.payment_id = p.id), '') FROM payments AS p ORDER BY p.id`)
	for _, line := range lines {
		fmt.Fprintln(r.out, "   ", line)
	}
	fmt.Fprintln(r.out, "  logs in", dir)
	return err
}
