package notify

import (
	"context"
	"sync"
	"time"

	"paymentd/internal/payment"
)

// sinkName is a label of paymentd_notice_attempts_total.
type sinkName string

const (
	toLog     sinkName = "log"
	toWebhook sinkName = "webhook"
	toMail    sinkName = "mail"
)

// patience is how long a notice waits for a place at its sink, and the age from which a sink counts as stuck.
const patience = time.Second

// sink is a sender and its fair share of the workers. A queue hands out notices of all kinds mixed, so a dead
// receiver must cost the others nothing but the time to put its notices back:
//   - a sink outside this process has places for all workers but one (with a single worker: one place);
//   - a notice that finds no place waits only while places come back, else it is put back with its delay;
//   - a failure that took long makes the sink rest as long as it took, so that even a single worker has at
//     least half of its time for the others.
type sink struct {
	name   sinkName
	sender Sender
	places chan struct{}

	mu sync.Mutex
	// movedAt is when a place was last taken or given back.
	movedAt time.Time
	restsTo time.Time
}

func logSink(o Options) *sink {
	return &sink{name: toLog, sender: logSender{log: o.Log}, places: make(chan struct{}, o.Workers)}
}

// sinksOf says which kind goes where; local takes what has no other.
func sinksOf(o Options, local *sink) map[payment.NoticeKind]*sink {
	webhook, mail := local, local
	if o.Webhook != nil {
		webhook = &sink{name: toWebhook, sender: o.Webhook, places: make(chan struct{}, max(1, o.Workers-1))}
	}
	if o.Mail != nil {
		mail = &sink{name: toMail, sender: o.Mail, places: make(chan struct{}, max(1, o.Workers-1))}
	}
	return map[payment.NoticeKind]*sink{
		payment.NoticePaid:     webhook,
		payment.NoticeFailed:   webhook,
		payment.NoticeCanceled: webhook,
		payment.NoticeReceipt:  mail,
	}
}

// sinkOf is where the notice goes: a receipt for nobody goes to the log. It is nil for a kind of a newer version.
func (p *Pool) sinkOf(n payment.Notice) *sink {
	if n.Kind == payment.NoticeReceipt && n.Payment.ReceiptEmail == "" {
		return p.local
	}
	return p.sinks[n.Kind]
}

// enter takes a place; false means that the sink is stuck or ctx ended. Who entered must leave.
func (s *sink) enter(ctx context.Context) bool {
	wait, resting := s.outlook()
	if resting {
		return false
	}
	select {
	case s.places <- struct{}{}:
		s.moved()
		return true
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case s.places <- struct{}{}:
		s.moved()
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// outlook tells how long waiting for a place makes sense, and whether the sink rests.
func (s *sink) outlook() (wait time.Duration, resting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return max(0, s.movedAt.Add(patience).Sub(now)), now.Before(s.restsTo)
}

// leave gives the place back.
func (s *sink) leave(took time.Duration, err error) {
	<-s.places
	s.moved()
	if err != nil && took >= patience {
		s.mu.Lock()
		s.restsTo = time.Now().Add(took)
		s.mu.Unlock()
	}
}

func (s *sink) moved() {
	s.mu.Lock()
	s.movedAt = time.Now()
	s.mu.Unlock()
}
