// Package approvaltest stands in for PostgreSQL and Toss in tests of the use cases and of recovery: a Store with the
// promises of approval's ports and a Gateway that keeps the truth about money, both with scripted faults. Waiting is
// plain time, so that tests may run in a synctest bubble.
package approvaltest

import (
	"context"
	"errors"
	"sync"
	"time"

	"paymentd/internal/payment"
)

// Step names one method of the Store.
type Step string

// The steps that faults can be scripted for.
const (
	Reserve       Step = "reserve"
	Find          Step = "find"
	FindNow       Step = "find now"
	TakeOver      Step = "take over"
	Reopen        Step = "reopen"
	Settle        Step = "settle"
	Release       Step = "release"
	BeginSend     Step = "begin send"
	MarkTold      Step = "mark told"
	BeginGiveBack Step = "begin give back"
	EndGiveBack   Step = "end give back"
	FindCancels   Step = "find cancels"
	BeginCancel   Step = "begin cancel"
	Abandon       Step = "abandon"
	ClaimDue      Step = "claim due"
	ClaimOne      Step = "claim one"
	List          Step = "list"
	SweepNotices  Step = "sweep notices"
	SweepStuck    Step = "sweep stuck"
	SweepOrphans  Step = "sweep orphans"
)

// ErrFault is the error of every scripted fault.
var ErrFault = errors.New("scripted fault")

// Fault is what happens to one call. The zero value is a call without a fault.
type Fault struct {
	// Delay passes before anything else, unless the context ends first.
	Delay time.Duration
	// Before runs next: a race that is lost just here.
	Before func()
	// Panic, if not nil, is thrown.
	Panic any
	// Fails makes the call fail with ErrFault and Ending: NotApplied, or MaybeApplied (the zero value).
	Fails  bool
	Ending payment.Ending
	// Done says that a MaybeApplied write did commit: its acknowledgement is lost.
	Done bool
	// NoRows makes a write, or a read, find nothing.
	NoRows bool
}

// Lost is a commit whose acknowledgement is lost.
func Lost() Fault { return Fault{Fails: true, Ending: payment.MaybeApplied, Done: true} }

// Maybe is a write that broke off without a trace.
func Maybe() Fault { return Fault{Fails: true, Ending: payment.MaybeApplied} }

// Not is a write that certainly was not applied, or a read that fails.
func Not() Fault { return Fault{Fails: true, Ending: payment.NotApplied} }

// None is a call without a fault, to reach a later one.
func None() Fault { return Fault{} }

// script holds the faults of each step: first those in order, then the standing one.
type script struct {
	mu       sync.Mutex
	next     map[Step][]Fault
	standing map[Step]Fault
	random   func(Step) Fault
	calls    map[Step]int
}

func newScript() *script {
	return &script{next: map[Step][]Fault{}, standing: map[Step]Fault{}, calls: map[Step]int{}}
}

// Script sets what happens to the next calls of a step, one each.
func (s *script) Script(step Step, faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next[step] = append(s.next[step], faults...)
}

// Always sets what happens to every call of a step for which nothing else is scripted.
func (s *script) Always(step Step, f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standing[step] = f
}

// Random is asked for every call for which nothing is scripted; it must be safe for concurrent use.
func (s *script) Random(f func(Step) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.random = f
}

// Calls says how often a step was called.
func (s *script) Calls(step Step) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[step]
}

func (s *script) take(step Step) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[step]++
	if q := s.next[step]; len(q) > 0 {
		s.next[step] = q[1:]
		return q[0]
	}
	if f, ok := s.standing[step]; ok {
		return f
	}
	if s.random != nil {
		return s.random(step)
	}
	return Fault{}
}

// meet lets the fault of this call happen, and tells what is left of it. A context that has ended is NotApplied, as
// in a pool that gives no connection any more.
func (s *script) meet(ctx context.Context, step Step) Fault {
	f := s.take(step)
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-ctx.Done():
		}
	}
	if f.Before != nil {
		f.Before()
	}
	if f.Panic != nil {
		panic(f.Panic)
	}
	if ctx.Err() != nil && !f.Fails {
		return Not()
	}
	return f
}
