package protocol

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// leaseTime is the lease of every holder.
const leaseTime = 30 * time.Second

// mutations switch single rules off, to show that the check sees it.
type mutations struct {
	lastWins        bool // the last answer of a sequence decides, not the worst
	answerUnwritten bool // a failure is answered although the row does not say so
	letGo           bool // a payment that is given back does not hold its order
	nowAfterLookup  bool // the age of a payment is taken when the lookup's answer is there
}

// config is what one exploration is about.
type config struct {
	faults, kills uint8
	// calls are the confirms of each key, hints the looks that an operator (hint: runSync) or Toss (runWebhook) asks for.
	calls [keys]uint8
	hints uint8
	hint  program
	// pauses is how often time may pass while a process stands still in the middle of its work.
	pauses uint8
	// procs bounds the processes at work at one time.
	procs int
	// levels are the times at which things happen, in seconds from the first call.
	levels []seconds
	// keepPending is ON_UNAVAILABLE=pending, cancel is ON_COMMIT_FAILURE=cancel.
	keepPending, cancel bool
	// saysExpired: Toss calls a payment EXPIRED when its window is over; else it goes on to call it READY.
	saysExpired bool
	// late lets Toss approve later than it promises: paymentd may fail such a payment and has to give it back.
	late bool
	mut  mutations
}

func (c config) settings() approval.Settings {
	return approval.Settings{
		// Short, so that a commit is tried twice and another's confirm is watched for two reads.
		AnswerWithin: 250 * time.Millisecond, CommitWithin: 60 * time.Millisecond, StatementTimeout: 20 * time.Millisecond,
		Deadline: leaseTime - 2*time.Second, Lease: leaseTime, CancelTimeout: 10 * time.Second, LookupTimeout: 2 * time.Second,
		KeepPending: c.keepPending, CancelOnCommitFailure: c.cancel, Rules: c.rules(),
	}
}

func (c config) rules() payment.Rules {
	return payment.Rules{
		SendWithin: 9 * time.Minute, ResendWithin: 2 * time.Minute, Window: 10 * time.Minute, Margin: 5 * time.Minute,
		UnknownIncidentAfter: time.Hour, VerifyAfter: 30 * time.Minute,
	}
}

func (c config) begin() state {
	s := state{Faults: c.faults, Kills: c.kills, Hints: c.hints, Pauses: c.pauses, Calls: c.calls}
	for k := range s.Toss {
		s.Toss[k].become(payment.SeenReady)
		s.Toss[k].Born = never
		s.Rows[k].Due = never
	}
	return s
}

// step names a transition for the trace.
type step struct {
	who, what, how string
}

func (s step) String() string {
	switch {
	case s.who == "":
		return s.what
	case s.how == "":
		return s.who + ": " + s.what
	default:
		return s.who + ": " + s.what + " → " + s.how
	}
}

// report is the result of one exploration.
type report struct {
	states, transitions, ends, locals int
	took                              time.Duration
	violation                         string
	trace                             []string
	// asked are the calls of the ports that were met.
	asked map[op]bool
}

func (r report) String() string {
	return fmt.Sprintf("%d states, %d transitions, %d ends, %d local states of the code, %s",
		r.states, r.transitions, r.ends, r.locals, r.took.Round(10*time.Millisecond))
}

// origin says how a state was reached first: the n-th transition of an earlier state.
type origin struct {
	parent, nth uint32
}

// explorer is one breadth-first search. Of a state that was worked off only its hash and origin are kept.
type explorer struct {
	cfg     config
	procs   *processes
	seed    maphash.Seed
	seen    map[uint64]struct{}
	ended   map[uint64]struct{}
	origins []origin
	moves   int
	out     []successor
}

type successor struct {
	state state
	step  step
}

// explore visits every state within the bounds, the shortest traces first, and stops at the first violation.
func explore(t *testing.T, c config) report {
	t.Helper()
	start := time.Now()
	x := &explorer{
		cfg: c, procs: newProcesses(t, c), seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}, ended: map[uint64]struct{}{},
	}
	wrong, id, last := x.run()
	r := report{
		states: len(x.origins), transitions: x.moves, ends: len(x.ended), locals: len(x.procs.nodes) - 1, violation: wrong,
	}
	r.asked = map[op]bool{}
	for _, n := range x.procs.nodes {
		if n.main != nil {
			r.asked[n.main.op] = true
		}
		if n.told != nil {
			r.asked[n.told.op] = true
		}
	}
	if wrong != "" {
		r.trace = append(x.trace(id), last...)
	}
	r.took = time.Since(start)
	return r
}

