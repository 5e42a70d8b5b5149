package recovery

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// bench is recovery over fakes, with the real use cases.
type bench struct {
	*testing.T
	store    *approvaltest.Store
	gateway  *approvaltest.Gateway
	resolver *resolver
	registry *prometheus.Registry
	recovery *Recovery
}

// resolver is the real one, with a hook before each payment.
type resolver struct {
	*approval.Service
	mu     sync.Mutex
	before func(ctx context.Context, p payment.Payment)
	now    int
	most   int
}

func (r *resolver) Resolve(ctx context.Context, p payment.Payment, by payment.Actor, end time.Time) (approval.Resolution, error) {
	r.mu.Lock()
	before := r.before
	r.now++
	r.most = max(r.most, r.now)
	r.mu.Unlock()
	defer func() { r.mu.Lock(); r.now--; r.mu.Unlock() }()
	if before != nil {
		before(ctx, p)
	}
	return r.Service.Resolve(ctx, p, by, end)
}

func (r *resolver) Plan(ctx context.Context, p payment.Payment) (payment.Action, payment.Observation) {
	if r.before != nil {
		r.before(ctx, p)
	}
	return r.Service.Plan(ctx, p)
}

func inBubble(t *testing.T, name string, test func(b *bench)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(setup(t)) })
	})
}

func setup(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, store: approvaltest.NewStore(), gateway: approvaltest.NewGateway(), registry: prometheus.NewRegistry()}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	service, err := approval.New(approval.Deps{Store: b.store, Gateway: b.gateway, Logger: log, Settings: approval.Settings{
		AnswerWithin: 10 * time.Second, CommitWithin: 8 * time.Second, Deadline: 40 * time.Second, Lease: 42 * time.Second,
		Rules: payment.Rules{
			SendWithin: 9 * time.Minute, ResendWithin: 2 * time.Minute, Window: 10 * time.Minute, Margin: 5 * time.Minute,
			UnknownIncidentAfter: time.Hour, VerifyAfter: 30 * time.Minute,
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.resolver = &resolver{Service: service}
	b.recovery, err = New(Options{
		Queue: b.store, Sweeper: b.store, Resolver: b.resolver, DueEvery: 5 * time.Second, SweepEvery: 10 * time.Minute, Concurrency: 4,
		Lease: 42 * time.Second, Logger: log, Registerer: b.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// leftover stores the n-th payment in a state, reserved so long ago, and due now.
func (b *bench) leftover(n int, status payment.Status, ago time.Duration) payment.Payment {
	at := time.Now().Add(-ago)
	return b.store.Put(payment.Payment{
		PaymentKey: fmt.Sprintf("key-%d", n), OrderID: fmt.Sprintf("order-%d", n), Amount: 1000, Currency: payment.KRW,
		Status: status, HoldsOrder: status != payment.Failed, MaybeSent: true, ReservedAt: at, FirstSentAt: at, LastSentAt: at,
		DueAt: time.Now(),
	})
}

// attempt stores one more attempt of order n under a key of its own.
func (b *bench) attempt(n, key int, status payment.Status) {
	b.leftover(key, status, time.Hour)
	b.store.Change(fmt.Sprintf("key-%d", key), func(p *payment.Payment) { p.OrderID = fmt.Sprintf("order-%d", n) })
}

// approveAttempt makes the gateway hold its money.
func (b *bench) approveAttempt(n, key int) {
	b.gateway.Set(payment.Observation{
		Sighting: payment.SeenDone, PaymentKey: fmt.Sprintf("key-%d", key), OrderID: fmt.Sprintf("order-%d", n),
		Total: 1000, Balance: 1000, Currency: payment.KRW,
	})
}

// approve makes the gateway hold the money of the n-th payment.
func (b *bench) approve(n int) {
	b.gateway.Set(payment.Observation{
		Sighting: payment.SeenDone, PaymentKey: fmt.Sprintf("key-%d", n), OrderID: fmt.Sprintf("order-%d", n),
		Total: 1000, Balance: 1000, Currency: payment.KRW,
	})
}

func (b *bench) wantRow(n int, status payment.Status) {
	b.Helper()
	if p := b.store.Row(fmt.Sprintf("key-%d", n)); p.Status != status {
		b.Errorf("payment %d is %s, want %s", n, p.Status, status)
	}
}

// run starts the loops; stop ends them and waits.
func (b *bench) run() (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.recovery.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			b.Errorf("run: %v", err)
		}
	}
}

func (b *bench) wantActions(want map[approval.Did]float64) {
	b.Helper()
	got := map[approval.Did]float64{}
	for _, d := range approval.AllDid() {
		if v := testutil.ToFloat64(b.recovery.metrics.actions.WithLabelValues(string(d))); v != 0 {
			got[d] = v
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		b.Errorf("actions (-want +got):\n%s", diff)
	}
}
