package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// plainSQL is the approval that nothing is special about, which is nearly every payment. Left out because they cost:
// the self join for the state before (6 %; a row with a virtual account was waiting for its deposit), incidents and
// cancels (9 %).
const plainSQL = `WITH moved AS (
		UPDATE payments AS p
		SET status = 'PAID', version = p.version + 1, leased = false, due_at = NULL, looks = 0,
			told = p.told OR $2, method = $3, approved_at = $4, receipt_url = $5, notices_missing = $6,
			updated_at = now()
		WHERE p.id = $1 AND p.status IN ('PENDING', 'AWAITING_DEPOSIT')
		RETURNING ` + columns + `
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, CASE WHEN p.virtual_account IS NULL THEN 'PENDING' ELSE 'AWAITING_DEPOSIT' END,
			p.status, $7, $8, $9::jsonb FROM moved AS p
	)`

const plainNoticesSQL = `, notice AS (
		INSERT INTO notices (id, payment_id, kind, event, sequence, attempts, fence, due_at)
		SELECT n.id, p.id, n.kind, n.event, p.version, $12::int, $12, now() + $13::interval
		FROM moved AS p, (VALUES ($10::uuid, 'payment.paid', 'paid'), ($11, 'receipt', 'receipt')) AS n (id, kind, event)
		ON CONFLICT DO NOTHING
		RETURNING id
	)`

const (
	plainResultSQL = `
	SELECT ` + columns + ` FROM moved AS p`
	plainNoticedSQL = `
	SELECT ` + columns + `, (SELECT count(*) FROM notice) FROM moved AS p`
)

