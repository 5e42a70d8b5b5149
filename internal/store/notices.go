package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"paymentd/internal/payment"
)

// Courier delivers notices that a settle of this process has just written, so that nobody has to claim them.
type Courier interface {
	// KeepRoom keeps room for n notices and says how long their lease must be; 0: no room, somebody will claim them.
	// Hand gives the room back.
	KeepRoom(n int) (lease time.Duration)
	// Hand gives back the room for n with the notices that were written, their first attempt counted, under a lease of
	// that length which began at or after since.
	Hand(n int, since time.Time, notices []payment.Notice)
}

// HandNoticesTo sets the courier, whose owner must run it: before the first settle, and once. Views that Background has made
// before have none.
func (s *Store) HandNoticesTo(c Courier) { s.courier = c }

// noticesOfPaid is how many notices a payment that becomes PAID has: payment.paid and receipt.
const noticesOfPaid = 2

// handover is how a plain settle of some payments writes their notices: leased to the courier, or due at once. The ids
// are made here, in ascending order, so that the index grows at its end alone (UUID version 7, RFC 9562).
type handover struct {
	courier       Courier // nil: nobody has room
	since         time.Time
	lease         time.Duration
	attempts      int
	paid, receipt []pgtype.UUID
}

// handover must be ended.
func (s *Store) handover(payments int) *handover {
	h := &handover{since: time.Now()}
	if s.courier != nil {
		h.lease = s.courier.KeepRoom(noticesOfPaid * payments)
	}
	if h.lease > 0 {
		h.courier, h.attempts = s.courier, 1
	}
	h.paid, h.receipt = make([]pgtype.UUID, payments), make([]pgtype.UUID, payments)
	for i := range payments {
		h.paid[i], h.receipt[i] = newID(), newID()
	}
	return h
}

func newID() pgtype.UUID { return pgtype.UUID{Bytes: uuid.Must(uuid.NewV7()), Valid: true} }

// end hands the notices over of what was applied; results are in the order of the ids, none if the statement failed. A
// statement that may have been applied leaves its notices to the end of their lease.
func (h *handover) end(results []written) {
	if h.courier == nil {
		return
	}
	notices := make([]payment.Notice, 0, noticesOfPaid*len(results))
	for i, w := range results {
		if w.ending == payment.Applied {
			notices = append(notices, h.notice(*w.payment, payment.NoticePaid, h.paid[i]), h.notice(*w.payment, payment.NoticeReceipt, h.receipt[i]))
		}
	}
	h.courier.Hand(noticesOfPaid*len(h.paid), h.since, notices)
}

func (h *handover) notice(p payment.Payment, kind payment.NoticeKind, id pgtype.UUID) payment.Notice {
	return payment.Notice{
		ID: id.String(), Kind: kind, Sequence: p.Version, Attempts: h.attempts, Fence: int64(h.attempts),
		CreatedAt: p.ReadAt, Now: p.ReadAt, Payment: p,
	}
}

// The rows are addressed by their place, which the lock holds still: a join on the id reads the whole table while it is
// small. A place that moved before the lock is met at the next claim.
const claimNoticesSQL = `WITH claimed AS (
		UPDATE notices AS n SET attempts = n.attempts + 1, fence = n.fence + 1, due_at = now() + $2::interval
		WHERE n.ctid = ANY(ARRAY(
			SELECT d.ctid FROM notices AS d WHERE d.due_at <= now() ORDER BY d.due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
		RETURNING n.id, n.kind, n.sequence, n.attempts, n.fence, n.created_at, n.replayed_at, n.payment_id
	)
	SELECT ` + columns + `, n.id::text, n.kind, n.sequence, n.attempts, n.fence, n.created_at, n.replayed_at
	FROM claimed AS n JOIN payments AS p ON p.id = n.payment_id ORDER BY n.created_at, n.sequence`

// ClaimNotices leases at most limit due notices, the longest due first. A worker that dies leaves them to the next
// one when the lease is over; the attempt counts all the same.
func (s *Store) ClaimNotices(ctx context.Context, limit int, lease time.Duration) ([]payment.Notice, error) {
	return readAll(ctx, s, statement{"claim notices", claimNoticesSQL, []any{limit, lease}}, func(row pgx.CollectableRow) (n payment.Notice, err error) {
		var replayed *time.Time
		err = scanPayment(row, &n.Payment, &n.ID, &n.Kind, &n.Sequence, &n.Attempts, &n.Fence, &n.CreatedAt, &replayed)
		n.Now, n.ReplayedAt = n.Payment.ReadAt, timeOf(replayed)
		return n, err
	})
}

// ErrNoticeLost means that the lease of a notice ran out and somebody else took it up.
var ErrNoticeLost = errors.New("the notice is no longer ours")

