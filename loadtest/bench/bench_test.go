package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/loadtest/rig"
)

// TestBench runs everything once, far too short to mean anything. What a machine makes that stands still is measured
// once more, at most three times.
func TestBench(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Getenv("PAYMENTD_REQUIRE_DB") != "1" {
		t.Skip("needs PostgreSQL; -short")
	}
	program, err := rig.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for tries := 1; ; tries++ {
		problems := shortest(t, program)
		if len(problems) > 0 && tries < 4 && !slices.ContainsFunc(problems, func(p string) bool { return !byStandstill.MatchString(p) }) {
			t.Logf("measured once more: %s", strings.Join(problems, "\n"))
			continue
		}
		for _, p := range problems {
			t.Error(p)
		}
		return
	}
}

// byStandstill finds what is wrong with a measurement that saw no answer, or with confirms of which some found no
// connection in time.
var byStandstill = regexp.MustCompile(`PerSecond:0 |want every answer to be 200, got (\d+ × 200, )?\d+ × 503$|trial: 503 (busy|db_unavailable)$`)

// shortest is one run, and what is wrong with it.
func shortest(t *testing.T, program string) (problems []string) {
	t.Helper()
	path, profiles := filepath.Join(t.TempDir(), "results", "bench.json"), t.TempDir()
	var out strings.Builder
	err := run(t.Context(), []string{
		"--rounds", "1", "--seconds", "0.3", "--clients", "1,8", "--sweep", "5,20", "--gateway", "50ms", "--json", path, "--profile", profiles,
		"--paymentd", program,
	}, &out)
	t.Log(out.String())
	if errors.Is(err, errBooks) {
		t.Fatal(err) // at no pace
	}
	if err != nil {
		return []string{err.Error()}
	}
	r := resultsIn(t, path)
	problems = append(checkCeiling(r.Ceiling), checkSweep(r.Sweep)...)
	if files, err := filepath.Glob(filepath.Join(profiles, "*.pprof")); len(files) != 6 {
		problems = append(problems, fmt.Sprintf("profiles %v: %v", files, err))
	}
	return problems
}

func resultsIn(t *testing.T, path string) (r results) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestLayers runs paymentd and the servers that do less, each of which must have written down what it was asked to.
func TestLayers(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Getenv("PAYMENTD_REQUIRE_DB") != "1" {
		t.Skip("needs PostgreSQL; -short")
	}
	path := filepath.Join(t.TempDir(), "bench.json")
	for tries := 1; ; tries++ {
		var out strings.Builder
		err := run(t.Context(), []string{"--layers", "--only", "S9", "--rounds", "1", "--seconds", "0.3", "--clients", "8", "--json", path}, &out)
		t.Log(out.String())
		if err == nil {
			break
		}
		if tries == 4 || !byStandstill.MatchString(err.Error()) {
			t.Fatal(err)
		}
	}
	var names []string
	for _, c := range resultsIn(t, path).Ceiling[0].Cells {
		names = append(names, c.Name)
	}
	want := []string{"paymentd", "HTTP and our statements", "HTTP and bare tables", "HTTP"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("layers (-want +got):\n%s", diff)
	}
}

func checkCeiling(rounds []round) (problems []string) {
	if len(rounds) != 1 || len(rounds[0].Cells) != 4 {
		return []string{fmt.Sprintf("%d rounds of S9", len(rounds))}
	}
	for _, c := range rounds[0].Cells {
		if c.PerSecond <= 0 || c.P50 <= 0 || c.P50 > c.P99 || c.Own <= 0 || c.Own > c.P99 || c.CPU <= 0 || c.CPU > 1 || c.Allocations < 50 {
			problems = append(problems, fmt.Sprintf("impossible: %+v", c))
		}
		if rounds[0].Own > 0 && (c.OwnRatio <= 0 || c.BareRatio <= 0) {
			problems = append(problems, fmt.Sprintf("no ratios: %+v", c))
		}
	}
	return problems
}

func checkSweep(s sweep) (problems []string) {
	want := map[string]string{"confirm": "200", "refusal": "503", "replay": "200"}
	if len(s.Steps) != 6 {
		return []string{fmt.Sprintf("%d steps of S8", len(s.Steps))}
	}
	for _, step := range s.Steps {
		if step.Statuses[want[step.Kind]] == 0 || step.PerSecond <= 0 || step.P50 > step.P99 {
			problems = append(problems, fmt.Sprintf("impossible: %+v", step))
		}
		if step.Kind == "confirm" && (step.P50 < 50 || step.PerSecond > step.Ideal) {
			problems = append(problems, fmt.Sprintf("faster than the gateway: %+v", step))
		}
	}
	if s.Memory.Waiting != 20 || s.Memory.Live <= 0 {
		problems = append(problems, fmt.Sprintf("impossible: %+v", s.Memory))
	}
	return problems
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--rounds", "0"}, {"--seconds", "0"}, {"--clients", ""}, {"--clients", "1,x"}, {"--sweep", "0"}, {"--only", "S7"}, {"extra"},
		{"--layers", "--only", "S8"}, {"--layers", "--against", "paymentd"},
		{"--layers", "--with", "PAYMENTD_BULKHEAD=1"}, {"--against", "paymentd", "--with", "PAYMENTD_BULKHEAD=1"},
	} {
		if _, err := parse(args, &strings.Builder{}); err == nil {
			t.Errorf("%q accepted", args)
		}
	}
}

func TestMedians(t *testing.T) {
	t.Parallel()
	rounds := []round{
		{Cells: []cell{{Name: "a", Clients: 1, P50: 3}, {Name: "b", Clients: 1, P50: 10}}},
		{Cells: []cell{{Name: "b", Clients: 1, P50: 20}, {Name: "a", Clients: 1, P50: 1}}},
		{Cells: []cell{{Name: "a", Clients: 1, P50: 2}, {Name: "b", Clients: 1, P50: 60}}},
	}
	want := []cell{{Name: "a", Clients: 1, P50: 2}, {Name: "b", Clients: 1, P50: 20}}
	if diff := cmp.Diff(want, medians(rounds)); diff != "" {
		t.Errorf("medians (-want +got):\n%s", diff)
	}
	if got := median([]float64{4, 1}); got != 2.5 {
		t.Errorf("median of two is %g", got)
	}
}
