package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestHelp: every subcommand explains itself and then does nothing.
func TestHelp(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"help"}, {"--help"}, {"-h"}}
	for _, c := range commands() {
		rows = append(rows, []string{c.name, "--help"}, []string{c.name, "-h"})
	}
	for _, args := range rows {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := run(t.Context(), args, nil, &out); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), "usage: paymentd ") {
				t.Errorf("no usage in %q", out.String())
			}
		})
	}
}

// TestServeHelpNamesEverySetting: the help is the list of all variables.
func TestServeHelpNamesEverySetting(t *testing.T) {
	t.Parallel()
	r := runBinary(t, nil, "serve", "--help")
	for _, f := range fields() {
		if !strings.Contains(r.stdout, prefix+f.Name) {
			t.Errorf("serve --help lacks %s", f.Name)
		}
	}
	if r.status != 0 || r.stderr != "" {
		t.Errorf("status %d, stderr %q", r.status, r.stderr)
	}
}

// TestCommandLine: the real program, its exit status and what it says where.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	// Nobody listens there, also no other test that is given a free port: the port is privileged.
	const closed = "127.0.0.1:1"
	lost := "PAYMENTD_DATABASE_URL=postgres://pay:db-secret@" + closed + "/pay?sslmode=disable"
	for _, tc := range []struct {
		name   string
		args   []string
		env    []string
		status int
		out    []string
		errs   []string
	}{
		{name: "version", args: []string{"version"}, out: []string{"paymentd dev (go1."}},
		{name: "version as a flag", args: []string{"--version"}, out: []string{"paymentd dev (go1."}},
		{name: "nothing", status: 1, errs: []string{"usage: paymentd <command>"}},
		{name: "unknown command", args: []string{"srve"}, status: 1, errs: []string{`unknown command "srve"`}},
		{name: "too many arguments", args: []string{"serve", "now"}, status: 1, errs: []string{"too many arguments"}},
		{
			name: "all mistakes at once", args: []string{"serve"}, status: 1,
			env: []string{"PAYMENTD_BULKHEAD=many", "PAYMENTD_RATE_LIMIT=30", "PAYMENTD_RETRY_MAXIMUM=1"},
			errs: []string{
				"PAYMENTD_BULKHEAD", "PAYMENTD_RATE_LIMIT", "PAYMENTD_RETRY_MAXIMUM", "DATABASE_URL", "API_KEYS", "TOSS_SECRET_KEY",
			},
		},
		{name: "good settings", args: []string{"serve", "--check"}, env: minimal(), out: []string{"settings are good: D 58.75s, lease 1m0.75s"}},
		{
			name: "no database", args: []string{"serve"}, status: 1,
			env:  append(minimal()[1:], lost, "PAYMENTD_DB_CONNECT_TIMEOUT=300ms"),
			errs: []string{"database not reached within PAYMENTD_DB_CONNECT_TIMEOUT (300ms)"},
		},
		{name: "migrate without a database", args: []string{"migrate"}, status: 1, errs: []string{"PAYMENTD_DATABASE_URL is required"}},
		{name: "unknown verb", args: []string{"migrate", "sideways"}, env: []string{lost}, status: 1, errs: []string{`unknown verb "sideways"`}},
		{name: "down needs a yes", args: []string{"migrate", "down"}, env: []string{lost}, status: 1, errs: []string{"say --yes"}},
		{name: "nobody is healthy", args: []string{"healthcheck", "--url", "http://" + closed + "/readyz"}, status: 1, errs: []string{"healthcheck:"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := runBinary(t, tc.env, tc.args...)
			if r.status != tc.status {
				t.Errorf("exit status %d, want %d", r.status, tc.status)
			}
			for _, want := range tc.out {
				if !strings.Contains(r.stdout, want) {
					t.Errorf("stdout lacks %q:\n%s", want, r.stdout)
				}
			}
			for _, want := range tc.errs {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("stderr lacks %q:\n%s", want, r.stderr)
				}
			}
			if both := r.stdout + r.stderr; strings.Contains(both, "secret-0123456789") || strings.Contains(both, "db-secret") {
				t.Errorf("a secret is shown:\n%s", both)
			}
			if r.took > time.Minute {
				t.Errorf("took %s", r.took)
			}
		})
	}
}

// TestFlagErrors: every subcommand tells of a flag that it cannot read on stderr alone, in one line and with the same status.
func TestFlagErrors(t *testing.T) {
	t.Parallel()
	rows := [][]string{
		{"notices", "list"}, {"notices", "replay"}, {"sync", "order-1", "--timeout=soon"}, {"notices", "replay", "id", "--since=soon"},
	}
	for _, c := range commands() {
		rows = append(rows, []string{c.name})
	}
	for _, args := range rows {
		wrong := args[len(args)-1]
		if !strings.HasPrefix(wrong, "--") {
			wrong = "--loud"
			args = append(args, wrong)
		}
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			r := runBinary(t, nil, args...)
			flag, _, _ := strings.Cut(wrong[1:], "=")
			if r.status != 1 || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 ||
				!strings.Contains(r.stderr, flag) || !strings.Contains(r.stderr, "see paymentd "+args[0]) {
				t.Errorf("status %d, stdout %q, stderr %q", r.status, r.stdout, r.stderr)
			}
		})
	}
}

// TestMigrateAndHealth: the schema goes up and down by hand, and the health check tells of a service without it.
func TestMigrateAndHealth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := []string{"PAYMENTD_DATABASE_URL=" + w.db.DSN}
	step := func(status int, stdout, stderr string, args ...string) {
		t.Helper()
		r := runBinary(t, env, args...)
		for end := time.Now().Add(time.Minute); args[0] == "healthcheck" && time.Now().Before(end); r = runBinary(t, env, args...) {
			if r.status == status && strings.Contains(r.stderr, stderr) {
				break // it gives up after seconds, which a busy machine takes
			}
		}
		if r.status != status || !strings.Contains(r.stdout, stdout) || !strings.Contains(r.stderr, stderr) {
			t.Errorf("%v: exit status %d, stdout %q, stderr %q", args, r.status, r.stdout, r.stderr)
		}
	}
	in := w.start()
	env = append(env, "PAYMENTD_ADMIN_LISTEN="+strings.TrimPrefix(in.admin, "http://"))
	step(0, "ready\n", "", "healthcheck")
	step(1, "", "say --yes", "migrate", "down")
	step(0, "20", "", "migrate", "status")
	step(0, "pending", "", "migrate", "down", "--yes")
	step(1, "", "not ready: 503", "healthcheck")
	if n := w.count(`SELECT count(*) FROM pg_tables WHERE tablename = 'payments'`); n != 0 {
		t.Error("migrate down left the table")
	}
	step(0, "pending", "", "migrate", "status")
	step(0, "20", "", "migrate")
	step(0, "20", "", "migrate", "up")
	step(0, "ready\n", "", "healthcheck")
	in.confirm(newOrder("migrated")).want(t, 200, "PAID")
	w.ledgerHolds()
}

// TestHeapFloor: whoever rules the collector rules it alone.
func TestHeapFloor(t *testing.T) {
	t.Parallel()
	rows := []struct {
		name string
		set  map[string]string
		want int
	}{
		{"nothing set", nil, 32 << 20},
		{"GOGC", map[string]string{"GOGC": "100"}, 0},
		{"GOMEMLIMIT", map[string]string{"GOMEMLIMIT": "1GiB"}, 0},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := len(heapFloor(func(name string) string { return row.set[name] })); got != row.want {
				t.Errorf("a floor of %d bytes, want %d", got, row.want)
			}
		})
	}
}
