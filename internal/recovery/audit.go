package recovery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// Feed is Toss's list of transactions.
type Feed interface {
	// Transactions yields the pages of the feed from from to to (exclusive).
	Transactions(ctx context.Context, from, to time.Time) iter.Seq2[[]payment.Transaction, error]
}

// Witness asks Toss about one payment.
type Witness interface {
	// Lookup reads a payment by its key.
	Lookup(ctx context.Context, paymentKey string, tries approval.Tries) payment.Answer
}

// Books are our side of an audit.
type Books interface {
	// AuditRows reads what we know of the paymentKeys.
	AuditRows(ctx context.Context, paymentKeys []string) ([]payment.AuditRow, error)
	// ApprovedBetween pages through the PAID and CANCELED payments approved from from to to (exclusive); next is 0 at the end.
	ApprovedBetween(ctx context.Context, from, to time.Time, after int64) (page []payment.AuditRow, next int64, err error)
	// OpenOrphan opens the incident orphan_approval; opened is false if it is open already or the payment is here.
	OpenOrphan(ctx context.Context, o payment.Observation, reason string) (opened bool, err error)
	// CloseOrphan closes that incident if the money went back since it was opened.
	CloseOrphan(ctx context.Context, o payment.Observation, by payment.Actor) (closed bool, err error)
}

// AuditOptions say what to audit; all but DryRun and Progress are required.
type AuditOptions struct {
	Feed    Feed
	Witness Witness
	Books   Books
	// From is inclusive, To exclusive.
	From, To time.Time
	// DoubtFor is how long after its approval a payment may be unfinished here without being a difference: recovery
	// is at work.
	DoubtFor time.Duration
	// DryRun opens no incidents.
	DryRun bool
	// Progress hears of the work, often; nil: nobody does.
	Progress func(AuditProgress)
}

// AuditProgress is how far an audit is.
type AuditProgress struct {
	Pages, Transactions, Payments int
	// LookedUp of Suspects are verified; both are 0 while the feed is read.
	LookedUp, Suspects int
}

// AuditReport is what an audit found.
type AuditReport struct {
	AuditProgress
	// InDoubt counts approvals that recovery is still about to settle.
	InDoubt         int
	Differences     []Difference
	IncidentsOpened int
	// Ledger is the identity of the payments approved within the window.
	Ledger payment.Ledger
}

// Equal reports whether both sides agree: no difference, and the ledger identity holds.
func (r AuditReport) Equal() bool { return len(r.Differences) == 0 && r.Ledger.Holds() }

// DifferenceKind says in which way the two sides differ.
type DifferenceKind string

// The kinds of differences.
const (
	// MissingHere was approved at Toss and is no payment of ours.
	MissingHere DifferenceKind = "missing_here"
	// MissingThere is PAID or CANCELED here and was never approved at Toss.
	MissingThere  DifferenceKind = "missing_there"
	AmountDiffers DifferenceKind = "amount_differs"
	StateDiffers  DifferenceKind = "state_differs"
	// Unverified looks like a difference, and Toss gave no usable answer to the lookup that would tell.
	Unverified DifferenceKind = "unverified"
)

// DifferenceKinds lists every kind.
func DifferenceKinds() []DifferenceKind {
	return []DifferenceKind{MissingHere, MissingThere, AmountDiffers, StateDiffers, Unverified}
}

// Difference is one payment about which the two sides do not agree, verified by a lookup.
type Difference struct {
	Kind                DifferenceKind
	PaymentKey, OrderID string
	Here, There         Side
	// Incident says that an incident about the payment is open, by this audit or before it.
	Incident bool
	// Note says what differs, in one short phrase.
	Note string
}

// Side is a payment as one side has it; an empty Status: it has none.
type Side struct {
	Status           string
	Amount, Canceled payment.Amount
	Currency         payment.Currency
}

const auditBatch = 500

// Audit compares Toss's transactions feed with our ledger. Nothing is a difference before a lookup has confirmed it and our
// row was read once more, so that neither the edge of the window nor a settle on its way is a false alarm. It holds a few
// hundred bytes per payment of the window. An error means that nothing is known; no incident but of true orphans is open then.
func Audit(ctx context.Context, o AuditOptions) (AuditReport, error) {
	switch {
	case o.Feed == nil || o.Witness == nil || o.Books == nil:
		return AuditReport{}, errors.New("audit: feed, witness and books are required")
	case !o.From.Before(o.To):
		return AuditReport{}, errors.New("audit: the window is empty")
	}
	a := &audit{AuditOptions: o, tallies: map[string]*tally{}, suspected: map[string]bool{}}
	for _, step := range []func(context.Context) error{a.readFeed, a.compare, a.readBooks, a.verify} {
		if err := step(ctx); err != nil {
			return AuditReport{}, fmt.Errorf("audit: %w", err)
		}
	}
	a.report.Ledger = payment.CheckLedger(a.approvals, a.rows)
	return a.report, nil
}

