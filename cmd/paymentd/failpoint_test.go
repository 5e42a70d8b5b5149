package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/notify"
	"paymentd/internal/payment"
	"paymentd/internal/recovery"
)

// failpointVariable makes the test binary serve as paymentd does until it dies at the step that the value names:
// "store.Reserve before 1" is before the first call, "recovery.Settle after 2" after the second.
const failpointVariable = "PAYMENTD_TEST_CRASH"

// failpoints stand at every method of every port: one method is one named step. "after" means that the statement has
// committed or the gateway has answered and nobody has heard of it.
type failpoints func(step, when string)

// deadly are failpoints that end the process as a power cut does.
func deadly(at string) (failpoints, error) {
	var step, when string
	var n int64
	if _, err := fmt.Sscan(at, &step, &when, &n); err != nil {
		return nil, fmt.Errorf("%s=%q: %w", failpointVariable, at, err)
	}
	var calls atomic.Int64
	return func(s, w string) {
		if s == step && w == when && calls.Add(1) == n {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // not one more instruction of the program
		}
	}, nil
}

// serveDoomed is paymentd with a failpoint, and returns its exit status should it survive.
func serveDoomed(at string) int {
	f, err := deadly(at)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c, err := loadConfig(os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	p := &program{config: c, log: newLogger(c, os.Stdout), between: f.between}
	if err := p.serve(context.Background(), nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// doomed starts the program with a failpoint, which it may meet before it listens.
func (w *world) doomed(at string, set ...string) *process {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	p, _ := w.launch(exec.Command(self), append(slices.Clone(set), failpointVariable+"="+at)...)
	return p
}

// between is program.between.
func (f failpoints) between(p *ports) {
	p.requests = doomedStore{p.requests, f, "store"}
	p.background = doomedStore{p.background, f, "recovery"}
	p.gateway = doomedGateway{p.gateway, f}
	p.queue = doomedQueue{p.queue, f}
	p.sweeper = doomedSweeper{p.sweeper, f}
	p.outbox = doomedOutbox{p.outbox, f}
	if p.webhook != nil {
		p.webhook = doomedSender{p.webhook, f, "webhook"}
	}
	if p.mail != nil {
		p.mail = doomedSender{p.mail, f, "mail"}
	}
}

func (f failpoints) step(name string) (after func()) {
	f(name, "before")
	return func() { f(name, "after") }
}

// doomedStore is the store of requests ("store") or of recovery ("recovery").
type doomedStore struct {
	approval.Store
	at   failpoints
	side string
}

func (s doomedStore) step(method string) func() { return s.at.step(s.side + "." + method) }

func (s doomedStore) Reserve(ctx context.Context, o payment.Order, lease time.Duration) (payment.Payment, payment.Ending, error) {
	defer s.step("Reserve")()
	return s.Store.Reserve(ctx, o, lease)
}

func (s doomedStore) Find(ctx context.Context, paymentKey, orderID string) (payment.Payment, bool, error) {
	defer s.step("Find")()
	return s.Store.Find(ctx, paymentKey, orderID)
}

func (s doomedStore) FindNow(ctx context.Context, paymentKey, orderID string) (payment.Payment, bool, bool) {
	defer s.step("FindNow")()
	return s.Store.FindNow(ctx, paymentKey, orderID)
}

func (s doomedStore) TakeOver(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	defer s.step("TakeOver")()
	return s.Store.TakeOver(ctx, p, lease)
}

func (s doomedStore) Reopen(ctx context.Context, p payment.Payment, lease time.Duration) (payment.Payment, payment.Ending, error) {
	defer s.step("Reopen")()
	return s.Store.Reopen(ctx, p, lease)
}

// Settle is also a step by the state it moves to: "store.Settle=FAILED".
func (s doomedStore) Settle(ctx context.Context, st approval.Settlement) (payment.Payment, payment.Ending, error) {
	defer s.step("Settle")()
	defer s.step("Settle=" + string(st.Action.To))()
	return s.Store.Settle(ctx, st)
}

func (s doomedStore) Release(ctx context.Context, r approval.Release) (payment.Ending, error) {
	defer s.step("Release")()
	return s.Store.Release(ctx, r)
}

func (s doomedStore) BeginSend(ctx context.Context, b approval.BeginSend) (payment.Payment, payment.Ending, error) {
	defer s.step("BeginSend")()
	return s.Store.BeginSend(ctx, b)
}

func (s doomedStore) MarkTold(ctx context.Context, paymentKey string) error {
	defer s.step("MarkTold")()
	return s.Store.MarkTold(ctx, paymentKey)
}

func (s doomedStore) BeginGiveBack(ctx context.Context, g approval.GiveBack) (approval.Cancel, payment.Payment, payment.Ending, error) {
	defer s.step("BeginGiveBack")()
	return s.Store.BeginGiveBack(ctx, g)
}

func (s doomedStore) EndGiveBack(ctx context.Context, e approval.GiveBackEnd) (payment.Payment, payment.Ending, error) {
	defer s.step("EndGiveBack")()
	return s.Store.EndGiveBack(ctx, e)
}

func (s doomedStore) FindCancels(ctx context.Context, q approval.CancelQuery) (approval.Standing, bool, error) {
	defer s.step("FindCancels")()
	return s.Store.FindCancels(ctx, q)
}

func (s doomedStore) BeginCancel(ctx context.Context, a approval.CancelAsked) (approval.Cancel, payment.Payment, payment.Ending, error) {
	defer s.step("BeginCancel")()
	return s.Store.BeginCancel(ctx, a)
}

func (s doomedStore) Abandon(ctx context.Context, a approval.CancelAsked) (payment.Payment, payment.Ending, error) {
	defer s.step("Abandon")()
	return s.Store.Abandon(ctx, a)
}

type doomedGateway struct {
	approval.Gateway
	at failpoints
}

func (g doomedGateway) Peek() *payment.Answer {
	defer g.at.step("gateway.Peek")()
	return g.Gateway.Peek()
}

func (g doomedGateway) Confirm(ctx context.Context, call approval.ConfirmCall) []payment.Answer {
	defer g.at.step("gateway.Confirm")()
	return g.Gateway.Confirm(ctx, call)
}

func (g doomedGateway) Lookup(ctx context.Context, paymentKey string, tries approval.Tries) payment.Answer {
	defer g.at.step("gateway.Lookup")()
	return g.Gateway.Lookup(ctx, paymentKey, tries)
}

func (g doomedGateway) Cancel(ctx context.Context, call approval.CancelCall) payment.Answer {
	defer g.at.step("gateway.Cancel")()
	return g.Gateway.Cancel(ctx, call)
}

type doomedQueue struct {
	recovery.Queue
	at failpoints
}

// ClaimDue counts as done when it claimed something.
func (q doomedQueue) ClaimDue(ctx context.Context, limit int, lease time.Duration) ([]payment.Payment, error) {
	after := q.at.step("recovery.ClaimDue")
	claimed, err := q.Queue.ClaimDue(ctx, limit, lease)
	if len(claimed) > 0 {
		after()
	}
	return claimed, err
}

func (q doomedQueue) ClaimOne(ctx context.Context, paymentKey string, lease time.Duration) (payment.Payment, payment.Ending, error) {
	defer q.at.step("recovery.ClaimOne")()
	return q.Queue.ClaimOne(ctx, paymentKey, lease)
}

func (q doomedQueue) ListUnfinished(ctx context.Context, olderThan time.Duration, limit int, after int64) ([]payment.Payment, error) {
	defer q.at.step("recovery.ListUnfinished")()
	return q.Queue.ListUnfinished(ctx, olderThan, limit, after)
}

func (q doomedQueue) Attempts(ctx context.Context, orderID string) ([]payment.Payment, error) {
	defer q.at.step("recovery.Attempts")()
	return q.Queue.Attempts(ctx, orderID)
}

type doomedSweeper struct {
	recovery.Sweeper
	at failpoints
}

func (s doomedSweeper) SweepMissingNotices(ctx context.Context) (int, error) {
	defer s.at.step("recovery.SweepMissingNotices")()
	return s.Sweeper.SweepMissingNotices(ctx)
}

func (s doomedSweeper) SweepStuck(ctx context.Context, lease time.Duration, limit int) (int, error) {
	defer s.at.step("recovery.SweepStuck")()
	return s.Sweeper.SweepStuck(ctx, lease, limit)
}

func (s doomedSweeper) SweepOrphans(ctx context.Context) (int, error) {
	defer s.at.step("recovery.SweepOrphans")()
	return s.Sweeper.SweepOrphans(ctx)
}

type doomedOutbox struct {
	notify.Queue
	at failpoints
}

// ClaimNotices counts as done when it claimed something.
func (o doomedOutbox) ClaimNotices(ctx context.Context, limit int, lease time.Duration) ([]payment.Notice, error) {
	after := o.at.step("notices.ClaimNotices")
	claimed, err := o.Queue.ClaimNotices(ctx, limit, lease)
	if len(claimed) > 0 {
		after()
	}
	return claimed, err
}

func (o doomedOutbox) FinishNotices(ctx context.Context, tries []payment.NoticeTry) error {
	defer o.at.step("notices.FinishNotices")()
	return o.Queue.FinishNotices(ctx, tries)
}

type doomedSender struct {
	notify.Sender
	at  failpoints
	way string
}

func (s doomedSender) Send(ctx context.Context, n payment.Notice) error {
	defer s.at.step(s.way + ".Send")()
	return s.Sender.Send(ctx, n)
}

// stepsOf calls every method of a port and returns the steps that it passes; a method that is no step is an error.
func stepsOf(t *testing.T, port reflect.Type, make func(failpoints) any) (steps []string) {
	t.Helper()
	type stepped string
	doomed := reflect.ValueOf(make(func(step, _ string) { panic(stepped(step)) }))
	for m := range port.Methods() {
		func() {
			defer func() {
				step, ok := recover().(stepped)
				if !ok {
					t.Errorf("%s.%s has no failpoint: wrap it in failpoint_test.go, and give it a row in crash_test.go", port, m.Name)
				}
				steps = append(steps, string(step))
			}()
			call := doomed.MethodByName(m.Name)
			in := []reflect.Value{}
			for arg := range call.Type().Ins() {
				in = append(in, reflect.Zero(arg))
			}
			call.Call(in)
		}()
	}
	return steps
}

// TestCrashCoversEveryStep: no method of a port is without a failpoint, and none of these without its rows in the
// table of crashes, but for those that are named here.
func TestCrashCoversEveryStep(t *testing.T) {
	t.Parallel()
	steps := slices.Concat(
		stepsOf(t, reflect.TypeFor[approval.Store](), func(f failpoints) any { return doomedStore{at: f, side: "store"} }),
		stepsOf(t, reflect.TypeFor[approval.Store](), func(f failpoints) any { return doomedStore{at: f, side: "recovery"} }),
		stepsOf(t, reflect.TypeFor[approval.Gateway](), func(f failpoints) any { return doomedGateway{at: f} }),
		stepsOf(t, reflect.TypeFor[recovery.Queue](), func(f failpoints) any { return doomedQueue{at: f} }),
		stepsOf(t, reflect.TypeFor[recovery.Sweeper](), func(f failpoints) any { return doomedSweeper{at: f} }),
		stepsOf(t, reflect.TypeFor[notify.Queue](), func(f failpoints) any { return doomedOutbox{at: f} }),
		stepsOf(t, reflect.TypeFor[notify.Sender](), func(f failpoints) any { return doomedSender{at: f, way: "webhook"} }),
		stepsOf(t, reflect.TypeFor[notify.Sender](), func(f failpoints) any { return doomedSender{at: f, way: "mail"} }),
	)
	covered := map[string]bool{}
	for _, s := range crashStories() {
		for _, at := range s.at {
			covered[strings.Join(strings.Fields(at)[:2], " ")] = true
		}
	}
	for _, step := range steps {
		if slices.Contains(notCrashed(), step) {
			continue
		}
		for _, when := range []string{" before", " after"} {
			if !covered[step+when] {
				t.Errorf("no crash %s%s", step, when)
			}
		}
	}
}

// TestNoFailpointInTheProgram: what is shipped cannot be told to die.
func TestNoFailpointInTheProgram(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, path string
		want       bool
	}{
		{"the test binary", self, true},
		{"the program", binary.path(t), false},
	} {
		text, err := os.ReadFile(tc.path)
		if err != nil {
			t.Fatal(err)
		}
		// The variable, and the names of functions, which stay in a stripped program too.
		for _, mark := range []string{failpointVariable, "doomedStore.Settle", "failpoints.step"} {
			if got := bytes.Contains(text, []byte(mark)); got != tc.want {
				t.Errorf("%s holds %q: %t, want %t", tc.name, mark, got, tc.want)
			}
		}
	}
}
