package tosssim

import (
	"context"
	"maps"
	"sync"
	"time"
)

// Totals are the sums over all payments. Sums are minor units; with several currencies they are added as they are.
type Totals struct {
	// Approvals counts how often money was taken; a reversed deposit is taken out again.
	Approvals int64 `json:"approvals"`
	// Cancels counts entries of cancels[], those without money (virtual account before the deposit) included.
	Cancels     int64 `json:"cancels"`
	ApprovedSum int64 `json:"approvedSum"`
	CanceledSum int64 `json:"canceledSum"`
}

// Entry is one payment in the ledger. Amounts are minor units (won, cents).
type Entry struct {
	PaymentKey string `json:"paymentKey"`
	OrderID    string `json:"orderId"`
	Amount     int64  `json:"amount"`
	Currency   string `json:"currency"`
	Status     Status `json:"status"`
	Approvals  int    `json:"approvals"`
	Cancels    int    `json:"cancels"`
	// Total is the money taken, amount times approvals; Balance is what of it has not been given back.
	Total   int64 `json:"total"`
	Balance int64 `json:"balance"`
}

// Ledger says what the gateway did with money.
type Ledger struct {
	Totals
	Payments []Entry `json:"payments,omitempty"`
}

// LedgerQuery narrows a ledger; totals are over the payments that match.
type LedgerQuery struct {
	PaymentKey, OrderID string
	// Summary leaves the list out.
	Summary bool
}

func (p *payment) entry() Entry {
	total := p.amount * int64(p.approvals)
	return Entry{
		PaymentKey: p.key, OrderID: p.orderID, Amount: p.amount, Currency: p.currency, Status: p.status,
		Approvals: int(p.approvals), Cancels: len(p.cancels), Total: total, Balance: total - p.returned,
	}
}

// Ledger lists every payment in the order in which they came to be.
func (s *Simulator) Ledger() Ledger { return s.LedgerOf(LedgerQuery{}) }

// LedgerOf lists the payments that match q.
func (s *Simulator) LedgerOf(q LedgerQuery) Ledger {
	st, window := s.state.Load(), s.Settings().Window
	now := s.now()
	st.mu.Lock()
	defer st.mu.Unlock()
	if q.Summary && q.PaymentKey == "" && q.OrderID == "" {
		return Ledger{Totals: st.totals}
	}
	l := Ledger{}
	for _, p := range st.matching(q) {
		p.age(now, window, s.codes["EXPIRED_PAYMENT"])
		e := p.entry()
		l.Approvals += int64(e.Approvals)
		l.Cancels += int64(e.Cancels)
		l.ApprovedSum += e.Total
		l.CanceledSum += e.Total - e.Balance
		if !q.Summary {
			l.Payments = append(l.Payments, e)
		}
	}
	return l
}

func (st *state) matching(q LedgerQuery) []*payment {
	switch {
	case q.PaymentKey != "":
		if p := st.payments[q.PaymentKey]; p != nil && (q.OrderID == "" || q.OrderID == p.orderID) {
			return []*payment{p}
		}
		return nil
	case q.OrderID != "":
		var list []*payment
		for p := st.orders[q.OrderID]; p != nil; p = p.older {
			list = append([]*payment{p}, list...)
		}
		return list
	}
	return st.all
}

// Payment returns the ledger's entry of one payment.
func (s *Simulator) Payment(paymentKey string) (Entry, bool) {
	l := s.LedgerOf(LedgerQuery{PaymentKey: paymentKey})
	if len(l.Payments) == 0 {
		return Entry{}, false
	}
	return l.Payments[0], true
}

// Call is one request to the public API.
type Call struct {
	Seq            uint64    `json:"seq"`
	Op             string    `json:"op"`
	PaymentKey     string    `json:"paymentKey,omitempty"`
	OrderID        string    `json:"orderId,omitempty"`
	IdempotencyKey string    `json:"idempotencyKey,omitempty"`
	Started        time.Time `json:"started"`
	// Ended is zero while the call runs.
	Ended time.Time `json:"ended,omitzero"`
	// Status is 0 when no answer was given: still running, dropped or hung.
	Status   int    `json:"status"`
	Code     string `json:"code,omitempty"`
	Fault    string `json:"fault,omitempty"`
	Replayed bool   `json:"replayed,omitempty"`
}

// CallQuery narrows a list of calls; Limit keeps the newest, 0 means all remembered.
type CallQuery struct {
	Op, PaymentKey, OrderID, IdempotencyKey string
	Running                                 bool
	Limit                                   int
}

