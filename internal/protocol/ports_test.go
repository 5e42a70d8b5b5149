package protocol

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// op is one call of a port: the step at which a process can be interrupted.
type op uint8

const (
	opReserve op = iota + 1
	opFind
	opFindNow
	opTakeOver
	opReopen
	opSettle
	opRelease
	opBeginSend
	opMarkTold
	opBeginGiveBack
	opEndGiveBack
	opFindCancels
	opConfirm
	opLookup
	opCancel
)

func (o op) String() string {
	return [...]string{
		"", "reserve", "read the row", "read the row at once", "take over", "reopen", "settle", "give the lease back", "store a send",
		"mark as told", "begin a give back", "end a give back", "read the cancels", "send the confirm", "look up", "send the cancel",
	}[o]
}

// reads reports whether the call changes nothing.
func (o op) reads() bool { return o == opFind || o == opFindNow || o == opFindCancels }

// ofStore reports whether the call goes to PostgreSQL.
func (o op) ofStore() bool { return o < opConfirm }

// call is what a process waits for. Args is the port's own argument.
type call struct {
	op   op
	key  int
	n    uint8 // number of the idempotency key
	id   uint8 // cancel; 0 is one that no row knows
	args any
	// name says whether find may go by the order.
	byOrder bool
	lease   time.Duration
	// expires is when the call is not sent any more: the end of the lease or of the work.
	expires seconds
	// dead means that the deadline of the work was over already when the call was made.
	dead bool
}

// result is what a process hears. It is comparable: with the call it is the edge between two local states.
type result struct {
	ending payment.Ending
	found  bool
	failed bool // a read that failed
	key    uint8
	row    row
	now    seconds
	cancel cancelRow
	reply  reply
}

var errModel = errors.New("fault of the model")

func (r result) payment() payment.Payment {
	if !r.row.There {
		return payment.Payment{}
	}
	return r.row.view(int(r.key), r.now)
}

func (r result) err() error {
	if r.failed || r.ending == payment.NotApplied || r.ending == payment.MaybeApplied {
		return errModel
	}
	return nil
}

// wire is the ports of one process: every call waits until the exploration answers it, or ends its goroutine.
type wire struct {
	approval.Store // a port that the model does not know is a nil call, which fails loudly
	mut            mutations
	start          time.Time
	from           seconds
	refused        reply

	mu      sync.Mutex
	dead    bool
	pending []*waiting
}

type waiting struct {
	call  call
	reply chan result
}

func (w *wire) ask(ctx context.Context, c call) result {
	deadline := c.expires
	if until, ok := ctx.Deadline(); ok {
		if d := w.from + seconds(until.Sub(w.start)/time.Second); deadline == 0 || d < deadline {
			deadline = d
		}
	}
	c.expires, c.dead = deadline, ctx.Err() != nil
	x := &waiting{call: c, reply: make(chan result)}
	w.mu.Lock()
	if w.dead {
		w.mu.Unlock()
		runtime.Goexit()
	}
	w.pending = append(w.pending, x)
	w.mu.Unlock()
	r, ok := <-x.reply
	if !ok {
		runtime.Goexit()
	}
	return r
}

// take removes the call that is answered next: the one of that kind.
func (w *wire) take(told bool) *waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range w.pending {
		if (x.call.op == opMarkTold) == told {
			w.pending = append(w.pending[:i:i], w.pending[i+1:]...)
			return x
		}
	}
	return nil
}

func (w *wire) waits(told bool) *call {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.pending {
		if (x.call.op == opMarkTold) == told {
			return &x.call
		}
	}
	return nil
}

// kill ends every goroutine that waits, and those that will.
func (w *wire) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	for _, x := range w.pending {
		close(x.reply)
	}
	w.pending = nil
}

func (w *wire) Reserve(ctx context.Context, o payment.Order, lease time.Duration) (payment.Payment, payment.Ending, error) {
	r := w.ask(ctx, call{op: opReserve, key: keyOf(o.PaymentKey), lease: lease})
	return r.payment(), r.ending, r.err()
}

func (w *wire) Find(ctx context.Context, key, order string) (payment.Payment, bool, error) {
	r := w.ask(ctx, call{op: opFind, key: keyOf(key), byOrder: order != ""})
	return r.payment(), r.found, r.err()
}

func (w *wire) FindNow(ctx context.Context, key, order string) (p payment.Payment, found, read bool) {
	r := w.ask(ctx, call{op: opFindNow, key: keyOf(key), byOrder: order != ""})
	return r.payment(), r.found, !r.failed
}

func (w *wire) TakeOver(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	r := w.ask(ctx, call{op: opTakeOver, key: keyOf(p.PaymentKey), args: p, lease: lease})
	return r.payment(), r.ending, r.err()
}

