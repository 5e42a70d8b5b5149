package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"paymentd/internal/payment"
)

const syncHelp = `usage: paymentd sync [ORDER…] [flags]

Does recovery's work now and says what it did: for every attempt of the given orders in whatever state, else for all
unfinished payments. What Toss says decides; the command never contradicts it. --dry-run only says what would happen
and why.

It works on the database and on Toss itself, with the settings of serve (API_KEYS may be missing), and not through a
running paymentd: it also helps when none runs, it can show how far it is, and no HTTP answer bounds it. Leases and
fences make it safe beside running instances, live confirms and a second sync; a payment that somebody works on is
reported as in_progress and left alone. LOOKUP_RATE, CANCEL_RATE, RATE_LIMIT and the breaker count for the command
alone, beside those of a running service.

Ctrl-C finishes what is in hand and says what was done; a second one ends the command at once, and what it held is due
again when its lease is over. Exit status: 0 done, 1 an error, or a payment that could not be finished.

`

// syncLine is how many payments one line of progress stands for where nobody looks on.
const syncLine = 100

var orderShape = regexp.MustCompile(`^[A-Za-z0-9_.=-]{6,64}$`)

type syncFlags struct {
	orders       []string
	olderThan    time.Duration
	limit        int
	dryRun, json bool
	timeout      time.Duration
}

func (s *syncFlags) define(f *flag.FlagSet) {
	f.Func("order", "an orderId, as often as wanted; the same as an argument", func(id string) error {
		s.orders = append(s.orders, id)
		return nil
	})
	f.DurationVar(&s.olderThan, "older-than", 0, "leave out what was reserved later than that long ago, for example 10m")
	f.IntVar(&s.limit, "limit", 0, "most payments to look at; 0 = all that are unfinished now")
	f.BoolVar(&s.dryRun, "dry-run", false, "look and decide, but write nothing and send nothing but lookups")
	f.BoolVar(&s.json, "json", false, "print one JSON object with the fields of POST /payments/sync")
	f.DurationVar(&s.timeout, "timeout", 0, "begin nothing new after this time; 0 = until done")
}

// parse takes orders also between and before flags.
func (s *syncFlags) parse(args []string, out io.Writer) (done bool, err error) {
	f := flags("sync", syncHelp)
	s.define(f)
	more, done, err := parseMixed(f, args, out)
	if done {
		return true, err
	}
	s.orders = append(s.orders, more...)
	return false, s.check()
}

func (s *syncFlags) check() error {
	for _, id := range s.orders {
		if !orderShape.MatchString(id) {
			return fmt.Errorf("sync: %q is no orderId: 6 to 64 of A-Z a-z 0-9 _ . = -", id)
		}
	}
	switch {
	case s.olderThan < 0 || s.limit < 0 || s.timeout < 0:
		return errors.New("sync: --older-than, --limit and --timeout must not be negative")
	case s.olderThan > 0 && len(s.orders) > 0:
		return errors.New("sync: --older-than chooses among all unfinished payments; it has no meaning beside orders")
	}
	return nil
}

func syncCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	return syncTo(ctx, args, environ, streams{out, os.Stderr})
}

