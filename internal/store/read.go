package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

// columns is the one list that scanPayment reads. Every statement names payments p, or a CTE of these columns.
// A parked row is due at infinity, which no time.Time can say.
const columns = `p.id, p.order_id, p.payment_key, p.amount, p.currency, p.status, p.method, p.approved_at,
	p.receipt_url, p.canceled_amount, p.virtual_account, p.failure_code, p.failure_gateway_code, p.failure_message,
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

// scanPayment reads columns, then whatever the statement returns besides.
func scanPayment(row pgx.Row, p *payment.Payment, more ...any) error {
	var (
		failure                            payment.Failure
		account                            *virtualAccount
		approved, due, firstSent, lastSent *time.Time
	)
	*p = payment.Payment{}
	err := row.Scan(append([]any{
		&p.ID, &p.OrderID, &p.PaymentKey, &p.Amount, &p.Currency, &p.Status, &p.Method, &approved,
		&p.ReceiptURL, &p.CanceledAmount, &account, &failure.Code, &failure.GatewayCode, &failure.Message,
		&p.MemberID, &p.ReceiptEmail, &p.CreatedAt, &p.UpdatedAt, &p.Version, &p.HoldsOrder, &p.MaybeSent, &p.Leased,
		&due, &p.ReservedAt, &firstSent, &lastSent, &p.Sends, &p.KeySpent,
		&p.Looks, &p.Told, &p.ReadAt,
	}, more...)...)
	if err != nil {
		return err
	}
	p.ApprovedAt, p.DueAt, p.FirstSentAt, p.LastSentAt = timeOf(approved), timeOf(due), timeOf(firstSent), timeOf(lastSent)
	if failure.Code != "" {
		p.Failure = &failure
	}
	if account != nil {
		p.VirtualAccount = (*payment.VirtualAccount)(account)
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

// Events reads the history of a payment, the oldest first. The reservation is no event.
func (s *Store) Events(ctx context.Context, paymentID int64) ([]payment.Event, error) {
	return readAll(ctx, s, statement{"read events", `SELECT version, from_status, to_status, actor, reason, at
		FROM payment_events WHERE payment_id = $1 ORDER BY version`, []any{paymentID}}, pgx.RowToStructByPos[payment.Event])
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
