package protocol

import (
	"strings"

	"paymentd/internal/payment"
)

// What the model of Toss keeps to (internal/tosssim keeps to the same and more): one paymentKey is charged once; the first answer
// under an Idempotency-Key is replayed, errors too, without a look at the state of today; a payment may be confirmed
// within its window; a request that is under way ends within the margin.
const (
	tossWindow seconds = 600
	// mostUnderWay is the end of every confirm, counted like the window: window and margin. mostLate is the end of those that break
	// the promise: before paymentd's second look, after which nobody but the audit would see them.
	mostUnderWay       seconds = 900
	mostLate           seconds = 2800
	mostCancelUnderWay seconds = 60
	mostNumbers                = 8
	mostFlights                = 3
	mostCancelKeys             = 6
)

// account is one paymentKey at Toss.
type account struct {
	Status  uint8 // index into payment.Sightings: READY, DONE, ABORTED or CANCELED
	Times   uint8
	Born    seconds
	Kept    [mostNumbers]reply // the first answer under each confirm key
	Flights [mostFlights]flight
	// CanceledBy is the cancel whose mark Toss shows; Compensations numbers those that no row of ours knows.
	CanceledBy    uint8
	Compensations uint8
	Cancels       [mostCancelKeys]keptCancel
	Recalls       [mostFlights]recall
}

// flight is a confirm under way: on the wire, where nobody sees it, or running at Toss.
type flight struct {
	N       uint8
	Running bool
	Late    bool // beyond every promise of Toss
}

// recall is a cancel under way.
type recall struct {
	ID, N uint8
	Sent  seconds
}

type keptCancel struct {
	ID, N uint8
	Reply reply
}

// reply is an answer of Toss, small enough to be part of a state. The zero value is none.
type reply struct {
	Kind    uint8 // index into kinds
	Refuser uint8
	Seen    uint8 // index into payment.Sightings
	By      uint8 // the cancel that Toss shows
}

func kinds() []payment.Kind {
	return []payment.Kind{
		"", payment.KindPayment, payment.KindDeclined, payment.KindRejected, payment.KindSessionGone, payment.KindAmbiguous,
		payment.KindProcessing, payment.KindKeyBusy, payment.KindFault, payment.KindReset, payment.KindTimeout,
		payment.KindThrottled, payment.KindMisconfigured, payment.KindNotFound, payment.KindNotConnected, payment.KindRefused,
	}
}

func refusers() []payment.Refuser {
	return []payment.Refuser{"", payment.RefusedByBreaker, payment.RefusedByLimiter, payment.RefusedByBulkhead, payment.RefusedByLease}
}

func answerOf(kind payment.Kind) reply { return reply{Kind: indexOf(kinds(), kind)} }

func refusal(by payment.Refuser) reply {
	return reply{Kind: indexOf(kinds(), payment.KindRefused), Refuser: indexOf(refusers(), by)}
}

// answer is the reply as the pipeline hands it on.
func (r reply) answer(k int) payment.Answer {
	a := payment.Answer{Kind: kinds()[r.Kind], Refuser: refusers()[r.Refuser], Observation: payment.Observation{Sighting: payment.SeenNoAnswer}}
	if a.Kind != payment.KindPayment {
		return a
	}
	a.Observation = payment.Observation{
		Sighting: payment.Sightings()[r.Seen], PaymentKey: paymentKey(k), OrderID: orderID, Total: price, Balance: price, Currency: payment.KRW,
	}
	if a.Observation.Sighting == payment.SeenCanceled {
		a.Observation.Balance = 0
		a.Observation.Cancels = []payment.GatewayCancel{{
			TransactionKey: cancelID(r.By), Amount: price, Reason: payment.MarkedReason("given back", cancelID(r.By)),
		}}
	}
	return a
}

// cancelID names the cancels of the model: those of a row count from 1, those that only a process knows from 10.
func cancelID(n uint8) string { return "c-" + strings.Repeat("a", 25) + string(rune('a'+n)) }

const firstCompensation = 10

func cancelNumber(id string) uint8 { return id[len(id)-1] - 'a' }

func (a account) seen() payment.Sighting { return payment.Sightings()[a.Status] }

func (a *account) become(s payment.Sighting) { a.Status = indexOf(payment.Sightings(), s) }

func (a account) balance() payment.Amount {
	if a.seen() == payment.SeenDone {
		return price
	}
	return 0
}

// kept is the first answer under key n. Keys beyond the bound come long after the window, when the answer is always the same.
func (a account) kept(n uint8) reply {
	if int(n) >= mostNumbers {
		return reply{}
	}
	return a.Kept[n]
}

func (a *account) keep(n uint8, r reply) {
	if int(n) < mostNumbers {
		a.Kept[n] = r
	}
}

func (a account) running() bool {
	for _, f := range a.Flights {
		if f.N != 0 && f.Running {
			return true
		}
	}
	return false
}

// show is what a payment object says now.
func (a account) show() reply {
	r := answerOf(payment.KindPayment)
	r.Seen, r.By = a.Status, a.CanceledBy
	return r
}

