package protocol

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// program is what a process runs.
type program uint8

const (
	runConfirm program = iota + 1
	runRecovery
	runSync
	runWebhook
)

func (p program) String() string { return [...]string{"", "confirm", "recovery", "sync", "webhook"}[p] }

// birth is how a process begins: a confirm with what the breaker and bulkhead say, the others with the row that they
// claimed.
type birth struct {
	program program
	key     uint8
	at      seconds
	refused reply
	claimed row
}

// edge leads from one local state to the next: time passes until at, and then a call is answered, unless it only
// passed.
type edge struct {
	from   uint32
	at     seconds
	passed bool
	told   bool // the answer is to the second call, MarkTold
	heard  result
}

// local is the state of one process: what it heard so far, and what the real code does next after that. Nothing else can matter
// to the code, so two processes that heard the same at the same times are the same.
type local struct {
	birth birth
	edge  edge // from 0: born
	// main and told are the calls that it waits for.
	main, told *call
	// answer is what its client was told, at the latest now; ended means that nothing is left to do.
	answer answer
	ended  bool
}

// answer is what the client hears.
type answer struct {
	there   bool
	result  payment.Result
	earlier payment.Earlier
}

// processes are the local states met so far; the code runs once for each.
type processes struct {
	t       *testing.T
	cfg     config
	nodes   []local
	born    map[birth]uint32
	next    map[edge]uint32
	answers []reply
	heard   map[reply]uint32
}

func newProcesses(t *testing.T, c config) *processes {
	return &processes{
		t: t, cfg: c, nodes: make([]local, 1), born: map[birth]uint32{}, next: map[edge]uint32{},
		answers: make([]reply, 1), heard: map[reply]uint32{},
	}
}

// start is the local state of a process that begins.
func (ps *processes) start(b birth) uint32 {
	if id, ok := ps.born[b]; ok {
		return id
	}
	id := ps.add(local{birth: b})
	ps.born[b] = id
	return id
}

// step is the local state after an edge.
func (ps *processes) step(e edge) uint32 {
	if id, ok := ps.next[e]; ok {
		return id
	}
	id := ps.add(local{birth: ps.nodes[e.from].birth, edge: e})
	ps.next[e] = id
	return id
}

func (ps *processes) add(n local) uint32 {
	var way []edge
	for e := n.edge; e.from != 0; e = ps.nodes[e.from].edge {
		way = append(way, e)
	}
	for i, j := 0, len(way)-1; i < j; i, j = i+1, j-1 {
		way[i], way[j] = way[j], way[i]
	}
	synctest.Test(ps.t, func(t *testing.T) { ps.live(&n, way) })
	ps.nodes = append(ps.nodes, n)
	return uint32(len(ps.nodes) - 1)
}

// keep names a reply that is on its way back to a process.
func (ps *processes) keep(r reply) uint32 {
	if id, ok := ps.heard[r]; ok {
		return id
	}
	ps.answers = append(ps.answers, r)
	ps.heard[r] = uint32(len(ps.answers) - 1)
	return ps.heard[r]
}

// live lets the real code live through its history, inside a bubble of virtual time, and notes what it does next.
func (ps *processes) live(n *local, way []edge) {
	w := &wire{mut: ps.cfg.mut, start: time.Now(), from: n.birth.at, refused: n.birth.refused}
	service, err := approval.New(approval.Deps{Store: w, Gateway: w, Logger: slog.New(slog.DiscardHandler), Settings: ps.cfg.settings()})
	if err != nil {
		panic(err)
	}
	life := &life{wire: w, service: service, claimedAt: n.birth.at}
	if ps.cfg.mut.nowAfterLookup {
		for _, e := range way {
			if e.heard.reply != (reply{}) {
				life.claimedAt = e.at // the first that recovery hears is the lookup
				break
			}
		}
	}
	life.begin(n.birth)
	life.rest()
	for _, e := range way {
		if left := time.Until(w.start.Add(time.Duration(e.at-n.birth.at) * time.Second)); left > 0 {
			time.Sleep(left)
		}
		life.rest()
		if e.passed {
			continue
		}
		x := w.take(e.told)
		if x == nil {
			panic(fmt.Sprintf("%s: the code took another way when it ran again", n.birth.program))
		}
		x.reply <- e.heard
		life.rest()
	}
	n.main, n.told = w.waits(false), w.waits(true)
	n.ended = life.idle()
	n.answer, _ = life.left()
	w.kill()
	for !life.idle() {
		time.Sleep(time.Hour)
		w.kill()
		synctest.Wait()
	}
}

// life is one run of the code.
type life struct {
	*wire
	service   *approval.Service
	claimedAt seconds

	told  answer
	ended bool // the entry has returned or died
}

func (l *life) leave(a answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told, l.ended = a, true
}

func (l *life) left() (answer, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told, l.ended
}

func (l *life) begin(b birth) {
	go func() {
		var a answer
		defer func() { l.leave(a) }()
		switch b.program {
		case runConfirm:
			told, err := l.service.Confirm(context.Background(), payment.Order{
				PaymentKey: paymentKey(int(b.key)), OrderID: orderID, Amount: price, Currency: payment.KRW,
			})
			a = answer{there: true, result: told.Result}
			if e, ok := errors.AsType[*payment.Error](err); ok {
				a.earlier = e.Earlier
			}
		default:
			actor := map[program]payment.Actor{
				runRecovery: payment.ByRecovery, runSync: payment.BySync, runWebhook: payment.ByWebhook,
			}[b.program]
			p := b.claimed.view(int(b.key), l.claimedAt)
			_, _ = l.service.Resolve(context.Background(), p, actor, time.Now().Add(leaseTime))
		}
	}()
}

// rest lets time pass for the pauses that the code makes by itself, until it waits for an answer or is done.
func (l *life) rest() {
	synctest.Wait()
	for range 40 {
		if l.waits(false) != nil || l.idle() {
			return
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
}

// idle reports whether nothing is left to do.
func (l *life) idle() bool {
	if _, left := l.left(); !left {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Nanosecond)
	defer cancel()
	return l.service.Drain(ctx) == nil
}
