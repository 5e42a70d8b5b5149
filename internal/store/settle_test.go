package store

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

func TestSettlePlain(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	st := settlement(p, payment.Paid, payment.ByConfirm)
	q := f.settle(st)
	want := p
	want.Status, want.Version, want.Leased, want.DueAt = payment.Paid, 2, false, time.Time{}
	want.Method, want.ReceiptURL, want.ApprovedAt = "카드", "https://example.com/r", st.Observation.ApprovedAt
	want.UpdatedAt, want.ReadAt = q.ReadAt, q.ReadAt
	if diff := cmp.Diff(want, q); diff != "" {
		t.Errorf("payment (-want +got):\n%s", diff)
	}
	events, err := f.Events(t.Context(), p.ID)
	wantEvents := []payment.Event{{Version: 2, From: payment.Pending, To: payment.Paid, Actor: payment.ByConfirm, Reason: "test", At: q.ReadAt}}
	if diff := cmp.Diff(wantEvents, events); diff != "" || err != nil {
		t.Errorf("events %v (-want +got):\n%s", err, diff)
	}
	if got := ask[string](f, "SELECT (evidence->>'sighting') || (evidence->>'traceId') FROM payment_events"); got != "DONEtrace" {
		t.Errorf("evidence %s", got)
	}
	if got := f.noticed(); got != "payment.paid/2 receipt/2" {
		t.Errorf("notices %s", got)
	}
	if n := testutil.ToFloat64(f.metrics.settledTotal.WithLabelValues("PAID", "confirm")); n != 1 {
		t.Errorf("counted %v", n)
	}
}

// noticed lists kind and sequence of all notices.
func (f *fixture) noticed() string {
	f.t.Helper()
	return ask[string](f, "SELECT COALESCE(string_agg(kind || '/' || sequence, ' ' ORDER BY sequence, kind), '') FROM notices")
}

// TestPlainGuard holds the state machine in both forms of the hot statement to the vocabulary's.
func TestPlainGuard(t *testing.T) {
	t.Parallel()
	want := slices.DeleteFunc(payment.SettleFrom(payment.Paid), func(s payment.Status) bool { return s == payment.Paid })
	found := regexp.MustCompile(`p\.status IN \(([^)]*)\)`).FindStringSubmatch(plainSQL)
	if found == nil {
		t.Fatal("no guard")
	}
	var sql []payment.Status
	for word := range strings.SplitSeq(found[1], ",") {
		sql = append(sql, payment.Status(strings.Trim(word, " '")))
	}
	if diff := cmp.Diff(want, sql); diff != "" {
		t.Errorf("guard (-want +got):\n%s", diff)
	}
	// Merged, it writes the event of a PENDING payment, whatever else may become PAID.
	if !strings.Contains(mergedSettleSQL, "p.leased AND p.status = 'PENDING'") || !slices.Contains(want, payment.Pending) {
		t.Error("the merged statement moves other rows than PENDING ones")
	}
}

// TestLeasedRowsStay is what a merged settle rests on: whatever writes a row that is leased raises its version or ends the
// lease, but for who was told, and for what no payment.Payment shows.
func TestLeasedRowsStay(t *testing.T) {
	t.Parallel()
	update := regexp.MustCompile(`(?s)UPDATE payments AS p\s+SET (.*?)(?:FROM|WHERE|` + "`" + `)`)
	harmless := regexp.MustCompile(`^(told = true|notices_missing = false)\s*$`)
	seen := 0
	for name, text := range sources(t, "*.go") {
		for _, found := range update.FindAllStringSubmatch(text, -1) {
			seen++
			set := found[1]
			if !strings.Contains(set, "version = p.version + 1") && !strings.Contains(set, "leased = false") && !harmless.MatchString(set) {
				t.Errorf("%s changes a row that stays leased under its version: %s", name, set)
			}
		}
	}
	if seen < 14 {
		t.Errorf("found %d updates of payments: the test shows nothing", seen)
	}
}

// stateSQL puts a row into a state as if by hand.
func (f *fixture) inState(name string, s payment.Status) payment.Payment {
	f.t.Helper()
	p := f.reserved(name)
	account := "NULL"
	if s == payment.AwaitingDeposit {
		account = `'{"bankCode": "20"}'`
	}
	f.exec(`UPDATE payments SET status = $2, holds_order = $2 <> 'FAILED', leased = false, virtual_account = `+account+`,
		due_at = CASE WHEN $2 IN ('PENDING', 'AWAITING_DEPOSIT') THEN now() + interval '1 h' END WHERE id = $1`, p.ID, string(s))
	return f.row(p.PaymentKey)
}

