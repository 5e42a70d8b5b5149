package payment

import "time"

// Notice is one row of the outbox, claimed by a worker for one try. Its ID is the same in every try, so that a
// receiver may drop what it has seen.
type Notice struct {
	ID   string
	Kind NoticeKind
	// Sequence is the version of the payment that the notice tells of: a receiver may order notices by it.
	Sequence int64
	// Attempts counts the tries, the one at hand included.
	Attempts int
	// Fence is what the write that finishes the try must match.
	Fence int64
	// CreatedAt is when the payment moved, Now when the notice was claimed, both by PostgreSQL's clock.
	CreatedAt time.Time
	Now       time.Time
	// ReplayedAt is when an operator gave the notice a new life; zero if nobody did.
	ReplayedAt time.Time
	// Payment is the row as it is now, which may have moved on since the notice was written.
	Payment Payment
}

// Age is how long the notice has been tried: since the payment moved, or since an operator replayed it.
func (n Notice) Age() time.Duration {
	if n.ReplayedAt.After(n.CreatedAt) {
		return n.Now.Sub(n.ReplayedAt)
	}
	return n.Now.Sub(n.CreatedAt)
}

// NoticeState is where a notice stands in the outbox.
type NoticeState string

// The states of a notice. Dead ones are sent again by an operator alone; Superseded ones no longer tell the truth.
const (
	NoticeQueued     NoticeState = "queued"
	NoticeDelivered  NoticeState = "delivered"
	NoticeDead       NoticeState = "dead"
	NoticeSuperseded NoticeState = "superseded"
)

// NoticeResult says how a try ended.
type NoticeResult struct {
	State NoticeState
	// RetryIn is the delay until the next try; it counts for NoticeQueued alone.
	RetryIn time.Duration
	// Error says why it failed, without secrets; empty if it did not.
	Error string
}

// NoticeTry is one try with a notice.
type NoticeTry struct {
	Notice Notice
	Result NoticeResult
}
