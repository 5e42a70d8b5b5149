package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/prometheus/client_golang/prometheus"

	"paymentd/migrations"
)

// parse reads flags; done says that help was asked for and shown, or that err is not nil. No argument may stand beside them.
func parse(f *flag.FlagSet, args []string, out io.Writer) (done bool, err error) {
	more, done, err := parseMixed(f, args, out)
	if len(more) > 0 {
		return true, fmt.Errorf("%s: too many arguments; see paymentd %s --help", f.Name(), f.Name())
	}
	return done, err
}

// parseMixed is parse for a command with arguments: they stand before, between and behind the flags.
func parseMixed(f *flag.FlagSet, args []string, out io.Writer) (more []string, done bool, err error) {
	f.SetOutput(io.Discard) // a mistake is told by whoever gets the error, without all of the help
	for {
		switch err := f.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			f.SetOutput(out)
			f.Usage()
			return nil, true, nil
		case err != nil:
			return nil, true, fmt.Errorf("%s: %w; see paymentd %s --help", f.Name(), err, f.Name())
		case f.NArg() == 0:
			return more, false, nil
		}
		more, args = append(more, f.Arg(0)), f.Args()[1:]
	}
}

func flags(name, about string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), about)
		f.PrintDefaults()
	}
	return f
}

func versionCommand(_ context.Context, args, _ []string, out io.Writer) error {
	f := flags("version", "usage: paymentd version\n\nPrints the version of paymentd and of Go.\n")
	if done, err := parse(f, args, out); done {
		return err
	}
	fmt.Fprintf(out, "paymentd %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}

func migrateCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	f := flags("migrate", "usage: paymentd migrate [up | status | down --yes]\n\n"+
		"Brings the database of PAYMENTD_DATABASE_URL to this version's schema (up, the default; serve does it too),\n"+
		"lists the migrations (status), or takes all of them back and the data with them (down).\n")
	yes := f.Bool("yes", false, "confirm that down may drop all data")
	verb := "up"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	if done, err := parse(f, args, out); done {
		return err
	}
	dsn, err := databaseURL(environ)
	if err != nil {
		return err
	}
	switch verb {
	case "up":
		err = migrations.Up(ctx, dsn)
	case "status":
	case "down":
		if !*yes {
			return errors.New("migrate down drops all payments; say --yes if you mean it")
		}
		err = migrations.Down(ctx, dsn)
	default:
		return fmt.Errorf("migrate: unknown verb %q; see paymentd migrate --help", verb)
	}
	if err != nil {
		return err
	}
	return printMigrations(ctx, dsn, out)
}

func printMigrations(ctx context.Context, dsn string, out io.Writer) error {
	list, err := migrations.Status(ctx, dsn)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, m := range list {
		applied := "pending"
		if !m.AppliedAt.IsZero() {
			applied = m.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\n", m.Version, m.Name, applied)
	}
	return table.Flush()
}

// databaseURL reads the one variable that commands beside serve need.
func databaseURL(environ []string) (string, error) {
	vars := env.ToMap(environ)
	if problems := resolveFiles(vars); len(problems) > 0 {
		return "", errors.Join(problems...)
	}
	if dsn := vars[prefix+"DATABASE_URL"]; dsn != "" {
		return dsn, nil
	}
	return "", fmt.Errorf("%sDATABASE_URL is required (or %sDATABASE_URL_FILE)", prefix, prefix)
}

// settingsBeside are those of serve, but for the keys of its doors: a command beside it opens none and calls none.
func settingsBeside(environ []string) (Config, error) {
	c, err := loadConfig(environ, prefix+"API_KEYS")
	if err != nil {
		return c, fmt.Errorf("settings:\n%w", err)
	}
	return c, nil
}

// beside is the program of a command that works beside serve: its store is open, and the schema as new as the program.
func beside(ctx context.Context, c Config, log *slog.Logger) (*program, error) {
	p := &program{config: c, log: log, registry: prometheus.NewRegistry()}
	if err := p.reach(ctx); err != nil {
		return nil, err
	}
	if err := p.migrated(ctx); err != nil {
		p.close()
		return nil, fmt.Errorf("%w; see paymentd migrate --help", err)
	}
	return p, nil
}

// close closes what beside and build opened.
func (p *program) close() {
	if p.gateway != nil {
		p.gateway.Close()
	}
	p.store.Close()
}

func healthCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	f := flags("healthcheck", "usage: paymentd healthcheck [flags]\n\n"+
		"Asks /readyz of the private door (PAYMENTD_ADMIN_LISTEN); exits 0 if paymentd is ready.\n")
	url := f.String("url", "", "ask this URL instead")
	timeout := f.Duration("timeout", 3*time.Second, "longest wait")
	if done, err := parse(f, args, out); done {
		return err
	}
	if *url == "" {
		listen := cmp.Or(env.ToMap(environ)[prefix+"ADMIN_LISTEN"], "127.0.0.1:9090")
		host, port, err := net.SplitHostPort(listen)
		if err != nil {
			return fmt.Errorf("%sADMIN_LISTEN: must be host:port", prefix)
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		*url = "http://" + net.JoinHostPort(host, port) + "/readyz"
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, *url, http.NoBody)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", answer.Status)
	}
	fmt.Fprintln(out, "ready")
	return nil
}

func serveCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	f := flags("serve", serveHelp())
	check := f.Bool("check", false, "check the settings, print what follows from them, and exit")
	if done, err := parse(f, args, out); done {
		return err
	}
	c, err := loadConfig(environ)
	if err != nil {
		return fmt.Errorf("settings:\n%w", err)
	}
	if *check {
		fmt.Fprintf(out, "settings are good: D %s, lease %s, RESEND_WITHIN %s, SHUTDOWN_WITHIN %s\n",
			c.Deadline(), c.Lease(), c.Resend(), c.Shutdown())
		return nil
	}
	return serve(ctx, c, newLogger(c, out), nil)
}

func serveHelp() string {
	var b strings.Builder
	b.WriteString("usage: paymentd serve [flags]\n\nRuns the service. Settings come from the environment; secrets may be given as NAME_FILE.\n\n")
	table := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	for _, f := range fields() {
		value := cmp.Or(f.Default, "–")
		if f.Required {
			value = "required"
		}
		fmt.Fprintf(table, "  %s%s\t%s\t%s\n", prefix, f.Name, value, f.Help)
	}
	_ = table.Flush() // a strings.Builder does not fail
	b.WriteString("\n")
	return b.String()
}
