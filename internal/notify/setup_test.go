package notify

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"paymentd/internal/payment"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// outbox is a Queue in memory with the promises of the real one: due order, lease, fence, attempts raised by
// the claim. Its clock is time.Now, which a bubble makes virtual.
type outbox struct {
	// latency is the virtual time of one statement.
	latency time.Duration

	mu       sync.Mutex
	rows     []*row
	claims   []time.Time
	claimErr error
	strays   int
	finishes int
}

type row struct {
	notice  payment.Notice
	state   payment.NoticeState
	dueAt   time.Time
	doneAt  time.Time
	results []payment.NoticeResult
}

func (q *outbox) add(kind payment.NoticeKind, p payment.Payment) *row {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := &row{
		notice: payment.Notice{
			ID: "n-" + strconv.Itoa(len(q.rows)+1), Kind: kind, Sequence: p.Version,
			CreatedAt: time.Now(), Fence: int64(100 * (len(q.rows) + 1)), Payment: p,
		},
		state: payment.NoticeQueued,
		dueAt: time.Now(),
	}
	q.rows = append(q.rows, r)
	return r
}

func (q *outbox) ClaimNotices(ctx context.Context, limit int, lease time.Duration) ([]payment.Notice, error) {
	time.Sleep(q.latency)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	q.claims = append(q.claims, now)
	if q.claimErr != nil {
		return nil, q.claimErr
	}
	due := slices.DeleteFunc(slices.Clone(q.rows), func(r *row) bool {
		return r.state != payment.NoticeQueued || r.dueAt.After(now)
	})
	slices.SortStableFunc(due, func(a, b *row) int { return a.dueAt.Compare(b.dueAt) })
	var batch []payment.Notice
	for _, r := range due[:min(limit, len(due))] {
		r.dueAt = now.Add(lease)
		r.notice.Attempts++
		r.notice.Fence++
		r.notice.Now = now
		batch = append(batch, r.notice)
	}
	return batch, nil
}

func (q *outbox) FinishNotices(ctx context.Context, tries []payment.NoticeTry) (err error) {
	time.Sleep(q.latency)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finishes++
	for _, try := range tries {
		at := slices.IndexFunc(q.rows, func(r *row) bool {
			return r.notice.ID == try.Notice.ID && r.notice.Fence == try.Notice.Fence && r.state == payment.NoticeQueued
		})
		if at < 0 {
			q.strays++
			err = errors.New("fence does not match")
			continue
		}
		r := q.rows[at]
		r.results = append(r.results, try.Result)
		r.state = try.Result.State
		r.doneAt = time.Now()
		r.dueAt = r.doneAt.Add(try.Result.RetryIn)
	}
	return err
}

// stateOf may be asked while the pool runs.
func (q *outbox) stateOf(r *row) payment.NoticeState {
	q.mu.Lock()
	defer q.mu.Unlock()
	return r.state
}

func (q *outbox) finished() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.finishes
}

// claimed counts the claims.
func (q *outbox) claimed() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.claims)
}

// left counts the notices that are still queued.
func (q *outbox) left() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, r := range q.rows {
		if r.state == payment.NoticeQueued {
			n++
		}
	}
	return n
}

type senderFunc func(ctx context.Context, n payment.Notice) error

func (f senderFunc) Send(ctx context.Context, n payment.Notice) error { return f(ctx, n) }

// hang is a receiver that accepts and never answers.
func hang(ctx context.Context, _ payment.Notice) error {
	<-ctx.Done()
	return ctx.Err()
}

type bundle struct {
	pool     *Pool
	queue    *outbox
	registry *prometheus.Registry
	stop     func() error
}

// setup makes a pool on an empty outbox; run starts it, stop ends it and returns what Run returned.
func setup(t *testing.T, o Options) *bundle {
	t.Helper()
	b := &bundle{queue: &outbox{}, registry: prometheus.NewRegistry()}
	o.Queue, o.Registerer = b.queue, b.registry
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	if o.Workers == 0 {
		o.Workers = MaxWorkers
	}
	var err error
	if b.pool, err = New(o); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bundle) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.pool.Run(ctx) }()
	b.stop = func() error {
		cancel()
		return <-done
	}
}

func (b *bundle) count(s sinkName, result string) float64 {
	return testutil.ToFloat64(b.pool.metrics.attempts.WithLabelValues(string(s), result))
}

func paid(order string) payment.Payment {
	return payment.Payment{
		OrderID: order, PaymentKey: "key-" + order, Amount: 15000, Currency: payment.KRW, Status: payment.Paid,
		MemberID: "member-7", ReceiptEmail: "someone@example.com", Version: 4,
	}
}
