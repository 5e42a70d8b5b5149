package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

const claimNoticesSQL = `WITH due AS (
		SELECT d.id FROM notices AS d WHERE d.due_at <= now() ORDER BY d.due_at LIMIT $1 FOR UPDATE SKIP LOCKED
	), claimed AS (
		UPDATE notices AS n SET attempts = n.attempts + 1, fence = n.fence + 1, due_at = now() + $2::interval
		FROM due WHERE n.id = due.id
		RETURNING n.id, n.kind, n.sequence, n.attempts, n.fence, n.created_at, n.payment_id
	)
	SELECT ` + columns + `, n.id::text, n.kind, n.sequence, n.attempts, n.fence, n.created_at
	FROM claimed AS n JOIN payments AS p ON p.id = n.payment_id ORDER BY n.created_at, n.sequence`

// ClaimNotices leases at most limit due notices, the longest due first. A worker that dies leaves them to the next
// one when the lease is over; the attempt counts all the same.
func (s *Store) ClaimNotices(ctx context.Context, limit int, lease time.Duration) ([]payment.Notice, error) {
	return readAll(ctx, s, statement{"claim notices", claimNoticesSQL, []any{limit, lease}}, func(row pgx.CollectableRow) (n payment.Notice, err error) {
		err = scanPayment(row, &n.Payment, &n.ID, &n.Kind, &n.Sequence, &n.Attempts, &n.Fence, &n.CreatedAt)
		n.Now = n.Payment.ReadAt
		return n, err
	})
}

// ErrNoticeLost means that the lease of a notice ran out and somebody else took it up.
var ErrNoticeLost = errors.New("the notice is no longer ours")

const finishNoticeSQL = `WITH finished AS (
		UPDATE notices AS n SET state = $3, last_error = $5, fence = n.fence + 1,
			due_at = CASE WHEN $3 = 'queued' THEN now() + $4::interval END,
			delivered_at = CASE WHEN $3 = 'delivered' THEN now() END
		WHERE n.id = $1 AND n.fence = $2 AND n.state = 'queued'
		RETURNING n.id, n.payment_id, n.kind, n.attempts
	), incident AS (
		INSERT INTO incidents (payment_id, payment_key, order_id, kind, evidence)
		SELECT p.id, p.payment_key, p.order_id, 'dead_notice',
			jsonb_build_object('notice', n.id, 'kind', n.kind, 'attempts', n.attempts, 'error', $5::text)
		FROM finished AS n JOIN payments AS p ON p.id = n.payment_id WHERE $3 = 'dead'
		ON CONFLICT (payment_key, kind) WHERE resolved_at IS NULL DO NOTHING
	)
	SELECT count(*) FROM finished`

// FinishNotice writes the result of one try under the notice's fence, else ErrNoticeLost. A dead notice opens the
// incident dead_notice.
func (s *Store) FinishNotice(ctx context.Context, n payment.Notice, r payment.NoticeResult) error {
	count, err := s.count(ctx, "finish notice", finishNoticeSQL, n.ID, n.Fence, string(r.State), r.RetryIn, clean(r.Error))
	if err == nil && count == 0 {
		return wrap("finish notice", ErrNoticeLost)
	}
	return err
}

// count runs a statement whose one row is a number.
func (s *Store) count(ctx context.Context, noun, sql string, args ...any) (n int, err error) {
	_, err = s.write(ctx, statement{noun, sql, args}, func(row pgx.Row) error { return row.Scan(&n) })
	return n, err
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
