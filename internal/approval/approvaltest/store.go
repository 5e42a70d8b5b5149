package approvaltest

import (
	"context"
	"slices"
	"sync"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// Store is an in-memory approval.Store and recovery.Queue. Every method is one step under one lock, so what is
// committed together is seen together. Make one with NewStore.
type Store struct {
	*script
	mu        sync.Mutex
	rows      []*payment.Payment
	cancels   []*cancel
	events    []Event
	incidents []Incident
	notices   []Notice
	missing   int
}

var _ approval.Store = (*Store)(nil)

type cancel struct {
	approval.Cancel
	paymentID      int64
	transactionKey string
	spent          bool
}

func (c *cancel) unfinished() bool { return c.State == payment.CancelOpen }

// Event is one move.
type Event struct {
	PaymentKey string
	payment.Event
}

// Incident is one doubt; there is at most one open per payment and kind.
type Incident struct {
	PaymentKey string
	Kind       payment.IncidentKind
}

// Notice is one line of the outbox.
type Notice struct {
	PaymentKey string
	Kind       payment.NoticeKind
}

// NewStore returns an empty store.
func NewStore() *Store { return &Store{script: newScript()} }

// Put stores a row as it is, with an id and a version if it has none.
func (s *Store) Put(p payment.Payment) payment.Payment {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ID = int64(len(s.rows) + 1)
	p.Version = max(p.Version, 1)
	p.Sends = max(p.Sends, 1)
	s.rows = append(s.rows, &p)
	return view(&p)
}

// Change changes the row of a key behind everybody's back and raises its version.
func (s *Store) Change(paymentKey string, f func(*payment.Payment)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.byKey(paymentKey); p != nil {
		f(p)
		p.Version++
	}
}

// Row reads a row without a fault; the zero payment if it is not there.
func (s *Store) Row(paymentKey string) payment.Payment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.byKey(paymentKey); p != nil {
		return view(p)
	}
	return payment.Payment{}
}

// Rows reads all rows without a fault.
func (s *Store) Rows() []payment.Payment {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []payment.Payment
	for _, p := range s.rows {
		all = append(all, view(p))
	}
	return all
}

// Events are the moves, in order.
func (s *Store) Events() []Event { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.events) }

// Incidents are the open incidents.
func (s *Store) Incidents() []Incident {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.incidents)
}

// Notices are the lines of the outbox.
func (s *Store) Notices() []Notice { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.notices) }

// NoticesOf implements Probe.
func (s *Store) NoticesOf(paymentKey string, kind payment.NoticeKind) (n int) {
	for _, notice := range s.Notices() {
		if (notice == Notice{paymentKey, kind}) {
			n++
		}
	}
	return n
}

// DoneCancelsOf implements Probe.
func (s *Store) DoneCancelsOf(paymentKey string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byKey(paymentKey)
	for _, c := range s.cancels {
		if p != nil && c.paymentID == p.ID && c.State == payment.CancelDone {
			n++
		}
	}
	return n
}

// view is the row as a statement returns it. Like the column, Leased stays true when the lease has run out.
func view(p *payment.Payment) payment.Payment {
	q := *p
	q.ReadAt = time.Now()
	if p.Failure != nil {
		q.Failure = new(*p.Failure)
	}
	return q
}

func (s *Store) byKey(key string) *payment.Payment {
	for _, p := range s.rows {
		if p.PaymentKey == key {
			return p
		}
	}
	return nil
}

func (s *Store) byID(id int64) *payment.Payment {
	if id < 1 || id > int64(len(s.rows)) {
		return nil
	}
	return s.rows[id-1]
}

func (s *Store) holder(orderID string) *payment.Payment {
	for _, p := range s.rows {
		if p.OrderID == orderID && p.HoldsOrder {
			return p
		}
	}
	return nil
}