// run returns the first violation, the state in whose future it lies, and the steps from there.
func (x *explorer) run() (wrong string, at uint32, last []string) {
	first := x.cfg.begin()
	x.meet(first, origin{})
	frontier, next := []state{first}, []state(nil)
	for id := uint32(0); len(frontier) > 0; frontier, next = next, frontier[:0] {
		for _, s := range frontier {
			if wrong, last := x.epilogue(s); wrong != "" {
				return wrong, id, last
			}
			for i, to := range x.successors(s) {
				x.moves++
				if wrong := x.wrongNow(to.state); wrong != "" {
					return wrong, id, []string{line(to)}
				}
				if x.meet(to.state, origin{id, uint32(i)}) {
					next = append(next, to.state)
				}
			}
			id++
		}
	}
	return "", 0, nil
}

func (x *explorer) meet(s state, o origin) bool {
	h := maphash.Comparable(x.seed, s)
	if _, old := x.seen[h]; old {
		return false
	}
	x.seen[h] = struct{}{}
	x.origins = append(x.origins, o)
	return true
}

// trace walks from the first state to one by its origins.
func (x *explorer) trace(id uint32) []string {
	var way []uint32
	for ; id != 0; id = x.origins[id].parent {
		way = append(way, x.origins[id].nth)
	}
	slices.Reverse(way)
	s, lines := x.cfg.begin(), []string{}
	for _, nth := range way {
		to := x.successors(s)[nth]
		lines = append(lines, line(to))
		s = to.state
	}
	return lines
}

// line is one step of a trace with what is true after it.
func line(to successor) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5ds  %-72s", to.state.Now, to.step)
	for k := range to.state.Rows {
		if r := to.state.Rows[k]; r.There {
			fmt.Fprintf(&b, " | %s here %s v%d", paymentKey(k), r.status(), r.Version)
			if !r.Holds {
				b.WriteString(" lets go")
			}
		}
		if a := to.state.Toss[k]; a.Born != never && a.seen() != payment.SeenReady {
			fmt.Fprintf(&b, " | %s at Toss %s", paymentKey(k), a.seen())
		}
	}
	return b.String()
}

// epilogue lets all faults end, from a state in which nobody works at the last time, and recovery run until nothing is due; then everything must
// be in order.
func (x *explorer) epilogue(s state) (wrong string, lines []string) {
	if int(s.Level) != len(x.cfg.levels)-1 || s.Procs != [mostProcs]proc{} {
		return "", nil
	}
	s.Faults, s.Kills, s.Hints, s.Pauses, s.Down = 0, 0, 0, 0, false
	s.Calls = [keys]uint8{}
	h := maphash.Comparable(x.seed, s)
	if _, old := x.ended[h]; old {
		return "", nil
	}
	x.ended[h] = struct{}{}
	walk := func(to successor) bool {
		s = to.state
		lines = append(lines, line(to))
		wrong = x.wrongNow(s)
		return wrong == ""
	}
	for range 40 {
		due := parked
		for _, r := range s.Rows {
			if r.There && r.Due != never {
				due = min(due, r.Due)
			}
		}
		if due == parked {
			if !s.sweepStuck() {
				break
			}
			continue
		}
		s.Now = max(s.Now, due)
		s.forget(x.cfg)
		x.out = x.out[:0]
		x.spawnRecovery(s)
		if len(x.out) == 0 || !walk(x.out[0]) {
			break
		}
		for s.Procs != [mostProcs]proc{} {
			x.out = x.out[:0]
			x.work(s, slices.IndexFunc(s.Procs[:], func(p proc) bool { return p.Node != 0 }))
			if !walk(x.out[0]) {
				return wrong, lines
			}
		}
	}
	if wrong == "" {
		wrong = x.wrongAtEnd(s)
	}
	return wrong, lines
}
