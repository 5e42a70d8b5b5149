package recovery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// HintStore is what the door's hints need of PostgreSQL.
type HintStore interface {
	// Find reads a payment by its key.
	Find(ctx context.Context, paymentKey, orderID string) (p payment.Payment, found bool, err error)
	// KnowsHint reports whether a delivery was handled, or stored to be handled.
	KnowsHint(ctx context.Context, transmissionID string) (bool, error)
	// NoteHint remembers a delivery that was handled.
	NoteHint(ctx context.Context, h payment.Hint) error
	// KeepHint stores work for later; kept is false if there is too much of the unknown kind.
	KeepHint(ctx context.Context, h payment.Hint, state payment.HintState, dueIn time.Duration) (kept bool, err error)
}

// HintQueue is the work that hints left. Several instances share it: a claim is a lease with a fence.
type HintQueue interface {
	// ClaimHint leases the work of one state that is due longest.
	ClaimHint(ctx context.Context, state payment.HintState, lease time.Duration) (w payment.KeptWork, found bool, err error)
	// EndHint ends claimed work, or puts it off if again is above 0.
	EndHint(ctx context.Context, w payment.KeptWork, again time.Duration) error
	// OpenOrphan opens the incident orphan_approval; opened is false if it is open already or the payment is here.
	OpenOrphan(ctx context.Context, o payment.Observation, reason string) (opened bool, err error)
	// CloseOrphan closes that incident if the money went back since it was opened.
	CloseOrphan(ctx context.Context, o payment.Observation, by payment.Actor) (closed bool, err error)
	// SweepHints forgets what Toss repeats no more.
	SweepHints(ctx context.Context) error
}

// Looker reads payments at Toss that are not known here.
type Looker interface {
	// Lookup reads by key; the answer has that key.
	Lookup(ctx context.Context, paymentKey string, tries approval.Tries) payment.Answer
	// LookupByOrder reads one payment of the order.
	LookupByOrder(ctx context.Context, orderID string, tries approval.Tries) payment.Answer
}

const (
	// hintWithin is how long Toss waits for us; it gives up after 10 s.
	hintWithin = 8 * time.Second
	// hintsAtOnce bounds the hints handled at once.
	hintsAtOnce = 16
	// hintLease is longer than the work on one unknown hint: a token and a lookup.
	hintLease = time.Minute
	// hintLife is when work without a usable answer is given up, as Toss does with the delivery.
	hintLife = 4 * 24 * time.Hour
	// mostHintWait bounds the growing delay of work without a usable answer.
	mostHintWait = 10 * time.Minute
)

// HintOptions are the parts of Hints; all are required.
type HintOptions struct {
	Recovery *Recovery
	Store    HintStore
	Queue    HintQueue
	Gateway  Looker
}

// Hints handles what webhooks of Toss claim: at the door, and in the background what the door left to do. Make one with
// NewHints; it is safe for concurrent use.
type Hints struct {
	recovery *Recovery
	store    HintStore
	work     HintQueue
	toss     Looker
	slots    chan struct{}
}

// NewHints checks the parts and returns a Hints.
func NewHints(o HintOptions) (*Hints, error) {
	if o.Recovery == nil || o.Store == nil || o.Queue == nil || o.Gateway == nil {
		return nil, errors.New("hints: recovery, store, queue and gateway are required")
	}
	return &Hints{recovery: o.Recovery, store: o.Store, work: o.Queue, toss: o.Gateway, slots: make(chan struct{}, hintsAtOnce)}, nil
}

// Hint handles one webhook within 8 s. It returns a *payment.Error unless the delivery is handled or stored: then Toss
// must send it again. The work goes on when nobody waits for it any more.
func (s *Hints) Hint(ctx context.Context, h payment.Hint) (payment.HintState, error) {
	type result struct {
		state payment.HintState
		err   error
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return "", tooMany("Too many webhooks are being handled.")
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-s.slots }()
		var r result
		r.err = contained(context.WithoutCancel(ctx), func(ctx context.Context) (err error) {
			r.state, err = s.take(ctx, h)
			return err
		})
		done <- r
	}()
	late := time.NewTimer(hintWithin)
	defer late.Stop()
	select {
	case r := <-done:
		return r.state, r.err
	case <-late.C:
		return "", noAnswer(nil)
	case <-ctx.Done():
		return "", noAnswer(ctx.Err())
	}
}

