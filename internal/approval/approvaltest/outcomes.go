package approvaltest

import (
	"cmp"
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
			payment.NeedsFence(to) && row.Version != st.Payment.Version {
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

// BeginGiveBack implements approval.GiveBacks.
func (s *Store) BeginGiveBack(ctx context.Context, g approval.GiveBack) (c approval.Cancel, p payment.Payment, e payment.Ending, err error) {
	p, e, err = s.write(ctx, BeginGiveBack, func() *payment.Payment {
		row := s.byID(g.Payment.ID)
		if row == nil || row.Version != g.Payment.Version || row.Status == payment.Canceled {
			return nil
		}
		row.HoldsOrder = row.HoldsOrder || s.holder(row.OrderID) == nil
		i := slices.IndexFunc(s.cancels, func(c *cancel) bool { return c.paymentID == row.ID && c.unfinished() })
		if i < 0 {
			i = slices.IndexFunc(s.cancels, func(c *cancel) bool {
				return c.paymentID == row.ID && c.refused && !c.done && c.Amount == g.Amount
			})
		}
		if i < 0 {
			i = len(s.cancels)
			s.cancels = append(s.cancels, &cancel{paymentID: row.ID, Cancel: approval.Cancel{
				ID: payment.NewCancelID(), Sends: 1, Amount: g.Amount, Reason: g.Reason, CreatedAt: time.Now(),
			}})
		}
		if s.cancels[i].spent {
			s.cancels[i].Sends, s.cancels[i].spent, s.cancels[i].Amount = s.cancels[i].Sends+1, false, g.Amount
		}
		c = s.cancels[i].Cancel
		if c.Refused = s.cancels[i].refused; !c.Refused {
			s.move(row, row.Status, g.Actor, "give back: "+g.Reason)
		}
		return lend(row, g.Lease)
	})
	return c, p, e, err
}

// EndGiveBack implements approval.GiveBacks.
func (s *Store) EndGiveBack(ctx context.Context, end approval.GiveBackEnd) (payment.Payment, payment.Ending, error) {
	return s.write(ctx, EndGiveBack, func() *payment.Payment {
		row := s.byID(end.Payment.ID)
		if row == nil || row.Version != end.Payment.Version {
			return nil
		}
		return s.endGiveBack(row, end)
	})
}

func (s *Store) endGiveBack(row *payment.Payment, end approval.GiveBackEnd) *payment.Payment {
	row.Leased, row.DueAt = false, time.Now().Add(nextLook(row, -1))
	for _, c := range s.cancels {
		if c.ID == end.Cancel.ID && !c.refused {
			if end.Refused {
				s.move(row, row.Status, end.Actor, "give back refused: "+end.Reason)
			}
			c.done, c.refused, c.spent = end.Done, end.Refused, c.spent || end.KeySpent
		}
	}
	switch {
	case end.Done:
		s.gaveBack(row, end)
	case end.Refused:
		s.open(row, payment.CancelFailed)
	}
	row.Version++
	return row
}

func (s *Store) gaveBack(row *payment.Payment, end approval.GiveBackEnd) {
	s.record(row, end.Observation)
	from := row.Status
	switch {
	case from.Unfinished():
		row.Status, row.Failure = payment.Failed, &payment.Failure{Code: cmp.Or(end.Failure, payment.FailGivenBack)}
	case from == payment.Paid && end.Observation.Returned():
		row.Status = payment.Canceled
	}
	row.DueAt, row.HoldsOrder = time.Time{}, row.Status != payment.Failed
	if row.Status != from {
		s.move(row, from, end.Actor, end.Reason)
		s.notify(row, from)
	}
	if row.Status != payment.Paid {
		s.incidents = slices.DeleteFunc(s.incidents, func(i Incident) bool { return i.PaymentKey == row.PaymentKey })
	}
}

// record keeps what Toss lists as done, and ends what is moot when nothing is left at Toss. An open cancel stays
// open otherwise.
func (s *Store) record(row *payment.Payment, o payment.Observation) {
	for _, g := range o.Cancels {
		i := slices.IndexFunc(s.cancels, func(c *cancel) bool {
			return c.paymentID == row.ID && (c.ID != "" && c.ID == payment.CancelMark(g.Reason) || c.ID == "" && c.transactionKey == g.TransactionKey)
		})
		if i < 0 {
			i = len(s.cancels)
			s.cancels = append(s.cancels, &cancel{paymentID: row.ID, transactionKey: g.TransactionKey, Cancel: approval.Cancel{
				ID: payment.CancelMark(g.Reason), Amount: g.Amount, Reason: g.Reason, CreatedAt: time.Now(),
			}})
		}
		s.cancels[i].done = true
	}
	if o.Returned() {
		for _, c := range s.cancels {
			c.moot = c.moot || c.paymentID == row.ID && c.unfinished()
		}
	}
}

// AgeCancels makes every cancel older.
func (s *Store) AgeCancels(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.cancels {
		c.CreatedAt = c.CreatedAt.Add(-by)
	}
}
