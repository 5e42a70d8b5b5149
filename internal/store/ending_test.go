package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"paymentd/internal/devdb"
	"paymentd/internal/payment"
)

type retryable bool

func (r retryable) Error() string     { return "net" }
func (r retryable) SafeToRetry() bool { return bool(r) }

func TestEndingOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want payment.Ending
	}{
		{"no error", nil, payment.Applied},
		{"no row", fmt.Errorf("x: %w", pgx.ErrNoRows), payment.NoRows},
		{"no connection", &AcquireError{Pool: "request", Err: io.EOF}, payment.NotApplied},
		{"no connection in time", &AcquireError{Pool: "request", Err: context.DeadlineExceeded}, payment.NotApplied},
		{"never sent", fmt.Errorf("x: %w", retryable(true)), payment.NotApplied},
		{"maybe sent", retryable(false), payment.MaybeApplied},
		{"constraint", &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505"}, payment.NotApplied},
		{"statement time-out", fmt.Errorf("x: %w", &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "57014"}), payment.NotApplied},
		{"translated", &pgconn.PgError{Severity: "오류", SeverityUnlocalized: "ERROR"}, payment.NotApplied},
		{"old server", &pgconn.PgError{Severity: "ERROR"}, payment.NotApplied},
		{"terminated", &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"}, payment.MaybeApplied},
		{"crash", &pgconn.PgError{SeverityUnlocalized: "PANIC"}, payment.MaybeApplied},
		{"broken connection", io.ErrUnexpectedEOF, payment.MaybeApplied},
		{"deadline", context.DeadlineExceeded, payment.MaybeApplied},
		{"unreadable row", errors.New("cannot scan"), payment.MaybeApplied},
	} {
		if got := endingOf(tt.err); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestPoisoned(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"22P05": true, "23514": true, "42703": true, "40001": false, "57014": false, "53300": false, "": false} {
		if got := poisoned(wrap("x", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
	if poisoned(nil) || poisoned(io.EOF) {
		t.Error("not from the server")
	}
}

// waitFor polls the database until a backend waits for the lock on payments.
func (f *fixture) waitForLocked() int {
	f.t.Helper()
	for range 2000 {
		var pid int
		err := f.side.QueryRow(f.t.Context(), `SELECT pid FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' LIMIT 1`).Scan(&pid)
		if err == nil {
			return pid
		}
		time.Sleep(time.Millisecond)
	}
	f.t.Fatal("nobody waits")
	return 0
}

// blocked runs a settle that waits for a row lock, lets the fault happen and returns the ending.
func (f *fixture) blocked(ctx context.Context, p payment.Payment, fault func(pid int)) (payment.Ending, error) {
	f.t.Helper()
	f.exec("BEGIN")
	f.exec("SELECT FROM payments WHERE id = $1 FOR UPDATE", p.ID)
	type result struct {
		e   payment.Ending
		err error
	}
	done := make(chan result)
	go func() {
		_, e, err := f.Settle(ctx, settlement(p, payment.Paid, payment.ByConfirm))
		done <- result{e, err}
	}()
	fault(f.waitForLocked())
	r := <-done
	f.exec("ROLLBACK")
	return r.e, r.err
}

// TestEndingOfRealFaults is trap 37 too: a lost acknowledgement is never "not applied".
func TestEndingOfRealFaults(t *testing.T) {
	t.Parallel()
	t.Run("terminated in the middle", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		e, err := f.blocked(t.Context(), f.reserved("a"), func(pid int) { f.exec("SELECT pg_terminate_backend($1)", pid) })
		if e != payment.MaybeApplied || err == nil {
			t.Errorf("%s, %v", e, err)
		}
	})
	t.Run("statement time-out while waiting for a lock", func(t *testing.T) {
		t.Parallel()
		f := setup(t, func(o *Options) { o.StatementTimeout = 3 * time.Second })
		e, err := f.blocked(t.Context(), f.reserved("a"), func(int) {})
		if e != payment.NotApplied || !strings.Contains(err.Error(), "57014") {
			t.Errorf("%s, %v", e, err)
		}
		if p := f.row("pk_a"); p.Status != payment.Pending {
			t.Errorf("%s", p.Status)
		}
	})
	t.Run("context over, by a cancel request", func(t *testing.T) {
		t.Parallel()
		f := setup(t, func(o *Options) { o.RequestConns = 1 })
		p := f.reserved("a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var backend int
		e, err := f.blocked(ctx, p, func(pid int) { backend = pid; cancel() })
		if e == payment.Applied || err == nil {
			t.Errorf("%s, %v", e, err)
		}
		t.Logf("%s: %v", e, err)
		if _, _, err := f.Find(t.Context(), "pk_a", ""); err != nil {
			t.Error(err)
		}
		if !ask[bool](f, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", backend) {
			t.Error("the deadline cost the connection")
		}
	})
	t.Run("pool exhausted", func(t *testing.T) {
		t.Parallel()
		f := setup(t, func(o *Options) { o.RequestConns = 1 })
		p := f.reserved("a")
		f.request.wait = 100 * time.Millisecond
		conn, err := f.pool.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.release()
		_, e, err := f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm))
		if busy, ok := errors.AsType[*AcquireError](err); e != payment.NotApplied || !ok || busy.Pool != "request" || !errors.Is(err, errBusy) {
			t.Errorf("%s, %v", e, err)
		}
		if n := testutil.ToFloat64(f.metrics.timeouts.WithLabelValues("request")); n != 1 {
			t.Errorf("%v time-outs counted", n)
		}
		if _, _, err := f.Background().Find(t.Context(), "pk_a", ""); err != nil {
			t.Errorf("background work waits for requests: %v", err)
		}
	})
	t.Run("context over before a connection was had", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, e, err := f.Reserve(ctx, order("a"), lease); e != payment.NotApplied || err == nil {
			t.Errorf("%s, %v", e, err)
		}
	})
}

// TestServerStopped: a dial that is refused is certain, and the store recovers by itself.
func TestServerStopped(t *testing.T) {
	t.Parallel()
	db := devdb.Private(t, migration(), devdb.Options{})
	f := setupOn(t, db)
	p := f.reserved("a")
	f.request.wait = 30 * time.Second
	if err := db.Server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The first statements may meet a connection that is dead: certain or not, but never applied.
	var e payment.Ending
	var err error
	for range 4 {
		if _, e, err = f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm)); e == payment.Applied || e == payment.NoRows || err == nil {
			t.Fatalf("%s, %v", e, err)
		}
	}
	if _, ok := errors.AsType[*AcquireError](err); e != payment.NotApplied || !ok {
		t.Errorf("dial refused: %s, %v", e, err)
	}
	if _, err := f.reg.Gather(); err != nil {
		t.Errorf("a scrape without the database: %v", err)
	}
	if err := f.Ping(t.Context()); err == nil {
		t.Error("ping a stopped server")
	}
	if _, err := Open(t.Context(), options(db.DSN)); err == nil || !strings.HasPrefix(err.Error(), "open store: ") {
		t.Errorf("open: %v", err)
	}
	if err := db.Server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, e, err = f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm)); e != payment.Applied {
		// One dead idle connection may be left.
		_, e, err = f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm))
	}
	if e != payment.Applied || err != nil {
		t.Errorf("after the restart: %s, %v", e, err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for level, want := range map[string]string{"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"} {
		t.Run("a session where synchronous_commit is "+level, func(t *testing.T) {
			f.exec(fmt.Sprintf("ALTER DATABASE %q SET synchronous_commit = %s", f.db.Name, level))
			g := setupOn(t, f.db)
			for _, s := range []*Store{g.Store, g.Background()} {
				conn, err := s.pool.acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var timeout, commit string
				if err := conn.QueryRow(t.Context(), "SELECT current_setting('statement_timeout'), current_setting('synchronous_commit')").Scan(&timeout, &commit); err != nil {
					t.Error(err)
				}
				conn.release()
				if timeout != "20s" || commit != want {
					t.Errorf("statement_timeout %s, synchronous_commit %s", timeout, commit)
				}
			}
			d, err := g.Durability(t.Context())
			if err != nil || d.SynchronousCommit != level || d.Fsync {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	good := options(f.db.DSN)
	for name, change := range map[string]func(*Options){
		"no DSN":        func(o *Options) { o.DSN = "" },
		"broken DSN":    func(o *Options) { o.DSN = "postgres://u:hunter2@%zz/" },
		"no requests":   func(o *Options) { o.RequestConns = 0 },
		"no background": func(o *Options) { o.BackgroundConns = 0 },
		"no wait":       func(o *Options) { o.AcquireTimeout = 0 },
		"no time-out":   func(o *Options) { o.StatementTimeout = 0 },
		"nobody there":  func(o *Options) { o.DSN = "postgres://u:hunter2@127.0.0.1:1/x" },
	} {
		o := good
		change(&o)
		s, err := Open(t.Context(), o)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
		if s != nil {
			s.Close()
		}
	}
}
