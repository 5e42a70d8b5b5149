package tosssim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Operations of the public API, as faults and calls name them.
const (
	OpConfirm      = "confirm"
	OpLookup       = "lookup"
	OpCancel       = "cancel"
	OpTransactions = "transactions"
	OpOther        = "other"
	OpAny          = "*"
)

// Values of Fault.Drop, Fault.Work and Fault.Malformed.
const (
	DropBefore         = "before"
	DropAfter          = "after"
	WorkDo             = "do"
	WorkSkip           = "skip"
	MalformedTruncated = "truncated"
	MalformedHTML      = "html"
	MalformedEmpty     = "empty"
)

// Fault is one rule of what goes wrong. Of all rules that match a call the latencies add up and the first one that
// does more than wait decides what the caller sees.
type Fault struct {
	// Op is the operation, or "*".
	Op string `json:"op"`
	// PaymentKey and OrderID narrow the rule; a trailing * matches a prefix.
	PaymentKey string `json:"paymentKey,omitempty"`
	OrderID    string `json:"orderId,omitempty"`
	// Latency is how long Toss works. The idempotency key and the payment are busy meanwhile, and the work is done
	// at its end even when the client has gone.
	Latency Latency `json:"latency,omitzero"`
	// Hold goes on with the latency until the rules are replaced; rules that are added replace none. What must happen
	// before the work is done then does, however slow the machine is.
	Hold bool `json:"hold,omitempty"`
	// Hang never answers. Without Work "do" Toss has not even seen the request.
	Hang bool `json:"hang,omitempty"`
	// Drop closes the connection by RST "before" or "after" the work.
	Drop string `json:"drop,omitempty"`
	// Late does the work this long after the request came, while the answer is lost now: it hangs, or what Drop
	// "before", Status or Code say.
	Late Duration `json:"late,omitzero"`
	// Work is "do" or "skip" where the answer is a fault; the default is skip for Hang, Drop "before", Status and
	// Code, and do for the others.
	Work string `json:"work,omitempty"`
	// Status, Code and Message make an error answer; Code alone takes status and message from Toss's table.
	Status  int    `json:"status,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// RetryAfter is a header in seconds.
	RetryAfter int `json:"retryAfter,omitempty"`
	// Malformed is "truncated", "html" or "empty", instead of the true answer.
	Malformed string `json:"malformed,omitempty"`
	// Patch replaces fields at the top of the true 200 body, for a Payment that does not match or holds new words.
	Patch map[string]json.RawMessage `json:"patch,omitempty"`
	// Abort says whether a confirm refused by Code leaves the payment ABORTED; the default is yes for the codes by
	// which a buyer is declined, unless Work or Late is given.
	Abort *bool `json:"abort,omitempty"`
	// Cache says whether an error answer is replayed under the call's idempotency key; the default is yes with a
	// Code (Toss said it) unless it is 401, 409 or 429, no without one (something in front of Toss said it).
	Cache *bool `json:"cache,omitempty"`
	// Rate is the share of matching calls that are hit, 0 to 1; 0 and absent mean all.
	Rate float64 `json:"rate,omitempty"`
	// Next ends the rule after so many hits; 0 means never.
	Next int `json:"next,omitempty"`
}

// Latency is a time, or a uniform distribution over Min to Max. In JSON "300ms", 300 (milliseconds) or {"min","max"}.
type Latency struct {
	Min Duration `json:"min"`
	Max Duration `json:"max"`
}

// Fixed is a latency that is always d.
func Fixed(d time.Duration) Latency { return Latency{Duration(d), Duration(d)} }

// UnmarshalJSON takes a duration for a fixed latency, or an object with min and max.
func (l *Latency) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte("{")) {
		type plain Latency
		return strict(b, (*plain)(l))
	}
	err := l.Min.UnmarshalJSON(b)
	l.Max = l.Min
	return err
}

// Duration is a time.Duration that JSON writes as Go does ("1.5s") and reads so or as a number of milliseconds.
type Duration time.Duration

// MarshalJSON writes the duration as Go does.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// UnmarshalJSON reads "300ms" or 300.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var ms float64
	if json.Unmarshal(b, &ms) == nil {
		*d = Duration(ms * float64(time.Millisecond))
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return errors.New(`duration: give "300ms" or a number of milliseconds`)
	}
	t, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf(`duration: %q is not like "300ms"`, s)
	}
	*d = Duration(t)
	return nil
}

// rule is a Fault made ready for the hot path.
type rule struct {
	Fault
	answer              *apiError
	work, cached, abort bool
	hits                atomic.Int64
}

type ruleSet struct {
	rules    []*rule
	replaced chan struct{} // closed when they are; rules that were added share it
}

func compile(faults []Fault, codes map[string]*apiError) (*ruleSet, error) {
	set := &ruleSet{replaced: make(chan struct{})}
	var errs []error
	for i, f := range faults {
		r, err := compileOne(f, codes)
		if err != nil {
			errs = append(errs, fmt.Errorf("fault %d: %w", i+1, err))
		}
		set.rules = append(set.rules, r)
	}
	return set, errors.Join(errs...)
}

func compileOne(f Fault, codes map[string]*apiError) (*rule, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	r := &rule{Fault: f, answer: f.refusal(codes)}
	if e := r.answer; e != nil {
		r.abort = e.Decline && f.Op == OpConfirm && f.Work == "" && f.Late == 0
		r.cached = f.Code != "" && e.Status != 401 && e.Status != 409 && e.Status != 429
	}
	if f.Abort != nil {
		r.abort = *f.Abort
	}
	if f.Cache != nil {
		r.cached = *f.Cache
	}
	r.work = f.works() || r.abort
	return r, nil
}

// refuses: the caller sees an error answer.
func (f Fault) refuses() bool { return f.Code != "" || f.Status != 0 }

// refusal is the error answer, Toss's own for a known code except for what the rule says otherwise; nil without one.
func (f Fault) refusal(codes map[string]*apiError) *apiError {
	if !f.refuses() {
		return nil
	}
	e := apiError{Status: 400, Code: f.Code}
	if known := codes[f.Code]; known != nil {
		e = *known
	}
	if f.Status != 0 {
		e.Status = f.Status
	}
	if f.Message != "" {
		e.KO, e.EN = f.Message, f.Message
	}
	return &e
}

// works: Toss does what it is asked for all the same.
func (f Fault) works() bool {
	if f.Work != "" {
		return f.Work == WorkDo
	}
	return !f.Hang && f.Drop != DropBefore && !f.refuses()
}

// check says all that is wrong with the rule.
func (f Fault) check() error {
	return errors.Join(f.checkWords(), f.checkNumbers(), f.checkOneAnswer(), f.checkTogether())
}

func (f Fault) checkWords() error {
	oneOf := func(name, v string, allowed ...string) error {
		if slices.Contains(allowed, v) {
			return nil
		}
		return fmt.Errorf("%s: %q is not one of %s", name, v, strings.Trim(strings.Join(allowed, ", "), ", "))
	}
	return errors.Join(
		oneOf("op", f.Op, OpConfirm, OpLookup, OpCancel, OpTransactions, OpAny),
		oneOf("drop", f.Drop, "", DropBefore, DropAfter),
		oneOf("work", f.Work, "", WorkDo, WorkSkip),
		oneOf("malformed", f.Malformed, "", MalformedTruncated, MalformedHTML, MalformedEmpty))
}

func need(ok bool, text string) error {
	if ok {
		return nil
	}
	return errors.New(text)
}

func (f Fault) checkNumbers() error {
	return errors.Join(
		need(f.Rate >= 0 && f.Rate <= 1, "rate: must be 0 to 1"),
		need(f.Next >= 0, "next: must be 0 or above"),
		need(f.Latency.Min >= 0 && f.Latency.Max >= f.Latency.Min, "latency: must have 0 <= min <= max"),
		need(f.Late >= 0, "late: must be 0 or above"),
		need(f.Status == 0 || f.Status >= 200 && f.Status <= 599, "status: must be 200 to 599"))
}

// checkOneAnswer: a call has one answer, so a rule says at most one thing about it.
func (f Fault) checkOneAnswer() error {
	seen := 0
	for _, set := range []bool{f.Hang, f.Drop != "", f.refuses(), f.Malformed != "", f.Patch != nil} {
		if set {
			seen++
		}
	}
	return need(seen <= 1, "hang, drop, status or code, malformed and patch exclude each other: give one, or two rules")
}

// checkTogether looks at the fields that mean something only beside others.
func (f Fault) checkTogether() error {
	return errors.Join(
		need(f.Late == 0 || f.Malformed == "" && f.Patch == nil && f.Drop != DropAfter && f.Work == "",
			`late: goes with drop "before", status, code or nothing (the answer hangs)`),
		need(f.RetryAfter == 0 || f.RetryAfter > 0 && f.refuses(), "retryAfter: goes with status or code"),
		need(f.Late == 0 || f.Op == OpConfirm || f.Op == OpCancel, "late: only for confirm and cancel"),
		need(f.Abort == nil || f.Op == OpConfirm && f.Code != "" && f.Work == "" && f.Late == 0,
			"abort: goes with op confirm and a code, without work and late"),
		need(f.Drop == "" || f.Work == "", "work: drop says it already"))
}

// effect is what the rules do to one call.
type effect struct {
	wait time.Duration
	held <-chan struct{} // nil: no longer than wait
	rule *rule           // nil: nothing but waiting
}

func (s *Simulator) effect(c *call) effect {
	var e effect
	set := s.rules.Load()
	if len(set.rules) == 0 {
		return e
	}
	for _, r := range set.rules {
		acts := r.acts()
		if acts && e.rule != nil || !s.hits(r, c) {
			continue
		}
		if l := r.Latency; l.Max > 0 {
			e.wait += time.Duration(float64(l.Min) + s.dice.roll()*float64(l.Max-l.Min))
		}
		if r.Hold {
			e.held = set.replaced
		}
		if acts {
			e.rule, c.fault = r, r.name()
		}
	}
	return e
}

func (s *Simulator) hits(r *rule, c *call) bool {
	if r.Op != OpAny && r.Op != c.op || !matches(r.PaymentKey, c.paymentKey) || !matches(r.OrderID, c.orderOf(r)) {
		return false
	}
	if r.Rate > 0 && r.Rate < 1 && s.dice.roll() >= r.Rate {
		return false
	}
	return r.hits.Add(1) <= int64(r.Next) || r.Next == 0
}

func matches(pattern, v string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(v, prefix)
	}
	return pattern == "" || pattern == v
}

func (r *rule) acts() bool { return r.name() != "latency" }

func (r *rule) name() string {
	switch {
	case r.Late > 0:
		return "late"
	case r.Hang:
		return "hang"
	case r.Drop != "":
		return "drop " + r.Drop
	case r.answer != nil:
		return "status"
	case r.Malformed != "":
		return r.Malformed
	case r.Patch != nil:
		return "patch"
	}
	return "latency"
}

// SetFaults replaces all rules, or none of them when one is wrong.
func (s *Simulator) SetFaults(faults ...Fault) error {
	set, err := compile(faults, s.codes)
	if err != nil {
		return err
	}
	s.replace(set)
	return nil
}

// AddFaults puts rules behind those in force, whose counts go on.
func (s *Simulator) AddFaults(faults ...Fault) error {
	more, err := compile(faults, s.codes)
	if err != nil {
		return err
	}
	for {
		old := s.rules.Load()
		set := &ruleSet{rules: append(append([]*rule{}, old.rules...), more.rules...), replaced: old.replaced}
		if s.rules.CompareAndSwap(old, set) {
			return nil
		}
	}
}

// ClearFaults removes all rules; calls already hit go on as they were told.
func (s *Simulator) ClearFaults() { s.replace(&ruleSet{replaced: make(chan struct{})}) }

// replace lets go on what the rules hold that are in force.
func (s *Simulator) replace(set *ruleSet) {
	if old := s.rules.Swap(set); old != nil {
		close(old.replaced)
	}
}

// FaultState is a rule in force and how often it hit.
type FaultState struct {
	Fault
	Hits int64 `json:"hits"`
}

// Faults lists the rules in force in their order.
func (s *Simulator) Faults() []FaultState {
	out := []FaultState{}
	for _, r := range s.rules.Load().rules {
		hits := r.hits.Load()
		if r.Next > 0 {
			hits = min(hits, int64(r.Next))
		}
		out = append(out, FaultState{Fault: r.Fault, Hits: hits})
	}
	return out
}
