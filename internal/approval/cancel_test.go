package approval_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

func allBack(change ...func(*approval.CancelRequest)) approval.CancelRequest {
	r := approval.CancelRequest{OrderID: "order-1", Key: "k1", Reason: "returned", AskedBy: "ops", Operator: true}
	for _, f := range change {
		f(&r)
	}
	return r
}

func part(amount string) func(*approval.CancelRequest) {
	return func(r *approval.CancelRequest) { r.Amount = amount }
}
func under(key string) func(*approval.CancelRequest) {
	return func(r *approval.CancelRequest) { r.Key = key }
}
func byCheckout(r *approval.CancelRequest) { r.Operator, r.AskedBy = false, "shop" }
func withAccount(r *approval.CancelRequest) {
	r.Account = &payment.RefundAccount{Bank: "20", AccountNumber: "1002123456789", HolderName: "kim"}
}

// cancelSaid is what of an answer to a cancel tests compare.
type cancelSaid struct {
	Status   payment.Status
	Cancel   payment.CancelState
	Code     payment.Code
	Gateway  string
	Replayed bool
}

func (r *rig) cancel(q approval.CancelRequest) cancelSaid {
	r.Helper()
	a, err := r.service.Cancel(r.Context(), q)
	s := cancelSaid{Status: a.Payment.Status, Replayed: a.Replayed}
	if a.Cancel != nil {
		s.Cancel = a.Cancel.State
	}
	if e, ok := errors.AsType[*payment.Error](err); ok {
		s = cancelSaid{Code: e.Code, Gateway: e.GatewayCode, Replayed: a.Replayed}
	} else if err != nil {
		r.Errorf("not a payment.Error: %v", err)
	}
	return s
}

func (r *rig) wantCancel(got, want cancelSaid) {
	r.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.Errorf("answer (-want +got):\n%s", diff)
	}
}

// paid puts a PAID payment that Toss knows too.
func (r *rig) paid(change ...func(*payment.Payment)) {
	r.store.Put(row(payment.Paid, change...))
	r.gateway.Set(done())
}

func byAccount(p *payment.Payment)   { p.VirtualAccount = &payment.VirtualAccount{BankCode: "20"} }
func unsentRow(p *payment.Payment)   { p.MaybeSent, p.DueAt = false, time.Now().Add(5*time.Second) }
func (r *rig) cancelsSent() int      { return len(r.gateway.CancelCalls()) }
func (r *rig) states() (list string) { return states(r.store.CancelsOf("key-1")) }

func states(cancels []approval.Cancel) string {
	var list []string
	for _, c := range cancels {
		list = append(list, fmt.Sprint(c.Amount, " ", c.State))
	}
	return strings.Join(list, ", ")
}

var (
	canceledAll  = cancelSaid{Status: payment.Canceled, Cancel: payment.CancelDone}
	canceledPart = cancelSaid{Status: payment.Paid, Cancel: payment.CancelDone}
	pending      = cancelSaid{Status: payment.Paid, Cancel: payment.CancelOpen}
)

func (s cancelSaid) again() cancelSaid { s.Replayed = true; return s }

func problem(code payment.Code) cancelSaid { return cancelSaid{Code: code} }

