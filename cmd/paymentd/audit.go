package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"paymentd/internal/payment"
	"paymentd/internal/recovery"
)

const auditHelp = `usage: paymentd audit [--from TIME] [--to TIME] [--json | --csv] [--dry-run]

Compares Toss's transactions of a period with our payments. Every difference is verified by a lookup before it is told:

  missing_here    approved at Toss, no payment with this key here: opens the incident orphan_approval
  missing_there   PAID or CANCELED here, never approved at Toss
  amount_differs  the amount, currency or canceled amount differs
  state_differs   another state there than here, or another order
  unverified      looks like a difference, and the lookup had no usable answer

TIME is 2026-11-29 or 2026-11-29T10:00:00 (Korean time, as in Toss's dashboard), or RFC 3339 with an offset. The
default is the whole of yesterday in Korea; with one of the two, the other is a day away. At most 31 days.

Settings are those of serve; API_KEYS may be missing. paymentKeys are printed: with one a payment can be confirmed, keep
the output private. Lookups keep to LOOKUP_RATE, beside those of a running service. Exit status: 0 equal, 3 something differs, 1 an error.

`

// exitDiffers is the status of an audit that found something.
const exitDiffers exitStatus = 3

// longestAudit bounds the memory and the time of an audit.
const longestAudit = 31 * 24 * time.Hour

type auditFlags struct {
	from, to          string
	json, csv, dryRun bool
}

func auditCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	return auditTo(ctx, args, environ, streams{out, os.Stderr})
}

// streams are where a command says what it found, and what else there is to say.
type streams struct{ out, errs io.Writer }

func auditTo(ctx context.Context, args, environ []string, s streams) error {
	f, set := flags("audit", auditHelp), auditFlags{}
	set.define(f)
	if done, err := parse(f, args, s.out); done {
		return err
	}
	if set.json && set.csv {
		return errors.New("audit: give --json or --csv, not both")
	}
	from, to, err := auditWindow(set.from, set.to, time.Now())
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	c, err := settingsBeside(environ)
	if err != nil {
		return err
	}
	report, err := audit(ctx, c, s.errs, recovery.AuditOptions{From: from, To: to, DryRun: set.dryRun})
	if err != nil {
		return err
	}
	if err := (auditPrinter{report, from, to, s}).print(set); err != nil {
		return fmt.Errorf("print audit: %w", err)
	}
	if !report.Equal() {
		return exitDiffers
	}
	return nil
}

func (a *auditFlags) define(f *flag.FlagSet) {
	f.StringVar(&a.from, "from", "", "begin of the period, inclusive (default the begin of yesterday)")
	f.StringVar(&a.to, "to", "", "end of the period, exclusive (default a day after --from)")
	f.BoolVar(&a.json, "json", false, "print one JSON object")
	f.BoolVar(&a.csv, "csv", false, "print the differences alone, as CSV with a header")
	f.BoolVar(&a.dryRun, "dry-run", false, "open no incidents")
}

func koreanZone() *time.Location { return time.FixedZone("KST", 9*60*60) }

// auditWindow reads the period; the default is yesterday in Korea.
func auditWindow(fromText, toText string, now time.Time) (from, to time.Time, err error) {
	const day = 24 * time.Hour
	year, month, date := now.In(koreanZone()).Date()
	from = time.Date(year, month, date-1, 0, 0, 0, 0, koreanZone())
	to = from.Add(day)
	if fromText != "" {
		if from, err = auditTime("--from", fromText); err != nil {
			return from, to, err
		}
		to = from.Add(day)
	}
	if toText != "" {
		if to, err = auditTime("--to", toText); err != nil {
			return from, to, err
		}
		if fromText == "" {
			from = to.Add(-day)
		}
	}
	switch {
	case !from.Before(to):
		err = fmt.Errorf("--from (%s) must be before --to (%s)", from.Format(time.RFC3339), to.Format(time.RFC3339))
	case to.Sub(from) > longestAudit:
		err = errors.New("--from and --to are more than 31 days apart: audit one month at a time")
	}
	return from, to, err
}

