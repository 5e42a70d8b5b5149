package recovery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// books are both sides of an audit, out of slices.
type books struct {
	feed    [][]payment.Transaction
	feedErr error
	rows    map[string]payment.AuditRow
	toss    map[string]payment.Answer
	// crossing runs after a lookup of the key and before our row is read again.
	crossing map[string]func()
	lookups  []string
	opened   []string
	closed   []string
	failing  string // the method that fails
}

var errBooks = errors.New("connection lost")

func (b *books) Transactions(context.Context, time.Time, time.Time) iter.Seq2[[]payment.Transaction, error] {
	return func(yield func([]payment.Transaction, error) bool) {
		for _, page := range b.feed {
			if !yield(page, nil) {
				return
			}
		}
		if b.feedErr != nil {
			yield(nil, b.feedErr)
		}
	}
}

func (b *books) Lookup(_ context.Context, key string, tries approval.Tries) payment.Answer {
	if tries != approval.Patient {
		return payment.Answer{Kind: payment.KindRefused}
	}
	b.lookups = append(b.lookups, key)
	a, there := b.toss[key]
	if !there {
		a = payment.Answer{Kind: payment.KindNotFound, Observation: payment.Observation{Sighting: payment.SeenNotFound}}
	}
	if f := b.crossing[key]; f != nil {
		f()
	}
	return a
}

