package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// inDoubt opens an incident with evidence, as the machine would, and returns its id.
func (f *fixture) inDoubt(kind payment.IncidentKind, key, order string, o payment.Observation) int64 {
	f.t.Helper()
	return ask[int64](f, `INSERT INTO incidents (payment_id, payment_key, order_id, kind, evidence)
		VALUES ((SELECT id FROM payments WHERE payment_key = $1), $1, $2, $3, $4) RETURNING id`, key, order, string(kind), evidenceOf(o, "test"))
}

// parked is a PENDING payment under a mismatch about o.
func (f *fixture) parked(name string, change func(*payment.Observation)) (payment.Payment, int64) {
	f.t.Helper()
	p := f.reserved(name)
	o := seen(p, payment.SeenDone, p.Amount)
	change(&o)
	e, err := f.Release(f.t.Context(), approval.Release{
		Payment: p, Park: true, Incident: payment.Mismatch, Actor: payment.ByRecovery, Observation: o, Reason: "differs",
	})
	if e != payment.Applied || err != nil {
		f.t.Fatal(e, err)
	}
	return f.row(p.PaymentKey), ask[int64](f, "SELECT max(id) FROM incidents WHERE payment_key = $1", p.PaymentKey)
}

func less(o *payment.Observation)  { o.Total, o.Balance = 14000, 14000 }
func other(o *payment.Observation) { o.OrderID = "order_of_others" }

func (f *fixture) resolve(id int64, action payment.IncidentAction) (payment.Incident, error) {
	f.t.Helper()
	return f.ResolveIncident(f.t.Context(), payment.ResolveIncident{ID: id, Note: "as agreed", Action: action, By: "kim"})
}

func (f *fixture) resolved(id int64, action payment.IncidentAction) payment.Incident {
	f.t.Helper()
	i, err := f.resolve(id, action)
	if err != nil {
		f.t.Fatal(err)
	}
	if i.ID != id || i.ResolvedAt.IsZero() || i.ResolvedBy != "kim" || i.Note != "as agreed" || i.Action != action || i.Evidence == nil {
		f.t.Errorf("resolved: %+v", i)
	}
	return i
}

// refused fails unless the resolution is refused with the code and nothing was written.
func (f *fixture) refused(id int64, action payment.IncidentAction, want payment.Code) {
	f.t.Helper()
	const state = `SELECT (SELECT string_agg(i::text, ' ') FROM incidents AS i) || (SELECT string_agg(p::text, ' ' ORDER BY id) FROM payments AS p)`
	before := ask[*string](f, state)
	_, err := f.resolve(id, action)
	if e, ok := errors.AsType[*payment.Error](err); !ok || e.Code != want {
		f.t.Errorf("%q: %v, want %s", action, err, want)
	}
	if diff := cmp.Diff(before, ask[*string](f, state)); diff != "" {
		f.t.Errorf("%q wrote something (-before +after):\n%s", action, diff)
	}
}

// lastEvent is from, to, actor, reason, ordered amount and who, of the newest event.
func (f *fixture) lastEvent(p payment.Payment) string {
	f.t.Helper()
	return ask[string](f, `SELECT concat_ws('|', from_status, to_status, actor, reason, evidence->>'orderedAmount', evidence->>'by',
		evidence->'seen'->>'sighting') FROM payment_events WHERE payment_id = $1 ORDER BY version DESC LIMIT 1`, p.ID)
}

