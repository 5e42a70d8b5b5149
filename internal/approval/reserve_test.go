package approval_test

import (
	"testing"
	"testing/synctest"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// TestPeek is step 2: with the policy reject a refusal writes nothing and sends nothing.
func TestPeek(t *testing.T) {
	t.Parallel()
	refusal := &payment.Answer{Kind: payment.KindRefused, Refuser: payment.RefusedByBreaker, RetryAfter: 7 * time.Second}
	refused := func(e payment.Earlier) said {
		return said{Result: payment.ResultPGUnavailable, Code: payment.CodePGUnavailable, Earlier: e}
	}
	tests := []struct {
		name    string
		row     func() payment.Payment
		read    approvaltest.Fault
		refuser payment.Refuser
		want    said
	}{
		{name: "no row", want: refused(payment.EarlierNone)},
		{name: "bulkhead full", refuser: payment.RefusedByBulkhead,
			want: said{Result: payment.ResultBusy, Code: payment.CodeBusy, Earlier: payment.EarlierNone}},
		{name: "not read", read: approvaltest.Not(), want: refused(payment.EarlierUnknown)},
		{name: "paid", row: func() payment.Payment { return row(payment.Paid) }, want: replayed},
		{name: "declined", row: func() payment.Payment { return row(payment.Failed, failedWith(payment.FailDeclined)) },
			want: said{Result: payment.ResultDeclined, Code: payment.CodeDeclined, Status: payment.Failed, Replayed: true}},
		{name: "reopenable", row: func() payment.Payment { return row(payment.Failed, failedWith(payment.FailPGUnavailable)) },
			want: refused(payment.EarlierNone)},
		{name: "other order", row: func() payment.Payment {
			return row(payment.Paid, func(p *payment.Payment) { p.PaymentKey = "key-2" })
		}, want: held},
		{name: "leased", row: func() payment.Payment { return row(payment.Pending, leasedFor(time.Hour)) }, want: running.again()},
		{name: "nobody's, no answer", row: func() payment.Payment { return row(payment.Pending) }, want: unknown.again()},
	}
	for _, test := range tests {
		inBubble(t, test.name, func(r *rig) {
			answer := *refusal
			if test.refuser != "" {
				answer.Refuser = test.refuser
			}
			r.gateway.Refuse(&answer)
			r.gateway.Lookups(approvaltest.Try{Kind: payment.KindTimeout})
			r.store.Script(approvaltest.FindNow, test.read)
			if test.row != nil {
				r.store.Put(test.row())
			}
			r.want(r.confirm(anOrder()), test.want)
			r.drain()
			r.wantSends(0)
			if n := r.store.Calls(approvaltest.Reserve); n != 0 {
				t.Errorf("reserved %d times", n)
			}
		})
	}
	inBubble(t, "pending saves all the same", func(r *rig) {
		r.gateway.Refuse(refusal)
		r.gateway.Confirms(approvaltest.Try{Kind: payment.KindRefused, Refuser: payment.RefusedByBreaker})
		r.want(r.confirm(anOrder()), said{Result: payment.ResultPendingUnavailable, Status: payment.Pending})
		if p := r.ends(payment.Pending, ""); p.MaybeSent || !p.Told {
			r.Errorf("maybe sent %v, told %v; want false, true", p.MaybeSent, p.Told)
		}
	}, keepPending)
}

// TestReserve is step 3: every ending of the insert.
func TestReserve(t *testing.T) {
	t.Parallel()
	inBubble(t, "applied", func(r *rig) {
		r.want(r.confirm(anOrder()), approved)
		r.ends(payment.Paid, "")
		r.wantSends(1)
		if got := r.gateway.Sends()[0].Key; got != "key-1:1" {
			r.Errorf("key %q", got)
		}
	})
	inBubble(t, "not applied", func(r *rig) {
		r.store.Script(approvaltest.Reserve, approvaltest.Not())
		r.want(r.confirm(anOrder()), noDatabase)
		r.drain()
		r.wantSends(0)
	})
	inBubble(t, "maybe applied, and it was", func(r *rig) {
		r.store.Script(approvaltest.Reserve, approvaltest.Lost())
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
		r.wantSends(0)
		if p := r.store.Row("key-1"); !p.Told {
			r.Error("the 202 is not remembered: a failure would have no notice")
		}
	})
	inBubble(t, "maybe applied, and it was not", func(r *rig) {
		r.store.Script(approvaltest.Reserve, approvaltest.Maybe())
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
		r.wantSends(0)
	})
	inBubble(t, "the holder let go, then free", func(r *rig) {
		r.store.Script(approvaltest.Reserve, approvaltest.Fault{NoRows: true})
		r.want(r.confirm(anOrder()), approved)
		r.ends(payment.Paid, "")
	})
	inBubble(t, "4 rounds are enough", func(r *rig) {
		r.store.Always(approvaltest.Reserve, approvaltest.Fault{NoRows: true})
		r.want(r.confirm(anOrder()), noDatabase)
		if n := r.store.Calls(approvaltest.Reserve); n != 4 {
			r.Errorf("%d rounds, want 4", n)
		}
	})
	inBubble(t, "in the way but not readable", func(r *rig) {
		r.store.Put(row(payment.Paid))
		r.store.Script(approvaltest.Find, approvaltest.Not())
		r.want(r.confirm(anOrder()), noDatabase)
	})
	inBubble(t, "key with other data", func(r *rig) {
		r.store.Put(row(payment.Paid, func(p *payment.Payment) { p.Amount = 1 }))
		r.want(r.confirm(anOrder()), held)
		r.wantSends(0)
	})
	inBubble(t, "order held by another key", func(r *rig) {
		r.store.Put(row(payment.Pending, func(p *payment.Payment) { p.PaymentKey = "key-2" }))
		r.want(r.confirm(anOrder()), held)
		r.wantSends(0)
	})
	inBubble(t, "other data while the first is under way", func(r *rig) {
		r.gateway.Confirms(approvaltest.Try{Latency: 3 * time.Second})
		go r.confirm(anOrder())
		synctest.Wait()
		other := anOrder()
		other.Amount = 1
		r.want(r.confirm(other), held)
		r.ends(payment.Paid, "")
	})
}

// TestReplay answers duplicates of finished payments from the row.
func TestReplay(t *testing.T) {
	t.Parallel()
	failed := func(code payment.FailureCode, result payment.Result, c payment.Code) (func() payment.Payment, said) {
		return func() payment.Payment { return row(payment.Failed, failedWith(code)) },
			said{Result: result, Code: c, Status: payment.Failed, Replayed: true}
	}
	type test struct {
		name string
		row  func() payment.Payment
		want said
	}
	tests := []test{
		{"paid", func() payment.Payment { return row(payment.Paid) }, replayed},
		{"waiting for the deposit", func() payment.Payment { return row(payment.AwaitingDeposit) },
			said{Result: payment.ResultAwaitingDeposit, Status: payment.AwaitingDeposit, Replayed: true}},
		{"canceled", func() payment.Payment { return row(payment.Canceled) }, said{Result: payment.ResultPaymentCanceled,
			Code: payment.CodePaymentCanceled, Status: payment.Canceled, Replayed: true}},
	}
	for code, answer := range map[payment.FailureCode]struct {
		payment.Result
		payment.Code
	}{
		payment.FailDeclined:          {payment.ResultDeclined, payment.CodeDeclined},
		payment.FailExpired:           {payment.ResultExpired, payment.CodeExpired},
		payment.FailGivenBack:         {payment.ResultDBFailed, payment.CodeDBFailed},
		payment.FailCanceledAtGateway: {payment.ResultPaymentCanceled, payment.CodePaymentCanceled},
		payment.FailMismatch:          {payment.ResultPaymentCanceled, payment.CodePaymentCanceled},
		payment.FailAbandoned:         {payment.ResultPaymentCanceled, payment.CodePaymentCanceled},
	} {
		put, want := failed(code, answer.Result, answer.Code)
		tests = append(tests, test{string(code), put, want})
	}
	for _, test := range tests {
		inBubble(t, test.name, func(r *rig) {
			r.store.Put(test.row())
			r.want(r.confirm(anOrder()), test.want)
			r.drain()
			r.wantSends(0)
		})
	}
}

// TestReopen is the one edge out of FAILED.
func TestReopen(t *testing.T) {
	t.Parallel()
	reopenable := func(r *rig) { r.store.Put(row(payment.Failed, failedWith(payment.FailPGUnavailable))) }
	inBubble(t, "sends under the next key", func(r *rig) {
		reopenable(r)
		r.want(r.confirm(anOrder()), approved)
		r.ends(payment.Paid, "")
		if got := r.gateway.Sends()[0].Key; got != "key-1:2" {
			r.Errorf("key %q", got)
		}
	})
	inBubble(t, "another holds the order", func(r *rig) {
		reopenable(r)
		r.store.Put(row(payment.Paid, func(p *payment.Payment) { p.PaymentKey = "key-2" }))
		r.want(r.confirm(anOrder()), held)
		r.wantSends(0)
	})
	inBubble(t, "the fence is lost to another that is approved", func(r *rig) {
		reopenable(r)
		r.store.Script(approvaltest.Reopen, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Failure, p.HoldsOrder = payment.Paid, nil, true })
		}})
		r.want(r.confirm(anOrder()), replayed)
		r.wantSends(0)
	})
	inBubble(t, "two instances at once send once", func(r *rig) {
		reopenable(r)
		r.gateway.Confirms(approvaltest.Try{Latency: time.Second})
		got := make(chan said, 2)
		second := r.another()
		go func() { got <- r.confirm(anOrder()) }()
		go func() { got <- of(second.Confirm(r.Context(), anOrder())) }()
		a, b := <-got, <-got
		if a.Replayed {
			a, b = b, a
		}
		r.want(a, approved)
		r.want(b, replayed)
		r.wantSends(1)
	})
	inBubble(t, "not applied", func(r *rig) {
		reopenable(r)
		r.store.Script(approvaltest.Reopen, approvaltest.Not())
		r.want(r.confirm(anOrder()), noDatabase)
		r.wantSends(0)
	})
	inBubble(t, "maybe applied", func(r *rig) {
		reopenable(r)
		r.store.Script(approvaltest.Reopen, approvaltest.Lost())
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
		r.wantSends(0)
	})
	inBubble(t, "maybe sent is not reopened", func(r *rig) {
		r.store.Put(row(payment.Failed, failedWith(payment.FailPGUnavailable), func(p *payment.Payment) { p.MaybeSent = true }))
		r.want(r.confirm(anOrder()), unavailable.again())
		r.wantSends(0)
	})
}

