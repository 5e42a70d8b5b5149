package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"paymentd/internal/payment"
)

const (
	// maxMerged is the most calls in one statement: more gains nothing and keeps the first ones waiting.
	maxMerged = 64
	// heldUp is how long a call waits for a lane before it takes one that is kept back: whatever has the first (a lock, a
	// slow disk, a standby) must not hold up everybody.
	heldUp = 50 * time.Millisecond
)

var errLostLeader = errors.New("the merged statement ended without a word")

// merger sends the statements of concurrent calls of one kind together (ADR 0011). While fewer than its lanes are
// busy a call runs its own statement at once; those that arrive meanwhile go as one with the next lane that comes
// free. Nothing waits for company, and no caller's context reaches a merged statement.
type merger[K cmp.Ordered, Q any] struct {
	// lanes is how many statements of the kind run at once; most is how many do while those are held up.
	lanes, most int
	// patience is the longest wait for a lane: as long as for a connection.
	patience time.Duration
	// pool is whose lanes they are: it counts those who wait and those who give up.
	pool *pool
	// key orders the rows of a statement, so that two of them meet rows in one order; equal keys never share one.
	key func(Q) K
	// alone runs one call's own statement; together runs one for all and returns as many results in their order.
	alone    func(context.Context, Q) written
	together func(context.Context, []Q) ([]written, error)

	mu    sync.Mutex
	busy  int
	queue []*mergedCall[Q]
}

// mergedCall waits for a lane. Whoever takes it from the queue wakes it once.
type mergedCall[Q any] struct {
	call Q
	wake chan mergedTurn[Q]
}

// mergedTurn tells a waiting call what happened to it: it leads a statement for all of batch, itself first, or a
// leader has run it and got result, or it must run alone.
type mergedTurn[Q any] struct {
	batch  []*mergedCall[Q]
	alone  bool
	result written
}

// do runs one call.
func (m *merger[K, Q]) do(ctx context.Context, call Q) written {
	m.mu.Lock()
	if m.busy < m.lanes {
		m.busy++
		m.mu.Unlock()
		defer m.free()
		return m.alone(ctx, call)
	}
	c := &mergedCall[Q]{call: call, wake: make(chan mergedTurn[Q], 1)}
	m.queue = append(m.queue, c)
	m.mu.Unlock()

	turn, err := m.await(c)
	switch {
	case err != nil:
		return written{ending: endingOf(err), err: err}
	case turn.batch != nil:
		defer m.free()
		turn = m.lead(ctx, turn.batch)
	}
	if turn.alone {
		return m.alone(ctx, call)
	}
	return turn.result
}

// await waits for the call's turn. The error means that it left the queue unsent. Waiting for the statement ahead is the
// ordinary course; who waits longer is counted as waiting for a connection.
func (m *merger[K, Q]) await(c *mergedCall[Q]) (mergedTurn[Q], error) {
	step := min(heldUp, m.patience/2)
	timer := time.NewTimer(step)
	defer timer.Stop()
	ended := func(bool) error { return nil }
	for left := m.patience; ; timer.Reset(min(step, left)) {
		select {
		case turn := <-c.wake:
			return turn, ended(true)
		case <-timer.C:
		}
		if left == m.patience {
			ended = m.pool.waits()
		}
		if left -= step; left > 0 {
			m.widen(c)
			continue
		}
		if m.leave(c) {
			return mergedTurn[Q]{}, ended(false)
		}
		return <-c.wake, ended(true)
	}
}

// leave takes the call from the queue, unless somebody else has.
func (m *merger[K, Q]) leave(c *mergedCall[Q]) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.Index(m.queue, c)
	if at >= 0 {
		m.queue = slices.Delete(m.queue, at, at+1)
	}
	return at >= 0
}

// widen gives those who wait one more lane, because c has waited long.
func (m *merger[K, Q]) widen(c *mergedCall[Q]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy < m.most && slices.Contains(m.queue, c) {
		m.busy++
		m.next()
	}
}

// free gives the lane to those who wait, or back.
func (m *merger[K, Q]) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 || m.busy > m.lanes {
		m.busy--
		return
	}
	m.next()
}

// next wakes the leader of the next statement; the caller holds the lock and has a lane for it.
func (m *merger[K, Q]) next() {
	batch := m.take()
	batch[0].wake <- mergedTurn[Q]{batch: batch}
}

// take removes the first calls from the queue, at most one of a key; the caller holds the lock.
func (m *merger[K, Q]) take() []*mergedCall[Q] {
	var batch []*mergedCall[Q]
	keys := make(map[K]bool, min(len(m.queue), maxMerged))
	left := m.queue[:0]
	for _, c := range m.queue {
		if k := m.key(c.call); len(batch) < maxMerged && !keys[k] {
			keys[k] = true
			batch = append(batch, c)
		} else {
			left = append(left, c)
		}
	}
	clear(m.queue[len(left):])
	m.queue = left
	return batch
}

// lead runs one statement for the whole batch, wakes the others and returns the leader's own turn. What it cannot
// tell of is "maybe applied", and never sent again.
func (m *merger[K, Q]) lead(ctx context.Context, batch []*mergedCall[Q]) (own mergedTurn[Q]) {
	leader := batch[0]
	slices.SortFunc(batch, func(a, b *mergedCall[Q]) int { return cmp.Compare(m.key(a.call), m.key(b.call)) })
	turn := mergedTurn[Q]{result: written{ending: payment.MaybeApplied, err: errLostLeader}}
	var results []written
	defer func() {
		for i, c := range batch {
			mine := turn
			if results != nil {
				mine.result = results[i]
			}
			if c == leader {
				own = mine
			} else {
				c.wake <- mine
			}
		}
	}()
	if len(batch) == 1 {
		turn.alone = true
		return own
	}
	calls := make([]Q, len(batch))
	for i, c := range batch {
		calls[i] = c.call
	}
	got, err := m.together(context.WithoutCancel(ctx), calls)
	if err == nil {
		results = got
		return own
	}
	turn.result = written{ending: endingOf(err), err: err}
	pg, said := errors.AsType[*pgconn.PgError](err)
	turn.alone = said && severity(pg) == "ERROR" // one of them is at fault, or the moment; each finds out for itself
	return own
}

// newMergers sets the merging of the two hot statements up; most is how many of a kind may run at once. One does as long as
// it is not held up: every further lane makes all statements smaller, and their rows are the least of their cost (ADR 0011).
func (s *Store) newMergers(most int, patience time.Duration) {
	s.reserves = &merger[string, reservation]{
		lanes: 1, most: most, patience: patience, pool: s.request, key: func(r reservation) string { return r.order.OrderID },
		alone: s.reserveAlone, together: s.reserveTogether,
	}
	s.settles = &merger[int64, *move]{
		lanes: 1, most: most, patience: patience, pool: s.request, key: func(m *move) int64 { return m.Payment.ID },
		alone: s.settleAlone, together: s.settleTogether,
	}
}

const mergedReserveSQL = `INSERT INTO payments AS p (order_id, payment_key, amount, currency, member_id, receipt_email,
		status, holds_order, version, maybe_sent, leased, due_at, reserved_at, first_sent_at, last_sent_at, sends,
		created_at, updated_at)
	SELECT n.order_id, n.payment_key, n.amount, n.currency, n.member_id, n.receipt_email,
		'PENDING', true, 1, true, true, now() + n.lease * interval '1 microsecond', now(), now(), now(), 1, now(), now()
	FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[])
		AS n (order_id, payment_key, amount, currency, member_id, receipt_email, lease)
	ON CONFLICT DO NOTHING
	RETURNING ` + columns

// reserveTogether is reserveAlone for many orders.
func (s *Store) reserveTogether(ctx context.Context, all []reservation) ([]written, error) {
	n := len(all)
	orders, keys, currencies, members, emails := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	amounts, leases := make([]int64, n), make([]int64, n)
	for i, r := range all {
		orders[i], keys[i], currencies[i] = r.order.OrderID, r.order.PaymentKey, string(r.order.Currency)
		members[i], emails[i] = r.order.MemberID, r.order.ReceiptEmail
		amounts[i], leases[i] = int64(r.order.Amount), r.lease.Microseconds()
	}
	rows, err := s.readPayments(ctx, "reserve payment", mergedReserveSQL, orders, keys, amounts, currencies, members, emails, leases)
	// One key under two orders in the same statement: the row belongs to the call whose order it has.
	type name struct{ key, order string }
	return perCall(all, rows, func(r reservation) name { return name{r.order.PaymentKey, r.order.OrderID} },
		func(p payment.Payment) name { return name{p.PaymentKey, p.OrderID} }), err
}

