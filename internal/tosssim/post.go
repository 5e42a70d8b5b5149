package tosssim

import "time"

const (
	keyLife      = 15 * 24 * time.Hour
	maxKeyLength = 300
)

// idempotencyKey is what Toss compares; the body is not part of it.
type idempotencyKey struct{ secret, url, key string }

// firstAnswer is kept per key; it refers to the payment as of then in place of a stored body.
type firstAnswer struct {
	at      int64
	running bool
	answer  answer
}

// answer is an error, or a payment as of a moment.
type answer struct {
	err *apiError
	p   *payment
	as  view
}

// work is what a POST does between arriving and answering. Both run under the state's lock.
type work interface {
	// admit refuses at once with an answer, or claims the payment for finish.
	admit(st *state, now int64) (answer, bool)
	finish(st *state, now int64) answer
}

// job is a POST under way; it outlives its client.
type job struct {
	s       *Simulator
	st      *state
	w       work
	first   *firstAnswer // nil: nothing to keep
	answer  answer
	decided bool
}

// post runs a POST: idempotency, faults, the work at the end of the latency whether or not the client is still there.
func (s *Simulator) post(c *call, w work) {
	e := s.effect(c)
	if r := e.rule; r != nil && !r.work && !r.cached && r.Late == 0 {
		if c.start(); s.wait(e, nil) {
			s.deliver(c, e, reply{})
		} else {
			c.reset()
		}
		return
	}
	if cw, ok := w.(*confirmWork); ok && e.rule != nil && e.rule.abort {
		cw.decline = e.rule.answer
	}
	j := s.begin(c, w, e.rule)
	c.start()
	if e.rule != nil && e.rule.Late > 0 {
		time.AfterFunc(e.wait+time.Duration(e.rule.Late), func() {
			if s.wait(effect{held: e.held}, nil) {
				j.end()
				j.st.journal.touch()
			}
		})
		s.deliver(c, e, reply{})
		return
	}
	if !s.wait(e, nil) { // it does not look at the client, as Toss does not either
		c.reset()
		return
	}
	j.end()
	s.deliver(c, e, reply{answer: j.answer})
}

// begin decides at once what can be: replay, busy key, scripted or asked-for error, refusal of the work itself.
func (s *Simulator) begin(c *call, w work, r *rule) *job {
	j := &job{s: s, st: c.st, w: w, decided: true}
	now := s.now()
	j.st.mu.Lock()
	defer j.st.mu.Unlock()
	if len(c.key) > maxKeyLength {
		j.answer.err = s.codes["INVALID_IDEMPOTENCY_KEY"]
		return j
	}
	if c.key != "" && s.Settings().Idempotency {
		k := idempotencyKey{c.secret, c.r.URL.EscapedPath(), c.key}
		if old := j.st.keys[k]; old != nil && now-old.at <= int64(keyLife) {
			c.replayed, j.answer = !old.running, old.answer
			if old.running {
				j.answer.err = s.codes["IDEMPOTENT_REQUEST_PROCESSING"]
			}
			return j
		}
		j.first = &firstAnswer{at: now, running: true}
		j.st.keys[k] = j.first
	}
	if r != nil && r.answer != nil && !r.work && r.Late == 0 {
		j.answer.err = r.answer
		return j
	}
	if e := c.testCode(); e != nil {
		j.answer.err = e
		return j
	}
	j.answer, j.decided = w.admit(j.st, now)
	return j
}

// end does the work and keeps its answer under the key.
func (j *job) end() {
	j.st.mu.Lock()
	defer j.st.mu.Unlock()
	if !j.decided {
		j.answer, j.decided = j.w.finish(j.st, j.s.now()), true
	}
	if j.first != nil {
		j.first.running, j.first.answer = false, j.answer
	}
}
