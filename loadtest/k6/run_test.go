package k6

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// short is one quick run of a script: the profile of paymentd, settings that differ from it, variables of the script.
type short struct {
	script, profile string
	settings, env   []string
}

var runs = []short{
	{"steady.js", "default", nil, []string{"RATE=5", "DURATION=6s"}},
	{
		"slow-gateway.js", "default",
		[]string{"PAYMENTD_RATE_LIMIT=0", "PAYMENTD_BULKHEAD=0"},
		[]string{"DURATION=6s", "GATEWAY=3s", "WAIT=1s"},
	},
	{
		"hung-gateway.js", "fail-fast",
		[]string{"PAYMENTD_TOSS_CONFIRM_TIMEOUT=4s", "PAYMENTD_ANSWER_WITHIN=2s", "PAYMENTD_BREAKER_OPEN_FOR=12s"},
		[]string{"TIMEOUT=4s", "ANSWER=2s", "OPEN=12s"},
	},
	{
		"breaker-lifecycle.js", "connect-only-pending",
		[]string{"PAYMENTD_BREAKER_OPEN_FOR=5s"},
		[]string{"RATE=5", "DURATION=32s", "DOWN=6s", "UP=14s"},
	},
	{"limits.js", "layered", nil, []string{"DURATION=4s"}},
	{
		"capacity.js", "default",
		[]string{"PAYMENTD_RATE_LIMIT=0", "PAYMENTD_BULKHEAD=0", "PAYMENTD_MEMBER_LIMIT=0"},
		[]string{"DURATION=4s", "STEPS=10,30"},
	},
	{"duplicate-storm.js", "default", nil, []string{"DURATION=5s"}},
	{"sync-under-load.js", "default", nil, []string{"RATE=5", "DURATION=20s"}},
}

// TestRun runs every script once, shortened, against a stack of its own: minutes.
func TestRun(t *testing.T) {
	if os.Getenv("PAYMENTD_TEST_K6") != "1" {
		t.Skip("runs every script; PAYMENTD_TEST_K6=1")
	}
	k6 := program(t)
	bin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin+"/", "../../cmd/...").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, name := range scripts(t) {
		found := false
		for _, r := range runs {
			found = found || r.script == name
		}
		if !found {
			t.Errorf("%s: no short run", name)
		}
	}
	for _, r := range runs {
		t.Run(r.script, func(t *testing.T) {
			doors := stack(t, filepath.Join(bin, "devstack"), append(profile(t, r.profile), r.settings...))
			run := exec.CommandContext(t.Context(), k6, "run", "--no-color", "--quiet", r.script)
			run.Env = append(append(os.Environ(), "K6_NO_USAGE_REPORT=true"), append(doors, r.env...)...)
			out, err := run.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Errorf("k6: %v", err)
			}
		})
	}
}

func profile(t *testing.T, name string) (set []string) {
	t.Helper()
	for line := range strings.Lines(text(t, filepath.Join("..", "..", "deploy", "profiles", name+".env"))) {
		if strings.HasPrefix(line, "PAYMENTD_") {
			set = append(set, strings.TrimSpace(line))
		}
	}
	return set
}

var doorsTold = regexp.MustCompile(`(?s)public\s+(http://\S+).*?private\s+(http://\S+).*?simulator\s+(http://\S+)/control\s.*?checkout (\S+)\s+operator (\S+)`)

// stack starts PostgreSQL, the simulator and paymentd, and returns the addresses and keys that it tells.
func stack(t *testing.T, devstack string, settings []string) []string {
	t.Helper()
	data, err := os.MkdirTemp("", "k6-test-") //nolint:usetesting // t.TempDir is closed to the user who runs PostgreSQL for root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	if err := os.Chmod(data, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(devstack, "--data", data)
	cmd.Env = append(os.Environ(), settings...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	told := make(chan string, 1)
	go func() {
		defer close(ended)
		var all strings.Builder
		for lines := bufio.NewScanner(out); lines.Scan(); {
			all.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "Ctrl-C stops") {
				break
			}
		}
		told <- all.String()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(3 * time.Minute):
			_ = cmd.Process.Kill()
		}
	})
	guide := <-told
	doors := doorsTold.FindStringSubmatch(guide)
	if doors == nil {
		t.Fatalf("devstack did not tell its doors:\n%s", guide)
	}
	return []string{
		"BASE_URL=" + doors[1], "ADMIN_URL=" + doors[2], "CONTROL_URL=" + doors[3], "CHECKOUT_KEY=" + doors[4], "OPERATOR_KEY=" + doors[5],
	}
}
