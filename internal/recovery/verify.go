package recovery

import (
	"context"
	"fmt"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// verify asks Toss about every suspect.
func (a *audit) verify(ctx context.Context) error {
	a.report.Suspects = len(a.suspects)
	for _, key := range a.suspects {
		s, err := a.look(ctx, key)
		if err != nil {
			return err
		}
		if err := a.conclude(ctx, s); err != nil {
			return err
		}
		a.report.LookedUp++
		a.progress()
	}
	return nil
}

// suspect is both sides of one paymentKey.
type suspect struct {
	key   string
	tally *tally // nil: not in the feed
	seen  payment.Answer
	row   payment.AuditRow
	// kind is empty if the sides agree, or doubt is true and recovery is at work.
	kind  DifferenceKind
	note  string
	doubt bool
}

// freshly is how young a change of our row is that may have crossed the lookup.
const freshly = time.Minute

// look reads Toss, then our row; once more if the row changed meanwhile.
func (a *audit) look(ctx context.Context, key string) (s suspect, err error) {
	for tries := 0; ; tries++ {
		s = suspect{key: key, tally: a.tallies[key], seen: a.Witness.Lookup(ctx, key, approval.Patient)}
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		rows, err := a.Books.AuditRows(ctx, []string{key})
		if err != nil {
			return s, err
		}
		if len(rows) > 0 {
			s.row = rows[0]
		}
		s.judge(a.DoubtFor)
		crossing := s.row.Status != "" && s.row.ReadAt.Sub(s.row.UpdatedAt) < freshly
		if s.kind == "" || tries > 0 || !crossing {
			return s, nil
		}
	}
}

// judge says in which way the sides differ.
func (s *suspect) judge(doubtFor time.Duration) { //nolint:cyclop // one table
	o, row := s.seen.Observation, s.row
	usable := s.seen.Kind == payment.KindPayment && o.Sighting != payment.SeenUnknownStatus
	if !usable && (s.seen.Kind != payment.KindNotFound || s.tally != nil && s.tally.taken > 0) {
		s.kind, s.note = Unverified, "the lookup says "+s.word()
		return
	}
	approved := s.approved()
	switch settled := row.Status == payment.Paid || row.Status == payment.Canceled; {
	case row.ByHand && !row.MoneyIncident && approved && !settled && !row.Status.Unfinished():
		// An operator has answered for it; the ledger counts it apart.
	case row.Status == "" && approved && o.Returned() && row.DoneCancels && !row.MoneyIncident:
		// The incident about it closed when the money went back.
	case row.Status == "" && approved:
		s.kind, s.note = MissingHere, "no payment with this key"
	case row.Status == "" || !approved && !settled:
	case !approved && o.Sighting == payment.SeenWaiting:
		s.kind, s.note = StateDiffers, "the deposit is not there any more"
	case !approved:
		s.kind, s.note = MissingThere, "never approved at the gateway"
	case row.Status.Unfinished() && !row.MoneyIncident && row.ReadAt.Sub(laterOf(o.ApprovedAt, row.ReservedAt)) < doubtFor:
		s.doubt = true
	case row.Status == payment.Failed && o.Returned() && row.DoneCancels:
		// Whatever was approved by then, all of it is back and recorded.
	case o.Total != row.Amount || o.Currency != row.Currency:
		s.kind, s.note = AmountDiffers, "amount or currency"
	case o.OrderID != row.OrderID:
		s.kind, s.note = StateDiffers, "another order there"
	default:
		s.compareStates(o, row)
	}
}

func (s *suspect) compareStates(o payment.Observation, row payment.AuditRow) {
	returned := o.Returned()
	switch {
	case row.Status == payment.Paid && !returned:
		if canceled := o.Total - o.Balance; canceled != row.CanceledAmount {
			s.kind, s.note = AmountDiffers, "canceled amount"
		}
	case row.Status == payment.Canceled && returned:
	case row.Status == payment.Failed && returned:
		s.kind, s.note = StateDiffers, "given back there, not recorded here"
	default:
		s.kind, s.note = StateDiffers, fmt.Sprintf("%s here, %s there", row.Status, o.Sighting)
	}
}

// approved reports whether Toss ever took the money. A virtual account that ended before its deposit is CANCELED too.
func (s *suspect) approved() bool {
	o := s.seen.Observation
	switch o.Sighting {
	case payment.SeenDone, payment.SeenPartlyCanceled:
		return true
	case payment.SeenCanceled:
		return o.Balance > 0 || !o.ApprovedAt.IsZero() || s.tally != nil && s.tally.taken > 0
	default:
		return false
	}
}

// word is what the lookup told, in one word.
func (s *suspect) word() string {
	if s.seen.Kind == payment.KindPayment || s.seen.Kind == payment.KindNotFound {
		return string(s.seen.Observation.Sighting)
	}
	return string(s.seen.Kind)
}

// conclude reports a suspect, opens its incident and enters it into the ledger.
func (a *audit) conclude(ctx context.Context, s suspect) error {
	incident := s.row.MoneyIncident
	if s.kind == MissingHere && incident && !a.DryRun {
		closed, err := a.Books.CloseOrphan(ctx, s.seen.Observation, payment.ByOperator)
		if err != nil {
			return err
		}
		if closed {
			s.kind, s.row.DoneCancels, incident = "", true, false
		}
	}
	if s.kind == MissingHere && !a.DryRun {
		opened, err := a.Books.OpenOrphan(ctx, s.seen.Observation, "found by an audit of the gateway's transactions")
		if err != nil {
			return err
		}
		if opened {
			a.report.IncidentsOpened++
		}
		incident = true
	}
	if s.doubt {
		a.report.InDoubt++
	}
	if s.kind != "" {
		a.report.Differences = append(a.report.Differences, s.difference(incident))
	}
	a.enterSuspect(s, incident)
	return nil
}

func (s *suspect) difference(incident bool) Difference {
	d := Difference{Kind: s.kind, PaymentKey: s.key, OrderID: s.row.OrderID, Incident: incident, Note: s.note}
	d.Here = Side{string(s.row.Status), s.row.Amount, s.row.CanceledAmount, s.row.Currency}
	if s.row.Status == "" {
		d.Here = Side{}
	}
	switch o := s.seen.Observation; {
	case s.seen.Kind == payment.KindPayment:
		d.There = Side{string(o.Sighting), o.Total, o.Total - o.Balance, o.Currency}
		if d.OrderID == "" {
			d.OrderID = o.OrderID
		}
	case s.tally != nil:
		d.There = Side{"FEED", s.tally.taken, s.tally.returned, s.tally.currency}
		if d.OrderID == "" {
			d.OrderID = s.tally.orderID
		}
	}
	return d
}

// enterSuspect adds both sides to the ledger if the approval is of the window. What could not be verified is entered as
// the feed shows it, or not at all.
func (a *audit) enterSuspect(s suspect, incident bool) {
	o, fed := s.seen.Observation, s.tally != nil && s.tally.times > 0
	inside := func(t time.Time) bool { return !t.Before(a.From) && t.Before(a.To) }
	row := s.row.LedgerRow
	row.PaymentKey, row.MoneyIncident = s.key, incident
	known := s.row.Status != "" || incident || row.ByHand || row.DoneCancels
	switch {
	case s.kind == Unverified && !fed, !fed && !inside(o.ApprovedAt) && !inside(s.row.ApprovedAt):
		return
	case s.kind == Unverified:
		a.approvals = append(a.approvals, s.tally.approval(s.key))
	case s.approved():
		times := 1
		if fed {
			times = s.tally.times
		}
		a.approvals = append(a.approvals, payment.Approval{
			PaymentKey: s.key, OrderID: o.OrderID, Times: times, Total: o.Total, Canceled: o.Total - o.Balance,
		})
	}
	if known {
		a.rows = append(a.rows, row)
	}
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
