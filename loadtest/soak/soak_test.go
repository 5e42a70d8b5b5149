package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"paymentd/internal/devdb"
)

func TestMain(m *testing.M) { os.Exit(devdb.Main(m)) }

// TestSoak keeps the program from rotting: some seconds of it, in which the books must be right. Growth is judged on the
// long run alone, since a process that has just begun grows.
func TestSoak(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Getenv("PAYMENTD_REQUIRE_DB") != "1" {
		t.Skip("starts PostgreSQL and paymentd")
	}
	dir := t.TempDir()
	var said strings.Builder
	_ = run(t.Context(), []string{"--for", "13s", "--warm", "1s", "--cycle", "3s", "--every", "500ms", "--rate", "20", "--out", dir}, &said)
	text, err := os.ReadFile(filepath.Join(dir, "soak.json"))
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	var got result
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Confirms < 50 || got.Faults < 2 || len(got.Grown) != len(quantities()) || !strings.Contains(got.Ledger, "ledger holds") {
		t.Errorf("%d confirms, %d faults, %d quantities, %s", got.Confirms, got.Faults, len(got.Grown), got.Ledger)
	}
	for _, b := range got.Broken {
		if !strings.Contains(b, "in the first third") {
			t.Error(b)
		}
	}
	if svg, err := os.ReadFile(filepath.Join(dir, "soak.svg")); err != nil || !strings.HasPrefix(string(svg), "<svg") {
		t.Errorf("picture: %v", err)
	}
}

// TestJudgeNothing: a run too short for its samples says so, and not that something grew from 0 to 0.
func TestJudgeNothing(t *testing.T) {
	t.Parallel()
	s := &soak{result: result{Seconds: 20, Samples: []sample{{At: 5, Heap: 10}, {At: 10, Calm: true, Heap: 10}}}}
	s.judge()
	if len(s.Broken) != 1 || !strings.Contains(s.Broken[0], "no calm sample") {
		t.Errorf("broken: %q", s.Broken)
	}
}

// TestJudge: a process that grows is found.
func TestJudge(t *testing.T) {
	t.Parallel()
	for name, grow := range map[string]float64{"flat": 0, "leak": 2} {
		s := &soak{result: result{Seconds: 300}}
		for i := range 300 {
			x := float64(i)
			s.Samples = append(s.Samples, sample{At: x, Calm: true, Heap: 10, Resident: 40, Goroutines: 50 + grow*x, Descriptors: 9, Connections: 4})
		}
		s.judge()
		if found := len(s.Broken) == 1 && strings.HasPrefix(s.Broken[0], "goroutines"); found != (grow > 0) {
			t.Errorf("%s: %q", name, s.Broken)
		}
	}
}
