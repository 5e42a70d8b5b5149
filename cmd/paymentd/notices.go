package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caarlos0/env/v11"

	"paymentd/internal/payment"
	"paymentd/internal/store"
)

// replayBatch is how many notices one transaction replays.
const replayBatch = 500

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

const noticesAbout = `usage: paymentd notices list [flags]
       paymentd notices replay ID… | --all-dead [flags]

Lists the notices of the outbox, or queues notices again: dead ones, and delivered ones with --again. A replayed notice
keeps its id, is due at once and is tried for another 24 hours. Works on the database of PAYMENTD_DATABASE_URL.

`

func noticesCommand(ctx context.Context, args, environ []string, out io.Writer) error {
	verb := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		verb, args = args[0], args[1:]
	}
	switch verb {
	case "list":
		return noticesList(ctx, args, environ, out)
	case "replay":
		return noticesReplay(ctx, args, environ, out)
	case "":
		f := flags("notices", noticesAbout)
		if done, err := parse(f, args, out); done {
			return err
		}
		return errors.New("notices: say list or replay; see paymentd notices --help")
	default:
		return fmt.Errorf("notices: unknown verb %q; see paymentd notices --help", verb)
	}
}

func noticesList(ctx context.Context, args, environ []string, out io.Writer) error {
	f := flags("notices list", noticesAbout)
	state := f.String("state", string(payment.NoticeDead), "queued, dead, delivered, superseded or all")
	kind := f.String("kind", "", "payment.paid, payment.failed, payment.canceled or receipt")
	order := f.String("order", "", "notices of this orderId alone")
	since := f.Duration("since", 0, "notices of the last 24h, for example; 0 = all")
	limit := f.Int("limit", 100, "most rows")
	asJSON := f.Bool("json", false, "one JSON object per line")
	if done, err := parse(f, args, out); done {
		return err
	}
	filter := store.NoticeFilter{
		State: payment.NoticeState(*state), Kind: payment.NoticeKind(*kind), Order: *order, Since: *since, Limit: *limit,
	}
	if *state == "all" {
		filter.State = ""
	}
	if err := checkFilter(filter); err != nil {
		return err
	}
	p, err := openNotices(ctx, environ)
	if err != nil {
		return err
	}
	defer p.close()
	list, err := p.store.Background().ListNotices(ctx, filter)
	if err != nil {
		return err
	}
	if *asJSON {
		return printNoticesJSON(list, out)
	}
	return printNotices(list, *limit, out)
}

func checkFilter(f store.NoticeFilter) error {
	states := []string{"", "queued", "dead", "delivered", "superseded"}
	kinds := []string{"", "payment.paid", "payment.failed", "payment.canceled", "receipt"}
	switch {
	case !slices.Contains(states, string(f.State)):
		return errors.New("notices: --state must be queued, dead, delivered, superseded or all")
	case !slices.Contains(kinds, string(f.Kind)):
		return errors.New("notices: --kind must be payment.paid, payment.failed, payment.canceled or receipt")
	case f.Since < 0 || f.Limit < 1:
		return errors.New("notices: --since must not be negative and --limit must be at least 1")
	}
	return nil
}

// openNotices needs no settings but the database; it waits for it for 10 s unless DB_CONNECT_TIMEOUT says otherwise.
func openNotices(ctx context.Context, environ []string) (*program, error) {
	dsn, err := databaseURL(environ)
	if err != nil {
		return nil, err
	}
	within, err := time.ParseDuration(cmp.Or(env.ToMap(environ)[prefix+"DB_CONNECT_TIMEOUT"], "10s"))
	if err != nil {
		return nil, fmt.Errorf("%sDB_CONNECT_TIMEOUT: %w", prefix, err)
	}
	return beside(ctx, Config{
		DatabaseURL: Secret(dsn), DBConnectTimeout: within, DBMaxConns: 1, DBBackgroundConns: 1,
		DBAcquireTimeout: 10 * time.Second, DBStatementTimeout: time.Minute,
	}, slog.New(slog.DiscardHandler))
}

