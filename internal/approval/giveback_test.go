package approval_test

import (
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// TestGiveBack is the cancel of an approval that may not stand.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	late := func(r *rig) {
		r.store.Put(row(payment.Failed, failedWith(payment.FailExpired)))
		r.gateway.Set(done())
	}
	returned := func(r *rig) bool { o, _ := r.gateway.Truth("key-1"); return o.Returned() }
	lastKey := func(r *rig) string { c := r.gateway.CancelCalls(); return c[len(c)-1].Key }
	inBubble(t, "done", func(r *rig) {
		late(r)
		r.resolved(approval.DidGiveBack)
		if p := r.ends(payment.Failed, payment.FailExpired); p.HoldsOrder || !returned(r) {
			r.Errorf("holds order %v, returned %v", p.HoldsOrder, returned(r))
		}
		c := r.gateway.CancelCalls()[0]
		if id := payment.CancelMark(c.Reason); id == "" || c.Key != payment.CancelKey(id, 1) || c.Balance != 15000 || !c.Full {
			r.Errorf("cancel %+v", c)
		}
	})
	inBubble(t, "the balance alone", func(r *rig) {
		late(r)
		o := seen(payment.SeenPartlyCanceled)
		o.Balance = 4000
		r.gateway.Set(o)
		r.resolved(approval.DidGiveBack)
		if c := r.gateway.CancelCalls()[0]; c.Amount != 4000 || c.Balance != 4000 || c.Full {
			r.Errorf("cancel %+v", c)
		}
	})
	inBubble(t, "the approval of another order, on an operator's word alone", func(r *rig) {
		late(r)
		o := done()
		o.OrderID = "order-of-others"
		r.gateway.Set(o)
		r.resolved(approval.DidIncident)
		if r.cancelsSent() != 0 {
			r.Fatal("the money of others was given back")
		}
		r.store.GiveBackAsked("key-1", 15000)
		r.resolved(approval.DidGiveBack)
		if p := r.ends(payment.Failed, payment.FailExpired); p.HoldsOrder || !returned(r) || r.states() != "15000 done" {
			r.Errorf("holds order %v, returned %v, %s", p.HoldsOrder, returned(r), r.states())
		}
	})
	inBubble(t, "unheard but done: the lookup shows it", func(r *rig) {
		late(r)
		r.gateway.Cancels(try{Kind: payment.KindTimeout, Works: true})
		r.resolved(approval.DidGiveBack)
		r.ends(payment.Failed, payment.FailExpired)
	})
	inBubble(t, "unheard and open: held, the same key again", func(r *rig) {
		late(r)
		r.gateway.Cancels(timeout)
		r.resolved(approval.DidWait)
		if p := r.ends(payment.Failed, payment.FailExpired); !p.HoldsOrder || p.DueAt.IsZero() {
			r.Errorf("holds order %v, due %v", p.HoldsOrder, p.DueAt)
		}
		first := lastKey(r)
		r.resolved(approval.DidGiveBack)
		if lastKey(r) != first {
			r.Errorf("keys %q and %q", first, lastKey(r))
		}
	})
	inBubble(t, "fault: the next key of the same cancel", func(r *rig) {
		late(r)
		r.gateway.Cancels(fault)
		r.resolved(approval.DidWait)
		r.resolved(approval.DidGiveBack)
		if id := payment.CancelMark(r.gateway.CancelCalls()[0].Reason); lastKey(r) != payment.CancelKey(id, 2) {
			r.Errorf("key %q", lastKey(r))
		}
	})
	inBubble(t, "refused: incident, the order stays held", func(r *rig) {
		late(r)
		r.gateway.Cancels(try{Kind: payment.KindDeclined, Code: "NOT_CANCELABLE_PAYMENT"})
		r.resolved(approval.DidIncident)
		r.wantIncident(payment.CancelFailed)
		if p := r.ends(payment.Failed, payment.FailExpired); !p.HoldsOrder || p.DueAt.IsZero() {
			r.Errorf("holds order %v, due %v", p.HoldsOrder, p.DueAt)
		}
	})
	inBubble(t, "refused: never sent again while the balance is the same", func(r *rig) {
		late(r)
		r.gateway.Cancels(try{Kind: payment.KindDeclined, Code: "NOT_CANCELABLE_PAYMENT"})
		r.resolved(approval.DidIncident)
		last := time.Duration(0)
		for looks := range 3 {
			r.store.Change("key-1", func(p *payment.Payment) { p.Looks = looks + 1 })
			r.resolved(approval.DidIncident)
			p := r.ends(payment.Failed, payment.FailExpired)
			if in := time.Until(p.DueAt); !p.HoldsOrder || in <= last {
				r.Errorf("holds order %v, due in %s after %s", p.HoldsOrder, in, last)
			} else {
				last = in
			}
		}
		r.wantIncident(payment.CancelFailed)
		if n := len(r.gateway.CancelCalls()); n != 1 {
			r.Errorf("%d cancels sent", n)
		}
		o := seen(payment.SeenPartlyCanceled)
		o.Balance = 4000
		r.gateway.Set(o)
		r.resolved(approval.DidGiveBack)
		if c := r.gateway.CancelCalls(); len(c) != 2 || c[1].Amount != 4000 || payment.CancelMark(c[1].Reason) == payment.CancelMark(c[0].Reason) {
			r.Errorf("cancels %+v", c)
		}
		if p := r.ends(payment.Failed, payment.FailExpired); p.HoldsOrder || len(r.store.Incidents()) != 0 {
			r.Errorf("holds order %v, incidents %v", p.HoldsOrder, r.store.Incidents())
		}
	})
	inBubble(t, "refused, then given back by hand", func(r *rig) {
		late(r)
		r.gateway.Cancels(try{Kind: payment.KindDeclined})
		r.resolved(approval.DidIncident)
		r.gateway.Set(seen(payment.SeenCanceled))
		r.resolved(approval.DidWait)
		if p := r.ends(payment.Failed, payment.FailExpired); p.HoldsOrder || !p.DueAt.IsZero() || len(r.store.Incidents()) != 0 {
			r.Errorf("holds order %v, due %s, incidents %v", p.HoldsOrder, p.DueAt, r.store.Incidents())
		}
	})
	inBubble(t, "refused although done is done", func(r *rig) {
		late(r)
		r.gateway.Cancels(try{Kind: payment.KindDeclined, Works: true})
		r.resolved(approval.DidGiveBack)
	})
	inBubble(t, "refused, but nobody can say what Toss holds", func(r *rig) {
		late(r)
		r.gateway.Cancels(try{Kind: payment.KindDeclined})
		r.gateway.Lookups(try{}, timeout)
		r.resolved(approval.DidWait)
		if got := r.store.Incidents(); len(got) != 0 {
			r.Errorf("incidents %v", got)
		}
	})
	inBubble(t, "key too old", func(r *rig) {
		late(r)
		r.gateway.Cancels(timeout)
		r.resolved(approval.DidWait)
		r.store.AgeCancels(15 * 24 * time.Hour)
		r.resolved(approval.DidIncident)
		r.resolved(approval.DidIncident)
		r.wantIncident(payment.CancelFailed)
		if n := len(r.gateway.CancelCalls()); n != 1 {
			r.Errorf("%d cancels", n)
		}
	})
	inBubble(t, "virtual account refused", func(r *rig) {
		r.store.Put(row(payment.Failed, failedWith(payment.FailDeclined)))
		r.gateway.Set(seen(payment.SeenWaiting))
		r.gateway.Cancels(try{Kind: payment.KindDeclined})
		r.resolved(approval.DidIncident)
		if c := r.gateway.CancelCalls()[0]; !c.Full {
			r.Errorf("cancel %+v", c)
		}
	})
	for name, change := range map[string]func(r *rig){
		"overdue virtual account, canceled": func(*rig) {},
		"overdue virtual account, ends by itself": func(r *rig) {
			r.gateway.Cancels(try{Kind: payment.KindDeclined, Before: func() { r.gateway.Set(seen(payment.SeenExpired)) }})
		},
	} {
		inBubble(t, name, func(r *rig) {
			r.store.Put(row(payment.AwaitingDeposit, func(p *payment.Payment) {
				p.VirtualAccount = &payment.VirtualAccount{DueDate: time.Now().Add(-25 * time.Hour)}
			}))
			r.gateway.Set(seen(payment.SeenWaiting))
			change(r)
			r.resolved(approval.DidGiveBack)
			if p := r.ends(payment.Failed, payment.FailExpired); p.HoldsOrder {
				r.Error("the order is held")
			}
		})
	}
	inBubble(t, "virtual account ends by itself", func(r *rig) {
		r.store.Put(row(payment.Failed, failedWith(payment.FailDeclined)))
		r.gateway.Set(seen(payment.SeenWaiting))
		r.gateway.Cancels(try{Kind: payment.KindDeclined, Before: func() { r.gateway.Set(seen(payment.SeenExpired)) }})
		r.resolved(approval.DidGiveBack)
		if p := r.ends(payment.Failed, payment.FailDeclined); p.HoldsOrder {
			r.Error("the order is held for ever")
		}
	})
	inBubble(t, "begin finds 0 rows: somebody else goes on", func(r *rig) {
		late(r)
		r.store.Script(approvaltest.BeginGiveBack, approvaltest.Fault{NoRows: true})
		r.resolved(approval.DidWait)
		if n := len(r.gateway.CancelCalls()); n != 0 {
			r.Errorf("%d cancels", n)
		}
	})
	inBubble(t, "end finds 0 rows: somebody else goes on", func(r *rig) {
		late(r)
		r.store.Script(approvaltest.EndGiveBack, approvaltest.Fault{NoRows: true})
		r.resolved(approval.DidWait)
	})
	for name, step := range map[string]approvaltest.Step{"begin": approvaltest.BeginGiveBack, "end": approvaltest.EndGiveBack} {
		inBubble(t, name+" not applied", func(r *rig) {
			late(r)
			r.store.Script(step, approvaltest.Not())
			if res, err := r.resolve(); err == nil || res.Did != approval.DidError {
				r.Errorf("did %q, %v", res.Did, err)
			}
		})
	}
}