const mergedSettleSQL = `WITH news AS (
		SELECT n.id, n.told, n.method, n.approved_at, n.receipt_url, n.actor, n.reason, n.evidence, n.paid, n.receipt
		FROM unnest($1::bigint[], $2::boolean[], $3::text[], $4::timestamptz[], $5::text[], $6::text[], $7::text[], $8::text[],
			$9::uuid[], $10::uuid[]) AS n (id, told, method, approved_at, receipt_url, actor, reason, evidence, paid, receipt)
	), moved AS (
		UPDATE payments AS p
		SET status = 'PAID', version = p.version + 1, leased = false, due_at = NULL, looks = 0,
			told = p.told OR n.told, method = n.method, approved_at = n.approved_at, receipt_url = n.receipt_url,
			notices_missing = false, updated_at = now()
		FROM news AS n WHERE p.id = n.id AND p.status IN ('PENDING', 'AWAITING_DEPOSIT')
		RETURNING ` + columns + `
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, CASE WHEN p.virtual_account IS NULL THEN 'PENDING' ELSE 'AWAITING_DEPOSIT' END,
			p.status, n.actor, n.reason, n.evidence::jsonb FROM moved AS p JOIN news AS n ON n.id = p.id
	), notice AS (
		INSERT INTO notices (id, payment_id, kind, event, sequence, attempts, fence, due_at)
		SELECT n.id, p.id, n.kind, n.event, p.version, $11::int, $11, now() + $12::interval
		FROM moved AS p JOIN news AS w ON w.id = p.id
		CROSS JOIN LATERAL (VALUES (w.paid, 'payment.paid', 'paid'), (w.receipt, 'receipt', 'receipt')) AS n (id, kind, event)
		ON CONFLICT DO NOTHING
	)` + plainResultSQL

// settleTogether is settleAlone for many plain moves, with their notices.
func (s *Store) settleTogether(ctx context.Context, all []*move) (results []written, err error) {
	n := len(all)
	ids, told, approved, evidences := make([]int64, n), make([]bool, n), make([]*time.Time, n), make([]*string, n)
	methods, receipts, actors, reasons := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	for i := range all {
		m, o := all[i], &all[i].Observation
		ids[i], told[i] = m.Payment.ID, m.Told
		methods[i], receipts[i], approved[i] = clean(o.Method), clean(o.ReceiptURL), orNull(o.ApprovedAt)
		actors[i], reasons[i], evidences[i] = string(m.actor), clean(m.Action.Reason), evidenceOf(*o, "")
	}
	h := s.handover(n)
	defer func() { h.end(results) }()
	rows, err := s.readPayments(ctx, "settle payment", mergedSettleSQL, ids, told, methods, approved, receipts, actors, reasons,
		evidences, h.paid, h.receipt, h.attempts, h.lease)
	if err != nil {
		return nil, err
	}
	return perCall(all, rows, func(m *move) int64 { return m.Payment.ID }, func(p payment.Payment) int64 { return p.ID }), nil
}

// perCall hands the returned rows to their calls; a call without one met a guard.
func perCall[Q any, K comparable](calls []Q, rows []payment.Payment, key func(Q) K, of func(payment.Payment) K) []written {
	at := make(map[K]int, len(rows))
	for i := range rows {
		at[of(rows[i])] = i
	}
	results := make([]written, len(calls))
	for i, q := range calls {
		if j, ok := at[key(q)]; ok {
			results[i] = written{payment: &rows[j], ending: payment.Applied}
		} else {
			results[i] = written{ending: endingOf(pgx.ErrNoRows)}
		}
	}
	return results
}