func (w *wire) Reopen(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	r := w.ask(ctx, call{op: opReopen, key: keyOf(p.PaymentKey), args: p, lease: lease})
	return r.payment(), r.ending, r.err()
}

func (w *wire) Settle(ctx context.Context, st approval.Settlement) (payment.Payment, payment.Ending, error) {
	r := w.ask(ctx, call{op: opSettle, key: keyOf(st.Payment.PaymentKey), args: st})
	if w.mut.answerUnwritten && st.Action.To == payment.Failed && r.ending != payment.Applied && r.ending != payment.NoRows {
		p := st.Payment
		p.Status, p.Failure, p.HoldsOrder, p.Leased = payment.Failed, st.Action.Failure, false, false
		return p, payment.Applied, nil
	}
	return r.payment(), r.ending, r.err()
}

func (w *wire) Release(ctx context.Context, q approval.Release) (payment.Ending, error) {
	r := w.ask(ctx, call{op: opRelease, key: keyOf(q.Payment.PaymentKey), args: q})
	return r.ending, r.err()
}

func (w *wire) BeginSend(ctx context.Context, b approval.BeginSend) (payment.Payment, payment.Ending, error) {
	r := w.ask(ctx, call{op: opBeginSend, key: keyOf(b.Payment.PaymentKey), args: b})
	return r.payment(), r.ending, r.err()
}

func (w *wire) MarkTold(ctx context.Context, key string) error {
	return w.ask(ctx, call{op: opMarkTold, key: keyOf(key)}).err()
}

func (w *wire) BeginGiveBack(ctx context.Context, g approval.GiveBack) (approval.Cancel, payment.Payment, payment.Ending, error) {
	r := w.ask(ctx, call{op: opBeginGiveBack, key: keyOf(g.Payment.PaymentKey), args: g})
	return r.cancel.view(), r.payment(), r.ending, r.err()
}

func (w *wire) FindCancels(ctx context.Context, q approval.CancelQuery) (st approval.Standing, found bool, err error) {
	r := w.ask(ctx, call{op: opFindCancels, key: int(q.ID) - 1})
	if st.Payment = r.payment(); r.cancel.State != noCancel {
		st.Open = new(r.cancel.view())
	}
	return st, r.found, r.err()
}

func (w *wire) EndGiveBack(ctx context.Context, e approval.GiveBackEnd) (payment.Payment, payment.Ending, error) {
	r := w.ask(ctx, call{op: opEndGiveBack, key: keyOf(e.Payment.PaymentKey), args: e})
	return r.payment(), r.ending, r.err()
}

// Peek answers what the exploration chose when the call came in.
func (w *wire) Peek() *payment.Answer {
	if w.refused == (reply{}) {
		return nil
	}
	a := w.refused.answer(keyA)
	return &a
}

// Confirm retries as the pipeline does by default: once, after a connection that failed or broke and after a 5xx, if the
// key rule allows it.
func (w *wire) Confirm(ctx context.Context, c approval.ConfirmCall) []payment.Answer {
	k, key := keyOf(c.Order.PaymentKey), c.Key
	expires := w.from + seconds(c.NotAfter.Sub(w.start)/time.Second)
	var tries []payment.Answer
	for range 2 {
		number, _ := strconv.Atoi(key[strings.LastIndex(key, ":")+1:])
		a := w.ask(ctx, call{op: opConfirm, key: k, n: uint8(number), expires: expires}).reply.answer(k)
		tries = append(tries, a)
		again := a.Kind == payment.KindFault || a.Kind == payment.KindReset || a.Kind == payment.KindNotConnected
		if !again || len(tries) == 2 {
			break
		}
		next, send, heard := c.Next(ctx, a)
		if !send {
			if heard.Kind != "" {
				tries = append(tries, heard)
			}
			break
		}
		key = next
	}
	if w.mut.lastWins {
		return tries[len(tries)-1:]
	}
	return tries
}

func (w *wire) Lookup(ctx context.Context, key string, _ approval.Tries) payment.Answer {
	k := keyOf(key)
	return w.ask(ctx, call{op: opLookup, key: k}).reply.answer(k)
}

func (w *wire) Cancel(ctx context.Context, c approval.CancelCall) payment.Answer {
	k := keyOf(c.PaymentKey)
	x := call{op: opCancel, key: k, id: cancelNumber(payment.CancelMark(c.Reason)), args: c}
	number, _ := strconv.Atoi(c.Key[strings.LastIndex(c.Key, "-")+1:])
	x.n = uint8(number)
	if stem := cancelID(0); payment.CancelMark(c.Reason)[:len(stem)-1] != stem[:len(stem)-1] {
		x.id = 0
	}
	return w.ask(ctx, x).reply.answer(k)
}