// TestCancel is the way of an operator's cancel.
func TestCancel(t *testing.T) {
	t.Parallel()
	inBubble(t, "all of it", func(r *rig) {
		r.paid()
		r.wantCancel(r.cancel(allBack()), canceledAll)
		c := r.gateway.CancelCalls()[0]
		if id := payment.CancelMark(c.Reason); c.Key != payment.CancelKey(id, 1) || !strings.HasPrefix(c.Reason, "returned [") || c.Balance != 15000 || !c.Full || c.Account != nil {
			r.Errorf("cancel %+v", c)
		}
		r.wantCancel(r.cancel(allBack()), canceledAll.again())
		r.wantCancel(r.cancel(allBack(under("k2"))), problem(payment.CodePaymentCanceled))
		if r.cancelsSent() != 1 || !r.hasNotice(payment.NoticeCanceled) {
			r.Errorf("%d sent", r.cancelsSent())
		}
	})
	inBubble(t, "a part, another, too much, the rest", func(r *rig) {
		r.paid()
		r.wantCancel(r.cancel(allBack(part("5000"))), canceledPart)
		r.wantCancel(r.cancel(allBack(part("5000.0"))), canceledPart.again())
		r.wantCancel(r.cancel(allBack(part("5001"))), cancelSaid{Code: payment.CodeIdempotencyKeyReused})
		r.wantCancel(r.cancel(allBack()), cancelSaid{Code: payment.CodeIdempotencyKeyReused})
		r.wantCancel(r.cancel(allBack(part("4000"), under("k2"))), canceledPart)
		r.wantCancel(r.cancel(allBack(part("6001"), under("k3"))), problem(payment.CodeNotCancelable))
		r.wantCancel(r.cancel(allBack(part("0.5"), under("k3"))), problem(payment.CodeInvalidRequest))
		r.wantCancel(r.cancel(allBack(under("k3"))), canceledAll)
		if got := r.states(); got != "5000 done, 4000 done, 6000 done" {
			r.Error(got)
		}
		if c := r.gateway.CancelCalls(); c[1].Amount != 4000 || c[1].Balance != 10000 || c[1].Full {
			r.Errorf("cancel %+v", c[1])
		}
	})
	inBubble(t, "another reason under the key", func(r *rig) {
		r.paid()
		r.cancel(allBack())
		r.wantCancel(r.cancel(allBack(func(q *approval.CancelRequest) { q.Reason = "other" })), problem(payment.CodeIdempotencyKeyReused))
	})
	inBubble(t, "refused to the caller: told, no incident, free to ask anew", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Kind: payment.KindDeclined, Code: "EXCEED_MAX_REFUND_DUE", Message: "too late"})
		refused := cancelSaid{Code: payment.CodeNotCancelable, Gateway: "EXCEED_MAX_REFUND_DUE"}
		r.wantCancel(r.cancel(allBack()), refused)
		r.wantCancel(r.cancel(allBack()), refused.again())
		if p := r.ends(payment.Paid, ""); len(r.store.Incidents()) != 0 || p.DueAt.IsZero() {
			r.Errorf("incidents %v, due %s", r.store.Incidents(), p.DueAt)
		}
		r.wantCancel(r.cancel(allBack(under("k2"))), canceledAll)
	})
	inBubble(t, "refused although done is done", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Kind: payment.KindDeclined, Works: true})
		r.wantCancel(r.cancel(allBack(part("5000"))), canceledPart)
	})
	inBubble(t, "less at Toss than we know", func(r *rig) {
		r.paid()
		o := seen(payment.SeenPartlyCanceled)
		o.Balance = 4000
		r.gateway.Set(o)
		r.wantCancel(r.cancel(allBack(part("5000"))), problem(payment.CodeNotCancelable))
		if r.cancelsSent() != 0 || r.states() != "5000 refused" {
			r.Errorf("%d sent, %s", r.cancelsSent(), r.states())
		}
	})
	inBubble(t, "everything went back by hand in between: ours is moot", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Kind: payment.KindAmbiguous, Code: "ALREADY_CANCELED_PAYMENT", Before: func() {
			o := seen(payment.SeenCanceled)
			o.Cancels = []payment.GatewayCancel{{TransactionKey: "t", Amount: 15000, Reason: "by hand"}}
			r.gateway.Set(o)
		}})
		r.wantCancel(r.cancel(allBack(part("5000"))), problem(payment.CodePaymentCanceled))
		if r.ends(payment.Canceled, ""); !strings.HasPrefix(r.states(), "5000 moot") {
			r.Error(r.states())
		}
	})
	inBubble(t, "Toss lists no mark, but the balance fell", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{See: func(o *payment.Observation) { o.Cancels = nil }})
		r.wantCancel(r.cancel(allBack(part("5000"))), canceledPart)
	})
	inBubble(t, "somebody looks at the payment just now", func(r *rig) {
		r.paid(leasedFor(2 * time.Second))
		r.wantCancel(r.cancel(allBack()), canceledAll)
		r.store.Change("key-1", func(p *payment.Payment) { p.Status = payment.Paid; leasedFor(time.Minute)(p); p.CanceledAmount = 0 })
		start := time.Now()
		r.wantCancel(r.cancel(allBack(under("k2"))), problem(payment.CodeInProgress))
		if took := time.Since(start); took > r.set.AnswerWithin {
			r.Errorf("waited %s", took)
		}
	})
	inBubble(t, "no payment", func(r *rig) { r.wantCancel(r.cancel(allBack()), problem(payment.CodeNotFound)) })
}

