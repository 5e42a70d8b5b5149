package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// cancelColumns is the one list that cancelFields reads, of cancels c.
const cancelColumns = `c.id, c.sends, c.amount, c.reason, c.state, c.created_at, c.idempotency_key, c.asked, c.asked_by,
	c.needs_account, c.failure, c.refusal_code`

func cancelFields(c *approval.Cancel) []any {
	return []any{
		&c.ID, &c.Sends, &c.Amount, &c.Reason, &c.State, &c.CreatedAt, &c.Key, &c.Asked, &c.AskedBy, &c.NeedsAccount,
		&c.Failure, &c.RefusalCode,
	}
}

// The cancel that is taken up keeps its amount under its key: Toss compares no bodies and would replay the first answer
// to another amount.
const beginGiveBackSQL = `WITH held AS (
		UPDATE payments AS p
		SET version = p.version + 1, leased = true, due_at = now() + $3::interval,
			holds_order = p.holds_order OR $4 AND NOT EXISTS (
				SELECT FROM payments AS o WHERE o.order_id = p.order_id AND o.holds_order)
		WHERE p.id = $1 AND p.version = $2 AND p.status <> 'CANCELED'
		RETURNING ` + columns + `
	), refused AS (
		SELECT ` + cancelColumns + ` FROM held AS p JOIN cancels AS c ON c.payment_id = p.id
		WHERE c.ours AND c.state = 'refused' AND c.amount = $6 AND c.idempotency_key = ''
		  AND NOT EXISTS (SELECT FROM cancels AS o WHERE o.payment_id = p.id AND o.done_at IS NULL)
		ORDER BY c.created_at DESC LIMIT 1
	), cancel AS (
		INSERT INTO cancels AS c (id, payment_id, payment_key, sends, amount, reason, state, ours, failure)
		SELECT $5, p.id, p.payment_key, 1, $6, $7, 'open', true, $8 FROM held AS p WHERE NOT EXISTS (SELECT FROM refused)
		ON CONFLICT (payment_id) WHERE done_at IS NULL DO UPDATE
		SET sends = c.sends + CASE WHEN c.key_spent THEN 1 ELSE 0 END, key_spent = false,
			amount = CASE WHEN c.key_spent THEN EXCLUDED.amount ELSE c.amount END
		RETURNING ` + cancelColumns + `
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason)
		SELECT p.id, p.version, p.status, p.status, $9, 'give back: ' || $7 FROM held AS p, cancel
	)
	SELECT ` + columns + `, ` + cancelColumns + ` FROM held AS p, (SELECT * FROM cancel UNION ALL SELECT * FROM refused) AS c`

// BeginGiveBack leases the row under its version, holds the order again if nobody else does, and stores the cancel
// with its key before it is sent, or takes up the unfinished one: with its next key if Toss answered an error under
// the last. A cancel of the same amount that was refused is returned as it is, so that none follows it for ever.
// NoRows: the row changed.
func (s *Store) BeginGiveBack(ctx context.Context, g approval.GiveBack) (approval.Cancel, payment.Payment, payment.Ending, error) {
	c, p, ending, err := s.beginGiveBack(ctx, g, true)
	if violates(err, heldOrderKey) { // somebody took the order at this very moment
		return s.beginGiveBack(ctx, g, false)
	}
	return c, p, ending, err
}

func (s *Store) beginGiveBack(ctx context.Context, g approval.GiveBack, hold bool) (c approval.Cancel, p payment.Payment, e payment.Ending, err error) {
	e, err = s.write(ctx, statement{"begin give back", beginGiveBackSQL, []any{
		g.Payment.ID, g.Payment.Version, g.Lease, hold, payment.NewCancelID(), g.Amount, clean(g.Reason), string(g.Failure),
		string(g.Actor),
	}}, func(row pgx.Row) error {
		return scanPayment(row, &p, cancelFields(&c)...)
	})
	return c, p, e, err
}