func TestAcceptMismatch(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p, id := f.parked("a", less)
	f.resolved(id, payment.ResolveAccept)
	q := f.row(p.PaymentKey)
	if q.Amount != 14000 || q.Status != payment.Pending || !q.HoldsOrder || q.Leased || q.Version != p.Version+1 || q.DueAt.IsZero() || q.DueAt.After(q.ReadAt) {
		t.Errorf("%+v", q)
	}
	if got := f.lastEvent(p); got != "PENDING|PENDING|operator|amount accepted by operator: 15000 ordered, 14000 approved|15000|kim|DONE" {
		t.Errorf("event %s", got)
	}
	claimed, err := f.ClaimDue(t.Context(), 1, lease)
	if err != nil || len(claimed) != 1 {
		t.Fatal(claimed, err)
	}
	if paid := f.settle(settlement(claimed[0], payment.Paid, payment.ByRecovery)); paid.Amount != 14000 {
		t.Errorf("%+v", paid)
	}

	// PAID: the amount, and the second look is kept.
	r := f.inState("b", payment.Paid)
	f.exec("UPDATE payments SET due_at = now() + interval '1 hour' WHERE id = $1", r.ID)
	o := seen(r, payment.SeenDone, 20000)
	o.Total = 20000
	f.resolved(f.inDoubt(payment.Mismatch, r.PaymentKey, r.OrderID, o), payment.ResolveAccept)
	if q := f.row(r.PaymentKey); q.Status != payment.Paid || q.Amount != 20000 || q.DueAt.Before(q.ReadAt) {
		t.Errorf("%+v", q)
	}
}

func TestGiveBackMismatch(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p, id := f.parked("a", less)
	f.resolved(id, payment.ResolveGiveBack)
	q := f.row(p.PaymentKey)
	if q.Amount != 15000 || q.Status != payment.Pending || q.Leased || q.Version != p.Version+1 || q.DueAt.IsZero() || q.DueAt.After(q.ReadAt) {
		t.Errorf("%+v", q)
	}
	got := ask[string](f, `SELECT concat_ws('|', payment_id = $1, payment_key, sends, key_spent, amount, reason, state, ours, asked_by, failure) FROM cancels`, p.ID)
	if want := "t|pk_a|1|f|14000|mismatch, given back by operator|open|t|kim|mismatch"; got != want {
		t.Errorf("cancel %s, want %s", got, want)
	}
	if id := ask[string](f, "SELECT id FROM cancels"); !regexp.MustCompile(`^c-[a-z2-7]{26}$`).MatchString(id) {
		t.Errorf("cancel id %s", id)
	}
	if got := f.lastEvent(p); got != "PENDING|PENDING|operator|mismatch, given back by operator|15000|kim|DONE" {
		t.Errorf("event %s", got)
	}
	// The next doubt about it waits for the cancel under way.
	again := f.inDoubt(payment.Mismatch, p.PaymentKey, p.OrderID, func() payment.Observation { o := seen(p, payment.SeenDone, 14000); less(&o); return o }())
	for _, a := range []payment.IncidentAction{payment.ResolveGiveBack, payment.ResolveAccept} {
		f.refused(again, a, payment.CodeCancelInProgress)
	}
}

// TestNotOurs: the payment fails, who was told hears of it, and the machine does not ask again.
func TestNotOurs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		told    bool
		poison  bool
		notices string
	}{
		{name: "nobody was told"},
		{name: "told", told: true, notices: "payment.failed/3"},
		{name: "told, poisoned notice", told: true, poison: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			p, id := f.parked("a", other)
			f.openIncident(payment.UnknownOutcome, p)
			if tt.told {
				if err := f.MarkTold(t.Context(), p.PaymentKey); err != nil {
					t.Fatal(err)
				}
			}
			if tt.poison {
				f.exec("ALTER TABLE notices ADD CONSTRAINT poison CHECK (kind = '') NOT VALID")
			}
			f.resolved(id, payment.ResolveNotOurs)
			q := f.row(p.PaymentKey)
			if q.Status != payment.Failed || q.Failure.Code != payment.FailMismatch || q.HoldsOrder || q.Leased || !q.DueAt.IsZero() || q.Version != p.Version+1 {
				t.Errorf("%+v", q)
			}
			if got := f.noticed(); got != tt.notices {
				t.Errorf("notices %s, want %s", got, tt.notices)
			}
			if missing := f.count("payments WHERE notices_missing") == 1; missing != tt.poison {
				t.Errorf("left to the sweep: %v", missing)
			}
			if got := f.lastEvent(p); got != "PENDING|FAILED|operator|the approval is not ours, said by operator|15000|kim|DONE" {
				t.Errorf("event %s", got)
			}
			if n := f.count("incidents WHERE resolved_at IS NULL"); n != 0 {
				t.Errorf("%d incidents are open", n)
			}
			if _, e, err := f.Reserve(t.Context(), payment.Order{PaymentKey: "pk_b", OrderID: p.OrderID, Amount: 1, Currency: "KRW"}, lease); e != payment.Applied {
				t.Errorf("the order is not free: %s, %v", e, err)
			}
			f.sees(p, payment.Mismatch, func() payment.Observation { o := seen(p, payment.SeenDone, 3); other(&o); return o }())
			if n := f.count("incidents WHERE resolved_at IS NULL"); n != 0 {
				t.Errorf("opened again: %d", n)
			}
			f.sees(p, payment.CancelFailed, seen(p, payment.SeenDone, 3))
			if n := f.count("incidents WHERE resolved_at IS NULL"); n != 1 {
				t.Errorf("another kind is not answered by it: %d", n)
			}
		})
	}
}

