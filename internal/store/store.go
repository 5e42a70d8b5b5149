// Package store keeps payments in PostgreSQL. One method is one statement and one named step: what is committed
// together stands in one SQL text, and no transaction can span a call to the gateway.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/approval"
)

// Options of a Store; all but Registerer and Logger must be given.
type Options struct {
	DSN string
	// RequestConns and BackgroundConns are the most connections of the two pools (DB_MAX_CONNS,
	// DB_BACKGROUND_CONNS).
	RequestConns    int
	BackgroundConns int
	// AcquireTimeout is the longest wait for a connection, dialing included.
	AcquireTimeout time.Duration
	// StatementTimeout is enforced by the server, and a second later by the store, which a silent server cannot hold up.
	StatementTimeout time.Duration
	// Merge sends the plain statements of concurrent requests together (DB_MERGE).
	Merge bool
	// Registerer gets the metrics; nil: nobody does.
	Registerer prometheus.Registerer
	// Logger hears of a notice that kept a payment from being settled; nil: nobody does.
	Logger *slog.Logger
}

// Store is PostgreSQL as seen through one of two pools: requests, or background work. The zero value is of no use.
type Store struct {
	pool       *pool
	request    *pool
	background *pool
	metrics    *metrics
	log        *slog.Logger
	// reserves and settles are nil where statements are not merged.
	reserves *merger[string, reservation]
	settles  *merger[int64, *move]
	// courier is nil until HandNoticesTo.
	courier Courier
}

var _ approval.Store = (*Store)(nil)

// cancelGrace is how long a statement whose context ended may take to heed the cancel request; only then the
// connection is given up.
const cancelGrace = 2 * time.Second

// limitSlack lets the server's own time-out be heard first: it says for certain that nothing was applied.
const limitSlack = time.Second

// leastDial lets a dial outlive a short AcquireTimeout: whoever asks next finds the connection.
const leastDial = 5 * time.Second

// Open makes the pools and proves that the database answers; it does not try twice. The error names no password.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{log: o.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	request, err := newPool(ctx, o, o.RequestConns, "force_generic_plan")
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	background, err := newPool(ctx, o, o.BackgroundConns, "auto")
	if err != nil {
		request.Close()
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.request = &pool{name: "request", conns: request, slots: make(chan struct{}, o.RequestConns), wait: o.AcquireTimeout, limit: o.limit()}
	s.background = &pool{name: "background", conns: background, slots: make(chan struct{}, o.BackgroundConns), wait: o.AcquireTimeout, limit: o.limit()}
	s.pool = s.request
	s.metrics = newMetrics(o.Registerer, s)
	if o.Merge {
		s.newMergers(max(1, o.RequestConns/2), o.AcquireTimeout)
	}
	if err := s.Ping(ctx); err != nil {
		s.Close()
		if o.Registerer != nil {
			s.metrics.unregister(o.Registerer)
		}
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

func (o Options) check() error {
	switch {
	case o.DSN == "":
		return errors.New("no DSN")
	case o.RequestConns < 1 || o.BackgroundConns < 1:
		return errors.New("a pool needs at least one connection")
	case o.AcquireTimeout <= 0 || o.StatementTimeout < time.Millisecond:
		return errors.New("the time-outs must be positive")
	}
	return nil
}

// limit is the end of every statement as seen from here.
func (o Options) limit() time.Duration { return o.StatementTimeout + limitSlack }

// newPool makes a pool whose connections plan their prepared statements as PostgreSQL's plan_cache_mode says.
func newPool(ctx context.Context, o Options, conns int, plans string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	config.MinConns = 0
	config.ConnConfig.RuntimeParams["statement_timeout"] = strconv.FormatInt(o.StatementTimeout.Milliseconds(), 10)
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "paymentd"
	}
	// A plan is kept as long as its connection: made while a table was small, it would read all of it when it is large
	// (ADR 0013). Where there is no index the scan's price is so high that servers would compile the plan: never.
	config.ConnConfig.RuntimeParams["enable_seqscan"] = "off"
	config.ConnConfig.RuntimeParams["jit"] = "off"
	// Left to itself PostgreSQL may plan a merged statement anew each time, which costs it more than a row (ADR 0013).
	// Background work asks for the first so many of something: such a plan must know of how many.
	config.ConnConfig.RuntimeParams["plan_cache_mode"] = plans
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	// pgx dials on when its caller has given up; without an end a dial into nothing would keep a place in the pool.
	if most := max(o.AcquireTimeout, leastDial); config.ConnConfig.ConnectTimeout <= 0 || config.ConnConfig.ConnectTimeout > most {
		config.ConnConfig.ConnectTimeout = most
	}
	config.ConnConfig.ValidateConnect = writable
	config.ConnConfig.OnNotice = hearNotReplicated
	config.BeforeClose = endOfBroken
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, o.limit())
		defer cancel()
		return raiseDurability(ctx, conn)
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// endOfBroken closes the socket of a connection that broke once its server has had a second for the cancel request. pgx
// would wait 15 s for the server's own close, and a silent connection would keep its place in the pool as long.
func endOfBroken(conn *pgx.Conn) {
	if conn.IsClosed() {
		socket := conn.PgConn().Conn()
		time.AfterFunc(time.Second, func() { _ = socket.Close() })
	}
}

// raiseDurability keeps a server's weaker default away from money; a stronger one stays.
func raiseDurability(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `SELECT set_config('synchronous_commit', 'on', false)
		WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')`)
	return err
}

// Background is the same store over the background pool, for work that no request waits for.
func (s *Store) Background() *Store {
	view := *s
	view.pool = s.background
	view.reserves, view.settles = nil, nil
	return &view
}

// Close waits for the statements under way and ends all connections of both pools.
func (s *Store) Close() {
	s.request.conns.Close()
	s.background.conns.Close()
}

// Ping proves that a statement runs, on a server that takes writes.
func (s *Store) Ping(ctx context.Context) error {
	return wrap("ping", s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return writable(ctx, conn.Conn.Conn().PgConn())
	}))
}

// Durability is what the server promises of a commit.
type Durability struct {
	// Fsync is false if a crash of the server's machine may lose what was committed.
	Fsync bool
	// SynchronousCommit is the configured default of the database and user; the store itself never runs below "on".
	SynchronousCommit string
}

// Durability reads the server's settings for the check at start.
func (s *Store) Durability(ctx context.Context) (d Durability, err error) {
	err = s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return conn.QueryRow(ctx, `SELECT current_setting('fsync')::boolean,
			(SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')`).Scan(&d.Fsync, &d.SynchronousCommit)
	})
	return d, wrap("read durability", err)
}

// SchemaVersion is the newest migration that is applied (goose's table).
func (s *Store) SchemaVersion(ctx context.Context) (version int64, err error) {
	err = s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return conn.QueryRow(ctx, `SELECT max(version_id) FROM goose_db_version WHERE is_applied`).Scan(&version)
	})
	return version, wrap("read schema version", err)
}
