// Command bench measures confirms per second of the real paymentd and puts them in relation to what PostgreSQL can do
// on the same machine in the same minutes (scenario S9), then how many callers it can hold (S8). Everything shares the
// machine: PostgreSQL, the Toss simulator, the load client and paymentd.
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
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"paymentd/loadtest/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// plan is what the flags say.
type plan struct {
	rounds           int
	length           time.Duration
	clients, sweep   []int
	ceiling, holding bool
	gateway          time.Duration
	durable          bool
	program, against string
	with             string
	layers           bool
	webhook          bool
	json, profile    string
}

// unmerged is what S9 compares with unless told otherwise.
const unmerged = "PAYMENTD_DB_MERGE=off"

func parse(args []string, out io.Writer) (p plan, err error) {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, "bench measures paymentd against PostgreSQL alone (S9), and how many callers it holds (S8).\n\n"+
			"usage: go run ./loadtest/bench [flags]\n\nAn answer that is not the expected one is an error and ends the run.\n\n")
		f.PrintDefaults()
	}
	only := f.String("only", "", "S9 or S8; empty: both")
	clients := f.String("clients", "1,10,32,64", "callers at the same time in S9")
	sweep := f.String("sweep", "50,100,200,300,1000,3000", "callers at the same time in S8")
	seconds := f.Float64("seconds", 3, "length of one measurement; pgbench rounds it up to whole seconds")
	f.IntVar(&p.rounds, "rounds", 5, "rounds of S9; each measures everything once, the table shows medians")
	f.DurationVar(&p.gateway, "gateway", 300*time.Millisecond, "how long the gateway works in S8")
	f.BoolVar(&p.durable, "durable", false, "let PostgreSQL sync every commit to disk, on both sides")
	f.BoolVar(&p.webhook, "webhook", false, "deliver payment.* notices to a webhook, which shares the machine too; else all go to the log")
	f.StringVar(&p.program, "paymentd", "", "the program; empty: built from the sources")
	f.StringVar(&p.with, "with", unmerged, "settings, separated by commas, of the second paymentd of S9")
	f.StringVar(&p.against, "against", "", "another program to compare with in S9, in place of the same one with other settings")
	f.BoolVar(&p.layers, "layers", false, "S9 alone, compared with servers that do less, so that each layer shows what it costs")
	f.StringVar(&p.json, "json", "", "write all figures as JSON to this file")
	f.StringVar(&p.profile, "profile", "", "write profiles of paymentd to this folder: CPU and allocations under the most callers of S9, the heap of S8's waiting confirms")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	p.length = time.Duration(*seconds * float64(time.Second))
	p.ceiling, p.holding = !strings.EqualFold(*only, "S8"), !strings.EqualFold(*only, "S9")
	p.holding = p.holding && (!p.layers || *only != "")
	var errs [2]error
	p.clients, errs[0] = numbers(*clients)
	p.sweep, errs[1] = numbers(*sweep)
	return p, errors.Join(errors.Join(errs[:]...), p.check(*only, f.NArg()))
}

func (p plan) check(only string, args int) error {
	switch {
	case p.layers && !p.ceiling:
		return errors.New("--layers is for S9 alone; see --help")
	case p.layers && (p.against != "" || p.with != unmerged), p.against != "" && p.with != unmerged:
		return errors.New("S9 compares with one of --layers, --against and --with; see --help")
	case p.rounds < 1 || p.length <= 0 || args > 0 || !p.ceiling && !p.holding || only != "" && p.ceiling && p.holding:
		return errors.New("rounds and seconds must be above 0, --only is S8 or S9, and there are no arguments; see --help")
	}
	return nil
}

func numbers(list string) (all []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < 1 || n > 10000 {
			return nil, fmt.Errorf("%q is not a list of numbers from 1 to 10000", list)
		}
		all = append(all, n)
	}
	return all, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	p, err := parse(args, out)
	if err != nil {
		return err
	}
	// Client and simulator share the machine with what is measured: spend memory before processor time.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	b, err := open(ctx, p, out)
	if err != nil {
		return err
	}
	r, err := b.measure(ctx)
	if closed := b.close(); err == nil {
		err = closed
	}
	if err == nil && p.json != "" {
		err = r.write(p.json)
	}
	return err
}