// settleSQL is every other move. FOR UPDATE makes "old" the row that the update meets, also after a wait. News that moves
// nothing keeps off another's lease: an operator's cancel would lose its fence, and its next look, to it.
const settleSQL = `WITH old AS (
		SELECT o.id, o.status, o.canceled_amount, NOT @returned AND NOT @ended AND EXISTS (
			SELECT FROM cancels AS c WHERE c.payment_id = o.id AND c.ours AND c.state IN ('open', 'refused')) AS owed
		FROM payments AS o WHERE o.id = @id FOR UPDATE
	), moved AS (
		UPDATE payments AS p
		SET status = @to, version = p.version + 1, leased = false, looks = 0, updated_at = now(),
			holds_order = CASE WHEN @to = 'FAILED' THEN old.owed ELSE true END,
			due_at = CASE
				WHEN @due::interval IS NOT NULL THEN now() + @due::interval
				WHEN @to = 'FAILED' AND old.owed THEN now() + @soon::interval
				WHEN p.status = @to AND NOT p.leased AND NOT @returned THEN p.due_at
				ELSE NULL END,
			maybe_sent = p.maybe_sent AND NOT @not_sent,
			first_sent_at = CASE WHEN NOT @not_sent THEN p.first_sent_at END,
			last_sent_at = CASE WHEN NOT @not_sent THEN p.last_sent_at END,
			told = p.told OR @told,
			method = COALESCE(NULLIF(@method, ''), p.method),
			approved_at = COALESCE(@approved_at, p.approved_at),
			receipt_url = COALESCE(NULLIF(@receipt_url, ''), p.receipt_url),
			canceled_amount = GREATEST(p.canceled_amount, @canceled_amount),
			virtual_account = CASE WHEN @to = 'AWAITING_DEPOSIT' THEN COALESCE(@account::jsonb, p.virtual_account, '{}')
				ELSE p.virtual_account END,
			failure_code = COALESCE(NULLIF(@failure_code, ''), p.failure_code),
			failure_gateway_code = COALESCE(NULLIF(@failure_gateway_code, ''), p.failure_gateway_code),
			failure_message = COALESCE(NULLIF(@failure_message, ''), p.failure_message),
			notices_missing = p.notices_missing OR @bare AND (@to <> 'FAILED' OR p.told OR @told)
		FROM old
		WHERE p.id = old.id AND p.status = ANY(@from::text[])
		  AND (p.version = @version OR NOT @fenced AND (p.status <> @to OR NOT p.leased OR p.due_at <= now()))
		RETURNING ` + columns + `, old.status AS from_status, old.canceled_amount AS canceled_before
	), recorded AS (
		INSERT INTO cancels (id, payment_id, payment_key, sends, amount, reason, state, transaction_key, ours, created_at, done_at)
		SELECT CASE WHEN c.mark <> '' THEN c.mark ELSE 'g-' || p.id || '-' || c.transaction_key END, p.id, p.payment_key,
			CASE WHEN c.mark <> '' THEN 1 ELSE 0 END, c.amount, c.reason, 'done', c.transaction_key, c.mark <> '',
			COALESCE(c.at, now()), now()
		FROM moved AS p, jsonb_to_recordset(@cancels::jsonb) AS c (mark text, transaction_key text, amount bigint, reason text, at timestamptz)
		ON CONFLICT (id) DO UPDATE
		SET state = 'done', done_at = now(), amount = EXCLUDED.amount, transaction_key = EXCLUDED.transaction_key
		WHERE cancels.state <> 'done' AND cancels.payment_id = EXCLUDED.payment_id
		RETURNING id
	), event AS (
		INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason, evidence)
		SELECT p.id, p.version, p.from_status, p.status, @actor, @reason, @evidence::jsonb FROM moved AS p
		WHERE p.status <> p.from_status OR p.canceled_amount <> p.canceled_before OR EXISTS (SELECT FROM recorded)
	), moot AS (
		UPDATE cancels AS c SET state = 'moot', done_at = now() FROM moved AS p
		WHERE @returned AND c.payment_id = p.id AND c.done_at IS NULL AND c.id <> ALL(@marks::text[])
	), closed AS (
		UPDATE incidents AS i SET resolved_at = now(), resolved_by = @actor, action = 'settled', note = @reason
		FROM moved AS p WHERE i.payment_key = p.payment_key AND i.resolved_at IS NULL AND i.kind = ANY(@closes::text[])
		  AND NOT (p.status = 'PAID' AND i.kind = 'unexpected_state' AND ` + partlyBefore + `)
	), opened AS (
		INSERT INTO incidents (payment_id, payment_key, order_id, kind, evidence)
		SELECT n.id, n.payment_key, n.order_id, n.kind, n.evidence
		FROM (SELECT p.id, p.payment_key, p.order_id, @incident AS kind, @evidence::jsonb AS evidence FROM moved AS p) AS n
		WHERE n.kind <> '' AND ` + unlessDecided + `
		ON CONFLICT (payment_key, kind) WHERE resolved_at IS NULL DO NOTHING
	)`

// partlyBefore is the incident that somebody canceled a part before we knew of the approval. That Toss goes on saying so
// explains nothing: a person says whether the shop knows of it, unless everything goes back.
const partlyBefore = `i.evidence->>'sighting' IS NOT DISTINCT FROM 'PARTIAL_CANCELED'`

// failedEvent is the same for one reservation, whoever writes the notice of its failure, and another after a reopening.
const failedEvent = `'failed-' || (EXTRACT(EPOCH FROM p.reserved_at) * 1000000)::bigint`

const settleNoticesSQL = `, notice AS (
		INSERT INTO notices (payment_id, kind, event, sequence)
		SELECT p.id, n.kind, n.event, p.version
		FROM moved AS p, (VALUES ('payment.paid', 'paid'), ('receipt', 'receipt')) AS n (kind, event)
		WHERE p.status = 'PAID' AND p.from_status <> 'PAID'
		UNION ALL
		SELECT p.id, 'payment.failed', ` + failedEvent + `, p.version FROM moved AS p
		WHERE p.status = 'FAILED' AND p.from_status <> 'FAILED' AND p.told
		UNION ALL
		SELECT p.id, 'payment.canceled', r.id, p.version FROM moved AS p, recorded AS r WHERE p.status IN ('PAID', 'CANCELED')
		ON CONFLICT DO NOTHING
	)`

const settleResultSQL = `
	SELECT ` + columns + `, p.from_status FROM moved AS p`

