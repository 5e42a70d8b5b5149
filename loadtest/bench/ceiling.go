package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"paymentd/loadtest/load"
	"paymentd/loadtest/rig"
)

// cell is one measurement of one paymentd. Times are milliseconds.
type cell struct {
	Name      string  `json:"name"`
	Clients   int     `json:"clients"`
	PerSecond float64 `json:"perSecond"`
	P50       float64 `json:"p50"`
	P95       float64 `json:"p95"`
	P99       float64 `json:"p99"`
	// Own is the median of app + db in Server-Timing.
	Own float64 `json:"own"`
	// CPU is paymentd's part of all cores; Allocations counts those of the process, notices included, per confirm.
	CPU         float64 `json:"cpu"`
	Allocations float64 `json:"allocations"`
	// Spent and SpentByDB are milliseconds of processor time per confirm: paymentd's and PostgreSQL's.
	Spent     float64 `json:"spent"`
	SpentByDB float64 `json:"spentByDB"`
	// OwnRatio and BareRatio are PerSecond ÷ pgbench's in the same round; 0 without pgbench.
	OwnRatio  float64 `json:"ownRatio"`
	BareRatio float64 `json:"bareRatio"`
}

// round is every measurement of S9 once; Own and Bare are pgbench's transactions per second.
type round struct {
	Own   float64 `json:"own"`
	Bare  float64 `json:"bare"`
	Cells []cell  `json:"cells"`
}