// TestSettleGuards walks the full product of state as read, state as it is, and state to move to.
func TestSettleGuards(t *testing.T) {
	t.Parallel()
	f := setup(t)
	n := 0
	for _, by := range []payment.Actor{payment.ByConfirm, payment.ByRecovery} {
		for _, read := range payment.Statuses() {
			for _, is := range payment.Statuses() {
				for _, to := range payment.Statuses() {
					n++
					p := f.inState(fmt.Sprint(n), is)
					stale := p
					stale.Status = read
					_, e, err := f.Settle(t.Context(), settlement(stale, to, by))
					want := payment.NoRows
					if slices.Contains(payment.SettleFrom(to), is) && (to == is) == (to == read) {
						want = payment.Applied
					}
					if e != want || err != nil {
						t.Errorf("%s read %s, is %s, to %s: %s, %v, want %s", by, read, is, to, e, err, want)
					}
					after := f.row(p.PaymentKey)
					if want == payment.NoRows && (after.Status != is || after.Version != p.Version) {
						t.Errorf("%s read %s, is %s, to %s: changed to %s", by, read, is, to, after.Status)
					}
					if want == payment.Applied && (after.Status != to || after.Version != p.Version+1) {
						t.Errorf("%s read %s, is %s, to %s: row %s %d", by, read, is, to, after.Status, after.Version)
					}
				}
			}
		}
	}
}

// TestSettleFence is trap 15: a failure needs the version that its holder read, an approval does not.
func TestSettleFence(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, to := range []payment.Status{payment.Paid, payment.AwaitingDeposit, payment.Failed} {
		p := f.reserved(string(to))
		f.exec("UPDATE payments SET version = version + 1 WHERE id = $1", p.ID)
		_, e, err := f.Settle(t.Context(), settlement(p, to, payment.ByConfirm))
		want := payment.Applied
		if payment.NeedsFence(to) {
			want = payment.NoRows
		}
		if e != want || err != nil {
			t.Errorf("to %s: %s, %v", to, e, err)
		}
	}
}

// TestTrap35: 0 rows is an ending of its own, and what was PAID stays PAID.
func TestTrap35_ZeroRowsIsNoFailure(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	f.settle(settlement(p, payment.Paid, payment.ByRecovery))
	for _, to := range []payment.Status{payment.Paid, payment.Failed, payment.AwaitingDeposit} {
		if _, e, err := f.Settle(t.Context(), settlement(p, to, payment.ByConfirm)); e != payment.NoRows || err != nil {
			t.Errorf("to %s: %s, %v", to, e, err)
		}
	}
	if got := f.noticed(); got != "payment.paid/2 receipt/2" {
		t.Errorf("notices %s", got)
	}
}

// TestTrap36: only an ending that says so makes a row "never sent".
func TestTrap36_MaybeSentStays(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if p := f.settle(settlement(f.reserved("a"), payment.Failed, payment.ByConfirm)); !p.MaybeSent {
		t.Error("a decline made the row never sent")
	}
	if p := f.unsent(f.reserved("b")); p.MaybeSent {
		t.Error("still maybe sent")
	}
}

// TestTrap37: a row that becomes PAID by somebody else is looked at again, because a cancel of its confirm may cross.
func TestTrap37_CrossingLook(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, by := range payment.Actors() {
		p := f.settle(settlement(f.reserved(string(by)), payment.Paid, by))
		want := time.Time{}
		if by != payment.ByConfirm {
			want = p.ReadAt.Add(2 * time.Minute)
		}
		if !p.DueAt.Equal(want) || p.Leased {
			t.Errorf("%s: due %s, want %s", by, p.DueAt, want)
		}
	}
}

