package approval_test

import (
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// resolve claims anOrder as recovery does and resolves it.
func (r *rig) resolve() (approval.Resolution, error) {
	r.Helper()
	end := time.Now().Add(r.set.Lease)
	p, ending, err := r.store.ClaimOne(r.Context(), "key-1", r.set.Lease)
	if ending != payment.Applied {
		r.Fatalf("claim: %s, %v", ending, err)
	}
	return r.service.Resolve(r.Context(), p, payment.ByRecovery, end)
}

func (r *rig) resolved(want approval.Did) approval.Resolution {
	r.Helper()
	res, err := r.resolve()
	if err != nil || res.Did != want {
		r.Errorf("did %q, %v; want %q", res.Did, err, want)
	}
	return res
}

func aged(d time.Duration) func(*payment.Payment) {
	return func(p *payment.Payment) {
		for _, at := range []*time.Time{&p.ReservedAt, &p.FirstSentAt, &p.LastSentAt} {
			*at = at.Add(-d)
		}
	}
}

func neverSent(p *payment.Payment) {
	p.MaybeSent, p.FirstSentAt, p.LastSentAt = false, time.Time{}, time.Time{}
}

// TestResolve is every verb of the table as recovery carries it out.
func TestResolve(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		row      func() payment.Payment
		truth    payment.Sighting
		lookups  []try
		did      approval.Did
		status   payment.Status
		code     payment.FailureCode
		incident payment.IncidentKind
		due      time.Duration // 0: never
	}{
		{name: "settle: paid", row: func() payment.Payment { return row(payment.Pending) }, truth: payment.SeenDone,
			did: approval.DidPaid, status: payment.Paid, due: 2 * time.Minute},
		{name: "settle: aborted", row: func() payment.Payment { return row(payment.Pending) }, truth: payment.SeenAborted,
			did: approval.DidFailed, status: payment.Failed, code: payment.FailDeclined},
		{name: "settle: virtual account", row: func() payment.Payment { return row(payment.Pending) }, truth: payment.SeenWaiting,
			did: approval.DidAwaiting, status: payment.AwaitingDeposit, due: 10 * time.Minute},
		{name: "settle: window over", row: func() payment.Payment { return row(payment.Pending, aged(time.Hour)) },
			did: approval.DidFailed, status: payment.Failed, code: payment.FailExpired, due: 30 * time.Minute},
		{name: "settle: never sent in time", row: func() payment.Payment { return row(payment.Pending, neverSent, aged(10*time.Minute)) },
			did: approval.DidFailed, status: payment.Failed, code: payment.FailExpired},
		{name: "settle: canceled", row: func() payment.Payment { return row(payment.Paid, leasedFor(-time.Second)) }, truth: payment.SeenCanceled,
			did: approval.DidCanceled, status: payment.Canceled},
		{name: "wait: window open", row: func() payment.Payment { return row(payment.Pending, aged(5*time.Minute)) },
			did: approval.DidWait, status: payment.Pending, due: 15 * time.Second},
		{name: "wait: no answer", row: func() payment.Payment { return row(payment.Pending) }, lookups: []try{timeout},
			did: approval.DidWait, status: payment.Pending, due: 15 * time.Second},
		{name: "wait: no answer for long", row: func() payment.Payment { return row(payment.Pending, aged(time.Hour)) }, lookups: []try{timeout},
			did: approval.DidIncident, status: payment.Pending, incident: payment.UnknownOutcome, due: 15 * time.Second},
		{name: "park: differs", row: func() payment.Payment { return row(payment.Pending, func(p *payment.Payment) { p.Amount = 1 }) },
			truth: payment.SeenDone, did: approval.DidIncident, status: payment.Pending, incident: payment.Mismatch},
		{name: "stay: as known", row: func() payment.Payment { return row(payment.Paid, leasedFor(-time.Second)) }, truth: payment.SeenDone,
			did: approval.DidWait, status: payment.Paid},
		{name: "stay: contradiction", row: func() payment.Payment { return row(payment.Paid, leasedFor(-time.Second)) }, truth: payment.SeenAborted,
			did: approval.DidIncident, status: payment.Paid, incident: payment.UnexpectedState},
		{name: "stay: second look unanswered is repeated", row: func() payment.Payment {
			return row(payment.Failed, failedWith(payment.FailExpired), leasedFor(-time.Second))
		}, lookups: []try{timeout}, did: approval.DidWait, status: payment.Failed, code: payment.FailExpired, due: 15 * time.Second},
		{name: "stay: second look finds nothing", row: func() payment.Payment {
			return row(payment.Failed, failedWith(payment.FailExpired), leasedFor(-time.Second))
		}, did: approval.DidWait, status: payment.Failed, code: payment.FailExpired},
		{name: "give back", row: func() payment.Payment { return row(payment.Failed, failedWith(payment.FailExpired)) },
			truth: payment.SeenDone, did: approval.DidGiveBack, status: payment.Failed, code: payment.FailExpired},
		{name: "cancel deposit: of a failed payment", row: func() payment.Payment { return row(payment.Failed, failedWith(payment.FailDeclined)) },
			truth: payment.SeenWaiting, did: approval.DidGiveBack, status: payment.Failed, code: payment.FailDeclined},
		{name: "cancel deposit: overdue", row: func() payment.Payment {
			return row(payment.AwaitingDeposit, func(p *payment.Payment) {
				p.VirtualAccount = &payment.VirtualAccount{DueDate: time.Now().Add(-25 * time.Hour)}
			})
		}, truth: payment.SeenWaiting, did: approval.DidGiveBack, status: payment.Failed, code: payment.FailExpired},
	}
	for _, test := range tests {
		inBubble(t, test.name, func(r *rig) {
			r.store.Put(test.row())
			if test.truth != "" {
				r.gateway.Set(seen(test.truth))
			}
			r.gateway.Lookups(test.lookups...)
			r.resolved(test.did)
			p := r.ends(test.status, test.code)
			r.wantSends(0)
			if test.incident != "" {
				r.wantIncident(test.incident)
			} else if got := r.store.Incidents(); len(got) > 0 {
				r.Errorf("incidents %v", got)
			}
			var due time.Duration
			if !p.DueAt.IsZero() {
				due = time.Until(p.DueAt)
			}
			if due != test.due {
				r.Errorf("due in %v, want %v", due, test.due)
			}
		})
	}
}

