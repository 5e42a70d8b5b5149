package approval

import (
	"context"
	"fmt"
	"time"

	"paymentd/internal/payment"
)

// cancelKeyLife is how long a cancel key is sent: Toss forgets it after 15 days and would run it again.
const cancelKeyLife = 14 * 24 * time.Hour

// giveBack cancels at Toss what may not stand: the balance of an approval of a FAILED payment, or an unpaid virtual
// account. The cancel and its key are stored before it is sent, and only Toss's balance says that it worked.
func (s *Service) giveBack(ctx context.Context, p payment.Payment, o payment.Observation, a payment.Action,
	actor payment.Actor, tries Tries) (payment.Payment, error) {
	unpaid := a.Do == payment.CancelDeposit
	g := GiveBack{Payment: p, Amount: o.Balance, Balance: o.Balance, Reason: a.Reason, Actor: actor, Lease: s.set.Lease}
	c, held, ending, err := s.store.BeginGiveBack(ctx, g)
	if ending != payment.Applied {
		return p, fmt.Errorf("begin give back (%s): %w", ending, err)
	}
	end := GiveBackEnd{Payment: held, Cancel: c, Actor: actor, Observation: o, Reason: a.Reason}
	if held.ReadAt.Sub(c.CreatedAt) > cancelKeyLife {
		end.Refused, end.Reason = true, "the cancel's key is too old to be sent again"
		return s.endGiveBack(ctx, end)
	}
	heard := s.gateway.Cancel(ctx, CancelCall{
		PaymentKey: p.PaymentKey, Key: payment.CancelKey(c.ID, c.Sends), Reason: payment.MarkedReason(a.Reason, c.ID),
		Amount: o.Balance, Balance: o.Balance, Currency: o.Currency, Full: unpaid || o.Balance == o.Total, Tries: tries,
	})
	end.KeySpent = heard.SpendsKey()
	if heard.Kind != payment.KindPayment || !heard.Observation.Returned() {
		refused := heard.Kind == payment.KindDeclined || heard.Kind == payment.KindRejected
		heard = s.gateway.Lookup(ctx, p.PaymentKey, tries)
		// A refusal is no proof that no money moved; the balance is.
		end.Refused = refused && heard.Kind == payment.KindPayment && heard.Observation.Charged()
	}
	if heard.Kind == payment.KindPayment {
		end.Observation = heard.Observation
		end.Done = heard.Observation.Returned()
	}
	return s.endGiveBack(ctx, end)
}

func (s *Service) endGiveBack(ctx context.Context, end GiveBackEnd) (payment.Payment, error) {
	p, ending, err := s.store.EndGiveBack(ctx, end)
	if ending != payment.Applied {
		return end.Payment, fmt.Errorf("end give back (%s): %w", ending, err)
	}
	return p, nil
}
