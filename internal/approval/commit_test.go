package approval_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// TestCommit is step 7: every ending of the settle.
func TestCommit(t *testing.T) {
	t.Parallel()
	inBubble(t, "0 rows: paid by a webhook is no failure (trap 35)", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Fault{NoRows: true, Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Leased, p.DueAt = payment.Paid, false, time.Time{} })
		}})
		r.want(r.confirm(anOrder()), approved)
		if n := len(r.gateway.CancelCalls()); n != 0 {
			r.Errorf("%d cancels", n)
		}
	}, cancelOnFailure)
	inBubble(t, "0 rows: canceled meanwhile", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Leased = payment.Canceled, false })
		}})
		r.want(r.confirm(anOrder()), said{Result: payment.ResultPaymentCanceled, Code: payment.CodePaymentCanceled, Status: payment.Canceled})
	}, cancelOnFailure)
	failMeanwhile := func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) {
				p.Status, p.Leased, p.HoldsOrder, p.Failure = payment.Failed, false, false, &payment.Failure{Code: payment.FailExpired}
			})
		}})
	}
	expired := said{Result: payment.ResultExpired, Code: payment.CodeExpired, Status: payment.Failed}
	inBubble(t, "0 rows: failed meanwhile, the approval is given back", func(r *rig) {
		failMeanwhile(r)
		r.want(r.confirm(anOrder()), expired)
		if o, _ := r.gateway.Truth("key-1"); !o.Returned() {
			r.Errorf("the gateway holds %+v", o)
		}
		if p := r.ends(payment.Failed, payment.FailExpired); p.HoldsOrder {
			r.Error("the order is still held")
		}
	})
	inBubble(t, "0 rows: failed meanwhile, the cancel is unheard", func(r *rig) {
		failMeanwhile(r)
		r.gateway.Cancels(timeout)
		r.want(r.confirm(anOrder()), expired)
		if p := r.ends(payment.Failed, payment.FailExpired); !p.HoldsOrder || p.DueAt.IsZero() {
			r.Errorf("holds order %v, due %v", p.HoldsOrder, p.DueAt)
		}
	})
	inBubble(t, "0 rows: failed and in somebody's hands is left to him", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) {
				p.Status, p.Failure, p.HoldsOrder = payment.Failed, &payment.Failure{Code: payment.FailExpired}, false
			})
		}})
		r.want(r.confirm(anOrder()), expired)
		if n := len(r.gateway.CancelCalls()); n != 0 {
			r.Errorf("%d cancels", n)
		}
	})
	inBubble(t, "0 rows and not readable", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Fault{NoRows: true})
		r.store.Always(approvaltest.Find, approvaltest.Not())
		start := time.Now()
		r.want(r.confirm(anOrder()), unknown)
		if took := time.Since(start); took < r.set.CommitWithin-2*time.Second {
			r.Errorf("gave up after %s", took)
		}
	}, cancelOnFailure)
	inBubble(t, "0 rows: failed meanwhile, and the give back cannot be begun", func(r *rig) {
		failMeanwhile(r)
		r.store.Always(approvaltest.BeginGiveBack, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
	})
	inBubble(t, "0 rows: failed meanwhile, the give back begins at the second try", func(r *rig) {
		failMeanwhile(r)
		r.store.Script(approvaltest.BeginGiveBack, approvaltest.Not())
		r.want(r.confirm(anOrder()), expired)
		if o, _ := r.gateway.Truth("key-1"); !o.Returned() {
			r.Errorf("the gateway holds %+v", o)
		}
	})
	inBubble(t, "not applied, then applied", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Not(), approvaltest.Not(), approvaltest.Not())
		r.want(r.confirm(anOrder()), approved)
		r.ends(payment.Paid, "")
	}, cancelOnFailure)
	inBubble(t, "not applied until COMMIT_WITHIN", func(r *rig) {
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		start := time.Now()
		r.want(r.confirm(anOrder()), unknown)
		if took := time.Since(start); took > r.set.CommitWithin || took < r.set.CommitWithin-time.Second {
			r.Errorf("tried for %v", took)
		}
		r.drain()
		if !r.store.Row("key-1").Told {
			r.Error("the 202 is not remembered")
		}
	})
	inBubble(t, "never past the lease", func(r *rig) {
		r.gateway.Confirms(try{Latency: 38 * time.Second})
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		start := time.Now()
		r.want(r.confirm(anOrder()), running)
		r.drain()
		if took := time.Since(start); took > r.set.Lease {
			r.Errorf("tried until %v", took)
		}
	})
	inBubble(t, "acknowledgement lost, re-read says paid", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Lost())
		r.want(r.confirm(anOrder()), approved)
		if n := r.store.Calls(approvaltest.Settle); n != 1 {
			r.Errorf("%d settles", n)
		}
	}, cancelOnFailure)
	inBubble(t, "broken off, re-read says pending: again", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Maybe())
		r.want(r.confirm(anOrder()), approved)
		r.ends(payment.Paid, "")
	})
	inBubble(t, "a decline that is not written is a 202", func(r *rig) {
		r.gateway.Confirms(declined)
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
	})
	inBubble(t, "busy that is not written is a 202", func(r *rig) {
		r.gateway.Confirms(refusedBy(payment.RefusedByLimiter))
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		a, err := r.service.Confirm(r.Context(), anOrder())
		r.want(of(a, err), unknown)
	})
	inBubble(t, "session gone that is not written is a 202", func(r *rig) {
		r.gateway.Confirms(try{Kind: payment.KindSessionGone})
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
	})
}

