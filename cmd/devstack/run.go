package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"paymentd/internal/devdb"
)

// flags of the command line.
type flags struct {
	once, keep, fresh, verbose bool
	port                       int
	data, bin                  string
}

func parse(args []string, out io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("devstack", flag.ContinueOnError)
	set.SetOutput(out)
	set.BoolVar(&f.once, "once", false, "stop after the payment, with status 0 if it was confirmed")
	set.BoolVar(&f.keep, "keep", false, "keep the payments of the last run; the simulator has forgotten them")
	set.BoolVar(&f.fresh, "fresh", false, "drop the whole PostgreSQL of earlier runs, not only its database")
	set.BoolVar(&f.verbose, "verbose", false, "logs of paymentd and tosssim to the terminal instead of files")
	set.IntVar(&f.port, "port", 0, "`port` of paymentd's public door (default 8080, or a free one if that is taken)")
	set.StringVar(&f.data, "data", "", "`folder` for PostgreSQL and the logs (default: in the cache)")
	set.StringVar(&f.bin, "bin", "", "`folder` with paymentd and tosssim (default: where devstack is, else built into ./bin)")
	set.Usage = func() {
		fmt.Fprint(out, `devstack starts a private PostgreSQL, the Toss simulator and paymentd, confirms one payment, prints what
happened with curl lines to go on, and stays up until Ctrl-C.

Each run begins with an empty database, because the simulator begins with an empty ledger. PostgreSQL itself is kept
between runs and starts fast. With --keep the payments stay too: those of earlier runs are known here and not at the
simulator, which answers lookups of them with 404 and shows no approvals for them.

PAYMENTD_ variables of the environment reach paymentd: PAYMENTD_ANSWER_WITHIN=2s devstack

Flags:
`)
		set.PrintDefaults()
	}
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q; see --help", set.Arg(0))
	}
	if f.port < 0 || f.port > 65535 {
		return f, fmt.Errorf("--port %d: must be between 1 and 65535", f.port)
	}
	if f.keep && f.fresh {
		return f, errors.New("--keep and --fresh contradict each other")
	}
	return f, nil
}

// run is the program. It returns nil after Ctrl-C, and an error if a part did not start or ended by itself.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	f, err := parse(args, out)
	if err != nil {
		return err
	}
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.2fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	if f.data == "" {
		cache, err := devdb.CacheDir()
		if err != nil {
			return err
		}
		f.data = filepath.Join(cache, "devstack")
	}
	if err := os.MkdirAll(f.data, 0o755); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	s := &stack{flags: f, say: say}
	defer func() {
		err = errors.Join(err, s.down())
	}()
	if err := s.up(ctx); err != nil {
		return endedBy(ctx, err)
	}
	if err := s.demo(ctx, out); err != nil {
		return endedBy(ctx, err)
	}
	if f.once {
		return nil
	}
	s.guide(out)
	return endedBy(ctx, s.wait(ctx))
}

// endedBy drops errors that follow from Ctrl-C: it is how the program is meant to end.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