// TestMemberLimit spends calls on reservations alone.
func TestMemberLimit(t *testing.T) {
	t.Parallel()
	limit := func(s *approval.Settings) { s.MemberCalls, s.MemberPeriod = 2, time.Minute }
	order := func(key string) payment.Order {
		o := anOrder()
		o.PaymentKey, o.OrderID, o.MemberID = "key-"+key, "order-"+key, "member"
		return o
	}
	limited := said{Result: payment.ResultMemberRateLimited, Code: payment.CodeMemberRateLimited}
	inBubble(t, "taken, given back for duplicates, 429", func(r *rig) {
		r.want(r.confirm(order("1")), approved)
		for range 5 {
			r.want(r.confirm(order("1")), replayed)
		}
		r.want(r.confirm(order("2")), approved)
		r.want(r.confirm(order("1")), replayed)
		a, err := r.service.Confirm(r.Context(), order("3"))
		r.want(of(a, err), limited)
		if a.RetryAfter != 30*time.Second {
			r.Errorf("retry after %v, want 30s", a.RetryAfter)
		}
		time.Sleep(30 * time.Second)
		r.want(r.confirm(order("3")), approved)
	}, limit)
	inBubble(t, "reopening counts", func(r *rig) {
		r.want(r.confirm(order("2")), approved)
		r.want(r.confirm(order("3")), approved)
		p := row(payment.Failed, failedWith(payment.FailBusy))
		r.store.Put(p)
		o := anOrder()
		o.MemberID = "member"
		r.want(r.confirm(o), limited)
	}, limit)
	inBubble(t, "the deciding read fails", func(r *rig) {
		r.want(r.confirm(order("1")), approved)
		r.want(r.confirm(order("2")), approved)
		r.store.Script(approvaltest.Find, approvaltest.Not())
		r.want(r.confirm(order("1")), noDatabase)
	}, limit)
	inBubble(t, "a duplicate that must wait", func(r *rig) {
		r.want(r.confirm(order("2")), approved)
		r.want(r.confirm(order("3")), approved)
		r.store.Put(row(payment.Pending, leasedFor(3*time.Second)))
		r.gateway.Set(done())
		o := anOrder()
		o.MemberID = "member"
		r.want(r.confirm(o), approved.again())
	}, limit)
}
