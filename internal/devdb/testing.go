package devdb

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// DB is a database of one test.
type DB struct {
	DSN  string
	Name string
	// Cluster makes further databases and breaks connections.
	Cluster Cluster
	// Server is set by Private and Replicated alone: the test may stop, kill and restart it.
	Server *Server
	// Standby is set by Replicated alone: the test may promote it.
	Standby *Server
}

// process is the one server that the tests of a process share, with its templates.
type process struct {
	mu        sync.Mutex
	cluster   Cluster
	server    *Server
	err       error
	started   bool
	templates map[string]func() (string, error)
}

// shared is package state because testing offers no place for what all tests of a process use.
var shared = &process{templates: map[string]func() (string, error){}}

// New gives the test a migrated database of its own on the server of this test process, or on the one at
// PAYMENTD_TEST_DATABASE_URL. It is dropped at the end; that of a failed test is kept and its DSN logged.
//
// Without a server the test fails: one can always be had. With -short it is skipped, unless PAYMENTD_REQUIRE_DB=1.
//
// The server ends with the process, also without Main. Its goroutine for goleak.IgnoreAnyFunction is
// "paymentd/internal/devdb/child.(*Process).own".
func New(t testing.TB, m Migration) *DB {
	t.Helper()
	skipShort(t)
	cluster, err := shared.open(t.Context())
	if err != nil {
		t.Fatalf("test database: %v", err)
	}
	template, err := shared.template(m)
	if err != nil {
		t.Fatalf("test database: %v", err)
	}
	return clone(t, cluster, template)
}

// Private gives the test a server of its own, which it may kill, with one migrated database.
func Private(t testing.TB, m Migration, o Options) *DB {
	t.Helper()
	skipShort(t)
	if o.Find.Progress == nil {
		o.Find.Progress = progress
	}
	server, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("test database: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stop PostgreSQL: %v", err)
		}
	})
	db := &DB{Name: "paymentd", Cluster: server.Cluster(), Server: server, DSN: server.DSN("paymentd")}
	if err := db.Cluster.Create(t.Context(), db.Name); err != nil {
		t.Fatalf("test database: %v", err)
	}
	if err := m.Up(t.Context(), db.DSN); err != nil {
		t.Fatalf("test database: migrate: %v", err)
	}
	return db
}

// Main runs the tests and stops the shared server in order: os.Exit(devdb.Main(m)) in TestMain. It is for packages
// that want the server gone when their process has ended; without it that takes a moment longer.
func Main(m interface{ Run() int }) int {
	code := m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "devdb:", err)
			return max(code, 1)
		}
	}
	return code
}

func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() && os.Getenv("PAYMENTD_REQUIRE_DB") != "1" {
		t.Skip("needs PostgreSQL; -short")
	}
}

func progress(line string) { fmt.Fprintln(os.Stderr, "devdb:", line) }

func (p *process) open(ctx context.Context) (Cluster, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started {
		return p.cluster, p.err
	}
	p.started = true
	if dsn := os.Getenv("PAYMENTD_TEST_DATABASE_URL"); dsn != "" {
		p.cluster = ClusterAt(dsn)
		return p.cluster, nil
	}
	// The first test's end must not end what the others wait for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute)
	defer cancel()
	if p.server, p.err = Start(ctx, Options{Find: FindOptions{Progress: progress}}); p.err == nil {
		p.cluster = p.server.Cluster()
	}
	return p.cluster, p.err
}

// template migrates once per hash and process; other hashes do not wait for it.
func (p *process) template(m Migration) (string, error) {
	p.mu.Lock()
	once, ok := p.templates[m.Hash]
	if !ok {
		cluster := p.cluster
		once = sync.OnceValues(func() (string, error) { return cluster.Template(context.Background(), m) })
		p.templates[m.Hash] = once
	}
	p.mu.Unlock()
	return once()
}

func clone(t testing.TB, c Cluster, template string) *DB {
	t.Helper()
	name := databaseName(t.Name())
	if err := c.Clone(t.Context(), template, name); err != nil {
		t.Fatalf("test database: %v", err)
	}
	db := &DB{Name: name, DSN: c.DSN(name), Cluster: c}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kept the database of the failed test (a private server ends with this process; "+
				"set PAYMENTD_TEST_DATABASE_URL to look at it later): psql '%s'", withoutPassword(db.DSN))
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.Drop(ctx, name); err != nil {
			t.Errorf("test database: %v", err)
		}
	})
	return db
}

func withoutPassword(dsn string) string {
	if u, err := url.Parse(dsn); err == nil && u.Scheme != "" {
		return u.Redacted()
	}
	return regexp.MustCompile(`password=\S+`).ReplaceAllString(dsn, "password=xxxxx")
}

// databaseName is readable and unique also on a server that several machines share.
func databaseName(test string) string {
	readable := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(test), "_")
	return "t_" + readable[:min(len(readable), 40)] + "_" + strings.ToLower(rand.Text()[:12])
}