// bench is one run.
type bench struct {
	plan
	out      io.Writer
	rig      *rig.Rig
	dir      string
	variants []variant
	pg       *pgbench // nil: there is none on this machine
}

// variant is one of the programs that S9 compares, paymentd first.
type variant struct {
	name     string
	program  string // empty: paymentd
	settings []string
	// table is where its payments end as PAID; empty: nowhere.
	table string
}

const ourTable = "payments"

// compared are the variants of a plan; layers is the program of those that do less.
func (p plan) compared(layers string) []variant {
	ours := variant{name: "paymentd", table: ourTable}
	switch {
	case p.layers:
		less := func(name, layer, table string) variant {
			return variant{name: name, program: layers, table: table, settings: []string{"LAYERS=" + layer}}
		}
		return []variant{
			ours, less("HTTP and our statements", "ledger", ourTable), less("HTTP and bare tables", "bare", "ceiling_payments"), less("HTTP", "http", ""),
		}
	case p.against != "":
		return []variant{ours, {name: filepath.Base(p.against), program: p.against, table: ourTable}}
	default:
		return []variant{ours, {name: strings.ReplaceAll(p.with, "PAYMENTD_", ""), settings: strings.Split(p.with, ","), table: ourTable}}
	}
}

func open(ctx context.Context, p plan, out io.Writer) (b *bench, err error) {
	b = &bench{plan: p, out: out}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if p.profile != "" {
		if err := os.MkdirAll(p.profile, 0o750); err != nil {
			return b, err
		}
	}
	if b.dir, err = os.MkdirTemp("", "paymentd-bench-"); err != nil {
		return b, err
	}
	if b.program == "" {
		b.say("build paymentd")
		if b.program, err = rig.Build(ctx, b.dir); err != nil {
			return b, err
		}
	}
	layers := ""
	if p.layers {
		if layers, err = rig.BuildInstead(ctx, b.dir, "paymentd/loadtest/layers"); err != nil {
			return b, err
		}
	}
	b.variants = p.compared(layers)
	b.say("start PostgreSQL, the simulator and paymentd")
	if b.rig, err = rig.Start(ctx, b.options()); err != nil {
		return b, err
	}
	b.pg, err = newPgbench(ctx, b.rig, b.dir)
	return b, err
}

// options lift every limit that is there to protect the gateway, and leave the rest as it is in production.
func (b *bench) options() rig.Options {
	o := rig.Options{
		Program: b.program,
		Settings: []string{
			"PAYMENTD_RATE_LIMIT=0", "PAYMENTD_BULKHEAD=0", "PAYMENTD_MEMBER_LIMIT=0", "PAYMENTD_DB_MAX_CONNS=10",
		},
	}
	if !b.webhook {
		o.Settings = append(o.Settings, "PAYMENTD_NOTIFY_WEBHOOK_URL=", "PAYMENTD_NOTIFY_WEBHOOK_SECRET=")
	}
	o.Database.Durable = b.durable
	// No checkpoint within a measurement, and room for what is written between two.
	o.Database.Settings = map[string]string{"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "1h"}
	for _, v := range b.variants {
		o.Instances, o.Programs = append(o.Instances, v.settings), append(o.Programs, v.program)
	}
	return o
}

func (b *bench) measure(ctx context.Context) (r results, err error) {
	r = results{Machine: machine(b.rig), Rounds: b.rounds, Seconds: b.length.Seconds(), Durable: b.durable, Webhook: b.webhook}
	if b.ceiling {
		if r.Ceiling, err = b.rounds9(ctx); err != nil {
			return r, err
		}
		printCeiling(b.out, r.Ceiling)
	}
	if b.holding {
		if r.Sweep, err = b.sweep8(ctx); err != nil {
			return r, err
		}
		printSweep(b.out, r.Sweep, b.gateway)
	}
	return r, nil
}

func machine(r *rig.Rig) string {
	return fmt.Sprintf("%s/%s, %d cores, %s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), r.Database.Binaries().Version)
}

func (b *bench) close() error {
	var err error
	if b.rig != nil {
		err = b.rig.Close()
	}
	if b.dir != "" {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}
	return err
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }
