package approval

import (
	"cmp"
	"context"
	"time"

	"paymentd/internal/payment"
)

// cancelKeyLife is how long a cancel key is sent: Toss forgets it after 15 days and would run it again.
const cancelKeyLife = 14 * 24 * time.Hour

const (
	// accountPatience is how long a cancel that only its caller can send again may stay without a sign.
	accountPatience = 10 * time.Minute
	// patientPauses are the waits between the three tries of Patient.
	patientPauses = 3 * time.Second
)

// cancelWithin is the longest that a patient cancel takes: the look before it, its tries, the looks after it, and the
// statement that ends it.
func (s *Service) cancelWithin() time.Duration {
	return 3*s.set.CancelTimeout + 4*s.set.LookupTimeout + 2*patientPauses + s.set.CommitWithin
}

// debt is money, or an unpaid virtual account, that Toss holds for a payment that may not stand, or that somebody asked
// to give back.
type debt struct {
	payment payment.Payment
	// seen is what Toss said just now; amount is what goes back.
	seen   payment.Observation
	amount payment.Amount
	action payment.Action
	actor  payment.Actor
	tries  Tries
	// stop, if not nil, ends lookups and pauses when it is closed.
	stop <-chan struct{}
}

// giveBack cancels a debt at Toss. The cancel and its key are stored before it is sent, and only Toss's balance says
// that it worked. 0 rows mean that somebody else goes on with the payment, which is no error.
func (s *Service) giveBack(ctx context.Context, d debt) (payment.Payment, Did, error) {
	p, o, lease := d.payment, d.seen, s.set.Lease
	if d.tries == Patient {
		// Its tries may outlast the lease of the look that found the debt.
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(context.WithoutCancel(ctx), s.cancelWithin())
		defer stop()
		lease = s.cancelWithin() + cancelSlack
	}
	var failure payment.FailureCode
	if d.action.Do == payment.CancelDeposit {
		failure = payment.FailExpired // nobody paid, so nothing went back
	}
	c, held, ending, err := s.store.BeginGiveBack(ctx, GiveBack{
		Payment: p, Amount: d.amount, Reason: d.action.Reason, Failure: failure, Actor: d.actor, Lease: lease,
	})
	switch ending {
	case payment.Applied:
	case payment.NoRows:
		return s.lost(ctx, p)
	default:
		return p, DidError, unwritten("begin give back", ending, err)
	}
	end := GiveBackEnd{
		Payment: held, Cancel: c, Actor: d.actor, Observation: o, Reason: d.action.Reason, Failure: cmp.Or(c.Failure, failure),
	}
	switch {
	case c.Refused():
		end.Refused, end.RefusalCode, end.Reason = true, c.RefusalCode, "the cancel was refused before"
	case held.ReadAt.Sub(c.CreatedAt) > cancelKeyLife:
		end.Refused, end.RefusalCode, end.Reason = true, payment.RefusedKeyTooOld, "the cancel's key is too old to be sent again"
	default:
		end, _ = s.sendCancel(ctx, end, CancelCall{Balance: o.Balance, Tries: d.tries, Stop: d.stop}, o)
	}
	return s.endGiveBack(ctx, end)
}

// sendCancel sends the cancel of end under its key, and says how that ended. call has what the cancel's row does not
// know; seen is what Toss said just now. A cancel that is taken up keeps its own amount: the key stands for one body.
func (s *Service) sendCancel(ctx context.Context, end GiveBackEnd, call CancelCall, seen payment.Observation) (GiveBackEnd, payment.Answer) {
	p, c := end.Payment, end.Cancel
	call.PaymentKey, call.Key, call.Reason = p.PaymentKey, payment.CancelKey(c.ID, c.Sends), payment.MarkedReason(c.Reason, c.ID)
	call.Amount, call.Currency = c.Amount, seen.Currency
	call.Full = seen.Sighting == payment.SeenWaiting || c.Amount == seen.Total
	said := s.gateway.Cancel(ctx, call)
	end.KeySpent = said.SpendsKey()
	if confirmed(p, c, said) {
		end.Observation, end.Done = said.Observation, true
		return end, said
	}
	if p.Status == payment.Paid && said.Kind == payment.KindPayment {
		end.KeySpent = false // no error: another key might take the amount twice
	}
	heard := s.lookup(ctx, p.PaymentKey, look{call.Tries, call.Stop})
	if heard.Kind != payment.KindPayment {
		return end, said
	}
	end.Observation, end.Done = heard.Observation, cancelDone(p, c, heard.Observation)
	// A refusal is no proof that no money moved; what Toss still holds is.
	end.Refused = !end.Done && (said.Kind == payment.KindDeclined || said.Kind == payment.KindRejected) && holds(heard.Observation)
	if end.Refused {
		end.RefusalCode = said.Code
	}
	return end, said
}