// TestResolveSettle is every ending of recovery's settle.
func TestResolveSettle(t *testing.T) {
	t.Parallel()
	pending := func(r *rig) { r.store.Put(row(payment.Pending)); r.gateway.Set(done()) }
	inBubble(t, "0 rows: somebody was faster", func(r *rig) {
		pending(r)
		r.store.Script(approvaltest.Settle, approvaltest.Fault{NoRows: true, Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) { p.Status, p.Leased = payment.Paid, false })
		}})
		r.resolved(approval.DidPaid)
	})
	inBubble(t, "0 rows: failed meanwhile, given back", func(r *rig) {
		pending(r)
		r.store.Script(approvaltest.Settle, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(p *payment.Payment) {
				p.Status, p.Leased, p.Failure = payment.Failed, false, &payment.Failure{Code: payment.FailExpired}
			})
		}})
		r.resolved(approval.DidFailed)
		if o, _ := r.gateway.Truth("key-1"); !o.Returned() {
			r.Errorf("the gateway holds %+v", o)
		}
	})
	for name, f := range map[string]approvaltest.Fault{"not applied": approvaltest.Not(), "maybe applied": approvaltest.Maybe()} {
		inBubble(t, name, func(r *rig) {
			pending(r)
			r.store.Script(approvaltest.Settle, f)
			if res, err := r.resolve(); err == nil || res.Did != approval.DidError {
				r.Errorf("did %q, %v", res.Did, err)
			}
			if !r.store.Row("key-1").Leased {
				r.Error("the lease is gone")
			}
		})
	}
	inBubble(t, "0 rows and not readable has an error with a text", func(r *rig) {
		pending(r)
		r.store.Script(approvaltest.Settle, approvaltest.Fault{NoRows: true})
		r.store.Script(approvaltest.Find, approvaltest.Fault{NoRows: true})
		_, err := r.resolve()
		if err == nil || err.Error() != "read a payment that moved: 0 rows" {
			r.Errorf("error %v", err)
		}
	})
}

