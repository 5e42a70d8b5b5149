package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"paymentd/internal/payment"
)

// columns is the one list that scanPayment reads. Every statement names payments p, or a CTE of these columns.
// A parked row is due at infinity, which no time.Time can say.
const columns = `p.id, p.order_id, p.payment_key, p.amount, p.currency, p.status, p.method, p.approved_at,
	p.receipt_url, p.canceled_amount, p.virtual_account::text, p.failure_code, p.failure_gateway_code, p.failure_message,
	p.member_id, p.receipt_email, p.created_at, p.updated_at, p.version, p.holds_order, p.maybe_sent, p.leased,
	NULLIF(p.due_at, 'infinity') AS due_at, p.reserved_at, p.first_sent_at, p.last_sent_at, p.sends, p.key_spent,
	p.looks, p.told, now() AS read_at`

// virtualAccount is the column's JSON.
type virtualAccount struct {
	BankCode      string    `json:"bankCode"`
	AccountNumber string    `json:"accountNumber"`
	CustomerName  string    `json:"customerName"`
	DueDate       time.Time `json:"dueDate,omitzero"`
}

// scanPayment reads columns, then whatever the statement returns besides. The targets are types that pgx knows by
// themselves: finding out what a named type or a pointer to a pointer is made of costs more than reading the row.
func scanPayment(row pgx.Row, p *payment.Payment, more ...any) error {
	var r struct { // one allocation
		failure                            payment.Failure
		account                            pgtype.Text
		approved, due, firstSent, lastSent pgtype.Timestamptz
		created, updated, reserved, read   pgtype.Timestamptz
	}
	*p = payment.Payment{}
	err := row.Scan(append([]any{
		&p.ID, &p.OrderID, &p.PaymentKey, (*int64)(&p.Amount), (*string)(&p.Currency), (*string)(&p.Status), &p.Method, &r.approved,
		&p.ReceiptURL, (*int64)(&p.CanceledAmount), &r.account, (*string)(&r.failure.Code), &r.failure.GatewayCode, &r.failure.Message,
		&p.MemberID, &p.ReceiptEmail, &r.created, &r.updated, &p.Version, &p.HoldsOrder, &p.MaybeSent, &p.Leased,
		&r.due, &r.reserved, &r.firstSent, &r.lastSent, &p.Sends, &p.KeySpent,
		&p.Looks, &p.Told, &r.read,
	}, more...)...)
	if err != nil {
		return err
	}
	p.CreatedAt, p.UpdatedAt, p.ReservedAt, p.ReadAt = r.created.Time, r.updated.Time, r.reserved.Time, r.read.Time
	p.ApprovedAt, p.DueAt, p.FirstSentAt, p.LastSentAt = r.approved.Time, r.due.Time, r.firstSent.Time, r.lastSent.Time
	if r.failure.Code != "" {
		failure := r.failure
		p.Failure = &failure
	}
	if r.account.Valid {
		var v virtualAccount
		if err := json.Unmarshal([]byte(r.account.String), &v); err != nil {
			return err
		}
		p.VirtualAccount = (*payment.VirtualAccount)(&v)
	}
	return nil
}

func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// orNull is t for a column in which NULL means "not known".
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// ofOrder says what is always true, so that the two partial indexes of order_id serve it.
const ofOrder = `p.order_id = $1 AND (p.holds_order OR NOT p.holds_order)`

// ByOrder reads the payment that holds the order, else its last attempt.
func (s *Store) ByOrder(ctx context.Context, orderID string) (p payment.Payment, found bool, err error) {
	return s.readOne(ctx, "read order", `SELECT `+columns+` FROM payments AS p
		WHERE `+ofOrder+` ORDER BY p.holds_order DESC, p.id DESC LIMIT 1`, orderID)
}

// Attempts reads all payments of the order, the oldest first.
func (s *Store) Attempts(ctx context.Context, orderID string) ([]payment.Payment, error) {
	return s.readPayments(ctx, "read attempts",
		`SELECT `+columns+` FROM payments AS p WHERE `+ofOrder+` ORDER BY p.id`, orderID)
}