func auditTime(name, text string) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, "2006-01-02T15:04:05", time.RFC3339} {
		t, err := time.ParseInLocation(layout, text, koreanZone())
		if err == nil && t.Nanosecond() == 0 && t.Year() > 2000 {
			return t.In(koreanZone()), nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: must be like 2026-11-29, 2026-11-29T10:00:00 (Korean time) or RFC 3339, in whole seconds", name)
}

// audit connects both sides and compares them.
func audit(ctx context.Context, c Config, errs io.Writer, o recovery.AuditOptions) (report recovery.AuditReport, err error) {
	p, err := beside(ctx, c, newLogger(c, errs))
	if err != nil {
		return report, fmt.Errorf("audit: %w", err)
	}
	defer p.close()
	if err := p.build(); err != nil {
		return report, fmt.Errorf("audit: %w", err)
	}
	progress := auditProgress{to: errs, terminal: isTerminal(errs)}
	o.Feed, o.Witness, o.Books = p.gateway, p.gateway, p.store.Background()
	o.DoubtFor, o.Progress = c.UnknownIncidentAfter, progress.show
	report, err = recovery.Audit(ctx, o)
	progress.end()
	return report, err
}

// isTerminal reports whether somebody looks on, as far as the standard library knows.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// auditProgress shows one line that changes on a terminal, and else a line each 5 s.
type auditProgress struct {
	to       io.Writer
	terminal bool
	last     time.Time
	shown    bool
}

func (a *auditProgress) show(p recovery.AuditProgress) {
	every := 5 * time.Second
	if a.terminal {
		every = 100 * time.Millisecond
	}
	now, first := time.Now(), a.last.IsZero()
	if now.Sub(a.last) < every {
		return
	}
	a.last = now
	if first && !a.terminal {
		return // short work needs no line
	}
	line := fmt.Sprintf("audit: %d pages, %d transactions of %d payments", p.Pages, p.Transactions, p.Payments)
	if p.Suspects > 0 {
		line += fmt.Sprintf(", %d of %d looked up", p.LookedUp, p.Suspects)
	}
	if a.terminal {
		fmt.Fprintf(a.to, "\r\x1b[K%s", line)
		a.shown = true
		return
	}
	fmt.Fprintln(a.to, line)
}

func (a *auditProgress) end() {
	if a.shown {
		fmt.Fprint(a.to, "\r\x1b[K")
	}
}

// auditPrinter tells an operator what an audit found.
type auditPrinter struct {
	recovery.AuditReport
	from, to time.Time
	streams
}

func (a auditPrinter) print(set auditFlags) error {
	switch {
	case set.json:
		fmt.Fprintln(a.errs, printable(a.Ledger.String()))
		return a.printJSON()
	case set.csv:
		fmt.Fprintln(a.errs, printable(a.Ledger.String()))
		return a.printCSV()
	default:
		return a.printTable()
	}
}

func (a auditPrinter) counts() map[recovery.DifferenceKind]int {
	counts := map[recovery.DifferenceKind]int{}
	for _, k := range recovery.DifferenceKinds() {
		counts[k] = 0
	}
	for _, d := range a.Differences {
		counts[d.Kind]++
	}
	return counts
}

func (a auditPrinter) printTable() error {
	fmt.Fprintf(a.out, "audit from %s to %s\n\n", a.from.Format(time.RFC3339), a.to.Format(time.RFC3339))
	table := tabwriter.NewWriter(a.out, 0, 4, 2, ' ', 0)
	for _, row := range []struct {
		name string
		n    int
	}{
		{"transactions at Toss", a.Transactions},
		{"payments of them", a.Payments},
		{"looked up", a.LookedUp},
		{"in doubt, left to recovery", a.InDoubt},
		{"incidents opened", a.IncidentsOpened},
	} {
		fmt.Fprintf(table, "%s\t%d\n", row.name, row.n)
	}
	counts := a.counts()
	for _, k := range recovery.DifferenceKinds() {
		fmt.Fprintf(table, "%s\t%d\n", k, counts[k])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(a.out)
	if len(a.Differences) > 0 {
		for i, line := range append([][]string{auditColumns()}, a.cells()...) {
			if i == 0 {
				fmt.Fprintln(table, strings.ToUpper(strings.Join(line, "\t")))
				continue
			}
			fmt.Fprintln(table, strings.Join(line, "\t"))
		}
		if err := table.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(a.out)
	}
	_, err := fmt.Fprintln(a.out, printable(a.Ledger.String()))
	return err
}

func auditColumns() []string {
	return []string{
		"kind", "order_id", "payment_key", "here", "here_amount", "here_canceled", "there", "there_amount", "there_canceled",
		"currency", "incident", "note",
	}
}

func (a auditPrinter) cells() [][]string {
	lines := make([][]string, 0, len(a.Differences))
	for _, d := range a.Differences {
		currency := d.Here.Currency
		if currency == "" {
			currency = d.There.Currency
		}
		line := []string{string(d.Kind), d.OrderID, d.PaymentKey}
		for _, side := range []recovery.Side{d.Here, d.There} {
			if side.Status == "" {
				line = append(line, "-", "-", "-")
				continue
			}
			line = append(line, side.Status, side.Amount.Text(side.Currency), side.Canceled.Text(side.Currency))
		}
		line = append(line, string(currency), strconv.FormatBool(d.Incident), d.Note)
		for i := range line {
			line[i] = printable(line[i])
		}
		lines = append(lines, line)
	}
	return lines
}

// printable keeps foreign text from moving the cursor or breaking a column.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

func (a auditPrinter) printCSV() error {
	w := csv.NewWriter(a.out)
	rows := a.cells()
	for _, row := range rows {
		for i := range row {
			row[i] = inert(row[i])
		}
	}
	if err := w.WriteAll(append([][]string{auditColumns()}, rows...)); err != nil {
		return err
	}
	return w.Error()
}

// inert keeps a spreadsheet from taking foreign text for a formula (OWASP, "CSV Injection").
func inert(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

type auditSide struct {
	Status   string           `json:"status"`
	Amount   json.Number      `json:"amount"`
	Canceled json.Number      `json:"canceledAmount"`
	Currency payment.Currency `json:"currency"`
}

func sideOf(s recovery.Side) *auditSide {
	if s.Status == "" {
		return nil
	}
	return &auditSide{s.Status, json.Number(s.Amount.Text(s.Currency)), json.Number(s.Canceled.Text(s.Currency)), s.Currency}
}

type auditDifference struct {
	Kind       recovery.DifferenceKind `json:"kind"`
	OrderID    string                  `json:"orderId"`
	PaymentKey string                  `json:"paymentKey"`
	Here       *auditSide              `json:"here"`
	There      *auditSide              `json:"there"`
	Incident   bool                    `json:"incident"`
	Note       string                  `json:"note"`
}

func (a auditPrinter) printJSON() error {
	differences := make([]auditDifference, 0, len(a.Differences))
	for _, d := range a.Differences {
		differences = append(differences, auditDifference{d.Kind, d.OrderID, d.PaymentKey, sideOf(d.Here), sideOf(d.There), d.Incident, d.Note})
	}
	encoder := json.NewEncoder(a.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(map[string]any{
		"from": a.from, "to": a.to, "equal": a.Equal(), "counts": a.counts(), "differences": differences,
		"transactions": a.Transactions, "payments": a.Payments, "lookedUp": a.LookedUp, "inDoubt": a.InDoubt,
		"incidentsOpened": a.IncidentsOpened,
		"ledger": map[string]any{
			"holds": a.Ledger.Holds(), "approved": a.Ledger.Approved, "paid": a.Ledger.Paid, "returned": a.Ledger.Returned,
			"incident": a.Ledger.Incident, "doubt": a.Ledger.Doubt, "atToss": a.Ledger.AtToss, "paidSum": a.Ledger.PaidSum,
			"incidentSum": a.Ledger.IncidentSum, "doubtSum": a.Ledger.DoubtSum, "byHand": a.Ledger.ByHand,
			"byHandSum": a.Ledger.ByHandSum, "violations": len(a.Ledger.Violations),
			"text": a.Ledger.String(),
		},
	})
}
