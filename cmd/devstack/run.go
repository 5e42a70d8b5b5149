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
	once, fresh, verbose bool
	port                 int
	data, bin            string
}

func parse(args []string, out io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("devstack", flag.ContinueOnError)
	set.SetOutput(out)
	set.BoolVar(&f.once, "once", false, "stop after the payment, with status 0 if it was confirmed")
	set.BoolVar(&f.fresh, "fresh", false, "drop the data kept from earlier runs")
	set.BoolVar(&f.verbose, "verbose", false, "logs of paymentd and tosssim to the terminal instead of files")
	set.IntVar(&f.port, "port", 0, "`port` of paymentd's public door (default 8080, or a free one if that is taken)")
	set.StringVar(&f.data, "data", "", "`folder` for the database and the logs, kept for the next run (default: in the cache)")
	set.StringVar(&f.bin, "bin", "", "`folder` with paymentd and tosssim (default: where devstack is, else built into ./bin)")
	set.Usage = func() {
		fmt.Fprint(out, `devstack starts a private PostgreSQL, the Toss simulator and paymentd, confirms one payment, prints what
happened with curl lines to go on, and stays up until Ctrl-C.

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