// TestVerifyIn: a confirm that took a payment over asks for a second look, and closes the incidents of the doubt.
func TestVerifyIn(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	f.openIncident(payment.UnknownOutcome, p)
	st := settlement(p, payment.Paid, payment.ByConfirm)
	st.Action.VerifyIn = 90 * time.Second
	if q := f.settle(st); q.Status != payment.Paid || q.Leased || !q.DueAt.Equal(q.ReadAt.Add(90*time.Second)) {
		t.Errorf("due %s at %s: %+v", q.DueAt, q.ReadAt, q)
	}
	if n := f.count("incidents WHERE resolved_at IS NULL"); n != 0 {
		t.Errorf("%d incidents are left open", n)
	}
	if got := f.noticed(); got != "payment.paid/2 receipt/2" {
		t.Errorf("notices %s", got)
	}
}

func (f *fixture) openIncident(kind payment.IncidentKind, p payment.Payment) {
	f.t.Helper()
	f.exec(`INSERT INTO incidents (payment_id, payment_key, order_id, kind, evidence) VALUES ($1, $2, $3, $4, '{"reason": "first"}')`,
		p.ID, p.PaymentKey, p.OrderID, string(kind))
}

func TestSettleFailed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		by      payment.Actor
		change  func(*fixture, *approval.Settlement)
		due     time.Duration
		holds   bool
		notices string
	}{
		{"declined, the caller hears it", payment.ByConfirm, nil, 0, false, ""},
		{"a caller was told 202 by this settle", payment.ByConfirm, func(_ *fixture, s *approval.Settlement) { s.Told = true }, 0, false, "payment.failed/2"},
		{"a caller was told 202 before", payment.ByConfirm, func(f *fixture, _ *approval.Settlement) {
			if err := f.MarkTold(f.t.Context(), "pk_a"); err != nil {
				f.t.Error(err)
			}
		}, 0, false, "payment.failed/2"},
		{"found by recovery, nobody was told", payment.ByRecovery, nil, 0, false, ""},
		{"found by recovery, a caller was told 202 before", payment.ByRecovery, func(f *fixture, _ *approval.Settlement) {
			if err := f.MarkTold(f.t.Context(), "pk_a"); err != nil {
				f.t.Error(err)
			}
		}, 0, false, "payment.failed/2"},
		{"second look", payment.ByRecovery, func(_ *fixture, s *approval.Settlement) { s.Action.VerifyIn = 30 * time.Minute }, 30 * time.Minute, false, ""},
		{"a give back is unfinished", payment.ByRecovery, func(f *fixture, _ *approval.Settlement) {
			f.exec("INSERT INTO cancels (id, payment_id, payment_key, amount, state, ours) SELECT 'c-1', id, payment_key, 1, 'open', true FROM payments")
		}, 5 * time.Second, true, ""},
		{"a give back was refused", payment.ByRecovery, func(f *fixture, _ *approval.Settlement) {
			f.exec("INSERT INTO cancels (id, payment_id, payment_key, amount, state, ours, done_at) SELECT 'c-1', id, payment_key, 1, 'refused', true, now() FROM payments")
		}, 5 * time.Second, true, ""},
		{"a give back is unfinished, and Toss shows balance 0", payment.ByRecovery, func(f *fixture, s *approval.Settlement) {
			f.exec("INSERT INTO cancels (id, payment_id, payment_key, amount, state, ours) SELECT 'c-1', id, payment_key, 1, 'open', true FROM payments")
			s.Observation = seen(s.Payment, payment.SeenCanceled, 0, payment.GatewayCancel{TransactionKey: "t", Amount: 15000, Reason: "shop"})
		}, 0, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			st := settlement(f.reserved("a"), payment.Failed, tt.by)
			if tt.change != nil {
				tt.change(f, &st)
			}
			p := f.settle(st)
			want := time.Time{}
			if tt.due > 0 {
				want = p.ReadAt.Add(tt.due)
			}
			if !p.DueAt.Equal(want) || p.HoldsOrder != tt.holds || p.Leased || p.Status != payment.Failed {
				t.Errorf("due %s, want %s; holds %v; %s", p.DueAt, want, p.HoldsOrder, p.Status)
			}
			if diff := cmp.Diff(st.Action.Failure, p.Failure); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
			if got := f.noticed(); got != tt.notices {
				t.Errorf("notices %q, want %q", got, tt.notices)
			}
			if n := f.count("cancels WHERE state = 'open'"); n != 0 && !tt.holds {
				t.Errorf("%d cancels unfinished", n)
			}
		})
	}
}