// TestGiveUpLease is about the release of a doubt.
func TestGiveUpLease(t *testing.T) {
	t.Parallel()
	inBubble(t, "not applied: 202, and the lease runs out", func(r *rig) {
		r.gateway.Confirms(timeout)
		r.store.Script(approvaltest.Release, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
		if p := r.store.Row("key-1"); !p.Leased || !p.Told || !p.MaybeSent {
			r.Errorf("leased %v, told %v, maybe sent %v", p.Leased, p.Told, p.MaybeSent)
		}
	})
	inBubble(t, "0 rows: answered from the row", func(r *rig) {
		r.gateway.Confirms(timeout)
		r.store.Script(approvaltest.Release, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Leased = payment.Paid, false })
		}})
		r.want(r.confirm(anOrder()), approved)
	})
	inBubble(t, "0 rows and not readable", func(r *rig) {
		r.gateway.Confirms(timeout)
		r.store.Script(approvaltest.Release, approvaltest.Fault{NoRows: true})
		r.store.Script(approvaltest.Find, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
	})
}

// TestCancelOnCommitFailure is ON_COMMIT_FAILURE: one cancel, and only when the approval certainly is not recorded.
func TestCancelOnCommitFailure(t *testing.T) {
	t.Parallel()
	wantCancels := func(r *rig, n int) {
		r.Helper()
		if got := len(r.gateway.CancelCalls()); got != n {
			r.Errorf("%d cancels, want %d", got, n)
		}
	}
	givenBack := said{Result: payment.ResultDBFailed, Code: payment.CodeDBFailed, Status: payment.Failed}
	inBubble(t, "certainly not recorded: given back", func(r *rig) {
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), givenBack)
		r.drain()
		wantCancels(r, 1)
		c := r.gateway.CancelCalls()[0]
		id := payment.CancelMark(c.Reason)
		want := approval.CancelCall{PaymentKey: "key-1", Key: payment.CancelKey(id, 1), Reason: c.Reason, Amount: 15000,
			Balance: 15000, Currency: payment.KRW, Full: true, Tries: approval.OneTry}
		if diff := cmp.Diff(want, c); diff != "" || id == "" {
			r.Errorf("cancel (-want +got):\n%s", diff)
		}
	}, cancelOnFailure)
	inBubble(t, "given back and recorded", func(r *rig) {
		// The database comes back just after the last try.
		r.gateway.Cancels(try{Before: func() { r.store.Always(approvaltest.Settle, approvaltest.None()) }})
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), givenBack)
		r.ends(payment.Failed, payment.FailGivenBack)
		wantCancels(r, 1)
	}, cancelOnFailure)
	inBubble(t, "broken off but re-read as pending counts as not recorded", func(r *rig) {
		r.store.Always(approvaltest.Settle, approvaltest.Maybe())
		r.want(r.confirm(anOrder()), givenBack)
		wantCancels(r, 1)
	}, cancelOnFailure)
	withStatements := func(d time.Duration) func(*approval.Settings) {
		return func(s *approval.Settings) { s.StatementTimeout = d }
	}
	inBubble(t, "broken off a moment ago: it may still run at the server, so no cancel", func(r *rig) {
		r.store.Always(approvaltest.Settle, approvaltest.Maybe())
		r.want(r.confirm(anOrder()), unknown)
		wantCancels(r, 0)
	}, cancelOnFailure, withStatements(5*time.Second))
	inBubble(t, "broken off long ago and pending still: one cancel", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Maybe())
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), givenBack)
		wantCancels(r, 1)
	}, cancelOnFailure, withStatements(5*time.Second))
	inBubble(t, "broken off long ago and not readable: no cancel", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Maybe())
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.store.Always(approvaltest.Find, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
		wantCancels(r, 0)
	}, cancelOnFailure, withStatements(5*time.Second))
	inBubble(t, "what is left of a partly canceled approval", func(r *rig) {
		o := seen(payment.SeenPartlyCanceled)
		o.Balance = 5000
		r.gateway.Set(o)
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), givenBack)
	}, cancelOnFailure)
	for name, answer := range map[string]try{
		"the cancel is unheard": {Kind: payment.KindTimeout, Works: true}, "the cancel is refused": {Kind: payment.KindDeclined},
		"the cancel faults": fault, "the cancel leaves a balance": {See: func(o *payment.Observation) { o.Balance = 1 }},
	} {
		inBubble(t, name, func(r *rig) {
			r.gateway.Cancels(answer)
			r.store.Always(approvaltest.Settle, approvaltest.Not())
			r.want(r.confirm(anOrder()), unknown)
			r.drain()
			wantCancels(r, 1)
		}, cancelOnFailure)
	}
	inBubble(t, "lost acknowledgement, not readable: no cancel (trap 37)", func(r *rig) {
		r.store.Script(approvaltest.Settle, approvaltest.Lost())
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.store.Always(approvaltest.Find, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
		wantCancels(r, 0)
		if p := r.store.Row("key-1"); p.Status != payment.Paid {
			r.Errorf("row %s", p.Status)
		}
	}, cancelOnFailure)
	inBubble(t, "too little of the lease left: no cancel", func(r *rig) {
		r.gateway.Confirms(try{Latency: 20 * time.Second})
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), running)
		r.drain()
		wantCancels(r, 0)
	}, cancelOnFailure)
	inBubble(t, "hold: no cancel", func(r *rig) {
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
		wantCancels(r, 0)
	})
	inBubble(t, "a decline is nothing to give back", func(r *rig) {
		r.gateway.Confirms(declined)
		r.store.Always(approvaltest.Settle, approvaltest.Not())
		r.want(r.confirm(anOrder()), unknown)
		r.drain()
		wantCancels(r, 0)
	}, cancelOnFailure)
}
