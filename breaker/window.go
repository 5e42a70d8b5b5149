package breaker

// window is a ring of the latest results with running sums.
type window struct {
	failed   []bool
	next     int
	calls    int
	failures int
}

func newWindow(size int) window { return window{failed: make([]bool, size)} }

// add counts a result and forgets the oldest one when the ring is full.
func (w *window) add(failed bool) {
	if w.calls == len(w.failed) {
		if w.failed[w.next] {
			w.failures--
		}
	} else {
		w.calls++
	}
	w.failed[w.next] = failed
	if failed {
		w.failures++
	}
	if w.next++; w.next == len(w.failed) {
		w.next = 0
	}
}

func (w *window) reset() { w.next, w.calls, w.failures = 0, 0, 0 }

// reaches says whether failures of calls is at or above the rate. The quotient of two integers is
// rounded as a decimal literal is, so 3 of 5 equals 0.6.
func reaches(rate float64, failures, calls int) bool {
	return float64(failures)/float64(calls) >= rate
}
