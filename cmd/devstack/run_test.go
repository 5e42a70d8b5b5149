package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The tests run one after the other: each is a whole stack, and the scripts of one must not be held open for writing
// by a child of another.

func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devstack-test-") //nolint:usetesting // t.TempDir is closed to the user who runs PostgreSQL for root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// skipShort skips what starts a PostgreSQL.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() && os.Getenv("PAYMENTD_REQUIRE_DB") != "1" {
		t.Skip("needs PostgreSQL; -short")
	}
}

// leftRunning lists the stack's processes that still run.
func leftRunning(t *testing.T, data string) (left []string) {
	t.Helper()
	for _, pid := range lines(t, filepath.Join(data, "pids")) {
		if state, err := exec.Command("ps", "-o", "stat=", "-p", pid).Output(); err == nil && !strings.HasPrefix(string(state), "Z") {
			left = append(left, pid)
		}
	}
	if out, err := exec.Command("ps", "-eo", "stat=,args=").Output(); err == nil {
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, filepath.Join(data, "postgres")) && !strings.HasPrefix(line, "Z") {
				left = append(left, strings.TrimSpace(line))
			}
		}
	}
	return left
}

func TestOnce(t *testing.T) {
	skipShort(t)
	data, bin := dataDir(t), fakes(t, "")
	for _, name := range []string{"cold", "warm"} {
		var out strings.Builder
		if err := run(t.Context(), []string{"--once", "--data", data, "--bin", bin}, &out); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out.String())
		}
		for _, want := range []string{
			"POST http://127.0.0.1:", `"paymentKey":"test_`, "200 OK", `"status": "PAID"`, "payment_key      test_", "status           PAID",
			`calls   {"seq":1,"op":"confirm"`, `"approvals":1`, "stopped: paymentd, tosssim, PostgreSQL",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: output lacks %q:\n%s", name, want, out.String())
			}
		}
		if left := leftRunning(t, data); len(left) > 0 {
			t.Errorf("%s: still running: %v", name, left)
		}
	}
	want := []string{"paymentd", "tosssim", "paymentd", "tosssim"}
	if diff := cmp.Diff(want, lines(t, filepath.Join(data, "stopped"))); diff != "" {
		t.Errorf("order of the stops (-want +got):\n%s", diff)
	}
}

// TestKeep: a run begins without the payments of the one before, which the simulator has forgotten, unless told to keep
// them.
func TestKeep(t *testing.T) {
	skipShort(t)
	data, bin := dataDir(t), fakes(t, "")
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"first", nil, "0"},
		{"again", nil, "0"},
		{"keep", []string{"--keep"}, "1"},
		{"keep again", []string{"--keep"}, "2"},
		{"fresh", []string{"--fresh"}, "0"},
	} {
		var out strings.Builder
		if err := run(t.Context(), append([]string{"--once", "--data", data, "--bin", bin}, tt.args...), &out); err != nil {
			t.Fatalf("%s: %v\n%s", tt.name, err, out.String())
		}
		found := lines(t, filepath.Join(data, "found"))
		if got := found[len(found)-1]; got != tt.want {
			t.Errorf("%s: paymentd found %s payments, want %s", tt.name, got, tt.want)
		}
	}
}

// untilPrinted ends a context when the text has been printed.
type untilPrinted struct {
	mu   sync.Mutex
	all  bytes.Buffer
	text string
	then func()
}

func (u *untilPrinted) Write(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.all.Write(p)
	if strings.Contains(u.all.String(), u.text) {
		u.then()
	}
	return len(p), nil
}

func TestStaysUpUntilInterrupted(t *testing.T) {
	skipShort(t)
	data := dataDir(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out := &untilPrinted{text: "Ctrl-C stops everything", then: interrupt}
	if err := run(ctx, []string{"--data", data, "--bin", fakes(t, "")}, out); err != nil {
		t.Fatal(err)
	}
	if text := out.all.String(); strings.Contains(text, "{public}") || strings.Contains(text, "{next") ||
		strings.Contains(text, "{settings}") || strings.Contains(text, "{paymentd}") || !strings.Contains(text, "PAYMENTD_TOSS_URL=") ||
		!strings.Contains(text, "/payments/sync") || !strings.Contains(text, operatorKey) {
		t.Errorf("guide:\n%s", text)
	}
	if left := leftRunning(t, data); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
}

func TestFailures(t *testing.T) {
	skipShort(t)
	for _, tt := range []struct {
		name, fault string
		want        []string
	}{
		{"no start", "no start", []string{"paymentd ended by itself with exit status 7", "PAYMENTD_LISTEN: no such thing"}},
		{"dies later", "dies later", []string{"paymentd ended by itself with exit status 7", "out of luck"}},
		{"money not taken", "no charge", []string{"took the money 0 times"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := dataDir(t)
			var out strings.Builder
			err := run(t.Context(), []string{"--data", data, "--bin", fakes(t, tt.fault)}, &out)
			if err == nil {
				t.Fatal("run went well")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error lacks %q: %v", want, err)
				}
			}
			if left := leftRunning(t, data); len(left) > 0 {
				t.Errorf("still running: %v", left)
			}
		})
	}
}

// TestKilled: devstack can clean nothing up after SIGKILL, and still leaves nothing running; the next start works.
func TestKilled(t *testing.T) {
	skipShort(t)
	data, bin := dataDir(t), fakes(t, "")
	cmd := exec.Command(os.Args[0], "--data", data, "--bin", bin)
	cmd.Env = append(os.Environ(), "DEVSTACK_TEST_ROLE=devstack")
	cmd.Dir = data
	up := make(chan struct{})
	out := &untilPrinted{text: "Ctrl-C stops everything", then: sync.OnceFunc(func() { close(up) })}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-up:
	case <-time.After(2 * time.Minute):
		t.Error("not up")
	}
	if got := len(leftRunning(t, data)); got < 3 {
		t.Errorf("%d processes run", got)
	}
	cmd.Process.Kill()
	cmd.Wait()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); len(leftRunning(t, data)) > 0; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("still running: %v", leftRunning(t, data))
		}
	}
	if err := run(t.Context(), []string{"--once", "--data", data, "--bin", bin}, &strings.Builder{}); err != nil {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"argument", []string{"up"}, `unexpected argument "up"`},
		{"port", []string{"--port", "70000"}, "between 1 and 65535"},
		{"keep and fresh", []string{"--keep", "--fresh"}, "contradict"},
		{"flag", []string{"--nosuch"}, "not defined"},
		{"help", []string{"--help"}, flag.ErrHelp.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var help strings.Builder
			_, err := parse(tt.args, &help)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v", err)
			}
			if errors.Is(err, flag.ErrHelp) && !strings.Contains(help.String(), "-once") {
				t.Errorf("help: %s", help.String())
			}
		})
	}
}

func TestInherited(t *testing.T) {
	t.Parallel()
	got := inherited([]string{"PATH=/bin", "PGHOST=elsewhere", "PAYMENTD_ANSWER_WITHIN=2s"})
	if diff := cmp.Diff([]string{"PATH=/bin", "PAYMENTD_ANSWER_WITHIN=2s"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
