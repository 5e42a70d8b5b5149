package protocol

import (
	"slices"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// The statements of internal/store, each a function on the state. holdOrder=false is a mutation.

// free reports whether nobody works on the row.
func (r row) free(now seconds) bool { return !r.Leased || r.Due <= now }

func (r row) isDue(now seconds) bool { return r.There && r.Due != never && r.Due <= now }

func (r row) unfinished() bool { return r.status().Unfinished() }

// take lends a row; a lease that ran out means that its holder died.
func (r *row) take(now seconds, lease time.Duration) {
	r.Told = r.Told || r.Leased && r.Due <= now && r.unfinished()
	r.lend(now, lease)
}

func (r *row) lend(now seconds, lease time.Duration) {
	r.Version++
	r.Leased, r.Due = true, now+whole(lease)
}

// holder is the key that holds the order, or -1.
func (s *state) holder() int {
	for k := range s.Rows {
		if s.Rows[k].There && s.Rows[k].Holds {
			return k
		}
	}
	return -1
}

func (s *state) reserve(k int, lease time.Duration) payment.Ending {
	r := &s.Rows[k]
	if r.There || s.holder() >= 0 {
		return payment.NoRows
	}
	*r = row{There: true, Holds: true, MaybeSent: true, Reserved: s.Now, First: s.Now, Last: s.Now, Sends: 1}
	r.set(payment.Pending)
	r.lend(s.Now, lease)
	s.noteStolen(k)
	return payment.Applied
}

// noteStolen remembers that the order was taken although another key of it is being given back.
func (s *state) noteStolen(k int) {
	for other := range s.Rows {
		if other == k || s.Toss[other].balance() == 0 {
			continue
		}
		for _, c := range s.Rows[other].Cancels {
			s.Stolen = s.Stolen || c.State == cancelOpen || c.State == cancelRefused
		}
	}
}

// find is the payment of the key, else the one that holds the order if one is named; -1 is none.
func (s *state) find(k int, byOrder bool) int {
	switch {
	case s.Rows[k].There:
		return k
	case byOrder:
		return s.holder()
	default:
		return -1
	}
}

func (s *state) takeOver(p payment.Payment, lease time.Duration) payment.Ending {
	r := &s.Rows[keyOf(p.PaymentKey)]
	if int64(r.Version) != p.Version || r.status() != payment.Pending || !r.free(s.Now) {
		return payment.NoRows
	}
	r.take(s.Now, lease)
	return payment.Applied
}

func (s *state) reopen(p payment.Payment, lease time.Duration) payment.Ending {
	k := keyOf(p.PaymentKey)
	r := &s.Rows[k]
	failure := payment.Failure{Code: failures()[r.Failure]}
	if int64(r.Version) != p.Version || r.status() != payment.Failed || r.MaybeSent || !failure.Reopens() ||
		r.Cancels[0].State != noCancel || s.holder() >= 0 && s.holder() != k {
		return payment.NoRows
	}
	r.set(payment.Pending)
	r.Failure, r.Holds, r.MaybeSent, r.KeySpent, r.Told, r.Looks = 0, true, true, false, false, 0
	r.Reserved, r.First, r.Last, r.Sends = s.Now, s.Now, s.Now, r.Sends+1
	r.lend(s.Now, lease)
	s.noteStolen(k)
	return payment.Applied
}

// settlement is the settle statement; EndGiveBack uses it with its own guard.
type settlement struct {
	key      int
	to       payment.Status
	from     []payment.Status
	version  int64 // 0: not fenced
	read     int64 // the version that was read
	returned bool
	ended    bool // at Toss, before anybody paid: nothing is owed
	due      time.Duration
	notSent  bool
	told     bool
	failure  *payment.Failure
	incident payment.IncidentKind
	cancels  []payment.GatewayCancel
	canceled bool
	closes   []payment.IncidentKind
	unheld   bool // mutation: a give back does not hold the order
}

func (s *state) settle(st approval.Settlement, m mutations) payment.Ending {
	x := settlement{
		key: keyOf(st.Payment.PaymentKey), to: st.Action.To, returned: st.Observation.Returned(), due: st.Action.VerifyIn,
		notSent: st.NotSent, told: st.Told, failure: st.Action.Failure, incident: st.Action.Incident, cancels: st.Observation.Cancels,
		unheld: m.letGo,
	}
	for _, from := range payment.SettleFrom(x.to) {
		if (from == x.to) == (st.Payment.Status == x.to) {
			x.from = append(x.from, from)
		}
	}
	x.read = st.Payment.Version
	if payment.NeedsFence(x.to) {
		x.version = x.read
	}
	if x.due == 0 && st.Payment.Status != x.to {
		x.due = payment.CrossingLook(st.Actor, x.to)
	}
	switch st.Observation.Sighting {
	case payment.SeenDone, payment.SeenPartlyCanceled, payment.SeenCanceled:
		x.canceled = st.Observation.Balance == 0 && (x.to != payment.Failed || len(x.cancels) > 0)
	default:
	}
	x.ended = st.Observation.Sighting == payment.SeenAborted || st.Observation.Sighting == payment.SeenExpired
	x.closes = closes(x, st.Payment.Status)
	return s.move(x)
}

func closes(x settlement, from payment.Status) []payment.IncidentKind {
	switch {
	case x.returned:
		return []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch, payment.CancelFailed, payment.UnexpectedState, payment.OrphanApproval}
	case from == x.to:
		return nil
	case x.to == payment.Paid:
		return []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch, payment.CancelFailed, payment.OrphanApproval}
	case x.to == payment.Failed && x.ended:
		return []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch, payment.CancelFailed}
	case x.to == payment.Failed:
		return []payment.IncidentKind{payment.UnknownOutcome, payment.Mismatch}
	default:
		return nil
	}
}

