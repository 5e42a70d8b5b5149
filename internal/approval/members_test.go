package approval

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

// TestMembersForgetTheQuiet: the limiter's memory is bounded, and whoever spent his calls is dropped last.
func TestMembersForgetTheQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMembers(1, time.Minute)
		for n := range maxMembers - 1 {
			m.take(strconv.Itoa(n))
		}
		time.Sleep(2 * time.Minute)
		m.take("spent")
		if ok, _ := m.take("new"); !ok || len(m.bucket) != 2 {
			t.Errorf("taken %v, %d buckets", ok, len(m.bucket))
		}
		if ok, wait := m.take("spent"); ok || wait != time.Minute {
			t.Errorf("taken %v, wait %v", ok, wait)
		}
	})
}

// TestMembersStayBounded: with nobody quiet all start anew, rather than the memory growing.
func TestMembersStayBounded(t *testing.T) {
	t.Parallel()
	m := newMembers(1, time.Hour)
	for n := range maxMembers + 10 {
		m.take(strconv.Itoa(n))
	}
	if len(m.bucket) > maxMembers {
		t.Errorf("%d buckets", len(m.bucket))
	}
}
