package k6

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// scripts are all that k6 can run here.
func scripts(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.js")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	return names
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// copied is a folder with the scripts and what checks them; the tree itself gets no node_modules.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lib"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*.js", "*.json", "lib/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			if err := os.WriteFile(filepath.Join(dir, p), []byte(text(t, p)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

var noNetwork = regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH|ECONNRESET`)

// installed is a copy with the compiler in it.
func installed(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("fetches the compiler; -short")
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("the scripts are not type-checked: npm is missing")
	}
	dir := copied(t)
	install := exec.CommandContext(t.Context(), npm, "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = dir
	out, err := install.CombinedOutput()
	if err != nil && noNetwork.Match(out) {
		t.Skipf("the scripts are not type-checked: npm reaches no registry\n%s", out)
	}
	if err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return dir
}

// compile type-checks the folder and returns the complaints.
func compile(t *testing.T, dir string) (string, error) {
	t.Helper()
	check := exec.CommandContext(t.Context(), filepath.Join("node_modules", ".bin", "tsc"), "--pretty", "false")
	check.Dir = dir
	out, err := check.CombinedOutput()
	return string(out), err
}

// TestTypes: the scripts are well typed, and the check finds what k6 would find in the middle of a run.
func TestTypes(t *testing.T) {
	t.Parallel()
	dir := installed(t)
	if out, err := compile(t, dir); err != nil {
		t.Fatalf("tsc: %v\n%s", err, out)
	}
	for _, tt := range []struct{ name, file, old, new, want string }{
		{"executor", "steady.js", "'constant-arrival-rate'", "'constant-arrival-rat'", `steady.js(`},
		{"not exported", "limits.js", "import { check, sleep }", "import { chek, sleep }", `no exported member`},
		{"method", "lib/paymentd.js", "http.post(", "http.pst(", `'pst' does not exist`},
		{"wrong argument", "capacity.js", "confirm(order)", "confirm(order.orderId)", `not assignable to parameter of type 'Order'`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(dir, tt.file)
			good := text(t, path)
			bad := strings.Replace(good, tt.old, tt.new, 1)
			if bad == good {
				t.Fatalf("%s does not contain %q", tt.file, tt.old)
			}
			if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
					t.Error(err)
				}
			}()
			out, err := compile(t, dir)
			if err == nil || !strings.Contains(out, tt.want) {
				t.Errorf("tsc said %v, want a complaint with %q:\n%s", err, tt.want, out)
			}
		})
	}
}

// profilesNamed finds the profile in a script's header.
var profilesNamed = regexp.MustCompile(`deploy/profiles/[a-z-]+\.env`)

// TestScripts: each script says what it asks and how to run and read it, checks the money, and is in the README.
func TestScripts(t *testing.T) {
	t.Parallel()
	readme := text(t, "README.md")
	for _, name := range scripts(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := text(t, name)
			header, _, _ := strings.Cut(script, "\nimport ")
			for _, want := range []string{"// @ts-check\n// Question", "\n// paymentd: ", "\n// Run:      k6 run " + name, "\n// Read:     "} {
				if !strings.Contains(header, want) {
					t.Errorf("the header lacks %q", want)
				}
			}
			for _, want := range []string{"...always", "...patience", "return begin(", "verify(", "export function teardown(run)", "  end(run"} {
				if !strings.Contains(script, want) {
					t.Errorf("the script lacks %q", want)
				}
			}
			profiles := profilesNamed.FindAllString(header, -1)
			if len(profiles) == 0 {
				t.Error("the header names no profile")
			}
			for _, p := range profiles {
				if _, err := os.Stat(filepath.Join("..", "..", p)); err != nil {
					t.Error(err)
				}
			}
			if !strings.Contains(readme, "| `"+name+"` |") {
				t.Error("no row in README.md")
			}
		})
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+\\.js)` \\|").FindAllStringSubmatch(readme, -1) {
		if !slices.Contains(scripts(t), row[1]) {
			t.Errorf("README.md has %s, which is not there", row[1])
		}
	}
}

// program finds k6, which is no part of this module.
func program(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("k6")
	if err != nil {
		t.Skip("k6 is not on PATH")
	}
	return path
}

// TestInspect: k6 accepts every script's options and refuses a wrong one.
func TestInspect(t *testing.T) {
	t.Parallel()
	k6 := program(t)
	inspect := func(t *testing.T, path string) (string, error) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), k6, "inspect", path).CombinedOutput()
		return string(out), err
	}
	for _, name := range scripts(t) {
		if out, err := inspect(t, name); err != nil || !strings.Contains(out, "money_holds") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	bad := filepath.Join(copied(t), "steady.js")
	script := strings.Replace(text(t, bad), "'constant-arrival-rate'", "'constant-arrival-rat'", 1)
	if err := os.WriteFile(bad, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := inspect(t, bad); err == nil {
		t.Errorf("k6 accepts an executor that does not exist:\n%s", out)
	}
}
