package approval

import (
	"context"
	"time"

	"paymentd/internal/payment"
)

// cancelKeyLife is how long a cancel key is sent: Toss forgets it after 15 days and would run it again.
const cancelKeyLife = 14 * 24 * time.Hour

// debt is money, or an unpaid virtual account, that Toss holds for a payment that may not stand.
type debt struct {
	payment payment.Payment
	// seen is what Toss said just now; its balance is what goes back.
	seen   payment.Observation
	action payment.Action
	actor  payment.Actor
	tries  Tries
	// stop, if not nil, ends lookups and pauses when it is closed.
	stop <-chan struct{}
}

// giveBack cancels a debt at Toss. The cancel and its key are stored before it is sent, and only Toss's balance says
// that it worked. 0 rows mean that somebody else goes on with the payment, which is no error.
func (s *Service) giveBack(ctx context.Context, d debt) (payment.Payment, Did, error) {
	p, o := d.payment, d.seen
	c, held, ending, err := s.store.BeginGiveBack(ctx, GiveBack{
		Payment: p, Amount: o.Balance, Reason: d.action.Reason, Actor: d.actor, Lease: s.set.Lease,
	})
	switch ending {
	case payment.Applied:
	case payment.NoRows:
		return s.lost(ctx, p)
	default:
		return p, DidError, unwritten("begin give back", ending, err)
	}
	end := GiveBackEnd{Payment: held, Cancel: c, Actor: d.actor, Observation: o, Reason: d.action.Reason}
	if d.action.Do == payment.CancelDeposit {
		end.Failure = payment.FailExpired // nobody paid, so nothing went back
	}
	switch {
	case c.Refused:
		end.Refused, end.Reason = true, "the cancel was refused before"
		return s.endGiveBack(ctx, end)
	case held.ReadAt.Sub(c.CreatedAt) > cancelKeyLife:
		end.Refused, end.Reason = true, "the cancel's key is too old to be sent again"
		return s.endGiveBack(ctx, end)
	}
	// A cancel that is taken up keeps its own amount under its key: the key stands for one body.
	unpaid := d.action.Do == payment.CancelDeposit
	heard := s.gateway.Cancel(ctx, CancelCall{
		PaymentKey: p.PaymentKey, Key: payment.CancelKey(c.ID, c.Sends), Reason: payment.MarkedReason(c.Reason, c.ID),
		Amount: c.Amount, Balance: o.Balance, Currency: o.Currency, Full: unpaid || c.Amount == o.Total, Tries: d.tries, Stop: d.stop,
	})
	end.KeySpent = heard.SpendsKey()
	if heard.Kind != payment.KindPayment || !heard.Observation.Returned() {
		refused := heard.Kind == payment.KindDeclined || heard.Kind == payment.KindRejected
		heard = s.lookup(ctx, p.PaymentKey, look{d.tries, d.stop})
		// A refusal is no proof that no money moved; what Toss still holds is.
		end.Refused = refused && heard.Kind == payment.KindPayment && holds(heard.Observation)
	}
	if heard.Kind == payment.KindPayment {
		end.Observation = heard.Observation
		end.Done = nothingHeld(heard.Observation)
	}
	return s.endGiveBack(ctx, end)
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
	case end.Refused:
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