func (s *state) move(x settlement) payment.Ending {
	r := &s.Rows[x.key]
	if !r.There || !slices.Contains(x.from, r.status()) || x.version != 0 && int64(r.Version) != x.version {
		return payment.NoRows
	}
	if x.version == 0 && int64(r.Version) != x.read && r.status() == x.to && !r.free(s.Now) {
		return payment.NoRows
	}
	from, owed := r.status(), false
	for _, c := range r.Cancels {
		owed = owed || !x.returned && !x.ended && !x.unheld && (c.State == cancelOpen || c.State == cancelRefused)
	}
	leased, due := r.Leased, r.Due
	r.set(x.to)
	r.Version++
	r.Leased, r.Looks = false, 0
	r.Holds = x.to != payment.Failed || owed
	switch {
	case x.due > 0:
		r.Due = s.Now + whole(x.due)
	case x.to == payment.Failed && owed:
		r.Due = s.Now + whole(payment.LookAgainIn)
	case from == x.to && !leased && !x.returned:
		r.Due = due
	default:
		r.Due = never
	}
	if x.notSent {
		r.MaybeSent, r.First, r.Last = false, never, never
	}
	r.Told = r.Told || x.told
	r.Canceled = r.Canceled || x.canceled
	if x.failure != nil {
		r.Failure = indexOf(failures(), x.failure.Code)
	}
	recorded := r.record(x.cancels, x.returned, s.Now)
	for _, kind := range x.closes {
		r.close(kind)
	}
	r.open(x.incident)
	switch {
	case x.to == payment.Paid && from != payment.Paid:
		r.Paid++
	case x.to == payment.Failed && from != payment.Failed && r.Told:
		r.Failed++
	}
	if x.to == payment.Paid || x.to == payment.Canceled {
		r.Refunded += recorded
	}
	return payment.Applied
}

// record keeps what Toss lists as done and says how many are new; what is unfinished is moot when nothing is left.
func (r *row) record(list []payment.GatewayCancel, returned bool, now seconds) (news uint8) {
	for _, g := range list {
		id := cancelNumber(payment.CancelMark(g.Reason))
		c := r.cancel(id)
		if c == nil {
			c = r.addCancel(cancelRow{ID: id, Sends: 1, Created: now})
		}
		if c.State != cancelDone {
			c.State = cancelDone
			news++
		}
	}
	for i := range r.Cancels {
		if returned && r.Cancels[i].State == cancelOpen {
			r.Cancels[i].State = cancelMoot
		}
	}
	return news
}