type audit struct {
	AuditOptions
	tallies   map[string]*tally
	order     []string // the keys as the feed shows them
	suspects  []string
	suspected map[string]bool
	// approvals and rows are both sides of the window's approvals, as far as verified.
	approvals []payment.Approval
	rows      []payment.LedgerRow
	report    AuditReport
}

// tally is what the feed tells of one paymentKey.
type tally struct {
	orderID         string
	currency        payment.Currency
	times           int
	taken, returned payment.Amount
	// odd needs a lookup whatever our row says.
	odd bool
}

func (t *tally) add(x payment.Transaction) {
	if t.currency == "" {
		t.orderID, t.currency = x.OrderID, x.Currency
	}
	t.odd = t.odd || x.OrderID != t.orderID || x.Currency != t.currency
	switch {
	case x.Amount < 0 && x.Status == payment.SeenWaiting: // a bank took a deposit back
		t.times--
		t.taken += x.Amount
	case x.Amount < 0:
		t.returned -= x.Amount
	case x.Status == payment.SeenDone:
		t.times++
		t.taken += x.Amount
	case x.Status == payment.SeenUnknownStatus:
		t.odd = true
	}
}

func (t *tally) approval(key string) payment.Approval {
	return payment.Approval{PaymentKey: key, OrderID: t.orderID, Times: t.times, Total: t.taken, Canceled: t.returned}
}

func (a *audit) readFeed(ctx context.Context) error {
	for page, err := range a.Feed.Transactions(ctx, a.From, a.To) {
		if err != nil {
			return err
		}
		for _, x := range page {
			t := a.tallies[x.PaymentKey]
			if t == nil {
				t = &tally{}
				a.tallies[x.PaymentKey] = t
				a.order = append(a.order, x.PaymentKey)
			}
			t.add(x)
		}
		a.report.Pages++
		a.report.Transactions += len(page)
		a.report.Payments = len(a.order)
		a.progress()
	}
	return nil
}

func (a *audit) progress() {
	if a.Progress != nil {
		a.Progress(a.report.AuditProgress)
	}
}

// compare puts aside what plainly agrees.
func (a *audit) compare(ctx context.Context) error {
	for keys := range slices.Chunk(a.order, auditBatch) {
		rows, err := a.Books.AuditRows(ctx, keys)
		if err != nil {
			return err
		}
		known := make(map[string]payment.AuditRow, len(rows))
		for _, r := range rows {
			known[r.PaymentKey] = r
		}
		for _, key := range keys {
			row, t := known[key], a.tallies[key]
			switch {
			case !t.agrees(row):
				a.suspect(key)
			case t.times > 0:
				a.enter(t.approval(key), row.LedgerRow)
			}
		}
	}
	return nil
}

func (a *audit) suspect(key string) {
	if !a.suspected[key] {
		a.suspected[key] = true
		a.suspects = append(a.suspects, key)
	}
}

func (a *audit) enter(approval payment.Approval, row payment.LedgerRow) {
	a.approvals, a.rows = append(a.approvals, approval), append(a.rows, row)
}

// agrees reports whether the row is what the feed tells. A cancel may be in the window without its approval, which then
// only has to be covered.
func (t *tally) agrees(row payment.AuditRow) bool { //nolint:cyclop // one table
	switch {
	case t.odd || row.Status == "" || row.OrderID != t.orderID || row.Currency != t.currency:
		return false
	case t.times == 0:
		settled := row.Status == payment.Paid || row.Status == payment.Canceled
		return t.taken == 0 && settled && t.returned <= row.CanceledAmount
	case t.times != 1 || t.taken != row.Amount:
		return false
	case row.Status == payment.Paid || row.Status == payment.Canceled:
		return t.returned == row.CanceledAmount && (row.Status == payment.Paid) == (t.returned < t.taken)
	case row.Status == payment.Failed:
		return t.returned == t.taken && row.DoneCancels
	default:
		return false
	}
}

// readBooks finds what is ours and not in the feed.
func (a *audit) readBooks(ctx context.Context) error {
	for after := int64(0); ; {
		page, next, err := a.Books.ApprovedBetween(ctx, a.From, a.To, after)
		if err != nil {
			return err
		}
		for _, row := range page {
			if t := a.tallies[row.PaymentKey]; t == nil || t.times == 0 {
				a.suspect(row.PaymentKey)
			}
		}
		if next == 0 {
			return nil
		}
		after = next
	}
}