const finishNoticesSQL = `WITH tried AS (
		SELECT t.id, t.fence, t.state, t.retry_in * interval '1 microsecond' AS retry_in, t.error
		FROM unnest($1::text[]::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::text[]) AS t (id, fence, state, retry_in, error)
	), finished AS (
		UPDATE notices AS n SET state = t.state, last_error = t.error, fence = n.fence + 1,
			due_at = CASE WHEN t.state = 'queued' THEN now() + t.retry_in END,
			delivered_at = CASE WHEN t.state = 'delivered' THEN now() END
		FROM tried AS t WHERE n.id = t.id AND n.fence = t.fence AND n.state = 'queued'
		RETURNING n.id, n.payment_id, n.kind, n.attempts, n.state, n.last_error
	), incident AS (
		INSERT INTO incidents (payment_id, payment_key, order_id, kind, evidence)
		SELECT DISTINCT ON (p.payment_key) p.id, p.payment_key, p.order_id, 'dead_notice',
			jsonb_build_object('notice', n.id, 'kind', n.kind, 'attempts', n.attempts, 'error', n.last_error)
		FROM finished AS n JOIN payments AS p ON p.id = n.payment_id WHERE n.state = 'dead'
		ORDER BY p.payment_key
		-- The lock on the open incident makes a replay, which may close it, end first.
		ON CONFLICT (payment_key, kind) WHERE resolved_at IS NULL DO UPDATE SET kind = EXCLUDED.kind
	)
	SELECT count(*) FROM finished`

// FinishNotices writes the result of each try under its notice's fence, and is ErrNoticeLost if that of any did not
// match; the others are written all the same. A dead notice opens the incident dead_notice.
func (s *Store) FinishNotices(ctx context.Context, tries []payment.NoticeTry) error {
	// Sorted as a replay locks them, so that the two hardly ever wait for each other; where PostgreSQL has to end one of
	// them after all, the notices are sent once more.
	sorted := make([]*payment.NoticeTry, len(tries))
	for i := range tries {
		sorted[i] = &tries[i]
	}
	slices.SortFunc(sorted, func(a, b *payment.NoticeTry) int { return strings.Compare(a.Notice.ID, b.Notice.ID) })
	ids, states, errs := make([]string, len(tries)), make([]string, len(tries)), make([]string, len(tries))
	fences, retries := make([]int64, len(tries)), make([]int64, len(tries))
	for i, t := range sorted {
		ids[i], fences[i], states[i] = t.Notice.ID, t.Notice.Fence, string(t.Result.State)
		retries[i], errs[i] = t.Result.RetryIn.Microseconds(), clean(t.Result.Error)
	}
	count, err := s.count(ctx, "finish notices", finishNoticesSQL, ids, fences, states, retries, errs)
	if err == nil && count < len(tries) {
		return wrap("finish notices", ErrNoticeLost)
	}
	return err
}

// count runs a statement whose one row is a number.
func (s *Store) count(ctx context.Context, noun, sql string, args ...any) (n int, err error) {
	_, err = s.write(ctx, statement{noun, sql, args}, func(row pgx.Row) error { return row.Scan(&n) })
	return n, err
}

// NoticeFilter picks notices; an empty field picks all.
type NoticeFilter struct {
	State payment.NoticeState
	Kind  payment.NoticeKind
	Order string
	// Since picks what moved at most so long ago.
	Since time.Duration
	// Limit is the most rows; it must be given.
	Limit int
	// After is the last row of the page before.
	After NoticeRow
}

// NoticeRow is a notice as operators see it: nothing in it is secret or about a person.
type NoticeRow struct {
	ID        string
	Kind      payment.NoticeKind
	State     payment.NoticeState
	OrderID   string
	Sequence  int64
	Attempts  int
	CreatedAt time.Time
	// ReplayedAt, DueAt and DeliveredAt are nil if never.
	ReplayedAt, DueAt, DeliveredAt *time.Time
	LastError                      string
	// PaymentID is the place in the list, with ID.
	PaymentID int64
}

const listNoticesSQL = `SELECT n.id::text, n.kind, n.state, COALESCE(p.order_id, ''), n.sequence, n.attempts,
		n.created_at, n.replayed_at, n.due_at, n.delivered_at, n.last_error, n.payment_id
	FROM notices AS n LEFT JOIN payments AS p ON p.id = n.payment_id
	WHERE ($1 = '' OR n.state = $1) AND ($2 = '' OR n.kind = $2)
	  AND ($3 = '' OR n.payment_id IN (SELECT p.id FROM payments AS p WHERE p.order_id = $3 AND (p.holds_order OR NOT p.holds_order)))
	  AND ($4::interval = '0' OR n.created_at > now() - $4::interval)
	  AND ($5 = '' OR (n.payment_id, n.id::text) < ($6::bigint, $5))
	ORDER BY n.payment_id DESC, n.id::text DESC LIMIT $7`

// ListNotices reads notices, those of the newest payments first. It writes nothing.
func (s *Store) ListNotices(ctx context.Context, f NoticeFilter) ([]NoticeRow, error) {
	return readAll(ctx, s, statement{"list notices", listNoticesSQL, []any{
		string(f.State), string(f.Kind), f.Order, f.Since, f.After.ID, f.After.PaymentID, f.Limit,
	}}, pgx.RowToStructByPos[NoticeRow])
}