// Only a refusal that is new is told.
const endGiveBackSQL = `WITH freed AS (
		UPDATE payments AS p SET version = p.version + 1, leased = false, due_at = now() + $3::interval
		WHERE p.id = $1 AND p.version = $2
		RETURNING ` + columns + `
	), cancel AS (
		UPDATE cancels AS c SET key_spent = c.key_spent OR $5,
			state = CASE WHEN $6 THEN 'refused' ELSE c.state END, done_at = CASE WHEN $6 THEN now() END,
			refusal_code = CASE WHEN $6 THEN $8 ELSE c.refusal_code END
		FROM freed AS p WHERE c.id = $4 AND c.payment_id = p.id AND c.done_at IS NULL
		RETURNING 1
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, p.status, p.status, $10, 'give back refused: ' || $11, $7::jsonb FROM freed AS p, cancel WHERE $6
	), incident AS (
		INSERT INTO incidents (payment_id, payment_key, order_id, kind, evidence)
		SELECT n.id, n.payment_key, n.order_id, n.kind, n.evidence
		FROM (SELECT p.id, p.payment_key, p.order_id, 'cancel_failed' AS kind, $7::jsonb AS evidence FROM freed AS p) AS n
		WHERE $6 AND NOT $9 AND ` + unlessDecided + `
		ON CONFLICT (payment_key, kind) WHERE resolved_at IS NULL DO NOTHING
	)
	SELECT ` + columns + ` FROM freed AS p`

// EndGiveBack stores how the cancel ended. Done: the cancel is recorded, an unfinished payment becomes FAILED
// with e.Failure, a FAILED one lets its order go, a PAID one is CANCELED once nothing is left. Refused: incident
// cancel_failed unless it is Quiet, and the order stays held. Neither: the cancel stays unfinished and is due soon. NoRows: the row is no
// longer at the version of BeginGiveBack.
func (s *Store) EndGiveBack(ctx context.Context, e approval.GiveBackEnd) (payment.Payment, payment.Ending, error) {
	if !e.Done {
		p, ending, err := s.writePayment(ctx, statement{"end give back", endGiveBackSQL, []any{
			e.Payment.ID, e.Payment.Version, cancelLook(e), e.Cancel.ID, e.KeySpent, e.Refused,
			evidenceOf(e.Observation, e.Reason), clean(e.RefusalCode), e.Quiet, string(e.Actor), clean(e.Reason),
		}})
		return p, ending, err
	}
	m := givenBack(e)
	return s.record(ctx, &m)
}

// cancelLook is when to look again at a payment whose cancel is not done. A PAID one whose cancel was refused gets a
// second look, because the one that it may have waited for was taken from it; at once if Toss has less than we think.
func cancelLook(e approval.GiveBackEnd) time.Duration {
	if e.Refused && e.Payment.Status == payment.Paid && e.RefusalCode != payment.RefusedMoreThanLeft {
		return payment.CrossingLook(payment.ByRecovery, payment.Paid)
	}
	return payment.LookIn(e.Payment.Looks)
}

// givenBack is the move that a confirmed cancel means.
func givenBack(e approval.GiveBackEnd) move {
	m := move{
		Settlement: approval.Settlement{
			Payment: e.Payment, Observation: e.Observation, Actor: e.Actor, Action: payment.Action{Do: payment.Settle, Reason: e.Reason},
		},
		actor: e.Actor, fenced: true, from: []payment.Status{e.Payment.Status}, to: payment.Failed, returned: true,
		cancels: cancelRows(e.Observation.Cancels),
	}
	switch {
	case e.Payment.Status.Unfinished():
		m.Action.Failure = &payment.Failure{Code: cmp.Or(e.Failure, payment.FailGivenBack)}
	case e.Payment.Status == payment.Paid && e.Observation.Returned():
		m.to = payment.Canceled
	case e.Payment.Status == payment.Paid:
		// The second look that the payment may have waited for was taken from it.
		m.to, m.returned, m.partly, m.due = payment.Paid, false, true, new(payment.CrossingLook(payment.ByRecovery, payment.Paid))
	}
	// What Toss confirmed is done also if its list does not show our mark, unless others gave everything back.
	if e.Cancel.ID != "" && !shows(m.cancels, e.Cancel.ID) && !explained(e.Observation) {
		m.cancels = append(m.cancels, cancelRow{Mark: e.Cancel.ID, Amount: e.Cancel.Amount, Reason: clean(e.Cancel.Reason)})
	}
	return m
}

