// Command soak confirms at a steady rate for long while faults come and go, and shows that paymentd does not grow:
// memory, goroutines, file descriptors and database connections of the last third against those of the first.
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
	"path/filepath"
	"syscall"
	"time"

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
		fmt.Fprintln(os.Stderr, "soak:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// plan is what the flags say.
type plan struct {
	length, every, cycle, warm time.Duration
	rate                       int
	program, out               string
}

func parse(args []string, out io.Writer) (p plan, err error) {
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, "soak confirms payments for long, faults going on and off, and checks that nothing grows and no money is lost.\n\n"+
			"usage: go run ./loadtest/soak [flags]\n\nExit status 1: something grew, or an invariant broke.\n\n")
		f.PrintDefaults()
	}
	f.DurationVar(&p.length, "for", 30*time.Minute, "how long to confirm")
	f.IntVar(&p.rate, "rate", 50, "confirms per second")
	f.DurationVar(&p.cycle, "cycle", time.Minute, "a fault comes so often and stays a third of it")
	f.DurationVar(&p.every, "every", 0, "pace of the samples (default a twelfth of the cycle)")
	f.DurationVar(&p.warm, "warm", 2*time.Minute, "samples before are drawn and not judged")
	f.StringVar(&p.program, "paymentd", "", "the program; empty: built from the sources")
	f.StringVar(&p.out, "out", "loadtest/results", "folder for soak.json and soak.svg")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if p.every == 0 {
		p.every = p.cycle / 12 // some in each stretch without a fault
	}
	if p.length <= p.warm || p.rate < 1 || p.every <= 0 || p.cycle < 3*time.Second || f.NArg() > 0 {
		err = errors.New("for must be longer than warm, rate and every above 0, cycle at least 3s, and there are no arguments; see --help")
	}
	return p, err
}

func run(ctx context.Context, args []string, out io.Writer) error {
	p, err := parse(args, out)
	if err != nil {
		return err
	}
	r, err := rig.Start(ctx, rig.Options{
		Program: p.program,
		Settings: []string{
			"PAYMENTD_RATE_LIMIT=0", "PAYMENTD_MEMBER_LIMIT=0", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=5s", "PAYMENTD_BREAKER_OPEN_FOR=5s",
			"PAYMENTD_LOOKUP_RATE=100/s", "PAYMENTD_RECOVERY_EVERY=1m",
			"GOGC=100", // no floor of the heap, beside which growth would look small
		},
	})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	s := &soak{plan: p, rig: r, in: r.Instances[0], say: out, answers: map[string]int{}}
	if err := s.confirm(ctx); err != nil {
		return err
	}
	if err := s.books(ctx); err != nil {
		return err
	}
	s.judge()
	if err := s.keep(); err != nil {
		return err
	}
	s.print()
	if len(s.Broken) > 0 {
		return errBroken
	}
	return nil
}

// keep writes the figures and the picture.
func (s *soak) keep() error {
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	text, err := json.MarshalIndent(s.result, "", "  ")
	if err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.out, "soak.json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.out, "soak.svg"), []byte(s.chart().SVG()), 0o644); err != nil {
		return fmt.Errorf("keep results: %w", err)
	}
	return nil
}