// Settle commits a move with its event, notices, cancels and incident in one statement. The returned payment is the
// row after it. A move to FAILED needs the version; every other the state alone, so that news of an approval may come
// from anybody, and a final state is never left by late news. What only records is NoRows while somebody else has a lease. A notice that cannot be written is left out, logged, and added by SweepMissingNotices.
func (s *Store) Settle(ctx context.Context, st approval.Settlement) (payment.Payment, payment.Ending, error) {
	m := moveOf(st)
	return s.record(ctx, &m)
}

// record carries a move out, without its notices if they are what keeps it from being written, and counts it.
func (s *Store) record(ctx context.Context, m *move) (payment.Payment, payment.Ending, error) {
	w, from := s.move(ctx, m, false)
	if poisoned(w.err) {
		s.log.ErrorContext(ctx, "settle without its notices", "order_id", m.Payment.OrderID, "to", string(m.to), "error", w.err)
		w, from = s.move(ctx, m, true)
	}
	if w.ending == payment.Applied && from != w.payment.Status {
		s.metrics.settled(*w.payment, m.actor)
	}
	return w.results()
}

// move is one settlement as the statement takes it.
type move struct {
	approval.Settlement
	to    payment.Status
	from  []payment.Status
	actor payment.Actor
	// fenced: the version must match. returned: Toss holds nothing of the payment any more. partly: a cancel that was
	// asked for is done, and something is left.
	fenced, returned, partly bool
	due                      *time.Duration
	cancels                  []cancelRow
}

func moveOf(st approval.Settlement) move {
	m := move{
		Settlement: st, to: st.Action.To, actor: st.Actor, from: guard(st.Payment.Status, st.Action.To),
		fenced: payment.NeedsFence(st.Action.To), returned: st.Observation.Returned(), cancels: cancelRows(st.Observation.Cancels),
	}
	switch {
	case st.Action.VerifyIn > 0:
		m.due = new(st.Action.VerifyIn)
	case m.to == payment.AwaitingDeposit:
		m.due = new(depositLook(st.Observation.VirtualAccount, 0, st.Payment.ReadAt))
	case st.Payment.Status != m.to && payment.CrossingLook(m.actor, m.to) > 0:
		m.due = new(payment.CrossingLook(m.actor, m.to))
	}
	return m
}

// guard is payment.SettleFrom, but the state itself only for its own holder: who read PENDING has no news for PAID.
func guard(read, to payment.Status) []payment.Status {
	var from []payment.Status
	for _, s := range payment.SettleFrom(to) {
		if (s == to) == (read == to) {
			from = append(from, s)
		}
	}
	return from
}

// plain reports whether plainSQL says all of the move. Recovery's, and one that asks for a second look because the
// payment was taken over, may have an incident to close.
func (m *move) plain() bool {
	return m.to == payment.Paid && m.actor == payment.ByConfirm && m.Payment.Status != payment.Paid && m.Payment.Looks == 0 &&
		m.Action.VerifyIn == 0 && m.Action.Incident == "" && len(m.cancels) == 0 && m.canceled() == 0
}

// canceled is the amount that went back. A virtual account that ends before anybody paid lists no cancel.
func (m *move) canceled() payment.Amount {
	if m.to == payment.Failed && len(m.cancels) == 0 {
		return 0
	}
	switch m.Observation.Sighting {
	case payment.SeenDone, payment.SeenPartlyCanceled, payment.SeenCanceled:
		return m.Observation.Total - m.Observation.Balance
	default:
		return 0
	}
}

// ended is news of what ended at Toss before anybody paid: it owes nothing, whatever cancel of it was refused.
func (m *move) ended() bool {
	return m.Observation.Sighting == payment.SeenAborted || m.Observation.Sighting == payment.SeenExpired
}

// move runs the statement; bare leaves the notices to the sweep. from is the state before, if it was applied.
func (s *Store) move(ctx context.Context, m *move, bare bool) (w written, from payment.Status) {
	if m.plain() {
		switch {
		case bare:
			w = s.settlePlain(ctx, m, true)
		case s.settles != nil:
			w = s.settles.do(ctx, m)
		default:
			w = s.settleAlone(ctx, m)
		}
		return w, payment.Pending
	}
	sql := settleSQL + settleNoticesSQL + settleResultSQL
	if bare {
		sql = settleSQL + settleResultSQL
	}
	w = s.writeRow(ctx, statement{"settle payment", sql, []any{m.args(bare)}}, &from)
	return w, from
}

