package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/payment"
)

// AcquireError means that no connection could be had: the statement was never sent.
type AcquireError struct {
	// Pool is "request" or "background".
	Pool string
	// Err is errBusy if all connections were in use for the whole wait, else why none could be made.
	Err error
}

// Error names the pool and the cause.
func (e *AcquireError) Error() string { return fmt.Sprintf("acquire %s connection: %v", e.Pool, e.Err) }

// Unwrap returns the cause.
func (e *AcquireError) Unwrap() error { return e.Err }

var errBusy = errors.New("all connections are in use")

// pool is a pgx pool with a semaphore in front, which knows who waits and whether a connection is free now.
type pool struct {
	name    string
	conns   *pgxpool.Pool
	slots   chan struct{}
	wait    time.Duration
	limit   time.Duration
	waiting atomic.Int64

	took     prometheus.Observer
	timeouts prometheus.Counter
}

// run lends a connection to one statement. Every error of getting one is an AcquireError.
func (p *pool) run(ctx context.Context, do func(context.Context, *lentConn) error) error {
	conn, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	return conn.run(ctx, do)
}

// acquire waits for a connection at most p.wait, dialing included. Every error is an AcquireError.
func (p *pool) acquire(ctx context.Context) (*lentConn, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, p.wait, errBusy)
	defer cancel()
	if !p.take() {
		p.waiting.Add(1)
		defer p.waiting.Add(-1)
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, p.refused(ctx, start, context.Cause(ctx))
		}
	}
	return p.dial(ctx, start)
}

// waits counts one who waits for a lane of the pool until ended tells whether it was taken; if not, the error is an
// AcquireError.
func (p *pool) waits() (ended func(taken bool) error) {
	start := time.Now()
	p.waiting.Add(1)
	return func(taken bool) error {
		p.waiting.Add(-1)
		if taken {
			return nil
		}
		p.timeouts.Inc()
		p.took.Observe(time.Since(start).Seconds())
		return &AcquireError{Pool: p.name, Err: errBusy}
	}
}

// tryAcquire is acquire without waiting for a slot: nil if none is free at this instant.
func (p *pool) tryAcquire(ctx context.Context) *lentConn {
	if !p.take() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	conn, err := p.dial(ctx, time.Now())
	if err != nil {
		return nil
	}
	return conn
}

// free reports whether tryAcquire would find a slot now.
func (p *pool) free() bool { return len(p.slots) < cap(p.slots) }

