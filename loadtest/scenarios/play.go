package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/payment"
	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

// play is one scenario under way. A scenario may use several systems, one after the other.
type play struct {
	plan
	*report

	out io.Writer
	rig *rig.Rig
	in  *rig.Instance
}

func newPlay(p plan, s scenario, out io.Writer) *play {
	return &play{plan: p, report: newReport(p, s), out: out}
}

// say is a line of progress.
func (p *play) say(format string, args ...any) {
	fmt.Fprintf(p.out, "%s %7.1fs %s\n", p.Name, time.Since(p.begun).Seconds(), fmt.Sprintf(format, args...))
}

// short reports whether sizes and pauses are cut, and recovery may be hurried.
func (p *play) short() bool { return p.scale < 1 }

// time is d at the scale of this run, but never below least.
func (p *play) time(d, least time.Duration) time.Duration {
	return max(time.Duration(float64(d)*p.scale), min(least, d)).Round(time.Millisecond)
}

// size is n at the scale of this run, but never below least.
func (p *play) size(n, least int) int { return max(int(float64(n)*p.scale), min(least, n)) }

// setting is an environment variable of paymentd.
func setting(name string, value any) string { return fmt.Sprintf("PAYMENTD_%s=%v", name, value) }

// unlimited lifts what S1, S6, S8 and S11 do not ask about.
func unlimited() []string {
	return []string{setting("RATE_LIMIT", 0), setting("BULKHEAD", 0), setting("MEMBER_LIMIT", 0)}
}

// patient are time-outs of a short run, which may share a busy machine: what a part does not set does not run out.
func patient() []string {
	var set []string
	for _, name := range []string{
		"DB_ACQUIRE_TIMEOUT", "DB_STATEMENT_TIMEOUT", "TOSS_CONNECT_TIMEOUT", "TOSS_CONFIRM_TIMEOUT", "TOSS_LOOKUP_TIMEOUT",
		"TOSS_CANCEL_TIMEOUT", "ANSWER_WITHIN", "COMMIT_WITHIN",
	} {
		set = append(set, setting(name, "30s"))
	}
	return append(set, setting("RESEND_WITHIN", "20m"))
}

// profile reads the settings of deploy/profiles/<name>.env, found from any folder of the module.
func profile(name string) ([]string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "deploy", "profiles", name+".env"))
		up := filepath.Dir(dir)
		if errors.Is(err, os.ErrNotExist) && up != dir {
			dir = up
			continue
		}
		var set []string
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				set = append(set, line)
			}
		}
		return set, err
	}
}

// system is what a part of a scenario runs on.
type system struct {
	// profile is a name of deploy/profiles; empty: the defaults. The settings win over it.
	profile  string
	settings []string
	gateway  tosssim.Options
	database devdb.Options
	// label tells the parts of a scenario apart.
	label string
	// open are the kinds of incidents that the part leaves on purpose.
	open []string
}

// on starts a system, plays a part of the scenario on it, and checks what must hold after every scenario.
func (p *play) on(ctx context.Context, s system, part func(context.Context) error) (err error) {
	settings := []string{setting("RECOVERY_DUE_EVERY", p.time(5*time.Second, 200*time.Millisecond))}
	if p.short() {
		settings = append(settings, setting("LOOKUP_RATE", "100/s"))
	}
	if s.profile != "" {
		set, err := profile(s.profile)
		if err != nil {
			return err
		}
		settings = append(settings, set...)
	}
	if p.short() {
		settings = append(settings, patient()...)
	}
	p.rig, err = rig.Start(ctx, rig.Options{Program: p.program, Settings: append(settings, s.settings...), Gateway: s.gateway, Database: s.database})
	if err != nil {
		return err
	}
	p.in = p.rig.Instances[0]
	defer func() { err = errors.Join(err, p.rig.Close()) }()
	p.say("%s: the system is up", s.label)
	before := p.breaks()
	if err = part(ctx); err == nil {
		err = p.invariants(ctx, s)
	}
	if err != nil || p.breaks() > before {
		logs := filepath.Join(os.TempDir(), "paymentd-scenario-logs", p.Name, s.label)
		p.say("%s: logs are kept in %s", s.label, logs)
		err = errors.Join(err, p.rig.Logs(logs))
	}
	return err
}

// together plays parts at the same time, each on a system of its own; the report has them in their order.
func (p *play) together(ctx context.Context, parts ...func(context.Context, *play) error) error {
	var all sync.WaitGroup
	children, failed := make([]*play, len(parts)), make([]error, len(parts))
	for i, part := range parts {
		children[i] = &play{plan: p.plan, report: &report{Name: p.Name, begun: p.begun}, out: p.out}
		all.Go(func() { failed[i] = part(ctx, children[i]) })
	}
	all.Wait()
	for _, c := range children {
		p.join(c.report)
	}
	return errors.Join(failed...)
}

