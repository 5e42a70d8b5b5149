package approval_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

type try = approvaltest.Try

func refusedBy(by payment.Refuser) try {
	return try{Kind: payment.KindRefused, Refuser: by, RetryAfter: 3 * time.Second}
}

var (
	lost     = try{Kind: payment.KindReset, Works: true} // approved, and nobody heard
	reset    = try{Kind: payment.KindReset}
	fault    = try{Kind: payment.KindFault, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING"}
	noDial   = try{Kind: payment.KindNotConnected}
	timeout  = try{Kind: payment.KindTimeout}
	declined = try{Kind: payment.KindDeclined, Code: "REJECT_CARD_COMPANY", Message: "no"}
)

// TestOutcome is steps 5 and 6: what is heard decides the answer and the row.
func TestOutcome(t *testing.T) {
	t.Parallel()
	failed := func(result payment.Result, code payment.Code) said {
		return said{Result: result, Code: code, Status: payment.Failed}
	}
	no, busy := failed(payment.ResultDeclined, payment.CodeDeclined), failed(payment.ResultBusy, payment.CodeBusy)
	gone := failed(payment.ResultExpired, payment.CodeExpired)
	misconfigured := failed(payment.ResultMisconfigured, payment.CodeGatewayMisconfigured)
	kept := said{Result: payment.ResultPendingUnavailable, Status: payment.Pending}
	type truth = payment.Sighting
	tests := []struct {
		name     string
		confirms []try
		lookups  []try
		truth    truth
		want     said
		kept     *said // under ON_UNAVAILABLE=pending, if it differs
		code     payment.FailureCode
		looks    int
	}{
		{name: "declined", confirms: []try{declined}, want: no, code: payment.FailDeclined},
		{name: "not connected", confirms: []try{noDial, noDial}, want: unavailable, kept: &kept, code: payment.FailPGUnavailable},
		{name: "breaker", confirms: []try{refusedBy(payment.RefusedByBreaker)}, want: unavailable, kept: &kept, code: payment.FailPGUnavailable},
		{name: "limiter", confirms: []try{refusedBy(payment.RefusedByLimiter)}, want: busy, code: payment.FailBusy},
		{name: "bulkhead", confirms: []try{refusedBy(payment.RefusedByBulkhead)}, want: busy, code: payment.FailBusy},
		{name: "not connected, then limiter", confirms: []try{noDial, refusedBy(payment.RefusedByLimiter)}, want: unavailable, kept: &kept, code: payment.FailPGUnavailable},
		{name: "429 first", confirms: []try{{Kind: payment.KindThrottled}}, want: unavailable, kept: &kept, code: payment.FailPGUnavailable},
		{name: "misconfigured", confirms: []try{{Kind: payment.KindMisconfigured}}, want: misconfigured, code: payment.FailMisconfigured},
		{name: "rejected, open", confirms: []try{{Kind: payment.KindRejected}}, truth: payment.SeenReady, want: no, code: payment.FailDeclined, looks: 1},
		{name: "rejected, not there", confirms: []try{{Kind: payment.KindRejected}}, want: no, code: payment.FailDeclined, looks: 1},
		{name: "rejected, done", confirms: []try{{Kind: payment.KindRejected, Works: true}}, want: approved, looks: 1},
		{name: "rejected, not looked up", confirms: []try{{Kind: payment.KindRejected}}, lookups: []try{timeout}, want: unknown, looks: 1},
		{name: "session gone", confirms: []try{{Kind: payment.KindSessionGone}}, want: gone, code: payment.FailExpired, looks: 1},
		{name: "session gone, done", confirms: []try{{Kind: payment.KindSessionGone, Works: true}}, want: approved, looks: 1},
		{name: "ambiguous, done", confirms: []try{{Kind: payment.KindAmbiguous, Works: true}}, want: approved, looks: 1},
		{name: "ambiguous, open", confirms: []try{{Kind: payment.KindAmbiguous}}, want: unknown, looks: 1},
		{name: "processing", confirms: []try{{Kind: payment.KindProcessing}}, truth: payment.SeenInProgress, want: unknown, looks: 1},
		{name: "timeout, aborted", confirms: []try{timeout}, truth: payment.SeenAborted, want: no, code: payment.FailDeclined, looks: 1},
		{name: "timeout, expired", confirms: []try{timeout}, truth: payment.SeenExpired, want: gone, code: payment.FailExpired, looks: 1},
		{name: "timeout, not found", confirms: []try{timeout}, want: unknown, looks: 1},
		{name: "timeout, no answer", confirms: []try{timeout}, lookups: []try{timeout}, want: unknown, looks: 1},
		{name: "timeout, no token", confirms: []try{timeout}, lookups: []try{refusedBy(payment.RefusedByLimiter)}, want: unknown, looks: 1},
		{name: "panic", confirms: []try{{Kind: payment.KindPanic}}, want: unknown, looks: 1},
		{name: "approved unheard, then refused (trap 36)", confirms: []try{lost, noDial}, want: approved, looks: 1},
		{name: "approved unheard, then busy, no answer", confirms: []try{lost, refusedBy(payment.RefusedByLimiter)}, lookups: []try{timeout}, want: unknown, looks: 1},
		{name: "reset, then declined settles nothing", confirms: []try{reset, declined}, want: unknown, looks: 1},
		{name: "reset, then session gone settles nothing", confirms: []try{reset, {Kind: payment.KindSessionGone}}, want: unknown, looks: 1},
		{name: "reset, then 429", confirms: []try{reset, {Kind: payment.KindThrottled}}, want: unknown, looks: 1},
		{name: "not connected, then 429", confirms: []try{noDial, {Kind: payment.KindThrottled}}, want: unknown, looks: 1},
		{name: "not connected, then declined", confirms: []try{noDial, declined}, want: no, code: payment.FailDeclined},
		{name: "canceled at the gateway", truth: payment.SeenCanceled, code: payment.FailCanceledAtGateway,
			want: failed(payment.ResultPaymentCanceled, payment.CodePaymentCanceled)},
	}
	for _, test := range tests {
		for policy, change := range map[string]func(*approval.Settings){"reject": func(*approval.Settings) {}, "pending": keepPending} {
			inBubble(t, test.name+"/"+policy, func(r *rig) {
				want, code := test.want, test.code
				if policy == "pending" && test.kept != nil {
					want, code = *test.kept, ""
				}
				r.gateway.Retries = 1
				r.gateway.Confirms(test.confirms...)
				r.gateway.Lookups(test.lookups...)
				if test.truth != "" {
					r.gateway.Set(seen(test.truth))
				}
				r.want(r.confirm(anOrder()), want)
				p := r.ends(want.Status, code)
				if unsent := want.Code == payment.CodePGUnavailable || want.Code == payment.CodeBusy ||
					want.Code == payment.CodeGatewayMisconfigured || want == kept; p.MaybeSent == unsent {
					r.Errorf("maybe sent: %v", p.MaybeSent)
				}
				if want.Status == payment.Pending && (!p.Told || time.Until(p.DueAt) != approval.LookAgainIn) {
					r.Errorf("told %v, due in %v", p.Told, time.Until(p.DueAt))
				}
				if calls := r.gateway.LookupCalls(); len(calls) != test.looks || slices.Contains(calls, approval.Patient) {
					r.Errorf("lookups %v, want %d of one try", calls, test.looks)
				}
			}, change)
		}
	}
}

// TestThrottledKeyIsNotSentAgain: Toss may replay the 429 under its key for 15 days, so recovery sends the next one.
func TestThrottledKeyIsNotSentAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, "429, then sent by recovery", func(r *rig) {
		r.gateway.Confirms(try{Kind: payment.KindThrottled})
		r.want(r.confirm(anOrder()), said{Result: payment.ResultPendingUnavailable, Status: payment.Pending})
		if p := r.store.Row("key-1"); !p.KeySpent || p.MaybeSent {
			r.Errorf("key spent %v, maybe sent %v", p.KeySpent, p.MaybeSent)
		}
		time.Sleep(approval.LookAgainIn)
		r.resolved(approval.DidSend)
		calls := r.gateway.Sends()
		if last := calls[len(calls)-1].Key; last != payment.ConfirmKey("key-1", 2) {
			r.Errorf("recovery sent %s", last)
		}
	}, keepPending)
}

