package payment

import "time"

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