// sees is a look that opens an incident and moves nothing.
func (f *fixture) sees(p payment.Payment, kind payment.IncidentKind, o payment.Observation) {
	f.t.Helper()
	e, err := f.Release(f.t.Context(), approval.Release{
		Payment: f.row(p.PaymentKey), DueIn: -1, Incident: kind, Actor: payment.ByRecovery, Observation: o, Reason: "a look",
	})
	if e != payment.Applied || err != nil {
		f.t.Fatal(e, err)
	}
}

// TestDecidedStaysDecided: a note holds while Toss says the same; a new word of Toss opens a new incident, and so does
// the end of what an operator asked for. The three statements that open one agree.
func TestDecidedStaysDecided(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		action  payment.IncidentAction
		balance payment.Amount
		open    int
	}{
		{"a note, the same again", "", 15000, 0},
		{"a note, and something else", "", 9000, 1},
		{"tried again", payment.ResolveGiveBack, 15000, 1},
		{"closed by the machine", payment.ResolveSettled, 15000, 1},
		{"not ours", payment.ResolveNotOurs, 9000, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			decided := func(p payment.Payment, kind payment.IncidentKind) {
				id := f.inDoubt(kind, p.PaymentKey, p.OrderID, seen(p, payment.SeenDone, 15000))
				f.exec("UPDATE incidents SET resolved_at = now(), resolved_by = 'kim', action = $2 WHERE id = $1", id, string(tt.action))
			}
			open := func(p payment.Payment) int {
				return f.count("incidents WHERE resolved_at IS NULL AND payment_key = $1", p.PaymentKey)
			}
			p := f.inState("release", payment.Paid)
			decided(p, payment.UnexpectedState)
			f.sees(p, payment.UnexpectedState, seen(p, payment.SeenDone, tt.balance))
			if n := open(p); n != tt.open {
				t.Errorf("release: %d open", n)
			}
			q := f.reserved("settle")
			decided(q, payment.UnexpectedState)
			st := settlement(q, payment.Paid, payment.ByRecovery)
			st.Observation, st.Action.Incident = seen(q, payment.SeenDone, tt.balance), payment.UnexpectedState
			f.settle(st)
			if n := open(q); n != tt.open {
				t.Errorf("settle: %d open", n)
			}
			r := f.settle(settlement(f.reserved("give back"), payment.Failed, payment.ByConfirm))
			decided(r, payment.CancelFailed)
			c, held := f.beginGiveBack(r)
			f.endGiveBack(approval.GiveBackEnd{Payment: held, Cancel: c, Refused: true, Observation: seen(r, payment.SeenDone, tt.balance)})
			if n := open(r); n != tt.open {
				t.Errorf("give back: %d open", n)
			}
		})
	}
}