// TestCancelByState is what a cancel means in the states that have nothing to give back.
func TestCancelByState(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		row     payment.Payment
		ask     approval.CancelRequest
		want    cancelSaid
		failure payment.FailureCode
	}{
		{"pending, maybe sent", row(payment.Pending), allBack(), problem(payment.CodeInProgress), ""},
		{"pending, never sent, leased", row(payment.Pending, unsentRow, leasedFor(time.Minute)), allBack(), problem(payment.CodeInProgress), ""},
		{"pending, never sent, a part", row(payment.Pending, unsentRow), allBack(part("1")), problem(payment.CodeNotCancelable), ""},
		{"failed", row(payment.Failed, failedWith(payment.FailExpired)), allBack(), problem(payment.CodeNotCancelable), ""},
		{"canceled", row(payment.Canceled), allBack(), problem(payment.CodePaymentCanceled), ""},
		{"abandoned by an operator", row(payment.Pending, unsentRow), allBack(), cancelSaid{Status: payment.Failed}, payment.FailAbandoned},
		{"abandoned by a checkout", row(payment.Pending, unsentRow), allBack(byCheckout), cancelSaid{Status: payment.Failed}, payment.FailAbandoned},
		{"a checkout on a payment that may be sent", row(payment.Pending), allBack(byCheckout), problem(payment.CodeForbidden), ""},
		{"a checkout on one that is leased", row(payment.Pending, unsentRow, leasedFor(time.Minute)), allBack(byCheckout), problem(payment.CodeInProgress), ""},
		{"a checkout on a paid one", row(payment.Paid), allBack(byCheckout), problem(payment.CodeForbidden), ""},
		{"part of an unpaid account", row(payment.AwaitingDeposit, byAccount), allBack(part("1")), problem(payment.CodeNotCancelable), ""},
		{"paid account, none to refund to", row(payment.Paid, byAccount), allBack(), problem(payment.CodeRefundAccountRequired), ""},
	} {
		inBubble(t, tt.name, func(r *rig) {
			r.store.Put(tt.row)
			r.wantCancel(r.cancel(tt.ask), tt.want)
			if n := r.cancelsSent() + len(r.gateway.LookupCalls()); n != 0 {
				r.Errorf("Toss was asked %d times", n)
			}
			if tt.failure == "" {
				return
			}
			r.ends(payment.Failed, tt.failure)
			r.wantCancel(r.cancel(tt.ask), tt.want.again())
			r.wantCancel(r.cancel(allBack(byCheckout, under("k2"))), tt.want.again())
		})
	}
}

func TestCancelWaitsForALook(t *testing.T) {
	t.Parallel()
	inBubble(t, "a checkout gives up what recovery looks at for a moment", func(r *rig) {
		r.store.Put(row(payment.Pending, unsentRow, leasedFor(time.Second)))
		r.wantCancel(r.cancel(allBack(byCheckout)), cancelSaid{Status: payment.Failed})
		r.ends(payment.Failed, payment.FailAbandoned)
	})
}

