package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// unlessDecided keeps the machine from opening an incident n again that an operator has answered: as not ours, or by a
// note while Toss still says the same. Every INSERT INTO incidents of a money kind has it (checked).
const unlessDecided = `NOT EXISTS (
			SELECT FROM incidents AS h WHERE h.payment_key = n.payment_key AND h.kind = n.kind AND h.resolved_at IS NOT NULL
			  AND (h.action = 'not_ours' OR h.action = ''
				AND (h.evidence->>'sighting', h.evidence->>'total', h.evidence->>'balance') IS NOT DISTINCT FROM
					(n.evidence->>'sighting', n.evidence->>'total', n.evidence->>'balance')))`

// incidentColumns is the list that scanIncident reads.
const incidentColumns = `i.id, i.kind, i.order_id, i.payment_key, i.opened_at, i.resolved_at, i.resolved_by, i.action, i.note,
	i.evidence::text`

func scanIncident(row pgx.Row, i *payment.Incident, more ...any) error {
	var resolved *time.Time
	var seen *string
	*i = payment.Incident{}
	err := row.Scan(append([]any{
		&i.ID, &i.Kind, &i.OrderID, &i.PaymentKey, &i.OpenedAt, &resolved, &i.ResolvedBy, &i.Action, &i.Note, &seen,
	}, more...)...)
	i.ResolvedAt = timeOf(resolved)
	if seen != nil {
		i.Evidence = []byte(*seen)
	}
	return err
}

