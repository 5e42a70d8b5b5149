package tosssim

import (
	"net/url"
	"sort"
	"strconv"
	"time"
)

// read runs a GET: unlike the work of a POST it ends with its client.
func (s *Simulator) read(c *call, find func(now int64) reply) {
	_, _ = c.body()
	e := s.effect(c)
	c.start()
	if !s.wait(e, c.r.Context().Done()) {
		c.reset()
		return
	}
	if code := c.testCode(); code != nil {
		s.deliver(c, e, reply{answer: answer{err: code}})
		return
	}
	s.deliver(c, e, find(s.now()))
}

// lookup answers by paymentKey, or by orderId with the newest attempt (which one Toss returns is not documented).
func (s *Simulator) lookup(c *call) {
	c.paymentKey, c.orderID = c.r.PathValue("paymentKey"), c.r.PathValue("orderId")
	s.read(c, func(now int64) reply {
		set := s.Settings()
		c.st.mu.Lock()
		defer c.st.mu.Unlock()
		p := c.st.payments[c.paymentKey]
		if c.orderID != "" {
			p = c.st.orders[c.orderID]
		}
		if p != nil {
			p.age(now, set.Window, s.codes["EXPIRED_PAYMENT"])
		}
		if p == nil || p.status == Expired && set.ForgetExpired {
			return reply{answer: answer{err: s.codes["NOT_FOUND_PAYMENT"]}}
		}
		return reply{answer: answer{p: p, as: p.view()}}
	})
}

func (s *Simulator) transactions(c *call) {
	s.read(c, func(int64) reply {
		q := c.r.URL.Query()
		c.st.mu.Lock()
		defer c.st.mu.Unlock()
		from, to, bad := feedRange(c.st, q)
		if bad != "" {
			return reply{answer: answer{err: s.codes[bad]}}
		}
		p := &pen{english: c.english()}
		p.raw("[")
		for i := from; i < to; i++ {
			if i > from {
				p.raw(",")
			}
			p.transaction(txIndex(i+1), c.st.txs[i])
		}
		return reply{raw: p.raw("]").b}
	})
}

// feedRange turns the query into places [from, to) of the feed; both dates are inclusive.
func feedRange(st *state, q url.Values) (from, to int, bad string) {
	start, ok := koreanTime(q.Get("startDate"))
	end, ok2 := koreanTime(q.Get("endDate"))
	if !ok || !ok2 {
		return 0, 0, "INVALID_DATE"
	}
	limit := 100
	if l := q.Get("limit"); l != "" {
		n, err := strconv.Atoi(l)
		if err != nil || n < 1 || n > 5000 {
			return 0, 0, "INVALID_REQUEST"
		}
		limit = n
	}
	from = sort.Search(len(st.txs), func(i int) bool { return st.txs[i].at >= start.UnixNano() })
	to = sort.Search(len(st.txs), func(i int) bool { return st.txs[i].at >= end.Add(time.Second).UnixNano() })
	if after := q.Get("startingAfter"); after != "" {
		i, ok := txIndexOf(after)
		if !ok || int(i) > len(st.txs) {
			return 0, 0, "INVALID_REQUEST"
		}
		from = max(from, int(i))
	}
	return from, max(from, min(to, from+limit)), ""
}

// koreanTime reads yyyy-MM-ddTHH:mm:ss or a date alone; an offset or a Z is refused.
func koreanTime(s string) (time.Time, bool) {
	for _, layout := range []string{"2006-01-02T15:04:05", time.DateOnly} {
		// Parse takes fractions that the layout does not name; Toss's format has none.
		if t, err := time.Parse(layout, s); err == nil && len(s) == len(layout) {
			return t.Add(-kst), true
		}
	}
	return time.Time{}, false
}
