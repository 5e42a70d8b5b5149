package approvaltest

import (
	"context"
	"slices"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// Settle implements approval.Outcomes.
func (s *Store) Settle(ctx context.Context, st approval.Settlement) (payment.Payment, payment.Ending, error) {
	return s.write(ctx, Settle, func() *payment.Payment {
		row, to := s.byID(st.Payment.ID), st.Action.To
		if row == nil || !slices.Contains(payment.SettleFrom(to), row.Status) ||
			row.Version != st.Payment.Version && (payment.NeedsFence(to) || row.Status == to && !free(row)) {
			return nil
		}
		from := row.Status
		row.Status, row.Leased, row.DueAt, row.Looks, row.UpdatedAt = to, false, time.Time{}, 0, time.Now()
		row.HoldsOrder = to != payment.Failed
		row.Told = row.Told || st.Told
		if st.Action.Failure != nil {
			row.Failure = new(*st.Action.Failure)
		}
		if in := max(st.Action.VerifyIn, payment.CrossingLook(st.Actor, to)); in > 0 {
			row.DueAt = time.Now().Add(in)
		}
		if st.NotSent {
			row.MaybeSent = false
		}
		s.settled(row, st)
		s.move(row, from, st.Actor, st.Action.Reason)
		s.open(row, st.Action.Incident)
		s.notify(row, from)
		row.Version++
		return row
	})
}

func (s *Store) settled(row *payment.Payment, st approval.Settlement) {
	o := st.Observation
	s.record(row, o)
	s.mootIf(row, o.Returned())
	switch row.Status {
	case payment.AwaitingDeposit:
		row.VirtualAccount = o.VirtualAccount
		row.DueAt = time.Now().Add(10 * time.Minute)
	case payment.Paid, payment.Canceled:
		row.Method, row.ApprovedAt, row.ReceiptURL = o.Method, o.ApprovedAt, o.ReceiptURL
		if o.Sighting != payment.SeenDone {
			row.CanceledAmount = max(row.CanceledAmount, row.Amount-o.Balance)
		}
	default: // PENDING and FAILED take nothing from an observation
	}
	s.incidents = slices.DeleteFunc(s.incidents, func(i Incident) bool {
		return i.PaymentKey == row.PaymentKey && i.Kind == payment.UnknownOutcome
	})
}

func (s *Store) notify(row *payment.Payment, from payment.Status) {
	switch {
	case row.Status == payment.Paid && from != payment.Paid:
		s.tell(row, payment.NoticePaid, payment.NoticeReceipt)
	case row.Status == payment.Failed && row.Told:
		s.tell(row, payment.NoticeFailed)
	case row.Status == payment.Canceled:
		s.tell(row, payment.NoticeCanceled)
	}
}

// Release implements approval.Outcomes. The fence that the holder had stays his, unless an incident is opened.
func (s *Store) Release(ctx context.Context, r approval.Release) (payment.Ending, error) {
	_, ending, err := s.write(ctx, Release, func() *payment.Payment {
		row := s.byID(r.Payment.ID)
		if row == nil || row.Version != r.Payment.Version {
			return nil
		}
		if row.Status == payment.Failed && r.Observation.Returned() {
			return s.endGiveBack(row, approval.GiveBackEnd{Done: true, Observation: r.Observation, Actor: r.Actor, Reason: r.Reason})
		}
		s.schedule(row, r)
		row.KeySpent = row.KeySpent || r.KeySpent
		row.Told = row.Told || r.Told
		switch {
		case r.NotSent:
			row.MaybeSent, row.FirstSentAt, row.LastSentAt = false, time.Time{}, time.Time{}
		case r.Sent:
			row.MaybeSent, row.LastSentAt = true, time.Now()
		}
		if s.open(row, r.Incident) {
			s.move(row, row.Status, r.Actor, "incident "+string(r.Incident)+": "+r.Reason)
			row.Version++
		}
		return row
	})
	return ending, err
}

// nextLook is in, or if that is negative a delay that grows with every look.
func nextLook(row *payment.Payment, in time.Duration) time.Duration {
	if in >= 0 {
		return in
	}
	return payment.LookIn(row.Looks)
}

func (s *Store) schedule(row *payment.Payment, r approval.Release) {
	in := nextLook(row, r.DueIn)
	leased := row.Leased
	row.Leased = false
	switch {
	case r.Park && row.Status.Unfinished():
		row.DueAt = time.Time{}
	case row.Status.Unfinished() || row.HoldsOrder && row.Status == payment.Failed:
		row.DueAt = time.Now().Add(in)
		if !r.DueBy.IsZero() && r.DueBy.Before(row.DueAt) {
			row.DueAt = r.DueBy
		}
	case !leased:
	case r.Forget:
		row.DueAt = time.Time{}
	default:
		row.DueAt = time.Now().Add(in)
	}
}

// BeginSend implements approval.Outcomes.
func (s *Store) BeginSend(ctx context.Context, b approval.BeginSend) (payment.Payment, payment.Ending, error) {
	return s.write(ctx, BeginSend, func() *payment.Payment {
		row := s.byID(b.Payment.ID)
		if row == nil || row.Version != b.Payment.Version || row.Status != payment.Pending ||
			b.Within > 0 && time.Since(row.ReservedAt) >= b.Within {
			return nil
		}
		if !row.MaybeSent {
			row.FirstSentAt, row.Looks = time.Now(), 0
		}
		s.move(row, row.Status, b.Actor, "send: "+b.Reason)
		row.MaybeSent, row.LastSentAt = true, time.Now()
		if b.NextKey {
			row.Sends, row.KeySpent = row.Sends+1, false
		}
		return lend(row, b.Lease)
	})
}

// MarkTold implements approval.Outcomes.
func (s *Store) MarkTold(ctx context.Context, paymentKey string) error {
	_, _, err := s.write(ctx, MarkTold, func() *payment.Payment {
		row := s.byKey(paymentKey)
		if row != nil && !row.Told {
			row.Told = true
			if row.Status == payment.Failed {
				s.tell(row, payment.NoticeFailed)
			}
		}
		return row
	})
	return err
}