func printNotices(list []store.NoticeRow, limit int, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tKIND\tORDER\tSTATE\tATTEMPTS\tCREATED\tNEXT TRY\tLAST ERROR")
	for _, n := range list {
		next := "–"
		if n.DueAt != nil {
			next = clock(*n.DueAt)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", n.ID, n.Kind, n.OrderID, n.State, n.Attempts, clock(n.CreatedAt),
			next, cmp.Or(strings.Join(strings.Fields(n.LastError), " "), "–"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(list) == limit {
		fmt.Fprintf(out, "the first %d; --limit shows more\n", limit)
	} else {
		fmt.Fprintf(out, "%d notices\n", len(list))
	}
	return nil
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// noticeJSON is one line of notices list --json.
type noticeJSON struct {
	ID          string              `json:"id"`
	Kind        payment.NoticeKind  `json:"kind"`
	OrderID     string              `json:"orderId"`
	State       payment.NoticeState `json:"state"`
	Sequence    int64               `json:"sequence"`
	Attempts    int                 `json:"attempts"`
	CreatedAt   time.Time           `json:"createdAt"`
	ReplayedAt  *time.Time          `json:"replayedAt"`
	NextTryAt   *time.Time          `json:"nextTryAt"`
	DeliveredAt *time.Time          `json:"deliveredAt"`
	LastError   string              `json:"lastError"`
}

func printNoticesJSON(list []store.NoticeRow, out io.Writer) error {
	lines := json.NewEncoder(out)
	for _, n := range list {
		if err := lines.Encode(noticeJSON{
			ID: n.ID, Kind: n.Kind, OrderID: n.OrderID, State: n.State, Sequence: n.Sequence, Attempts: n.Attempts,
			CreatedAt: n.CreatedAt.UTC(), ReplayedAt: inUTC(n.ReplayedAt), NextTryAt: inUTC(n.DueAt),
			DeliveredAt: inUTC(n.DeliveredAt), LastError: n.LastError,
		}); err != nil {
			return err
		}
	}
	return nil
}

func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}

// replay is one run of notices replay.
type replay struct {
	db     *store.Store
	out    io.Writer
	ask    store.Replay
	dryRun bool

	done, seen int
}

func noticesReplay(ctx context.Context, args, environ []string, out io.Writer) error {
	f := flags("notices replay", noticesAbout)
	allDead := f.Bool("all-dead", false, "replay every dead notice")
	kind := f.String("kind", "", "with --all-dead: this kind alone")
	since := f.Duration("since", 0, "with --all-dead: of the last 48h, for example; 0 = all")
	again := f.Bool("again", false, "replay also what was delivered")
	dryRun := f.Bool("dry-run", false, "say what would be replayed, change nothing")
	by := f.String("by", cmp.Or(env.ToMap(environ)["USER"], "operator"), "your name, for the incidents that this closes")
	ids, done, err := parseMixed(f, args, out)
	if done {
		return err
	}
	filter := store.NoticeFilter{State: payment.NoticeDead, Kind: payment.NoticeKind(*kind), Since: *since, Limit: replayBatch}
	switch {
	case *allDead == (len(ids) > 0):
		return errors.New("notices replay: give ids, or --all-dead alone; see paymentd notices replay --help")
	case !*allDead && (*kind != "" || *since != 0) || *allDead && *again:
		return errors.New("notices replay: --kind and --since go with --all-dead, --again goes with ids")
	}
	if err := checkFilter(filter); err != nil {
		return err
	}
	p, err := openNotices(ctx, environ)
	if err != nil {
		return err
	}
	defer p.close()
	for i, id := range ids {
		ids[i] = strings.ToLower(id)
	}
	r := &replay{db: p.store.Background(), out: out, ask: store.Replay{Again: *again, By: *by}, dryRun: *dryRun}
	if *allDead {
		return r.allDead(ctx, filter)
	}
	return r.these(ctx, ids)
}

// allDead works page by page, the newest payments first, so that any number of dead notices fits into memory.
func (r *replay) allDead(ctx context.Context, filter store.NoticeFilter) error {
	for {
		page, err := r.db.ListNotices(ctx, filter)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return r.total("dead notices")
		}
		filter.After = page[len(page)-1]
		r.seen += len(page)
		if r.dryRun {
			r.done += len(page)
			continue
		}
		r.ask.IDs = nil
		for _, n := range page {
			r.ask.IDs = append(r.ask.IDs, n.ID)
		}
		list, err := r.db.ReplayNotices(ctx, r.ask)
		if err != nil {
			return err
		}
		for _, n := range list {
			if n.Done {
				r.done++
			}
		}
		if len(page) == replayBatch {
			fmt.Fprintf(r.out, "%d replayed so far\n", r.done)
		}
	}
}

func (r *replay) total(what string) error {
	verb := "replayed"
	if r.dryRun {
		verb = "would be replayed"
	}
	fmt.Fprintf(r.out, "%d of %d %s %s\n", r.done, r.seen, what, verb)
	return nil
}

// these replays the ids that were given and says of each what became of it.
func (r *replay) these(ctx context.Context, ids []string) error {
	known := map[string]store.Replayed{}
	for batch := range slices.Chunk(slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !uuid.MatchString(id) }), replayBatch) {
		r.ask.IDs, r.ask.DryRun = batch, r.dryRun
		list, err := r.db.ReplayNotices(ctx, r.ask)
		if err != nil {
			return err
		}
		for _, n := range list {
			known[n.ID] = n
		}
	}
	unknown, refused := 0, 0
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		r.seen++
		n, ok := known[id]
		switch {
		case !ok:
			unknown++
			fmt.Fprintf(r.out, "%s  unknown\n", id)
		case n.Done:
			r.done++
			fmt.Fprintf(r.out, "%s  was %s\n", id, n.Was)
		default:
			refused++
			fmt.Fprintf(r.out, "%s  not replayed: %s\n", id, whyNot[n.Was])
		}
	}
	if err := r.total("notices"); err != nil {
		return err
	}
	if unknown+refused > 0 {
		return fmt.Errorf("notices replay: %d unknown, %d refused", unknown, refused)
	}
	return nil
}

// whyNot tells why a notice in a state is left alone.
var whyNot = map[payment.NoticeState]string{
	payment.NoticeQueued:     "it is queued already",
	payment.NoticeDelivered:  "it was delivered; --again sends it once more, with the same id",
	payment.NoticeSuperseded: "it no longer tells the truth (superseded)",
}