// explained reports whether the cancels that Toss lists are all that is missing of the payment.
func explained(o payment.Observation) bool {
	var sum payment.Amount
	for _, c := range o.Cancels {
		sum += c.Amount
	}
	return len(o.Cancels) > 0 && sum == o.Total-o.Balance
}

func shows(rows []cancelRow, mark string) bool {
	for _, r := range rows {
		if r.Mark == mark {
			return true
		}
	}
	return false
}

// orNothing is cancelColumns of a table that may have no row to join: the id is empty then.
func orNothing(table string) string {
	return strings.ReplaceAll(`COALESCE(c.id, ''), COALESCE(c.sends, 0), COALESCE(c.amount, 0), COALESCE(c.reason, ''),
		COALESCE(c.state, ''), COALESCE(c.created_at, now()), COALESCE(c.idempotency_key, ''), c.asked, COALESCE(c.asked_by, ''),
		COALESCE(c.needs_account, false), COALESCE(c.failure, ''), COALESCE(c.refusal_code, '')`, "c.", table+".")
}

// findCancelsSQL prefers the payment that the key belongs to: an order may have a newer one by now.
func findCancelsSQL(where string) string {
	return `SELECT ` + columns + `, ` + orNothing("o") + `, ` + orNothing("k") + ` FROM payments AS p
	LEFT JOIN cancels AS o ON o.payment_id = p.id AND o.done_at IS NULL
	LEFT JOIN cancels AS k ON k.payment_id = p.id AND k.idempotency_key = $2 AND $2 <> ''
	WHERE ` + where + ` ORDER BY (k.id IS NOT NULL) DESC, p.holds_order DESC, p.id DESC LIMIT 1`
}

// FindCancels reads a payment with its unfinished cancel and the one that was asked for under q.Key.
func (s *Store) FindCancels(ctx context.Context, q approval.CancelQuery) (approval.Standing, bool, error) {
	sql, by := findCancelsSQL(ofOrder), any(q.OrderID)
	if q.ID != 0 {
		sql, by = findCancelsSQL("p.id = $1"), q.ID
	}
	var st approval.Standing
	var open, asked approval.Cancel
	err := s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return scanPayment(conn.QueryRow(ctx, sql, by, q.Key), &st.Payment, append(cancelFields(&open), cancelFields(&asked)...)...)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return st, false, nil
	}
	if open.ID != "" {
		st.Open = &open
	}
	if asked.ID != "" {
		st.Asked = &asked
	}
	return st, err == nil, wrap("read cancels", err)
}

// The version alone keeps two askers apart; the balance stands here so that no reader's mistake can overdraw it.
const beginCancelSQL = `WITH held AS (
		UPDATE payments AS p SET version = p.version + 1, leased = true, looks = 0, due_at = now() + $3::interval
		WHERE p.id = $1 AND p.version = $2 AND p.status IN ('PAID', 'AWAITING_DEPOSIT')
		  AND (NOT p.leased OR p.due_at <= now()) AND $5 BETWEEN 1 AND p.amount - p.canceled_amount
		  AND NOT EXISTS (SELECT FROM cancels AS o WHERE o.payment_id = p.id AND o.done_at IS NULL)
		RETURNING ` + columns + `
	), cancel AS (
		INSERT INTO cancels AS c (id, payment_id, payment_key, sends, amount, reason, state, ours, idempotency_key, asked,
			asked_by, needs_account, failure)
		SELECT $4, p.id, p.payment_key, 1, $5, $6, 'open', true, $7, $8, $9, $10, $11 FROM held AS p
		RETURNING ` + cancelColumns + `
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason)
		SELECT p.id, p.version, p.status, p.status, $12, 'cancel asked by ' || $9 FROM held AS p
	)
	SELECT ` + columns + `, ` + cancelColumns + ` FROM held AS p, cancel AS c`

