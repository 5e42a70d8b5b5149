package devdb

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestFetch gets PostgreSQL by each way that leaves the system alone, into an empty cache, and starts it. It is slow
// and needs the registries: PAYMENTD_TEST_FETCH=1.
func TestFetch(t *testing.T) {
	if os.Getenv("PAYMENTD_TEST_FETCH") != "1" {
		t.Skip("downloads; PAYMENTD_TEST_FETCH=1 runs it")
	}
	for _, source := range []string{"apt", "npm"} {
		t.Run(source, func(t *testing.T) {
			find := FindOptions{Sources: []string{source}, Cache: dataDir(t), Progress: func(line string) { t.Log(line) }}
			openTo(t, find.Cache)
			for _, name := range []string{"cold", "warm"} {
				began := time.Now()
				s := start(t, Options{Find: find})
				t.Logf("%s: %v, %s from %s", name, time.Since(began).Round(time.Millisecond), s.Binaries().Version, s.Binaries().Source)
				if got := query[int](t, s.DSN("postgres"), "SELECT 1"); got != 1 || s.Binaries().Source != source {
					t.Errorf("got %d from %s", got, s.Binaries().Source)
				}
			}
			left, _ := filepath.Glob(filepath.Join(find.Cache, "*.part"))
			if len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func openTo(t *testing.T, dir string) {
	t.Helper()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// fakeSource fills the cache with a script that calls itself PostgreSQL.
type fakeSource struct {
	version string
	fills   *int
	err     error
}

func (fakeSource) folder() string { return "fake" }
func (fakeSource) need() error    { return nil }
func (s fakeSource) fill(_ context.Context, dir string) error {
	*s.fills++
	for _, program := range []string{"postgres", "initdb"} {
		script := "#!/bin/sh\necho '" + program + " (PostgreSQL) " + s.version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o700); err != nil {
			return err
		}
	}
	return s.err
}
func (fakeSource) binaries(dir string) (Binaries, error) {
	return Binaries{Dir: dir, Source: "fake"}, nil
}

// TestCache is not parallel: a process that another test starts meanwhile would hold the scripts open for writing.
func TestCache(t *testing.T) {
	for _, tt := range []struct {
		name      string
		source    fakeSource
		wantFills int
		wantErr   string
	}{
		{"kept for the next", fakeSource{version: "17.2"}, 1, ""},
		{"too old", fakeSource{version: "9.6"}, 2, "older than PostgreSQL 14"},
		{"broken download", fakeSource{version: "17.2", err: errors.New("cut off")}, 2, "cut off"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fills := 0
			tt.source.fills = &fills
			f, err := newFinder(FindOptions{Cache: dataDir(t)})
			if err != nil {
				t.Fatal(err)
			}
			openTo(t, f.Cache)
			for range 2 {
				bins, err := f.cached(t.Context(), tt.source)
				if tt.wantErr != "" {
					if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
						t.Errorf("got %v", err)
					}
				} else if err != nil || bins.Major != 17 {
					t.Errorf("got %+v, %v", bins, err)
				}
			}
			if fills != tt.wantFills {
				t.Errorf("filled %d times, want %d", fills, tt.wantFills)
			}
		})
	}
}

func TestNothingFound(t *testing.T) {
	t.Setenv("PATH", dataDir(t))
	t.Setenv("PAYMENTD_PG_BIN", "")
	_, err := Find(t.Context(), FindOptions{Sources: []string{"npm", "apt"}, Cache: dataDir(t)})
	if err == nil {
		t.Fatal("found one on an empty PATH with an empty cache")
	}
	for _, want := range []string{"npm is not installed", "no apt-get", "sudo apt-get install", "brew install", "npm install", "PAYMENTD_PG_BIN="} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %q:\n%v", want, err)
		}
	}
}

func TestExplicitFolderIsNotPassedOver(t *testing.T) {
	t.Setenv("PAYMENTD_PG_BIN", dataDir(t))
	if _, err := Find(t.Context(), FindOptions{}); !errors.Is(err, errExplicit) {
		t.Errorf("got %v", err)
	}
}

func TestSourcesFromEnv(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		want        []string
	}{
		{"unset", "", allSources()},
		{"list", "npm, apt", []string{"npm", "apt"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PAYMENTD_TEST_PG_SOURCE", tt.value)
			if diff := cmp.Diff(tt.want, sourcesFromEnv()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewestFirst(t *testing.T) {
	t.Parallel()
	dirs := []string{"/usr/lib/postgresql/9.6/bin", "/usr/lib/postgresql/18/bin", "/usr/lib/postgresql/17/bin"}
	slices.SortFunc(dirs, newestFirst)
	want := []string{"/usr/lib/postgresql/18/bin", "/usr/lib/postgresql/17/bin", "/usr/lib/postgresql/9.6/bin"}
	if diff := cmp.Diff(want, dirs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLinkLibraries(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, links, wantErr string
	}{
		{"beside", `[{"source":"native/lib/a.so.1.2","target":"native/lib/a.so"}]`, ""},
		{"out of the package", `[{"source":"native/lib/a.so.1.2","target":"../a.so"}]`, "leads out"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			lib := filepath.Join(root, "native", "lib")
			if err := errors.Join(os.MkdirAll(lib, 0o755), os.WriteFile(filepath.Join(lib, "a.so.1.2"), []byte("x"), 0o644),
				os.WriteFile(filepath.Join(root, "native", "pg-symlinks.json"), []byte(tt.links), 0o644)); err != nil {
				t.Fatal(err)
			}
			err := linkLibraries(root)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got %v", err)
				}
				return
			}
			if text, readErr := os.ReadFile(filepath.Join(lib, "a.so")); err != nil || string(text) != "x" {
				t.Errorf("got %q, %v, %v", text, err, readErr)
			}
		})
	}
}

func TestCanReach(t *testing.T) {
	t.Parallel()
	stranger := &account{name: "stranger", uid: 4_000_000, gid: 4_000_000}
	open, closed := dataDir(t), dataDir(t)
	openTo(t, open)
	if err := stranger.canReach(filepath.Join(open, "data")); err != nil {
		t.Errorf("open folder: %v", err)
	}
	if err := stranger.canReach(filepath.Join(closed, "data")); err == nil || !strings.Contains(err.Error(), closed) {
		t.Errorf("closed folder: %v", err)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	make1 := func(name string, age time.Duration) string {
		dir := filepath.Join(base, temporaryPrefix+name)
		past := time.Now().Add(-age)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chtimes(dir, past, past)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	abandoned, young, used := make1("abandoned", time.Hour), make1("young", 0), make1("used", time.Hour)
	lock, err := tryLock(filepath.Join(used, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(used, past, past); err != nil {
		t.Fatal(err)
	}
	sweep(base)
	left, _ := filepath.Glob(filepath.Join(base, "*"))
	slices.Sort(left)
	want := []string{used, young}
	slices.Sort(want)
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("swept %s? (-want +got):\n%s", abandoned, diff)
	}
}
