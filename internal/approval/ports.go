// Package approval holds the use cases of paymentd: confirm a payment, settle it by what Toss says, and give
// money back that may not stay. It owns the ports it needs and knows no database, gateway client or HTTP.
package approval

import (
	"context"
	"time"

	"paymentd/internal/payment"
)

// Gateway is Toss, behind the pipeline. No method returns an error: whatever happens is an Answer.
type Gateway interface {
	// Peek tells, without taking a permit, whether the breaker or the bulkhead would refuse a confirm now;
	// nil means that neither would.
	Peek() *payment.Answer
	// Confirm runs the pipeline and returns the answer of every try in order, refusals included, at least one.
	Confirm(ctx context.Context, call ConfirmCall) []payment.Answer
	// Lookup reads a payment by its key. Never blocked by the breaker.
	Lookup(ctx context.Context, paymentKey string, tries Tries) payment.Answer
	// Cancel sends one cancel. Never blocked by the breaker.
	Cancel(ctx context.Context, call CancelCall) payment.Answer
}

// Tries says how patient a lookup or cancel is.
type Tries int

const (
	// OneTry is for a live confirm: one try, and no waiting for the lookup rate.
	OneTry Tries = iota
	// Patient is for recovery, sync and operators: three tries, waits of 1 s and 2 s, and the rate is waited for.
	Patient
	// Hinted is for a webhook of a known payment: OneTry, but only if half of the lookup rate stays for the others.
	Hinted
	// Stranger is for a webhook of an unknown payment: one try, from a budget of its own (1 per s) that is waited for.
	Stranger
)

// ConfirmCall is one confirm.
type ConfirmCall struct {
	Order payment.Order
	// Key is the Idempotency-Key of the first try.
	Key string
	// NotAfter is the end of the lease by the monotonic clock: nothing is sent past it.
	NotAfter time.Time
	// Next is asked before every further try; see NextTry.
	Next NextTry
	// Background marks recovery's own send: it may take at most one of the breaker's trials.
	Background bool
}

// NextTry applies the key rule before try 2 and later: it gets the last answer and returns the key to send, or
// send=false to end the sequence; then a Kind that is not empty in the returned answer is one more answer heard
// (a lookup that settled the payment).
type NextTry func(ctx context.Context, last payment.Answer) (key string, send bool, heard payment.Answer)

// CancelCall is one cancel of Amount at Toss.
type CancelCall struct {
	PaymentKey string
	Key        string
	// Reason ends with our mark (payment.CancelMark).
	Reason string
	// Amount is what to give back; Balance is the guard: Toss refuses when its balance differs.
	Amount   payment.Amount
	Balance  payment.Amount
	Currency payment.Currency
	// Full leaves the amount out, which is the only cancel an unpaid virtual account allows.
	Full bool
	// Account is where a paid virtual account is refunded to.
	Account *payment.RefundAccount
	Tries   Tries
	// Stop, if not nil, ends the waits and pauses of a patient cancel when it is closed, not the try under way.
	Stop <-chan struct{}
}

// Reservations are the steps before a confirm is sent. An error comes with an Ending other than Applied and
// NoRows, which have none; NotApplied means that nothing was written. Every method of the store ends by itself within
// its own time-outs, because the reserving half of a confirm has no other deadline. A payment that is read may still
// be Leased although its DueAt has passed by its ReadAt: Held knows.
type Reservations interface {
	// Reserve inserts the order as PENDING, leased until now + lease. NoRows: somebody is in the way.
	Reserve(ctx context.Context, o payment.Order, lease time.Duration) (payment.Payment, payment.Ending, error)
	// Find reads the payment by its key, else the one that holds the order; found is false if neither is there.
	Find(ctx context.Context, paymentKey, orderID string) (p payment.Payment, found bool, err error)
	// FindNow is Find for the refusing path: it takes a connection only if one is free at this instant and
	// the caller stops waiting after 50 ms while the read runs to its end. read is false if it could not.
	FindNow(ctx context.Context, paymentKey, orderID string) (p payment.Payment, found, read bool)
	// TakeOver leases an unleased PENDING row under the version read.
	TakeOver(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error)
	// Reopen moves a reopenable FAILED row back to PENDING under the version read and leases it. NoRows: the row
	// changed or another payment holds the order by now.
	Reopen(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error)
}