// Incidents reads a page, the newest first. Pages follow the ids, so what is opened meanwhile moves none.
func (s *Store) Incidents(ctx context.Context, f payment.IncidentFilter) ([]payment.Incident, error) {
	state := map[payment.IncidentState]string{
		payment.IncidentOpen: "i.resolved_at IS NULL", payment.IncidentResolved: "i.resolved_at IS NOT NULL",
	}[f.State]
	if state == "" {
		state = "true"
	}
	return readAll(ctx, s, statement{"list incidents", `SELECT ` + incidentColumns + ` FROM incidents AS i
		WHERE ` + state + ` AND ($1 = 0 OR i.id < $1) AND ($2 = '' OR i.kind = $2) AND ($3 = '' OR i.order_id = $3)
		ORDER BY i.id DESC LIMIT $4`, []any{f.Before, string(f.Kind), f.OrderID, f.Limit}},
		func(row pgx.CollectableRow) (i payment.Incident, err error) {
			err = scanIncident(row, &i)
			return i, err
		})
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

// CloseOrphan closes the open incident orphan_approval of a payment whose money went back since it was opened, and
// reports whether it did. One that was opened about money that was back already waits for a person.
func (s *Store) CloseOrphan(ctx context.Context, o payment.Observation, by payment.Actor) (closed bool, err error) {
	if !o.Returned() {
		return false, nil
	}
	n, err := s.count(ctx, "close incident", `WITH closed AS (
			UPDATE incidents AS i SET resolved_at = now(), resolved_by = $2, action = 'settled', note = 'the money went back at the gateway'
			WHERE i.payment_key = $1 AND i.kind = 'orphan_approval' AND i.resolved_at IS NULL
			  AND COALESCE(i.evidence->>'balance', '') <> '0'
			RETURNING 1
		)
		SELECT count(*) FROM closed`, clean(o.PaymentKey), string(by))
	return n > 0, err
}

// SweepOrphans closes the incidents orphan_approval of payments that turned up here and are settled, and says how many.
// The plain approval has no time for them; see plainSQL.
func (s *Store) SweepOrphans(ctx context.Context) (int, error) {
	return s.count(ctx, "close orphans that turned up", `WITH closed AS (
			UPDATE incidents AS i SET resolved_at = now(), resolved_by = 'recovery', action = 'settled', payment_id = p.id,
				note = 'the payment turned up here and is ' || p.status
			FROM payments AS p
			WHERE i.kind = 'orphan_approval' AND i.resolved_at IS NULL AND p.payment_key = i.payment_key AND (
				p.status IN ('PAID', 'CANCELED')
				OR p.status = 'FAILED' AND EXISTS (SELECT FROM cancels AS d WHERE d.payment_id = p.id AND d.state = 'done')
				  AND NOT EXISTS (SELECT FROM cancels AS o WHERE o.payment_id = p.id AND o.state IN ('open', 'refused')))
			RETURNING 1
		)
		SELECT count(*) FROM closed`)
}

// resolveRounds bounds how often a resolution is decided anew because the payment moved meanwhile.
const resolveRounds = 4

// ResolveIncident carries an operator's word out: the incident, the payment and its event in one statement, under the
// payment's version. One that is resolved already is returned as it is. Its refusals are *payment.Error: not_found,
// in_progress, cancel_in_progress, order_conflict, and invalid_request for the field action.
func (s *Store) ResolveIncident(ctx context.Context, r payment.ResolveIncident) (payment.Incident, error) {
	for range resolveRounds {
		c, err := s.readCase(ctx, r.ID)
		if err != nil || !c.incident.ResolvedAt.IsZero() {
			return c.incident, err
		}
		remedy, err := c.decide(r.Action)
		if err != nil {
			return c.incident, err
		}
		i, ending, err := s.remedy(ctx, c, r, remedy)
		switch {
		case ending == payment.Applied:
			return i, nil
		case violates(err, heldOrderKey):
			return c.incident, &payment.Error{Code: payment.CodeOrderConflict, Public: "Another payment holds the order of this approval."}
		case violates(err, openCancelKey):
			return c.incident, cancelRuns()
		case ending == payment.NoRows || violates(err, paymentKeyKey): // somebody was faster
		default:
			return c.incident, err
		}
	}
	return payment.Incident{}, inProgress()
}

const (
	openCancelKey = "cancels_payment_id_open_key"
	paymentKeyKey = "payments_payment_key_key"
)

func inProgress() error {
	return &payment.Error{Code: payment.CodeInProgress, Public: "Somebody works on the payment at this moment; ask again in a few seconds."}
}

func cancelRuns() error {
	return &payment.Error{Code: payment.CodeCancelInProgress, Public: "A cancel of the payment is unfinished; it has to end first."}
}

// incidentCase is an incident and what its resolution is decided by.
type incidentCase struct {
	incident payment.Incident
	seen     payment.Observation
	// here is nil if there is no payment with the incident's paymentKey.
	here *payment.Payment
	// cancels means that a cancel of the payment is unfinished.
	cancels bool
}

// readCase reads the payment before the incident: if that is open still, no resolution has changed what was read.
func (s *Store) readCase(ctx context.Context, id int64) (c incidentCase, err error) {
	p, found, err := s.readOne(ctx, "read payment of incident", `SELECT `+columns+` FROM payments AS p
		WHERE p.payment_key = (SELECT i.payment_key FROM incidents AS i WHERE i.id = $1)`, id)
	if err != nil {
		return c, err
	}
	if found {
		c.here = &p
	}
	err = s.pool.run(ctx, func(ctx context.Context, conn *lentConn) error {
		return scanIncident(conn.QueryRow(ctx, `SELECT `+incidentColumns+`, EXISTS (
				SELECT FROM payments AS p JOIN cancels AS c ON c.payment_id = p.id WHERE p.payment_key = i.payment_key AND c.done_at IS NULL)
			FROM incidents AS i WHERE i.id = $1`, id), &c.incident, &c.cancels)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return c, &payment.Error{Code: payment.CodeNotFound, Public: "There is no such incident."}
	}
	c.seen = seenIn(c.incident.Evidence)
	return c, wrap("read incident", err)
}

// seenIn is what the evidence of an incident says that Toss said.
func seenIn(text []byte) payment.Observation {
	var e evidence
	if json.Unmarshal(text, &e) != nil { // kept by an older or newer build
		return payment.Observation{}
	}
	return payment.Observation{
		Sighting: e.Sighting, PaymentKey: e.PaymentKey, OrderID: e.OrderID, Total: e.Total, Balance: e.Balance, Currency: e.Currency,
	}
}

// decide names the remedy, or why there is none now. A lease holds an operator off as everybody else.
func (c incidentCase) decide(a payment.IncidentAction) (payment.Remedy, error) {
	remedy, refusal := a.Remedy(c.incident.Kind, c.seen, c.here)
	switch {
	case refusal != "":
		return "", &payment.Error{
			Code: payment.CodeInvalidRequest, Public: "Nothing was saved or sent; errors says what to repair.",
			Fields: []payment.FieldError{{Field: "action", Reason: refusal}},
		}
	case c.here != nil && approval.Held(*c.here):
		return "", inProgress()
	case c.cancels && remedy != payment.RemedyNone:
		return "", cancelRuns()
	default:
		return remedy, nil
	}
}

const closeIncidentSQL = `resolved_at = now(), resolved_by = @by, action = @action, note = @note`

const noteSQL = `UPDATE incidents AS i SET ` + closeIncidentSQL + `
	WHERE i.id = @incident AND i.resolved_at IS NULL RETURNING ` + incidentColumns

// The payment is locked before the incident, as settle does it.
const heldSQL = `WITH held AS (
		SELECT o.id, o.status FROM payments AS o
		WHERE o.id = @payment AND o.version = @version AND (NOT o.leased OR o.due_at <= now()) FOR UPDATE
	), incident AS (
		UPDATE incidents AS i SET ` + closeIncidentSQL + ` FROM held WHERE i.id = @incident AND i.resolved_at IS NULL
		RETURNING ` + incidentColumns + `
	)`

const heldResultSQL = `, event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, held.status, p.status, 'operator', @reason, @evidence::jsonb FROM moved AS p, held
	)
	SELECT ` + incidentColumns + ` FROM incident AS i`

// remedySQL is what is done to the payment under each remedy, as the CTE "moved" and what depends on it. A PAID payment
// keeps its second look.
func remedySQL(r payment.Remedy, bare bool) string {
	const moved = `, moved AS (
		UPDATE payments AS p SET version = p.version + 1, leased = false, updated_at = now(), `
	const from = ` FROM held, incident WHERE p.id = held.id
		RETURNING p.id, p.version, p.status, p.payment_key, p.told, p.reserved_at
	)`
	const dueNow = `due_at = now()`
	switch r { //nolint:exhaustive // the others do nothing to a payment that is there, but for RemedyFail below
	case payment.RemedyAmount:
		return moved + `amount = @amount, due_at = CASE WHEN p.status = 'PAID' THEN COALESCE(p.due_at, now()) ELSE now() END` + from
	case payment.RemedyCancel:
		return moved + dueNow + from + `, cancel AS (
		INSERT INTO cancels (id, payment_id, payment_key, sends, amount, reason, state, ours, asked_by, failure)
		SELECT @cancel, p.id, p.payment_key, 1, @amount, @reason, 'open', true, @by, 'mismatch' FROM moved AS p
	)`
	case payment.RemedyRetry:
		return moved + dueNow + `, looks = 0` + from + `, moot AS (
		UPDATE cancels AS c SET state = 'moot' FROM moved AS p WHERE c.payment_id = p.id AND c.ours AND c.state = 'refused'
		  AND c.idempotency_key = ''
	)`
	}
	fail := moved + `status = 'FAILED', holds_order = false, due_at = NULL, looks = 0, failure_code = 'mismatch',
			notices_missing = p.notices_missing OR @bare AND p.told` + from + `, closed AS (
		UPDATE incidents AS c SET resolved_at = now(), resolved_by = 'operator', action = 'settled', note = @reason
		FROM moved AS p WHERE c.payment_key = p.payment_key AND c.resolved_at IS NULL AND c.kind = 'unknown_outcome'
	)`
	if bare {
		return fail
	}
	return fail + `, notice AS (
		INSERT INTO notices (payment_id, kind, event, sequence)
		SELECT p.id, 'payment.failed', ` + failedEvent + `, p.version FROM moved AS p WHERE p.told
		ON CONFLICT DO NOTHING
	)`
}

// An adopted approval is never sent: it counts as reserved longer ago than any payment that recovery may still confirm.
const adoptSQL = `WITH open AS (
		SELECT o.id, o.payment_key FROM incidents AS o WHERE o.id = @incident AND o.resolved_at IS NULL FOR UPDATE
	), adopted AS (
		INSERT INTO payments (order_id, payment_key, amount, currency, status, holds_order, version, maybe_sent, leased, due_at,
			reserved_at, first_sent_at, last_sent_at, sends, failure_code, created_at, updated_at)
		SELECT @order, open.payment_key, @amount, @currency, @status, @status = 'PENDING', 1, true, false, now(),
			now() - interval '1 day', now(), now(), 1, @failure, now(), now() FROM open
		RETURNING id, version, status
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, '', p.status, 'operator', @reason, @evidence::jsonb FROM adopted AS p
	)
	UPDATE incidents AS i SET ` + closeIncidentSQL + `, payment_id = p.id FROM adopted AS p WHERE i.id = @incident
	RETURNING ` + incidentColumns

// remedy carries out what was decided, without its notice if that is what keeps it from being written.
func (s *Store) remedy(ctx context.Context, c incidentCase, r payment.ResolveIncident, m payment.Remedy) (payment.Incident, payment.Ending, error) {
	i, ending, err := s.runRemedy(ctx, c, r, remedy{m, false})
	if m == payment.RemedyFail && poisoned(err) {
		s.log.ErrorContext(ctx, "resolve without its notice", "order_id", c.incident.OrderID, "error", err)
		i, ending, err = s.runRemedy(ctx, c, r, remedy{m, true})
	}
	if m == payment.RemedyFail && ending == payment.Applied {
		failed := *c.here
		failed.Status, failed.UpdatedAt = payment.Failed, i.ResolvedAt
		s.metrics.settled(failed, payment.ByOperator)
	}
	return i, ending, err
}

// remedy is a payment.Remedy; bare leaves its notice to the sweep.
type remedy struct {
	payment.Remedy
	bare bool
}

func (s *Store) runRemedy(ctx context.Context, c incidentCase, r payment.ResolveIncident, m remedy) (i payment.Incident, e payment.Ending, err error) {
	args := pgx.StrictNamedArgs{"incident": r.ID, "by": clean(r.By), "action": string(r.Action), "note": clean(r.Note)}
	sql := noteSQL
	if m.Remedy != payment.RemedyNone {
		reason, kept := c.reason(m.Remedy), eventEvidence{Incident: r.ID, By: clean(r.By), Note: clean(r.Note), Seen: c.incident.Evidence}
		if c.here != nil {
			kept.Ordered = c.here.Amount
		}
		text, err := json.Marshal(kept)
		if err != nil {
			return i, payment.NotApplied, fmt.Errorf("resolve incident: %w", err)
		}
		args["reason"], args["evidence"] = reason, string(text)
	}
	switch m.Remedy {
	case payment.RemedyNone:
	case payment.RemedyAdopt, payment.RemedyReturn:
		sql = adoptSQL
		status, failure := payment.Pending, payment.FailureCode("")
		if m.Remedy == payment.RemedyReturn {
			status, failure = payment.Failed, payment.FailMismatch
		}
		maps.Copy(args, pgx.StrictNamedArgs{
			"order": clean(c.seen.OrderID), "amount": c.seen.Total, "currency": clean(string(c.seen.Currency)),
			"status": string(status), "failure": string(failure),
		})
	default:
		sql = heldSQL + remedySQL(m.Remedy, m.bare) + heldResultSQL
		args["payment"], args["version"] = c.here.ID, c.here.Version
	}
	switch m.Remedy { //nolint:exhaustive // the others have no argument of their own
	case payment.RemedyAmount:
		args["amount"] = c.seen.Total
	case payment.RemedyCancel:
		args["amount"], args["cancel"] = c.seen.Balance, payment.NewCancelID()
	case payment.RemedyFail:
		args["bare"] = m.bare
	}
	e, err = s.write(ctx, statement{"resolve incident", sql, []any{args}}, func(row pgx.Row) error { return scanIncident(row, &i) })
	return i, e, err
}

// eventEvidence is what the event of a resolution keeps: who, why, what had been ordered and what Toss had said.
type eventEvidence struct {
	Incident int64           `json:"incident"`
	By       string          `json:"by"`
	Note     string          `json:"note"`
	Ordered  payment.Amount  `json:"orderedAmount,omitempty"`
	Seen     json.RawMessage `json:"seen,omitempty"`
}

// reason is the short phrase of the event, and of the cancel.
func (c incidentCase) reason(m payment.Remedy) string {
	switch m {
	case payment.RemedyAmount:
		currency := c.here.Currency
		return "amount accepted by operator: " + c.here.Amount.Text(currency) + " ordered, " + c.seen.Total.Text(currency) + " approved"
	case payment.RemedyCancel:
		return "mismatch, given back by operator"
	case payment.RemedyFail:
		return "the approval is not ours, said by operator"
	case payment.RemedyAdopt:
		return "approval without a payment, accepted by operator"
	case payment.RemedyReturn:
		return "approval without a payment, to be given back by operator"
	default:
		return "the refused cancel is tried again by operator"
	}
}