func (b *books) AuditRows(_ context.Context, keys []string) (rows []payment.AuditRow, err error) {
	if b.failing == "AuditRows" {
		return nil, errBooks
	}
	for _, key := range keys {
		if r, there := b.rows[key]; there {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func (b *books) ApprovedBetween(_ context.Context, from, to time.Time, after int64) (page []payment.AuditRow, next int64, err error) {
	if b.failing == "ApprovedBetween" {
		return nil, 0, errBooks
	}
	var all []payment.AuditRow
	for _, r := range b.rows {
		if (r.Status == payment.Paid || r.Status == payment.Canceled) && !r.ApprovedAt.Before(from) && r.ApprovedAt.Before(to) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(x, y payment.AuditRow) int { return cmpStrings(x.PaymentKey, y.PaymentKey) })
	end := min(int(after)+2, len(all))
	if end < len(all) {
		next = int64(end)
	}
	return all[after:end], next, nil
}

func cmpStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (b *books) OpenOrphan(_ context.Context, o payment.Observation, _ string) (bool, error) {
	if b.failing == "OpenOrphan" {
		return false, errBooks
	}
	if slices.Contains(b.opened, o.PaymentKey) {
		return false, nil
	}
	b.opened = append(b.opened, o.PaymentKey)
	return true, nil
}

func (b *books) CloseOrphan(_ context.Context, o payment.Observation, by payment.Actor) (bool, error) {
	if b.failing == "CloseOrphan" {
		return false, errBooks
	}
	b.closed = append(b.closed, o.PaymentKey+" "+string(by))
	return o.Returned(), nil
}

var (
	midnight = time.Date(2026, 11, 28, 15, 0, 0, 0, time.UTC)
	noon     = midnight.Add(12 * time.Hour)
)

// took, gave and shown are lines of the feed about one payment of 15,000 won.
func took(key string) payment.Transaction { return shown(key, payment.SeenDone, 15000) }

func gave(key string, amount payment.Amount, status payment.Sighting) payment.Transaction {
	return shown(key, status, -amount)
}

func shown(key string, status payment.Sighting, amount payment.Amount) payment.Transaction {
	return payment.Transaction{
		Key: fmt.Sprint(key, status, amount), PaymentKey: key, OrderID: "order-" + key, Status: status, At: noon, Currency: payment.KRW, Amount: amount,
	}
}

// ours is our row about it, settled long ago.
func ours(key string, status payment.Status, canceled payment.Amount) payment.AuditRow {
	return payment.AuditRow{
		LedgerRow: payment.LedgerRow{PaymentKey: key, OrderID: "order-" + key, Status: status, Amount: 15000, CanceledAmount: canceled},
		Currency:  payment.KRW, ApprovedAt: noon, ReservedAt: noon, UpdatedAt: noon, ReadAt: midnight.Add(48 * time.Hour),
	}
}

func with(row payment.AuditRow, change func(*payment.AuditRow)) payment.AuditRow {
	change(&row)
	return row
}

// theirs is what a lookup shows.
func theirs(key string, status payment.Sighting, balance payment.Amount) payment.Answer {
	o := payment.Observation{
		Sighting: status, PaymentKey: key, OrderID: "order-" + key, Total: 15000, Balance: balance, Currency: payment.KRW, ApprovedAt: noon,
	}
	if status == payment.SeenWaiting || status == payment.SeenExpired {
		o.ApprovedAt = time.Time{}
	}
	return payment.Answer{Kind: payment.KindPayment, Observation: o}
}

func (b *books) options() AuditOptions {
	return AuditOptions{Feed: b, Witness: b, Books: b, From: midnight, To: midnight.Add(24 * time.Hour), DoubtFor: time.Hour}
}

// TestAuditJudges: one payment, everything that the feed, our row and a lookup may say of it.
// long: one table
func TestAuditJudges(t *testing.T) {
	t.Parallel()
	type (
		feed = []payment.Transaction
		row  = payment.AuditRow
	)
	const (
		done, part, gone = payment.SeenDone, payment.SeenPartlyCanceled, payment.SeenCanceled
		waiting          = payment.SeenWaiting
	)
	none := row{}
	notFound := payment.Answer{Kind: payment.KindNotFound, Observation: payment.Observation{Sighting: payment.SeenNotFound}}
	incident := func(r *row) { r.MoneyIncident = true }
	young := func(r *row) { r.ReadAt = noon.Add(10 * time.Minute) }
	recorded := func(r *row) { r.DoneCancels = true }
	before := func(r *row) { r.ApprovedAt = midnight.Add(-time.Hour) }
	for _, tt := range []struct {
		name    string
		feed    feed
		row     row
		toss    payment.Answer
		kind    DifferenceKind
		lookups int
		doubt   int
		ledger  string // the boxes: approved paid returned incident doubt violations
	}{
		{"paid", feed{took("k")}, ours("k", payment.Paid, 0), notFound, "", 0, 0, "1 1 0 0 0 0"},
		{"partly canceled", feed{took("k"), gave("k", 4000, part)}, ours("k", payment.Paid, 4000), notFound, "", 0, 0, "1 1 0 0 0 0"},
		{"canceled", feed{took("k"), gave("k", 15000, gone)}, ours("k", payment.Canceled, 15000), notFound, "", 0, 0, "1 0 1 0 0 0"},
		{"canceled in parts", feed{took("k"), gave("k", 5000, part), gave("k", 10000, part)}, ours("k", payment.Canceled, 15000), notFound, "", 0, 0, "1 0 1 0 0 0"},
		{"given back", feed{took("k"), gave("k", 15000, gone)}, with(ours("k", payment.Failed, 0), recorded), notFound, "", 0, 0, "1 0 1 0 0 0"},
		{"deposit again", feed{took("k"), shown("k", waiting, -15000), took("k")}, ours("k", payment.Paid, 0), notFound, "", 0, 0, "1 1 0 0 0 0"},
		{"account issued", feed{shown("k", waiting, 15000)}, ours("k", payment.AwaitingDeposit, 0), theirs("k", waiting, 15000), "", 1, 0, "0 0 0 0 0 0"},
		{"cancel of a day before", feed{gave("k", 4000, part)}, with(ours("k", payment.Paid, 9000), before), notFound, "", 0, 0, "0 0 0 0 0 0"},
		{"cancel of a day before, not here", feed{gave("k", 4000, part)}, with(ours("k", payment.Paid, 0), before), theirs("k", part, 11000), AmountDiffers, 1, 0, ""},
		{"canceled after the window", feed{took("k")}, ours("k", payment.Canceled, 15000), theirs("k", gone, 0), "", 1, 0, "1 0 1 0 0 0"},
		{"not yet in the feed", nil, ours("k", payment.Paid, 0), theirs("k", done, 15000), "", 1, 0, "1 1 0 0 0 0"},
		{"cancel shown with a plus under a new word", feed{took("k"), shown("k", payment.SeenUnknownStatus, 4000)}, ours("k", payment.Paid, 4000), theirs("k", part, 11000), "", 1, 0, "1 1 0 0 0 0"},

		{"missing here", feed{took("k")}, none, theirs("k", done, 15000), MissingHere, 1, 0, "1 0 0 1 0 0"},
		{"missing here and returned", feed{took("k"), gave("k", 15000, gone)}, none, theirs("k", gone, 0), MissingHere, 1, 0, "1 0 0 1 0 0"},
		{"missing here, returned, and when is not known", feed{took("k"), gave("k", 15000, gone)}, none,
			payment.Answer{Kind: payment.KindPayment, Observation: payment.Observation{Sighting: gone, PaymentKey: "k", Total: 15000}}, MissingHere, 1, 0, "1 0 0 1 0 0"},
		{"never approved", feed{shown("k", waiting, 15000)}, none, theirs("k", waiting, 15000), "", 1, 0, "0 0 0 0 0 0"},
		{"account canceled before its deposit", feed{gave("k", 15000, gone)}, ours("k", payment.Failed, 0),
			payment.Answer{Kind: payment.KindPayment, Observation: payment.Observation{Sighting: gone, PaymentKey: "k", Total: 15000}}, "", 1, 0, "0 0 0 0 0 0"},
		{"missing there", nil, ours("k", payment.Paid, 0), notFound, MissingThere, 1, 0, "0 0 0 0 0 1"},
		{"expired there", nil, ours("k", payment.Paid, 0), theirs("k", payment.SeenExpired, 15000), MissingThere, 1, 0, ""},
		{"deposit reversed", feed{took("k"), shown("k", waiting, -15000)}, ours("k", payment.Paid, 0), theirs("k", waiting, 15000), StateDiffers, 1, 0, ""},
		{"amount", feed{took("k")}, with(ours("k", payment.Paid, 0), func(r *row) { r.Amount = 14000 }), theirs("k", done, 15000), AmountDiffers, 1, 0, "1 1 0 0 0 1"},
		{"currency", feed{took("k")}, with(ours("k", payment.Paid, 0), func(r *row) { r.Currency = "JPY" }), theirs("k", done, 15000), AmountDiffers, 1, 0, ""},
		{"canceled amount", feed{took("k"), gave("k", 4000, part)}, ours("k", payment.Paid, 0), theirs("k", part, 11000), AmountDiffers, 1, 0, ""},
		{"another order", feed{took("k")}, with(ours("k", payment.Paid, 0), func(r *row) { r.OrderID = "order-other" }), theirs("k", done, 15000), StateDiffers, 1, 0, ""},
		{"canceled there", feed{took("k"), gave("k", 15000, gone)}, ours("k", payment.Paid, 0), theirs("k", gone, 0), StateDiffers, 1, 0, "1 1 0 0 0 1"},
		{"paid there", feed{took("k")}, ours("k", payment.Canceled, 15000), theirs("k", done, 15000), StateDiffers, 1, 0, "1 0 0 0 0 1"},
		{"failed here", feed{took("k")}, ours("k", payment.Failed, 0), theirs("k", done, 15000), StateDiffers, 1, 0, "1 0 0 0 0 1"},
		{"failed here under an incident", feed{took("k")}, with(ours("k", payment.Failed, 0), incident), theirs("k", done, 15000), StateDiffers, 1, 0, "1 0 0 1 0 0"},
		{"given back, not recorded", feed{took("k"), gave("k", 15000, gone)}, ours("k", payment.Failed, 0), theirs("k", gone, 0), StateDiffers, 1, 0, ""},
		{"another amount, given back", feed{took("k"), gave("k", 15000, gone)}, with(with(ours("k", payment.Failed, 0), recorded), func(r *row) { r.Amount = 14000 }), theirs("k", gone, 0), "", 1, 0, "1 0 1 0 0 0"},
		{"in doubt", feed{took("k")}, with(ours("k", payment.Pending, 0), young), theirs("k", done, 15000), "", 1, 1, "1 0 0 0 1 0"},
		{"in doubt too long", feed{took("k")}, ours("k", payment.Pending, 0), theirs("k", done, 15000), StateDiffers, 1, 0, "1 0 0 0 1 0"},
		{"mismatch", feed{took("k")}, with(with(ours("k", payment.Pending, 0), young), func(r *row) { r.Amount, r.MoneyIncident = 14000, true }), theirs("k", done, 15000), AmountDiffers, 1, 0, "1 0 0 1 0 0"},
		{"approved twice", feed{took("k"), took("k")}, ours("k", payment.Paid, 0), theirs("k", done, 15000), "", 1, 0, "1 1 0 0 0 1"},

		{"no answer", feed{took("k")}, none, payment.Answer{Kind: payment.KindTimeout}, Unverified, 1, 0, ""},
		{"no answer about ours", nil, ours("k", payment.Paid, 0), payment.Answer{Kind: payment.KindFault}, Unverified, 1, 0, "0 0 0 0 0 0"},
		{"a new word", feed{took("k")}, ours("k", payment.Failed, 0), theirs("k", payment.SeenUnknownStatus, 0), Unverified, 1, 0, ""},
		{"in the feed and not found", feed{took("k")}, none, notFound, Unverified, 1, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := &books{feed: [][]payment.Transaction{tt.feed}, toss: map[string]payment.Answer{"k": tt.toss}, rows: map[string]payment.AuditRow{}}
			if tt.row.Status != "" {
				b.rows["k"] = tt.row
			}
			r, err := Audit(t.Context(), b.options())
			if err != nil {
				t.Fatal(err)
			}
			var kind DifferenceKind
			if len(r.Differences) > 0 {
				kind = r.Differences[0].Kind
			}
			if kind != tt.kind || len(r.Differences) > 1 || len(b.lookups) != tt.lookups || r.InDoubt != tt.doubt {
				t.Errorf("%d differences, the first %q, %d lookups, %d in doubt; want %q, %d, %d\n%+v",
					len(r.Differences), kind, len(b.lookups), r.InDoubt, tt.kind, tt.lookups, tt.doubt, r.Differences)
			}
			l := r.Ledger
			got := fmt.Sprint(l.Approved, l.Paid, l.Returned, l.Incident, l.Doubt, len(l.Violations))
			if tt.ledger != "" && got != tt.ledger {
				t.Errorf("ledger %s, want %s: %s", got, tt.ledger, l)
			}
			if want := tt.kind == "" && len(l.Violations) == 0; r.Equal() != want {
				t.Errorf("equal %v, want %v", r.Equal(), want)
			}
			if want := tt.kind == MissingHere; (r.IncidentsOpened == 1) != want || (len(b.opened) == 1) != want {
				t.Errorf("%d incidents, opened %v", r.IncidentsOpened, b.opened)
			}
		})
	}
}

// TestAuditClosesOrphans whose money went back, once, and never in a dry run.
func TestAuditClosesOrphans(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		balance payment.Amount
		row     payment.AuditRow
		dryRun  bool
		closed  int
		equal   bool
		ledger  string // approved returned incident violations
	}{
		{"went back meanwhile", 0, payment.AuditRow{LedgerRow: payment.LedgerRow{MoneyIncident: true}}, false, 1, true, "1 1 0 0"},
		{"dry run", 0, payment.AuditRow{LedgerRow: payment.LedgerRow{MoneyIncident: true}}, true, 0, false, "1 0 1 0"},
		{"is there still", 15000, payment.AuditRow{LedgerRow: payment.LedgerRow{MoneyIncident: true}}, false, 1, false, "1 0 1 0"},
		{"closed before", 0, payment.AuditRow{LedgerRow: payment.LedgerRow{DoneCancels: true}}, false, 0, true, "1 1 0 0"},
		{"closed before, and charged again", 15000, payment.AuditRow{LedgerRow: payment.LedgerRow{DoneCancels: true}}, false, 0, false, "1 0 1 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.row.PaymentKey, tt.row.OrderID = "k", "order-k"
			status, feed := payment.SeenDone, []payment.Transaction{took("k")}
			if tt.balance == 0 {
				status, feed = payment.SeenCanceled, append(feed, gave("k", 15000, payment.SeenCanceled))
			}
			b := &books{
				feed: [][]payment.Transaction{feed}, toss: map[string]payment.Answer{"k": theirs("k", status, tt.balance)},
				rows: map[string]payment.AuditRow{"k": tt.row},
			}
			o := b.options()
			o.DryRun = tt.dryRun
			r, err := Audit(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			l := r.Ledger
			if got := fmt.Sprint(l.Approved, l.Returned, l.Incident, len(l.Violations)); got != tt.ledger || r.Equal() != tt.equal || len(b.closed) != tt.closed {
				t.Errorf("%s, equal %v, closed %v; want %s, %v, %d: %s", got, r.Equal(), b.closed, tt.ledger, tt.equal, tt.closed, l)
			}
		})
	}
}

// TestAuditCrossing: what settles between the feed, the lookup and our second look is no difference.
func TestAuditCrossing(t *testing.T) {
	t.Parallel()
	fresh := func(row payment.AuditRow) payment.AuditRow { row.UpdatedAt = row.ReadAt.Add(-time.Second); return row }
	for _, tt := range []struct {
		name        string
		first, then payment.AuditRow
		toss, later payment.Answer
		lookups     int
	}{
		{"settled after the batch was read", ours("k", payment.Pending, 0), fresh(ours("k", payment.Paid, 0)),
			theirs("k", payment.SeenDone, 15000), theirs("k", payment.SeenDone, 15000), 1},
		{"canceled after the lookup", ours("k", payment.Pending, 0), fresh(ours("k", payment.Canceled, 15000)),
			theirs("k", payment.SeenDone, 15000), theirs("k", payment.SeenCanceled, 0), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := &books{feed: [][]payment.Transaction{{took("k")}}, toss: map[string]payment.Answer{"k": tt.toss}, rows: map[string]payment.AuditRow{"k": tt.first}}
			b.crossing = map[string]func(){"k": func() { b.rows["k"], b.toss["k"] = tt.then, tt.later }}
			r, err := Audit(t.Context(), b.options())
			if err != nil || len(r.Differences) != 0 || len(b.lookups) != tt.lookups || !r.Ledger.Holds() {
				t.Errorf("%v, %d lookups, %+v, %s", err, len(b.lookups), r.Differences, r.Ledger)
			}
		})
	}
}

