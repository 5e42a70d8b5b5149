package devdb

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

// migration counts its runs and makes one table.
func migration(hash string, runs *atomic.Int32) Migration {
	return Migration{Hash: hash, Up: func(ctx context.Context, dsn string) error {
		runs.Add(1)
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "CREATE TABLE orders (id int PRIMARY KEY)")
		return err
	}}
}

func TestNewGivesEachTestItsOwnDatabase(t *testing.T) {
	skipShort(t)
	t.Parallel()
	var runs atomic.Int32
	m := migration(t.Name(), &runs)
	t.Run("group", func(t *testing.T) {
		for range 6 {
			t.Run("clone", func(t *testing.T) {
				t.Parallel()
				db := New(t, m)
				exec1(t, db.DSN, "INSERT INTO orders VALUES (1)")
				if got := query[int](t, db.DSN, "SELECT count(*)::int FROM orders"); got != 1 {
					t.Errorf("%d rows, one is ours", got)
				}
			})
		}
	})
	if runs.Load() != 1 {
		t.Errorf("migrated %d times", runs.Load())
	}
}

// fakeTB is a test whose end and failure we decide.
type fakeTB struct {
	testing.TB
	failed   bool
	cleanups []func()
	logged   strings.Builder
}

func (f *fakeTB) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }
func (f *fakeTB) Failed() bool     { return f.failed }
func (f *fakeTB) Logf(s string, a ...any) {
	f.logged.WriteString(s)
	f.logged.WriteString(a[0].(string))
}
func (f *fakeTB) end() {
	for _, c := range f.cleanups {
		c()
	}
}

func TestDatabaseIsDroppedUnlessTheTestFailed(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	m := migration(t.Name(), &runs)
	for _, tt := range []struct {
		name   string
		failed bool
		want   int
	}{{"passed", false, 0}, {"failed", true, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tb := &fakeTB{TB: t}
			db := New(tb, m)
			open, err := pgx.Connect(t.Context(), db.DSN) // a leaked connection must not keep the database
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close(context.Background())
			tb.failed = tt.failed
			tb.end()
			got := query[int](t, db.Cluster.DSN("postgres"), "SELECT count(*)::int FROM pg_database WHERE datname = '"+db.Name+"'")
			if got != tt.want {
				t.Errorf("%d databases left, want %d", got, tt.want)
			}
			if said := strings.Contains(tb.logged.String(), db.DSN); said != tt.failed {
				t.Errorf("DSN logged: %v", said)
			}
		})
	}
}

func TestTemplate(t *testing.T) {
	skipShort(t)
	t.Parallel()
	cluster, err := shared.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("made once by many", func(t *testing.T) {
		t.Parallel()
		var runs atomic.Int32
		m := migration(t.Name(), &runs)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, err := cluster.Template(t.Context(), m); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if runs.Load() != 1 {
			t.Errorf("migrated %d times", runs.Load())
		}
	})
	t.Run("half made is made anew", func(t *testing.T) {
		t.Parallel()
		var runs atomic.Int32
		m := migration(t.Name(), &runs)
		half := Migration{Hash: m.Hash, Up: func(ctx context.Context, dsn string) error {
			return errors.Join(m.Up(ctx, dsn), errors.New("broken"))
		}}
		if _, err := cluster.Template(t.Context(), half); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Fatalf("got %v", err)
		}
		if _, err := cluster.Template(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDisconnect(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	db := New(t, migration(t.Name(), &runs))
	conn, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if n, err := db.Cluster.Disconnect(t.Context(), db.Name); n != 1 || err != nil {
		t.Fatalf("broke %d, %v", n, err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the connection still works")
	}
}

func TestPrivate(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	db := Private(t, migration(t.Name(), &runs), Options{})
	if err := db.Server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query[int](t, db.DSN, "SELECT count(*)::int FROM orders"); got != 0 {
		t.Errorf("%d rows", got)
	}
}

func TestClusterDSN(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, url, want string }{
		{"url", "postgres://u:p@h:1/postgres?sslmode=disable", "postgres://u:p@h:1/shop?sslmode=disable"},
		{"keywords", "host=h user=u dbname=postgres", "host=h user=u dbname=postgres dbname=shop"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := ClusterAt(tt.url).DSN("shop")
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if c, err := pgx.ParseConfig(got); err != nil || c.Database != "shop" {
				t.Errorf("pgx reads %v, %v", c, err)
			}
		})
	}
}

func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://u:hunter2@h/d", "host=h password=hunter2 user=u"} {
		if got := withoutPassword(dsn); strings.Contains(got, "hunter2") {
			t.Errorf("shows the password: %s", got)
		}
	}
}
