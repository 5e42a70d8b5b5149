package approval

import (
	"sync"

	"paymentd/internal/payment"
)

// flights are the confirms under way in this process, by paymentKey: a duplicate joins and gets the first
// caller's answer without touching the database.
type flights struct {
	mu    sync.Mutex
	byKey map[string]*flight
}

func newFlights() *flights { return &flights{byKey: map[string]*flight{}} }

// flight is one confirm under way.
type flight struct {
	order payment.Order
	done  chan struct{}

	mu sync.Mutex
	// payment is never changed, only replaced.
	payment *payment.Payment
	closed  bool
	told    bool
	// followed says that the payment is an earlier call's.
	followed bool

	// answer and err are written before done is closed and never after.
	answer *Answer
	err    error
}

// join returns the flight of o, leading it if there was none. A call with the same paymentKey and other data
// flies alone: the database tells it about the conflict.
func (fs *flights) join(o payment.Order) (f *flight, lead bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, ok := fs.byKey[o.PaymentKey]; ok {
		if f.order.OrderID == o.OrderID && f.order.Amount == o.Amount && f.order.Currency == o.Currency {
			return f, false
		}
		return newFlight(o), true
	}
	f = newFlight(o)
	fs.byKey[o.PaymentKey] = f
	return f, true
}

func newFlight(o payment.Order) *flight {
	return &flight{order: o, done: make(chan struct{}), payment: &payment.Payment{
		OrderID: o.OrderID, PaymentKey: o.PaymentKey, Amount: o.Amount, Currency: o.Currency, Status: payment.Pending,
	}}
}

// land ends the flight with its answer and reports whether a caller was told 202 meanwhile.
func (fs *flights) land(f *flight, a *Answer, err error) (told bool) {
	fs.mu.Lock()
	if fs.byKey[f.order.PaymentKey] == f {
		delete(fs.byKey, f.order.PaymentKey)
	}
	fs.mu.Unlock()
	f.mu.Lock()
	f.answer, f.err, f.closed = a, err, true
	told = f.told
	f.mu.Unlock()
	close(f.done)
	return told
}

// tell marks that a caller is about to be answered 202, and says whether it is the first; ok is false if the answer is
// there after all.
func (f *flight) tell() (a *Answer, first, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false, false
	}
	first, f.told = !f.told, true
	a = pendingAnswer(*f.payment, payment.ResultPendingRunning)
	a.Replayed = f.followed
	return a, first, true
}

func (f *flight) wasTold() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told
}

func (f *flight) knows(p *payment.Payment) {
	f.mu.Lock()
	f.payment = p
	f.mu.Unlock()
}

// follows is knows for a payment that an earlier call reserved.
func (f *flight) follows(p payment.Payment) {
	f.mu.Lock()
	f.payment, f.followed = &p, true
	f.mu.Unlock()
}