func TestSettleAwaitingDeposit(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	st := settlement(p, payment.AwaitingDeposit, payment.ByConfirm)
	q := f.settle(st)
	if diff := cmp.Diff(st.Observation.VirtualAccount, q.VirtualAccount); diff != "" {
		t.Errorf("account (-want +got):\n%s", diff)
	}
	if !q.DueAt.Equal(q.ReadAt.Add(10 * time.Minute)) {
		t.Errorf("due %s", q.DueAt)
	}
	for _, by := range []payment.Actor{payment.ByConfirm, payment.ByWebhook} {
		q := f.settle(settlement(f.reserved(string(by)), payment.AwaitingDeposit, payment.ByConfirm))
		paid := f.settle(settlement(q, payment.Paid, by))
		events, err := f.Events(t.Context(), q.ID)
		if err != nil || len(events) != 2 || events[1].From != payment.AwaitingDeposit || paid.VirtualAccount == nil {
			t.Errorf("by %s: %+v, %v", by, events, err)
		}
	}
	st = settlement(f.reserved("none"), payment.AwaitingDeposit, payment.ByConfirm)
	st.Observation.VirtualAccount = nil
	if q := f.settle(st); q.VirtualAccount == nil {
		t.Error("the state before cannot be told without an account")
	}
}

func TestSettleCancels(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	ours := payment.NewCancelID()
	first := payment.GatewayCancel{TransactionKey: "t1", Amount: 1000, Reason: "size", At: p.CreatedAt}
	second := payment.GatewayCancel{TransactionKey: "t2", Amount: 4000, Reason: payment.MarkedReason("lost", ours)}
	steps := []struct {
		name    string
		o       payment.Observation
		to      payment.Status
		amount  payment.Amount
		cancels int
		notices int
		version int64
		events  int
	}{
		{"partly", seen(p, payment.SeenPartlyCanceled, 14000, first, first), payment.Paid, 1000, 1, 1, 3, 2},
		{"the same again is no news", seen(p, payment.SeenPartlyCanceled, 14000, first), payment.Paid, 1000, 1, 1, 4, 2},
		{"one of ours that we had lost", seen(p, payment.SeenPartlyCanceled, 10000, first, second), payment.Paid, 5000, 2, 2, 5, 3},
		{"late news takes nothing back", seen(p, payment.SeenPartlyCanceled, 14000, first), payment.Paid, 5000, 2, 2, 6, 3},
		{"all", seen(p, payment.SeenPartlyCanceled, 0, first, second, payment.GatewayCancel{TransactionKey: "t3", Amount: 10000}), payment.Canceled, 15000, 3, 3, 7, 4},
	}
	for _, step := range steps {
		st := settlement(p, step.to, payment.ByRecovery)
		st.Observation = step.o
		p = f.settle(st)
		if p.Status != step.to || p.CanceledAmount != step.amount || p.Version != step.version || !p.DueAt.IsZero() {
			t.Errorf("%s: %s %d version %d due %s", step.name, p.Status, p.CanceledAmount, p.Version, p.DueAt)
		}
		if n := f.count("cancels WHERE state = 'done'"); n != step.cancels {
			t.Errorf("%s: %d cancels", step.name, n)
		}
		if n := f.count("notices WHERE kind = 'payment.canceled'"); n != step.notices {
			t.Errorf("%s: %d notices", step.name, n)
		}
		if n := f.count("payment_events"); n != step.events {
			t.Errorf("%s: %d events", step.name, n)
		}
	}
	if got := ask[string](f, "SELECT string_agg(transaction_key || ':' || ours, ' ' ORDER BY transaction_key) FROM cancels"); got != "t1:false t2:true t3:false" {
		t.Errorf("cancels %s", got)
	}
	if got := ask[string](f, "SELECT id FROM cancels WHERE ours"); got != ours {
		t.Errorf("ours is %s, want %s", got, ours)
	}
}

func TestSettleForgedMark(t *testing.T) {
	t.Parallel()
	f := setup(t)
	a := f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	c, a, e, err := f.BeginGiveBack(t.Context(), approval.GiveBack{Payment: a, Amount: 1, Lease: lease})
	applied(t, a, e, err)
	b := f.settle(settlement(f.reserved("b"), payment.Paid, payment.ByConfirm))
	st := settlement(b, payment.Canceled, payment.ByRecovery)
	st.Observation = seen(b, payment.SeenCanceled, 0, payment.GatewayCancel{TransactionKey: "t", Amount: 15000, Reason: payment.MarkedReason("x", c.ID)})
	f.settle(st)
	if got := ask[string](f, "SELECT state FROM cancels WHERE id = $1", c.ID); got != "open" {
		t.Errorf("another payment's cancels finished ours: %s", got)
	}
}

