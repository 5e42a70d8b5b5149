package notify

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"paymentd/internal/payment"
)

var (
	errNotTried    = errors.New("not tried: the receiver keeps others waiting")
	errUnknownKind = errors.New("no sink for this kind")
)

// panicError is a panic that was contained; its value is not kept, because it may hold anything.
type panicError struct{ stack []byte }

func (*panicError) Error() string { return "panic" }

// contain turns a panic of f into an error.
func contain(f func() error) (err error) {
	defer func() {
		if recover() != nil {
			err = &panicError{stack: debug.Stack()}
		}
	}()
	return f()
}

// deliver does one try with each notice and writes the results together. Where the log is so slow that their leases
// might end in hand, the rest goes back untried. The end of ctx stops only the wait for a place: what was begun is finished.
func (p *Pool) deliver(ctx context.Context, work []payment.Notice) {
	tries := make([]payment.NoticeTry, len(work))
	start := time.Now()
	for i, n := range work {
		tries[i] = payment.NoticeTry{Notice: n, Result: payment.NoticeResult{State: payment.NoticeQueued}}
		if i == 0 || time.Since(start) < patience {
			tries[i].Result = p.try(ctx, n)
		}
	}
	p.finish(ctx, tries)
}

func (p *Pool) try(ctx context.Context, n payment.Notice) payment.NoticeResult {
	s := p.sinkOf(n)
	if s == nil {
		return conclude(n, 0, errUnknownKind)
	}
	if n.Kind == payment.NoticeFailed && n.Payment.Status != payment.Failed {
		p.metrics.count(s.name, payment.NoticeSuperseded)
		return payment.NoticeResult{State: payment.NoticeSuperseded}
	}
	start := time.Now()
	if !s.enter(ctx) {
		return p.notTried(ctx, s, n)
	}
	err := p.send(ctx, s, n)
	r := conclude(n, time.Since(start), err)
	p.metrics.count(s.name, r.State)
	p.report(s, n, r, err)
	return r
}

// notTried puts a notice back that found no place at its sink. That is no attempt, unless its life is over.
func (p *Pool) notTried(ctx context.Context, s *sink, n payment.Notice) payment.NoticeResult {
	r := conclude(n, 0, errNotTried)
	if r.State == payment.NoticeDead {
		p.metrics.count(s.name, r.State)
		p.report(s, n, r, errNotTried)
	} else if ctx.Err() != nil {
		r.RetryIn = 0 // another instance may go on at once
	}
	return r
}

// send runs the sender within its time-out and gives the place at the sink back, whatever happens.
func (p *Pool) send(ctx context.Context, s *sink, n payment.Notice) (err error) {
	start := time.Now()
	defer func() { s.leave(time.Since(start), err) }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.sendTimeout)
	defer cancel()
	return contain(func() error { return s.sender.Send(ctx, n) })
}

// conclude says what follows from a try that ended after took. Whoever fails is tried once more at the end of
// the lifetime and is dead when that fails too. Times are compared by PostgreSQL's clock alone.
func conclude(n payment.Notice, took time.Duration, err error) payment.NoticeResult {
	if err == nil {
		return payment.NoticeResult{State: payment.NoticeDelivered}
	}
	left := lifetime - n.Age() - took
	if left <= 0 {
		return payment.NoticeResult{State: payment.NoticeDead, Error: errorText(err)}
	}
	return payment.NoticeResult{
		State:   payment.NoticeQueued,
		RetryIn: min(spread(delayAfter(n.Attempts)), left),
		Error:   errorText(err),
	}
}

// errorText is fit for a text column.
func errorText(err error) string {
	const limit = 300
	text := err.Error()
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}

func (p *Pool) report(s *sink, n payment.Notice, r payment.NoticeResult, err error) {
	if err == nil {
		return
	}
	line := p.log.With("notice", n.ID, "kind", n.Kind, "sink", s.name, "order_id", n.Payment.OrderID,
		"attempt", n.Attempts, "state", r.State, "error", r.Error)
	if caught, ok := errors.AsType[*panicError](err); ok {
		line.Error("notice sender panicked", "stack", string(caught.stack))
		return
	}
	line.Warn("notice not delivered")
}

// finish writes the results. If that fails the notices are sent again when their lease is over.
func (p *Pool) finish(ctx context.Context, tries []payment.NoticeTry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishWithin)
	defer cancel()
	err := contain(func() error { return p.queue.FinishNotices(ctx, tries) })
	if err != nil {
		p.log.Warn("notices not finished", "notices", len(tries), "first", tries[0].Notice.ID, "error", fmt.Errorf("finish notices: %w", err).Error())
	}
}