// inTurn plays parts one after the other; in a short run, where no time is judged, at the same time.
func (p *play) inTurn(ctx context.Context, parts ...func(context.Context, *play) error) error {
	if p.short() {
		return p.together(ctx, parts...)
	}
	for _, part := range parts {
		if err := part(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// settleWithin is how long recovery has for its next step when nobody helps, leases of the dead included.
const settleWithin = 150 * time.Second

// settles waits until nothing is unfinished, and says how long that took. In a short run what waits for its next look
// is made due at once.
func (p *play) settles(ctx context.Context) (time.Duration, error) {
	begin, least, left := time.Now(), math.MaxInt, -1
	end := begin.Add(settleWithin)
	err := rig.Await(ctx, "recovery", func() bool {
		if p.short() {
			_ = p.rig.Hasten(ctx)
		}
		n, err := p.rig.Unfinished(ctx)
		if err == nil && n < least { // a long queue of notices is no standstill
			least, end = n, time.Now().Add(settleWithin)
		}
		left = n
		done := err == nil && n == 0 && len(p.rig.Toss.CallsOf(tosssim.CallQuery{Running: true})) == 0
		return done || time.Now().After(end)
	})
	if err == nil && left != 0 {
		p.broke("recovery stands still: %d unfinished", left)
	}
	return time.Since(begin).Round(10 * time.Millisecond), err
}

// held lets confirms, which take a latency, wait at the gateway until release, however slow the machine is.
func (p *play) held(latency time.Duration) (release func() error, err error) {
	f := tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Fixed(latency), Hold: true}
	err = p.rig.Toss.SetFaults(f)
	f.Hold = false
	return func() error { return p.rig.Toss.SetFaults(f) }, err
}

// invariants are those of every scenario: the gateway is well again, recovery works alone, and the books are right.
func (p *play) invariants(ctx context.Context, s system) error {
	if err := p.rig.Healthy(ctx); err != nil {
		return err
	}
	took, err := p.settles(ctx)
	if err != nil {
		return err
	}
	l, err := p.rig.Ledger(ctx)
	if err != nil {
		return err
	}
	p.must(s.label+": ledger identity, no order charged twice", "-", fmt.Sprintf("%d approved = %d paid + %d returned", l.Approved, l.Paid, l.Returned), l.Holds())
	if !l.Holds() {
		p.broke("%s", l)
	}
	p.must(s.label+": in doubt once the gateway is back", "-", fmt.Sprintf("%d, after %s", l.Doubt, took), l.Doubt == 0)
	wrong, err := p.rig.Notices(ctx)
	if err != nil {
		return err
	}
	told, err := p.untold(ctx)
	if err != nil {
		return err
	}
	wrong = append(wrong, told...)
	p.must(s.label+": PAID without exactly one payment.paid and receipt", "-", len(wrong), len(wrong) == 0)
	for _, w := range wrong[:min(len(wrong), 5)] {
		p.broke("%s", w)
	}
	incidents, err := p.rig.Text(ctx, `SELECT kind FROM incidents WHERE resolved_at IS NULL ORDER BY id`)
	incidents = slices.DeleteFunc(incidents, func(kind string) bool { return slices.Contains(s.open, kind) })
	p.must(s.label+": open incidents", "-", len(incidents), len(incidents) == 0)
	return err
}

// untold lists payments of which the shop did not hear payment.paid under exactly one id.
func (p *play) untold(ctx context.Context) (wrong []string, err error) {
	keys, err := p.rig.Text(ctx, `SELECT payment_key FROM payments WHERE status IN ('PAID', 'CANCELED')`)
	heard := map[string]int{}
	for _, n := range p.rig.Shop.Heard(string(payment.NoticePaid)) {
		heard[n]++
	}
	for _, key := range keys {
		if heard[key] != 1 {
			wrong = append(wrong, fmt.Sprintf("the shop was told payment.paid of %s under %d ids", key, heard[key]))
		}
	}
	return wrong, err
}

// awaits waits for an event; in a short run, which may share a busy machine, at least 90 s.
func (p *play) awaits(ctx context.Context, what string, most time.Duration, ok func() bool) error {
	if p.short() {
		most = max(most, 90*time.Second)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not within %s", most))
	defer cancel()
	return rig.Await(ctx, what, ok)
}

// pause is time that belongs to a scenario.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
