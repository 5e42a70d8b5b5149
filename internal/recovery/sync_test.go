package recovery

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

func (b *bench) sync(q payment.SyncRequest) payment.SyncReport {
	b.Helper()
	report, err := b.recovery.Sync(b.Context(), q)
	if err != nil {
		b.Errorf("sync: %v", err)
	}
	return report
}

func (b *bench) wantReport(got, want payment.SyncReport) {
	b.Helper()
	order := cmpopts.SortSlices(func(x, y payment.SyncResult) int {
		return strings.Compare(x.OrderID+string(x.Before)+x.Reason, y.OrderID+string(y.Before)+y.Reason)
	})
	if diff := cmp.Diff(want, got, order, cmpopts.EquateEmpty()); diff != "" {
		b.Errorf("report (-want +got):\n%s", diff)
	}
}

func moved(order string, before, after payment.Status, reason string) payment.SyncResult {
	return payment.SyncResult{OrderID: order, Before: before, After: after, Reason: reason}
}

// mixed stores one payment of every kind.
func (b *bench) mixed() {
	b.leftover(1, payment.Pending, time.Hour)
	b.approve(1)
	b.leftover(2, payment.Pending, time.Hour)
	b.leftover(3, payment.Pending, time.Minute)
	b.store.Change("key-3", func(p *payment.Payment) { p.Leased, p.DueAt = true, time.Now().Add(time.Minute) })
	b.leftover(4, payment.Paid, time.Hour)
	b.approve(4)
	b.leftover(5, payment.Paid, time.Hour)
	b.gateway.Set(payment.Observation{Sighting: payment.SeenAborted, PaymentKey: "key-5", OrderID: "order-5", Total: 1000, Currency: payment.KRW})
}

