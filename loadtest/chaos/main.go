// Command chaos is scenario S10: rounds of confirms under a random mix of faults of the gateway, the shop and
// PostgreSQL, while the real paymentd is killed and started again at random. After each round the faults end, recovery
// works, and the money invariants must hold. All that is random comes from the seed that is printed; the clock of the
// machine is not, so a seed repeats the mix and the order of events, not every interleaving.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"paymentd/loadtest/rig"
)

// errViolated ends the program with status 1; what was violated has been printed.
var errViolated = errors.New("violated")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil && !errors.Is(err, errViolated):
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// plan is what the flags say.
type plan struct {
	seed           uint64
	length         time.Duration
	rounds         int
	fewest, most   int
	confirms       int
	spread         time.Duration
	killEvery      time.Duration
	hurry, verbose bool
	program        string
	json, logs     string
}

func parse(args []string, out io.Writer) (p plan, err error) {
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, "chaos confirms payments while everything around paymentd, and paymentd itself, fails (scenario S10).\n\n"+
			"usage: go run ./loadtest/chaos [flags]\n\nExit status 1: an invariant was violated, and the seed is printed.\n\n")
		f.PrintDefaults()
	}
	instances := f.String("instances", "1-3", "how many paymentd share the database: a number or a range, drawn anew for each round")
	f.Uint64Var(&p.seed, "seed", uint64(time.Now().UnixNano()), "seed of the first round; round i has seed + i")
	f.DurationVar(&p.length, "for", time.Minute, "begin rounds for so long")
	f.IntVar(&p.rounds, "rounds", 0, "end after so many rounds; 0: as many as fit into --for")
	f.IntVar(&p.confirms, "confirms", 200, "confirms in a round")
	f.DurationVar(&p.spread, "spread", 8*time.Second, "how long a round confirms")
	f.DurationVar(&p.killEvery, "kill-every", 1200*time.Millisecond, "mean life of a paymentd until SIGKILL (3 of 4) or SIGTERM")
	f.BoolVar(&p.hurry, "hurry", false, "after the faults kill all, and end the leases of the dead by hand in place of waiting for their end")
	f.BoolVar(&p.verbose, "v", false, "print every event")
	f.StringVar(&p.program, "paymentd", "", "the program; empty: built from the sources")
	f.StringVar(&p.json, "json", "", "write the summary as JSON to this file")
	f.StringVar(&p.logs, "logs", "chaos-logs", "folder for the logs of rounds that violate something")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	p.fewest, p.most, err = span(*instances)
	if err == nil && (p.confirms < 1 || p.spread <= 0 || p.killEvery <= 0 || f.NArg() > 0) {
		err = errors.New("confirms, spread and kill-every must be above 0, and there are no arguments; see --help")
	}
	return p, err
}

// span reads "2" or "1-3".
func span(text string) (fewest, most int, err error) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	fewest, errLow := strconv.Atoi(low)
	most, errHigh := strconv.Atoi(high)
	if errLow != nil || errHigh != nil || fewest < 1 || most < fewest || most > 9 {
		return 0, 0, fmt.Errorf("instances: %q is not a number or a range such as 1-3, at most 9", text)
	}
	return fewest, most, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	p, err := parse(args, out)
	if err != nil {
		return err
	}
	if p.program == "" {
		dir, err := os.MkdirTemp("", "paymentd-chaos-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if p.program, err = rig.Build(ctx, dir); err != nil {
			return err
		}
	}
	all, err := rounds(ctx, p, out)
	all.print(out)
	if err == nil && p.json != "" {
		err = all.write(p.json)
	}
	if err == nil && all.Violations > 0 {
		fmt.Fprintf(out, "repeat with: go run ./loadtest/chaos --rounds 1 --seed %d\n", all.ViolatedSeeds[0])
		return errViolated
	}
	return err
}

// rounds runs until the plan's end, an error of the machine, or ctx ends, which is no error.
func rounds(ctx context.Context, p plan, out io.Writer) (all total, err error) {
	begin := time.Now()
	defer func() { all.Took = time.Since(begin).Round(time.Second).String() }()
	more := func(i int) bool {
		if p.rounds > 0 {
			return i < p.rounds
		}
		return i == 0 || time.Since(begin) < p.length
	}
	for i := 0; more(i); i++ {
		seed := p.seed + uint64(i)
		r, err := newRound(p, seed, out).run(ctx)
		if ctx.Err() != nil {
			return all, nil // an interrupted round says nothing
		}
		if err != nil {
			return all, fmt.Errorf("seed %d: %w", seed, err)
		}
		all.add(r)
		fmt.Fprintf(out, "round %d seed=%d: %s\n", i+1, r.Seed, r)
		for _, v := range r.Violations {
			fmt.Fprintf(out, "  VIOLATION seed=%d: %s\n", r.Seed, v)
		}
	}
	return all, nil
}

// total is the summary of all rounds.
type total struct {
	counts
	Rounds        int      `json:"rounds"`
	Seeds         []uint64 `json:"seeds"`
	Violations    int      `json:"violations"`
	ViolatedSeeds []uint64 `json:"violatedSeeds,omitempty"`
	Took          string   `json:"took"`
}

func (t *total) add(r result) {
	t.Rounds++
	t.Seeds = append(t.Seeds, r.Seed)
	t.counts.add(r.counts)
	if len(r.Violations) > 0 {
		t.Violations += len(r.Violations)
		t.ViolatedSeeds = append(t.ViolatedSeeds, r.Seed)
	}
}

func (t *total) write(path string) error {
	text, err := json.MarshalIndent(t, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}

func (t *total) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nrounds\t%d in %s\n", t.Rounds, t.Took)
	if len(t.Seeds) > 0 {
		fmt.Fprintf(w, "seeds\t%d to %d\n", slices.Min(t.Seeds), slices.Max(t.Seeds))
	}
	for _, row := range t.rows() {
		fmt.Fprintf(w, "%s\t%d\n", row.name, row.n)
	}
	fmt.Fprintf(w, "violations\t%d\n", t.Violations)
	_ = w.Flush()
}