func TestAdopt(t *testing.T) {
	t.Parallel()
	orphan := payment.Observation{Sighting: payment.SeenDone, PaymentKey: "pk_o", OrderID: "order_o", Total: 7000, Balance: 7000, Currency: "KRW"}
	for _, tt := range []struct {
		action payment.IncidentAction
		want   string
		event  string
	}{
		{payment.ResolveAccept, "order_o|7000|KRW|PENDING||t|t|f|1|f|t|t|t", "PENDING|operator|approval without a payment, accepted by operator|kim|DONE"},
		{payment.ResolveGiveBack, "order_o|7000|KRW|FAILED|mismatch|f|t|f|1|f|t|t|t", "FAILED|operator|approval without a payment, to be given back by operator|kim|DONE"},
	} {
		t.Run(string(tt.action), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			id := f.inDoubt(payment.OrphanApproval, "pk_o", "order_o", orphan)
			f.resolved(id, tt.action)
			got := ask[string](f, `SELECT concat_ws('|', order_id, amount, currency, status, failure_code, holds_order, maybe_sent, leased, sends, told,
				due_at <= now(), first_sent_at = created_at AND last_sent_at = created_at, reserved_at < now() - interval '10 hours')
				FROM payments WHERE payment_key = 'pk_o'`)
			if got != tt.want {
				t.Errorf("adopted %s, want %s", got, tt.want)
			}
			p := f.row("pk_o")
			if got := f.lastEvent(p); got != "|"+tt.event {
				t.Errorf("event %s", got)
			}
			if n := f.count("incidents WHERE payment_id = $1", p.ID); n != 1 {
				t.Error("the incident does not know its payment")
			}
			claimed, err := f.ClaimDue(t.Context(), 1, lease)
			if err != nil || len(claimed) != 1 {
				t.Fatal(claimed, err)
			}
			rules := payment.Rules{SendWithin: 9 * 60e9, ResendWithin: 120e9, Window: 600e9, Margin: 300e9, UnknownIncidentAfter: 3600e9, VerifyAfter: 1800e9}
			if a := rules.Decide(claimed[0], payment.Observation{Sighting: payment.SeenReady}, claimed[0].ReadAt); a.Do == payment.Send {
				t.Error("an adopted approval would be sent")
			}
		})
	}
	t.Run("not ours", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		rows := func() (payment.AuditRow, bool) {
			all, err := f.AuditRows(t.Context(), []string{"pk_o"})
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			return all[0], all[0].ByHand
		}
		id := f.inDoubt(payment.OrphanApproval, "pk_o", "order_o", orphan)
		if r, byHand := rows(); byHand || !r.MoneyIncident {
			t.Errorf("open: %+v", r)
		}
		f.resolved(id, payment.ResolveNotOurs)
		if n := f.count("payments"); n != 0 {
			t.Errorf("%d payments", n)
		}
		if r, byHand := rows(); !byHand || r.MoneyIncident || r.OrderID != "order_o" {
			t.Errorf("answered: %+v", r)
		}
		if opened, err := f.OpenOrphan(t.Context(), orphan, "again"); opened || err != nil {
			t.Errorf("opened again: %v, %v", opened, err)
		}
	})
	t.Run("the order is held", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		f.reserved("o2")
		o := orphan
		o.OrderID = "order_o2"
		id := f.inDoubt(payment.OrphanApproval, "pk_o", "order_o2", o)
		f.refused(id, payment.ResolveAccept, payment.CodeOrderConflict)
		f.resolved(id, payment.ResolveGiveBack)
	})
	t.Run("the payment came meanwhile", func(t *testing.T) {
		t.Parallel()
		f := setup(t)
		p := f.reserved("a")
		id := f.inDoubt(payment.OrphanApproval, p.PaymentKey, p.OrderID, orphan)
		f.refused(id, payment.ResolveAccept, payment.CodeInvalidRequest)
		c, err := f.readCase(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		_, e, err := f.remedy(t.Context(), c, payment.ResolveIncident{ID: id}, payment.RemedyReturn)
		if e != payment.NotApplied || !violates(err, paymentKeyKey) {
			t.Errorf("%s, %v", e, err)
		}
	})
}

