package approval

import (
	"sync"
	"time"
)

// maxMembers bounds the memory of the limiter; past it full buckets are dropped first.
const maxMembers = 100_000

// members is a token bucket per member: calls per period, all of them at once if the member was quiet.
type members struct {
	calls  float64
	perSec float64
	mu     sync.Mutex
	bucket map[string]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

func newMembers(calls int, period time.Duration) *members {
	m := &members{calls: float64(calls), bucket: map[string]*bucket{}}
	if calls > 0 && period > 0 {
		m.perSec = m.calls / period.Seconds()
	}
	return m
}

// take takes one token; without one it says how long until the next.
func (m *members) take(member string) (ok bool, wait time.Duration) {
	if m.perSec == 0 || member == "" {
		return true, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	b := m.bucket[member]
	if b == nil {
		m.makeRoom(now)
		b = &bucket{tokens: m.calls, at: now}
		m.bucket[member] = b
	}
	m.refill(b, now)
	if b.tokens < 1 {
		return false, time.Duration((1 - b.tokens) / m.perSec * float64(time.Second))
	}
	b.tokens--
	return true, 0
}

// giveBack returns the token of a call that turned out to be a duplicate.
func (m *members) giveBack(member string) {
	if m.perSec == 0 || member == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.bucket[member]; b != nil {
		b.tokens = min(m.calls, b.tokens+1)
	}
}

func (m *members) refill(b *bucket, now time.Time) {
	b.tokens = min(m.calls, b.tokens+now.Sub(b.at).Seconds()*m.perSec)
	b.at = now
}

func (m *members) makeRoom(now time.Time) {
	if len(m.bucket) < maxMembers {
		return
	}
	for name, b := range m.bucket {
		if m.refill(b, now); b.tokens >= m.calls {
			delete(m.bucket, name)
		}
	}
	if len(m.bucket) >= maxMembers {
		clear(m.bucket)
	}
}