// askedCancelKey is the constraint that a second use of an Idempotency-Key runs into.
const askedCancelKey = "cancels_idempotency_key"

// BeginCancel stores a cancel that somebody asks for and leases the payment, all under the version read. NoRows: the
// payment changed, is leased, has an unfinished cancel or one under the key, or less than the amount is left.
func (s *Store) BeginCancel(ctx context.Context, a approval.CancelAsked) (c approval.Cancel, p payment.Payment, e payment.Ending, err error) {
	e, err = s.write(ctx, statement{"begin cancel", beginCancelSQL, []any{
		a.Payment.ID, a.Payment.Version, a.Lease, a.ID, a.Amount, clean(a.Reason), a.Key, a.Asked, a.AskedBy, a.NeedsAccount,
		string(a.Failure), string(a.Actor),
	}}, func(row pgx.Row) error {
		return scanPayment(row, &p, cancelFields(&c)...)
	})
	if violates(err, openCancelKey) || violates(err, askedCancelKey) {
		return c, p, payment.NoRows, nil
	}
	return c, p, e, err
}

// A cancel that never was one keeps the key: the order may have a new payment when the request is repeated.
const abandonSQL = `WITH moved AS (
		UPDATE payments AS p
		SET status = 'FAILED', version = p.version + 1, leased = false, due_at = NULL, looks = 0, holds_order = false,
			failure_code = 'abandoned', updated_at = now()
		WHERE p.id = $1 AND p.version = $2 AND p.status = 'PENDING' AND NOT p.maybe_sent AND (NOT p.leased OR p.due_at <= now())
		  AND NOT EXISTS (SELECT FROM cancels AS o WHERE o.payment_id = p.id AND o.done_at IS NULL)
		RETURNING ` + columns + `
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason)
		SELECT p.id, p.version, 'PENDING', p.status, $3, 'abandoned by ' || $7 FROM moved AS p
	), asked AS (
		INSERT INTO cancels (id, payment_id, payment_key, amount, reason, state, ours, done_at, idempotency_key, asked, asked_by)
		SELECT $4, p.id, p.payment_key, p.amount, $5, 'moot', true, now(), $6, $8, $7 FROM moved AS p
	), closed AS (
		UPDATE incidents AS i SET resolved_at = now(), resolved_by = $3, action = 'settled', note = 'abandoned before it was sent'
		FROM moved AS p WHERE i.payment_key = p.payment_key AND i.resolved_at IS NULL AND i.kind = 'unknown_outcome'
	), notice AS (
		INSERT INTO notices (payment_id, kind, event, sequence)
		SELECT p.id, 'payment.failed', ` + failedEvent + `, p.version FROM moved AS p WHERE p.told
		ON CONFLICT DO NOTHING
	)
	SELECT ` + columns + ` FROM moved AS p`

// Abandon ends an unleased PENDING payment that was never sent as FAILED with the code abandoned. NoRows: the payment
// changed, or the key was used for another cancel of it.
func (s *Store) Abandon(ctx context.Context, a approval.CancelAsked) (payment.Payment, payment.Ending, error) {
	p, ending, err := s.writePayment(ctx, statement{"abandon payment", abandonSQL, []any{
		a.Payment.ID, a.Payment.Version, string(a.Actor), a.ID, clean(a.Reason), a.Key, a.AskedBy, a.Asked,
	}})
	if violates(err, askedCancelKey) {
		return p, payment.NoRows, nil
	}
	if ending == payment.Applied {
		s.metrics.settled(p, a.Actor)
	}
	return p, ending, err
}

