package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const profileDir = "../../deploy/profiles"

// profileNames are all the profiles.
func profileNames(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(profileDir, "*.env"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range paths {
		names = append(names, strings.TrimSuffix(filepath.Base(p), ".env"))
	}
	return names
}

// profileLine is what docker --env-file and a shell read alike: no quote, no space, no comment behind, nothing to
// expand.
var profileLine = regexp.MustCompile(`^PAYMENTD_[A-Z0-9_]+=[A-Za-z0-9_.,:/-]+$`)

// profile reads the settings of a file and its comment.
func profile(t testing.TB, name string) (set []string, comment string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(profileDir, name+".env"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"):
			comment += line + "\n"
		case profileLine.MatchString(line):
			set = append(set, line)
		default:
			t.Errorf("%s: a shell or docker may misread %q", name, line)
		}
	}
	return set, comment
}

func variables(set []string) []string {
	var names []string
	for _, line := range set {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// TestProfiles: every profile starts, says what it costs, and sets everything that another one sets, so that changing
// profiles leaves nothing behind.
func TestProfiles(t *testing.T) {
	t.Parallel()
	names := profileNames(t)
	if want := []string{"connect-only-pending", "default", "fail-fast", "layered"}; !slices.Equal(names, want) {
		t.Fatalf("profiles %q, want %q", names, want)
	}
	base, _ := profile(t, "default")
	doc, err := os.ReadFile("../../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, comment := profile(t, name)
			c, err := loadConfig(minimal(set...))
			if err != nil {
				t.Fatal(err)
			}
			says := fmt.Sprintf("What it costs: D = %s, lease = %s, RESEND_WITHIN = %s, SHUTDOWN_WITHIN = %s.",
				c.Deadline(), c.Lease(), c.Resend(), c.Shutdown())
			if !strings.Contains(comment, "\n# "+says+"\n") {
				t.Errorf("the comment does not say %q", says)
			}
			row := fmt.Sprintf("| `%s.env` | %s | %s | %s | %s |", name, c.Deadline(), c.Lease(), c.Resend(), c.Shutdown())
			if !strings.Contains(string(doc), "\n"+row) {
				t.Errorf("docs/profiles.md lacks the row %q", row)
			}
			if !strings.HasPrefix(comment, "# "+name+": ") || !strings.Contains(comment, "\n# Choose it ") || !strings.Contains(comment, "\n# - Callers: ") {
				t.Error("the comment does not say when to choose it and what callers see")
			}
			if c.Resend() < c.Lease()+2*c.RecoveryDueEvery || c.Shutdown() < c.Deadline() {
				t.Errorf("lease %s and D %s do not fit in RESEND_WITHIN %s and SHUTDOWN_WITHIN %s", c.Lease(), c.Deadline(), c.Resend(), c.Shutdown())
			}
			for _, v := range variables(base) {
				if !slices.Contains(variables(set), v) {
					t.Errorf("%s is set by default.env and not here", v)
				}
			}
			if unique := slices.Compact(variables(set)); len(unique) != len(set) {
				t.Errorf("a variable is set twice: %q", variables(set))
			}
		})
	}
}

// TestProfileDefault: the file is the built-in defaults.
func TestProfileDefault(t *testing.T) {
	t.Parallel()
	set, _ := profile(t, "default")
	got, err := loadConfig(minimal(set...))
	if err != nil {
		t.Fatal(err)
	}
	want, err := loadConfig(minimal())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-built in +default.env)\n%s", diff)
	}
}

// TestProfileScenarios: the numbers that the scenarios name.
func TestProfileScenarios(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"fail-fast": {"RETRY_MAX=0", "BREAKER_WINDOW=20", "BREAKER_MIN_CALLS=10", "BREAKER_FAILURE_RATE=0.5",
			"BREAKER_OPEN_FOR=30s", "BREAKER_HALF_OPEN_CALLS=3", "TOSS_CONFIRM_TIMEOUT=15s"},
		"connect-only-pending": {"BREAKER_WINDOW=10", "BREAKER_MIN_CALLS=5", "BREAKER_FAILURE_RATE=0.5", "BREAKER_OPEN_FOR=10s",
			"BREAKER_HALF_OPEN_CALLS=3", "RETRY_PLACE=outside", "RETRY_MAX=2", "RETRY_DELAY=500ms", "RETRY_ON=connect", "ON_UNAVAILABLE=pending"},
		"layered": {"BULKHEAD=20", "RATE_LIMIT=30/s", "RETRY_MAX=1", "RETRY_DELAY=500ms", "RETRY_PLACE=inside",
			"TOSS_CONFIRM_TIMEOUT=60s", "BREAKER_WINDOW=20", "BREAKER_FAILURE_RATE=0.5"},
	} {
		set, _ := profile(t, name)
		for _, line := range want {
			if !slices.Contains(set, prefix+line) {
				t.Errorf("%s.env lacks %s", name, prefix+line)
			}
		}
	}
}

// TestProfileShell: `set -a; . file` gives the same variables.
func TestProfileShell(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no shell")
	}
	for _, name := range profileNames(t) {
		set, _ := profile(t, name)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `set -a; . "$0"; exec env`, filepath.Join(profileDir, name+".env"))
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v %s", name, err, out)
		}
		got := map[string]bool{}
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, prefix) {
				got[strings.TrimSpace(line)] = true
			}
		}
		slices.Sort(set)
		if diff := cmp.Diff(set, slices.Sorted(maps.Keys(got))); diff != "" {
			t.Errorf("%s (-file +shell)\n%s", name, diff)
		}
	}
}
