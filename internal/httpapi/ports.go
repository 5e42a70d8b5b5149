package httpapi

import (
	"context"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// Confirmer approves payments (approval.Service). The answer counts even beside an error.
type Confirmer interface {
	// Confirm returns a *payment.Error for everything that is answered with a problem.
	Confirm(ctx context.Context, o payment.Order) (approval.Answer, error)
}

// Canceler gives payments back (approval.Service). The answer counts even beside an error.
type Canceler interface {
	// Cancel returns a *payment.Error for everything that is answered with a problem.
	Cancel(ctx context.Context, r approval.CancelRequest) (approval.CancelAnswer, error)
}

// Reader reads the ledger (store.Store). An error that is no *payment.Error means that the database did not answer.
type Reader interface {
	// ByOrder reads the payment that holds the order, else its last attempt.
	ByOrder(ctx context.Context, orderID string) (p payment.Payment, found bool, err error)
	// Attempts reads every payment of the order, the oldest first.
	Attempts(ctx context.Context, orderID string) ([]payment.Payment, error)
	// Events reads the moves of one payment by version.
	Events(ctx context.Context, paymentID int64) ([]payment.Event, error)
}

// Incidents are the doubts that a machine may not decide (store.Store). An error that is no *payment.Error means that the
// database did not answer.
type Incidents interface {
	// Incidents reads a page, the newest first.
	Incidents(ctx context.Context, f payment.IncidentFilter) ([]payment.Incident, error)
	// ResolveIncident carries an operator's word out; an incident that is resolved already comes back as it is.
	ResolveIncident(ctx context.Context, r payment.ResolveIncident) (payment.Incident, error)
}

// Syncer compares payments with Toss on an operator's word (recovery.Recovery).
type Syncer interface {
	// Sync reports what was done; payments that could not be settled count as errors in the report.
	Sync(ctx context.Context, r payment.SyncRequest) (payment.SyncReport, error)
}

// Hinter handles what webhooks of Toss claim (recovery.Hints).
type Hinter interface {
	// Hint returns an error unless the webhook is handled or stored: then Toss must send it again.
	Hint(ctx context.Context, h payment.Hint) (payment.HintState, error)
}