// evidence is what the gateway said, as kept with an event or incident: no card, no account, no buyer.
type evidence struct {
	Reason         string           `json:"reason,omitempty"`
	Sighting       payment.Sighting `json:"sighting,omitempty"`
	PaymentKey     string           `json:"paymentKey,omitempty"`
	OrderID        string           `json:"orderId,omitempty"`
	Total          payment.Amount   `json:"total"`
	Balance        payment.Amount   `json:"balance"`
	Currency       payment.Currency `json:"currency,omitempty"`
	Method         string           `json:"method,omitempty"`
	ApprovedAt     time.Time        `json:"approvedAt,omitzero"`
	FailureCode    string           `json:"failureCode,omitempty"`
	FailureMessage string           `json:"failureMessage,omitempty"`
	TraceID        string           `json:"traceId,omitempty"`
	Cancels        []cancelRow      `json:"cancels,omitempty"`
}

// evidenceOf is the JSON for a jsonb column, nil if nothing was seen.
func evidenceOf(o payment.Observation, reason string) *string {
	if o.Sighting == "" && reason == "" {
		return nil
	}
	text, err := json.Marshal(evidence{
		Reason: clean(reason), Sighting: payment.Sighting(clean(string(o.Sighting))), PaymentKey: clean(o.PaymentKey),
		OrderID: clean(o.OrderID), Total: o.Total, Balance: o.Balance, Currency: payment.Currency(clean(string(o.Currency))),
		Method: clean(o.Method), ApprovedAt: jsonTime(o.ApprovedAt), FailureCode: clean(o.FailureCode),
		FailureMessage: clean(o.FailureMessage), TraceID: clean(o.TraceID), Cancels: cancelRows(o.Cancels),
	})
	if err != nil { // no such value is left in it; losing evidence must not lose a settle
		return nil
	}
	return new(string(text))
}

// cancelRow is one entry of Toss's cancels[] as the settle statement unpacks it.
type cancelRow struct {
	Mark           string         `json:"mark"`
	TransactionKey string         `json:"transaction_key"`
	Amount         payment.Amount `json:"amount"`
	Reason         string         `json:"reason"`
	At             *time.Time     `json:"at"`
}

// maxTransactionKey keeps an index entry small; Toss's keys have at most 64 characters.
const maxTransactionKey = 100

// cancelRows drops repeated entries, which one INSERT … ON CONFLICT DO UPDATE could not take. It is never nil.
func cancelRows(all []payment.GatewayCancel) []cancelRow {
	rows, seen := make([]cancelRow, 0, len(all)), map[string]bool{}
	for _, c := range all {
		key := clean(c.TransactionKey)
		row := cancelRow{
			Mark: payment.CancelMark(c.Reason), TransactionKey: key[:min(len(key), maxTransactionKey)], Amount: c.Amount,
			Reason: clean(c.Reason), At: orNull(jsonTime(c.At)),
		}
		id := row.Mark + " " + row.TransactionKey
		if row.Mark != "" {
			id = row.Mark
		}
		if !seen[id] {
			seen[id] = true
			rows = append(rows, row)
		}
	}
	return rows
}

func marks(rows []cancelRow) []string {
	list := []string{}
	for _, r := range rows {
		if r.Mark != "" {
			list = append(list, r.Mark)
		}
	}
	return list
}

func accountOf(a *payment.VirtualAccount) *virtualAccount {
	if a == nil {
		return nil
	}
	return &virtualAccount{
		BankCode: clean(a.BankCode), AccountNumber: clean(a.AccountNumber), CustomerName: clean(a.CustomerName), DueDate: jsonTime(a.DueDate),
	}
}

// jsonTime is t, or not known if neither JSON nor PostgreSQL could hold it.
func jsonTime(t time.Time) time.Time {
	if t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}
	}
	return t.UTC()
}

// clean makes foreign text fit for PostgreSQL, which refuses NUL and broken UTF-8.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}
