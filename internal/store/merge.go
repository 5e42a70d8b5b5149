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
	"github.com/jackc/pgx/v5/pgtype"

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
	// strict: a merged statement asks more of a row than one alone, so that a row which it does not meet runs alone.
	strict bool

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
// leader has run it and got result, or it must run alone after that.
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
	if !turn.alone {
		return turn.result
	}
	w := m.alone(ctx, call)
	if w.ending == payment.NotApplied && turn.result.ending == payment.NoRows && !poisoned(w.err) {
		// Not to have been asked must not hide that the row has moved: who hears that looks at it, and gives nothing back.
		return turn.result
	}
	return w
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
				mine.alone = m.strict && mine.result.ending == payment.NoRows
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
		alone: s.settleAlone, together: s.settleTogether, strict: true,
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
	RETURNING p.order_id, p.id, p.created_at`

// reserveTogether is reserveAlone for many orders. What it inserts is known but for the id and the time.
func (s *Store) reserveTogether(ctx context.Context, all []reservation) ([]written, error) {
	n := len(all)
	orders, keys, currencies, members, emails := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	amounts, leases, at := make([]int64, n), make([]int64, n), make(map[string]int, n)
	for i, r := range all {
		orders[i], keys[i], currencies[i] = r.order.OrderID, r.order.PaymentKey, string(r.order.Currency)
		members[i], emails[i] = r.order.MemberID, r.order.ReceiptEmail
		amounts[i], leases[i], at[r.order.OrderID] = int64(r.order.Amount), r.lease.Microseconds(), i
	}
	rows, err := readAll(ctx, s, statement{"reserve payment", mergedReserveSQL, []any{orders, keys, amounts, currencies, members, emails, leases}}, scanReserved)
	results := noRows(n)
	for _, r := range rows {
		// One key under two orders in the same statement: the row belongs to the call whose order it has.
		i := at[r.order]
		results[i] = written{payment: all[i].inserted(r.id, r.now.Time), ending: payment.Applied}
	}
	return results, err
}

// reserved is a row of mergedReserveSQL.
type reserved struct {
	order string
	id    int64
	now   pgtype.Timestamptz
}

func scanReserved(row pgx.CollectableRow) (r reserved, err error) {
	err = row.Scan(&r.order, &r.id, &r.now)
	return r, err
}

// noRows are the results of n calls that met a guard.
func noRows(n int) []written {
	return slices.Repeat([]written{{ending: payment.NoRows}}, n)
}

// inserted is the row that reserveSQL inserts.
func (r reservation) inserted(id int64, now time.Time) *payment.Payment {
	o := r.order
	return &payment.Payment{
		ID: id, OrderID: o.OrderID, PaymentKey: o.PaymentKey, Amount: o.Amount, Currency: o.Currency, Status: payment.Pending,
		MemberID: o.MemberID, ReceiptEmail: o.ReceiptEmail, CreatedAt: now, UpdatedAt: now, ReservedAt: now, ReadAt: now,
		Version: 1, HoldsOrder: true, MaybeSent: true, Leased: true, DueAt: now.Add(r.lease.Truncate(time.Microsecond)),
		FirstSentAt: now, LastSentAt: now, Sends: 1,
	}
}

// mergedSettleSQL is plainSQL for PENDING rows that are leased under the version read. Of those nobody else writes anything
// but told (see payment.Payment.Version), so that the row after it is known but for that. A notice that is there already
// makes it an error, and each row runs alone: to look for it first would cost more than to write the notices.
const mergedSettleSQL = `WITH news AS (
		SELECT n.id, n.version, n.told, n.method, n.approved_at, n.receipt_url, n.actor, n.reason, n.evidence, n.paid, n.receipt
		FROM unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::text[], $5::timestamptz[], $6::text[], $7::text[], $8::text[],
			$9::text[], $10::uuid[], $11::uuid[])
			AS n (id, version, told, method, approved_at, receipt_url, actor, reason, evidence, paid, receipt)
	), moved AS (
		UPDATE payments AS p
		SET status = 'PAID', version = p.version + 1, leased = false, due_at = NULL, looks = 0,
			told = p.told OR n.told, method = n.method, approved_at = n.approved_at, receipt_url = n.receipt_url,
			notices_missing = false, updated_at = now()
		FROM news AS n
		WHERE p.id = n.id AND p.version = n.version AND p.leased AND p.status = 'PENDING'
		RETURNING p.id, p.version, p.told, p.approved_at, p.updated_at
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, 'PENDING', 'PAID', n.actor, n.reason, n.evidence::jsonb
		FROM moved AS p JOIN news AS n ON n.id = p.id
	), notice AS (
		INSERT INTO notices (id, payment_id, kind, event, sequence, attempts, fence, due_at)
		SELECT n.id, p.id, n.kind, n.event, p.version, $12::int, $12, now() + $13::interval
		FROM moved AS p JOIN news AS w ON w.id = p.id
		CROSS JOIN LATERAL (VALUES (w.paid, 'payment.paid', 'paid'), (w.receipt, 'receipt', 'receipt')) AS n (id, kind, event)
	)
	SELECT p.id, p.told, p.approved_at, p.updated_at FROM moved AS p`

// settleTogether is settleAlone for many plain moves, with their notices.
func (s *Store) settleTogether(ctx context.Context, all []*move) (results []written, err error) {
	n := len(all)
	ids, versions, told, at := make([]int64, n), make([]int64, n), make([]bool, n), make(map[int64]int, n)
	methods, receipts, actors, reasons := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	approved, evidences := make([]*time.Time, n), make([]*string, n)
	for i := range all {
		m, o := all[i], &all[i].Observation
		ids[i], versions[i], told[i], at[m.Payment.ID] = m.Payment.ID, m.Payment.Version, m.Told, i
		methods[i], receipts[i], approved[i] = clean(o.Method), clean(o.ReceiptURL), orNull(o.ApprovedAt)
		actors[i], reasons[i], evidences[i] = string(m.actor), clean(m.Action.Reason), evidenceOf(*o, "")
	}
	h := s.handover(n)
	defer func() { h.end(results) }()
	rows, err := readAll(ctx, s, statement{"settle payment", mergedSettleSQL, []any{
		ids, versions, told, methods, approved, receipts, actors, reasons, evidences, h.paid, h.receipt, h.attempts, h.lease,
	}}, scanSettled)
	if err != nil {
		return nil, err
	}
	results = noRows(n)
	for _, r := range rows {
		i := at[r.id]
		results[i] = written{payment: all[i].after(r), ending: payment.Applied}
	}
	return results, nil
}

// settled is a row of mergedSettleSQL.
type settled struct {
	id            int64
	told          bool
	approved, now pgtype.Timestamptz
}

func scanSettled(row pgx.CollectableRow) (r settled, err error) {
	err = row.Scan(&r.id, &r.told, &r.approved, &r.now)
	return r, err
}

// after is the row that mergedSettleSQL leaves.
func (m *move) after(r settled) *payment.Payment {
	p := m.Payment
	p.Status, p.Version, p.Leased, p.DueAt, p.Looks = payment.Paid, p.Version+1, false, time.Time{}, 0
	p.Told, p.ApprovedAt, p.UpdatedAt, p.ReadAt = r.told, r.approved.Time, r.now.Time, r.now.Time
	p.Method, p.ReceiptURL = clean(m.Observation.Method), clean(m.Observation.ReceiptURL)
	return &p
}