func (s *Hints) take(ctx context.Context, h payment.Hint) (payment.HintState, error) {
	if h.TransmissionID != "" {
		known, err := s.store.KnowsHint(ctx, h.TransmissionID)
		if err != nil || known {
			return payment.RepeatedHint, unread(err)
		}
	}
	p, found, err := s.payment(ctx, h)
	if err != nil {
		return "", unread(err)
	}
	stranger := !found || h.PaymentKey != "" && p.PaymentKey != h.PaymentKey
	var state payment.HintState
	if found {
		if state, err = s.known(ctx, h, p, stranger); err != nil {
			return "", err
		}
	}
	switch {
	case stranger:
		kept, err := s.store.KeepHint(ctx, h, payment.UnknownHint, 0)
		if err == nil && !kept {
			return "", tooMany("Too many webhooks of unknown payments are stored.")
		}
		return payment.UnknownHint, unread(err)
	case state != payment.HandledHint:
		return state, nil
	default:
		return payment.HandledHint, unread(s.store.NoteHint(ctx, h))
	}
}

// payment is the one that a hint is about: by its key, else the unfinished one of the order, which holds it, else the
// one that holds it, else the newest.
func (s *Hints) payment(ctx context.Context, h payment.Hint) (p payment.Payment, found bool, err error) {
	if h.PaymentKey != "" {
		if p, found, err = s.store.Find(ctx, h.PaymentKey, ""); err != nil || found {
			return p, found, err
		}
	}
	if h.OrderID == "" {
		return p, false, nil
	}
	attempts, err := s.recovery.queue.Attempts(ctx, h.OrderID)
	if err != nil || len(attempts) == 0 {
		return p, false, err
	}
	if i := slices.IndexFunc(attempts, func(p payment.Payment) bool { return p.HoldsOrder }); i >= 0 {
		return attempts[i], true, nil
	}
	return attempts[len(attempts)-1], true, nil
}

// known looks at a known payment, or keeps the hint if somebody works on the payment. The delivery's id belongs to the
// stranger that the hint names besides, if it does.
func (s *Hints) known(ctx context.Context, h payment.Hint, p payment.Payment, stranger bool) (payment.HintState, error) {
	wait, err := s.look(ctx, h, p)
	switch {
	case err != nil:
		return "", err
	case wait == notAsked:
		return payment.IgnoredHint, nil
	case wait == 0:
		return payment.HandledHint, nil
	}
	h.PaymentKey = p.PaymentKey
	if stranger {
		h.TransmissionID = ""
	}
	_, err = s.store.KeepHint(ctx, h, payment.KeptHint, wait)
	return payment.KeptHint, unread(err)
}

// notAsked is the wait of a hint that nothing was asked for. It is not remembered either: remembering is for what cost
// a lookup, and would let a flood fill the table.
const notAsked = -1

// look settles one payment by what Toss says now. A wait above 0 says that somebody holds it for so long.
func (s *Hints) look(ctx context.Context, h payment.Hint, p payment.Payment) (wait time.Duration, err error) {
	leaseEnd := time.Now().Add(s.recovery.opt.Lease)
	held, ending, err := s.recovery.queue.ClaimOne(ctx, p.PaymentKey, s.recovery.opt.Lease)
	switch {
	case ending == payment.NoRows && approval.Held(p):
		return max(p.DueAt.Sub(p.ReadAt), time.Second), nil
	case ending == payment.NoRows:
		return approval.LookAgainIn, nil
	case ending != payment.Applied:
		return 0, unread(fmt.Errorf("claim for a webhook (%s): %w", ending, err))
	}
	res, err := s.recovery.resolve(ctx, held, payment.ByWebhook, leaseEnd)
	if err != nil {
		return 0, unread(err)
	}
	switch a := res.Heard; {
	case a.Kind == payment.KindRefused && h.ClaimsNothingNew(held):
		return notAsked, nil // Lookups are short, and this one would only confirm what is known.
	case a.Kind == "" || a.Kind == payment.KindNotFound:
		return 0, nil
	case a.Kind == payment.KindPayment && a.Observation.Sighting != payment.SeenUnknownStatus:
		return 0, nil
	default:
		return 0, noAnswer(a.Err)
	}
}

