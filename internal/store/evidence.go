package store

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"paymentd/internal/payment"
)

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

// OpenOrphan opens the incident orphan_approval about money that Toss took for a payment that is not here, and reports
// whether it is new: one per paymentKey is open at a time, and none is opened if the payment is here by now or an operator
// has answered for it.
func (s *Store) OpenOrphan(ctx context.Context, o payment.Observation, reason string) (opened bool, err error) {
	n, err := s.count(ctx, "open incident", `WITH opened AS (
			INSERT INTO incidents (payment_key, order_id, kind, evidence)
			SELECT n.payment_key, n.order_id, n.kind, n.evidence
			FROM (SELECT $1 AS payment_key, $2 AS order_id, 'orphan_approval' AS kind, $3::jsonb AS evidence) AS n
			WHERE NOT EXISTS (SELECT FROM payments AS p WHERE p.payment_key = n.payment_key) AND `+unlessDecided+`
			ON CONFLICT (payment_key, kind) WHERE resolved_at IS NULL DO NOTHING
			RETURNING 1
		)
		SELECT count(*) FROM opened`, clean(o.PaymentKey), clean(o.OrderID), evidenceOf(o, reason))
	return n > 0, err
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
