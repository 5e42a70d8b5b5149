// Command scenarios plays the loads and outages of docs/scenarios.md against the real paymentd: it starts everything it
// needs, compares what others measured with what it sees, checks the money invariants after each scenario, and keeps
// the figures as JSON and as a picture.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"paymentd/loadtest/rig"
)

// errBroken ends the program with status 1; what broke has been printed.
var errBroken = errors.New("broken")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil && !errors.Is(err, errBroken):
		fmt.Fprintln(os.Stderr, "scenarios:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// scenario is one of docs/scenarios.md.
type scenario struct {
	name, title string
	play        func(context.Context, *play) error
}

func scenarios() []scenario {
	return []scenario{
		{"s1", "slow gateway: three architectures", s1},
		{"s2", "gateway accepts and never answers", s2},
		{"s3", "breaker life cycle", s3},
		{"s4", "naive retry and selective retry", s4},
		{"s5", "bulkhead and limiter", s5},
		{"s6", "the commit fails", s6},
		{"s8", "capacity", s8},
		{"s11", "overlapping batches", s11},
	}
}

// plan is what the flags say.
type plan struct {
	scale   float64
	long    bool
	program string
	out     string
	page    string
	list    bool
	chosen  []scenario
}

func parse(args []string, out io.Writer) (p plan, err error) {
	f := flag.NewFlagSet("scenarios", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, "scenarios plays loads and outages against the real paymentd and checks that no money is lost.\n\n"+
			"usage: go run ./loadtest/scenarios [flags] [NAME...]     without a name: all, about 15 minutes\n\n"+
			"Exit status 1: an invariant or a count broke. A time that a busy machine missed is shown and is no failure.\n\n")
		f.PrintDefaults()
	}
	f.BoolVar(&p.list, "list", false, "list the scenarios and end")
	f.Float64Var(&p.scale, "scale", 1, "multiplies time-outs, windows and sizes, down to what still shows the scenario; 0.1 is for CI")
	f.BoolVar(&p.long, "long", false, "S8 goes on to 1,000 and 3,000 callers")
	f.StringVar(&p.program, "paymentd", "", "the program; empty: built from the sources")
	f.StringVar(&p.out, "out", "loadtest/results", "folder for <name>.json and <name>.svg")
	f.StringVar(&p.page, "page", "", "play nothing; write what --out has into this page (docs/scenarios.md)")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if p.scale <= 0 || p.scale > 1 {
		return p, errors.New("scale must be above 0 and at most 1; see --help")
	}
	p.chosen = scenarios()
	if f.NArg() == 0 {
		return p, nil
	}
	p.chosen = nil
	for _, name := range f.Args() {
		i := slices.IndexFunc(scenarios(), func(s scenario) bool { return strings.EqualFold(s.name, name) })
		if i < 0 {
			return p, fmt.Errorf("there is no scenario %q; see --list", name)
		}
		p.chosen = append(p.chosen, scenarios()[i])
	}
	return p, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	p, err := parse(args, out)
	if err != nil {
		return err
	}
	if p.list {
		for _, s := range scenarios() {
			fmt.Fprintf(out, "%-4s %s\n", s.name, s.title)
		}
		return nil
	}
	if p.page != "" {
		return writePage(p.page, p.out)
	}
	if p.program == "" {
		dir, err := os.MkdirTemp("", "paymentd-scenarios-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if p.program, err = rig.Build(ctx, dir); err != nil {
			return err
		}
	}
	var broken []string
	for _, s := range p.chosen {
		r, err := perform(ctx, p, s, out)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if len(r.Broken) > 0 {
			broken = append(broken, s.name)
		}
	}
	if len(broken) > 0 {
		fmt.Fprintf(out, "\nBROKEN: %s\n", strings.Join(broken, ", "))
		return errBroken
	}
	return nil
}

// perform plays one scenario and keeps what it saw.
func perform(ctx context.Context, p plan, s scenario, out io.Writer) (*report, error) {
	b := newPlay(p, s, out)
	b.say("%s", s.title)
	if err := s.play(ctx, b); err != nil {
		return b.report, err
	}
	b.finish()
	b.print(out)
	if err := os.MkdirAll(p.out, 0o750); err != nil {
		return b.report, err
	}
	return b.report, b.write(filepath.Join(p.out, s.name))
}

func writePage(page, results string) error {
	text, err := os.ReadFile(page)
	if err == nil {
		text, err = rewrite(text, results)
	}
	if err == nil {
		err = os.WriteFile(page, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