// ListUnfinished reads PENDING and AWAITING_DEPOSIT payments reserved at least olderThan ago, by id, at most limit
// with an id above after.
func (s *Store) ListUnfinished(ctx context.Context, olderThan time.Duration, limit int, after int64) ([]payment.Payment, error) {
	return s.readPayments(ctx, "list unfinished payments", `SELECT `+columns+` FROM payments AS p
		WHERE p.due_at IS NOT NULL AND p.status IN ('PENDING', 'AWAITING_DEPOSIT')
		  AND p.reserved_at <= now() - $1::interval AND p.id > $3 ORDER BY p.id LIMIT $2`, olderThan, limit, after)
}

// CountUnfinished counts what ListUnfinished pages through.
func (s *Store) CountUnfinished(ctx context.Context, olderThan time.Duration) (n int, err error) {
	err = s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return conn.QueryRow(ctx, `SELECT count(*) FROM payments AS p WHERE p.due_at IS NOT NULL
			AND p.status IN ('PENDING', 'AWAITING_DEPOSIT') AND p.reserved_at <= now() - $1::interval`, olderThan).Scan(&n)
	})
	return n, wrap("count unfinished payments", err)
}

// Events reads the history of a payment, the oldest first. The reservation is no event.
func (s *Store) Events(ctx context.Context, paymentID int64) ([]payment.Event, error) {
	return readAll(ctx, s, statement{"read events", `SELECT version, from_status, to_status, actor, reason, at
		FROM payment_events WHERE payment_id = $1 ORDER BY version`, []any{paymentID}}, pgx.RowToStructByPos[payment.Event])
}

// auditColumns is what scanAuditRow reads of payments p.
const auditColumns = `p.payment_key, p.order_id, p.status, p.amount, p.canceled_amount,
	EXISTS (SELECT FROM incidents AS i WHERE i.payment_key = p.payment_key AND i.resolved_at IS NULL AND i.kind = ANY($1)) AS incident,
	EXISTS (SELECT FROM cancels AS c WHERE c.payment_id = p.id AND c.state = 'done') AS done_cancels,
	EXISTS (SELECT FROM incidents AS h WHERE h.payment_key = p.payment_key AND h.resolved_at IS NOT NULL AND h.action <> 'settled'
		AND h.kind = ANY($1)) AS by_hand,
	p.currency, COALESCE(p.approved_at, 'epoch'), p.reserved_at, p.updated_at, now()`

func scanAuditRow(row pgx.CollectableRow) (r payment.AuditRow, err error) {
	err = row.Scan(&r.PaymentKey, &r.OrderID, &r.Status, &r.Amount, &r.CanceledAmount, &r.MoneyIncident, &r.DoneCancels, &r.ByHand,
		&r.Currency, &r.ApprovedAt, &r.ReservedAt, &r.UpdatedAt, &r.ReadAt)
	if r.ApprovedAt.Unix() == 0 {
		r.ApprovedAt = time.Time{}
	}
	return r, err
}

