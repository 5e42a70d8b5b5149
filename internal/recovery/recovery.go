// Package recovery settles what confirms left behind: a due loop for fresh doubts, a sweep for everything, and the
// same work on an operator's word (sync). It reads state, never events, so nothing that a crash left is overlooked.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"

	"github.com/prometheus/client_golang/prometheus"
)

// Queue is what recovery needs of PostgreSQL. Several instances share it: a claim is a lease with a fence.
type Queue interface {
	// ClaimDue leases up to limit payments whose due_at has come.
	ClaimDue(ctx context.Context, limit int, lease time.Duration) ([]payment.Payment, error)
	// ClaimOne leases one payment in whatever state; NoRows means that somebody else works on it or that it is not there.
	ClaimOne(ctx context.Context, paymentKey string, lease time.Duration) (payment.Payment, payment.Ending, error)
	// ListUnfinished pages through PENDING and AWAITING_DEPOSIT payments reserved longer ago than olderThan, by id.
	ListUnfinished(ctx context.Context, olderThan time.Duration, limit int, after int64) ([]payment.Payment, error)
	// Attempts reads all payments of the order, the oldest first.
	Attempts(ctx context.Context, orderID string) ([]payment.Payment, error)
}

// Sweeper repairs what no due time leads to.
type Sweeper interface {
	// SweepMissingNotices adds notices that a settle had to leave out and says how many.
	SweepMissingNotices(ctx context.Context) (int, error)
	// SweepStuck makes up to limit payments due that are stuck by a mistake of whatever origin, and says how many: parked
	// ones whose incident is closed, what nobody looks at although it is not done, and times further away than lease.
	SweepStuck(ctx context.Context, lease time.Duration, limit int) (int, error)
	// SweepOrphans closes the incidents of approvals that turned up here and are settled, and says how many.
	SweepOrphans(ctx context.Context) (int, error)
}

// Resolver does what the decision table says for one claimed payment.
type Resolver interface {
	// Resolve carries it out; the lease that ends at leaseEnd is over afterwards, or runs out after an error. The end of ctx
	// cuts looks short and nothing else.
	Resolve(ctx context.Context, p payment.Payment, actor payment.Actor, leaseEnd time.Time) (approval.Resolution, error)
	// Plan only looks at Toss and says what the table calls for.
	Plan(ctx context.Context, p payment.Payment) (payment.Action, payment.Observation)
}

// Options are the parts and the paces; all are required.
type Options struct {
	Queue       Queue
	Sweeper     Sweeper
	Resolver    Resolver
	DueEvery    time.Duration
	SweepEvery  time.Duration
	Concurrency int
	Lease       time.Duration
	Logger      *slog.Logger
	Registerer  prometheus.Registerer
}

// Recovery runs the loops. It is safe for concurrent use.
type Recovery struct {
	queue    Queue
	resolver Resolver
	opt      Options
	log      *slog.Logger
	metrics  *metrics

	stopSyncs sync.Once
	syncsStop chan struct{}
}

// New checks the options and returns a Recovery.
func New(o Options) (*Recovery, error) {
	switch {
	case o.Queue == nil || o.Sweeper == nil || o.Resolver == nil || o.Logger == nil || o.Registerer == nil:
		return nil, errors.New("recovery: queue, sweeper, resolver, logger and registerer are required")
	case o.DueEvery <= 0 || o.SweepEvery <= 0 || o.Lease <= 0 || o.Concurrency < 1:
		return nil, errors.New("recovery: paces, lease and concurrency must be above 0")
	}
	return &Recovery{
		queue: o.Queue, resolver: o.Resolver, opt: o, log: o.Logger, metrics: newMetrics(o.Registerer), syncsStop: make(chan struct{}),
	}, nil
}

// Run works until ctx ends: every worker claims one due payment at a time, so that a payment that takes long
// stalls nobody else. When ctx ends nothing new is claimed, looks and pauses end, and what was looked at is due again at
// once, for another instance or the next start.
func (r *Recovery) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	for range r.opt.Concurrency {
		loops.Go(func() {
			r.loop(ctx, r.opt.DueEvery, "due payments", func(ctx context.Context) error { _, err := r.runDue(ctx); return err })
		})
	}
	loops.Go(func() { r.loop(ctx, r.opt.SweepEvery, "sweep", r.sweep) })
	loops.Wait()
	return nil
}

