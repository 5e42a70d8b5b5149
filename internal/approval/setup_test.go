package approval_test

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// rig is one service on a fake store and a fake gateway.
type rig struct {
	*testing.T
	store   *approvaltest.Store
	gateway *approvaltest.Gateway
	set     approval.Settings
	service *approval.Service
}

// inBubble runs a named test in virtual time.
func inBubble(t *testing.T, name string, test func(r *rig), change ...func(*approval.Settings)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(setup(t, change...)) })
	})
}

func setup(t *testing.T, change ...func(*approval.Settings)) *rig {
	r := &rig{T: t, store: approvaltest.NewStore(), gateway: approvaltest.NewGateway(), set: approval.Settings{
		AnswerWithin: 10 * time.Second, CommitWithin: 8 * time.Second, Deadline: 40 * time.Second, Lease: 42 * time.Second,
		CancelTimeout: 15 * time.Second,
		Rules: payment.Rules{
			SendWithin: 9 * time.Minute, ResendWithin: 2 * time.Minute, Window: 10 * time.Minute, Margin: 5 * time.Minute,
			UnknownIncidentAfter: time.Hour, VerifyAfter: 30 * time.Minute,
		},
	}}
	for _, f := range change {
		f(&r.set)
	}
	r.service = r.another()
	return r
}

// another is a second instance on the same store and gateway.
func (r *rig) another() *approval.Service {
	r.Helper()
	s, err := approval.New(approval.Deps{
		Store: r.store, Gateway: r.gateway, Settings: r.set, Logger: slog.New(slog.NewTextHandler(r.Output(), nil)),
	})
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func keepPending(s *approval.Settings)     { s.KeepPending = true }
func cancelOnFailure(s *approval.Settings) { s.CancelOnCommitFailure = true }

func anOrder() payment.Order {
	return payment.Order{PaymentKey: "key-1", OrderID: "order-1", Amount: 15000, Currency: payment.KRW}
}

// done is Toss's approval of anOrder.
func done() payment.Observation {
	return payment.Observation{
		Sighting: payment.SeenDone, PaymentKey: "key-1", OrderID: "order-1", Total: 15000, Balance: 15000, Currency: payment.KRW,
	}
}

func seen(s payment.Sighting) payment.Observation {
	o := done()
	o.Sighting = s
	if s == payment.SeenCanceled {
		o.Balance = 0
	}
	return o
}

// row is a stored payment of anOrder.
func row(status payment.Status, change ...func(*payment.Payment)) payment.Payment {
	o, now := anOrder(), time.Now()
	p := payment.Payment{
		PaymentKey: o.PaymentKey, OrderID: o.OrderID, Amount: o.Amount, Currency: o.Currency, Status: status,
		HoldsOrder: status != payment.Failed, MaybeSent: true, ReservedAt: now, FirstSentAt: now, LastSentAt: now,
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

func failedWith(code payment.FailureCode) func(*payment.Payment) {
	return func(p *payment.Payment) { p.Failure = &payment.Failure{Code: code}; p.MaybeSent = !p.Failure.Reopens() }
}

func leasedFor(d time.Duration) func(*payment.Payment) {
	return func(p *payment.Payment) { p.Leased, p.DueAt = true, time.Now().Add(d) }
}

// said is what of an answer tests compare.
type said struct {
	Result   payment.Result
	Code     payment.Code
	Status   payment.Status
	Earlier  payment.Earlier
	Replayed bool
}

func of(a approval.Answer, err error) said {
	s := said{Result: a.Result, Status: a.Payment.Status, Replayed: a.Replayed}
	if e, ok := errors.AsType[*payment.Error](err); ok {
		s.Code, s.Earlier = e.Code, e.Earlier
	} else if err != nil {
		s.Code = "not a payment.Error"
	}
	return s
}

func (r *rig) confirm(o payment.Order) said { return of(r.service.Confirm(r.Context(), o)) }

// drain waits for the detached work.
func (r *rig) drain() {
	r.Helper()
	if err := r.service.Drain(r.Context()); err != nil {
		r.Fatalf("drain: %v", err)
	}
}

func (r *rig) want(got, want said) {
	r.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.Errorf("answer (-want +got):\n%s", diff)
	}
}

// ends checks the row of anOrder, and that its lease was given back.
func (r *rig) ends(status payment.Status, code payment.FailureCode) payment.Payment {
	r.Helper()
	r.drain()
	p := r.store.Row("key-1")
	var got payment.FailureCode
	if p.Failure != nil {
		got = p.Failure.Code
	}
	if p.Status != status || got != code {
		r.Errorf("row = %s %q, want %s %q", p.Status, got, status, code)
	}
	if p.Leased {
		r.Errorf("the row is still leased")
	}
	return p
}

func (r *rig) wantSends(n int) {
	r.Helper()
	if got := len(r.gateway.Sends()); got != n {
		r.Errorf("%d tries reached the gateway, want %d: %v", got, n, r.gateway.Sends())
	}
}

func (r *rig) wantIncident(kind payment.IncidentKind) {
	r.Helper()
	want := []approvaltest.Incident{{PaymentKey: "key-1", Kind: kind}}
	if diff := cmp.Diff(want, r.store.Incidents()); diff != "" {
		r.Errorf("incidents (-want +got):\n%s", diff)
	}
}

// hasNotice reports whether the outbox has the notice for anOrder.
func (r *rig) hasNotice(kind payment.NoticeKind) bool {
	for _, n := range r.store.Notices() {
		if n.PaymentKey == "key-1" && n.Kind == kind {
			return true
		}
	}
	return false
}

var (
	approved    = said{Result: payment.ResultApproved, Status: payment.Paid}
	replayed    = said{Result: payment.ResultReplayed, Status: payment.Paid, Replayed: true}
	unknown     = said{Result: payment.ResultPendingUnknown, Status: payment.Pending}
	running     = said{Result: payment.ResultPendingRunning, Status: payment.Pending}
	held        = said{Result: payment.ResultOrderConflict, Code: payment.CodeOrderConflict}
	unavailable = said{Result: payment.ResultPGUnavailable, Code: payment.CodePGUnavailable, Status: payment.Failed}
	noDatabase  = said{Result: payment.ResultDBUnavailable, Code: payment.CodeDBUnavailable, Earlier: payment.EarlierUnknown}
)

func (s said) again() said { s.Replayed = true; return s }
