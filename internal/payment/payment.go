// Package payment is the vocabulary of paymentd: what a payment is, which states it has, what Toss can
// tell about it, and the pure rules that decide what follows. It does no input or output.
package payment

import "time"

// Status is the state of a payment in our ledger (docs/state-machine.md).
type Status string

// The five states. Pending, AwaitingDeposit, Paid and Canceled hold their order; Failed lets it go unless
// a give back of it is unfinished or was refused.
const (
	Pending         Status = "PENDING"
	AwaitingDeposit Status = "AWAITING_DEPOSIT"
	Paid            Status = "PAID"
	Failed          Status = "FAILED"
	Canceled        Status = "CANCELED"
)

// Statuses lists every state, in the order of a payment's life.
func Statuses() []Status { return []Status{Pending, AwaitingDeposit, Paid, Failed, Canceled} }

// Unfinished reports whether news from Toss is still expected.
func (s Status) Unfinished() bool { return s == Pending || s == AwaitingDeposit }

// Payment is one row of our ledger. Times are PostgreSQL's; the zero time means "not known".
type Payment struct {
	ID         int64
	OrderID    string
	PaymentKey string
	Amount     Amount
	Currency   Currency
	Status     Status

	Method         string
	ApprovedAt     time.Time
	ReceiptURL     string
	CanceledAmount Amount
	VirtualAccount *VirtualAccount
	Failure        *Failure
	MemberID       string
	ReceiptEmail   string
	CreatedAt      time.Time
	UpdatedAt      time.Time

	// Version is the fence: every move, claim, reopen and give back raises it. A row that is leased under the version that
	// its holder read is as he read it, but for Told; what ends the lease without a move clears Leased.
	Version int64
	// HoldsOrder keeps every other payment of the same order out.
	HoldsOrder bool
	// MaybeSent is false only when no try can have reached Toss since the reservation.
	MaybeSent bool
	// Leased means that a holder works on the row until DueAt; nobody else may touch it.
	Leased bool
	// DueAt is the end of the lease, else the time of the next look; zero means never.
	DueAt time.Time
	// WasDue is what DueAt was before a claim of this one payment; zero if never, or if nothing was claimed.
	WasDue time.Time
	// ReservedAt is the time of the reservation or of the last reopening.
	ReservedAt time.Time
	// FirstSentAt and LastSentAt bound the tries since ReservedAt.
	FirstSentAt time.Time
	LastSentAt  time.Time
	// Sends is n of the confirm key in use; KeySpent means that Toss answered an error under it.
	Sends    int
	KeySpent bool
	// Looks counts the looks of recovery since the last news; it sets the next delay.
	Looks int
	// Told means that a caller was answered 202, so that a failure needs a notice.
	Told bool
	// ReadAt is PostgreSQL's time when the row was read: "now" for every rule.
	ReadAt time.Time
}

// VirtualAccount is where the buyer pays in, until DueDate.
type VirtualAccount struct {
	BankCode      string
	AccountNumber string
	CustomerName  string
	DueDate       time.Time
}

// FailureCode says why a payment is FAILED.
type FailureCode string

// The failure codes; the last three let a confirm with the same data reopen the payment.
const (
	FailDeclined          FailureCode = "declined"
	FailExpired           FailureCode = "expired"
	FailGivenBack         FailureCode = "given_back"
	FailCanceledAtGateway FailureCode = "canceled_at_gateway"
	FailMismatch          FailureCode = "mismatch"
	FailAbandoned         FailureCode = "abandoned"
	FailPGUnavailable     FailureCode = "pg_unavailable"
	FailBusy              FailureCode = "busy"
	FailMisconfigured     FailureCode = "gateway_misconfigured"
)

// Failure is the reason of a FAILED payment; GatewayCode and Message are Toss's own words, safe to show.
type Failure struct {
	Code        FailureCode
	GatewayCode string
	Message     string
}

// Reopens reports whether a confirm call with the same data may move FAILED back to PENDING.
func (f *Failure) Reopens() bool {
	return f != nil && (f.Code == FailPGUnavailable || f.Code == FailBusy || f.Code == FailMisconfigured)
}

// Order is what a checkout asks to confirm.
type Order struct {
	PaymentKey   string
	OrderID      string
	Amount       Amount
	Currency     Currency
	MemberID     string
	ReceiptEmail string
	// ArrivedAt is when the headers of the call were read; ANSWER_WITHIN counts from there.
	ArrivedAt time.Time
}

// SameAs reports whether a call is a duplicate of p: memberId and receiptEmail do not count.
func (o Order) SameAs(p Payment) bool {
	return o.PaymentKey == p.PaymentKey && o.OrderID == p.OrderID && o.Amount == p.Amount && o.Currency == p.Currency
}

// Actor names who brought the news that moved a payment.
type Actor string

// The actors, as metric labels and in payment_events.
const (
	ByConfirm  Actor = "confirm"
	ByRecovery Actor = "recovery"
	BySync     Actor = "sync"
	ByWebhook  Actor = "webhook"
	ByOperator Actor = "operator"
)

// Actors lists every actor.
func Actors() []Actor { return []Actor{ByConfirm, ByRecovery, BySync, ByWebhook, ByOperator} }

// NoticeKind names what a notice tells.
type NoticeKind string

// The notice kinds: three for the checkout's webhook, one for the buyer.
const (
	NoticePaid     NoticeKind = "payment.paid"
	NoticeFailed   NoticeKind = "payment.failed"
	NoticeCanceled NoticeKind = "payment.canceled"
	NoticeReceipt  NoticeKind = "receipt"
)

// Ending says how a writing statement ended. It is a closed set: what a caller may conclude depends on it.
type Ending int

// The four endings of a write (design note "Confirm, step 7").
const (
	// MaybeApplied is the zero value on purpose: forgetting to say is "don't know".
	MaybeApplied Ending = iota
	// Applied means the statement committed and changed the row.
	Applied
	// NoRows means that the statement ran and its guard matched nothing.
	NoRows
	// NotApplied means that the statement certainly did not commit.
	NotApplied
)

// String names the ending for logs.
func (e Ending) String() string {
	return [...]string{"maybe applied", "applied", "0 rows", "not applied"}[e]
}

// Event is one row of payment_events: a move of a payment, who brought the news, and why.
type Event struct {
	// Version is the payment's version after the move.
	Version int64
	// From is empty for the first event of a payment.
	From, To Status
	Actor    Actor
	// Reason is one short phrase, safe to show.
	Reason string
	At     time.Time
}