func TestRetryCancel(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.settle(settlement(f.reserved("a"), payment.Failed, payment.ByConfirm))
	c, p := f.beginGiveBack(p)
	p = f.endGiveBack(approval.GiveBackEnd{Payment: p, Cancel: c, Refused: true, Observation: seen(p, payment.SeenDone, 15000)})
	f.resolved(ask[int64](f, "SELECT id FROM incidents"), payment.ResolveGiveBack)
	q := f.row(p.PaymentKey)
	if !q.HoldsOrder || q.DueAt.IsZero() || q.DueAt.After(q.ReadAt) || q.Version != p.Version+1 || q.Looks != 0 {
		t.Errorf("%+v", q)
	}
	if got := ask[string](f, "SELECT state FROM cancels"); got != "moot" {
		t.Errorf("cancel %s", got)
	}
	claimed, e, err := f.ClaimOne(t.Context(), p.PaymentKey, lease)
	next, held := f.beginGiveBack(applied(t, claimed, e, err))
	if next.ID == c.ID || next.Refused() || next.Sends != 1 {
		t.Errorf("the refused cancel is sent again: %+v", next)
	}
	f.endGiveBack(approval.GiveBackEnd{Payment: held, Cancel: next, Refused: true, Observation: seen(p, payment.SeenDone, 15000)})
	if n := f.count("incidents WHERE resolved_at IS NULL"); n != 1 {
		t.Errorf("refused again: %d incidents are open", n)
	}
}

func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.refused(4711, payment.ResolveAccept, payment.CodeNotFound)
	_, id := f.parked("a", less)
	f.refused(id, "", payment.CodeInvalidRequest)
	f.refused(id, payment.ResolveNotOurs, payment.CodeInvalidRequest)
	f.exec("UPDATE payments SET leased = true, due_at = now() + interval '1 minute'")
	f.refused(id, payment.ResolveAccept, payment.CodeInProgress)
	f.refused(id, payment.ResolveNotOurs, payment.CodeInvalidRequest)
	c, err := f.readCase(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if _, e, err := f.remedy(t.Context(), c, payment.ResolveIncident{ID: id}, payment.RemedyAmount); e != payment.NoRows || err != nil {
		t.Errorf("against a lease: %s, %v", e, err)
	}
	f.exec("UPDATE payments SET due_at = now() - interval '1 second'")
	first := f.resolved(id, payment.ResolveAccept)

	// Resolved already: as it is, whatever is asked.
	version := f.row("pk_a").Version
	again, err := f.ResolveIncident(t.Context(), payment.ResolveIncident{ID: id, Note: "another", Action: "no word", By: "lee"})
	if diff := cmp.Diff(first, again); diff != "" || err != nil || f.row("pk_a").Version != version {
		t.Errorf("%v (-first +again):\n%s", err, diff)
	}
	f.exec("UPDATE incidents SET resolved_at = NULL, evidence = NULL")
	f.refused(id, payment.ResolveAccept, payment.CodeInvalidRequest)
	f.exec(`UPDATE incidents SET evidence = '"text"'`)
	f.refused(id, payment.ResolveGiveBack, payment.CodeInvalidRequest)
}

// TestConcurrentResolves: one wins, every caller is shown its resolution, and the payment moved once.
func TestConcurrentResolves(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for round := range 20 {
		change := func(o *payment.Observation) { less(o); other(o) }
		actions := []payment.IncidentAction{payment.ResolveGiveBack, payment.ResolveNotOurs}
		if round%2 == 0 {
			change, actions = less, []payment.IncidentAction{payment.ResolveAccept, payment.ResolveGiveBack}
		}
		p, id := f.parked(fmt.Sprint("p", round), change)
		var all sync.WaitGroup
		got := make([]payment.Incident, 8)
		for n := range got {
			all.Go(func() {
				i, err := f.ResolveIncident(t.Context(), payment.ResolveIncident{ID: id, Note: "n", Action: actions[n%2], By: fmt.Sprint("op", n)})
				if err != nil {
					t.Error(err)
				}
				got[n] = i
			})
		}
		all.Wait()
		for _, i := range got[1:] {
			if diff := cmp.Diff(got[0], i); diff != "" {
				t.Errorf("two resolutions of one incident:\n%s", diff)
			}
		}
		q := f.row(p.PaymentKey)
		if q.Version != p.Version+1 || f.count("payment_events WHERE payment_id = $1 AND version > $2", p.ID, p.Version) != 1 {
			t.Errorf("moved more than once: %+v", q)
		}
		if cancels := f.count("cancels WHERE payment_id = $1", p.ID) == 1; cancels != (got[0].Action == payment.ResolveGiveBack) {
			t.Errorf("%s won, a cancel is there: %v", got[0].Action, cancels)
		}
	}
}

