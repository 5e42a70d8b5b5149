package protocol

import (
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// seconds is a time of the model, counted from the first call of the buyer.
type seconds = int32

// never is the absence of a time, parked is PostgreSQL's infinity.
const (
	never  seconds = -1
	parked seconds = 1 << 30
)

// The order of the model can be paid with two paymentKeys.
const (
	keyA = iota
	keyB
	keys
)

const (
	orderID = "order-1"
	price   = payment.Amount(15000)
)

// paymentKeys are the names of the two keys.
func paymentKey(k int) string { return [keys]string{"A", "B"}[k] }

// keyOf is the inverse of paymentKey.
func keyOf(name string) int {
	if name == "B" {
		return keyB
	}
	return keyA
}

// epoch is the model's time 0.
var epoch = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

func at(s seconds) time.Time {
	if s == never {
		return time.Time{}
	}
	return epoch.Add(time.Duration(s) * time.Second)
}

// whole rounds up to seconds of the model.
func whole(d time.Duration) seconds { return seconds((d + time.Second - 1) / time.Second) }

// cancelState is the state of one row of cancels.
type cancelState uint8

const (
	noCancel cancelState = iota
	cancelOpen
	cancelRefused
	cancelDone
	cancelMoot
)

// cancelRow is one row of cancels. Its id is the model's: see cancelID.
type cancelRow struct {
	State   cancelState
	ID      uint8
	Sends   uint8
	Spent   bool
	Created seconds
}

// view is the row as a statement returns it.
func (c cancelRow) view() approval.Cancel {
	return approval.Cancel{
		ID: cancelID(c.ID), Sends: int(c.Sends), Amount: price, Reason: "given back", CreatedAt: at(c.Created),
		State: [...]payment.CancelState{"", payment.CancelOpen, payment.CancelRefused, payment.CancelDone, payment.CancelMoot}[c.State],
	}
}

// mostCancels bounds the cancels of one payment; the model stops with a message when it is not enough.
const mostCancels = 4

// row is one row of payments with what hangs on it: cancels, open incidents, and how often each notice was written.
type row struct {
	There     bool
	Status    uint8 // index into payment.Statuses()
	Failure   uint8 // index into failures
	Holds     bool
	MaybeSent bool
	Leased    bool
	KeySpent  bool
	Told      bool
	Version   uint8
	Sends     uint8
	Looks     uint8
	Due       seconds
	Reserved  seconds
	First     seconds
	Last      seconds
	Canceled  bool // canceled_amount = amount
	Incidents uint8
	Paid      uint8 // notices payment.paid written
	Failed    uint8
	Refunded  uint8
	Cancels   [mostCancels]cancelRow
}

// failures lists the failure codes; index 0 is none.
func failures() []payment.FailureCode {
	return []payment.FailureCode{
		"", payment.FailDeclined, payment.FailExpired, payment.FailGivenBack, payment.FailCanceledAtGateway, payment.FailMismatch,
		payment.FailAbandoned, payment.FailPGUnavailable, payment.FailBusy, payment.FailMisconfigured,
	}
}

func indexOf[T comparable](list []T, x T) uint8 {
	for i, y := range list {
		if x == y {
			return uint8(i)
		}
	}
	panic("not in the list")
}

func (r row) status() payment.Status { return payment.Statuses()[r.Status] }

func (r *row) set(s payment.Status) { r.Status = indexOf(payment.Statuses(), s) }

// view is the row as a statement returns it.
func (r row) view(k int, now seconds) payment.Payment {
	p := payment.Payment{
		ID: int64(k + 1), OrderID: orderID, PaymentKey: paymentKey(k), Amount: price, Currency: payment.KRW, Status: r.status(),
		Version: int64(r.Version), HoldsOrder: r.Holds, MaybeSent: r.MaybeSent, Leased: r.Leased, KeySpent: r.KeySpent,
		Told: r.Told, Sends: int(r.Sends), Looks: int(r.Looks), DueAt: at(r.Due), ReservedAt: at(r.Reserved),
		FirstSentAt: at(r.First), LastSentAt: at(r.Last), ReadAt: at(now),
	}
	if r.Canceled {
		p.CanceledAmount = price
	}
	if r.Failure != 0 {
		p.Failure = &payment.Failure{Code: failures()[r.Failure]}
	}
	return p
}

// proc is one process at work: a confirm of a client, or recovery or sync with one claimed payment. It is known by its
// local state (see local), whose future the real code alone decides.
type proc struct {
	Node     uint32 // 0: no process
	Answered bool   // its client has its answer
	Heard    uint32 // answer of a lookup that is on its way back
}

// state is everything at one moment. It is comparable and holds no pointer, so that a copy is an assignment.
type state struct {
	Now    seconds
	Level  uint8
	Faults uint8 // budgets left
	Kills  uint8
	Hints  uint8
	Pauses uint8       // ticks that may still pass while somebody works
	Calls  [keys]uint8 // calls that the client may still make
	Down   bool        // the database
	Rows   [keys]row
	Toss   [keys]account
	Procs  [mostProcs]proc
	Client [keys]knowledge
	// Stolen is set when an order was taken although a give back of it was under way or refused.
	Stolen bool
}

// mostProcs bounds the processes at work at one time.
const mostProcs = 3

// knowledge is what the client was last told of one key.
type knowledge struct {
	Failed bool // definitely, and no call since
	Paid   bool
}
