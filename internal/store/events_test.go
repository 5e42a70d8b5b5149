package store

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// TestEventsTellDecisions: what recovery decides leaves an event with its reason, not only what moves the payment.
func TestEventsTellDecisions(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ok := func(e payment.Ending, err error) {
		t.Helper()
		if e != payment.Applied || err != nil {
			t.Fatalf("%s, %v", e, err)
		}
	}
	release := func(p payment.Payment, kind payment.IncidentKind, reason string) {
		t.Helper()
		ok(f.Release(t.Context(), approval.Release{Payment: p, DueIn: -1, Incident: kind, Actor: payment.ByRecovery, Reason: reason}))
	}
	p := f.reserved("a")
	p, e, err := f.BeginSend(t.Context(), approval.BeginSend{Payment: p, Lease: lease, Actor: payment.ByRecovery, Reason: "open at the gateway"})
	applied(t, p, e, err)
	release(p, "", "no usable answer")
	release(f.row("pk_a"), payment.UnknownOutcome, "no usable answer")
	release(f.row("pk_a"), payment.UnknownOutcome, "no usable answer") // still open: nothing new
	f.settle(settlement(f.row("pk_a"), payment.Failed, payment.ByRecovery))
	giveBack := func(refused, done bool) {
		t.Helper()
		c, p, e, err := f.BeginGiveBack(t.Context(), approval.GiveBack{
			Payment: f.row("pk_a"), Amount: 15000, Reason: "approved late", Actor: payment.BySync, Lease: lease,
		})
		applied(t, p, e, err)
		end := approval.GiveBackEnd{Payment: p, Cancel: c, Refused: refused, Done: done, Actor: payment.BySync, Reason: "approved late"}
		if done {
			end.Observation = seen(p, payment.SeenCanceled, 0, payment.GatewayCancel{TransactionKey: "t", Amount: p.Amount, Reason: "by hand"})
		}
		p, e, err = f.EndGiveBack(t.Context(), end)
		applied(t, p, e, err)
	}
	giveBack(true, false)
	giveBack(true, false) // refused before: nothing is sent and nothing new is heard
	giveBack(false, true)
	got, err := f.Events(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	want := []payment.Event{
		{Version: 2, From: payment.Pending, To: payment.Pending, Actor: payment.ByRecovery, Reason: "send: open at the gateway"},
		{Version: 3, From: payment.Pending, To: payment.Pending, Actor: payment.ByRecovery, Reason: "incident unknown_outcome: no usable answer"},
		{Version: 4, From: payment.Pending, To: payment.Failed, Actor: payment.ByRecovery, Reason: "test"},
		{Version: 5, From: payment.Failed, To: payment.Failed, Actor: payment.BySync, Reason: "give back: approved late"},
		{Version: 6, From: payment.Failed, To: payment.Failed, Actor: payment.BySync, Reason: "give back refused: approved late"},
		{Version: 10, From: payment.Failed, To: payment.Failed, Actor: payment.BySync, Reason: "approved late"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(payment.Event{}, "At")); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