func moneyKinds() (kinds []payment.IncidentKind) {
	for _, k := range payment.IncidentKinds() {
		if k.Money() {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// AuditRows reads our side of the paymentKeys: the payment of each, else what is known by an incident, whose DoneCancels
// says that it closed because the money went back; nothing of a key that neither is known of.
func (s *Store) AuditRows(ctx context.Context, paymentKeys []string) ([]payment.AuditRow, error) {
	return readAll(ctx, s, statement{"read rows to audit", `SELECT ` + auditColumns + ` FROM payments AS p WHERE p.payment_key = ANY($2)
		UNION ALL
		SELECT i.payment_key, max(i.order_id), '', 0, 0, bool_or(i.resolved_at IS NULL), bool_or(i.resolved_at IS NOT NULL AND i.action = 'settled'),
			bool_or(i.resolved_at IS NOT NULL AND i.action <> 'settled'), '', 'epoch', max(i.opened_at), max(i.opened_at), now()
		FROM incidents AS i
		WHERE i.payment_key = ANY($2) AND i.kind = ANY($1)
		  AND NOT EXISTS (SELECT FROM payments AS p WHERE p.payment_key = i.payment_key)
		GROUP BY i.payment_key`,
		[]any{moneyKinds(), paymentKeys}}, scanAuditRow)
}

const (
	// auditStep is how many ids one statement looks at: no index leads to approved_at.
	auditStep = 5000
	// auditReach is how long before its approval a payment may have been reserved: Toss lets a virtual account live
	// 90 days at most.
	auditReach = 100 * 24 * time.Hour
)

// ApprovedBetween reads the PAID and CANCELED payments approved from from to to (exclusive); one whose time of approval is
// not known counts by its reservation. It pages by id: next is where to go on, 0 at the end, and a page may be empty.
func (s *Store) ApprovedBetween(ctx context.Context, from, to time.Time, after int64) (page []payment.AuditRow, next int64, err error) {
	if after == 0 {
		if after, err = s.lastIDBefore(ctx, from.Add(-auditReach)); err != nil {
			return nil, 0, err
		}
	}
	page, err = readAll(ctx, s, statement{"read approved payments", `SELECT ` + auditColumns + ` FROM payments AS p
		WHERE p.id > $2 AND p.id <= $2 + $3 AND p.status IN ('PAID', 'CANCELED')
		  AND COALESCE(p.approved_at, p.reserved_at) >= $4 AND COALESCE(p.approved_at, p.reserved_at) < $5 ORDER BY p.id`,
		[]any{moneyKinds(), after, auditStep, from, to}}, scanAuditRow)
	if err != nil {
		return nil, 0, err
	}
	// A payment is reserved before it is approved; a day is more than clocks differ.
	more, err := readAll(ctx, s, statement{"read approved payments", `SELECT p.id FROM (
			SELECT n.id, n.created_at FROM payments AS n WHERE n.id > $1 ORDER BY n.id LIMIT 1
		) AS p WHERE p.created_at < $2`, []any{after + auditStep, to.Add(24 * time.Hour)}}, pgx.RowTo[int64])
	if err != nil || len(more) == 0 {
		return page, 0, err
	}
	return page, more[0] - 1, nil
}

// lastIDBefore halves its way to the last id that was given out before a time, as ids and created_at grow together.
func (s *Store) lastIDBefore(ctx context.Context, at time.Time) (int64, error) {
	type known struct {
		ID int64
		At time.Time
	}
	read := func(sql string, args ...any) ([]known, error) {
		return readAll(ctx, s, statement{"find where an audit begins", sql, args}, pgx.RowToStructByPos[known])
	}
	last, err := read(`SELECT p.id, p.created_at FROM payments AS p ORDER BY p.id DESC LIMIT 1`)
	if err != nil || len(last) == 0 {
		return 0, err
	}
	low, high := int64(0), last[0].ID // the answer is low or above, and below or at high
	for low < high {
		middle := low + (high-low+1)/2
		at2, err := read(`SELECT p.id, p.created_at FROM payments AS p WHERE p.id <= $1 ORDER BY p.id DESC LIMIT 1`, middle)
		switch {
		case err != nil:
			return 0, err
		case len(at2) == 0:
			low = middle
		case at2[0].At.Before(at):
			low = middle
		default:
			high = at2[0].ID - 1
		}
	}
	return low, nil
}

func (s *Store) readOne(ctx context.Context, noun, sql string, args ...any) (p payment.Payment, found bool, err error) {
	err = s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return scanPayment(conn.QueryRow(ctx, sql, args...), &p)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return p, false, nil
	}
	return p, err == nil, wrap(noun, err)
}

func (s *Store) readPayments(ctx context.Context, noun, sql string, args ...any) ([]payment.Payment, error) {
	return readAll(ctx, s, statement{noun, sql, args}, rowToPayment)
}

func rowToPayment(row pgx.CollectableRow) (p payment.Payment, err error) {
	err = scanPayment(row, &p)
	return p, err
}

// readAll runs one statement and collects its rows.
func readAll[T any](ctx context.Context, s *Store, st statement, scan pgx.RowToFunc[T]) ([]T, error) {
	var list []T
	err := s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		rows, err := conn.Query(ctx, st.sql, st.args...)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scan)
		return err
	})
	return list, wrap(st.noun, err)
}

func wrap(noun string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", noun, err)
}
