package approval

import (
	"context"
	"time"

	"paymentd/internal/payment"
)

// Resolution is what a look at a leftover payment came to.
type Resolution struct {
	Before, After payment.Payment
	Action        payment.Action
	// Did is the value of paymentd_recovery_total{action}.
	Did Did
	// Heard is what the lookup was answered; its Kind is empty if none was made.
	Heard payment.Answer
}

// Did names what recovery did with one payment.
type Did string

// The values of paymentd_recovery_total{action}.
const (
	DidPaid     Did = "paid"
	DidFailed   Did = "failed"
	DidCanceled Did = "canceled"
	DidAwaiting Did = "awaiting_deposit"
	DidSend     Did = "sent"
	DidWait     Did = "waited"
	DidGiveBack Did = "given_back"
	DidIncident Did = "incident"
	DidError    Did = "error"
)

// AllDid lists every value.
func AllDid() []Did {
	return []Did{DidPaid, DidFailed, DidCanceled, DidAwaiting, DidSend, DidWait, DidGiveBack, DidIncident, DidError}
}

// Plan looks at Toss and says what the table calls for, without doing it. A cancel that is unfinished comes first.
func (s *Service) Plan(ctx context.Context, p payment.Payment) (payment.Action, payment.Observation) {
	a, o, _ := s.look(ctx, p, Patient)
	if c, err := s.openCancel(ctx, p); err == nil && c != nil {
		a = unfinishedCancel()
	}
	return a, o
}

// openCancel reads the unfinished cancel that is ended before anything else; nil if there is none. That of a FAILED
// payment is the table's own give back, unless an operator asked for it: the table leaves the money of other orders alone.
func (s *Service) openCancel(ctx context.Context, p payment.Payment) (*Cancel, error) {
	if p.Status == payment.Canceled {
		return nil, nil
	}
	st, _, err := s.store.FindCancels(ctx, CancelQuery{ID: p.ID})
	if err != nil || st.Open == nil || p.Status == payment.Failed && st.Open.AskedBy == "" {
		return nil, err
	}
	return st.Open, nil
}

func (s *Service) look(ctx context.Context, p payment.Payment, tries Tries) (payment.Action, payment.Observation, payment.Answer) {
	var heard payment.Answer
	o := payment.Observation{Sighting: payment.SeenNothing}
	if p.MaybeSent || p.Status != payment.Pending {
		heard = s.gateway.Lookup(ctx, p.PaymentKey, tries)
		o = observe(heard)
	}
	return s.set.Rules.Decide(p, o, p.ReadAt), o, heard
}

// cutShort is the reason of a look that a stop ended.
const cutShort = "stopped before the gateway answered"

// Resolve looks at a payment that its caller has leased until leaseEnd (monotonic) and does what the table says. The
// lease is over afterwards, also when an error is returned: then it runs out by itself. When ctx ends, lookups and
// pauses end, and the payment is due again at once; what is being written or sent goes on to its own end. For a webhook
// it looks once and sends no confirm: a send, like a wait, leaves the payment due again soon.
func (s *Service) Resolve(ctx context.Context, p payment.Payment, actor payment.Actor, leaseEnd time.Time) (Resolution, error) {
	tries := Patient
	if actor == payment.ByWebhook {
		tries = Hinted
	}
	looking, endLook := context.WithDeadline(ctx, leaseEnd)
	defer endLook()
	lasting, endAll := context.WithDeadline(context.WithoutCancel(ctx), leaseEnd)
	defer endAll()
	open, err := s.openCancel(lasting, p)
	if err != nil {
		return Resolution{Before: p, After: p, Did: DidError}, err
	}
	if open != nil {
		r, err := s.finish(lasting, debt{payment: p, actor: actor, tries: tries, stop: ctx.Done()}, *open)
		if err != nil {
			r.Did = DidError
		}
		return r, err
	}
	action, o, heard := s.look(looking, p, tries)
	r := Resolution{Before: p, After: p, Action: action, Did: DidWait, Heard: heard}
	stop := ctx.Done()
	stopped := ctx.Err() != nil
	ctx = lasting
	if stopped && (action.Do == payment.Send || o.Sighting == payment.SeenNoAnswer) {
		r.Action = payment.Action{Do: payment.Wait, Reason: cutShort}
		return r, s.release(ctx, Release{Payment: p, Actor: actor, Reason: cutShort})
	}
	do := action.Do
	if do == payment.Send && actor == payment.ByWebhook {
		do = payment.Wait
	}
	switch do {
	case payment.Settle:
		r.After, err = s.settle(ctx, Settlement{Payment: p, Action: action, Observation: o, Actor: actor})
		r.Did = didSettle(r.After.Status, p.Status)
	case payment.Send:
		r, err = s.resend(ctx, r, &sequence{actor: actor, leaseEnd: leaseEnd, stop: stop})
	case payment.GiveBack, payment.CancelDeposit:
		r.After, r.Did, err = s.giveBack(ctx, debt{payment: p, seen: o, amount: o.Balance, action: action, actor: actor, tries: tries, stop: stop})
	default:
		r, err = s.leave(ctx, r, o, actor)
	}
	if err != nil {
		r.Did = DidError
	}
	return r, err
}