// Run does what the door left to do until ctx ends, and then waits for what is in hand.
func (s *Hints) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	for _, state := range []payment.HintState{payment.KeptHint, payment.UnknownHint} {
		loops.Go(func() {
			s.recovery.loop(ctx, s.recovery.opt.DueEvery, string(state)+" webhooks", func(ctx context.Context) error { return s.runLeft(ctx, state) })
		})
	}
	loops.Go(func() { s.recovery.loop(ctx, s.recovery.opt.SweepEvery, "old webhooks", s.work.SweepHints) })
	loops.Wait()
	for range cap(s.slots) {
		s.slots <- struct{}{}
	}
	return nil
}

// runLeft works off what is due of one state.
func (s *Hints) runLeft(ctx context.Context, state payment.HintState) error {
	lease := hintLease
	if state == payment.KeptHint {
		lease = max(lease, 2*s.recovery.opt.Lease)
	}
	for ctx.Err() == nil {
		w, found, err := s.work.ClaimHint(ctx, state, lease)
		if err != nil || !found {
			return err
		}
		again, err := s.left(ctx, w)
		if err != nil {
			// Toss or the database: later. What is a bug shows in the log each time.
			s.recovery.log.WarnContext(ctx, "webhook left to do", "order_id", w.OrderID, "error", err)
			again = min(max(w.Age, approval.LookAgainIn), mostHintWait)
			if w.Age > hintLife {
				again = 0
			}
		}
		if err := s.work.EndHint(context.WithoutCancel(ctx), w, again); err != nil {
			return err
		}
	}
	return nil
}

// left does one piece of work; again above 0 asks for another time.
func (s *Hints) left(ctx context.Context, w payment.KeptWork) (again time.Duration, err error) {
	p, found, err := s.payment(ctx, w.Hint)
	switch {
	case err != nil:
		return 0, err
	case !found:
		return 0, s.stranger(ctx, w.Hint)
	case !approval.Held(p) && w.ClaimsNothingNew(p):
		return 0, nil
	}
	return s.look(ctx, w.Hint, p)
}

// stranger asks Toss about a payment that is not known here.
func (s *Hints) stranger(ctx context.Context, h payment.Hint) error {
	var a payment.Answer
	if h.PaymentKey != "" {
		a = s.toss.Lookup(ctx, h.PaymentKey, approval.Stranger)
	} else {
		a = s.toss.LookupByOrder(ctx, h.OrderID, approval.Stranger)
	}
	switch {
	case a.Kind == payment.KindPayment && a.Observation.Charged():
		opened, err := s.work.OpenOrphan(ctx, a.Observation, "a webhook named it")
		if opened {
			s.recovery.metrics.did(approval.DidIncident)
			s.recovery.log.WarnContext(ctx, "approval of a payment that is not known here", "order_id", a.Observation.OrderID)
		}
		return err
	case a.Kind == payment.KindPayment && a.Observation.Returned():
		_, err := s.work.CloseOrphan(ctx, a.Observation, payment.ByWebhook)
		return err
	case a.Kind == payment.KindPayment && a.Observation.Sighting != payment.SeenUnknownStatus:
		return nil
	case a.Kind == payment.KindNotFound, a.HTTPStatus == http.StatusBadRequest: // no such payment, or no such key
		return nil
	default:
		return noAnswer(a.Err)
	}
}

func noAnswer(cause error) error {
	return &payment.Error{
		Code: payment.CodePGUnavailable, RetryAfter: approval.LookAgainIn, Err: cause, Public: "Nothing is known yet; send the webhook again.",
	}
}

func tooMany(why string) error {
	return &payment.Error{Code: payment.CodeRateLimited, RetryAfter: approval.LookAgainIn, Public: why + " Send it again later."}
}

// unread is the error of a database that did not answer.
func unread(err error) error {
	if err == nil {
		return nil
	}
	return &payment.Error{
		Code: payment.CodeDBUnavailable, RetryAfter: approval.LookAgainIn, Err: err, Public: "Nothing could be kept; send the webhook again.",
	}
}