// TestResolveSend sends for the first time or again.
func TestResolveSend(t *testing.T) {
	t.Parallel()
	kept := func(r *rig) { r.store.Put(row(payment.Pending, neverSent)) }
	asked := func(change ...func(*payment.Payment)) func(*rig) {
		return func(r *rig) { r.store.Put(row(payment.Pending, change...)) }
	}
	spent := func(p *payment.Payment) { p.KeySpent = true }
	tests := []struct {
		name     string
		put      func(*rig)
		confirms []try
		begin    approvaltest.Fault
		did      approval.Did
		status   payment.Status
		code     payment.FailureCode
		keys     []string
		unsent   bool
	}{
		{name: "first", put: kept, did: approval.DidSend, status: payment.Paid, keys: []string{"key-1:1"}},
		{name: "first, declined", put: kept, confirms: []try{declined}, did: approval.DidSend, status: payment.Failed,
			code: payment.FailDeclined, keys: []string{"key-1:1"}},
		{name: "first, refused", put: kept, confirms: []try{refusedBy(payment.RefusedByBreaker)}, did: approval.DidWait,
			status: payment.Pending, unsent: true},
		{name: "first, busy waits", put: kept, confirms: []try{refusedBy(payment.RefusedByLimiter)}, did: approval.DidWait,
			status: payment.Pending, unsent: true},
		{name: "first, misconfigured", put: kept, confirms: []try{{Kind: payment.KindMisconfigured}}, did: approval.DidFailed,
			status: payment.Failed, code: payment.FailMisconfigured, keys: []string{"key-1:1"}, unsent: true},
		{name: "first, unheard", put: kept, confirms: []try{timeout}, did: approval.DidSend, status: payment.Pending, keys: []string{"key-1:1"}},
		{name: "again, same key", put: asked(), did: approval.DidSend, status: payment.Paid, keys: []string{"key-1:1"}},
		{name: "again, next key", put: asked(spent), did: approval.DidSend, status: payment.Paid, keys: []string{"key-1:2"}},
		{name: "again, a refusal settles nothing", put: asked(), confirms: []try{refusedBy(payment.RefusedByBreaker)},
			did: approval.DidSend, status: payment.Pending},
		{name: "again, a decline settles nothing", put: asked(), confirms: []try{declined}, did: approval.DidSend,
			status: payment.Pending, keys: []string{"key-1:1"}},
		{name: "again, misconfigured settles nothing", put: asked(), confirms: []try{{Kind: payment.KindMisconfigured}},
			did: approval.DidSend, status: payment.Pending, keys: []string{"key-1:1"}},
		{name: "again, 429 settles nothing", put: asked(), confirms: []try{{Kind: payment.KindThrottled}},
			did: approval.DidSend, status: payment.Pending, keys: []string{"key-1:1"}},
		{name: "0 rows: too old, the lease goes back", put: asked(), begin: approvaltest.Fault{NoRows: true}, did: approval.DidWait,
			status: payment.Pending},
	}
	for _, test := range tests {
		inBubble(t, test.name, func(r *rig) {
			test.put(r)
			r.gateway.Confirms(test.confirms...)
			r.store.Script(approvaltest.BeginSend, test.begin)
			r.resolved(test.did)
			p := r.ends(test.status, test.code)
			var keys []string
			for _, s := range r.gateway.Sends() {
				keys = append(keys, s.Key)
				if !s.Background {
					r.Error("not marked as recovery's own")
				}
			}
			if len(keys) != len(test.keys) || len(keys) > 0 && keys[0] != test.keys[0] {
				r.Errorf("keys %v, want %v", keys, test.keys)
			}
			if p.MaybeSent == test.unsent {
				r.Errorf("maybe sent: %v", p.MaybeSent)
			}
		})
	}
	inBubble(t, "the age is checked again by the statement", func(r *rig) {
		r.store.Put(row(payment.Pending, aged(119*time.Second)))
		r.store.Script(approvaltest.BeginSend, approvaltest.Fault{Delay: 2 * time.Second})
		r.resolved(approval.DidWait)
		r.ends(payment.Pending, "")
		r.wantSends(0)
	})
	inBubble(t, "the fence is lost", func(r *rig) {
		asked()(r)
		r.store.Script(approvaltest.BeginSend, approvaltest.Fault{Before: func() {
			r.store.Change("key-1", func(*payment.Payment) {})
		}})
		r.resolved(approval.DidWait)
		r.wantSends(0)
		if !r.store.Row("key-1").Leased {
			r.Error("the new holder's lease is gone")
		}
	})
	for name, f := range map[string]approvaltest.Fault{"not stored": approvaltest.Not(), "maybe stored": approvaltest.Lost()} {
		inBubble(t, name, func(r *rig) {
			asked()(r)
			r.store.Script(approvaltest.BeginSend, f)
			if res, err := r.resolve(); err == nil || res.Did != approval.DidError {
				r.Errorf("did %q, %v", res.Did, err)
			}
			r.wantSends(0)
		})
	}
	inBubble(t, "what comes differs", func(r *rig) {
		kept(r)
		r.gateway.Confirms(try{See: func(o *payment.Observation) { o.Total = 1 }})
		r.resolved(approval.DidIncident)
		r.wantIncident(payment.Mismatch)
		r.ends(payment.Pending, "")
	})
	inBubble(t, "nothing past the lease", func(r *rig) {
		kept(r)
		r.store.Script(approvaltest.BeginSend, approvaltest.Fault{Delay: 41 * time.Second})
		r.gateway.Confirms(try{Before: func() { time.Sleep(2 * time.Second) }})
		_, _ = r.resolve()
		r.wantSends(0)
	})
}

// TestPlan looks and decides without a write.
func TestPlan(t *testing.T) {
	t.Parallel()
	inBubble(t, "never sent needs no lookup", func(r *rig) {
		p := r.store.Put(row(payment.Pending, neverSent))
		if a, _ := r.service.Plan(r.Context(), p); a.Do != payment.Send {
			r.Errorf("plan %+v", a)
		}
		if n := len(r.gateway.LookupCalls()); n != 0 {
			r.Errorf("%d lookups", n)
		}
	})
	inBubble(t, "looks patiently", func(r *rig) {
		p := r.store.Put(row(payment.Pending))
		r.gateway.Set(done())
		if a, o := r.service.Plan(r.Context(), p); a.To != payment.Paid || o.Sighting != payment.SeenDone {
			r.Errorf("plan %+v", a)
		}
		if got := r.gateway.LookupCalls(); len(got) != 1 || got[0] != approval.Patient {
			r.Errorf("lookups %v", got)
		}
		if got := r.store.Row("key-1"); got.Version != p.Version {
			r.Error("the row was written")
		}
	})
}