func (p *pool) take() bool {
	select {
	case p.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

// dial needs a slot, so that the pgx pool never makes us wait for a connection of somebody else.
func (p *pool) dial(ctx context.Context, start time.Time) (*lentConn, error) {
	conn, err := p.conns.Acquire(ctx)
	if err != nil {
		<-p.slots
		return nil, p.refused(ctx, start, err)
	}
	p.took.Observe(time.Since(start).Seconds())
	return &lentConn{Conn: conn, pool: p}, nil
}

func (p *pool) refused(ctx context.Context, start time.Time, err error) error {
	if errors.Is(context.Cause(ctx), errBusy) {
		p.timeouts.Inc()
	}
	p.took.Observe(time.Since(start).Seconds())
	return &AcquireError{Pool: p.name, Err: err}
}

// lentConn is a connection and its slot; both go back by release.
type lentConn struct {
	*pgxpool.Conn
	pool *pool
}

// run gives the statement an end of our own and the connection back. The server ends a statement too, but a connection
// that went silent (a failover behind one address) carries no word of it and would keep its slot for ever.
func (c *lentConn) run(ctx context.Context, do func(context.Context, *lentConn) error) error {
	defer c.release()
	ctx, cancel := context.WithTimeout(ctx, c.pool.limit)
	defer cancel()
	conn := c.Conn.Conn().PgConn()
	delete(conn.CustomData(), alone)
	err := do(ctx, c)
	if err == nil && conn.CustomData()[alone] != nil {
		return errNotReplicated
	}
	if readOnly(err) {
		// The primary is elsewhere by now, and the other connections of the pool lead to this server too.
		c.pool.conns.Reset()
	}
	return err
}

func (c *lentConn) release() {
	c.Release()
	<-c.pool.slots
}

// errReadOnly means that the server takes no writes: a standby, or one with default_transaction_read_only.
var errReadOnly = errors.New("the server is read-only (a standby?)")

// errNotReplicated means that a statement has committed on the primary, and not on the synchronous standby that it had
// to wait for: a failover would lose it.
var errNotReplicated = errors.New("committed, but the synchronous standby has not confirmed it in time")

// alone marks a connection whose statement was not replicated.
const alone = "paymentd.alone"

// hearNotReplicated hears PostgreSQL's one word on that: the cancel request that ends a wait for the standby lets the
// statement succeed, with a warning. Neither its SQLSTATE nor its translated text tells it from others; its place does.
func hearNotReplicated(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[alone] = true
	}
}

// writable refuses a server that cannot keep a payment; pgx then tries the next host of the DSN.
func writable(ctx context.Context, conn *pgconn.PgConn) error {
	results, err := conn.Exec(ctx, "SHOW transaction_read_only").ReadAll()
	if err == nil && string(results[0].Rows[0][0]) == "on" {
		err = errReadOnly
	}
	return err
}

// readOnly reports whether err says so, or a statement's refusal does (SQLSTATE 25006).
func readOnly(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "25006" || errors.Is(err, errReadOnly)
}

// endingOf says what a writing statement that returned err did. What it cannot tell apart is "maybe applied".
func endingOf(err error) payment.Ending {
	if err == nil {
		return payment.Applied
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return payment.NoRows
	}
	// A dial that fails is not SafeToRetry, hence a type of its own.
	if _, ok := errors.AsType[*AcquireError](err); ok {
		return payment.NotApplied
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if severity(pg) == "ERROR" {
			return payment.NotApplied
		}
		return payment.MaybeApplied
	}
	if pgconn.SafeToRetry(err) {
		return payment.NotApplied
	}
	return payment.MaybeApplied
}

// severity is the word that no locale translates.
func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity
}

// violates reports whether err is the violation of a constraint, by its name.
func violates(err error, constraint string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.ConstraintName == constraint
}

// poisoned reports whether the data or the schema of a statement is at fault, not the moment: SQLSTATE classes
// 22 (data), 23 (constraints) and 42 (names and rights). It will be so the next time too.
func poisoned(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pg.Code) != 5 {
		return false
	}
	class := pg.Code[:2]
	return class == "22" || class == "23" || class == "42"
}

// statement is one SQL text with its arguments.
type statement struct {
	noun string
	sql  string
	args []any
}

// write runs one writing statement that returns at most one row. Its error is nil for NoRows, which is no failure.
func (s *Store) write(ctx context.Context, st statement, scan func(pgx.Row) error) (payment.Ending, error) {
	err := s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return scan(conn.QueryRow(ctx, st.sql, st.args...))
	})
	ending := endingOf(err)
	if ending == payment.NoRows {
		return ending, nil
	}
	return ending, wrap(st.noun, err)
}

// written is how a write of one payment ended. The payment is a pointer, because callers stand several frames deep.
type written struct {
	// payment is the row after it; nil unless it was applied.
	payment *payment.Payment
	ending  payment.Ending
	err     error
}

func (w written) results() (p payment.Payment, e payment.Ending, err error) {
	if w.payment != nil {
		p = *w.payment
	}
	return p, w.ending, w.err
}

// writeRow is write for a statement that returns the payment after it, and more.
func (s *Store) writeRow(ctx context.Context, st statement, more ...any) (w written) {
	p := new(payment.Payment)
	if w.ending, w.err = s.write(ctx, st, func(row pgx.Row) error { return scanPayment(row, p, more...) }); w.ending == payment.Applied {
		w.payment = p
	}
	return w
}

// writePayment is writeRow with the row as a value.
func (s *Store) writePayment(ctx context.Context, st statement) (payment.Payment, payment.Ending, error) {
	return s.writeRow(ctx, st).results()
}