// TestSyncNamed looks at the named orders in whatever state.
func TestSyncNamed(t *testing.T) {
	t.Parallel()
	all := []string{"order-1", "order-2", "order-3", "order-4", "order-5", "order-6"}
	inBubble(t, "every state", func(b *bench) {
		b.mixed()
		b.wantReport(b.sync(payment.SyncRequest{OrderIDs: all}), payment.SyncReport{
			Checked: 6, Paid: 2, Failed: 1, Waiting: 1, Incidents: 1, Errors: 1,
			Results: []payment.SyncResult{
				moved("order-1", payment.Pending, payment.Paid, "approved"),
				moved("order-2", payment.Pending, payment.Failed, "the gateway's window is over"),
				moved("order-3", payment.Pending, payment.Pending, payment.SyncInProgress),
				moved("order-4", payment.Paid, payment.Paid, "as known"),
				moved("order-5", payment.Paid, payment.Paid, "contradicts PAID"),
				{OrderID: "order-6", Reason: "not_found"},
			},
		})
		b.wantRow(1, payment.Paid)
		b.wantRow(2, payment.Failed)
		b.wantRow(3, payment.Pending)
	})
	inBubble(t, "dry run writes nothing", func(b *bench) {
		b.mixed()
		before := b.store.Rows()
		b.wantReport(b.sync(payment.SyncRequest{OrderIDs: all[:5], DryRun: true}), payment.SyncReport{
			Checked: 5, Paid: 2, Failed: 1, Waiting: 1, Incidents: 1,
			Results: []payment.SyncResult{
				moved("order-1", payment.Pending, payment.Paid, "settle: approved"),
				moved("order-2", payment.Pending, payment.Failed, "settle: the gateway's window is over"),
				moved("order-3", payment.Pending, payment.Pending, payment.SyncInProgress),
				moved("order-4", payment.Paid, payment.Paid, "stay: as known"),
				moved("order-5", payment.Paid, payment.Paid, "stay: contradicts PAID"),
			},
		})
		if diff := cmp.Diff(before, b.store.Rows(), cmpopts.IgnoreFields(payment.Payment{}, "ReadAt")); diff != "" {
			b.Errorf("rows (-before +after):\n%s", diff)
		}
		if len(b.store.Incidents()) > 0 || len(b.gateway.Sends()) > 0 || len(b.gateway.CancelCalls()) > 0 {
			b.Error("the dry run did something")
		}
	})
	inBubble(t, "a lease that ran out is nobody's, also in a dry run", func(b *bench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		b.store.Change("key-1", func(p *payment.Payment) { p.Leased, p.DueAt = true, time.Now().Add(-time.Second) })
		if got := b.sync(payment.SyncRequest{OrderIDs: all[:1], DryRun: true}).Results[0].Reason; got != "settle: approved" {
			b.Errorf("reason %q", got)
		}
	})
	inBubble(t, "one that is sent now counts by how it ended", func(b *bench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.wantReport(b.sync(payment.SyncRequest{OrderIDs: all[:1]}), payment.SyncReport{
			Checked: 1, Paid: 1, Results: []payment.SyncResult{moved("order-1", payment.Pending, payment.Paid, "approved")},
		})
		if sends := b.gateway.Sends(); len(sends) != 1 {
			b.Errorf("sends %v", sends)
		}
	})
	attempts := func(b *bench) {
		b.attempt(1, 10, payment.Failed) // approved late, after the buyer tried again
		b.approveAttempt(1, 10)
		b.attempt(1, 11, payment.Failed) // approved and canceled by hand at the gateway
		b.gateway.Set(payment.Observation{Sighting: payment.SeenCanceled, PaymentKey: "key-11", OrderID: "order-1", Total: 1000,
			Currency: payment.KRW, Cancels: []payment.GatewayCancel{{TransactionKey: "t", Amount: 1000}}})
		b.attempt(1, 12, payment.Pending)
		b.approveAttempt(1, 12)
		b.leftover(2, payment.Pending, time.Hour)
		b.approve(2)
	}
	inBubble(t, "every attempt of an order", func(b *bench) {
		attempts(b)
		b.wantReport(b.sync(payment.SyncRequest{OrderIDs: all[:2]}), payment.SyncReport{
			Checked: 4, Paid: 2, Failed: 2,
			Results: []payment.SyncResult{
				moved("order-1", payment.Failed, payment.Failed, "give back: approved after it failed here"),
				moved("order-1", payment.Failed, payment.Failed, "as known"),
				moved("order-1", payment.Pending, payment.Paid, "approved"),
				moved("order-2", payment.Pending, payment.Paid, "approved"),
			},
		})
		if o, _ := b.gateway.Truth("key-10"); !o.Returned() {
			b.Errorf("the late approval was not given back: %+v", o)
		}
		if n := b.store.DoneCancelsOf("key-11"); n != 1 {
			b.Errorf("%d cancels recorded", n)
		}
	})
	inBubble(t, "limit counts attempts", func(b *bench) {
		attempts(b)
		if got := b.sync(payment.SyncRequest{OrderIDs: all[:2], Limit: 2, DryRun: true}); got.Checked != 2 {
			b.Errorf("checked %d", got.Checked)
		}
	})
	inBubble(t, "a read that fails later keeps the report of what was done", func(b *bench) {
		attempts(b)
		b.store.Script(approvaltest.Find, approvaltest.None(), approvaltest.None(), approvaltest.Not())
		got, err := b.recovery.Sync(b.Context(), payment.SyncRequest{OrderIDs: []string{"order-1", "order-0", "order-2"}})
		if err == nil {
			b.Error("no error")
		}
		if got.Checked != 4 || got.Paid != 1 || got.Failed != 2 || got.Errors != 1 || len(got.Results) != 4 {
			b.Errorf("report %+v", got)
		}
		b.wantRow(12, payment.Paid)
		b.wantRow(2, payment.Pending)
	})
	inBubble(t, "canceled at the gateway", func(b *bench) {
		b.leftover(1, payment.Paid, time.Hour)
		b.gateway.Set(payment.Observation{Sighting: payment.SeenCanceled, PaymentKey: "key-1", OrderID: "order-1", Total: 1000, Currency: payment.KRW})
		b.wantReport(b.sync(payment.SyncRequest{OrderIDs: all[:1]}), payment.SyncReport{
			Checked: 1, Canceled: 1, Results: []payment.SyncResult{moved("order-1", payment.Paid, payment.Canceled, "fully canceled")},
		})
	})
	inBubble(t, "database errors and panics are one row each", func(b *bench) {
		for n := 1; n <= 3; n++ {
			b.leftover(n, payment.Pending, time.Minute)
			b.approve(n)
		}
		b.store.Script(approvaltest.ClaimOne, approvaltest.Not(), approvaltest.Fault{Panic: "bug"})
		got := b.sync(payment.SyncRequest{OrderIDs: all[:3]})
		if got.Checked != 3 || got.Errors != 2 || got.Paid != 1 {
			b.Errorf("report %+v", got)
		}
	})
	inBubble(t, "an order named twice", func(b *bench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		if got := b.sync(payment.SyncRequest{OrderIDs: []string{"order-1", "order-1"}}); got.Checked != 1 || got.Paid != 1 {
			b.Errorf("report %+v", got)
		}
	})
	inBubble(t, "the read fails", func(b *bench) {
		b.store.Script(approvaltest.Find, approvaltest.Not())
		if _, err := b.recovery.Sync(b.Context(), payment.SyncRequest{OrderIDs: all}); err == nil {
			b.Error("no error")
		}
	})
	inBubble(t, "limit", func(b *bench) {
		b.mixed()
		if got := b.sync(payment.SyncRequest{OrderIDs: all, Limit: 2}); got.Checked != 2 {
			b.Errorf("checked %d", got.Checked)
		}
	})
}

