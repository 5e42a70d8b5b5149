package payment

import "time"

// Rules are the time limits that Decide obeys; all are configuration (docs/config.md).
type Rules struct {
	// SendWithin is how long a never-sent payment may still be sent for the first time.
	SendWithin time.Duration
	// ResendWithin is how long an unanswered confirm may be sent again; 0 switches that off.
	ResendWithin time.Duration
	// Window is how long Toss lets an authenticated payment be confirmed (10 min), Margin what may still
	// be under way after it.
	Window, Margin time.Duration
	// UnknownIncidentAfter is when a payment that Toss cannot tell about becomes an incident.
	UnknownIncidentAfter time.Duration
	// VerifyAfter is the delay of the second look at a payment that expired here.
	VerifyAfter time.Duration
}

const (
	// LookAgainIn is the first delay after a doubt, and the only one of a payment that was never sent.
	LookAgainIn = 5 * time.Second
	// MostLookIn is the longest delay between two looks at a doubt.
	MostLookIn = 10 * time.Minute
	// WindowOver is the reason of a failure that asks for a second look.
	WindowOver = "the gateway's window is over"
	// DepositGrace is how long after its due date a virtual account may still receive a deposit.
	DepositGrace = 24 * time.Hour
)

const (
	// settleAfterSend is the least time between the last send and the verdict "it never arrived".
	settleAfterSend = 5 * time.Minute
	// crossingLook is when a payment that somebody else than its own confirm made PAID is looked at again,
	// because a cancel of that confirm may cross.
	crossingLook = 2 * time.Minute
)

// LookIn is the delay until the next look at a doubt that was looked at so often: 5 s, 15 s, 1 min, 5 min, then 10 min.
func LookIn(looks int) time.Duration {
	delays := [...]time.Duration{LookAgainIn, 15 * time.Second, time.Minute, 5 * time.Minute}
	if looks < len(delays) {
		return delays[max(looks, 0)]
	}
	return MostLookIn
}

// Verb is what an Action asks for.
type Verb string

// The verbs.
const (
	// Stay changes nothing but what Incident says.
	Stay Verb = "stay"
	// Settle moves the payment to Action.To (which may be the state it is in, to record amounts).
	Settle Verb = "settle"
	// Send sends the confirm, for the first time or again; only recovery and sync do it.
	Send Verb = "send"
	// Wait gives the lease back and looks again later.
	Wait Verb = "wait"
	// Park keeps the payment where it is and out of the due loop while its incident is open.
	Park Verb = "park"
	// GiveBack cancels the balance at Toss.
	GiveBack Verb = "give back"
	// CancelDeposit cancels an unpaid virtual account at Toss.
	CancelDeposit Verb = "cancel deposit"
)

// Action is what one observation calls for.
type Action struct {
	Do       Verb
	To       Status
	Failure  *Failure
	Incident IncidentKind
	// VerifyIn, if not zero, asks for a second look after that time.
	VerifyIn time.Duration
	// Reason is one short phrase for payment_events.
	Reason string
}

// Decide names every move of a payment, whoever brought the news. It is total: a pair that the table does not
// list is "stay, incident unexpected_state". now is PostgreSQL's time before the lookup was sent. No answer of
// Toss is no news: it never moves a payment and only a PENDING one turns into an incident by it.
func (r Rules) Decide(p Payment, o Observation, now time.Time) Action {
	switch p.Status {
	case Pending:
		return r.decidePending(p, o, now)
	case AwaitingDeposit:
		return r.decideAwaiting(p, o, now)
	case Paid:
		return decidePaid(p, o)
	case Failed:
		return decideFailed(p, o)
	case Canceled:
		return decideCanceled(o)
	default:
		return unexpected("unknown local state")
	}
}

func (r Rules) decidePending(p Payment, o Observation, now time.Time) Action {
	switch o.Sighting {
	case SeenDone:
		return compare(p, o)
	case SeenWaiting:
		if !o.Matches(p) {
			return mismatch()
		}
		return Action{Do: Settle, To: AwaitingDeposit, Reason: "virtual account issued"}
	case SeenPartlyCanceled, SeenCanceled:
		return decidePendingReturned(p, o)
	case SeenAborted, SeenDeclined:
		return fail(FailDeclined, o, "declined")
	case SeenExpired, SeenSessionGone:
		return fail(FailExpired, o, "expired at the gateway")
	case SeenNoAnswer, SeenUnknownStatus:
		return r.waitUnknown(p, now)
	case SeenNothing, SeenNotFound, SeenReady, SeenInProgress:
		return r.decideOpen(p, o, now)
	default:
		return unexpected("unlisted sighting")
	}
}

