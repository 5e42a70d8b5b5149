package devdb

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain lets the test binary also be the parent that TestParentKilled kills.
func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv("PAYMENTD_TEST_PARENT"); ok {
		server, err := Start(context.Background(), Options{DataDir: dir})
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println(serverPid(server), server.folder.root)
		select {}
	}
	os.Exit(Main(m))
}

func serverPid(s *Server) int {
	text, _ := os.ReadFile(filepath.Join(s.folder.data, "postmaster.pid"))
	line, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(line)
	return pid
}

// dataDir is a kept folder that the server's user can reach.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "paymentd-kept-") //nolint:usetesting // t.TempDir is closed to the user who runs PostgreSQL for root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	skipShort(t)
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop() })
	return s
}

func query[T any](t *testing.T, dsn, sql string) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func exec1(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// eventually waits for another process, whose end nothing here can announce.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("still not: %s", what)
		}
	}
}

// gone: the process has ended, be it that nobody has reaped it yet.
func gone(pid int) bool {
	state, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || strings.HasPrefix(string(state), "Z")
}

func TestStartAndStop(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	pid, root := serverPid(s), s.folder.root
	if got := query[string](t, s.DSN("postgres"), "SELECT current_setting('fsync') || current_setting('listen_addresses')"); got != "off127.0.0.1" {
		t.Errorf("fsync and address: %s", got)
	}
	if os.Geteuid() == 0 {
		owner, err := exec.Command("ps", "-o", "uid=", "-p", strconv.Itoa(pid)).Output()
		if err != nil || strings.TrimSpace(string(owner)) == "0" {
			t.Errorf("the server runs as uid %s (%v)", owner, err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if _, err := os.Stat(root); !errors.Is(err, os.ErrNotExist) || !gone(pid) {
		t.Errorf("left behind: folder %v, process gone %v", err, gone(pid))
	}
}

func TestKeptFolder(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	first := start(t, Options{DataDir: dir, Durable: true, Settings: map[string]string{"work_mem": "5MB"}})
	if got := query[string](t, first.DSN("postgres"), "SELECT current_setting('fsync') || current_setting('work_mem')"); got != "on5MB" {
		t.Errorf("settings: %s", got)
	}
	exec1(t, first.DSN("postgres"), "CREATE TABLE kept (n int)")

	if _, err := Start(t.Context(), Options{DataDir: dir}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("second start on the folder: %v", err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	// A pid file of a killed run whose number another program has now: ours.
	pidFile := filepath.Join(first.folder.data, "postmaster.pid")
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := start(t, Options{DataDir: dir})
	if got := query[int](t, second.DSN("postgres"), "SELECT count(*)::int FROM pg_class WHERE relname = 'kept'"); got != 1 {
		t.Error("the table is lost over a second start")
	}
	if err := second.Stop(); err != nil {
		t.Fatal(err)
	}
	third := start(t, Options{DataDir: dir, Fresh: true})
	if got := query[int](t, third.DSN("postgres"), "SELECT count(*)::int FROM pg_class WHERE relname = 'kept'"); got != 0 {
		t.Error("Fresh kept the table")
	}
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	exec1(t, s.DSN("postgres"), "CREATE TABLE kept (n int)")
	port := s.Port()
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if _, err := pgx.Connect(t.Context(), s.DSN("postgres")); err == nil {
		t.Error("a killed server answers")
	}
	for _, name := range []string{"after a kill", "while it runs"} {
		if err := s.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := query[int](t, s.DSN("postgres"), "SELECT count(*)::int FROM kept"); got != 0 || s.Port() != port {
			t.Errorf("%s: port %d, was %d", name, s.Port(), port)
		}
	}
}

func TestStartRefuses(t *testing.T) {
	t.Parallel()
	running := start(t, Options{})
	for _, tt := range []struct {
		name    string
		options Options
		want    string
	}{
		{"taken port", Options{Port: running.Port()}, "in use"},
		{"bad setting", Options{Settings: map[string]string{"no_such": "1"}}, "no_such"},
		{"unknown source", Options{Find: FindOptions{Sources: []string{"cloud"}}}, "installed, apt, npm, aptinstall"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, err := Start(t.Context(), tt.options)
			if err == nil {
				s.Stop()
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want it to name %q", err, tt.want)
			}
		})
	}
}

// TestParentKilled: a SIGKILL of the parent, which can run no clean-up, leaves no server and no temporary folder.
func TestParentKilled(t *testing.T) {
	skipShort(t)
	t.Parallel()
	parent := func(t *testing.T, dir string) (pid int, root string) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "PAYMENTD_TEST_PARENT="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, _ := bufio.NewReader(out).ReadString('\n')
		if _, err := fmt.Sscan(line, &pid, &root); err != nil || gone(pid) {
			t.Fatalf("parent said %q: %v", line, err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		return pid, root
	}
	t.Run("temporary folder", func(t *testing.T) {
		t.Parallel()
		pid, root := parent(t, "")
		eventually(t, "server gone", func() bool { return gone(pid) })
		eventually(t, "folder gone", func() bool { _, err := os.Stat(root); return errors.Is(err, os.ErrNotExist) })
	})
	t.Run("kept folder, next start at once", func(t *testing.T) {
		t.Parallel()
		dir := dataDir(t)
		pid, _ := parent(t, dir)
		s := start(t, Options{DataDir: dir})
		if query[int](t, s.DSN("postgres"), "SELECT 1") != 1 || !gone(pid) {
			t.Errorf("the earlier server is gone: %v", gone(pid))
		}
	})
}
