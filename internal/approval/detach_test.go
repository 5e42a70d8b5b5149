package approval_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// TestDetached is step 4: nothing that the client does stops the work.
func TestDetached(t *testing.T) {
	t.Parallel()
	inBubble(t, "client hangs up after reserve", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 5 * time.Second})
		ctx, hangUp := context.WithCancel(r.Context())
		go func() { _, _ = r.service.Confirm(ctx, anOrder()) }()
		time.Sleep(time.Second)
		hangUp()
		synctest.Wait()
		r.ends(payment.Paid, "")
		r.wantSends(1)
	})
	inBubble(t, "202 in time, then paid", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 14 * time.Second})
		start := time.Now()
		r.want(r.confirm(anOrder()), running)
		if took := time.Since(start); took != r.set.AnswerWithin {
			r.Errorf("answered after %v", took)
		}
		r.ends(payment.Paid, "")
	})
	inBubble(t, "a 202 is stored while the work still runs", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 14 * time.Second})
		r.want(r.confirm(anOrder()), running)
		synctest.Wait()
		if p := r.store.Row("key-1"); !p.Told || p.Status != payment.Pending {
			r.Errorf("told %v while %s", p.Told, p.Status)
		}
		r.ends(payment.Paid, "")
	})
	inBubble(t, "202 counts from the headers", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 14 * time.Second})
		o, start := anOrder(), time.Now()
		o.ArrivedAt = start.Add(-4 * time.Second)
		r.want(r.confirm(o), running)
		if took := time.Since(start); took != 6*time.Second {
			r.Errorf("answered after %v", took)
		}
		r.drain()
	})
	inBubble(t, "202 in time, then declined with a notice", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 14 * time.Second, Kind: payment.KindDeclined, Code: "REJECT"})
		r.want(r.confirm(anOrder()), running)
		if p := r.ends(payment.Failed, payment.FailDeclined); !p.Told || !r.hasNotice(payment.NoticeFailed) {
			r.Errorf("told %v, notices %v", p.Told, r.store.Notices())
		}
	})
	inBubble(t, "202 while the decline commits, notice all the same", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 9 * time.Second, Kind: payment.KindDeclined})
		r.store.Script(approvaltest.Settle, approvaltest.Fault{Delay: 2 * time.Second})
		r.want(r.confirm(anOrder()), running)
		if p := r.ends(payment.Failed, payment.FailDeclined); !p.Told || !r.hasNotice(payment.NoticeFailed) {
			r.Errorf("told %v, notices %v", p.Told, r.store.Notices())
		}
	})
	inBubble(t, "a decline told at once has no notice", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Kind: payment.KindDeclined})
		r.confirm(anOrder())
		if p := r.ends(payment.Failed, payment.FailDeclined); p.Told || r.hasNotice(payment.NoticeFailed) {
			r.Errorf("told %v, notices %v", p.Told, r.store.Notices())
		}
	})
	inBubble(t, "a virtual account is a 202", func(r *rig) {
		r.gateway.Set(seen(payment.SeenWaiting))
		r.want(r.confirm(anOrder()), said{Result: payment.ResultAwaitingDeposit, Status: payment.AwaitingDeposit})
		if p := r.ends(payment.AwaitingDeposit, ""); !p.Told {
			r.Error("the 202 is not remembered: a missing deposit would have no notice")
		}
		if n := r.store.Calls(approvaltest.MarkTold); n != 0 {
			r.Errorf("%d statements of its own for what the settle carries", n)
		}
	})
	inBubble(t, "a hanging gateway ends with the deadline", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Hang: true})
		start := time.Now()
		r.want(r.confirm(anOrder()), running)
		r.drain()
		if took := time.Since(start); took > r.set.Lease {
			r.Errorf("worked for %v, past the lease", took)
		}
	})
	inBubble(t, "nothing is sent past the lease", func(r *rig) {
		r.store.Script(approvaltest.Reserve, approvaltest.Fault{Delay: 50 * time.Second})
		r.want(r.confirm(anOrder()), running)
		r.drain()
		r.wantSends(0)
	})
}

// TestPanics are contained: the flight lands, others are not blocked.
func TestPanics(t *testing.T) {
	t.Parallel()
	internal := said{Result: payment.ResultInternal, Code: payment.CodeInternal}
	inBubble(t, "in the gateway", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 0, Panic: "bug"})
		r.want(r.confirm(anOrder()), internal)
		other := anOrder()
		other.PaymentKey, other.OrderID = "key-2", "order-2"
		r.want(r.confirm(other), approved)
		r.drain()
		if p := r.store.Row("key-1"); p.Status != payment.Pending || !p.MaybeSent {
			r.Errorf("row %+v", p)
		}
	})
	inBubble(t, "in the store", func(r *rig) {
		r.store.Script(approvaltest.Reserve, approvaltest.Fault{Panic: errors.New("bug")})
		r.want(r.confirm(anOrder()), internal)
		r.want(r.confirm(anOrder()), approved)
		r.drain()
	})
	inBubble(t, "duplicates get it too", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Before: func() { time.Sleep(time.Second) }, Panic: "bug"})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				got := r.confirm(anOrder())
				got.Replayed = false
				r.want(got, internal)
			})
		}
		wg.Wait()
		r.drain()
	})
	inBubble(t, "after a 202, which is remembered", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Before: func() { time.Sleep(12 * time.Second) }, Panic: "bug"})
		r.want(r.confirm(anOrder()), running)
		r.drain()
		if !r.store.Row("key-1").Told {
			r.Error("told is lost")
		}
	})
	inBubble(t, "when remembering the 202", func(r *rig) {
		r.store.Script(approvaltest.Reserve, approvaltest.Lost())
		r.store.Script(approvaltest.MarkTold, approvaltest.Fault{Panic: "bug"})
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
	})
}

// TestDrain waits for what is under way, also while new work begins.
func TestDrain(t *testing.T) {
	t.Parallel()
	inBubble(t, "waits", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 20 * time.Second})
		go r.confirm(anOrder())
		synctest.Wait()
		r.drain()
		r.ends(payment.Paid, "")
	})
	inBubble(t, "gives up with its context", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 20 * time.Second})
		go r.confirm(anOrder())
		synctest.Wait()
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if err := r.service.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("drain: %v", err)
		}
		r.drain()
	})
	inBubble(t, "has no time and nothing to wait for", func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		cancel()
		for range 50 {
			if err := r.service.Drain(ctx); err != nil {
				r.Fatalf("drain: %v", err)
			}
		}
	})
	inBubble(t, "overlaps with new work", func(r *rig) {
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { r.confirm(anOrder()) })
			wg.Go(r.drain)
		}
		wg.Wait()
	})
	inBubble(t, "covers the view of another store", func(r *rig) {
		view := r.service.WithStore(r.store)
		r.gateway.Confirms(approvaltest.Try{Latency: 3 * time.Second})
		go func() { _, _ = view.Confirm(r.Context(), anOrder()) }()
		synctest.Wait()
		r.ends(payment.Paid, "")
	})
}
