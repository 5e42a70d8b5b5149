package approval

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"paymentd/internal/payment"
)

// Confirm approves one payment, whatever the caller does meanwhile: the work is detached from ctx, which only
// carries values. It answers within Settings.AnswerWithin of o.ArrivedAt, with a PENDING payment if the work still
// runs. The Answer always has its Result; the error, if any, is a *payment.Error.
func (s *Service) Confirm(ctx context.Context, o payment.Order) (Answer, error) {
	if o.ArrivedAt.IsZero() {
		o.ArrivedAt = time.Now()
	}
	a, err := s.joined(ctx, o)
	return *a, err
}

// joined leads the flight of o or joins it.
func (s *Service) joined(ctx context.Context, o payment.Order) (*Answer, error) {
	answerBy := o.ArrivedAt.Add(s.set.AnswerWithin)
	timer := time.NewTimer(time.Until(answerBy))
	defer timer.Stop()
	for {
		f, lead := s.flights.join(o)
		if lead {
			s.running.run(func() { s.fly(context.WithoutCancel(ctx), f, answerBy) })
		}
		a, landed, err := s.await(ctx, f, timer.C)
		switch {
		case lead:
			return a, err
		case !landed:
			return duplicate(a), err
		case a.Result == payment.ResultPendingRunning && time.Now().Before(answerBy):
			// The first caller's time is over, not ours: keep watching.
		default:
			return duplicate(a), err
		}
	}
}

// await returns the flight's answer, or what is known of the payment when the caller's time is over.
func (s *Service) await(ctx context.Context, f *flight, timeout <-chan time.Time) (a *Answer, landed bool, err error) {
	select {
	case <-f.done:
		return f.answer, true, f.err
	case <-timeout:
	}
	if a, first, ok := f.tell(); ok {
		if first {
			// Stored now, not when the work ends: it may be killed before.
			s.running.run(func() { s.contain(ctx, f.order, func() { s.markTold(context.WithoutCancel(ctx), f.order) }) })
		}
		return a, false, nil
	}
	<-f.done
	return f.answer, true, f.err
}

// fly does the work of a confirm and lands its flight, also when the work panics.
func (s *Service) fly(ctx context.Context, f *flight, answerBy time.Time) {
	w := &work{Service: s, flight: f, order: f.order, answerBy: answerBy}
	var p *payment.Payment
	var a *Answer
	var err error
	s.contain(ctx, f.order, func() { p, a, err = w.begin(ctx) })
	if p == nil {
		s.land(ctx, f, a, err)
		return
	}
	// A goroutine keeps the stack that the database driver needed, and most of a confirm's time is spent waiting for Toss.
	s.running.run(func() {
		var a *Answer
		var err error
		s.contain(ctx, f.order, func() { a, err = w.send(ctx, p) })
		s.land(ctx, f, a, err)
	})
}

// land ends a flight with its answer; nil after a panic.
func (s *Service) land(ctx context.Context, f *flight, a *Answer, err error) {
	if a == nil {
		a, err = &Answer{Result: payment.ResultInternal}, &payment.Error{
			Code: payment.CodeInternal, Public: "The confirm ended unexpectedly.", Err: errPanicked,
		}
	}
	late := s.flights.land(f, a, err)
	if late { // its request has been logged without this
		s.log.InfoContext(ctx, "confirm ended after its caller was answered", "order_id", f.order.OrderID, "result", string(a.Result),
			"attempts", a.Attempts, "gateway_ms", a.Gateway.Milliseconds(), "db_ms", a.DB.Milliseconds(), "trace_id", a.TraceID, "error", err)
	}
	told := late || err == nil && a.Payment.Status.Unfinished()
	if told && !a.Payment.Told && a.Payment.Status != payment.Paid && a.Payment.Status != payment.Canceled {
		s.contain(ctx, f.order, func() { s.markTold(ctx, f.order) })
	}
}

var errPanicked = errors.New("confirm panicked")

// contain runs f and logs its panic. The value stays out of the log: it may hold a paymentKey.
func (s *Service) contain(ctx context.Context, o payment.Order, f func()) {
	defer func() {
		if r := recover(); r != nil {
			s.log.ErrorContext(ctx, "confirm panicked", "order_id", o.OrderID, "panic", fmt.Sprintf("%T", r),
				"stack", string(debug.Stack()))
		}
	}()
	f()
}