// Outcomes are the steps of a holder after or between sends.
type Outcomes interface {
	// Settle commits a move with its event, notices and incident in one statement. The returned payment is the
	// row after it. A move to FAILED needs the version; a move to PAID or AWAITING_DEPOSIT the state alone. News that moves
	// nothing is NoRows while somebody else has a lease.
	Settle(ctx context.Context, s Settlement) (payment.Payment, payment.Ending, error)
	// Release gives the lease back and says when to look again. It matches the version, and raises it only for the event
	// of an incident that was not open.
	Release(ctx context.Context, r Release) (payment.Ending, error)
	// BeginSend stores a send before it happens, with its event: raises the version, sets maybe_sent and the time of the send,
	// takes the next key if asked, and leases the row until now + Lease, which may be in the past. NoRows: fence lost,
	// or the payment is older than Within.
	BeginSend(ctx context.Context, b BeginSend) (payment.Payment, payment.Ending, error)
	// MarkTold remembers that a caller was answered 202 for the payment.
	MarkTold(ctx context.Context, paymentKey string) error
}

// GiveBacks are the steps of a cancel at Toss that we ask for ourselves.
type GiveBacks interface {
	// BeginGiveBack leases the row and holds the order again if the payment is FAILED and nobody else holds it, and stores the
	// cancel with its key before it is sent, or takes up the unfinished one. If there is none and one of the same amount
	// was refused, it returns that one and stores nothing. It matches p's version.
	BeginGiveBack(ctx context.Context, g GiveBack) (Cancel, payment.Payment, payment.Ending, error)
	// EndGiveBack stores how the cancel ended, and what it means for the payment. It matches the version that
	// BeginGiveBack returned; a refused cancel keeps the order held, opens the incident cancel_failed and is looked at
	// again with a growing delay. Only another balance begins a new cancel.
	EndGiveBack(ctx context.Context, e GiveBackEnd) (payment.Payment, payment.Ending, error)
	// FindCancels reads a payment with its unfinished cancel and the one that was asked for under a key.
	FindCancels(ctx context.Context, q CancelQuery) (s Standing, found bool, err error)
	// BeginCancel stores a cancel of a PAID or AWAITING_DEPOSIT payment that somebody asks for and leases the payment,
	// under the version read. NoRows: the payment changed, is leased, has an unfinished cancel, or less is left.
	BeginCancel(ctx context.Context, c CancelAsked) (Cancel, payment.Payment, payment.Ending, error)
	// Abandon ends an unleased PENDING payment that was never sent as FAILED, under the version read, and remembers the
	// key it was asked for under. NoRows: the payment changed.
	Abandon(ctx context.Context, c CancelAsked) (payment.Payment, payment.Ending, error)
}

// Store is all that the use cases need of PostgreSQL.
type Store interface {
	Reservations
	Outcomes
	GiveBacks
}

// Settlement is one move of a payment and everything that is committed with it.
type Settlement struct {
	// Payment is the row as its holder read it; Version is the fence.
	Payment payment.Payment
	// Action says where to and why; its Do is payment.Settle.
	Action      payment.Action
	Observation payment.Observation
	Actor       payment.Actor
	// NotSent says that no try can have reached Toss: the only way maybe_sent becomes false.
	NotSent bool
	// Told says that a caller was answered 202, so that a failure gets its notice.
	Told bool
}

// LookAgainIn is payment.LookAgainIn.
const LookAgainIn = payment.LookAgainIn

