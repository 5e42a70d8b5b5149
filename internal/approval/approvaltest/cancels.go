package approvaltest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

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
				return c.paymentID == row.ID && c.Refused() && c.Key == "" && c.Amount == g.Amount
			})
		}
		if i < 0 {
			i = len(s.cancels)
			s.cancels = append(s.cancels, &cancel{paymentID: row.ID, Cancel: approval.Cancel{
				ID: payment.NewCancelID(), Sends: 1, Amount: g.Amount, Reason: g.Reason, State: payment.CancelOpen,
				CreatedAt: time.Now(), Failure: g.Failure,
			}})
		}
		if s.cancels[i].spent {
			s.cancels[i].Sends, s.cancels[i].spent, s.cancels[i].Amount = s.cancels[i].Sends+1, false, g.Amount
		}
		if c = s.cancels[i].Cancel; !c.Refused() {
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
	row.Leased, row.DueAt = false, time.Now().Add(payment.LookIn(row.Looks))
	if row.Status == payment.Paid && (end.Refused && end.RefusalCode != payment.RefusedMoreThanLeft || end.Done) {
		row.DueAt = time.Now().Add(payment.CrossingLook(payment.ByRecovery, payment.Paid))
	}
	for _, c := range s.cancels {
		if c.ID == end.Cancel.ID && c.unfinished() {
			c.spent = c.spent || end.KeySpent
			if end.Refused {
				s.move(row, row.Status, end.Actor, "give back refused: "+end.Reason)
				c.State, c.RefusalCode = payment.CancelRefused, end.RefusalCode
			}
		}
	}
	switch {
	case end.Done:
		s.gaveBack(row, end)
	case end.Refused && !end.Quiet:
		s.open(row, payment.CancelFailed)
	}
	row.Version++
	return row
}

func (s *Store) gaveBack(row *payment.Payment, end approval.GiveBackEnd) {
	s.record(row, end.Observation)
	var listed payment.Amount
	for _, g := range end.Observation.Cancels {
		listed += g.Amount
	}
	if len(end.Observation.Cancels) == 0 || listed != end.Observation.Total-end.Observation.Balance {
		s.confirmed(row, end.Cancel)
	}
	s.mootIf(row, end.Observation.Returned())
	from := row.Status
	switch {
	case from.Unfinished():
		row.Status, row.Failure = payment.Failed, &payment.Failure{Code: cmp.Or(end.Failure, payment.FailGivenBack)}
	case from == payment.Paid && end.Observation.Returned():
		row.Status = payment.Canceled
	}
	if row.HoldsOrder = row.Status != payment.Failed; row.Status != payment.Paid {
		row.DueAt = time.Time{}
	}
	if from == payment.Paid {
		row.CanceledAmount = max(row.CanceledAmount, row.Amount-end.Observation.Balance)
	}
	if row.Status == payment.Paid {
		s.tell(row, payment.NoticeCanceled)
		s.incidents = slices.DeleteFunc(s.incidents, func(i Incident) bool { return i == Incident{row.PaymentKey, payment.CancelFailed} })
	}
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
		s.cancels[i].State = payment.CancelDone
	}
}

// confirmed ends a cancel that Toss confirmed without listing it.
func (s *Store) confirmed(row *payment.Payment, c approval.Cancel) {
	if c.ID == "" {
		return
	}
	if !slices.ContainsFunc(s.cancels, func(k *cancel) bool { return k.ID == c.ID }) {
		s.cancels = append(s.cancels, &cancel{paymentID: row.ID, Cancel: c})
	}
	for _, k := range s.cancels {
		if k.ID == c.ID {
			k.State = payment.CancelDone
		}
	}
}

func (s *Store) mootIf(row *payment.Payment, returned bool) {
	for _, c := range s.cancels {
		if returned && c.paymentID == row.ID && c.unfinished() {
			c.State = payment.CancelMoot
		}
	}
}

// GiveBackAsked stores an open cancel as an operator's give_back of an incident does, and makes the payment due.
func (s *Store) GiveBackAsked(paymentKey string, amount payment.Amount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := s.byKey(paymentKey)
	s.cancels = append(s.cancels, &cancel{paymentID: row.ID, Cancel: approval.Cancel{
		ID: payment.NewCancelID(), Sends: 1, Amount: amount, Reason: "by hand", State: payment.CancelOpen, CreatedAt: time.Now(),
		AskedBy: "ops", Failure: payment.FailMismatch,
	}})
	row.DueAt = time.Now()
	row.Version++
}

