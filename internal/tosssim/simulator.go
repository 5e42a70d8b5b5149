// Package tosssim is a simulator of Toss Payments that speaks over real sockets: confirm, look-up by key and by
// order, cancel and transactions, with the rules of the real one (10-minute window, answers replayed per
// idempotency key, null fields, Korean time) and with faults that a control port scripts. README.md lists the calls.
package tosssim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Settings are the rules that the control port may change while the simulator runs.
type Settings struct {
	// Idempotency: a POST with a known Idempotency-Key gets the first answer again. Off, keys are ignored.
	Idempotency bool
	// SingleUse: a paymentKey is charged once. Off, every confirm of it that is worked on takes the money again.
	SingleUse bool
	// Window is how long an authentication can be confirmed (Toss: 10 minutes).
	Window time.Duration
	// BusyAsS008 answers a confirm that meets a running one with 500 and a message that begins "[S008]" in place
	// of 400 ALREADY_PROCESSING_REQUEST. Both are seen in the wild.
	BusyAsS008 bool
	// ForgetExpired makes look-ups of an expired payment answer 404 in place of an EXPIRED payment.
	ForgetExpired bool
}

// Options are what a simulator starts with. The zero value is polite: no faults, every rule on.
type Options struct {
	// SecretKeys that are accepted; empty accepts every key that begins with "test_". A "live_" key is refused.
	SecretKeys []string
	// Faults in force from the start.
	Faults []Fault
	// Seed of the dice that Rate and latency distributions throw; 0 takes one from the clock.
	Seed uint64
	// CallLog is how many calls are remembered (default 20000); older ones are only counted.
	CallLog int
	// Settings to start with; nil means DefaultSettings.
	Settings *Settings
}

// DefaultSettings are the rules of the real Toss.
func DefaultSettings() Settings {
	return Settings{Idempotency: true, SingleUse: true, Window: 10 * time.Minute}
}

// Rude are Options for chaos: 20 to 300 ms per call and, of all confirms and cancels, 3 % lose the answer after the
// work, 2 % are dropped before it, 2 % hang and are worked on 2 s later, 2 % answer 500 without work, 1 % answer 500
// after the work, 2 % a temporary PROVIDER_ERROR, 2 % ALREADY_PROCESSED_PAYMENT after the work, 1 % a body cut short.
// Of all look-ups 3 % answer 500 and 2 % are dropped.
func Rude(seed uint64) Options {
	faults := []Fault{{Op: OpAny, Latency: Latency{Min: Duration(20 * time.Millisecond), Max: Duration(300 * time.Millisecond)}}}
	for _, op := range []string{OpConfirm, OpCancel} {
		faults = append(faults,
			Fault{Op: op, Drop: DropAfter, Rate: 0.03},
			Fault{Op: op, Drop: DropBefore, Rate: 0.02},
			Fault{Op: op, Late: Duration(2 * time.Second), Rate: 0.02},
			Fault{Op: op, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Rate: 0.02},
			Fault{Op: op, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Work: WorkDo, Rate: 0.01},
			Fault{Op: op, Code: "PROVIDER_ERROR", Rate: 0.02},
			Fault{Op: op, Malformed: MalformedTruncated, Rate: 0.01})
	}
	faults = append(faults,
		Fault{Op: OpConfirm, Code: "ALREADY_PROCESSED_PAYMENT", Work: WorkDo, Rate: 0.02},
		Fault{Op: OpLookup, Code: "FAILED_PAYMENT_INTERNAL_SYSTEM_PROCESSING", Rate: 0.03},
		Fault{Op: OpLookup, Drop: DropBefore, Rate: 0.02})
	return Options{Faults: faults, Seed: seed}
}

