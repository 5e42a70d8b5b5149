package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"paymentd/internal/payment"
)

// endingOf says what a writing statement that returned err did. What it cannot tell apart is "maybe applied".
func endingOf(err error) payment.Ending {
	if err == nil {
		return payment.Applied
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return payment.NoRows
	}
	// A dial that fails is not SafeToRetry, hence a type of its own.
	if _, ok := errors.AsType[*AcquireError](err); ok {
		return payment.NotApplied
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		if severity(pg) == "ERROR" {
			return payment.NotApplied
		}
		return payment.MaybeApplied
	}
	if pgconn.SafeToRetry(err) {
		return payment.NotApplied
	}
	return payment.MaybeApplied
}

// severity is the word that no locale translates.
func severity(e *pgconn.PgError) string {
	if e.SeverityUnlocalized != "" {
		return e.SeverityUnlocalized
	}
	return e.Severity
}

// violates reports whether err is the violation of a constraint, by its name.
func violates(err error, constraint string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.ConstraintName == constraint
}

// poisoned reports whether the data or the schema of a statement is at fault, not the moment: SQLSTATE classes
// 22 (data), 23 (constraints) and 42 (names and rights). It will be so the next time too.
func poisoned(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pg.Code) != 5 {
		return false
	}
	class := pg.Code[:2]
	return class == "22" || class == "23" || class == "42"
}

// statement is one SQL text with its arguments.
type statement struct {
	noun string
	sql  string
	args []any
}

// write runs one writing statement that returns at most one row. Its error is nil for NoRows, which is no failure.
func (s *Store) write(ctx context.Context, st statement, scan func(pgx.Row) error) (payment.Ending, error) {
	err := s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return scan(conn.QueryRow(ctx, st.sql, st.args...))
	})
	ending := endingOf(err)
	if ending == payment.NoRows {
		return ending, nil
	}
	return ending, wrap(st.noun, err)
}

// writePayment is write for a statement that returns the payment after it.
func (s *Store) writePayment(ctx context.Context, st statement) (p payment.Payment, e payment.Ending, err error) {
	e, err = s.write(ctx, st, func(row pgx.Row) error { return scanPayment(row, &p) })
	return p, e, err
}