// TestRetryAfter of a refusal comes from who refused.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	inBubble(t, "breaker", func(r *rig) {
		r.gateway.Confirms(refusedBy(payment.RefusedByBreaker))
		a, err := r.service.Confirm(r.Context(), anOrder())
		r.want(of(a, err), unavailable)
		if e := err.(*payment.Error); a.RetryAfter != 3*time.Second || e.RetryAfter != 3*time.Second {
			r.Errorf("retry after %v, %v", a.RetryAfter, e.RetryAfter)
		}
	})
}

// TestDeclineSaysWhy passes Toss's own words on.
func TestDeclineSaysWhy(t *testing.T) {
	t.Parallel()
	inBubble(t, "first and replayed", func(r *rig) {
		r.gateway.Confirms(declined)
		for range 2 {
			_, err := r.service.Confirm(r.Context(), anOrder())
			e, ok := err.(*payment.Error)
			if !ok || e.GatewayCode != declined.Code || e.GatewayMessage != declined.Message {
				r.Errorf("error %+v", err)
			}
		}
	})
}

// TestMismatch parks what differs: no machine may decide it.
func TestMismatch(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*payment.Observation){
		"amount":   func(o *payment.Observation) { o.Total, o.Balance = 1, 1 },
		"order":    func(o *payment.Observation) { o.OrderID = "order-2" },
		"currency": func(o *payment.Observation) { o.Currency = "USD" },
		"balance":  func(o *payment.Observation) { o.Balance = 1 },
	} {
		inBubble(t, name, func(r *rig) {
			o := done()
			change(&o)
			r.gateway.Set(o)
			r.want(r.confirm(anOrder()), unknown)
			r.wantIncident(payment.Mismatch)
			if p := r.ends(payment.Pending, ""); !p.DueAt.IsZero() || !p.HoldsOrder {
				r.Errorf("due at %v, holds order %v", p.DueAt, p.HoldsOrder)
			}
		})
	}
	inBubble(t, "part of it canceled", func(r *rig) {
		o := seen(payment.SeenPartlyCanceled)
		o.Balance = 5000
		r.gateway.Set(o)
		r.want(r.confirm(anOrder()), approved)
		r.wantIncident(payment.UnexpectedState)
		if p := r.ends(payment.Paid, ""); p.CanceledAmount != 10000 {
			r.Errorf("canceled %d", p.CanceledAmount)
		}
	})
}

