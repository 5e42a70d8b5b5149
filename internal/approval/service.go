package approval

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"paymentd/internal/payment"
)

// Settings are the limits of the use cases (docs/config.md).
type Settings struct {
	// AnswerWithin bounds every caller's wait; CommitWithin the tries of one commit.
	AnswerWithin, CommitWithin time.Duration
	// Deadline is D, the hard end of detached work; Lease is longer than it.
	Deadline, Lease time.Duration
	// StatementTimeout is how long a statement whose answer was lost may still run at the server.
	StatementTimeout time.Duration
	// CancelTimeout is what one cancel at Toss may take, LookupTimeout one lookup.
	CancelTimeout, LookupTimeout time.Duration
	// KeepPending saves a payment that could not be sent instead of failing it (ON_UNAVAILABLE=pending).
	KeepPending bool
	// CancelOnCommitFailure gives an approval back that certainly could not be saved (ON_COMMIT_FAILURE=cancel).
	CancelOnCommitFailure bool
	// MemberCalls confirms per MemberPeriod and member; 0 switches the limit off.
	MemberCalls  int
	MemberPeriod time.Duration
	Rules        payment.Rules
}

// Deps are the parts a Service works with; all are required.
type Deps struct {
	Store    Store
	Gateway  Gateway
	Logger   *slog.Logger
	Settings Settings
}

// Service runs the use cases. It is safe for concurrent use.
type Service struct {
	store   Store
	gateway Gateway
	log     *slog.Logger
	set     Settings
	members *members
	flights *flights
	running *crew
}

// New checks the parts and returns a Service.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Gateway == nil || d.Logger == nil {
		return nil, errors.New("approval: store, gateway and logger are required")
	}
	if d.Settings.Lease <= d.Settings.Deadline || d.Settings.Deadline <= 0 {
		return nil, errors.New("approval: the lease must be longer than the deadline of the work")
	}
	return &Service{
		store: d.Store, gateway: d.Gateway, log: d.Logger, set: d.Settings,
		members: newMembers(d.Settings.MemberCalls, d.Settings.MemberPeriod),
		flights: newFlights(), running: newCrew(),
	}, nil
}

// WithStore returns a Service that shares everything but works through another store: recovery's own pool.
func (s *Service) WithStore(store Store) *Service {
	view := *s
	view.store = store
	return &view
}

// Drain waits until every detached confirm and cancel has ended, or ctx has.
func (s *Service) Drain(ctx context.Context) error {
	empty := s.running.empty()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-empty: // also when there was no time to wait
		return nil
	default:
		return context.Cause(ctx)
	}
}

// crew counts the detached work. Unlike with a WaitGroup, waiting may overlap with work that begins.
type crew struct {
	mu   sync.Mutex
	size int
	idle chan struct{}
}

func newCrew() *crew {
	c := &crew{idle: make(chan struct{})}
	close(c.idle)
	return c
}

func (c *crew) run(f func()) {
	c.mu.Lock()
	if c.size++; c.size == 1 {
		c.idle = make(chan struct{})
	}
	c.mu.Unlock()
	go func() {
		defer c.leave()
		f()
	}()
}

func (c *crew) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size--; c.size == 0 {
		close(c.idle)
	}
}

// empty is closed when nobody works.
func (c *crew) empty() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.idle
}
