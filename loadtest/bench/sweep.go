package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/load"
	"paymentd/loadtest/rig"
)

// step is one measurement of the sweep. Times are milliseconds.
type step struct {
	// Kind is confirm (the gateway works for a while), refusal (the breaker is open) or replay (the order is PAID).
	Kind      string  `json:"kind"`
	Clients   int     `json:"clients"`
	PerSecond float64 `json:"perSecond"`
	// Ideal is clients ÷ the gateway's time, where a gateway is called.
	Ideal    float64        `json:"ideal,omitempty"`
	P50      float64        `json:"p50"`
	P95      float64        `json:"p95"`
	P99      float64        `json:"p99"`
	Statuses map[string]int `json:"statuses"`
}

// memory is what a waiting confirm costs in paymentd, in bytes.
type memory struct {
	Waiting  int     `json:"waiting"`
	Resident float64 `json:"resident"`
	// Live is heap and stacks in use, each after a garbage collection.
	Live float64 `json:"live"`
}

// sweep is S8. Knee is the most callers of a step whose p95 is at most the gateway's time and a tenth.
type sweep struct {
	Steps  []step `json:"steps"`
	Knee   int    `json:"knee"`
	Memory memory `json:"memory"`
}

func (b *bench) sweep8(ctx context.Context) (s sweep, err error) {
	in := b.rig.Instances[0]
	kinds := []struct {
		name string
		step func(context.Context, *rig.Instance, int) (step, error)
	}{{"confirm", b.sweptConfirms}, {"refusal", b.sweptRefusals}, {"replay", b.sweptReplays}}
	for _, kind := range kinds {
		for _, clients := range b.sweep {
			if err := b.clean(ctx); err != nil {
				return s, err
			}
			measured, err := kind.step(ctx, in, clients)
			if err != nil {
				return s, fmt.Errorf("%s, %d clients: %w", kind.name, clients, err)
			}
			measured.Kind, measured.Clients = kind.name, clients
			s.Steps = append(s.Steps, measured)
			b.say("%s, %d clients: %.0f/s, p95 %.0f ms", kind.name, clients, measured.PerSecond, measured.P95)
			if kind.name == "confirm" && measured.PerSecond > 0 && measured.P95 <= 1.1*milliseconds(b.gateway) {
				s.Knee = max(s.Knee, clients)
			}
		}
	}
	s.Memory, err = b.waiting(ctx, in, slices.Max(b.sweep))
	return s, err
}

// sweptConfirms waits for the gateway. Beyond the knee some may be answered 202 or 503 db_unavailable: the table shows how
// many, and the books must hold.
func (b *bench) sweptConfirms(ctx context.Context, in *rig.Instance, clients int) (step, error) {
	if err := b.rig.Toss.SetFaults(tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(b.gateway)}); err != nil {
		return step{}, err
	}
	o := b.callers(in, clients)
	o.Body, o.For, o.Warm = freshOrders, max(b.length, 3*b.gateway), 4*b.gateway
	got, err := load.Run(ctx, o)
	if err != nil {
		return step{}, err
	}
	s := stepOf(got, http.StatusOK)
	s.Ideal = float64(clients) / b.gateway.Seconds()
	return s, b.overloaded(ctx, got)
}

// overloaded refuses answers that no overload explains, and looks at the books.
func (b *bench) overloaded(ctx context.Context, got load.Result) error {
	for status := range got.All {
		if status != http.StatusOK && status != http.StatusAccepted && status != http.StatusServiceUnavailable {
			return got.Only(http.StatusOK)
		}
	}
	ledger, err := b.rig.Ledger(ctx)
	if err == nil && !ledger.Holds() {
		err = errors.New(ledger.String())
	}
	return err
}

// sweptRefusals meets a breaker that an operator has opened; no order is known before.
func (b *bench) sweptRefusals(ctx context.Context, in *rig.Instance, clients int) (s step, err error) {
	if err := force(ctx, in, "open"); err != nil {
		return s, err
	}
	o := b.callers(in, clients)
	o.Body, o.For, o.Warm = freshOrders, b.length, min(b.length, time.Second)
	got, err := load.Run(ctx, o)
	if err == nil {
		err = got.Only(http.StatusServiceUnavailable)
	}
	if err == nil {
		err = b.release(ctx, in)
	}
	return stepOf(got, http.StatusServiceUnavailable), err
}

func force(ctx context.Context, in *rig.Instance, word string) error {
	a, err := in.Call(ctx, rig.Request{
		Method: http.MethodPost, Path: "/breaker", Secret: rig.OperatorSecret, Body: `{"force":"` + word + `"}`, Private: true,
	})
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("breaker: %s", a)
	}
	return err
}

