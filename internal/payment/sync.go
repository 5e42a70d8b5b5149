package payment

import "time"

// SyncRequest asks to compare payments with Toss now. The zero value means: whatever is unfinished and due.
type SyncRequest struct {
	// OrderIDs, if not empty, are the orders to look at, in any state.
	OrderIDs []string
	// OlderThan leaves payments out that were reserved later than that long ago.
	OlderThan time.Duration
	// Limit bounds how many payments are looked at; 0 means the default.
	Limit int
	// DryRun looks and decides, but neither writes nor sends a confirm or cancel.
	DryRun bool
}

// SyncResult is what a sync did with one payment.
type SyncResult struct {
	OrderID string
	// Before and After are equal if nothing moved.
	Before, After Status
	// Reason is one short phrase, safe to show; SyncInProgress for a row that somebody works on.
	Reason string
}

// SyncInProgress is the reason of a row that was left alone because somebody holds its lease.
const SyncInProgress = "in_progress"

// SyncReport sums a sync up. Checked counts the payments looked at; the others how they ended.
type SyncReport struct {
	Checked, Paid, Failed, Waiting, Canceled, Incidents, Errors int
	Results                                                     []SyncResult
}

// Hint is what a webhook of Toss claims. Nothing of it is trusted: it only says where to look.
type Hint struct {
	// TransmissionID is Toss's id of the delivery, the same for every repetition; empty if it has none.
	TransmissionID string
	// Event is Toss's name of it.
	Event string
	// PaymentKey may be empty: a deposit names its order alone.
	PaymentKey, OrderID string
	// Claim is the status word of the body.
	Claim Sighting
}

// ClaimsNothingNew reports whether p already is what the hint claims.
func (h Hint) ClaimsNothingNew(p Payment) bool {
	return h.Claim == SeenDone && p.Status == Paid && p.CanceledAmount == 0 ||
		h.Claim == SeenWaiting && p.Status == AwaitingDeposit
}

// HintState says what became of a hint.
type HintState string

// The states; KeptHint and UnknownHint are work that is left to do.
const (
	HandledHint HintState = "handled"
	// KeptHint is for a payment that somebody works on at the moment.
	KeptHint HintState = "kept"
	// UnknownHint is for a payment or order that is not known here.
	UnknownHint  HintState = "unknown"
	RepeatedHint HintState = "repeated"
	IgnoredHint  HintState = "ignored"
)

// KeptWork is one hint that was left to do, claimed for a while.
type KeptWork struct {
	Hint
	State HintState
	// ID names the row; Version is the fence.
	ID      string
	Version int64
	// Age is the time since the first hint of this work.
	Age time.Duration
}
