// Command tosssim runs the Toss Payments simulator on two ports: the public API and the control API.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"paymentd/internal/tosssim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "tosssim:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has been called
	}
}

// run serves until ctx ends; it prints one line as soon as both ports are open.
func run(ctx context.Context, args []string, out, help io.Writer) error {
	f := flag.NewFlagSet("tosssim", flag.ContinueOnError)
	f.SetOutput(help)
	listen := f.String("listen", "127.0.0.1:8090", "`address` of the public API; port 0 picks one")
	control := f.String("control", "127.0.0.1:8091", "`address` of the control API (no authentication: keep it on loopback)")
	keys := f.String("secret-keys", "", "accepted test_ `keys`, separated by commas (default: every key that begins with test_)")
	rude := f.Bool("rude", false, "start with the fault rates of chaos runs")
	seed := f.Uint64("seed", 0, "seed of the fault dice (default: from the clock)")
	f.Usage = func() {
		fmt.Fprintln(help, "tosssim simulates Toss Payments. GET /control/ on the control port lists what can be scripted.\n\nFlags:")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", f.Arg(0))
	}
	// It shares a small machine with what is measured: spend memory before processor time.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(1 << 30)
	options := tosssim.Options{Seed: *seed}
	if *rude {
		options = tosssim.Rude(*seed)
	}
	options.SecretKeys = strings.FieldsFunc(*keys, func(r rune) bool { return r == ',' })
	if err := options.Validate(); err != nil {
		return err
	}
	server, err := tosssim.New(options).Listen(ctx, *listen, *control)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "tosssim: listening on %s control %s\n", server.URL(), server.ControlURL())
	<-server.Done()
	return nil
}
