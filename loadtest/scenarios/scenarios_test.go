package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A scenario waits more than it computes.
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = p.Value.Set("3")
	}
	os.Exit(m.Run())
}

func program(t *testing.T) string {
	t.Helper()
	if testing.Short() && os.Getenv("PAYMENTD_REQUIRE_DB") != "1" {
		t.Skip("needs PostgreSQL; -short")
	}
	path, err := rig.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestScenarios plays all of them at a small scale: sizes and windows are cut, what is counted is not.
func TestScenarios(t *testing.T) {
	t.Parallel()
	path, out := program(t), t.TempDir()
	t.Run("all", func(t *testing.T) {
		for _, s := range scenarios() {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				r, err := perform(t.Context(), plan{scale: 0.05, program: path, out: out}, s, t.Output())
				if err != nil {
					t.Fatal(err)
				}
				for _, b := range r.Broken {
					t.Error(b)
				}
				var kept report
				text, err := os.ReadFile(filepath.Join(out, s.name+".json"))
				if err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(text, &kept); err != nil || kept.Name != s.name || len(kept.Rows) < 5 || kept.Took == "" {
					t.Errorf("the report that is kept: %v %s", err, text)
				}
				svg, err := os.ReadFile(filepath.Join(out, s.name+".svg"))
				if err != nil || !bytes.Contains(svg, []byte("<circle")) && !bytes.Contains(svg, []byte("<polyline")) && !bytes.Contains(svg, []byte(`width="16"`)) {
					t.Errorf("the picture shows nothing: %v", err)
				}
			})
		}
	})
}

// TestBroken plays a scenario that breaks the books: a runner that finds nothing is worthless.
func TestBroken(t *testing.T) {
	t.Parallel()
	p := plan{scale: 0.05, program: program(t), out: t.TempDir()}
	s := scenario{"broken", "an order is charged twice and a receipt is lost", func(ctx context.Context, p *play) error {
		return p.on(ctx, system{label: "broken"}, func(ctx context.Context) error {
			o := orders("broken", 1)[0]
			p.equal("answered 200", "", len(only(p.volley(ctx, []rig.Order{o}), "200 PAID")), 1)
			_, err := p.rig.Toss.AddPayment(tosssim.NewPayment{PaymentKey: "other_1", OrderID: o.OrderID, Amount: amount})
			if err != nil {
				return err
			}
			if _, err := p.rig.Toss.Move("other_1", tosssim.Done); err != nil {
				return err
			}
			if _, err := p.settles(ctx); err != nil {
				return err
			}
			return p.rig.Session(ctx, `DELETE FROM notices WHERE kind = 'receipt'`)
		})
	}}
	r, err := perform(t.Context(), p, s, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	found := strings.Join(r.Broken, "\n")
	for _, want := range []string{"ledger identity", "order charged twice", "1 payment.paid, 0 receipt"} {
		if !strings.Contains(found, want) {
			t.Errorf("found %q, want %q in it", found, want)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args, want string
		chosen     int
	}{
		{args: "", chosen: len(scenarios())},
		{args: "--scale 0.1 s1 S11", chosen: 2},
		{args: "--scale 0", want: "scale"},
		{args: "--scale 2", want: "scale"},
		{args: "s7", want: "no scenario"},
	} {
		p, err := parse(strings.Fields(tc.args), t.Output())
		if tc.want == "" && (err != nil || len(p.chosen) != tc.chosen) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%q: %d scenarios, %v", tc.args, len(p.chosen), err)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--list"}, &out); err != nil || strings.Count(out.String(), "\n") != len(scenarios()) {
		t.Errorf("the list: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := run(t.Context(), []string{"--help"}, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "Exit status 1") {
		t.Errorf("the help: %v\n%s", err, out.String())
	}
}

// TestQuantile: the q-th of 100 waits of 1 to 100 s.
func TestQuantile(t *testing.T) {
	t.Parallel()
	var replies []reply
	for i := range 100 {
		replies = append(replies, reply{Answer: rig.Answer{Took: time.Duration(100-i) * time.Second}})
	}
	for q, want := range map[float64]int{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(replies, q); got.Seconds() != float64(want) {
			t.Errorf("%g: %s, want %ds", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("of nothing: %s", got)
	}
}

// TestPage: the page tells what the results that are kept beside it say.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := rewrite(page, "../results")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(page)); diff != "" {
		t.Errorf("docs/scenarios.md, go run ./loadtest/scenarios --page docs/scenarios.md (-want +got):\n%s", diff)
	}
	if _, err := rewrite([]byte("nothing"), "../results"); err == nil {
		t.Error("a page without a place for figures is written")
	}
}