func (r *row) cancel(id uint8) *cancelRow {
	for i := range r.Cancels {
		if r.Cancels[i].State != noCancel && r.Cancels[i].ID == id {
			return &r.Cancels[i]
		}
	}
	return nil
}

func (r *row) addCancel(c cancelRow) *cancelRow {
	for i := range r.Cancels {
		if r.Cancels[i].State == noCancel {
			r.Cancels[i] = c
			r.Cancels[i].State = cancelOpen
			return &r.Cancels[i]
		}
	}
	panic("mostCancels is too small")
}

func (r *row) open(kind payment.IncidentKind) {
	if kind != "" {
		r.Incidents |= 1 << indexOf(payment.IncidentKinds(), kind)
	}
}

func (r *row) close(kind payment.IncidentKind) {
	r.Incidents &^= 1 << indexOf(payment.IncidentKinds(), kind)
}

// nextLook is the delay until the next look.
func (r *row) nextLook(in time.Duration, looks int) seconds {
	if in < 0 {
		in = payment.LookIn(looks)
	}
	return whole(in)
}

func (s *state) release(q approval.Release, m mutations) payment.Ending {
	if q.Payment.Status == payment.Failed && q.Observation.Returned() {
		return s.endGiveBack(approval.GiveBackEnd{Payment: q.Payment, Done: true, Observation: q.Observation, Actor: q.Actor}, m)
	}
	r := &s.Rows[keyOf(q.Payment.PaymentKey)]
	if int64(r.Version) != q.Payment.Version {
		return payment.NoRows
	}
	again := s.Now + r.nextLook(q.DueIn, q.Payment.Looks)
	switch {
	case q.Park && r.unfinished():
		r.Due = parked
	case r.unfinished() || r.Holds && r.status() == payment.Failed:
		r.Due = again
	case !r.Leased:
	case q.Forget:
		r.Due = never
	default:
		r.Due = again
	}
	r.Leased = false
	switch {
	case q.NotSent:
		r.MaybeSent, r.First, r.Last = false, never, never
	case q.Sent:
		r.MaybeSent, r.Last = true, s.Now
		if r.First == never {
			r.First = s.Now
		}
	}
	r.KeySpent = r.KeySpent || q.KeySpent
	r.Told = r.Told || q.Told
	if before := r.Incidents; q.Incident != "" {
		if r.open(q.Incident); r.Incidents != before {
			r.Version++ // for the event of it
		}
	}
	return payment.Applied
}

func (s *state) beginSend(b approval.BeginSend) payment.Ending {
	r := &s.Rows[keyOf(b.Payment.PaymentKey)]
	if int64(r.Version) != b.Payment.Version || r.status() != payment.Pending ||
		b.Within > 0 && !(r.Reserved > s.Now-whole(b.Within)) {
		return payment.NoRows
	}
	if !r.MaybeSent || r.First == never {
		r.First = s.Now
	}
	if !r.MaybeSent {
		r.Looks = 0
	}
	r.MaybeSent, r.Last = true, s.Now
	if b.NextKey {
		r.Sends, r.KeySpent = r.Sends+1, false
	}
	r.lend(s.Now, b.Lease)
	return payment.Applied
}

func (s *state) markTold(k int) {
	r := &s.Rows[k]
	if !r.There || r.Told {
		return
	}
	r.Told = true
	if r.status() == payment.Failed {
		r.Failed++
	}
}

// claimDue leases the row that is due the longest, or is -1.
func (s *state) claimDue(lease time.Duration) int {
	k := -1
	for i := range s.Rows {
		if s.Rows[i].isDue(s.Now) && (k < 0 || s.Rows[i].Due < s.Rows[k].Due) {
			k = i
		}
	}
	if k >= 0 {
		s.Rows[k].take(s.Now, lease)
		s.Rows[k].Looks++
	}
	return k
}