func TestCancelOfVirtualAccounts(t *testing.T) {
	t.Parallel()
	inBubble(t, "unpaid: the account is canceled", func(r *rig) {
		r.store.Put(row(payment.AwaitingDeposit, byAccount))
		r.gateway.Set(seen(payment.SeenWaiting))
		r.wantCancel(r.cancel(allBack(withAccount)), cancelSaid{Status: payment.Failed, Cancel: payment.CancelDone})
		r.ends(payment.Failed, payment.FailAbandoned)
		if c := r.gateway.CancelCalls()[0]; !c.Full || c.Account != nil {
			r.Errorf("cancel %+v", c)
		}
		r.wantCancel(r.cancel(allBack()), cancelSaid{Status: payment.Failed, Cancel: payment.CancelDone, Replayed: true})
	})
	inBubble(t, "unpaid here, paid there", func(r *rig) {
		r.store.Put(row(payment.AwaitingDeposit, byAccount))
		r.gateway.Set(done())
		r.wantCancel(r.cancel(allBack()), problem(payment.CodeRefundAccountRequired))
		r.resolved(approval.DidPaid)
	})
	inBubble(t, "unpaid and unheard: recovery ends it", func(r *rig) {
		r.store.Put(row(payment.AwaitingDeposit, byAccount))
		r.gateway.Set(seen(payment.SeenWaiting))
		r.gateway.Cancels(timeout)
		r.wantCancel(r.cancel(allBack()), cancelSaid{Status: payment.AwaitingDeposit, Cancel: payment.CancelOpen})
		r.resolved(approval.DidGiveBack)
		r.ends(payment.Failed, payment.FailAbandoned)
	})
	inBubble(t, "paid: the account is passed on, and printed nowhere", func(r *rig) {
		r.paid(byAccount)
		r.wantCancel(r.cancel(allBack(withAccount)), canceledAll)
		c := r.gateway.CancelCalls()[0]
		if c.Account == nil || c.Account.AccountNumber != "1002123456789" || !r.store.CancelsOf("key-1")[0].NeedsAccount {
			r.Errorf("cancel %+v", c)
		}
		if text := fmt.Sprintf("%v %+v %#v", c, c.Account, *c.Account); strings.Contains(text, "1002123456789") || strings.Contains(text, "kim") {
			r.Error(text)
		}
	})
	inBubble(t, "paid and unheard: recovery only looks, and gives up after a while", func(r *rig) {
		r.paid(byAccount)
		r.gateway.Cancels(timeout)
		r.wantCancel(r.cancel(allBack(withAccount)), pending)
		r.resolved(approval.DidWait)
		r.store.AgeCancels(11 * time.Minute)
		r.resolved(approval.DidWait)
		r.ends(payment.Paid, "")
		if r.cancelsSent() != 1 || r.states() != "15000 refused" || len(r.store.Incidents()) != 0 {
			r.Errorf("%d sent, %s, %v", r.cancelsSent(), r.states(), r.store.Incidents())
		}
		r.wantCancel(r.cancel(allBack(withAccount)), cancelSaid{Code: payment.CodeRefundAccountRequired, Replayed: true})
		r.wantCancel(r.cancel(allBack(withAccount, under("k2"))), canceledAll)
	})
	inBubble(t, "paid, unheard and done", func(r *rig) {
		r.paid(byAccount)
		r.gateway.Cancels(try{Kind: payment.KindTimeout, Works: true, Late: 30 * time.Second})
		r.wantCancel(r.cancel(allBack(withAccount)), pending)
		time.Sleep(time.Minute)
		r.resolved(approval.DidGiveBack)
		r.ends(payment.Canceled, "")
	})
}

// TestTrap19_CancelTimesOut: nobody heard whether a partial cancel was done. It is not failed and not sent under another
// key; the same key, or Toss's list, tells.
func TestTrap19_CancelTimesOut(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]try{
		"not done": {Kind: payment.KindTimeout}, "done": {Kind: payment.KindTimeout, Works: true},
		"done late": {Kind: payment.KindTimeout, Works: true, Late: 2 * time.Second},
	} {
		inBubble(t, name, func(r *rig) {
			r.paid()
			r.gateway.Cancels(first)
			got := r.cancel(allBack(part("5000")))
			if name == "done" {
				r.wantCancel(got, canceledPart)
				return
			}
			r.wantCancel(got, pending)
			r.wantCancel(r.cancel(allBack(part("5000"))), pending.again())
			r.wantCancel(r.cancel(allBack(part("5000"), under("k2"))), problem(payment.CodeCancelInProgress))
			time.Sleep(5 * time.Second)
			r.resolved(approval.DidGiveBack)
			r.wantCancel(r.cancel(allBack(part("5000"))), canceledPart.again())
			for _, c := range r.gateway.CancelCalls() {
				if c.Key != r.gateway.CancelCalls()[0].Key {
					r.Errorf("keys %q and %q", r.gateway.CancelCalls()[0].Key, c.Key)
				}
			}
			if o, _ := r.gateway.Truth("key-1"); o.Balance != 10000 {
				r.Errorf("the gateway holds %d", o.Balance)
			}
		})
	}
}

// TestTrap38_ErrorsAreCached: Toss repeats an error under its key for 15 days and forgets the key then. After an error,
// and a look that shows no sign, the next key is sent; a key that is too old never.
func TestTrap38_ErrorsAreCached(t *testing.T) {
	t.Parallel()
	inBubble(t, "the next key", func(r *rig) {
		r.paid()
		r.gateway.Cancels(fault)
		r.wantCancel(r.cancel(allBack(part("5000"))), pending)
		r.resolved(approval.DidGiveBack)
		c := r.gateway.CancelCalls()
		if id := payment.CancelMark(c[0].Reason); len(c) != 2 || c[0].Key != payment.CancelKey(id, 1) || c[1].Key != payment.CancelKey(id, 2) || c[1].Amount != 5000 {
			r.Errorf("cancels %+v", c)
		}
	})
	inBubble(t, "an error that was done after all", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Kind: payment.KindFault, Works: true, Late: time.Second})
		r.wantCancel(r.cancel(allBack(part("5000"))), pending)
		time.Sleep(5 * time.Second)
		r.resolved(approval.DidGiveBack)
		if o, _ := r.gateway.Truth("key-1"); r.cancelsSent() != 1 || o.Balance != 10000 {
			r.Errorf("%d sent, %d left", r.cancelsSent(), o.Balance)
		}
	})
	inBubble(t, "too old", func(r *rig) {
		r.paid()
		r.gateway.Cancels(timeout)
		r.wantCancel(r.cancel(allBack(part("5000"))), pending)
		r.store.AgeCancels(15 * 24 * time.Hour)
		r.resolved(approval.DidIncident)
		r.wantIncident(payment.CancelFailed)
		if r.cancelsSent() != 1 {
			r.Errorf("%d sent", r.cancelsSent())
		}
	})
}

