package payment

import "log/slog"

// CancelState is where a cancel stands that we asked for, or that Toss shows.
type CancelState string

// The states. Open may or may not have reached Toss; Moot ended without it, because nothing was left to give back or
// because a payment that was never sent was abandoned.
const (
	CancelOpen    CancelState = "open"
	CancelDone    CancelState = "done"
	CancelRefused CancelState = "refused"
	CancelMoot    CancelState = "moot"
)

// Why a cancel was refused without Toss's word; Toss's own codes are in capitals.
const (
	// RefusedMoreThanLeft: Toss holds less than the amount by now.
	RefusedMoreThanLeft = "more_than_left"
	// RefusedDepositArrived: somebody paid into the virtual account before it was canceled.
	RefusedDepositArrived = "deposit_arrived"
	// RefusedAccountNeeded: no sign of a cancel that only its caller could send again, with the refund account.
	RefusedAccountNeeded = "account_needed_again"
	// RefusedKeyTooOld: Toss forgets keys after 15 days and would run the cancel once more.
	RefusedKeyTooOld = "key_too_old"
)

// RefundAccount is where the money of a paid virtual account goes. It is passed on to Toss and kept nowhere: no
// verb, logger or encoder prints it.
type RefundAccount struct {
	// Bank is Toss's code; AccountNumber has at most 20 digits, HolderName at most 60 characters.
	Bank, AccountNumber, HolderName string
}

const redacted = "[redacted]"

// String is the same for every account.
func (RefundAccount) String() string { return redacted }

// GoString is String.
func (RefundAccount) GoString() string { return redacted }

// LogValue is String.
func (RefundAccount) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText is String, also inside JSON: whoever sends the account on names its fields.
func (RefundAccount) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// methodVirtualAccount is Toss's word in the language that we ask for.
const methodVirtualAccount = "가상계좌"

// ByVirtualAccount reports whether the buyer pays into a virtual account: once paid, Toss refunds it only to an account
// that is named.
func (p Payment) ByVirtualAccount() bool {
	return p.VirtualAccount != nil || p.Method == methodVirtualAccount
}

// Left is what of the payment was not given back yet, as far as we know.
func (p Payment) Left() Amount { return p.Amount - p.CanceledAmount }

// Abandoned reports whether the payment was given up before it was sent.
func (p Payment) Abandoned() bool {
	return p.Status == Failed && p.Failure != nil && p.Failure.Code == FailAbandoned
}

// Shows reports whether the cancel of ours with that id is among the cancels that Toss lists.
func (o Observation) Shows(cancelID string) bool {
	for _, c := range o.Cancels {
		if CancelMark(c.Reason) == cancelID {
			return true
		}
	}
	return false
}
