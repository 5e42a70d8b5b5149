package breaker

import (
	"slices"
	"time"
)

// trials are the permits of one half-open generation: each is free, running or ended.
type trials struct {
	slots      []lease
	running    int
	ended      int
	failures   int
	background bool // a background trial runs or has been counted
	// callerAt is when the last trial of a caller with somebody waiting began, else when half-open began.
	callerAt time.Time
}

// lease is a running trial; a stamp of 0 means that the slot is empty.
type lease struct {
	stamp      uint64
	until      time.Time
	background bool
}

func newTrials(count int) trials { return trials{slots: make([]lease, count)} }

func (t *trials) free() int { return len(t.slots) - t.running - t.ended }

// available applies the rule for background work: one at most, and not the last of several. If no other caller came
// for the time patience, the rest goes to it too, one after the other: an idle service must close again.
func (t *trials) available(background bool, now time.Time, patience time.Duration) bool {
	free := t.free()
	switch {
	case !background || free == 0:
		return free > 0
	case now.Sub(t.callerAt) >= patience:
		return !t.backgroundRuns()
	default:
		return !t.background && (free > 1 || len(t.slots) == 1)
	}
}

func (t *trials) backgroundRuns() bool {
	return slices.ContainsFunc(t.slots, func(l lease) bool { return l.stamp != 0 && l.background })
}

// admit puts the lease into an empty slot; the caller has asked available before.
func (t *trials) admit(l lease, now time.Time) int {
	slot := 0
	for t.slots[slot].stamp != 0 {
		slot++
	}
	t.slots[slot] = l
	t.running++
	if l.background {
		t.background = true
	} else {
		t.callerAt = now
	}
	return slot
}

// release empties the slot and says whether that very lease was still in it.
func (t *trials) release(slot int, stamp uint64) (lease, bool) {
	l := t.slots[slot]
	if l.stamp != stamp {
		return lease{}, false
	}
	t.slots[slot] = lease{}
	t.running--
	return l, true
}

// giveBack makes a released trial available again.
func (t *trials) giveBack(l lease) {
	if l.background {
		t.background = false
	}
}

// expire takes back every lease that is over and says how many there were.
func (t *trials) expire(now time.Time) (taken uint64) {
	if t.running == 0 {
		return 0
	}
	for slot, l := range t.slots {
		if l.stamp != 0 && !now.Before(l.until) {
			t.release(slot, l.stamp)
			t.giveBack(l)
			taken++
		}
	}
	return taken
}

func (t *trials) reset(now time.Time) {
	clear(t.slots)
	t.callerAt = now
	t.running, t.ended, t.failures, t.background = 0, 0, 0, false
}