// Validate reports every mistake in the options at once, a live key first of all.
func (o Options) Validate() error {
	var errs []error
	for _, k := range o.SecretKeys {
		if err := checkSecret(k); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := compile(o.Faults, loadCodes()); err != nil {
		errs = append(errs, err)
	}
	if o.CallLog < 0 {
		errs = append(errs, fmt.Errorf("call log: %d is below 0", o.CallLog))
	}
	if o.Settings != nil && o.Settings.Window <= 0 {
		errs = append(errs, errors.New("window: must be above 0"))
	}
	return errors.Join(errs...)
}

func checkSecret(k string) error {
	switch {
	case strings.HasPrefix(k, "live_"):
		return errors.New("secret key: tosssim is a simulator and refuses live_ keys; use a test_ key")
	case !strings.HasPrefix(k, "test_"):
		return errors.New(`secret key: must begin with "test_"`)
	}
	return nil
}

// Simulator is one merchant's Toss. All methods are safe for concurrent use and none waits for a call that is slow.
type Simulator struct {
	options  Options
	codes    map[string]*apiError
	secrets  secretCache
	settings atomic.Pointer[Settings]
	state    atomic.Pointer[state]
	rules    atomic.Pointer[ruleSet]
	offset   atomic.Int64
	traces   atomic.Uint64
	dice     dice
	pens     sync.Pool
	gate     atomic.Pointer[Server]
	stop     chan struct{}
	stopOnce sync.Once
}

// New makes a simulator. It panics where o.Validate reports a mistake.
func New(o Options) *Simulator {
	if err := o.Validate(); err != nil {
		panic(fmt.Sprintf("tosssim: %v", err))
	}
	if o.Seed == 0 {
		o.Seed = uint64(time.Now().UnixNano())
	}
	if o.CallLog == 0 {
		o.CallLog = 20000
	}
	s := &Simulator{options: o, codes: loadCodes(), stop: make(chan struct{})}
	s.secrets.allowed = o.SecretKeys
	s.pens.New = func() any { return &pen{b: make([]byte, 0, 2048)} }
	s.Reset()
	return s
}

// Reset forgets payments, calls, idempotency keys and clock moves, and puts settings, faults and dice back to what
// New was given. The listener is left as it is. Work still under way ends in the forgotten world.
func (s *Simulator) Reset() {
	set := DefaultSettings()
	if s.options.Settings != nil {
		set = *s.options.Settings
	}
	s.settings.Store(&set)
	s.offset.Store(0)
	s.dice.seed(s.options.Seed)
	_ = s.SetFaults(s.options.Faults...) // checked by New
	s.state.Store(newState(s.options.CallLog))
}

// Close ends calls that wait inside the simulator; the clients of hung calls see a reset.
func (s *Simulator) Close() { s.stopOnce.Do(func() { close(s.stop) }) }

// Settings returns the rules in force.
func (s *Simulator) Settings() Settings { return *s.settings.Load() }

// Configure changes the rules in force; change may run more than once.
func (s *Simulator) Configure(change func(*Settings)) {
	for {
		old := s.settings.Load()
		set := *old
		if change(&set); s.settings.CompareAndSwap(old, &set) {
			return
		}
	}
}

// Advance moves the simulator's clock forward by d: windows and idempotency keys age, running calls do not.
func (s *Simulator) Advance(d time.Duration) { s.offset.Add(int64(max(d, 0))) }

// Now is the simulator's clock.
func (s *Simulator) Now() time.Time { return time.Unix(0, s.now()) }

func (s *Simulator) now() int64 { return time.Now().UnixNano() + s.offset.Load() }

// wait is how long Toss works, unless the simulator closes first or gone does.
func (s *Simulator) wait(e effect, gone <-chan struct{}) bool {
	if e.wait > 0 {
		t := time.NewTimer(e.wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-gone:
			return false
		case <-s.stop:
			return false
		}
	}
	if e.held == nil {
		return true
	}
	select {
	case <-e.held:
		return true
	case <-gone:
	case <-s.stop:
	}
	return false
}

// Handler is the public API of Toss under /v1.
func (s *Simulator) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /v1/payments/confirm", s.endpoint(OpConfirm, s.confirm))
	m.HandleFunc("GET /v1/payments/{paymentKey}", s.endpoint(OpLookup, s.lookup))
	m.HandleFunc("GET /v1/payments/orders/{orderId}", s.endpoint(OpLookup, s.lookup))
	m.HandleFunc("POST /v1/payments/{paymentKey}/cancel", s.endpoint(OpCancel, s.cancel))
	m.HandleFunc("GET /v1/transactions", s.endpoint(OpTransactions, s.transactions))
	m.HandleFunc("/", s.endpoint(OpOther, func(c *call) { c.fail(c.s.codes["NOT_FOUND"]) }))
	return m
}

// dice is a seeded source of random numbers that goroutines may share.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) seed(n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rng = rand.New(rand.NewPCG(n, n))
}

func (d *dice) roll() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.Float64()
}