// release closes the breaker by the trials that it asks for.
func (b *bench) release(ctx context.Context, in *rig.Instance) error {
	if err := force(ctx, in, "none"); err != nil {
		return err
	}
	for i := range 3 {
		id := strconv.Itoa(i)
		a, err := in.Confirm(ctx, rig.Order{PaymentKey: "test_trial-" + id, OrderID: "trial-" + id, Amount: 1000})
		if err == nil && a.Status != http.StatusOK {
			err = fmt.Errorf("trial: %s", a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sweptReplays sends every caller's one order again and again.
func (b *bench) sweptReplays(ctx context.Context, in *rig.Instance, clients int) (step, error) {
	o := b.callers(in, clients)
	o.Body = func(body []byte, client, _ int) []byte { return freshOrders(body, client, 0) }
	o.For, o.Warm = b.length, max(min(b.length, time.Second), time.Duration(clients)*time.Millisecond)
	got, err := load.Run(ctx, o)
	if err == nil {
		err = b.overloaded(ctx, got)
	}
	return stepOf(got, http.StatusOK), err
}

// stepOf counts the answers that the step is about; the times are those of all.
func stepOf(r load.Result, status int) step {
	s := step{
		PerSecond: float64(r.Statuses[status]) / r.Took.Seconds(), P50: quantile(r.Latencies, 0.50), P95: quantile(r.Latencies, 0.95), P99: quantile(r.Latencies, 0.99),
		Statuses: map[string]int{},
	}
	for status, n := range r.Statuses {
		s.Statuses[strconv.Itoa(status)] = n
	}
	return s
}

// waiting compares a fresh process at rest with the same one when so many confirms wait for the gateway.
func (b *bench) waiting(ctx context.Context, in *rig.Instance, clients int) (m memory, err error) {
	if err := b.clean(ctx); err != nil {
		return m, err
	}
	in.Kill()
	if err := in.Start(ctx); err != nil {
		return m, err
	}
	o := b.callers(in, 20)
	o.Body = func(body []byte, client, n int) []byte { return freshOrders(body, 1_000_000+client, n) }
	o.For = b.length
	if _, err := load.Run(ctx, o); err != nil {
		return m, err
	}
	if err := b.rig.Toss.SetFaults(tosssim.Fault{Op: tosssim.OpConfirm, Hold: true}); err != nil {
		return m, err
	}
	rest, restLive, err := b.memoryOf(ctx, in, "rest")
	if err != nil {
		return m, err
	}
	o = b.callers(in, clients)
	o.Body, o.For, o.Warm = freshOrders, time.Millisecond, time.Second/2+time.Duration(clients)*time.Millisecond
	ended := make(chan error, 1)
	go func() {
		_, err := load.Run(ctx, o)
		ended <- err
	}()
	if err = b.allWait(ctx, in, clients); err == nil {
		var full, fullLive float64
		full, fullLive, err = b.memoryOf(ctx, in, "waiting")
		m = memory{Waiting: clients, Resident: (full - rest) / float64(clients), Live: (fullLive - restLive) / float64(clients)}
	}
	b.rig.Toss.ClearFaults()
	return m, errors.Join(err, <-ended)
}

func (b *bench) allWait(ctx context.Context, in *rig.Instance, clients int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 15*time.Second, fmt.Errorf("never were %d confirms at the gateway at once", clients))
	defer cancel()
	f, err := scrape(ctx, in)
	if _, ok := f[inFlight]; err == nil && !ok {
		err = fmt.Errorf("%s has no %s", in.Name, inFlight)
	}
	if err != nil {
		return err
	}
	return rig.Await(ctx, "wait for the gateway", func() bool {
		f, err := scrape(ctx, in)
		return err == nil && f[inFlight] == float64(clients)
	})
}

// memoryOf is the resident memory as it is, then what is live after a collection.
func (b *bench) memoryOf(ctx context.Context, in *rig.Instance, name string) (total, live float64, err error) {
	f, err := scrape(ctx, in)
	if err != nil {
		return 0, 0, err
	}
	total = f[resident]
	heap, err := private(ctx, in, "/debug/pprof/heap?gc=1")
	if err == nil && b.profile != "" {
		err = os.WriteFile(filepath.Join(b.profile, name+"-heap.pprof"), heap, 0o600)
	}
	if err != nil {
		return 0, 0, err
	}
	f, err = scrape(ctx, in)
	return total, f[heapInUse] + f[stackInUse], err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