func decidePendingReturned(p Payment, o Observation) Action {
	switch {
	case o.Returned() && o.returnedByUs():
		return fail(FailGivenBack, o, "given back by us")
	case o.Returned():
		return fail(FailCanceledAtGateway, o, "canceled at the gateway")
	case o.Sighting == SeenCanceled:
		return unexpected("canceled with a balance left")
	case !o.Matches(p):
		return mismatch()
	default:
		return Action{Do: Settle, To: Paid, Incident: UnexpectedState, Reason: "partly canceled before we knew of the approval"}
	}
}

// decideOpen is for a payment that Toss has not finished: send, wait or expire.
func (r Rules) decideOpen(p Payment, o Observation, now time.Time) Action {
	age := now.Sub(p.ReservedAt)
	if !p.MaybeSent {
		if age < r.SendWithin {
			return Action{Do: Send, Reason: "never sent"}
		}
		return fail(FailExpired, o, "never sent in time")
	}
	if o.Sighting == SeenNothing {
		return r.waitUnknown(p, now)
	}
	switch {
	case r.ResendWithin > 0 && age < r.ResendWithin:
		return Action{Do: Send, Reason: "open at the gateway"}
	case now.Before(r.Lost(p)):
		return Action{Do: Wait, Reason: "the gateway's window is open"}
	default:
		a := fail(FailExpired, o, WindowOver)
		a.VerifyIn = r.VerifyAfter
		return a
	}
}

// Lost is the time after which a send that Toss does not show can no longer turn into an approval. A first send
// that was not recorded counts from the reservation: a missing time must not look like one long ago.
func (r Rules) Lost(p Payment) time.Time {
	first := p.FirstSentAt
	if first.IsZero() {
		first = p.ReservedAt
	}
	window, last := first.Add(r.Window+r.Margin), p.LastSentAt.Add(settleAfterSend)
	if last.After(window) {
		return last
	}
	return window
}

func (r Rules) waitUnknown(p Payment, now time.Time) Action {
	a := Action{Do: Wait, Reason: "no usable answer"}
	if now.Sub(p.ReservedAt) >= r.UnknownIncidentAfter {
		a.Incident = UnknownOutcome
	}
	return a
}

func (r Rules) decideAwaiting(p Payment, o Observation, now time.Time) Action {
	switch {
	case o.Sighting == SeenDone:
		return compare(p, o)
	case o.Returned():
		return decideAwaitingReturned(o)
	case o.Sighting == SeenAborted || o.Sighting == SeenExpired:
		return fail(FailExpired, o, "no deposit")
	case o.Sighting == SeenWaiting && p.VirtualAccount.overdue(now):
		return Action{Do: CancelDeposit, Reason: "deposit overdue"}
	case o.Sighting == SeenWaiting:
		return Action{Do: Wait, Reason: "waiting for the deposit"}
	case o.noNews():
		return Action{Do: Wait, Reason: "no usable answer"}
	default:
		return unexpected("not a state of a virtual account")
	}
}

func decideAwaitingReturned(o Observation) Action {
	switch {
	case o.returnedByUs() && o.ApprovedAt.IsZero():
		return fail(FailExpired, o, "canceled by us, nobody had paid")
	case o.returnedByUs():
		return fail(FailGivenBack, o, "given back by us")
	default:
		return fail(FailCanceledAtGateway, o, "canceled at the gateway")
	}
}

// overdue reports whether nobody can pay in any more.
func (v *VirtualAccount) overdue(now time.Time) bool {
	return v != nil && !v.DueDate.IsZero() && now.After(v.DueDate.Add(DepositGrace))
}

