package approvaltest

import (
	"context"
	"slices"
	"time"

	"paymentd/internal/payment"
)

// ClaimDue implements recovery.Queue.
func (s *Store) ClaimDue(ctx context.Context, limit int, lease time.Duration) ([]payment.Payment, error) {
	if s.meet(ctx, ClaimDue).Fails {
		return nil, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var claimed []payment.Payment
	for _, p := range s.rows {
		if len(claimed) < limit && !p.DueAt.IsZero() && !p.DueAt.After(time.Now()) {
			p.Looks++
			claimed = append(claimed, view(take(p, lease)))
		}
	}
	return claimed, nil
}

// ClaimOne implements recovery.Queue. A finished row that is not due is fenced and keeps its time.
func (s *Store) ClaimOne(ctx context.Context, paymentKey string, lease time.Duration) (payment.Payment, payment.Ending, error) {
	var was time.Time
	p, ending, err := s.write(ctx, ClaimOne, func() *payment.Payment {
		row := s.byKey(paymentKey)
		if row == nil || !free(row) {
			return nil
		}
		was = row.DueAt
		row.Looks = max(row.Looks, 1)
		if row.Status.Unfinished() || !row.DueAt.IsZero() && !row.DueAt.After(time.Now()) {
			return take(row, lease)
		}
		row.Version++
		return row
	})
	p.WasDue = was
	return p, ending, err
}

// ListUnfinished implements recovery.Queue.
func (s *Store) ListUnfinished(ctx context.Context, olderThan time.Duration, limit int, after int64) ([]payment.Payment, error) {
	if s.meet(ctx, List).Fails {
		return nil, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var page []payment.Payment
	for _, p := range s.rows {
		if len(page) < limit && p.ID > after && p.Status.Unfinished() && time.Since(p.ReservedAt) >= olderThan {
			page = append(page, view(p))
		}
	}
	return page, nil
}

// Attempts implements recovery.Queue.
func (s *Store) Attempts(ctx context.Context, orderID string) ([]payment.Payment, error) {
	if s.meet(ctx, Find).Fails {
		return nil, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var attempts []payment.Payment
	for _, p := range s.rows {
		if p.OrderID == orderID {
			attempts = append(attempts, view(p))
		}
	}
	return attempts, nil
}

// SweepMissingNotices implements recovery.Sweeper: it adds as many as MissNotices said.
func (s *Store) SweepMissingNotices(ctx context.Context) (int, error) {
	if s.meet(ctx, SweepNotices).Fails {
		return 0, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.missing
	s.missing = 0
	return n, nil
}

// SweepStuck implements recovery.Sweeper for leases that are longer than any holder's.
func (s *Store) SweepStuck(ctx context.Context, lease time.Duration, limit int) (freed int, err error) {
	if s.meet(ctx, SweepStuck).Fails {
		return 0, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.rows {
		if freed < limit && p.Leased && p.DueAt.After(time.Now().Add(lease)) {
			p.Told = p.Told || p.Status.Unfinished()
			p.DueAt, p.Leased = time.Now(), false
			p.Version++
			freed++
		}
	}
	return freed, nil
}

// SweepOrphans implements recovery.Sweeper: it closes those of payments that are PAID or CANCELED.
func (s *Store) SweepOrphans(ctx context.Context) (int, error) {
	if s.meet(ctx, SweepOrphans).Fails {
		return 0, ErrFault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.incidents)
	s.incidents = slices.DeleteFunc(s.incidents, func(i Incident) bool {
		p := s.byKey(i.PaymentKey)
		return i.Kind == payment.OrphanApproval && p != nil && (p.Status == payment.Paid || p.Status == payment.Canceled)
	})
	return before - len(s.incidents), nil
}

// MissNotices sets what the next sweep finds.
func (s *Store) MissNotices(n int) { s.mu.Lock(); defer s.mu.Unlock(); s.missing = n }