func syncTo(ctx context.Context, args, environ []string, s streams) error {
	var set syncFlags
	if done, err := set.parse(args, s.out); done || err != nil {
		return err
	}
	c, err := settingsBeside(environ)
	if err != nil {
		return err
	}
	if c.LogLevel == "info" {
		c.LogLevel = "warn" // the table says what was done
	}
	p, err := beside(ctx, c, newLogger(c, s.errs))
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	defer p.close()
	if err := p.build(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return p.sync(ctx, set, s)
}

// sync looks at what is asked for, tells how far it is, and then what came of it.
func (p *program) sync(ctx context.Context, set syncFlags, s streams) error {
	request := payment.SyncRequest{OrderIDs: set.orders, OlderThan: set.olderThan, Limit: set.limit, DryRun: set.dryRun}
	progress := &syncProgress{to: s.errs, terminal: isTerminal(s.errs), total: len(set.orders)}
	if len(set.orders) == 0 {
		n, err := p.store.Background().CountUnfinished(ctx, set.olderThan)
		if err != nil {
			return fmt.Errorf("sync: %w", err)
		}
		if set.limit > 0 {
			n = min(n, set.limit)
		}
		// What arrives meanwhile is left to its own confirm.
		request.Limit, progress.total = max(n, 1), n
	} else if set.limit == 0 {
		request.Limit = 1 << 30
	}
	running := ctx
	if set.timeout > 0 {
		var cancel context.CancelFunc
		running, cancel = context.WithTimeout(ctx, set.timeout)
		defer cancel()
	}
	report, err := p.recovery.SyncWatched(running, request, progress.show)
	progress.end(report)
	if printed := printSync(report, set, s.out); printed != nil {
		return fmt.Errorf("print sync: %w", printed)
	}
	switch {
	case running.Err() != nil:
		return fmt.Errorf("sync: stopped after %d payments; the rest is as it was", report.Checked)
	case err != nil:
		return fmt.Errorf("sync: stopped after %d payments: %w", report.Checked, err)
	case report.Errors > 0:
		return fmt.Errorf("sync: %d of %d could not be finished; see the reasons", report.Errors, report.Checked)
	default:
		return nil
	}
}

// syncProgress shows a bar on a terminal, and else a line for every syncLine payments.
type syncProgress struct {
	to       io.Writer
	terminal bool
	total    int
	drawn    time.Time
}

func (b *syncProgress) show(r payment.SyncReport) {
	switch {
	case b.terminal && time.Since(b.drawn) > 100*time.Millisecond:
		b.draw(r)
	case !b.terminal && r.Checked%syncLine == 0:
		fmt.Fprintf(b.to, "sync: %d of about %d, %s\n", r.Checked, max(b.total, r.Checked), sums(r))
	}
}

func (b *syncProgress) draw(r payment.SyncReport) {
	const width = 30
	total := max(b.total, r.Checked, 1)
	full := width * r.Checked / total
	fmt.Fprintf(b.to, "\r\x1b[K[%s%s] %d/%d  %s", strings.Repeat("█", full), strings.Repeat("░", width-full), r.Checked, total, sums(r))
	b.drawn = time.Now()
}

func (b *syncProgress) end(r payment.SyncReport) {
	if b.terminal {
		b.draw(r)
		fmt.Fprintln(b.to)
	}
}

func sums(r payment.SyncReport) string {
	return fmt.Sprintf("%d paid, %d failed, %d waiting, %d canceled, %d incidents, %d errors",
		r.Paid, r.Failed, r.Waiting, r.Canceled, r.Incidents, r.Errors)
}

// syncJSON is the answer of POST /payments/sync.
type syncJSON struct {
	Checked   int        `json:"checked"`
	Paid      int        `json:"paid"`
	Failed    int        `json:"failed"`
	Waiting   int        `json:"waiting"`
	Canceled  int        `json:"canceled"`
	Incidents int        `json:"incidents"`
	Errors    int        `json:"errors"`
	Results   []syncLook `json:"results"`
}

type syncLook struct {
	OrderID string         `json:"orderId"`
	Before  payment.Status `json:"before"`
	After   payment.Status `json:"after"`
	Reason  string         `json:"reason"`
}

func printSync(r payment.SyncReport, set syncFlags, out io.Writer) error {
	if set.json {
		view := syncJSON{r.Checked, r.Paid, r.Failed, r.Waiting, r.Canceled, r.Incidents, r.Errors, []syncLook{}}
		for _, one := range r.Results {
			view.Results = append(view.Results, syncLook(one))
		}
		return json.NewEncoder(out).Encode(view)
	}
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	if len(r.Results) > 0 {
		after := "AFTER"
		if set.dryRun {
			after = "WOULD BE"
		}
		fmt.Fprintf(table, "ORDER\tBEFORE\t%s\tREASON\n", after)
	}
	for _, one := range r.Results {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", one.OrderID, one.Before, one.After, one.Reason)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	would := ""
	if set.dryRun {
		would = " (dry run: nothing was written)"
	}
	_, err := fmt.Fprintf(out, "%d looked at: %s%s\n", r.Checked, sums(r), would)
	return err
}
