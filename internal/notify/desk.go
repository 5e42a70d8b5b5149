package notify

import (
	"context"
	"slices"
	"sync"
	"time"

	"paymentd/internal/payment"
)

const (
	// deskRoom is the most notices at the desk, those promised included; what finds no room is claimed from the outbox.
	deskRoom = 2048
	// gatherFor is how long a notice waits at the desk for others: the statement that ends a batch costs the database
	// little more for many than for one, and nobody waits for a line of the log.
	gatherFor = 100 * time.Millisecond
	// deskPatience is the longest wait at the desk. What waited longer is left to whoever claims it when its lease ends.
	deskPatience = 5 * time.Second
)

// desk holds the notices for the log that settles of this process hand over, already leased, so that they need no claim.
type desk struct {
	mu       sync.Mutex
	closed   bool
	promised int
	waiting  []handed
	// arrived has a token once something waits; full, once a batch does.
	arrived, full chan struct{}
}

// handed is a notice whose lease began at or after since.
type handed struct {
	notice payment.Notice
	since  time.Time
}

func newDesk() *desk { return &desk{arrived: make(chan struct{}, 1), full: make(chan struct{}, 1)} }

// keepRoom keeps room for n notices, if there is.
func (d *desk) keepRoom(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.waiting)+d.promised+n > deskRoom {
		return false
	}
	d.promised += n
	return true
}

// put gives back the room for n and takes the notices.
func (d *desk) put(n int, since time.Time, notices []payment.Notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.promised -= n
	if d.closed || len(notices) == 0 {
		return
	}
	for _, notice := range notices {
		d.waiting = append(d.waiting, handed{notice, since})
	}
	signal(d.arrived)
	if len(d.waiting) >= mostLogged {
		signal(d.full)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take removes the first n notices; what waited too long for its lease is left out of the batch.
func (d *desk) take() (batch []payment.Notice, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n = min(len(d.waiting), mostLogged)
	batch = make([]payment.Notice, 0, n)
	for _, h := range d.waiting[:n] {
		if time.Since(h.since) < deskPatience {
			batch = append(batch, h.notice)
		}
	}
	d.waiting = slices.Delete(d.waiting, 0, n)
	if len(d.waiting) > 0 {
		signal(d.arrived)
	}
	if len(d.waiting) >= mostLogged {
		signal(d.full)
	}
	return batch, n
}

// close lets nothing more in.
func (d *desk) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
}

// await returns when a batch waits, something has waited for gatherFor, or ctx ends.
func (d *desk) await(ctx context.Context) {
	select {
	case <-d.arrived:
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	select {
	case <-d.full:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// KeepRoom keeps room for n notices that a settle is about to write, and says how long the lease under which it writes
// them must be; 0: write them due at once, somebody will claim them. Kept room must be given back by Hand. Only notices
// for the log are taken: for a receiver outside a claim is a small part of the work, and a crash would cost the notice
// the rest of its lease.
func (p *Pool) KeepRoom(n int) (lease time.Duration) {
	if !p.onlyLocal || !p.desk.keepRoom(n) {
		return 0
	}
	return deskPatience + p.lease()
}

// Hand gives back the room for n. The notices, at most n, were written with the first attempt counted and a lease that
// began at or after since; no notices: none was written.
func (p *Pool) Hand(n int, since time.Time, notices []payment.Notice) { p.desk.put(n, since, notices) }

// serveDesk delivers what is handed over until ctx ends, and then what is left.
func (p *Pool) serveDesk(ctx context.Context) {
	for ctx.Err() == nil {
		p.desk.await(ctx)
		p.clearDesk(ctx)
	}
	p.desk.close()
	for p.clearDesk(ctx) {
	}
}

// clearDesk gives one batch to a worker, and says whether there was one.
func (p *Pool) clearDesk(ctx context.Context) bool {
	p.hands <- struct{}{} // before the batch is taken: waiting for a worker is waiting at the desk
	batch, n := p.desk.take()
	if shed := n - len(batch); shed > 0 {
		p.log.Warn("notices waited too long for a worker, and come when their lease ends", "notices", shed)
	}
	if len(batch) == 0 {
		<-p.hands
		return n > 0
	}
	p.inHand.Go(func() {
		defer func() { <-p.hands }()
		p.deliver(ctx, batch)
	})
	return true
}