func (a account) over(now seconds) bool { return now >= a.Born+tossWindow }

// look answers a lookup.
func (s *state) look(k int, c config) reply {
	a := s.Toss[k]
	r := a.show()
	if a.seen() != payment.SeenReady {
		return r
	}
	switch {
	case a.running():
		r.Seen = indexOf(payment.Sightings(), payment.SeenInProgress)
	case a.over(s.Now) && c.saysExpired:
		r.Seen = indexOf(payment.Sightings(), payment.SeenExpired)
	}
	return r
}

// charge lets Toss do the work of the confirm under key n, and returns its answer.
func (s *state) charge(k int, n uint8) reply {
	a := &s.Toss[k]
	if r := a.kept(n); r != (reply{}) {
		return r
	}
	var r reply
	switch {
	case a.seen() != payment.SeenReady:
		r = answerOf(payment.KindAmbiguous) // ALREADY_PROCESSED_PAYMENT
	case a.over(s.Now):
		r = answerOf(payment.KindSessionGone)
	default:
		a.approve(n)
		return a.show()
	}
	a.keep(n, r)
	return r
}

// busy is Toss's answer while another request runs for the payment; none if there is none.
func (a account) busy(n uint8) reply {
	for _, f := range a.Flights {
		switch {
		case f.N == 0 || !f.Running || a.kept(n) != (reply{}):
		case f.N == n:
			return answerOf(payment.KindKeyBusy)
		default:
			return answerOf(payment.KindProcessing)
		}
	}
	return reply{}
}

// depart puts a confirm under way.
func (s *state) depart(k int, f flight) bool {
	for i := range s.Toss[k].Flights {
		if g := &s.Toss[k].Flights[i]; g.N == 0 {
			*g = f
			return true
		}
	}
	return false
}

// aloft reports whether a flight may still land. What Toss calls EXPIRED no request that reaches it later can revive.
func (a account) aloft(f flight, now seconds, c config) bool {
	switch {
	case f.N == 0:
		return false
	case f.Late:
		return now < a.Born+mostLate
	case c.saysExpired && !f.Running:
		return !a.over(now)
	default:
		return now < a.Born+mostUnderWay
	}
}

// land ends a flight at Toss: it was in time when it reached Toss, and approves if the payment is still open.
func (s *state) land(k, i int) {
	a := &s.Toss[k]
	f := a.Flights[i]
	a.Flights[i] = flight{}
	a.settleFlights()
	if a.seen() == payment.SeenReady && (f.Running || a.kept(f.N) == (reply{})) {
		a.approve(f.N)
	}
}

func (a *account) approve(n uint8) {
	a.become(payment.SeenDone)
	a.Times++
	a.keep(n, a.show())
}

// settleFlights closes the gaps, so that equal states look equal.
func (a *account) settleFlights() {
	n := 0
	for _, f := range a.Flights {
		if f.N != 0 {
			a.Flights[n], n = f, n+1
		}
	}
	clear(a.Flights[n:])
	n = 0
	for _, f := range a.Recalls {
		if f.ID != 0 {
			a.Recalls[n], n = f, n+1
		}
	}
	clear(a.Recalls[n:])
}

// forget drops what can no longer happen.
func (s *state) forget(c config) {
	for k := range s.Toss {
		a := &s.Toss[k]
		for i, f := range a.Flights {
			if !a.aloft(f, s.Now, c) {
				a.Flights[i] = flight{}
			}
		}
		for i, f := range a.Recalls {
			if s.Now >= f.Sent+mostCancelUnderWay {
				a.Recalls[i] = recall{}
			}
		}
		a.settleFlights()
	}
}

// giveBack lets Toss do the work of a cancel and returns its answer.
func (s *state) giveBack(k int, id, n uint8) reply {
	a := &s.Toss[k]
	if r := a.keptCancel(id, n); r != (reply{}) {
		return r
	}
	var r reply
	switch a.seen() {
	case payment.SeenDone:
		a.become(payment.SeenCanceled)
		a.CanceledBy = id
		r = a.show()
	case payment.SeenCanceled:
		r = answerOf(payment.KindAmbiguous) // ALREADY_CANCELED_PAYMENT
	default:
		r = answerOf(payment.KindDeclined) // NOT_CANCELABLE_PAYMENT
	}
	a.keepCancel(id, n, r)
	return r
}

func (a account) keptCancel(id, n uint8) reply {
	for _, c := range a.Cancels {
		if c.ID == id && c.N == n {
			return c.Reply
		}
	}
	return reply{}
}

func (a *account) keepCancel(id, n uint8, r reply) {
	for i := range a.Cancels {
		if a.Cancels[i].ID == 0 {
			a.Cancels[i] = keptCancel{id, n, r}
			return
		}
	}
	panic("mostCancelKeys is too small")
}

// recallLater puts a cancel under way.
func (s *state) recallLater(k int, id, n uint8) bool {
	for i := range s.Toss[k].Recalls {
		if f := &s.Toss[k].Recalls[i]; f.ID == 0 {
			*f = recall{id, n, s.Now}
			return true
		}
	}
	return false
}