// TestAuditOfMany: pages, batches and lookups, one of each kind among many.
func TestAuditOfMany(t *testing.T) {
	t.Parallel()
	b := &books{rows: map[string]payment.AuditRow{}, toss: map[string]payment.Answer{}}
	const payments = 3*auditBatch + 7
	var page []payment.Transaction
	for n := range payments {
		key := fmt.Sprintf("k%06d", n)
		b.rows[key], b.toss[key] = ours(key, payment.Paid, 0), theirs(key, payment.SeenDone, 15000)
		if page = append(page, took(key)); len(page) == 100 {
			b.feed, page = append(b.feed, page), nil
		}
	}
	b.feed = append(b.feed, page)
	delete(b.rows, "k000003")
	b.rows["z"] = ours("z", payment.Paid, 0)
	var seen []AuditProgress
	o := b.options()
	o.Progress = func(p AuditProgress) { seen = append(seen, p) }
	r, err := Audit(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range r.Differences {
		got = append(got, string(d.Kind)+" "+d.PaymentKey)
	}
	if diff := cmp.Diff([]string{"missing_here k000003", "missing_there z"}, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	want := AuditProgress{Pages: 16, Transactions: payments, Payments: payments, LookedUp: 2, Suspects: 2}
	if r.AuditProgress != want || seen[len(seen)-1] != want || seen[0].Pages != 1 {
		t.Errorf("progress %+v, the last told %+v", r.AuditProgress, seen[len(seen)-1])
	}
	if r.Ledger.Approved != payments || r.Ledger.Paid != payments-1 {
		t.Errorf("%s", r.Ledger)
	}
}

// TestAuditDryRun: the same report, and nothing is written.
func TestAuditDryRun(t *testing.T) {
	t.Parallel()
	b := &books{feed: [][]payment.Transaction{{took("k")}}, toss: map[string]payment.Answer{"k": theirs("k", payment.SeenDone, 15000)}}
	o := b.options()
	o.DryRun = true
	r, err := Audit(t.Context(), o)
	if err != nil || len(r.Differences) != 1 || r.Differences[0].Incident || len(b.opened) != 0 || r.Ledger.Holds() {
		t.Errorf("%v, %+v, opened %v, %s", err, r.Differences, b.opened, r.Ledger)
	}
}

// TestAuditErrors: what could not be read is an error, never a difference.
func TestAuditErrors(t *testing.T) {
	t.Parallel()
	for _, failing := range []string{"Transactions", "AuditRows", "ApprovedBetween", "OpenOrphan"} {
		t.Run(failing, func(t *testing.T) {
			t.Parallel()
			b := &books{feed: [][]payment.Transaction{{took("k")}}, toss: map[string]payment.Answer{"k": theirs("k", payment.SeenDone, 15000)}, failing: failing}
			if failing == "Transactions" {
				b.feedErr = errBooks
			}
			if r, err := Audit(t.Context(), b.options()); !errors.Is(err, errBooks) || len(r.Differences) != 0 {
				t.Errorf("%v, %+v", err, r.Differences)
			}
		})
	}
	b := &books{}
	o := b.options()
	o.To = o.From
	if _, err := Audit(t.Context(), o); err == nil {
		t.Error("an empty window was audited")
	}
	if _, err := Audit(t.Context(), AuditOptions{}); err == nil {
		t.Error("an audit of nothing was made")
	}
}