// TestCancelLeftToRecovery is an open cancel that recovery claims.
func TestCancelLeftToRecovery(t *testing.T) {
	t.Parallel()
	left := func(r *rig) {
		r.paid()
		r.gateway.Cancels(timeout)
		r.wantCancel(r.cancel(allBack(part("5000"))), pending)
	}
	inBubble(t, "refused there: nobody was told, so an incident", func(r *rig) {
		left(r)
		r.gateway.Cancels(try{Kind: payment.KindDeclined, Code: "NOT_CANCELABLE_AMOUNT"})
		r.resolved(approval.DidIncident)
		r.wantIncident(payment.CancelFailed)
		r.wantCancel(r.cancel(allBack(part("5000"))), cancelSaid{Code: payment.CodeNotCancelable, Gateway: "NOT_CANCELABLE_AMOUNT", Replayed: true})
	})
	inBubble(t, "less is left", func(r *rig) {
		left(r)
		o := seen(payment.SeenPartlyCanceled)
		o.Balance = 4000
		r.gateway.Set(o)
		r.resolved(approval.DidIncident)
		if r.cancelsSent() != 1 {
			r.Errorf("%d sent", r.cancelsSent())
		}
	})
	inBubble(t, "no answer: later", func(r *rig) {
		left(r)
		r.gateway.Lookups(timeout)
		r.resolved(approval.DidWait)
		if p := r.ends(payment.Paid, ""); p.DueAt.IsZero() {
			r.Error("forgotten")
		}
	})
	inBubble(t, "a mismatch that an operator gives back", func(r *rig) {
		p := r.store.Put(row(payment.Pending, func(p *payment.Payment) { p.Amount = 14000 }))
		r.gateway.Set(done())
		c, _, ending, err := r.store.BeginGiveBack(r.Context(), approval.GiveBack{Payment: p, Amount: 15000, Reason: "mismatch", Failure: payment.FailMismatch})
		if ending != payment.Applied {
			r.Fatalf("%s, %v", ending, err)
		}
		r.resolved(approval.DidGiveBack)
		r.ends(payment.Failed, payment.FailMismatch)
		if got := r.gateway.CancelCalls(); len(got) != 1 || payment.CancelMark(got[0].Reason) != c.ID {
			r.Errorf("cancels %+v", got)
		}
	})
	inBubble(t, "the cancels cannot be read", func(r *rig) {
		left(r)
		r.store.Script(approvaltest.FindCancels, approvaltest.Not())
		if res, err := r.resolve(); err == nil || res.Did != approval.DidError {
			r.Errorf("did %q, %v", res.Did, err)
		}
	})
	inBubble(t, "a patient cancel keeps its lease to the end", func(r *rig) {
		left(r)
		r.gateway.Cancels(try{Latency: 50 * time.Second, Before: func() {
			if p := r.store.Row("key-1"); time.Until(p.DueAt) < 3*r.set.CancelTimeout {
				r.Errorf("leased for %s", time.Until(p.DueAt))
			}
		}})
		r.resolved(approval.DidGiveBack)
	}, func(s *approval.Settings) { s.LookupTimeout = 5 * time.Second })
}