// TestSettlePartlyCanceledBeforeWeKnew: PENDING, and Toss already shows a cancel.
func TestSettlePartlyCanceledBeforeWeKnew(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	st := settlement(p, payment.Paid, payment.ByConfirm)
	st.Observation = seen(p, payment.SeenPartlyCanceled, 14000, payment.GatewayCancel{TransactionKey: "t", Amount: 1000})
	st.Action.Incident = payment.UnexpectedState
	p = f.settle(st)
	if p.Status != payment.Paid || p.CanceledAmount != 1000 {
		t.Errorf("%+v", p)
	}
	if got := f.noticed(); got != "payment.canceled/2 payment.paid/2 receipt/2" {
		t.Errorf("notices %s", got)
	}
	if n := f.count("incidents WHERE kind = 'unexpected_state' AND resolved_at IS NULL AND payment_key = 'pk_a' AND order_id = 'order_a'"); n != 1 {
		t.Errorf("%d incidents", n)
	}
}

// TestAgreementClosesIncidents: a look that moves nothing ends a contradiction once both sides say the same.
func TestAgreementClosesIncidents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		state   payment.Status
		first   payment.Sighting
		then    payment.Sighting
		balance payment.Amount
		open    string
	}{
		{"paid, as known", payment.Paid, payment.SeenReady, payment.SeenDone, 15000, ""},
		{"paid, no answer", payment.Paid, payment.SeenReady, payment.SeenNoAnswer, 0, "mismatch unexpected_state"},
		{"paid, partly canceled before we knew", payment.Paid, payment.SeenPartlyCanceled, payment.SeenDone, 15000, "unexpected_state"},
		{"canceled, returned", payment.Canceled, payment.SeenDone, payment.SeenCanceled, 0, "mismatch"},
		{"canceled, and charged", payment.Canceled, payment.SeenReady, payment.SeenDone, 15000, "mismatch unexpected_state"},
		{"failed, expired there", payment.Failed, payment.SeenReady, payment.SeenExpired, 0, "mismatch"},
		{"failed, not found there", payment.Failed, payment.SeenReady, payment.SeenNotFound, 0, "mismatch unexpected_state"},
		{"deposit, waiting", payment.AwaitingDeposit, payment.SeenReady, payment.SeenWaiting, 15000, "mismatch"},
		{"pending, waiting", payment.Pending, payment.SeenCanceled, payment.SeenReady, 15000, "mismatch unexpected_state"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			p := f.inState("a", tt.state)
			f.inDoubt(payment.UnexpectedState, p.PaymentKey, p.OrderID, seen(p, tt.first, 15000))
			f.inDoubt(payment.Mismatch, p.PaymentKey, p.OrderID, seen(p, tt.first, 15000))
			e, err := f.Release(t.Context(), approval.Release{
				Payment: p, DueIn: -1, Forget: true, Actor: payment.ByRecovery, Observation: seen(p, tt.then, tt.balance), Reason: "as known",
			})
			if e != payment.Applied || err != nil {
				t.Fatal(e, err)
			}
			if got := f.stillOpen(); got != tt.open {
				t.Errorf("open: %q, want %q", got, tt.open)
			}
			if n := f.count(`incidents WHERE resolved_at IS NOT NULL AND (resolved_by, action, note) <> ('recovery', 'settled', 'as known')`); n != 0 {
				t.Errorf("%d incidents do not say who closed them and why", n)
			}
		})
	}
}

// stillOpen lists the kinds of the open incidents.
func (f *fixture) stillOpen() string {
	f.t.Helper()
	return ask[string](f, "SELECT COALESCE(string_agg(kind, ' ' ORDER BY kind), '') FROM incidents WHERE resolved_at IS NULL")
}