// TestKeyRule is the key rule between the tries of one sequence.
func TestKeyRule(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		confirms []try
		lookups  []try
		truth    payment.Sighting
		begin    approvaltest.Fault
		retries  int
		keys     []string
		want     said
		sends    int // n stored
		spent    bool
		attempts int
	}{
		{name: "nothing heard: same key", confirms: []try{reset}, keys: []string{"key-1:1", "key-1:1"}, want: approved, sends: 1, attempts: 2},
		{name: "not connected: same key", confirms: []try{noDial}, keys: []string{"key-1:1"}, want: approved, sends: 1, attempts: 1},
		{name: "error, open: next key", confirms: []try{fault}, truth: payment.SeenReady,
			keys: []string{"key-1:1", "key-1:2"}, want: approved, sends: 2, attempts: 2},
		{name: "error, not found: next key", confirms: []try{fault}, keys: []string{"key-1:1", "key-1:2"}, want: approved, sends: 2, attempts: 2},
		{name: "error, but done", confirms: []try{{Kind: payment.KindFault, Works: true}}, keys: []string{"key-1:1"}, want: approved, sends: 1, attempts: 1},
		{name: "error, no answer", confirms: []try{fault}, lookups: []try{timeout, timeout}, keys: []string{"key-1:1"},
			want: unknown, sends: 1, spent: true, attempts: 1},
		{name: "next key not stored", confirms: []try{fault}, begin: approvaltest.Not(), keys: []string{"key-1:1"},
			want: unknown, sends: 1, spent: true, attempts: 1},
		{name: "next key maybe stored", confirms: []try{fault}, begin: approvaltest.Maybe(), keys: []string{"key-1:1"},
			want: unknown, sends: 1, spent: true, attempts: 1},
		{name: "next key stored, then busy: unused", confirms: []try{fault, refusedBy(payment.RefusedByLimiter)}, keys: []string{"key-1:1"},
			want: unknown, sends: 2, attempts: 1},
		{name: "two errors", confirms: []try{fault, fault}, keys: []string{"key-1:1", "key-1:2"}, want: unknown, sends: 2, spent: true, attempts: 2},
		{name: "reset, then error", confirms: []try{reset, fault}, keys: []string{"key-1:1", "key-1:1"}, want: unknown, sends: 1, spent: true, attempts: 2},
		{name: "error, reset, again", retries: 2, confirms: []try{fault, reset}, keys: []string{"key-1:1", "key-1:2", "key-1:2"},
			want: approved, sends: 2, attempts: 3},
		{name: "key busy", confirms: []try{{Kind: payment.KindKeyBusy}}, keys: []string{"key-1:1"}, want: unknown, sends: 1, attempts: 1},
	}
	for _, test := range tests {
		inBubble(t, test.name, func(r *rig) {
			r.gateway.Retries = max(test.retries, 1)
			r.gateway.Confirms(test.confirms...)
			r.gateway.Lookups(test.lookups...)
			r.store.Script(approvaltest.BeginSend, test.begin)
			if test.truth != "" {
				r.gateway.Set(seen(test.truth))
			}
			a, err := r.service.Confirm(r.Context(), anOrder())
			r.want(of(a, err), test.want)
			p := r.ends(test.want.Status, "")
			var keys []string
			for _, s := range r.gateway.Sends() {
				keys = append(keys, s.Key)
			}
			if diff := cmp.Diff(test.keys, keys); diff != "" {
				r.Errorf("keys (-want +got):\n%s", diff)
			}
			if p.Sends != test.sends || p.KeySpent != test.spent || a.Attempts != test.attempts {
				r.Errorf("n %d, spent %v, attempts %d; want %d, %v, %d", p.Sends, p.KeySpent, a.Attempts, test.sends, test.spent, test.attempts)
			}
		})
	}
	inBubble(t, "breaker between the tries, before the next key", func(r *rig) {
		// Retry outside the breaker: the refusal comes without a question for the next key.
		g := &outside{Gateway: r.gateway}
		s, err := approval.New(approval.Deps{Store: r.store, Gateway: g, Settings: r.set, Logger: discard()})
		if err != nil {
			r.Fatal(err)
		}
		r.want(of(s.Confirm(r.Context(), anOrder())), unknown)
		if p := r.store.Row("key-1"); p.Sends != 1 || !p.KeySpent {
			r.Errorf("n %d, spent %v; want 1, true", p.Sends, p.KeySpent)
		}
	})
	inBubble(t, "processing ends a sequence", func(r *rig) {
		g := &asking{Gateway: r.gateway, last: payment.Answer{Kind: payment.KindProcessing}}
		s, err := approval.New(approval.Deps{Store: r.store, Gateway: g, Settings: r.set, Logger: discard()})
		if err != nil {
			r.Fatal(err)
		}
		r.want(of(s.Confirm(r.Context(), anOrder())), unknown)
		if g.send || g.key != "" {
			r.Errorf("would send %q", g.key)
		}
	})
}
