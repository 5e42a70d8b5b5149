package protocol

import (
	"cmp"
	"slices"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// successors lists everything that can happen next. The order is fixed, so that a trace can be walked again.
func (x *explorer) successors(s state) []successor {
	x.out = x.out[:0]
	for k := range s.Calls {
		x.spawnConfirm(s, k)
	}
	x.spawnRecovery(s)
	for k := range s.Rows {
		x.spawnHint(s, k)
	}
	for i, p := range s.Procs {
		if p.Node != 0 {
			x.work(s, i)
			x.kill(s, i)
		}
	}
	for k := range s.Toss {
		x.landings(s, k)
	}
	x.database(s)
	x.tick(s)
	return x.out
}

func (x *explorer) emit(s state, who, what, how string) {
	s.simplify()
	x.out = append(x.out, successor{s, step{who, what, how}})
}

// simplify makes states equal that differ in nothing that can matter any more.
func (s *state) simplify() {
	slices.SortFunc(s.Procs[:], func(p, q proc) int { return cmp.Compare(q.Node, p.Node) })
	if s.Procs != [mostProcs]proc{} {
		return
	}
	for k := range s.Rows {
		r, a := &s.Rows[k], &s.Toss[k]
		if !r.There {
			continue
		}
		r.Version = 1 // nobody has read another
		failure := payment.Failure{Code: failures()[r.Failure]}
		if r.unfinished() || r.status() == payment.Failed && failure.Reopens() {
			continue
		}
		r.Reserved, r.First, r.Last, r.Sends, r.KeySpent = 0, 0, 0, 1, false
		if a.seen() != payment.SeenReady {
			a.Kept, a.Born = [mostNumbers]reply{}, 0
		}
	}
}

// slot is a free place for a process, or -1.
func (x *explorer) slot(s state) int {
	n, free := 0, -1
	for i, p := range s.Procs {
		switch {
		case p.Node != 0:
			n++
		case free < 0:
			free = i
		}
	}
	if n >= x.cfg.procs {
		return -1
	}
	return free
}

func (x *explorer) name(n uint32) string {
	b := x.procs.nodes[n].birth
	return b.program.String() + " " + paymentKey(int(b.key))
}

// spawnConfirm lets the client call: for A at once, again and again; for B whenever it likes.
func (x *explorer) spawnConfirm(s state, k int) {
	i := x.slot(s)
	if s.Calls[k] == 0 || i < 0 || k == keyB && s.Calls[keyA] == x.cfg.calls[keyA] ||
		k == keyA && s.Calls[keyA] == x.cfg.calls[keyA] && s.Level > 0 {
		return
	}
	begin := func(s state, refused reply, how string) {
		s.Calls[k]--
		s.Client[k].Failed = false
		if s.Toss[k].Born == never {
			s.Toss[k].Born = s.Now
		}
		n := x.procs.start(birth{program: runConfirm, key: uint8(k), at: s.Now, refused: refused})
		x.enter(s, i, n, "confirm "+paymentKey(k), "the client calls", how)
	}
	begin(s, reply{}, "")
	if s.Faults > 0 && !x.cfg.keepPending {
		s.Faults--
		begin(s, refusal(payment.RefusedByBreaker), "the breaker is open")
	}
}

// enter lets process i be in local state n.
func (x *explorer) enter(s state, i int, n uint32, who, what, how string) {
	l := &x.procs.nodes[n]
	p := &s.Procs[i]
	p.Node = n
	if l.birth.program != runConfirm {
		p.Answered = true
	}
	if l.answer.there && !p.Answered {
		p.Answered = true
		x.tell(&s, i, int(l.birth.key), l.answer)
		how += ", told " + string(l.answer.result)
	}
	if l.ended || l.main == nil && l.told == nil {
		*p = proc{}
	}
	x.emit(s, who, what, how)
}

// tell notes what the client knows.
func (x *explorer) tell(s *state, i, k int, a answer) {
	switch a.result {
	case payment.ResultApproved, payment.ResultReplayed:
		s.Client[k].Paid = true
	case payment.ResultDeclined, payment.ResultExpired, payment.ResultPGUnavailable, payment.ResultBusy, payment.ResultDBFailed,
		payment.ResultMisconfigured:
		if a.earlier != payment.EarlierUnknown && !x.unanswered(*s, i, k) {
			s.Client[k].Failed = true
		}
	default:
	}
}

// unanswered reports whether another call of the client with the key is under way.
func (x *explorer) unanswered(s state, except, k int) bool {
	for i, p := range s.Procs {
		if i == except || p.Node == 0 || p.Answered {
			continue
		}
		if int(x.procs.nodes[p.Node].birth.key) == k {
			return true
		}
	}
	return false
}

func (x *explorer) spawnRecovery(s state) {
	i := x.slot(s)
	if s.Down || i < 0 {
		return
	}
	k := s.claimDue(leaseTime)
	if k < 0 {
		return
	}
	n := x.procs.start(birth{program: runRecovery, key: uint8(k), at: s.Now, claimed: s.Rows[k]})
	x.enter(s, i, n, "recovery "+paymentKey(k), "claims what is due", "")
}

// spawnHint lets an operator ask for a sync, or Toss send a webhook.
func (x *explorer) spawnHint(s state, k int) {
	i := x.slot(s)
	if s.Down || i < 0 || s.Hints == 0 || !s.claimOne(k, leaseTime) {
		return
	}
	s.Hints--
	n := x.procs.start(birth{program: x.cfg.hint, key: uint8(k), at: s.Now, claimed: s.Rows[k]})
	x.enter(s, i, n, x.cfg.hint.String()+" "+paymentKey(k), "claims the row", "")
}

// work answers the calls that process i waits for, in every way that the budget allows; the way without a fault first.
func (x *explorer) work(s state, i int) {
	l := &x.procs.nodes[s.Procs[i].Node]
	main, told := l.main, l.told
	who := x.name(s.Procs[i].Node)
	switch {
	case s.Procs[i].Heard != 0:
		x.hear(s, i, false, result{reply: x.procs.answers[s.Procs[i].Heard]}, who, "hears the lookup", "")
	case main == nil:
	case main.op.ofStore():
		x.statement(s, i, main, false, who)
	case main.op == opLookup:
		x.lookup(s, i, main, who)
	case main.op == opConfirm:
		x.confirm(s, i, main, who)
	default:
		x.cancel(s, i, main, who)
	}
	if told != nil {
		x.statement(s, i, told, true, who)
	}
}

// hear delivers a result and goes on to the next call.
func (x *explorer) hear(s state, i int, told bool, r result, who, what, how string) {
	n := x.procs.step(edge{from: s.Procs[i].Node, at: s.Now, told: told, heard: r})
	if !told { // a lookup that is on its way back stays there while MarkTold is answered
		s.Procs[i].Heard = 0
	}
	x.enter(s, i, n, who, what, how)
}

// statement runs one call of the store.
func (x *explorer) statement(s state, i int, c *call, told bool, who string) {
	what := c.op.String()
	if s.Down || c.dead {
		x.hear(s, i, told, result{ending: payment.NotApplied, failed: true}, who, what, "the database is down")
		return
	}
	before := s
	r := s.run(c, x.cfg.mut)
	how := ""
	switch {
	case c.op.reads():
	case r.ending == payment.NoRows:
		how = "0 rows"
	case r.ending == payment.Applied && c.op == opSettle:
		how = string(s.Rows[c.key].status())
	}
	x.hear(s, i, told, r, who, what, how)
	if s.Faults == 0 || c.op.reads() || c.op == opMarkTold {
		return
	}
	lost := result{ending: payment.MaybeApplied}
	if r.ending == payment.Applied {
		s.Faults--
		x.hear(s, i, told, lost, who, what, "applied, the acknowledgement is lost")
	}
	before.Faults--
	x.hear(before, i, told, lost, who, what, "not applied, nobody knows")
}

// run carries a statement out.
func (s *state) run(c *call, m mutations) result {
	r := result{key: uint8(c.key), now: s.Now}
	switch c.op {
	case opReserve:
		r.ending = s.reserve(c.key, c.lease)
	case opFind, opFindNow:
		if k := s.find(c.key, c.byOrder); k >= 0 {
			r.found, r.key, r.row, r.ending = true, uint8(k), s.Rows[k], payment.Applied
		} else {
			r.ending = payment.NoRows
		}
		return r
	case opFindCancels:
		r.found, r.row, r.ending = true, s.Rows[c.key], payment.Applied
		for _, row := range r.row.Cancels {
			if row.State == cancelOpen {
				r.cancel = row
			}
		}
		return r
	case opTakeOver:
		r.ending = s.takeOver(c.args.(payment.Payment), c.lease)
	case opReopen:
		r.ending = s.reopen(c.args.(payment.Payment), c.lease)
	case opSettle:
		r.ending = s.settle(c.args.(approval.Settlement), m)
	case opRelease:
		r.ending = s.release(c.args.(approval.Release), m)
		return result{ending: r.ending}
	case opBeginSend:
		r.ending = s.beginSend(c.args.(approval.BeginSend))
	case opMarkTold:
		s.markTold(c.key)
		return result{ending: payment.Applied}
	case opBeginGiveBack:
		r.cancel, r.ending = s.beginGiveBack(c.args.(approval.GiveBack), m)
	case opEndGiveBack:
		r.ending = s.endGiveBack(c.args.(approval.GiveBackEnd), m)
	}
	if r.ending != payment.Applied {
		return result{ending: r.ending}
	}
	r.row = s.Rows[c.key]
	return r
}

// lookup asks Toss now; a process may hear the answer later, when it is old.
func (x *explorer) lookup(s state, i int, c *call, who string) {
	if s.Now >= c.expires || c.dead {
		x.hear(s, i, false, result{reply: answerOf(payment.KindTimeout)}, who, "look up", "its time is over")
		return
	}
	r := s.look(c.key, x.cfg)
	what := string(payment.Sightings()[r.Seen])
	if s.Pauses == 0 || x.procs.nodes[s.Procs[i].Node].birth.program == runConfirm {
		// What happens between the question and the answer can as well happen after it, but for time that passes.
		x.hear(s, i, false, result{reply: r}, who, "look up", what)
	} else {
		t := s
		t.Procs[i].Heard = x.procs.keep(r)
		x.emit(t, who, "look up", what+", on its way back")
	}
	if s.Faults > 0 {
		s.Faults--
		x.hear(s, i, false, result{reply: answerOf(payment.KindTimeout)}, who, "look up", "no answer")
	}
}

// confirm sends one try to Toss.
func (x *explorer) confirm(s state, i int, c *call, who string) {
	const what = "send the confirm"
	hear := func(s state, r reply, how string) { x.hear(s, i, false, result{reply: r}, who, what, how) }
	if s.Now >= c.expires || c.dead {
		hear(s, refusal(payment.RefusedByLease), "its lease is over")
		return
	}
	a := &s.Toss[c.key]
	clean := s
	if busy := a.busy(c.n); busy != (reply{}) {
		if kinds()[busy.Kind] == payment.KindProcessing {
			clean.Toss[c.key].keep(c.n, busy)
		}
		hear(clean, busy, string(kinds()[busy.Kind]))
	} else {
		r := clean.charge(c.key, c.n)
		hear(clean, r, string(kinds()[r.Kind])+" "+string(payment.Sightings()[r.Seen]))
	}
	if s.Faults == 0 {
		return
	}
	s.Faults--
	hear(s, answerOf(payment.KindNotConnected), "the dial is refused")
	hear(s, refusal(payment.RefusedByLimiter), "refused by the limiter")
	hear(s, refusal(payment.RefusedByBreaker), "refused by the breaker")
	x.underWay(s, c, hear)
	if a.busy(c.n) != (reply{}) || a.kept(c.n) != (reply{}) {
		return
	}
	kept := func(r reply, how string, change func(*account)) {
		t := s
		change(&t.Toss[c.key])
		t.Toss[c.key].keep(c.n, r)
		hear(t, r, how)
	}
	nothing := func(*account) {}
	kept(answerOf(payment.KindThrottled), "429", nothing)
	kept(answerOf(payment.KindMisconfigured), "the merchant is refused", nothing)
	kept(answerOf(payment.KindFault), "5xx before the work", nothing)
	if a.seen() != payment.SeenReady || a.over(s.Now) {
		return
	}
	kept(answerOf(payment.KindDeclined), "declined", func(a *account) { a.become(payment.SeenAborted) })
	kept(answerOf(payment.KindDeclined), "declined, may be tried again", nothing)
	kept(answerOf(payment.KindFault), "5xx after the work", func(a *account) { a.become(payment.SeenDone); a.Times++ })
}

// underWay are the tries that nobody hears the end of: the work is done at once, later or never.
func (x *explorer) underWay(s state, c *call, hear func(state, reply, string)) {
	a := s.Toss[c.key]
	for _, running := range []bool{false, true} {
		if running && (a.seen() != payment.SeenReady || a.over(s.Now) || a.kept(c.n) != (reply{}) || a.running()) {
			continue // Toss answers at once
		}
		where := "on the wire"
		if running {
			where = "running at Toss"
		}
		t := s
		if !t.depart(c.key, flight{N: c.n, Running: running, Late: running && x.cfg.late}) {
			continue
		}
		hear(t, answerOf(payment.KindTimeout), "no answer, "+where)
		hear(t, answerOf(payment.KindReset), "the connection broke, "+where)
		if !running {
			hear(t, answerOf(payment.KindFault), "a proxy's 5xx, "+where)
		}
	}
}

// cancel sends one cancel to Toss.
func (x *explorer) cancel(s state, i int, c *call, who string) {
	const what = "send the cancel"
	hear := func(s state, r reply, how string) { x.hear(s, i, false, result{reply: r}, who, what, how) }
	if s.Now >= c.expires || c.dead {
		hear(s, answerOf(payment.KindTimeout), "its time is over")
		return
	}
	id := c.id
	if id == 0 {
		id = firstCompensation + s.Toss[c.key].Compensations
		s.Toss[c.key].Compensations++
	}
	clean := s
	r := clean.giveBack(c.key, id, c.n)
	hear(clean, r, string(kinds()[r.Kind])+" "+string(payment.Sightings()[r.Seen]))
	if s.Faults == 0 {
		return
	}
	s.Faults--
	if t := s; t.recallLater(c.key, id, c.n) {
		hear(t, answerOf(payment.KindTimeout), "no answer, on the wire")
	}
	if s.Toss[c.key].keptCancel(id, c.n) != (reply{}) {
		return
	}
	for _, kind := range []payment.Kind{payment.KindFault, payment.KindDeclined} {
		t := s
		t.Toss[c.key].keepCancel(id, c.n, answerOf(kind))
		hear(t, answerOf(kind), string(kind))
	}
	if s.Toss[c.key].seen() == payment.SeenDone {
		t := s
		a := &t.Toss[c.key]
		a.become(payment.SeenCanceled)
		a.CanceledBy = id
		a.keepCancel(id, c.n, answerOf(payment.KindFault))
		hear(t, answerOf(payment.KindFault), "5xx after the work")
	}
}

// kill ends a process between two steps, or while its request is on the wire.
func (x *explorer) kill(s state, i int) {
	if s.Kills == 0 {
		return
	}
	s.Kills--
	n := s.Procs[i].Node
	who, c := x.name(n), x.procs.nodes[n].main
	heard := s.Procs[i].Heard != 0
	s.Procs[i] = proc{}
	x.emit(s, who, "killed", "")
	if c == nil || heard || s.Now >= c.expires {
		return
	}
	switch c.op {
	case opConfirm:
		if s.depart(c.key, flight{N: c.n}) {
			x.emit(s, who, "killed", "its confirm is on the wire")
		}
	case opCancel:
		id := c.id
		if id == 0 {
			id = firstCompensation + s.Toss[c.key].Compensations
			s.Toss[c.key].Compensations++
		}
		if s.recallLater(c.key, id, c.n) {
			x.emit(s, who, "killed", "its cancel is on the wire")
		}
	default:
	}
}

// landings are the requests under way that reach their end.
func (x *explorer) landings(s state, k int) {
	for i, f := range s.Toss[k].Flights {
		if f.N == 0 {
			continue
		}
		t := s
		t.land(k, i)
		x.emit(t, "Toss", "the confirm "+paymentKey(k)+" under way ends", string(t.Toss[k].seen()))
		if f.Running && !f.Late {
			t = s
			t.Toss[k].Flights[i] = flight{}
			t.Toss[k].settleFlights()
			t.Toss[k].keep(f.N, answerOf(payment.KindFault))
			x.emit(t, "Toss", "the confirm "+paymentKey(k)+" under way fails", "")
		}
	}
	for i, f := range s.Toss[k].Recalls {
		if f.ID == 0 {
			continue
		}
		t := s
		t.Toss[k].Recalls[i] = recall{}
		t.Toss[k].settleFlights()
		t.giveBack(k, f.ID, f.N)
		x.emit(t, "Toss", "the cancel "+paymentKey(k)+" under way ends", string(t.Toss[k].seen()))
	}
}

// database takes the database down while somebody is about to use it, and up again.
func (x *explorer) database(s state) {
	if s.Down {
		s.Down = false
		x.emit(s, "database", "up again", "")
		return
	}
	if s.Faults == 0 {
		return
	}
	for _, p := range s.Procs {
		l := &x.procs.nodes[p.Node]
		if p.Node != 0 && (l.main != nil && l.main.op.ofStore() || l.told != nil) {
			s.Faults--
			s.Down = true
			x.emit(s, "database", "down", "")
			return
		}
	}
}

// tick lets time pass to the next level. A client that waits is answered by then.
func (x *explorer) tick(s state) {
	if int(s.Level) == len(x.cfg.levels)-1 {
		return
	}
	if s.Procs != [mostProcs]proc{} {
		if s.Pauses == 0 {
			return
		}
		s.Pauses--
	}
	s.Level++
	s.Now = x.cfg.levels[s.Level]
	s.forget(x.cfg)
	how := ""
	for i, p := range s.Procs {
		if p.Node == 0 || p.Answered {
			continue
		}
		n := x.procs.step(edge{from: p.Node, at: s.Now, passed: true})
		l := &x.procs.nodes[n]
		s.Procs[i].Node = n
		if l.answer.there {
			s.Procs[i].Answered = true
			x.tell(&s, i, int(l.birth.key), l.answer)
			how += x.name(n) + " told " + string(l.answer.result)
		}
	}
	x.emit(s, "time", "passes", how)
}