// AgeCancels makes every cancel older.
func (s *Store) AgeCancels(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.cancels {
		c.CreatedAt = c.CreatedAt.Add(-by)
	}
}

// FindCancels implements approval.GiveBacks.
func (s *Store) FindCancels(ctx context.Context, q approval.CancelQuery) (st approval.Standing, found bool, err error) {
	if f := s.meet(ctx, FindCancels); f.Fails || f.NoRows {
		return st, false, map[bool]error{true: ErrFault}[f.Fails]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var row *payment.Payment
	for _, p := range s.rows {
		of := q.ID == p.ID || q.ID == 0 && q.OrderID == p.OrderID
		if of && (row == nil || s.asked(p, q.Key) != nil || s.asked(row, q.Key) == nil && (p.HoldsOrder || !row.HoldsOrder)) {
			row = p
		}
	}
	if row == nil {
		return st, false, nil
	}
	st.Payment = view(row)
	if c := s.asked(row, q.Key); c != nil {
		st.Asked = new(c.Cancel)
	}
	if c := s.unfinished(row); c != nil {
		st.Open = new(c.Cancel)
	}
	return st, true, nil
}

func (s *Store) asked(p *payment.Payment, key string) *cancel {
	for _, c := range s.cancels {
		if key != "" && c.paymentID == p.ID && c.Key == key {
			return c
		}
	}
	return nil
}

func (s *Store) unfinished(p *payment.Payment) *cancel {
	for _, c := range s.cancels {
		if c.paymentID == p.ID && c.unfinished() {
			return c
		}
	}
	return nil
}

// BeginCancel implements approval.GiveBacks.
func (s *Store) BeginCancel(ctx context.Context, a approval.CancelAsked) (c approval.Cancel, p payment.Payment, e payment.Ending, err error) {
	p, e, err = s.write(ctx, BeginCancel, func() *payment.Payment {
		row := s.byID(a.Payment.ID)
		if row == nil || row.Version != a.Payment.Version || row.Status != payment.Paid && row.Status != payment.AwaitingDeposit ||
			!free(row) || a.Amount < 1 || a.Amount > row.Left() || s.unfinished(row) != nil || s.asked(row, a.Key) != nil {
			return nil
		}
		c = approval.Cancel{
			ID: a.ID, Sends: 1, Amount: a.Amount, Reason: a.Reason, State: payment.CancelOpen, CreatedAt: time.Now(), Key: a.Key,
			Asked: a.Asked, AskedBy: a.AskedBy, NeedsAccount: a.NeedsAccount, Failure: a.Failure,
		}
		s.cancels = append(s.cancels, &cancel{paymentID: row.ID, Cancel: c})
		row.Looks = 0
		s.move(row, row.Status, a.Actor, "cancel asked by "+a.AskedBy)
		return lend(row, a.Lease)
	})
	return c, p, e, err
}

// Abandon implements approval.GiveBacks.
func (s *Store) Abandon(ctx context.Context, a approval.CancelAsked) (payment.Payment, payment.Ending, error) {
	return s.write(ctx, Abandon, func() *payment.Payment {
		row := s.byID(a.Payment.ID)
		if row == nil || row.Version != a.Payment.Version || row.Status != payment.Pending || row.MaybeSent || !free(row) ||
			s.unfinished(row) != nil || s.asked(row, a.Key) != nil {
			return nil
		}
		row.Status, row.Failure = payment.Failed, &payment.Failure{Code: payment.FailAbandoned}
		row.HoldsOrder, row.Leased, row.DueAt = false, false, time.Time{}
		s.cancels = append(s.cancels, &cancel{paymentID: row.ID, Cancel: approval.Cancel{
			ID: a.ID, Amount: row.Amount, Reason: a.Reason, State: payment.CancelMoot, CreatedAt: time.Now(), Key: a.Key, Asked: a.Asked,
			AskedBy: a.AskedBy,
		}})
		s.move(row, payment.Pending, a.Actor, "abandoned")
		s.notify(row, payment.Pending)
		row.Version++
		return row
	})
}

// CancelsOf are the cancels of a payment, in the order of their beginning.
func (s *Store) CancelsOf(paymentKey string) (all []approval.Cancel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byKey(paymentKey)
	for _, c := range s.cancels {
		if p != nil && c.paymentID == p.ID {
			all = append(all, c.Cancel)
		}
	}
	return all
}