// Replay asks for notices to be sent again.
type Replay struct {
	IDs []string
	// Again sends also what was delivered. What is queued or superseded is never touched.
	Again bool
	// DryRun only says what would be done.
	DryRun bool
	// By is the operator who closes the incidents.
	By string
}

// Replayed is what a Replay met.
type Replayed struct {
	ID string
	// Was is the state before.
	Was payment.NoticeState
	// Done means that the notice is queued again and due, or would be.
	Done bool
}

const replaySQL = `WITH asked AS (
		SELECT n.id, n.state, n.state = 'dead' OR $2 AND n.state = 'delivered' AS wanted
		FROM notices AS n WHERE n.id = ANY($1::text[]::uuid[]) ORDER BY n.id FOR UPDATE
	), replayed AS (
		UPDATE notices AS n SET state = 'queued', attempts = 0, due_at = now(), fence = n.fence + 1, delivered_at = NULL, replayed_at = now()
		FROM asked AS a WHERE n.id = a.id AND a.wanted AND NOT $3
	)
	SELECT a.id::text, a.state, a.wanted FROM asked AS a ORDER BY a.id`

// Two statements, because the second must see what others committed while the first waited for the lock.
const lockDeadIncidentsSQL = `SELECT i.id FROM incidents AS i JOIN payments AS p ON p.payment_key = i.payment_key
	WHERE i.kind = 'dead_notice' AND i.resolved_at IS NULL
	  AND p.id IN (SELECT n.payment_id FROM notices AS n WHERE n.id = ANY($1::text[]::uuid[])) ORDER BY i.payment_key FOR UPDATE OF i`

const closeDeadIncidentsSQL = `UPDATE incidents AS i SET resolved_at = now(), resolved_by = $2, note = 'replayed'
	FROM payments AS p WHERE i.id = ANY($1) AND p.payment_key = i.payment_key
	  AND NOT EXISTS (SELECT FROM notices AS n WHERE n.payment_id = p.id AND n.state = 'dead')`

// ReplayNotices queues notices again: due now, with the same id, all attempts and a new life of 24 hours. It closes the
// incident dead_notice of a payment that has no dead notice left. An id that is not in the result is unknown.
func (s *Store) ReplayNotices(ctx context.Context, r Replay) (list []Replayed, err error) {
	err = s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, replaySQL, r.IDs, r.Again, r.DryRun)
			if err != nil {
				return err
			}
			if list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Replayed]); err != nil || r.DryRun {
				return err
			}
			if rows, err = tx.Query(ctx, lockDeadIncidentsSQL, r.IDs); err != nil {
				return err
			}
			open, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			if err != nil || len(open) == 0 {
				return err
			}
			_, err = tx.Exec(ctx, closeDeadIncidentsSQL, open, clean(r.By))
			return err
		})
	})
	return list, wrap("replay notices", err)
}

// figures are the numbers of the ledger that operators watch.
type figures struct {
	// Unfinished counts the PENDING and AWAITING_DEPOSIT payments.
	Unfinished map[payment.Status]int64
	// OldestPending is the age of the oldest PENDING payment since its reservation; 0 if there is none.
	OldestPending time.Duration
	// Incidents counts the open ones; Notices those queued and dead.
	Incidents map[payment.IncidentKind]int64
	Notices   map[payment.NoticeState]int64
}

// Every part reads a partial index of what is unfinished, never a whole table.
const figuresSQL = `SELECT 'payment' AS what, p.status AS name, count(*),
		COALESCE(EXTRACT(EPOCH FROM now() - min(p.reserved_at)), 0)::float8
	FROM payments AS p WHERE p.due_at IS NOT NULL AND p.status IN ('PENDING', 'AWAITING_DEPOSIT') GROUP BY p.status
	UNION ALL
	SELECT 'incident', i.kind, count(*), 0 FROM incidents AS i WHERE i.resolved_at IS NULL GROUP BY i.kind
	UNION ALL
	SELECT 'notice', 'queued', count(*), 0 FROM notices AS n WHERE n.due_at IS NOT NULL
	UNION ALL
	SELECT 'notice', 'dead', count(*), 0 FROM notices AS n WHERE n.state = 'dead'`

// readFigures reads the figures now.
func readFigures(ctx context.Context, conn *lentConn) (figures, error) {
	f := figures{
		Unfinished: map[payment.Status]int64{payment.Pending: 0, payment.AwaitingDeposit: 0},
		Incidents:  map[payment.IncidentKind]int64{},
		Notices:    map[payment.NoticeState]int64{},
	}
	rows, err := conn.Query(ctx, figuresSQL)
	if err != nil {
		return f, wrap("read figures", err)
	}
	var (
		what, name string
		n          int64
		age        float64
	)
	_, err = pgx.ForEachRow(rows, []any{&what, &name, &n, &age}, func() error {
		switch what {
		case "payment":
			f.Unfinished[payment.Status(name)] = n
			if payment.Status(name) == payment.Pending {
				f.OldestPending = time.Duration(age * float64(time.Second))
			}
		case "incident":
			f.Incidents[payment.IncidentKind(name)] = n
		default:
			f.Notices[payment.NoticeState(name)] = n
		}
		return nil
	})
	return f, wrap("read figures", err)
}
