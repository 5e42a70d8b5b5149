package notify

import (
	"math/rand/v2"
	"time"
)

// lifetime is how long a notice is tried, from the move that it tells of or from its last replay; then it is dead
// (design note §9).
const lifetime = 24 * time.Hour

const (
	firstDelay   = 5 * time.Second
	longestDelay = 30 * time.Minute
)

// delayAfter is the delay before the next try of a notice that was claimed so many times, before jitter: 5 s,
// doubled each time, at most 30 min. About 57 tries fit into the lifetime.
func delayAfter(attempts int) time.Duration { return doubled(firstDelay, attempts-1, longestDelay) }

// pollDelay is the pause before the next claim: 500 ms, doubled for each failed claim, at most 30 s.
func pollDelay(failures int) time.Duration { return doubled(pollEvery, failures, pollAtMost) }

func doubled(d time.Duration, times int, limit time.Duration) time.Duration {
	for range times {
		if d >= limit {
			break
		}
		d *= 2
	}
	return min(d, limit)
}

// spread adds jitter: d give or take a quarter, so that what failed together does not come back together.
func spread(d time.Duration) time.Duration {
	return d - d/4 + rand.N(d/2+1) //nolint:gosec // spreads load, guards nothing
}