// TestPartlyCanceledExplains: recording a partial cancel of a PAID payment ends another contradiction, and not the
// incident that a part was canceled before we knew of the approval; that one waits for a person or for the rest.
func TestPartlyCanceledExplains(t *testing.T) {
	t.Parallel()
	for first, open := range map[payment.Sighting]string{payment.SeenReady: "", payment.SeenPartlyCanceled: "unexpected_state"} {
		t.Run(string(first), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			p := f.inState("a", payment.Paid)
			f.inDoubt(payment.UnexpectedState, p.PaymentKey, p.OrderID, seen(p, first, 14000))
			part := payment.GatewayCancel{TransactionKey: "t", Amount: 1000}
			st := settlement(p, payment.Paid, payment.ByRecovery)
			st.Observation = seen(p, payment.SeenPartlyCanceled, 14000, part)
			p = f.settle(st)
			if got := f.stillOpen(); got != open {
				t.Errorf("open: %q, want %q", got, open)
			}
			st = settlement(p, payment.Canceled, payment.ByRecovery)
			st.Observation = seen(p, payment.SeenCanceled, 0, part, payment.GatewayCancel{TransactionKey: "u", Amount: 14000})
			f.settle(st)
			if got := f.stillOpen(); got != "" {
				t.Errorf("open after everything went back: %q", got)
			}
		})
	}
}

// TestSettleClosesIncidents: those whose cause is gone, and the evidence of none is overwritten (trap 25).
func TestSettleClosesIncidents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		to     payment.Status
		o      payment.Sighting
		remain string
	}{
		{payment.Paid, payment.SeenDone, "dead_notice"},
		{payment.Failed, payment.SeenExpired, "dead_notice orphan_approval"},
		{payment.Failed, payment.SeenNotFound, "cancel_failed dead_notice orphan_approval unexpected_state"},
		{payment.Failed, payment.SeenCanceled, "dead_notice"},
		{payment.AwaitingDeposit, payment.SeenWaiting, "cancel_failed dead_notice mismatch orphan_approval"},
	} {
		t.Run(string(tt.to)+" "+string(tt.o), func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			p := f.reserved("a")
			for _, k := range payment.IncidentKinds() {
				f.openIncident(k, p)
			}
			st := settlement(p, tt.to, payment.ByRecovery)
			st.Observation = seen(p, tt.o, 0)
			if tt.o == payment.SeenDone {
				st.Observation.Balance = p.Amount
			}
			f.settle(st)
			if got := ask[string](f, "SELECT string_agg(kind, ' ' ORDER BY kind) FROM incidents WHERE resolved_at IS NULL"); got != tt.remain {
				t.Errorf("open: %s, want %s", got, tt.remain)
			}
			if n := f.count("incidents WHERE evidence->>'reason' <> 'first' OR resolved_at IS NOT NULL AND resolved_by <> 'recovery'"); n != 0 {
				t.Errorf("%d incidents lost their evidence", n)
			}
		})
	}
}

// TestTrap34: a notice that cannot be written never keeps a payment from being settled; the sweep adds it later.
func TestTrap34_PoisonedNotice(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, poison, heal string
		errors             int
	}{
		{"check (23)", "ALTER TABLE notices ADD CONSTRAINT poison CHECK (kind = '') NOT VALID", "ALTER TABLE notices DROP CONSTRAINT poison", 4},
		{"no column (42)", "ALTER TABLE notices RENAME COLUMN event TO other", "ALTER TABLE notices RENAME COLUMN other TO event", 5},
		{"data (22)", `CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM 1/0; RETURN NEW; END $$;
			CREATE TRIGGER poison BEFORE INSERT ON notices FOR EACH ROW EXECUTE FUNCTION poison()`, "DROP TRIGGER poison ON notices", 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.exec(tt.poison)
			hot := f.settle(settlement(f.reserved("hot"), payment.Paid, payment.ByConfirm))
			general := f.settle(settlement(f.reserved("general"), payment.Paid, payment.ByRecovery))
			st := settlement(f.reserved("failed"), payment.Failed, payment.ByRecovery)
			st.Told = true
			failed := f.settle(st)
			f.settle(settlement(f.reserved("nobody was told"), payment.Failed, payment.ByRecovery))
			canceled := f.settle(settlement(general, payment.Canceled, payment.ByRecovery))
			if hot.Status != payment.Paid || failed.Status != payment.Failed || canceled.Status != payment.Canceled {
				t.Errorf("%s %s %s", hot.Status, failed.Status, canceled.Status)
			}
			if n := strings.Count(f.log.String(), "level=ERROR"); n != tt.errors {
				t.Errorf("%d errors logged:\n%s", n, f.log)
			}
			if _, err := f.SweepMissingNotices(t.Context()); err == nil {
				t.Error("the sweep hides that notices cannot be written")
			}
			f.exec(tt.heal)
			if n, err := f.SweepMissingNotices(t.Context()); n != 6 || err != nil {
				t.Errorf("added %d, %v: %s", n, err, f.noticed())
			}
			if n, err := f.SweepMissingNotices(t.Context()); n != 0 || err != nil {
				t.Errorf("added %d again, %v", n, err)
			}
			if got := ask[string](f, `SELECT string_agg(kind, ' ' ORDER BY payment_id, kind) FROM notices`); got != "payment.paid receipt payment.canceled payment.paid receipt payment.failed" {
				t.Errorf("notices %s", got)
			}
		})
	}
}

