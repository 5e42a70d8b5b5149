package pg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"paymentd/breaker"
	"paymentd/internal/payment"
)

// try makes one request and classifies what comes back. A panic in here, of the decoder above all, is an
// answer: the request may have been written.
func (c *Client) try(ctx context.Context, q *request) (a answer) {
	start := time.Now()
	listed := true
	defer func() {
		if r := recover(); r != nil {
			a = panicked(r)
		}
		a.Took = time.Since(start)
		c.metrics.try(q.op, *a)
		if !listed {
			c.log.LogAttrs(ctx, slog.LevelWarn, "gateway said a code that is not listed", c.attrs(q, a)...)
			return
		}
		c.note(ctx, q, a)
	}()
	r, failed := c.exchange(ctx, q)
	if failed != nil {
		failed.Observation.Sighting = payment.SeenNoAnswer
		return failed
	}
	a, listed = c.conclude(q, r)
	return a
}

// conclude is apart from try for the size of its frame, which would be on the stack while Toss works.
func (c *Client) conclude(q *request, r reply) (a answer, listed bool) {
	if q.read != nil && r.status >= 200 && r.status < 300 {
		a = &payment.Answer{HTTPStatus: r.status, Observation: payment.Observation{TraceID: r.traceID}}
		q.read(a, r)
		return a, true
	}
	return c.classifier.classify(q.op, r, q.want)
}

// note writes one line about an answer that is not plainly good.
func (c *Client) note(ctx context.Context, q *request, a answer) {
	level := slog.LevelWarn
	switch a.Kind {
	case payment.KindPayment:
		if a.Observation.Sighting != payment.SeenUnknownStatus {
			return
		}
	case payment.KindDeclined, payment.KindNotFound:
		level = slog.LevelInfo
	default:
	}
	c.log.LogAttrs(ctx, level, "gateway answer", c.attrs(q, a)...)
}

// attrs leaves out the paymentKey, with which a payment can be confirmed, and Toss's message, which may repeat
// what a buyer typed.
func (c *Client) attrs(q *request, a answer) []slog.Attr {
	attrs := []slog.Attr{slog.String("op", q.op), slog.String("kind", string(a.Kind)), slog.Float64("took_ms", float64(a.Took.Microseconds())/1000)}
	if q.orderID != "" {
		attrs = append(attrs, slog.String("order_id", q.orderID))
	}
	if a.HTTPStatus != 0 {
		attrs = append(attrs, slog.Int("status", a.HTTPStatus), slog.String("code", a.Code), slog.String("trace_id", a.Observation.TraceID))
	}
	if a.Err != nil {
		attrs = append(attrs, slog.String("error", a.Err.Error()))
	}
	return attrs
}

// panicked is the answer of a try that ended in a bug of ours. The value stays out: it may hold what was sent.
func panicked(r any) answer {
	return &payment.Answer{
		Kind: payment.KindPanic, Err: fmt.Errorf("panic of type %T\n%s", r, debug.Stack()),
		Observation: payment.Observation{Sighting: payment.SeenNoAnswer},
	}
}

// endOf is the answer by which a layer of ours ended a sequence with something heard; nil if none did.
func endOf(err error) answer {
	if e, ok := errors.AsType[*ended](err); ok && e.answer.Kind != "" {
		return &e.answer
	}
	if errors.Is(err, breaker.ErrOpen) {
		return &refusedByBreaker(err).answer
	}
	return nil
}
