package k6

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
		if !slices.ContainsFunc(runs, func(r short) bool { return r.script == name }) {
			t.Errorf("%s: no short run", name)
		}
	}
	for _, r := range runs {
		t.Run(r.script, func(t *testing.T) {
			out, err := r.run(t, k6, stack(t, bin, append(profile(t, r.profile), r.settings...)))
			t.Logf("%s", out)
			if err != nil {
				t.Errorf("k6: %v", err)
			}
		})
	}
	t.Run("money given back behind our back", func(t *testing.T) {
		doors := stack(t, bin, profile(t, "default"))
		done := make(chan error, 1)
		go func() { done <- giveBack(t.Context(), doors.control) }()
		out, err := runs[0].run(t, k6, doors)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err == nil || !strings.Contains(out, "1 cancels: nothing here gives money back") || !strings.Contains(out, "paymentd says") {
			t.Errorf("k6 ended with %v and did not find the cancel:\n%s", err, out)
		}
	})
}

// run lets k6 run the script and returns what it printed; the error is that of its status.
func (r short) run(t *testing.T, k6 string, at doors) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), k6, "run", "--no-color", "--quiet", r.script)
	cmd.Env = slices.Concat(os.Environ(), []string{
		"K6_NO_USAGE_REPORT=true", "BASE_URL=" + at.public, "ADMIN_URL=" + at.private, "CONTROL_URL=" + at.control,
		"CHECKOUT_KEY=" + at.checkout, "OPERATOR_KEY=" + at.operator,
	}, r.env)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// giveBack waits for a payment of the script and cancels it at the gateway.
func giveBack(ctx context.Context, control string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	call := func(method, path, body string, into any) error {
		req, err := http.NewRequestWithContext(ctx, method, control+"/control/"+path, strings.NewReader(body))
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return json.NewDecoder(res.Body).Decode(into)
	}
	for {
		var ledger struct {
			Payments []struct {
				PaymentKey string
				Balance    int64
			}
		}
		if err := call(http.MethodGet, "ledger", "", &ledger); err != nil {
			return err
		}
		for _, p := range ledger.Payments {
			if strings.HasPrefix(p.PaymentKey, "test_o-") && p.Balance > 0 {
				var answer map[string]any
				return call(http.MethodPost, "cancel", `{"paymentKey":"`+p.PaymentKey+`"}`, &answer)
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
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

// doors are the addresses and keys of a stack.
type doors struct{ public, private, control, checkout, operator string }

// stack starts PostgreSQL, the simulator and paymentd, and returns what devstack tells of them.
func stack(t *testing.T, bin string, settings []string) doors {
	t.Helper()
	data, err := os.MkdirTemp("", "k6-test-") //nolint:usetesting // t.TempDir is closed to the user who runs PostgreSQL for root
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(data) })
	if err := os.Chmod(data, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "devstack"), "--data", data)
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
	d := doorsTold.FindStringSubmatch(guide)
	if d == nil {
		t.Fatalf("devstack did not tell its doors:\n%s", guide)
	}
	return doors{public: d[1], private: d[2], control: d[3], checkout: d[4], operator: d[5]}
}
