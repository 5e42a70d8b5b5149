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
func (c *Client) try(ctx context.Context, q request) (a payment.Answer) {
	start := time.Now()
	listed := true
	defer func() {
		if r := recover(); r != nil {
			a = panicked(r)
		}
		a.Took = time.Since(start)
		c.metrics.try(q.op, a)
		if !listed {
			c.log.LogAttrs(ctx, slog.LevelWarn, "gateway said a code that is not listed", c.attrs(q, a)...)
			return
		}
		c.note(ctx, q, a)
	}()
	r, failed := c.exchange(ctx, q)
	if failed.Kind != "" {
		failed.Observation.Sighting = payment.SeenNoAnswer
		return failed
	}
	if q.read != nil && r.status >= 200 && r.status < 300 {
		return q.read(payment.Answer{HTTPStatus: r.status, Observation: payment.Observation{TraceID: r.traceID}}, r)
	}
	a, listed = c.classifier.classify(q.op, r, q.want)
	return a
}

// note writes one line about an answer that is not plainly good.
func (c *Client) note(ctx context.Context, q request, a payment.Answer) {
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
func (c *Client) attrs(q request, a payment.Answer) []slog.Attr {
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
func panicked(r any) payment.Answer {
	return payment.Answer{
		Kind: payment.KindPanic, Err: fmt.Errorf("panic of type %T\n%s", r, debug.Stack()),
		Observation: payment.Observation{Sighting: payment.SeenNoAnswer},
	}
}

// endOf is the answer by which a layer of ours ended a sequence; its Kind is empty if none did.
func endOf(err error) payment.Answer {
	if e, ok := errors.AsType[*ended](err); ok {
		return e.answer
	}
	if errors.Is(err, breaker.ErrOpen) {
		return refusedByBreaker(err).answer
	}
	return payment.Answer{}
}
