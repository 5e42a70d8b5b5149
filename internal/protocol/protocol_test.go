package protocol

import (
	"flag"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Larger bounds than the usual ones: go test ./internal/protocol -run TestProtocol$ -protocol.faults 3 -timeout 0
var (
	faults = flag.Int("protocol.faults", usual, "faults in one history of the protocol check")
	kills  = flag.Int("protocol.kills", usual, "killed processes in one history of the protocol check")
	pauses = flag.Int("protocol.pauses", usual, "times that pass while a process stands still in its work")
	calls  = flag.Int("protocol.calls", usual, "confirms of the first key in one history of the protocol check")
	hints  = flag.Int("protocol.hints", usual, "syncs or webhooks in one history of the protocol check")
)

// usual leaves a bound as it is for every run.
const usual = -1

// bound is a flag, if it was given.
func bound(given int, otherwise uint8) uint8 {
	if given == usual {
		return otherwise
	}
	return uint8(given)
}

// base is one order that is paid with two keys, with every age that the rules tell apart.
func base() config {
	c := config{faults: 2, kills: 1, calls: [keys]uint8{1, 1}, procs: 2, levels: []seconds{0, 40, 180, 905}, hint: runSync}
	if raceDetector() {
		c.faults, c.kills = 1, 0
	}
	return c
}

// bounded is the configuration with the bounds of the flags.
func (c config) bounded() config {
	c.faults, c.kills, c.pauses = bound(*faults, c.faults), bound(*kills, c.kills), bound(*pauses, c.pauses)
	c.calls[keyA], c.hints = bound(*calls, c.calls[keyA]), bound(*hints, c.hints)
	return c
}

// raceDetector reports whether the test was built with it: ten times slower, and there is nothing to find for it, because
// only one goroutine runs at a time. make test runs the usual bounds without it too.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func TestProtocol(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*config)
	}{
		{"reject and hold, A called twice", func(c *config) { c.calls[keyA] = 2 }},
		{"pending and hold", func(c *config) { c.keepPending = true }},
		{"reject and cancel", func(c *config) { c.cancel = true }},
		{"pending and cancel", func(c *config) { c.keepPending, c.cancel = true, true }},
		{"Toss says expired", func(c *config) { c.saysExpired = true }},
		{"Toss approves too late", func(c *config) { c.late, c.levels = true, []seconds{0, 1020, 3000} }},
		{"with a sync", func(c *config) { c.hint, c.hints = runSync, 1 }},
		{"with a webhook", func(c *config) { c.hint, c.hints, c.cancel = runWebhook, 1, true }},
		{"processes stand still", func(c *config) {
			// At 890 s a lookup may still be overtaken by an approval, at 905 s no more.
			c.faults, c.pauses, c.cancel, c.levels = c.faults-1, 1, true, []seconds{0, 40, 890, 905}
		}},
	}
	var mu sync.Mutex
	asked, chosen := map[op]bool{}, 0
	t.Run("each", func(t *testing.T) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				c := base()
				tt.change(&c)
				r := explore(t, c.bounded())
				t.Log(r)
				if r.violation != "" {
					t.Errorf("%s\n%s", r.violation, strings.Join(r.trace, "\n"))
				}
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(asked, r.asked)
				chosen++
			})
		}
	})
	// A model in which a give back never happens would prove nothing of it.
	for o := opReserve; o <= opCancel && chosen == len(tests); o++ {
		if !asked[o] {
			t.Errorf("%q was never asked of a port", o)
		}
	}
}

// TestProtocolSees switches one rule off at a time: a check that finds nothing then is worthless. With the rule, the
// same bounds hold.
func TestProtocolSees(t *testing.T) {
	t.Parallel()
	once := config{faults: 2, calls: [keys]uint8{1, 1}, procs: 2, levels: []seconds{0, 40, 180, 905}}
	paused := once
	paused.faults, paused.pauses, paused.levels = 1, 1, []seconds{0, 890, 905}
	late := once
	late.late, late.levels = true, []seconds{0, 1020, 3000}
	tests := []struct {
		name string
		cfg  config
		off  mutations
		want string
	}{
		{"the worst outcome wins", once, mutations{lastWins: true}, "charged"},
		{"the rule of the answer", once, mutations{answerUnwritten: true}, "told that A failed"},
		{"the order is held during a give back", late, mutations{letGo: true}, "let go"},
		{"now is the time before the lookup", paused, mutations{nowAfterLookup: true}, "charged twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if r := explore(t, tt.cfg); r.violation != "" {
				t.Errorf("with the rule: %s\n%s", r.violation, strings.Join(r.trace, "\n"))
			} else {
				t.Logf("with the rule: %v", r)
			}
			tt.cfg.mut = tt.off
			r := explore(t, tt.cfg)
			t.Logf("without the rule: %v\n%s\n%s", r, r.violation, strings.Join(r.trace, "\n"))
			if !strings.Contains(r.violation, tt.want) {
				t.Errorf("without the rule: %q, want a violation with %q", r.violation, tt.want)
			}
		})
	}
}
