// Command paymentd approves payments through Toss Payments.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// version is stamped by the build.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	floor := heapFloor(os.Getenv)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout)
	runtime.KeepAlive(floor)
	if status, ok := errors.AsType[exitStatus](err); ok {
		os.Exit(int(status))
	}
	if err != nil && !errors.Is(err, errShown) {
		fmt.Fprintln(os.Stderr, "paymentd:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}

// heapFloor is memory that is never touched, so that it costs address space alone. The collector, which runs when the heap
// has doubled, counts it: without it a heap of a few MiB would be collected many times a second. It is nil where the
// operator rules the collector by GOGC or GOMEMLIMIT.
func heapFloor(getenv func(string) string) []byte {
	if getenv("GOGC") != "" || getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return make([]byte, 32<<20)
}

// errShown is an error whose text the user has seen already.
var errShown = errors.New("shown")

// exitStatus is the end of a command that has said all there is to say and whose status tells the rest.
type exitStatus int

// Error names the status.
func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// command is one subcommand.
type command struct {
	name, short string
	run         func(ctx context.Context, args, environ []string, out io.Writer) error
}

func commands() []command {
	return []command{
		{"serve", "run the service", serveCommand},
		{"migrate", "bring the database to this version's schema, or show where it stands", migrateCommand},
		{"sync", "compare unfinished payments, or those of given orders, with Toss now", syncCommand},
		{"notices", "list the notices of the outbox, or send dead ones again", noticesCommand},
		{"audit", "compare Toss's transactions with our payments", auditCommand},
		{"healthcheck", "ask a running paymentd whether it is ready; for containers", healthCommand},
		{"version", "print the version", versionCommand},
	}
}

// run is the whole program but for signals and exit status.
func run(ctx context.Context, args, environ []string, out io.Writer) error {
	if len(args) == 0 {
		usage(os.Stderr)
		return errShown
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		usage(out)
		return nil
	case "-version", "--version":
		return versionCommand(ctx, args[1:], environ, out)
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(ctx, args[1:], environ, out)
		}
	}
	return fmt.Errorf("unknown command %q; see paymentd --help", args[0])
}

func usage(out io.Writer) {
	fmt.Fprint(out, "paymentd approves payments through Toss Payments.\n\nusage: paymentd <command> [flags]\n\n")
	for _, c := range commands() {
		fmt.Fprintf(out, "  %-12s %s\n", c.name, c.short)
	}
	fmt.Fprint(out, "\npaymentd <command> --help tells more; docs/config.md explains the settings.\n")
}