// markTold remembers a 202 that no other write could carry, so that a failure gets its notice; if that fails too,
// the caller still has the read route, and the log has the reason.
func (s *Service) markTold(ctx context.Context, o payment.Order) {
	ctx, cancel := context.WithTimeout(ctx, s.set.CommitWithin)
	defer cancel()
	if err := s.store.MarkTold(ctx, o.PaymentKey); err != nil {
		s.log.WarnContext(ctx, "mark a payment as answered 202", "order_id", o.OrderID, "error", err)
	}
}

// work is the state of one confirm.
type work struct {
	*Service
	flight   *flight
	order    payment.Order
	answerBy time.Time
	// leaseEnd is the end of the lease by the monotonic clock, counted from before the lease was taken.
	leaseEnd time.Time
	// takenOver: the payment is another caller's that nobody works on any more.
	takenOver bool
	gatewayT  time.Duration
	dbT       time.Duration
	attempts  int
	traceID   string
}

// begin is the first half of a confirm: refuse early, reserve. A nil payment comes with the answer instead.
func (w *work) begin(ctx context.Context) (*payment.Payment, *Answer, error) {
	if refusal := w.refusal(); refusal != nil {
		a, err := w.refuse(ctx, refusal)
		return nil, a, err
	}
	allowed, wait := w.members.take(w.order.MemberID)
	if !allowed {
		a, err := w.overLimit(ctx, wait)
		return nil, a, err
	}
	p, a, err := w.reserve(ctx)
	if p == nil {
		if a.Replayed {
			w.members.giveBack(w.order.MemberID)
		}
		return nil, w.stamp(a), err
	}
	w.flight.knows(p)
	return p, nil, nil
}

// refusal peeks at breaker and bulkhead; with the policy "pending" the payment is saved all the same.
func (s *Service) refusal() *payment.Answer {
	if s.set.KeepPending {
		return nil
	}
	return s.gateway.Peek()
}

// refuse answers without a write: from the row if one is there, else 503.
func (w *work) refuse(ctx context.Context, refusal *payment.Answer) (*Answer, error) {
	p, found, read := w.store.FindNow(ctx, w.order.PaymentKey, w.order.OrderID)
	switch {
	case !read:
		return refusedAnswer(refusal, payment.EarlierUnknown)
	case !found:
		return refusedAnswer(refusal, payment.EarlierNone)
	case !w.order.SameAs(p):
		return w.differs(p)
	case reopens(p):
		return refusedAnswer(refusal, payment.EarlierNone)
	case p.Status == payment.Pending:
		a, _, err := w.inFlight(ctx, p)
		if a == nil {
			return refusedAnswer(refusal, payment.EarlierUnknown)
		}
		return a, err
	default:
		a, err := answerRow(p)
		a.replayed()
		return a, err
	}
}

// overLimit lets a duplicate pass that the member has no call left for.
func (w *work) overLimit(ctx context.Context, wait time.Duration) (*Answer, error) {
	p, found, err := w.store.Find(ctx, w.order.PaymentKey, w.order.OrderID)
	if err != nil {
		return dbUnavailable(err)
	}
	if found && w.order.SameAs(p) && !reopens(p) {
		if p.Status == payment.Pending {
			if a, _, err := w.inFlight(ctx, p); a != nil {
				return a, err
			}
		}
		a, err := answerRow(p)
		a.replayed()
		return a, err
	}
	a := &Answer{Result: payment.ResultMemberRateLimited, RetryAfter: max(wait, time.Second)}
	return a, &payment.Error{
		Code: payment.CodeMemberRateLimited, RetryAfter: a.RetryAfter, Public: "Too many confirms of this member.",
	}
}

func (w *work) stamp(a *Answer) *Answer {
	if !a.Replayed {
		a.Gateway, a.DB, a.Attempts, a.TraceID = w.gatewayT, w.dbT, w.attempts, w.traceID
	}
	return a
}

// db measures one call of the store.
func (w *work) db() func() {
	start := time.Now()
	return func() { w.dbT += time.Since(start) }
}