// TestCancelAndTheDatabase: certainly not written is a 503, maybe written a 202.
func TestCancelAndTheDatabase(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		step  approvaltest.Step
		fault approvaltest.Fault
		want  cancelSaid
		sent  int
	}{
		{"not readable", approvaltest.FindCancels, approvaltest.Not(), problem(payment.CodeDBUnavailable), 0},
		{"not stored", approvaltest.BeginCancel, approvaltest.Not(), problem(payment.CodeDBUnavailable), 0},
		{"maybe stored", approvaltest.BeginCancel, approvaltest.Maybe(), pending, 0},
		{"stored, acknowledgement lost", approvaltest.BeginCancel, approvaltest.Lost(), pending, 0},
		{"lost a race", approvaltest.BeginCancel, approvaltest.Fault{NoRows: true}, canceledAll, 1},
		{"the end is not stored at first", approvaltest.EndGiveBack, approvaltest.Not(), canceledAll, 1},
		{"the end is stored, acknowledgement lost", approvaltest.EndGiveBack, approvaltest.Lost(), canceledAll, 1},
	} {
		inBubble(t, tt.name, func(r *rig) {
			r.paid()
			r.store.Script(tt.step, tt.fault)
			r.wantCancel(r.cancel(allBack()), tt.want)
			r.drain()
			if r.cancelsSent() != tt.sent {
				r.Errorf("%d sent", r.cancelsSent())
			}
		})
	}
	inBubble(t, "the end cannot be stored: recovery finds it done", func(r *rig) {
		r.paid()
		r.store.Always(approvaltest.EndGiveBack, approvaltest.Not())
		r.wantCancel(r.cancel(allBack()), pending)
		r.drain()
		r.store.Always(approvaltest.EndGiveBack, approvaltest.None())
		r.store.Change("key-1", func(p *payment.Payment) { p.DueAt = time.Now() })
		r.resolved(approval.DidGiveBack)
		r.ends(payment.Canceled, "")
		if r.cancelsSent() != 1 {
			r.Errorf("%d sent", r.cancelsSent())
		}
	})
	for name, lost := range map[string]approvaltest.Fault{"maybe abandoned": approvaltest.Maybe(), "abandoned, acknowledgement lost": approvaltest.Lost()} {
		inBubble(t, name, func(r *rig) {
			r.store.Put(row(payment.Pending, unsentRow))
			r.store.Script(approvaltest.Abandon, lost)
			r.wantCancel(r.cancel(allBack()), cancelSaid{Status: payment.Pending})
			r.wantCancel(r.cancel(allBack()), cancelSaid{Status: payment.Failed, Replayed: lost.Done})
		})
	}
}

// TestCancelIsDetached: the caller hangs up or its time is over; the cancel goes on, and an ordered stop waits for it.
func TestCancelIsDetached(t *testing.T) {
	t.Parallel()
	inBubble(t, "Toss is slow", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Latency: 14 * time.Second})
		start := time.Now()
		r.wantCancel(r.cancel(allBack()), pending)
		if took := time.Since(start); took != r.set.AnswerWithin {
			r.Errorf("answered after %s", took)
		}
		r.ends(payment.Canceled, "")
		r.wantCancel(r.cancel(allBack()), canceledAll.again())
	})
	inBubble(t, "slow and refused: nobody was told, so an incident", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Latency: 14 * time.Second, Kind: payment.KindDeclined})
		r.wantCancel(r.cancel(allBack()), pending)
		r.drain()
		r.wantIncident(payment.CancelFailed)
	})
	inBubble(t, "refused, and stored only when nobody waited any more: an incident too", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Latency: 5 * time.Second, Kind: payment.KindDeclined})
		r.store.Script(approvaltest.EndGiveBack, approvaltest.Fault{Fails: true, Ending: payment.NotApplied, Delay: 6 * time.Second})
		r.wantCancel(r.cancel(allBack()), pending)
		r.drain()
		r.wantIncident(payment.CancelFailed)
	})
	inBubble(t, "the database is slow: what was not begun is not begun later", func(r *rig) {
		r.paid()
		r.store.Script(approvaltest.FindCancels, approvaltest.Fault{Delay: 11 * time.Second})
		r.wantCancel(r.cancel(allBack()), problem(payment.CodeDBUnavailable))
		r.drain()
		if r.cancelsSent() != 0 || r.states() != "" {
			r.Errorf("%d sent, %s", r.cancelsSent(), r.states())
		}
	})
	inBubble(t, "the store is slow: may be stored", func(r *rig) {
		r.paid()
		r.store.Script(approvaltest.BeginCancel, approvaltest.Fault{Delay: 11 * time.Second})
		r.wantCancel(r.cancel(allBack()), pending)
		r.ends(payment.Canceled, "")
	})
	inBubble(t, "a panic", func(r *rig) {
		r.paid()
		r.gateway.Cancels(try{Panic: "boom"})
		r.wantCancel(r.cancel(allBack()), problem(payment.CodeInternal))
	})
}