// TestSettleForeignText: what Toss sends is stored whatever bytes it holds.
func TestSettleForeignText(t *testing.T) {
	t.Parallel()
	f := setup(t)
	bad := "a\x00b\xff한\u0000"
	for _, to := range []payment.Status{payment.Paid, payment.Failed, payment.AwaitingDeposit} {
		for _, by := range []payment.Actor{payment.ByConfirm, payment.ByRecovery} {
			p := f.reserved(string(to) + string(by))
			st := settlement(p, to, by)
			o := &st.Observation
			o.Method, o.ReceiptURL, o.FailureCode, o.FailureMessage, o.TraceID = bad, bad, bad, bad, bad
			o.Cancels = []payment.GatewayCancel{{TransactionKey: strings.Repeat(bad, 1000), Reason: bad, Amount: 1, At: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}}
			if a := o.VirtualAccount; a != nil {
				a.BankCode, a.AccountNumber, a.CustomerName = bad, bad, bad
			}
			if fail := st.Action.Failure; fail != nil {
				fail.Message, fail.GatewayCode = bad, bad
			}
			f.settle(st)
		}
	}
	if f.log.Len() > 0 {
		t.Errorf("logged %s", f.log)
	}
}

// TestSettleRace: many bring the same news at once, one move comes of it.
func TestSettleRace(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i := range 100 {
		p := f.reserved(fmt.Sprint(i))
		var won atomic.Int32
		var all sync.WaitGroup
		for _, by := range []payment.Actor{payment.ByConfirm, payment.ByRecovery, payment.ByWebhook} {
			all.Go(func() {
				to := payment.Paid
				if by == payment.ByWebhook {
					to = payment.Failed
				}
				_, e, err := f.Settle(t.Context(), settlement(p, to, by))
				if e == payment.Applied {
					won.Add(1)
				} else if e != payment.NoRows {
					t.Errorf("%s, %v", e, err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d moves", won.Load())
		}
	}
	if n := f.count("payment_events"); n != 100 {
		t.Errorf("%d events", n)
	}
	if n := f.count("payments WHERE status = 'PAID'"); f.count("notices WHERE kind = 'payment.paid'") != n || f.count("notices WHERE kind = 'receipt'") != n {
		t.Errorf("%d PAID: %s", n, f.noticed())
	}
}

// TestFinalStatesAreFinal: no sequence of settles, however stale, leaves a final state but by the table.
func TestFinalStatesAreFinal(t *testing.T) {
	t.Parallel()
	f := setup(t)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		known := []payment.Payment{f.reserved(fmt.Sprint(n))}
		is := payment.Pending
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			read := rapid.SampledFrom(known).Draw(r, "read")
			to := rapid.SampledFrom(payment.Statuses()).Draw(r, "to")
			st := settlement(read, to, rapid.SampledFrom(payment.Actors()).Draw(r, "by"))
			p, e, err := f.Settle(t.Context(), st)
			if err != nil {
				r.Fatal(err)
			}
			if e != payment.Applied {
				continue
			}
			if !slices.Contains(payment.SettleFrom(to), is) {
				r.Fatalf("%s became %s", is, to)
			}
			is = p.Status
			known = append(known, p)
		}
		events, err := f.Events(t.Context(), known[0].ID)
		if err != nil {
			r.Fatal(err)
		}
		at := payment.Pending
		for _, e := range events {
			if e.From != at {
				r.Fatalf("history %+v", events)
			}
			at = e.To
		}
		if row := f.row(known[0].PaymentKey); row.Status != is || at != is {
			r.Fatalf("row %s, history %s, want %s", row.Status, at, is)
		}
	})
}