// settleAlone is the plain approval with its notices.
func (s *Store) settleAlone(ctx context.Context, m *move) written {
	return s.settlePlain(ctx, m, false)
}

func (s *Store) settlePlain(ctx context.Context, m *move, bare bool) (w written) {
	o := &m.Observation
	args := []any{
		m.Payment.ID, m.Told, clean(o.Method), orNull(o.ApprovedAt), clean(o.ReceiptURL), bare,
		string(m.actor), clean(m.Action.Reason), evidenceOf(*o, ""),
	}
	if bare {
		return s.writeRow(ctx, statement{"settle payment", plainSQL + plainResultSQL, args})
	}
	h := s.handover(1)
	var notices int
	defer func() {
		if notices < noticesOfPaid { // one was there already, under its own id
			h.end(nil)
			return
		}
		h.end([]written{w})
	}()
	args = append(args, h.paid[0], h.receipt[0], h.attempts, h.lease)
	return s.writeRow(ctx, statement{"settle payment", plainSQL + plainNoticesSQL + plainNoticedSQL, args}, &notices)
}

func (m *move) args(bare bool) pgx.StrictNamedArgs {
	o := m.Observation
	var failure payment.Failure
	if m.Action.Failure != nil {
		failure = *m.Action.Failure
	}
	return pgx.StrictNamedArgs{
		"id": m.Payment.ID, "to": string(m.to), "from": m.from, "version": m.Payment.Version, "fenced": m.fenced, "returned": m.returned, "due": m.due,
		"ended":    m.ended(),
		"soon":     payment.LookAgainIn,
		"not_sent": m.NotSent, "told": m.Told, "method": clean(o.Method), "approved_at": orNull(o.ApprovedAt),
		"receipt_url": clean(o.ReceiptURL), "canceled_amount": m.canceled(), "account": accountOf(o.VirtualAccount),
		"failure_code": string(failure.Code), "failure_gateway_code": clean(failure.GatewayCode),
		"failure_message": clean(failure.Message), "bare": bare, "actor": string(m.actor), "reason": clean(m.Action.Reason),
		"evidence": evidenceOf(o, ""), "cancels": m.cancels, "marks": marks(m.cancels), "closes": m.closes(),
		"incident": string(m.Action.Incident),
	}
}

// closes names the incidents whose cause is gone after the move.
func (m *move) closes() []payment.IncidentKind {
	var kinds []payment.IncidentKind
	switch {
	case m.returned:
		kinds = []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch, payment.CancelFailed, payment.UnexpectedState, payment.OrphanApproval}
	case m.partly:
		kinds = []payment.IncidentKind{payment.CancelFailed}
	case m.Payment.Status == m.to:
	case m.to == payment.Paid:
		kinds = []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch, payment.CancelFailed, payment.OrphanApproval}
	case m.to == payment.Failed && m.ended():
		kinds = []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch, payment.CancelFailed}
	case m.to == payment.Failed:
		kinds = []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch}
	case m.to == payment.AwaitingDeposit:
		kinds = []payment.IncidentKind{payment.UnknownOutcome}
	}
	if after := m.Payment; !m.returned {
		after.Status, after.CanceledAmount = m.to, max(after.CanceledAmount, m.canceled())
		kinds = append(kinds, explains(after, m.Observation)...)
	}
	keep := kinds[:0]
	for _, k := range kinds {
		if k != m.Action.Incident {
			keep = append(keep, k)
		}
	}
	return keep
}

// explains names the incidents about a contradiction that o ends, because Toss says of p what we say.
func explains(p payment.Payment, o payment.Observation) []payment.IncidentKind {
	switch {
	case !o.Agrees(p):
		return nil
	case p.Status == payment.Paid:
		return []payment.IncidentKind{payment.UnexpectedState, payment.Mismatch}
	default:
		return []payment.IncidentKind{payment.UnexpectedState}
	}
}
