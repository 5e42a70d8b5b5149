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