// confirmed reports whether the answer to the cancel itself says that it is done. That the balance fell by the amount
// counts here alone: a lookup does not say by whose cancel.
func confirmed(p payment.Payment, c Cancel, said payment.Answer) bool {
	o := said.Observation
	return said.Kind == payment.KindPayment && (cancelDone(p, c, o) ||
		p.Status == payment.Paid && o.Sighting == payment.SeenPartlyCanceled && o.Total == p.Amount && o.Balance <= p.Left()-c.Amount)
}

// cancelDone reports whether Toss shows that a cancel is done: of a payment that may stand its mark, of one that may
// not that nothing is held any more.
func cancelDone(p payment.Payment, c Cancel, o payment.Observation) bool {
	if p.Status == payment.Paid {
		return o.Returned() || o.Shows(c.ID)
	}
	return nothingHeld(o)
}

// holds reports whether Toss has money of the buyer or still lets it in.
func holds(o payment.Observation) bool { return o.Charged() || o.Sighting == payment.SeenWaiting }

// nothingHeld reports whether Toss has no money of the buyer and lets none in any more: a virtual account may also
// end by itself.
func nothingHeld(o payment.Observation) bool {
	return o.Returned() || o.Sighting == payment.SeenAborted || o.Sighting == payment.SeenExpired
}

func (s *Service) endGiveBack(ctx context.Context, end GiveBackEnd) (payment.Payment, Did, error) {
	p, ending, err := s.store.EndGiveBack(ctx, end)
	switch {
	case ending == payment.NoRows:
		return s.lost(ctx, end.Payment)
	case ending != payment.Applied:
		return end.Payment, DidError, unwritten("end give back", ending, err)
	case end.Done:
		return p, DidGiveBack, nil
	case end.Refused && !end.Quiet:
		return p, DidIncident, nil
	default:
		return p, DidWait, nil
	}
}

// lost reads a payment whose fence somebody else has taken.
func (s *Service) lost(ctx context.Context, p payment.Payment) (payment.Payment, Did, error) {
	q, found, err := s.store.Find(ctx, p.PaymentKey, "")
	if err != nil || !found {
		return p, DidError, unwritten("read a payment that moved", payment.NoRows, err)
	}
	return q, DidWait, nil
}

// finish ends the unfinished cancel of a claimed payment before anything else is done with it: Toss's list of cancels
// says whether it is done; if not, the same cancel is sent again by the key rule.
func (s *Service) finish(ctx context.Context, d debt, c Cancel) (Resolution, error) { //nolint:cyclop // one table
	p, actor := d.payment, d.actor
	r := Resolution{Before: p, After: p, Did: DidWait, Action: unfinishedCancel()}
	r.Heard = s.lookup(ctx, p.PaymentKey, look{d.tries, d.stop})
	o := observe(r.Heard)
	age := p.ReadAt.Sub(c.CreatedAt)
	end := GiveBackEnd{Payment: p, Cancel: c, Actor: actor, Observation: o, Reason: r.Action.Reason, Failure: c.Failure}
	if end.Failure == "" && p.Status == payment.AwaitingDeposit && o.ApprovedAt.IsZero() {
		end.Failure = payment.FailExpired
	}
	refuse := func(code, reason string, quiet bool) {
		end.Refused, end.RefusalCode, end.Reason, end.Quiet = true, code, reason, quiet
	}
	switch {
	case cancelDone(p, c, o):
		end.Done, end.Reason = true, "the cancel is done at the gateway"
	case o.Sighting == payment.SeenNoAnswer && closed(d.stop):
		r.Action = payment.Action{Do: payment.Wait, Reason: cutShort}
		return r, s.release(ctx, Release{Payment: p, Actor: actor, Reason: cutShort})
	case !holds(o):
		return r, s.release(ctx, Release{Payment: p, DueIn: payment.LookIn(p.Looks), Actor: actor, Reason: "no usable answer", Observation: o})
	case p.Status == payment.AwaitingDeposit && o.Charged():
		refuse(payment.RefusedDepositArrived, "the deposit arrived before the cancel", true)
	case c.NeedsAccount && age < accountPatience:
		return r, s.release(ctx, Release{Payment: p, DueIn: payment.LookIn(p.Looks), Actor: actor, Reason: "no sign of the cancel", Observation: o})
	case c.NeedsAccount:
		refuse(payment.RefusedAccountNeeded, "refund account needed again", true)
	case age > cancelKeyLife:
		refuse(payment.RefusedKeyTooOld, "the cancel's key is too old to be sent again", false)
	case p.Status == payment.Paid && c.Amount > o.Balance:
		refuse(payment.RefusedMoreThanLeft, "less is left at the gateway", false)
	default:
		var err error
		r.Action.Reason = "the cancel was sent again"
		d.seen, d.amount, d.action = o, c.Amount, r.Action
		r.After, r.Did, err = s.giveBack(ctx, d)
		return r, err
	}
	r.Action.Reason = end.Reason
	var err error
	r.After, r.Did, err = s.endGiveBack(ctx, end)
	return r, err
}

func unfinishedCancel() payment.Action {
	return payment.Action{Do: payment.GiveBack, Reason: "a cancel is unfinished"}
}

func closed(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}