// Count counts the calls of one operation.
type Count struct {
	Calls      int64 `json:"calls"`
	Running    int64 `json:"running"`
	MaxRunning int64 `json:"maxRunning"`
	Replayed   int64 `json:"replayed"`
	// Unanswered were dropped or hung.
	Unanswered int64 `json:"unanswered"`
	// OK were answered 200; Errors with a code, which Counters.Codes counts apart.
	OK     int64 `json:"ok"`
	Errors int64 `json:"errors"`
}

// Counters count all calls since the start or the last Reset, forgotten ones included.
type Counters struct {
	Total Count            `json:"total"`
	Ops   map[string]Count `json:"ops"`
	Codes map[string]int64 `json:"codes"`
}

// journal remembers the newest calls in a ring and counts all of them.
type journal struct {
	mu      sync.Mutex
	ring    []Call
	max     int
	seq     uint64
	total   Count
	ops     map[string]*Count
	codes   map[string]int64
	changed chan struct{} // closed at the next change; nil: nobody waits
}

func newJournal(size int) *journal {
	j := &journal{max: size, ops: map[string]*Count{}, codes: map[string]int64{}}
	for _, op := range []string{OpConfirm, OpLookup, OpCancel, OpTransactions, OpOther} {
		j.ops[op] = &Count{}
	}
	return j
}

func (j *journal) begin(c *call) uint64 {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	line := Call{
		Seq: j.seq + 1, Op: c.op, PaymentKey: c.paymentKey, OrderID: c.orderID, IdempotencyKey: c.key, Started: now, Fault: c.fault,
	}
	if len(j.ring) < j.max {
		j.ring = append(j.ring, line)
	} else {
		j.ring[j.seq%uint64(j.max)] = line
	}
	j.seq++
	for _, n := range []*Count{&j.total, j.ops[c.op]} {
		n.Calls++
		n.Running++
		n.MaxRunning = max(n.MaxRunning, n.Running)
	}
	j.notify()
	return j.seq
}

func (j *journal) end(c *call) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if line := &j.ring[(c.seq-1)%uint64(j.max)]; line.Seq == c.seq {
		line.Ended, line.Status, line.Code, line.Fault, line.Replayed = now, c.status, c.code, c.fault, c.replayed
	}
	if c.code != "" {
		j.codes[c.code]++
	}
	for _, n := range []*Count{&j.total, j.ops[c.op]} {
		n.Running--
		switch {
		case c.status == 0:
			n.Unanswered++
		case c.status == 200:
			n.OK++
		default:
			n.Errors++
		}
		if c.replayed {
			n.Replayed++
		}
	}
	j.notify()
}

func (j *journal) notify() {
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

func (j *journal) counters() Counters {
	c := Counters{Total: j.total, Ops: make(map[string]Count, len(j.ops)), Codes: make(map[string]int64, len(j.codes))}
	for op, n := range j.ops {
		c.Ops[op] = *n
	}
	maps.Copy(c.Codes, j.codes)
	return c
}

// Calls lists the remembered calls, oldest first, running ones included.
func (s *Simulator) Calls() []Call { return s.CallsOf(CallQuery{}) }

// CallsOf lists the remembered calls that match q, oldest first.
func (s *Simulator) CallsOf(q CallQuery) []Call {
	j := s.state.Load().journal
	j.mu.Lock()
	defer j.mu.Unlock()
	out := []Call{}
	first := j.seq - uint64(len(j.ring))
	for n := first; n < j.seq; n++ {
		if c := j.ring[n%uint64(j.max)]; q.matches(c) {
			out = append(out, c)
		}
	}
	if q.Limit > 0 && len(out) > q.Limit {
		out = out[len(out)-q.Limit:]
	}
	return out
}

func (q CallQuery) matches(c Call) bool {
	return (q.Op == "" || q.Op == c.Op) && (q.PaymentKey == "" || q.PaymentKey == c.PaymentKey) &&
		(q.OrderID == "" || q.OrderID == c.OrderID) && (q.IdempotencyKey == "" || q.IdempotencyKey == c.IdempotencyKey) &&
		(!q.Running || c.Ended.IsZero())
}

// Counters counts all calls since the start or the last Reset.
func (s *Simulator) Counters() Counters {
	j := s.state.Load().journal
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counters()
}

// Await returns as soon as ok holds, so that a test need not sleep until a call has arrived or late work is done. It
// looks again whenever a call begins or ends and when late work is done.
func (s *Simulator) Await(ctx context.Context, ok func(Counters) bool) error {
	for {
		changed, counters := s.state.Load().journal.watch()
		if ok(counters) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (j *journal) watch() (<-chan struct{}, Counters) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.changed, j.counters()
}

func (j *journal) touch() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.notify()
}