func decidePaid(p Payment, o Observation) Action {
	switch {
	case o.noNews():
		return Action{Do: Stay, Reason: "no usable answer"}
	case o.Returned() || (o.Sighting == SeenDone && o.Balance == 0):
		return Action{Do: Settle, To: Canceled, Reason: "fully canceled"}
	case o.Sighting == SeenPartlyCanceled && o.Matches(p):
		return Action{Do: Settle, To: Paid, Reason: "partly canceled"}
	case (o.Sighting == SeenDone || o.Sighting == SeenPartlyCanceled) && !o.Matches(p),
		o.Sighting == SeenDone && o.Balance != o.Total:
		return Action{Do: Stay, Incident: Mismatch, Reason: "the approval differs from the order"}
	case o.Sighting == SeenDone && p.CanceledAmount == 0:
		return Action{Do: Stay, Reason: "as known"}
	default:
		return unexpected("contradicts PAID")
	}
}

func decideFailed(p Payment, o Observation) Action {
	switch {
	case (o.Charged() || o.Sighting == SeenWaiting) && (o.PaymentKey != p.PaymentKey || o.OrderID != p.OrderID):
		// The money of another order, of another system of the merchant: not ours to give back.
		return Action{Do: Stay, Incident: Mismatch, Reason: "the approval is of another order"}
	case o.Charged():
		return Action{Do: GiveBack, Reason: "approved after it failed here"}
	case o.Sighting == SeenWaiting:
		return Action{Do: CancelDeposit, Reason: "virtual account of a failed payment"}
	case o.noNews():
		return Action{Do: Stay, Reason: "no usable answer"}
	default:
		return Action{Do: Stay, Reason: "as known"}
	}
}

func decideCanceled(o Observation) Action {
	switch {
	case o.noNews():
		return Action{Do: Stay, Reason: "no usable answer"}
	case o.Returned() || o.Sighting == SeenDone && o.Balance == 0:
		return Action{Do: Stay, Reason: "as known"}
	default:
		return unexpected("contradicts CANCELED")
	}
}

// Agrees reports whether Toss says of a payment what we say, so that an incident about a contradiction has lost its
// cause. Of a FAILED one only a definite end does: that Toss no longer knows it explains nothing.
func (o Observation) Agrees(p Payment) bool {
	switch p.Status {
	case AwaitingDeposit:
		return o.Sighting == SeenWaiting && o.Matches(p)
	case Paid:
		return (o.Sighting == SeenDone || o.Sighting == SeenPartlyCanceled) && o.Matches(p) && o.Total-o.Balance == p.CanceledAmount
	case Failed:
		return o.Sighting == SeenAborted || o.Sighting == SeenExpired
	case Canceled:
		return o.Returned() || o.Sighting == SeenDone && o.Balance == 0
	default:
		return false
	}
}

// noNews is an answer that says nothing of the payment.
func (o Observation) noNews() bool {
	return o.Sighting == SeenNoAnswer || o.Sighting == SeenUnknownStatus || o.Sighting == SeenNothing
}

// compare accepts an approval only if everything is as ordered and nothing was taken back.
func compare(p Payment, o Observation) Action {
	if !o.Matches(p) || o.Balance != o.Total {
		return mismatch()
	}
	return Action{Do: Settle, To: Paid, Reason: "approved"}
}

func mismatch() Action {
	return Action{Do: Park, Incident: Mismatch, Reason: "the approval differs from the order"}
}

func unexpected(reason string) Action {
	return Action{Do: Stay, Incident: UnexpectedState, Reason: reason}
}

func fail(code FailureCode, o Observation, reason string) Action {
	return Action{
		Do: Settle, To: Failed, Reason: reason,
		Failure: &Failure{Code: code, GatewayCode: o.FailureCode, Message: o.FailureMessage},
	}
}

// SettleFrom lists the states from which a payment may be settled to a state: the guard of the SQL statements. It
// holds exactly the moves that Decide makes; Paid from Paid records a partial cancel.
func SettleFrom(to Status) []Status {
	switch to {
	case Paid:
		return []Status{Pending, AwaitingDeposit, Paid}
	case AwaitingDeposit:
		return []Status{Pending}
	case Failed:
		return []Status{Pending, AwaitingDeposit}
	case Canceled:
		return []Status{Paid}
	default:
		return nil
	}
}

// NeedsFence reports whether a move must match the version its holder read: news of an approval may come from
// anybody, a failure only from the holder.
func NeedsFence(to Status) bool { return to == Failed }

// CrossingLook is the delay of the second look after a move to PAID by another actor than the payment's own
// confirm, whose cancel may cross it; zero for confirm.
func CrossingLook(a Actor, to Status) time.Duration {
	if a != ByConfirm && to == Paid {
		return crossingLook
	}
	return 0
}
