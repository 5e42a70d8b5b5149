package pg

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"paymentd/internal/payment"
)

// limiter is a token bucket with a queue. A token is taken when its holder goes, not when it is promised, so
// any t seconds see at most burst + rate·t; a waiter who gives up leaves the queue and everybody behind moves
// up. A nil limiter lets everybody through.
type limiter struct {
	mu     sync.Mutex
	bucket *rate.Limiter
	queue  []chan struct{} // closed when its waiter may go
	timer  *time.Timer
}

// newLimiter makes a full bucket; perSecond 0 means no limiter.
func newLimiter(perSecond float64, burst int) *limiter {
	if perSecond == 0 {
		return nil
	}
	return &limiter{bucket: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// secondsWorth is the burst of a rate without a setting for it.
func secondsWorth(perSecond float64) int { return max(1, int(math.Ceil(perSecond))) }

// take waits at most so long for a token. A refusal is decided on arrival; the end of ctx is one as well.
func (l *limiter) take(ctx context.Context, wait time.Duration) *ended {
	if l == nil {
		return nil
	}
	turn, refused := l.arrive(wait)
	if turn == nil {
		return refused
	}
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.queue, turn)
	if i < 0 { // its turn came at the same moment: the token is spent
		return nil
	}
	l.queue = slices.Delete(l.queue, i, i+1)
	return refuse(payment.RefusedByLimiter, 0, ctx.Err())
}

// arrive goes, queues or refuses.
func (l *limiter) arrive(wait time.Duration) (turn chan struct{}, refused *ended) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.queue) == 0 && l.bucket.AllowN(now, 1) {
		return nil, nil
	}
	if delay := l.delay(now, len(l.queue)+1); delay > wait {
		return nil, refuse(payment.RefusedByLimiter, delay-wait, nil)
	}
	turn = make(chan struct{})
	l.queue = append(l.queue, turn)
	if len(l.queue) == 1 {
		l.arm(now)
	}
	return turn, nil
}

// spare takes a token that nobody else will miss: nobody waits, and half of the bucket is left. It never waits.
func (l *limiter) spare() *ended {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now, kept := time.Now(), l.bucket.Burst()/2
	if len(l.queue) == 0 && l.bucket.TokensAt(now) >= float64(kept+1) && l.bucket.AllowN(now, 1) {
		return nil
	}
	return refuse(payment.RefusedByLimiter, l.delay(now, len(l.queue)+1+kept), nil)
}

// delay is the time until the bucket holds n tokens.
func (l *limiter) delay(now time.Time, n int) time.Duration {
	missing := float64(n) - l.bucket.TokensAt(now)
	return time.Duration(math.Ceil(missing / float64(l.bucket.Limit()) * float64(time.Second)))
}

// arm wakes serve when the first of the queue may go.
func (l *limiter) arm(now time.Time) {
	// The bucket counts in floating point: never wake for less than a tick.
	d := max(l.delay(now, 1), time.Microsecond)
	if l.timer == nil {
		l.timer = time.AfterFunc(d, l.serve)
		return
	}
	l.timer.Reset(d)
}

// serve lets go whoever has a token.
func (l *limiter) serve() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for len(l.queue) > 0 && l.bucket.AllowN(now, 1) {
		close(l.queue[0])
		l.queue = l.queue[1:]
	}
	if len(l.queue) > 0 {
		l.arm(now)
	}
}

// policy is the limiter for one execution; ctx ends its waiting.
func (l *limiter) policy(ctx context.Context, wait time.Duration) step {
	return func(inner run) run {
		return func(exec execution) *result {
			if refused := l.take(ctx, wait); refused != nil {
				return refused.result()
			}
			return inner(exec)
		}
	}
}

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
