// Package notify delivers the notices of the outbox: payment.* to the checkout's webhook, receipts to the buyer,
// and to the log what has no sink. Every notice is delivered at least once; its id tells a repetition.
package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/payment"
)

// MaxWorkers bounds the workers that have notices in hand at one time, and with them the database connections of the pool.
const MaxWorkers = 4

const (
	pollEvery    = 500 * time.Millisecond
	pollAtMost   = 30 * time.Second
	claimWithin  = 5 * time.Second
	finishWithin = 5 * time.Second
	margin       = 5 * time.Second
)

// mostLogged is how many notices are claimed at once where all go to the log: what writing them costs the database is
// then mostly the two statements.
const mostLogged = 64

// Queue is the outbox.
type Queue interface {
	// ClaimNotices leases at most limit due notices to the caller, oldest first.
	ClaimNotices(ctx context.Context, limit int, lease time.Duration) ([]payment.Notice, error)
	// FinishNotices writes the result of a try with each, where the fence of the notice still matches. The error tells
	// of those whose fence did not; the others are written.
	FinishNotices(ctx context.Context, tries []payment.NoticeTry) error
}

// Sender is the way to one receiver.
type Sender interface {
	// Send delivers one notice, or says why not. It returns soon after ctx ends, and its error holds neither
	// secrets nor personal data: it is stored with the notice and logged.
	Send(ctx context.Context, n payment.Notice) error
}

// Options is what a Pool needs. Zero durations mean the default.
type Options struct {
	Queue Queue
	// Workers is how many workers may have notices in hand at one time, 1 to MaxWorkers.
	Workers    int
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Webhook takes the payment.* notices; nil sends them to the log.
	Webhook Sender
	// Mail takes the receipts of payments with a receiptEmail; nil sends them to the log, as all others.
	Mail Sender
	// SendTimeout ends one try; 10 s by default.
	SendTimeout time.Duration
}

// Pool hands due notices to their senders.
type Pool struct {
	queue       Queue
	workers     int
	log         *slog.Logger
	metrics     *metrics
	sinks       map[payment.NoticeKind]*sink
	local       *sink
	onlyLocal   bool
	sendTimeout time.Duration

	// desk is the short way of notices for the log, past the outbox.
	desk *desk
	// hands holds one token per worker that has notices in hand.
	hands  chan struct{}
	inHand sync.WaitGroup
}

// New checks the options, all mistakes at once, and registers the metrics.
func New(o Options) (*Pool, error) {
	var wrong []error
	if o.Queue == nil || o.Log == nil || o.Registerer == nil {
		wrong = append(wrong, errors.New("queue, log and registerer are required"))
	}
	if o.Workers < 1 || o.Workers > MaxWorkers {
		wrong = append(wrong, fmt.Errorf("workers must be 1 to %d, not %d", MaxWorkers, o.Workers))
	}
	if w, ok := o.Webhook.(*Webhook); ok && w == nil {
		wrong = append(wrong, errors.New("webhook is a nil *Webhook, leave the field empty instead"))
	}
	if m, ok := o.Mail.(*Mail); ok && m == nil {
		wrong = append(wrong, errors.New("mail is a nil *Mail, leave the field empty instead"))
	}
	if o.SendTimeout < 0 {
		wrong = append(wrong, errors.New("send time-out must not be negative"))
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, fmt.Errorf("notice pool: %w", err)
	}
	if o.SendTimeout == 0 {
		o.SendTimeout = sendWithin
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("notice pool: %w", err)
	}
	local := logSink(o)
	return &Pool{
		queue: o.Queue, workers: o.Workers, log: o.Log, metrics: m,
		sinks: sinksOf(o, local), local: local, onlyLocal: o.Webhook == nil && o.Mail == nil, sendTimeout: o.SendTimeout,
		desk: newDesk(), hands: make(chan struct{}, o.Workers),
	}, nil
}

// Run delivers notices until ctx ends, then finishes what is in hand and returns nil. It returns an error only
// if a sender does not let go in time; what it held is sent again when its lease is over.
func (p *Pool) Run(ctx context.Context) error {
	failures := 0
	p.inHand.Go(func() { p.serveDesk(ctx) })
	for ctx.Err() == nil {
		drained, err := p.runOnce(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			failures++
			p.log.Warn("notices not claimed", "error", err.Error())
		case err == nil:
			failures = 0
		}
		if drained {
			pause(ctx, spread(pollDelay(failures)))
		}
	}
	return p.drain()
}

// runOnce takes one batch in hand and says whether nothing more is due. It does not wait for the sends, so that a
// slow receiver does not hold up the next batch; it waits for one free worker. Each notice for a receiver outside has
// a worker of its own; all those for the log share one.
func (p *Pool) runOnce(ctx context.Context) (drained bool, err error) {
	free, err := p.freeHands(ctx)
	if err != nil {
		return false, err
	}
	limit := free
	if p.onlyLocal {
		limit = mostLogged
	}
	batch, err := p.claim(ctx, limit)
	var works [][]payment.Notice
	var logged []payment.Notice
	for _, n := range batch {
		if s := p.sinkOf(n); s == p.local || s == nil {
			logged = append(logged, n)
		} else {
			works = append(works, []payment.Notice{n})
		}
	}
	if len(logged) > 0 {
		works = append(works, logged)
	}
	for range free - len(works) {
		<-p.hands
	}
	for _, work := range works {
		p.inHand.Go(func() {
			defer func() { <-p.hands }()
			p.deliver(ctx, work)
		})
	}
	return len(batch) < limit, err
}

// freeHands takes every free worker, and waits for the first.
func (p *Pool) freeHands(ctx context.Context) (int, error) {
	select {
	case p.hands <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for free := 1; ; free++ {
		select {
		case p.hands <- struct{}{}:
		default:
			return free, nil
		}
	}
}

// claim ignores the end of ctx: a claim whose answer is lost would lie still for a whole lease.
func (p *Pool) claim(ctx context.Context, limit int) ([]payment.Notice, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimWithin)
	defer cancel()
	var batch []payment.Notice
	err := contain(func() (err error) {
		batch, err = p.queue.ClaimNotices(ctx, limit, p.lease())
		return err
	})
	if err == nil && len(batch) > limit {
		err = fmt.Errorf("%d instead of %d", len(batch), limit)
	}
	if err != nil {
		return nil, fmt.Errorf("claim notices: %w", err)
	}
	return batch, nil
}

// lease outlasts whatever a worker may do with the notices of one batch: it begins with none after patience.
func (p *Pool) lease() time.Duration { return patience + p.sendTimeout + finishWithin + margin }

// drain waits for what is in hand, as long as its leases last.
func (p *Pool) drain() error {
	done := make(chan struct{})
	go func() {
		p.inHand.Wait()
		close(done)
	}()
	late := time.NewTimer(deskPatience + p.lease())
	defer late.Stop()
	select {
	case <-done:
		return nil
	case <-late.C:
		return fmt.Errorf("notice pool: %d workers still have notices in hand", len(p.hands))
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