func TestIncidentPages(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 25 {
		f.inDoubt(payment.UnexpectedState, fmt.Sprint("pk", n), fmt.Sprint("order-", n), payment.Observation{})
	}
	var got []string
	for before := int64(0); ; {
		page, err := f.Incidents(t.Context(), payment.IncidentFilter{State: payment.IncidentOpen, Before: before, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range page {
			got = append(got, i.OrderID)
		}
		if len(page) < 10 {
			break
		}
		before = page[9].ID
		f.inDoubt(payment.UnexpectedState, fmt.Sprint("new", before), "order-new", payment.Observation{})
		f.exec("UPDATE incidents SET resolved_at = now() WHERE id = $1", before)
	}
	var want []string
	for n := 24; n >= 0; n-- {
		want = append(want, fmt.Sprint("order-", n))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages while others are opened and resolved (-want +got):\n%s", diff)
	}

	f.inDoubt(payment.DeadNotice, "pk3", "order-3", payment.Observation{Sighting: payment.SeenDone, Total: 5})
	for _, tt := range []struct {
		filter payment.IncidentFilter
		want   int
	}{
		{payment.IncidentFilter{}, 28},
		{payment.IncidentFilter{State: payment.AllIncidents}, 28},
		{payment.IncidentFilter{State: payment.IncidentResolved}, 2},
		{payment.IncidentFilter{State: payment.IncidentOpen}, 26},
		{payment.IncidentFilter{Kind: payment.DeadNotice}, 1},
		{payment.IncidentFilter{OrderID: "order-3"}, 2},
		{payment.IncidentFilter{OrderID: "order-3", Kind: payment.UnexpectedState}, 1},
		{payment.IncidentFilter{Kind: payment.Mismatch}, 0},
	} {
		tt.filter.Limit = 200
		page, err := f.Incidents(t.Context(), tt.filter)
		if err != nil || len(page) != tt.want {
			t.Errorf("%+v: %d, %v, want %d", tt.filter, len(page), err, tt.want)
		}
	}
	page, err := f.Incidents(t.Context(), payment.IncidentFilter{Kind: payment.DeadNotice, Limit: 1})
	if err != nil || len(page) != 1 || !json.Valid(page[0].Evidence) || page[0].OpenedAt.IsZero() || page[0].State() != payment.IncidentOpen {
		t.Errorf("%+v, %v", page, err)
	}
}

var (
	removes = regexp.MustCompile(`(?i)\b(DELETE\s+FROM|TRUNCATE(\s+TABLE)?)\s+(ONLY\s+)?(incidents|payment_events|cancels)\b`)
	opens   = regexp.MustCompile(`(?s)INSERT INTO incidents .*?ON CONFLICT`)
)

// TestTrap25_NoCleanUpRemovesEvidence: no statement of the program deletes what operators and auditors need, and the
// history is kept by the database itself.
func TestTrap25_NoCleanUpRemovesEvidence(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"DELETE FROM incidents WHERE": true, "delete\n\tfrom payment_events": true, "TRUNCATE cancels": true, "TRUNCATE TABLE incidents": true,
		"DELETE FROM notices": false, "UPDATE OR DELETE OR TRUNCATE ON payment_events": false,
	} {
		if got := removes.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	read, opened := 0, 0
	for name, text := range sources(t, "*.go", "../../migrations/*.sql") {
		read++
		if found := removes.FindString(text); found != "" {
			t.Errorf("%s removes evidence: %s", name, found)
		}
		for _, insert := range opens.FindAllString(text, -1) {
			opened++
			if !strings.Contains(insert, "unlessDecided") && !strings.Contains(insert, "'dead_notice'") {
				t.Errorf("%s opens an incident that an operator may have answered; add `unlessDecided`:\n%s", name, insert)
			}
		}
	}
	if read < 10 || opened < 4 {
		t.Errorf("read %d files, found %d statements that open incidents: this test looks at the wrong place", read, opened)
	}

	f := setup(t)
	f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByRecovery))
	for _, sql := range []string{"DELETE FROM payment_events", "TRUNCATE payment_events", "UPDATE payment_events SET reason = ''"} {
		if _, err := f.side.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), "append only") {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if n := f.count("payment_events"); n != 1 {
		t.Errorf("%d events", n)
	}
}
