package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoBaseBackup means that this PostgreSQL came without pg_basebackup, as the one from npm does: it cannot copy itself.
var ErrNoBaseBackup = errors.New("pg_basebackup is missing beside postgres")

// replicated are the settings of a server that can be copied; sync comes once the standby is there.
func replicated() map[string]string {
	return map[string]string{"wal_level": "replica", "max_wal_senders": "4", "wal_keep_size": "128MB"}
}

// StartStandby starts a second server that follows s, and makes s wait for it at every commit (synchronous_commit=on).
// s must have been started with wal_level=replica. The standby serves reads until Promote. The error is ErrNoBaseBackup
// where the program for the copy is missing.
func (s *Server) StartStandby(ctx context.Context) (*Server, error) {
	if _, err := os.Stat(filepath.Join(s.bins.Dir, "pg_basebackup")); err != nil {
		return nil, fmt.Errorf("start a standby: %w (%s)", ErrNoBaseBackup, s.bins.Dir)
	}
	settings := replicated()
	// 5 s, the default, is also how long a promotion may wait for a dead primary.
	settings["wal_retrieve_retry_interval"] = "100ms"
	standby := &Server{options: Options{Settings: settings}, bins: s.bins, account: s.account, primary: s}
	if err := standby.run(ctx); err != nil {
		return nil, fmt.Errorf("standby: %w", err)
	}
	if err := s.awaitSync(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("standby: %w", err), standby.Stop())
	}
	return standby, nil
}

// baseBackup copies the running primary into an empty folder.
func (s *Server) baseBackup(ctx context.Context, dir string) error {
	cmd := s.bins.command(ctx, s.account, "pg_basebackup", "-D", dir, "-R", "-X", "stream", "-c", "fast", "--no-sync",
		"-d", fmt.Sprintf("host=127.0.0.1 port=%d user=postgres application_name=standby", s.primary.port))
	_, err := outputOf(cmd)
	return err
}

// awaitSync makes every commit wait for the standby, and returns when the server does so.
func (s *Server) awaitSync(ctx context.Context) error {
	return s.Cluster().with(ctx, "synchronous standby", func(conn *pgx.Conn) error {
		for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()"} {
			if err := execute(ctx, conn, sql); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, startWithin)
		defer cancel()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			var sync bool
			err := conn.QueryRow(ctx, `SELECT count(*) = 1 FROM pg_stat_replication
				WHERE sync_state = 'sync' AND state = 'streaming'`).Scan(&sync)
			if sync || err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("does not stream: %w", context.Cause(ctx))
			case <-tick.C:
			}
		}
	})
}

// Promote makes a standby the primary and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	return s.Cluster().with(ctx, "promote", func(conn *pgx.Conn) error {
		var done bool
		err := conn.QueryRow(ctx, "SELECT pg_promote(true, 60)").Scan(&done)
		if err == nil && !done {
			err = errors.New("not within a minute")
		}
		return err
	})
}

// Replicated gives the test a primary of its own with a synchronous standby: DB.Server and DB.Standby. DB.DSN names
// both and finds the one that takes writes. The test is skipped where a standby cannot be made.
func Replicated(t testing.TB, m Migration) *DB {
	t.Helper()
	db := Private(t, m, Options{Settings: replicated()})
	var err error
	if db.Standby, err = db.Server.StartStandby(t.Context()); errors.Is(err, ErrNoBaseBackup) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("test database: %v", err)
	}
	t.Cleanup(func() {
		if err := db.Standby.Stop(); err != nil {
			t.Errorf("stop the standby: %v", err)
		}
	})
	db.DSN = fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/%s?sslmode=disable&target_session_attrs=read-write",
		db.Server.Port(), db.Standby.Port(), db.Name)
	return db
}
