package pg

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/payment"
)

// slotFree is the Retry-After of a full bulkhead: nobody knows when a slot comes back, a second is polite.
const slotFree = time.Second

// bulkhead bounds how many confirms are at Toss at once. A slot comes back however the call ends.
type bulkhead struct {
	slots    chan struct{} // nil: no bound
	wait     time.Duration
	inFlight prometheus.Gauge
	waiting  prometheus.Gauge
}

func newBulkhead(o Bulkhead, m *metrics) *bulkhead {
	b := &bulkhead{wait: o.Wait, inFlight: m.inFlight, waiting: m.waiting}
	if o.Max > 0 {
		b.slots = make(chan struct{}, o.Max)
	}
	return b
}

// full reports whether a call would be refused now.
func (b *bulkhead) full() bool {
	return b.slots != nil && b.wait == 0 && len(b.slots) == cap(b.slots)
}

func (b *bulkhead) enter(ctx context.Context) *ended {
	if b.slots == nil {
		return nil
	}
	select {
	case b.slots <- struct{}{}:
		return nil
	default:
	}
	if b.wait == 0 {
		return refuse(payment.RefusedByBulkhead, slotFree, nil)
	}
	timer := time.NewTimer(b.wait)
	defer timer.Stop()
	b.waiting.Inc()
	defer b.waiting.Dec()
	select {
	case b.slots <- struct{}{}:
		return nil
	case <-timer.C:
		return refuse(payment.RefusedByBulkhead, slotFree, nil)
	case <-ctx.Done():
		return refuse(payment.RefusedByBulkhead, slotFree, ctx.Err())
	}
}

func (b *bulkhead) leave() {
	b.inFlight.Dec()
	if b.slots != nil {
		<-b.slots
	}
}

// policy is the bulkhead for one execution; ctx ends its waiting.
func (b *bulkhead) policy(ctx context.Context) step {
	return func(inner run) run {
		return func(exec execution) *result {
			if refused := b.enter(ctx); refused != nil {
				return refused.result()
			}
			b.inFlight.Inc()
			defer b.leave()
			return inner(exec)
		}
	}
}