// settle commits one move; 0 rows means that somebody was faster, so the row is read again.
func (s *Service) settle(ctx context.Context, st Settlement) (payment.Payment, error) {
	q, ending, err := s.store.Settle(ctx, st)
	switch ending {
	case payment.Applied:
		return q, nil
	case payment.NoRows:
		return s.moved(ctx, st, Patient)
	default:
		return st.Payment, unwritten("settle", ending, err)
	}
}

// resend sends a confirm from recovery. The age of the payment is checked again by the statement that stores
// the send.
func (s *Service) resend(ctx context.Context, r Resolution, q *sequence) (Resolution, error) {
	p, within, actor := r.Before, s.set.Rules.SendWithin, q.actor
	if p.MaybeSent {
		within = s.set.Rules.ResendWithin
	}
	held, ending, err := s.store.BeginSend(ctx, BeginSend{
		Payment: p, NextKey: p.KeySpent, Within: within, Lease: time.Until(q.leaseEnd), Actor: actor,
		Reason: r.Action.Reason,
	})
	if ending == payment.NoRows {
		// Too old by now, or not ours any more; then the release finds no row either.
		return r, s.release(ctx, Release{Payment: p, DueIn: LookAgainIn, Actor: actor, Reason: "too late to send"})
	}
	if ending != payment.Applied {
		return r, unwritten("store a send", ending, err)
	}
	q.Service, q.payment = s, &held
	c := q.conclude(ctx, q.send(ctx), p.MaybeSent)
	r.Did = DidSend
	switch c.Verdict {
	case payment.VerdictSettle:
		r.Action = s.set.Rules.Decide(*q.payment, c.Observation, q.payment.ReadAt)
		if r.Action.Do == payment.Settle {
			r.After, err = s.settle(ctx, Settlement{Payment: *q.payment, Action: r.Action, Observation: c.Observation, Actor: actor})
			return r, err
		}
		r.Before = *q.payment
		return s.leave(ctx, r, c.Observation, actor)
	case payment.VerdictNotSent:
		return s.notSent(ctx, r, *q.payment, c, actor)
	default:
		err = s.release(ctx, Release{
			Payment: *q.payment, DueIn: -1, Sent: true, KeySpent: q.keySpent, Actor: actor,
			Reason: "sent, no answer settles it",
		})
		return r, err
	}
}

// notSent keeps a payment that could not be sent for the first time; only a merchant set-up that Toss refuses ends it.
func (s *Service) notSent(ctx context.Context, r Resolution, p payment.Payment, c payment.Conclusion, actor payment.Actor) (Resolution, error) {
	if c.Failure.Code == payment.FailMisconfigured {
		var err error
		r.Action = payment.Action{Do: payment.Settle, To: payment.Failed, Failure: c.Failure, Reason: "merchant set-up refused"}
		r.After, err = s.settle(ctx, Settlement{Payment: p, Action: r.Action, Actor: actor, NotSent: true})
		r.Did = DidFailed
		return r, err
	}
	r.Did = DidWait
	return r, s.release(ctx, Release{
		Payment: p, DueIn: LookAgainIn, NotSent: true, KeySpent: c.Last.SpendsKey(), Actor: actor, Reason: "could not be sent",
	})
}

// leave gives the lease back without a move.
func (s *Service) leave(ctx context.Context, r Resolution, o payment.Observation, actor payment.Actor) (Resolution, error) {
	p, a := r.Before, r.Action
	if a.Incident != "" {
		r.Did = DidIncident
	}
	again, by := time.Duration(-1), time.Time{}
	if actor == payment.ByWebhook && p.Status.Unfinished() {
		// Whoever repeats a forged webhook must not keep recovery from ever coming.
		again, by = LookAgainIn, p.WasDue
	}
	silent := o.Sighting == payment.SeenNoAnswer || o.Sighting == payment.SeenUnknownStatus
	return r, s.release(ctx, Release{
		Payment: p, DueIn: again, DueBy: by, Park: a.Do == payment.Park, Incident: a.Incident, Actor: actor, Reason: a.Reason, Observation: o,
		Forget: !p.Status.Unfinished() && !silent,
	})
}

func (s *Service) release(ctx context.Context, r Release) error {
	ending, err := s.store.Release(ctx, r)
	if ending == payment.Applied || ending == payment.NoRows {
		return nil
	}
	return unwritten("give the lease back", ending, err)
}

func didSettle(after, before payment.Status) Did {
	switch {
	case after == payment.Paid:
		return DidPaid
	case after == payment.Failed:
		return DidFailed
	case after == payment.Canceled:
		return DidCanceled
	case after == payment.AwaitingDeposit && before != after:
		return DidAwaiting
	default:
		return DidWait
	}
}