// Release ends a holder's work on a row that stays where it is.
type Release struct {
	Payment payment.Payment
	// DueIn is when to look again; negative means the growing delay of recovery by Payment.Looks.
	DueIn time.Duration
	// DueBy is PostgreSQL's time by which an unfinished payment is due all the same; zero for none.
	DueBy time.Time
	// Park sets due_at to infinity: not due while the incident is open.
	Park bool
	// Forget clears due_at: a finished payment that needs no further look.
	Forget   bool
	Incident payment.IncidentKind
	// Sent says that the holder sent something; KeySpent that Toss answered an error under the last key.
	Sent, KeySpent bool
	// NotSent says that no try can have reached Toss since the reservation.
	NotSent bool
	// Told says that a caller was answered 202.
	Told        bool
	Actor       payment.Actor
	Reason      string
	Observation payment.Observation
}

// BeginSend asks for one send.
type BeginSend struct {
	Payment payment.Payment
	// NextKey takes n+1 instead of n.
	NextKey bool
	// Within refuses when the reservation is older; 0 means that age does not matter.
	Within time.Duration
	Lease  time.Duration
	Actor  payment.Actor
	// Reason is one short phrase for payment_events.
	Reason string
}

// GiveBack asks for one cancel of ours.
type GiveBack struct {
	Payment payment.Payment
	// Amount is the balance that Toss showed just now.
	Amount payment.Amount
	Reason string
	// Failure is the code with which Done will end an unfinished payment; see GiveBackEnd.
	Failure payment.FailureCode
	Actor   payment.Actor
	Lease   time.Duration
}

// CancelQuery asks for the payment of an order, or for one payment if ID is given.
type CancelQuery struct {
	ID      int64
	OrderID string
	// Key is the Idempotency-Key of whoever asked for a cancel; empty asks for none.
	Key string
}

// Standing is a payment with its cancels that matter to who asks for another.
type Standing struct {
	// Payment is the one that Asked belongs to, else the one that holds the order, else its last attempt.
	Payment payment.Payment
	// Open is the unfinished cancel of the payment, Asked the one under the key; nil if there is none.
	Open, Asked *Cancel
}

// CancelAsked is a cancel that somebody asks for.
type CancelAsked struct {
	Payment payment.Payment
	// ID is a new cancel id; Key the Idempotency-Key that a repetition carries.
	ID, Key string
	Amount  payment.Amount
	// Asked is the amount in the request; nil asks for all that is left.
	Asked  *payment.Amount
	Reason string
	// AskedBy is the name of the caller's key.
	AskedBy      string
	NeedsAccount bool
	Failure      payment.FailureCode
	Actor        payment.Actor
	Lease        time.Duration
}

// Cancel is one row of cancels.
type Cancel struct {
	// ID is "c-" and 26 random characters; it is the mark in the reason and the stem of the key.
	ID     string
	Sends  int
	Amount payment.Amount
	Reason string
	State  payment.CancelState
	// CreatedAt bounds the life of its key: Toss forgets keys after 15 days.
	CreatedAt time.Time
	// Key, Asked and AskedBy are of a cancel that somebody asked for; see CancelAsked.
	Key     string
	Asked   *payment.Amount
	AskedBy string
	// NeedsAccount: Toss wants a refund account with it, which is not stored, so that nobody can send it again.
	NeedsAccount bool
	// Failure is the code with which it ends an unfinished payment.
	Failure payment.FailureCode
	// RefusalCode is Toss's word, or one of payment.Refused….
	RefusalCode string
}

// Refused says that it is refused for good and not sent again.
func (c Cancel) Refused() bool { return c.State == payment.CancelRefused }

// GiveBackEnd says how a cancel ended.
type GiveBackEnd struct {
	Payment payment.Payment
	Cancel  Cancel
	// Done says that Toss confirmed it; Refused that Toss refuses it for good. Neither: not known yet.
	Done, Refused bool
	// RefusalCode says why it was refused: Toss's code, or one of payment.Refused….
	RefusalCode string
	// Quiet opens no incident for a refusal: nothing moved, and who asked is told.
	Quiet bool
	// KeySpent says that the next try needs the next key.
	KeySpent bool
	// Failure is the code with which Done ends an unfinished payment; empty means payment.FailGivenBack.
	Failure     payment.FailureCode
	Observation payment.Observation
	Actor       payment.Actor
	Reason      string
}
