package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
	"paymentd/internal/store"
)

// books is where a confirm is written down. The process ends with them: nothing closes them.
type books interface {
	reserve(ctx context.Context, o payment.Order) (payment.Payment, error)
	settle(ctx context.Context, p payment.Payment, o payment.Observation) error
}

const conns = 10

// open opens the books of so many layers: "http" has none, "bare" has the tables of ceiling.sql with merged statements,
// "ledger" has paymentd's own store.
func open(ctx context.Context, layers, dsn string) (books, error) {
	switch layers {
	case "http":
		return none{}, nil
	case "bare":
		config, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		config.MaxConns = conns
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		b := &bare{pool: pool}
		b.inserts.run, b.updates.run = b.insert, b.update
		return b, nil
	case "ledger":
		s, err := store.Open(ctx, store.Options{
			DSN: dsn, RequestConns: conns, BackgroundConns: 1, AcquireTimeout: time.Second, StatementTimeout: 5 * time.Second, Merge: true,
		})
		return ledger{s}, err
	default:
		return nil, fmt.Errorf("LAYERS=%q: want http, bare or ledger", layers)
	}
}

// none forgets everything.
type none struct{}

func (none) reserve(context.Context, payment.Order) (p payment.Payment, err error) { return p, nil }

func (none) settle(context.Context, payment.Payment, payment.Observation) error { return nil }

// ledger is paymentd's store: its two statements, with the event and the notices.
type ledger struct{ store *store.Store }

func (l ledger) reserve(ctx context.Context, o payment.Order) (payment.Payment, error) {
	p, ending, err := l.store.Reserve(ctx, o, time.Minute)
	return p, unless(ending, err)
}

func (l ledger) settle(ctx context.Context, p payment.Payment, o payment.Observation) error {
	_, ending, err := l.store.Settle(ctx, approval.Settlement{
		Payment: p, Observation: o, Actor: payment.ByConfirm,
		Action: payment.Action{Do: payment.Settle, To: payment.Paid, Reason: "approved"},
	})
	return unless(ending, err)
}

// unless is nil if the write was applied.
func unless(ending payment.Ending, err error) error {
	if ending == payment.Applied {
		return nil
	}
	return errors.Join(errors.New(ending.String()), err)
}

// bare is the tables of ceiling.sql. At most one statement of a kind runs; it has all that arrived while the one before ran.
type bare struct {
	pool             *pgxpool.Pool
	inserts, updates queue
}

func (b *bare) reserve(_ context.Context, o payment.Order) (p payment.Payment, err error) {
	r := &row{orderID: o.OrderID, amount: int64(o.Amount)}
	b.inserts.do(r)
	return payment.Payment{ID: r.id}, r.err
}

func (b *bare) settle(_ context.Context, p payment.Payment, _ payment.Observation) error {
	r := &row{id: p.ID}
	b.updates.do(r)
	return r.err
}

func (b *bare) insert(ctx context.Context, rows []*row) error {
	orders, amounts, byOrder := make([]string, len(rows)), make([]int64, len(rows)), make(map[string]*row, len(rows))
	for i, r := range rows {
		orders[i], amounts[i], byOrder[r.orderID] = r.orderID, r.amount, r
	}
	inserted, err := b.pool.Query(ctx, `INSERT INTO ceiling_payments (order_id, amount, status)
		SELECT n.order_id, n.amount, 'PENDING' FROM unnest($1::text[], $2::bigint[]) AS n (order_id, amount) RETURNING id, order_id`, orders, amounts)
	if err != nil {
		return err
	}
	defer inserted.Close()
	for inserted.Next() {
		var id int64
		var order string
		if err := inserted.Scan(&id, &order); err != nil {
			return err
		}
		byOrder[order].id = id
	}
	return inserted.Err()
}

func (b *bare) update(ctx context.Context, rows []*row) error {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	_, err := b.pool.Exec(ctx, `WITH moved AS (
			UPDATE ceiling_payments SET status = 'PAID', updated_at = now() WHERE id = ANY($1) AND status = 'PENDING' RETURNING id
		), event AS (
			INSERT INTO ceiling_events (payment_id, from_status, to_status) SELECT id, 'PENDING', 'PAID' FROM moved
		)
		INSERT INTO ceiling_notices (payment_id, kind) SELECT id, 'payment.paid' FROM moved`, ids)
	return err
}

// row is one call of a queue and its result.
type row struct {
	id      int64
	orderID string
	amount  int64
	err     error
	// lead tells its caller that the row was run (false), or that it is his turn to run all that wait.
	lead chan bool
}

// queue runs one statement at a time.
type queue struct {
	run  func(context.Context, []*row) error
	mu   sync.Mutex
	busy bool
	rows []*row
}

// do returns when r has been run.
func (q *queue) do(r *row) {
	r.lead = make(chan bool, 1)
	q.mu.Lock()
	q.rows = append(q.rows, r)
	if first := !q.busy; first {
		q.busy = true
		r.lead <- true
	}
	q.mu.Unlock()
	if !<-r.lead {
		return
	}
	q.mu.Lock()
	rows := q.rows
	q.rows = nil
	q.mu.Unlock()
	err := q.run(context.Background(), rows)
	for _, other := range rows {
		other.err = err
		if other != r {
			other.lead <- false
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.busy = len(q.rows) > 0; q.busy {
		q.rows[0].lead <- true
	}
}