// TestSyncUnfinished pages through what is unfinished.
func TestSyncUnfinished(t *testing.T) {
	t.Parallel()
	inBubble(t, "all pages, four at a time", func(b *bench) {
		for n := range 250 {
			b.leftover(n, payment.Pending, time.Hour)
			b.approve(n)
		}
		b.resolver.before = func(context.Context, payment.Payment) { time.Sleep(time.Second) }
		got := b.sync(payment.SyncRequest{})
		if got.Checked != 250 || got.Paid != 250 {
			b.Errorf("checked %d, paid %d", got.Checked, got.Paid)
		}
		if n := b.store.Calls(approvaltest.List); n != 4 || b.resolver.most != 4 {
			b.Errorf("%d pages, %d at once", n, b.resolver.most)
		}
	})
	inBubble(t, "limit across pages", func(b *bench) {
		for n := range 250 {
			b.leftover(n, payment.Pending, time.Hour)
			b.approve(n)
		}
		if got := b.sync(payment.SyncRequest{Limit: 130}); got.Checked != 130 {
			b.Errorf("checked %d", got.Checked)
		}
	})
	inBubble(t, "older than, finished left out", func(b *bench) {
		b.mixed()
		if got := b.sync(payment.SyncRequest{OlderThan: 30 * time.Minute}); got.Checked != 2 {
			b.Errorf("report %+v", got)
		}
	})
	inBubble(t, "leased rows are in progress and count as waiting", func(b *bench) {
		b.mixed()
		if got := b.sync(payment.SyncRequest{}); got.Checked != 3 || got.Waiting != 1 || got.Errors != 0 {
			b.Errorf("report %+v", got)
		}
	})
	inBubble(t, "a list that fails later keeps the report of what was done", func(b *bench) {
		for n := range 150 {
			b.leftover(n, payment.Pending, time.Hour)
			b.approve(n)
		}
		b.store.Script(approvaltest.List, approvaltest.None(), approvaltest.Not())
		got, err := b.recovery.Sync(b.Context(), payment.SyncRequest{})
		if err == nil || got.Checked != 100 || got.Paid != 100 {
			b.Errorf("checked %d, paid %d, %v", got.Checked, got.Paid, err)
		}
	})
	inBubble(t, "the list fails", func(b *bench) {
		b.store.Script(approvaltest.List, approvaltest.Not())
		if _, err := b.recovery.Sync(b.Context(), payment.SyncRequest{}); err == nil {
			b.Error("no error")
		}
	})
	inBubble(t, "a client that hangs up stops after what is in hand", func(b *bench) {
		for n := range 50 {
			b.leftover(n, payment.Pending, time.Hour)
			b.approve(n)
		}
		b.resolver.before = func(context.Context, payment.Payment) { time.Sleep(time.Second) }
		ctx, hangUp := context.WithTimeout(b.Context(), 1500*time.Millisecond)
		defer hangUp()
		_, _ = b.recovery.Sync(ctx, payment.SyncRequest{})
		for _, p := range b.store.Rows() {
			if p.Leased {
				b.Errorf("%s is still leased", p.PaymentKey)
			}
		}
		if n := len(b.gateway.LookupCalls()); n == 0 || n > 12 {
			b.Errorf("%d looked at", n)
		}
	})
}

// TestStopSyncs: a sync that runs ends after the payments at hand and tells of them; one that begins later tells of none.
func TestStopSyncs(t *testing.T) {
	t.Parallel()
	inBubble(t, "stopped", func(b *bench) {
		for n := range 20 {
			b.leftover(n, payment.Pending, time.Hour)
			b.approve(n)
		}
		b.resolver.before = func(context.Context, payment.Payment) { time.Sleep(10 * time.Second) }
		time.AfterFunc(15*time.Second, b.recovery.StopSyncs)
		begun := time.Now()
		r := b.sync(payment.SyncRequest{})
		if took := time.Since(begun); r.Checked != 8 || r.Paid != 8 || len(r.Results) != 8 || took != 20*time.Second {
			b.Errorf("after %s: %+v", took, r)
		}
		b.recovery.StopSyncs()
		if r := b.sync(payment.SyncRequest{}); r.Checked != 0 {
			b.Errorf("after the stop: %+v", r)
		}
	})
}
