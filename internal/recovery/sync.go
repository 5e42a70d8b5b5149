package recovery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

const (
	// syncLimit is how many payments one sync handles if the request sets no limit.
	syncLimit = 1000
	syncPage  = 100
)

// Sync does recovery's work now, on an operator's word: for all attempts of the named orders in whatever state, else for the
// unfinished payments reserved longer ago than OlderThan. Payments that somebody works on are left alone and
// reported as in_progress. With DryRun it only says what would happen. An error comes with the report of what was done
// before it.
func (r *Recovery) Sync(ctx context.Context, q payment.SyncRequest) (payment.SyncReport, error) {
	return r.SyncWatched(ctx, q, nil)
}

var errStopped = errors.New("the process stops")

// StopSyncs ends every sync that runs and every later one after the payments at hand: it answers with the report of what
// was done. The process is about to stop.
func (r *Recovery) StopSyncs() { r.stopSyncs.Do(func() { close(r.syncsStop) }) }

// SyncWatched is Sync with somebody who looks on: watch, if not nil, gets the report as it stands after each payment, one
// call at a time. When ctx ends, what is in hand is finished and nothing new is begun.
func (r *Recovery) SyncWatched(ctx context.Context, q payment.SyncRequest, watch func(payment.SyncReport)) (payment.SyncReport, error) {
	if q.Limit <= 0 {
		q.Limit = syncLimit
	}
	run := &syncRun{Recovery: r, request: q, watch: watch, report: payment.SyncReport{Results: []payment.SyncResult{}}}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-r.syncsStop:
			cancel(errStopped)
		case <-ended:
		}
	}()
	var err error
	if len(q.OrderIDs) > 0 {
		err = run.named(ctx)
	} else {
		err = run.unfinished(ctx)
	}
	if errors.Is(context.Cause(ctx), errStopped) {
		err = nil // the read that it cut short is no failure
	}
	return run.report, err
}

// syncRun is one sync: its workers add to the report.
type syncRun struct {
	*Recovery
	request payment.SyncRequest
	watch   func(payment.SyncReport)
	mu      sync.Mutex
	report  payment.SyncReport
}

// named looks at every attempt of the orders: an earlier one may have been approved late. A read that fails ends the
// reading, not the work on what was read before.
func (s *syncRun) named(ctx context.Context) error {
	var page []payment.Payment
	defer func() { s.each(ctx, page) }()
	// An order that is named twice would be found in progress by us ourselves.
	for _, id := range slices.Compact(slices.Sorted(slices.Values(s.request.OrderIDs))) {
		left := s.request.Limit - len(page) - s.report.Checked
		if left <= 0 {
			return nil
		}
		attempts, err := s.queue.Attempts(ctx, id)
		if err != nil {
			return fmt.Errorf("read attempts: %w", err)
		}
		if len(attempts) == 0 {
			s.add(payment.SyncResult{OrderID: id, Reason: "not_found"}, approval.DidError)
		}
		page = append(page, attempts[:min(len(attempts), left)]...)
	}
	return nil
}

// unfinished pages by id, so that 10,000 leftovers are never in memory at once.
func (s *syncRun) unfinished(ctx context.Context) error {
	for after, left := int64(0), s.request.Limit; left > 0 && ctx.Err() == nil; {
		page, err := s.queue.ListUnfinished(ctx, s.request.OlderThan, min(left, syncPage), after)
		if err != nil {
			return fmt.Errorf("list unfinished payments: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		s.each(ctx, page)
		after, left = page[len(page)-1].ID, left-len(page)
	}
	return nil
}

func (s *syncRun) each(ctx context.Context, page []payment.Payment) {
	work := make(chan payment.Payment)
	var workers sync.WaitGroup
	for range s.opt.Concurrency {
		workers.Go(func() {
			for p := range work {
				if err := contained(ctx, func(ctx context.Context) error { s.one(ctx, p); return nil }); err != nil {
					s.log.ErrorContext(ctx, "sync", "order_id", p.OrderID, "error", err)
					s.add(payment.SyncResult{OrderID: p.OrderID, Before: p.Status, After: p.Status, Reason: "internal error"}, approval.DidError)
				}
			}
		})
	}
	defer workers.Wait()
	defer close(work)
	for _, p := range page {
		select { // a worker may be free at the very moment of the stop
		case <-s.syncsStop:
			return
		default:
		}
		select {
		case work <- p:
		case <-ctx.Done():
			return
		}
	}
}

func (s *syncRun) one(ctx context.Context, p payment.Payment) {
	if s.request.DryRun {
		s.plan(ctx, p)
		return
	}
	leaseEnd := time.Now().Add(s.opt.Lease)
	held, ending, err := s.queue.ClaimOne(ctx, p.PaymentKey, s.opt.Lease)
	row := payment.SyncResult{OrderID: p.OrderID, Before: p.Status, After: p.Status}
	switch {
	case ending == payment.NoRows:
		row.Reason = payment.SyncInProgress
		s.add(row, approval.DidWait)
		return
	case ending != payment.Applied:
		row.Reason = "database error"
		s.log.WarnContext(ctx, "claim for sync", "order_id", p.OrderID, "error", err)
		s.add(row, approval.DidError)
		return
	}
	if len(s.request.OrderIDs) == 0 && !held.Status.Unfinished() && !held.Leased {
		// Somebody was faster after the page was read; only who names an order wants a finished one compared.
		row.After, row.Reason = held.Status, "settled meanwhile"
		s.add(row, approval.DidWait)
		return
	}
	// Whoever stops the sync still hears how what was in hand ended.
	res, err := s.resolve(context.WithoutCancel(ctx), held, payment.BySync, leaseEnd)
	row.Before, row.After, row.Reason = held.Status, held.Status, res.Action.Reason
	if res.Action.Do == payment.GiveBack {
		row.Reason = string(res.Action.Do) + ": " + row.Reason // the states alone do not tell that money went back
	}
	if err == nil {
		row.After = res.After.Status
	} else {
		row.Reason = "could not be finished; recovery goes on"
	}
	s.add(row, res.Did)
}

// plan is the dry run of one payment.
func (s *syncRun) plan(ctx context.Context, p payment.Payment) {
	row := payment.SyncResult{OrderID: p.OrderID, Before: p.Status, After: p.Status, Reason: payment.SyncInProgress}
	did := approval.DidWait
	if !approval.Held(p) {
		a, _ := s.resolver.Plan(ctx, p)
		row.Reason = string(a.Do) + ": " + a.Reason
		switch {
		case a.Do == payment.Settle:
			row.After = a.To
		case a.Incident != "":
			did = approval.DidIncident
		}
	}
	s.add(row, did)
}

// add counts a payment by the state it is in now, unless an error or an incident says more.
func (s *syncRun) add(row payment.SyncResult, did approval.Did) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report.Results = append(s.report.Results, row)
	s.report.Checked++
	s.tally(row, did)
	if s.watch != nil {
		s.watch(s.report)
	}
}

func (s *syncRun) tally(row payment.SyncResult, did approval.Did) {
	switch {
	case did == approval.DidError:
		s.report.Errors++
	case did == approval.DidIncident:
		s.report.Incidents++
	case row.Reason == payment.SyncInProgress:
		s.report.Waiting++
	case row.After == payment.Paid:
		s.report.Paid++
	case row.After == payment.Failed:
		s.report.Failed++
	case row.After == payment.Canceled:
		s.report.Canceled++
	default:
		s.report.Waiting++
	}
}