// claimOne leases one row in whatever state; a finished one that is not due is only fenced.
func (s *state) claimOne(k int, lease time.Duration) bool {
	r := &s.Rows[k]
	if !r.There || !r.free(s.Now) {
		return false
	}
	r.Looks = max(r.Looks, 1)
	if r.unfinished() || r.isDue(s.Now) {
		r.take(s.Now, lease)
		return true
	}
	r.Leased = false
	r.Version++
	return true
}

// sweepStuck makes unfinished cancels due that nobody looks at.
func (s *state) sweepStuck() (freed bool) {
	for i := range s.Rows {
		r := &s.Rows[i]
		for _, c := range r.Cancels {
			if r.There && r.Due == never && c.State == cancelOpen {
				r.Due, r.Leased = s.Now, false
				r.Version++
				freed = true
			}
		}
	}
	return freed
}

func (s *state) beginGiveBack(g approval.GiveBack, m mutations) (cancelRow, payment.Ending) {
	k := keyOf(g.Payment.PaymentKey)
	r := &s.Rows[k]
	if int64(r.Version) != g.Payment.Version || r.status() == payment.Canceled {
		return cancelRow{}, payment.NoRows
	}
	r.lend(s.Now, g.Lease)
	r.Holds = r.Holds || s.holder() < 0 && !m.letGo
	var refused *cancelRow
	for i := range r.Cancels {
		c := &r.Cancels[i]
		switch c.State {
		case cancelOpen:
			if c.Spent {
				c.Sends, c.Spent = c.Sends+1, false
			}
			return *c, payment.Applied
		case cancelRefused:
			refused = c
		default:
		}
	}
	if refused != nil { // the amount is always the same: the whole
		return *refused, payment.Applied
	}
	id := uint8(1)
	for r.cancel(id) != nil {
		id++
	}
	return *r.addCancel(cancelRow{ID: id, Sends: 1, Created: s.Now}), payment.Applied
}

func (s *state) endGiveBack(e approval.GiveBackEnd, m mutations) payment.Ending {
	k := keyOf(e.Payment.PaymentKey)
	r := &s.Rows[k]
	if !r.There || int64(r.Version) != e.Payment.Version {
		return payment.NoRows
	}
	if !e.Done {
		r.Version++
		r.Leased, r.Due = false, s.Now+r.nextLook(-1, e.Payment.Looks)
		if c := r.cancel(cancelNumber(e.Cancel.ID)); c != nil && c.State == cancelOpen {
			c.Spent = c.Spent || e.KeySpent
			if e.Refused {
				c.State = cancelRefused
			}
		}
		if e.Refused && !e.Quiet {
			r.open(payment.CancelFailed)
		}
		return payment.Applied
	}
	return s.move(givenBack(k, e, m))
}

// givenBack is the move that a confirmed cancel means.
func givenBack(k int, e approval.GiveBackEnd, m mutations) settlement {
	x := settlement{
		key: k, to: payment.Failed, from: []payment.Status{e.Payment.Status}, version: e.Payment.Version, returned: true,
		cancels: e.Observation.Cancels, canceled: true, unheld: m.letGo,
	}
	switch {
	case e.Payment.Status.Unfinished():
		x.failure = &payment.Failure{Code: payment.FailGivenBack}
		if e.Failure != "" {
			x.failure.Code = e.Failure
		}
	case e.Payment.Status == payment.Paid && e.Observation.Returned():
		x.to = payment.Canceled
	case e.Payment.Status == payment.Paid:
		x.to, x.returned, x.canceled = payment.Paid, false, false
	}
	shown := slices.ContainsFunc(x.cancels, func(c payment.GatewayCancel) bool { return payment.CancelMark(c.Reason) == e.Cancel.ID })
	if e.Cancel.ID != "" && !shown && len(x.cancels) == 0 { // a cancel of Toss is always the whole
		x.cancels = append(slices.Clone(x.cancels), payment.GatewayCancel{Reason: payment.MarkedReason("", e.Cancel.ID)})
	}
	x.closes = closes(x, e.Payment.Status)
	return x
}