// write runs one writing step: do changes the row and returns it, or nil for 0 rows.
func (s *Store) write(ctx context.Context, step Step, do func() *payment.Payment) (payment.Payment, payment.Ending, error) {
	f := s.meet(ctx, step)
	if f.NoRows {
		return payment.Payment{}, payment.NoRows, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Fails {
		if f.Ending == payment.MaybeApplied && f.Done {
			do()
		}
		return payment.Payment{}, f.Ending, ErrFault
	}
	p := do()
	if p == nil {
		return payment.Payment{}, payment.NoRows, nil
	}
	return view(p), payment.Applied, nil
}

// take lends a row that is free. A lease that ran out on an unfinished row means that its holder died, perhaps after it
// answered 202.
func take(p *payment.Payment, lease time.Duration) *payment.Payment {
	p.Told = p.Told || p.Leased && p.Status.Unfinished()
	return lend(p, lease)
}

func lend(p *payment.Payment, lease time.Duration) *payment.Payment {
	p.Version++
	p.Leased, p.DueAt = true, time.Now().Add(lease)
	return p
}

// Reserve implements approval.Reservations.
func (s *Store) Reserve(ctx context.Context, o payment.Order, lease time.Duration) (payment.Payment, payment.Ending, error) {
	return s.write(ctx, Reserve, func() *payment.Payment {
		if s.byKey(o.PaymentKey) != nil || s.holder(o.OrderID) != nil {
			return nil
		}
		now := time.Now()
		p := &payment.Payment{
			ID: int64(len(s.rows) + 1), OrderID: o.OrderID, PaymentKey: o.PaymentKey, Amount: o.Amount, Currency: o.Currency,
			Status: payment.Pending, MemberID: o.MemberID, ReceiptEmail: o.ReceiptEmail, CreatedAt: now, UpdatedAt: now,
			HoldsOrder: true, MaybeSent: true, ReservedAt: now, FirstSentAt: now, LastSentAt: now, Sends: 1,
		}
		s.rows = append(s.rows, p)
		return lend(p, lease)
	})
}

// Find implements approval.Reservations.
func (s *Store) Find(ctx context.Context, paymentKey, orderID string) (payment.Payment, bool, error) {
	f := s.meet(ctx, Find)
	if f.Fails || f.NoRows {
		return payment.Payment{}, false, map[bool]error{true: ErrFault}[f.Fails]
	}
	p, found := s.find(paymentKey, orderID)
	return p, found, nil
}

// FindNow implements approval.Reservations.
func (s *Store) FindNow(ctx context.Context, paymentKey, orderID string) (p payment.Payment, found, read bool) {
	if f := s.meet(ctx, FindNow); f.Fails || f.NoRows {
		return p, false, !f.Fails
	}
	p, found = s.find(paymentKey, orderID)
	return p, found, true
}

func (s *Store) find(paymentKey, orderID string) (payment.Payment, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.byKey(paymentKey)
	if p == nil {
		p = s.holder(orderID)
	}
	if p == nil {
		return payment.Payment{}, false
	}
	return view(p), true
}

func free(p *payment.Payment) bool { return !p.Leased || !p.DueAt.After(time.Now()) }

// TakeOver implements approval.Reservations.
func (s *Store) TakeOver(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	return s.write(ctx, TakeOver, func() *payment.Payment {
		row := s.byID(p.ID)
		if row == nil || row.Version != p.Version || row.Status != payment.Pending || !free(row) {
			return nil
		}
		return take(row, lease)
	})
}

// Reopen implements approval.Reservations.
func (s *Store) Reopen(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	return s.write(ctx, Reopen, func() *payment.Payment {
		row := s.byID(p.ID)
		if row == nil || row.Version != p.Version || row.Status != payment.Failed || row.MaybeSent ||
			!row.Failure.Reopens() || s.holder(row.OrderID) != nil || s.anyCancel(row.ID) {
			return nil
		}
		now := time.Now()
		row.Status, row.Failure, row.HoldsOrder, row.MaybeSent = payment.Pending, nil, true, true
		row.ReservedAt, row.FirstSentAt, row.LastSentAt, row.Told = now, now, now, false
		row.Sends, row.KeySpent = row.Sends+1, false
		s.move(row, payment.Failed, payment.ByConfirm, "reopened")
		return lend(row, lease)
	})
}

func (s *Store) anyCancel(id int64) bool {
	return slices.ContainsFunc(s.cancels, func(c *cancel) bool { return c.paymentID == id })
}

func (s *Store) move(p *payment.Payment, from payment.Status, by payment.Actor, reason string) {
	s.events = append(s.events, Event{p.PaymentKey, payment.Event{
		Version: p.Version + 1, From: from, To: p.Status, Actor: by, Reason: reason, At: time.Now(),
	}})
}

// open opens an incident and reports whether it was not open before.
func (s *Store) open(p *payment.Payment, kind payment.IncidentKind) bool {
	i := Incident{p.PaymentKey, kind}
	if kind == "" || slices.Contains(s.incidents, i) {
		return false
	}
	s.incidents = append(s.incidents, i)
	return true
}

func (s *Store) tell(p *payment.Payment, kinds ...payment.NoticeKind) {
	for _, k := range kinds {
		if n := (Notice{p.PaymentKey, k}); !slices.Contains(s.notices, n) {
			s.notices = append(s.notices, n)
		}
	}
}