// loop runs at once and then at its jittered pace; an error is logged and the pace goes on.
func (r *Recovery) loop(ctx context.Context, every time.Duration, name string, once func(context.Context) error) {
	timer := time.NewTimer(jitter(every / 10))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := contained(ctx, once); err != nil && ctx.Err() == nil {
			r.metrics.did(approval.DidError)
			r.log.ErrorContext(ctx, "recovery", "loop", name, "error", err)
		}
		timer.Reset(every - every/20 + jitter(every/10))
	}
}

// jitter keeps several instances from looking at the same moment.
func jitter(most time.Duration) time.Duration {
	return rand.N(most + 1) //nolint:gosec // spreads load, guards nothing
}

// contained turns a panic into an error: a bug in one round must not end the service. The value stays out: it may
// hold a paymentKey.
func contained(ctx context.Context, once func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic of type %T\n%s", v, debug.Stack())
		}
	}()
	return once(ctx)
}

// runDue works off what is due, one claim at a time, and says how many it resolved.
func (r *Recovery) runDue(ctx context.Context) (int, error) {
	for n := 0; ; n++ {
		if ctx.Err() != nil {
			return n, nil //nolint:nilerr // a stop is no failure
		}
		leaseEnd := time.Now().Add(r.opt.Lease)
		claimed, err := r.queue.ClaimDue(ctx, 1, r.opt.Lease)
		if err != nil {
			return n, fmt.Errorf("claim due payments: %w", err)
		}
		if len(claimed) == 0 {
			r.metrics.succeeded()
			return n, nil
		}
		_, _ = r.resolve(ctx, claimed[0], payment.ByRecovery, leaseEnd)
	}
}

// longestLease is beyond the lease of any instance: one with short time-outs must not free the living lease of
// another with long ones, which would send the same payment twice at once.
const longestLease = time.Hour

// sweepPage is how many stuck payments one statement frees.
const sweepPage = 1000

// sweep is the 10-minute round: missing notices, what is stuck, orphans that turned up, and then what is due. It reads state alone, so it also
// finds what no event ever led to.
func (r *Recovery) sweep(ctx context.Context) error {
	added, errNotices := r.opt.Sweeper.SweepMissingNotices(ctx)
	freed, errStuck := r.free(ctx)
	closed, errOrphans := r.opt.Sweeper.SweepOrphans(ctx)
	if added > 0 || freed > 0 || closed > 0 {
		r.log.WarnContext(ctx, "swept", "notices_added", added, "payments_freed", freed, "orphans_closed", closed)
	}
	_, errDue := r.runDue(ctx)
	// One that fails must not keep the others from being done.
	return errors.Join(wrap("add missing notices", errNotices), wrap("free stuck payments", errStuck),
		wrap("close orphans", errOrphans), errDue)
}

// free frees what is stuck, page by page; a page that is not full was the last.
func (r *Recovery) free(ctx context.Context) (freed int, err error) {
	for n := sweepPage; n == sweepPage && ctx.Err() == nil; freed += n {
		if n, err = r.opt.Sweeper.SweepStuck(ctx, max(longestLease, 2*r.opt.Lease), sweepPage); err != nil {
			return freed, err
		}
	}
	return freed, nil
}

func wrap(noun string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", noun, err)
}

// resolve settles one claimed payment, contains its panics and tells what happened.
func (r *Recovery) resolve(ctx context.Context, p payment.Payment, actor payment.Actor, leaseEnd time.Time) (res approval.Resolution, err error) {
	res = approval.Resolution{Before: p, After: p, Did: approval.DidError}
	err = contained(ctx, func(ctx context.Context) error {
		done, err := r.resolver.Resolve(ctx, p, actor, leaseEnd)
		res = done
		return err
	})
	r.metrics.did(res.Did)
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelWarn
	}
	r.log.Log(ctx, level, "resolved", "order_id", p.OrderID, "actor", string(actor), "from", string(p.Status),
		"to", string(res.After.Status), "did", string(res.Did), "reason", res.Action.Reason, "error", err)
	return res, err
}