// rounds9 is S9: all in turn, so that whatever else the machine does meets all alike.
func (b *bench) rounds9(ctx context.Context) (all []round, err error) {
	if b.pg == nil {
		b.say("there is no pgbench beside this PostgreSQL: no ratios")
	}
	for i := range b.rounds {
		r, err := b.round9(ctx, i)
		if err != nil {
			return all, fmt.Errorf("round %d: %w", i+1, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func (b *bench) round9(ctx context.Context, i int) (r round, err error) {
	if b.pg != nil {
		if r.Own, err = b.pgbenched(ctx, "own"); err != nil {
			return r, err
		}
		if r.Bare, err = b.pgbenched(ctx, "bare"); err != nil {
			return r, err
		}
		b.say("round %d of %d: pgbench own %.0f/s, bare %.0f/s", i+1, b.rounds, r.Own, r.Bare)
	}
	for _, clients := range b.clients {
		for j := range b.variants {
			// Each is as often first as last.
			which := (i + j) % len(b.variants)
			c, err := b.confirms(ctx, which, clients)
			if err != nil {
				return r, fmt.Errorf("%s, %d clients: %w", b.variants[which].name, clients, err)
			}
			if b.pg != nil {
				c.OwnRatio, c.BareRatio = c.PerSecond/r.Own, c.PerSecond/r.Bare
			}
			r.Cells = append(r.Cells, c)
			b.say("round %d of %d: %s, %d clients: %.0f/s", i+1, b.rounds, c.Name, clients, c.PerSecond)
		}
	}
	return r, nil
}

// pgbenched measures PostgreSQL alone: paymentd, which would deliver the notices of these payments beside it, is frozen.
func (b *bench) pgbenched(ctx context.Context, script string) (float64, error) {
	if err := b.clean(ctx); err != nil {
		return 0, err
	}
	defer b.freeze(-1)()
	return b.pg.run(ctx, script, b.length)
}

// freeze stops every paymentd but one until the returned function is called: all deliver notices, whoever took the payment.
func (b *bench) freeze(but int) (wake func()) {
	var wakes []func()
	for i, in := range b.rig.Instances {
		if i != but {
			wakes = append(wakes, in.Freeze())
		}
	}
	return func() {
		for _, wake := range wakes {
			wake()
		}
	}
}

// clean gives every measurement the same empty tables, without notices left to deliver. As a replica the session may
// empty the events too.
func (b *bench) clean(ctx context.Context) error {
	b.rig.Toss.Reset()
	tables := "payments, payment_events, cancels, incidents, notices"
	if b.pg != nil {
		tables += ", ceiling_payments, ceiling_events, ceiling_notices"
	}
	var err error
	for range 3 { // a notice worker and we may be in each other's way
		if err = b.rig.Session(ctx, "SET session_replication_role = replica", "TRUNCATE "+tables); err == nil {
			break
		}
	}
	return err
}

// confirms measures one paymentd under so many callers, every one of whom must be told 200, while the others are frozen.
func (b *bench) confirms(ctx context.Context, which, clients int) (c cell, err error) {
	if err := b.clean(ctx); err != nil {
		return c, err
	}
	defer b.freeze(which)()
	in := b.rig.Instances[which]
	o := b.callers(in, clients)
	o.For, o.Warm = b.length, min(b.length, 500*time.Millisecond)
	o.Body = freshOrders
	before, err := scrape(ctx, in)
	if err != nil {
		return c, err
	}
	dbBefore, err := b.databaseCPU(ctx)
	if err != nil {
		return c, err
	}
	profiled := func() error { return nil }
	if clients == b.clients[len(b.clients)-1] {
		profiled = b.profiled(ctx, in, b.variants[which].name)
	}
	begin := time.Now()
	got, err := load.Run(ctx, o)
	wall := time.Since(begin).Seconds()
	if err != nil {
		return c, err
	}
	after, err := scrape(ctx, in)
	dbAfter, failed := b.databaseCPU(ctx)
	if err = errors.Join(err, failed); err == nil {
		err = profiled()
	}
	if err == nil {
		err = got.Only(http.StatusOK)
	}
	if err == nil {
		err = b.books(ctx, b.variants[which], got.All[http.StatusOK])
	}
	confirms := float64(max(1, got.All[http.StatusOK]))
	c = cell{
		Name: b.variants[which].name, Clients: clients, PerSecond: got.PerSecond(),
		P50: quantile(got.Latencies, 0.50), P95: quantile(got.Latencies, 0.95), P99: quantile(got.Latencies, 0.99),
		Own: quantile(got.Own, 0.50), CPU: (after[cpuSeconds] - before[cpuSeconds]) / wall / float64(runtime.NumCPU()),
		Allocations: (after[mallocs] - before[mallocs]) / confirms,
		Spent:       1000 * (after[cpuSeconds] - before[cpuSeconds]) / confirms, SpentByDB: 1000 * (dbAfter - dbBefore) / confirms,
	}
	return c, err
}

func (b *bench) callers(in *rig.Instance, clients int) load.Options {
	return load.Options{
		Address: strings.TrimPrefix(in.URL(), "http://"), Path: "/payments/confirm", Secret: rig.CheckoutSecret, Clients: clients,
	}
}

// freshOrders is a new order in every call, with everything that a checkout sends.
func freshOrders(b []byte, client, n int) []byte {
	id := strconv.Itoa(client) + "-" + strconv.Itoa(n)
	b = append(append(b, `{"paymentKey":"test_`...), id...)
	b = append(append(b, `","orderId":"bench-`...), id...)
	b = append(append(b, `","amount":15000,"memberId":"member-`...), strconv.Itoa(client)...)
	return append(b, `"}`...)
}

var errBooks = errors.New("the books do not agree")

// books compares the ledgers of both sides: a fast answer that is wrong is worth nothing.
func (b *bench) books(ctx context.Context, v variant, paid int) error {
	if v.table == "" {
		return nil
	}
	if v.table == ourTable {
		ledger, err := b.rig.Ledger(ctx)
		if err != nil {
			return err
		}
		if !ledger.Holds() {
			return fmt.Errorf("%w: %s", errBooks, ledger)
		}
	}
	n, err := b.rig.Count(ctx, `SELECT count(*) FROM `+v.table+` WHERE status = 'PAID'`)
	if err == nil && n != paid {
		err = fmt.Errorf("%w: %d answers of 200, but %d rows of %s are PAID", errBooks, paid, n, v.table)
	}
	return err
}

func quantile(ascending []time.Duration, q float64) float64 {
	return float64(load.Quantile(ascending, q).Microseconds()) / 1000
}
