package recovery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// hintBench is hints over fakes, with the real use cases.
type hintBench struct {
	*bench
	hints *Hints
	kept  *keptHints
}

// keptHints is a HintStore and HintQueue in memory.
type keptHints struct {
	*approvaltest.Store
	mu      sync.Mutex
	known   map[string]bool
	work    []payment.KeptWork
	due     map[string]time.Time
	full    bool
	fails   error
	orphans []string
	closed  []string
}

func (k *keptHints) KnowsHint(_ context.Context, id string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[id], k.fails
}

func (k *keptHints) NoteHint(_ context.Context, h payment.Hint) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known[h.TransmissionID] = h.TransmissionID != ""
	return k.fails
}

func (k *keptHints) KeepHint(_ context.Context, h payment.Hint, state payment.HintState, in time.Duration) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full && state == payment.UnknownHint {
		return false, nil
	}
	id := fmt.Sprint(len(k.work))
	k.known[h.TransmissionID] = h.TransmissionID != ""
	k.work = append(k.work, payment.KeptWork{Hint: h, State: state, ID: id})
	k.due[id] = time.Now().Add(in)
	return true, nil
}

func (k *keptHints) ClaimHint(_ context.Context, state payment.HintState, lease time.Duration) (payment.KeptWork, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.work {
		if due, open := k.due[w.ID]; open && w.State == state && !due.After(time.Now()) {
			k.due[w.ID] = time.Now().Add(lease)
			return w, true, nil
		}
	}
	return payment.KeptWork{}, false, nil
}

func (k *keptHints) EndHint(_ context.Context, w payment.KeptWork, again time.Duration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.due, w.ID)
	if again > 0 {
		k.due[w.ID] = time.Now().Add(again)
	}
	return nil
}

func (k *keptHints) OpenOrphan(_ context.Context, o payment.Observation, _ string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.orphans = append(k.orphans, o.PaymentKey)
	return true, nil
}

func (k *keptHints) CloseOrphan(_ context.Context, o payment.Observation, by payment.Actor) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = append(k.closed, o.PaymentKey+" "+string(by))
	return true, nil
}

func (k *keptHints) SweepHints(context.Context) error { return nil }

func (k *keptHints) left() int { k.mu.Lock(); defer k.mu.Unlock(); return len(k.due) }

// byOrder lets the fake gateway be asked by order.
type byOrder struct{ *approvaltest.Gateway }

func (g byOrder) LookupByOrder(ctx context.Context, orderID string, tries approval.Tries) payment.Answer {
	for _, o := range g.All() {
		if o.OrderID == orderID {
			return g.Lookup(ctx, o.PaymentKey, tries)
		}
	}
	return payment.Answer{Kind: payment.KindNotFound}
}

func hintsInBubble(t *testing.T, name string, test func(b *hintBench)) {
	inBubble(t, name, func(b *bench) {
		k := &keptHints{Store: b.store, known: map[string]bool{}, due: map[string]time.Time{}}
		hints, err := NewHints(HintOptions{Recovery: b.recovery, Store: k, Queue: k, Gateway: byOrder{b.gateway}})
		if err != nil {
			b.Fatal(err)
		}
		test(&hintBench{bench: b, hints: hints, kept: k})
	})
}

func (b *hintBench) said(h payment.Hint, want payment.HintState, code payment.Code) {
	b.Helper()
	state, err := b.hints.Hint(b.Context(), h)
	e, _ := errors.AsType[*payment.Error](err)
	if e == nil {
		e = &payment.Error{}
	}
	if state != want && code == "" || e.Code != code {
		b.Errorf("%+v: %q, %v; want %q %q", h, state, err, want, code)
	}
}

func (b *hintBench) lookups() int { return len(b.gateway.LookupCalls()) }

// runHints runs the background for a while.
func (b *hintBench) runHints(d time.Duration) {
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.hints.Run(ctx) }()
	time.Sleep(d)
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
	for range cap(b.hints.slots) {
		<-b.hints.slots
	}
}

func hintFor(n int) payment.Hint {
	return payment.Hint{TransmissionID: fmt.Sprintf("t-%d", n), PaymentKey: fmt.Sprintf("key-%d", n), Claim: payment.SeenDone}
}

func TestHints(t *testing.T) {
	t.Parallel()
	hintsInBubble(t, "known: looked up once, repeated for nothing", func(b *hintBench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		b.said(hintFor(1), payment.HandledHint, "")
		b.wantRow(1, payment.Paid)
		b.said(hintFor(1), payment.RepeatedHint, "")
		if b.lookups() != 1 {
			b.Errorf("%d lookups", b.lookups())
		}
	})
	hintsInBubble(t, "order alone: the attempt that holds it", func(b *hintBench) {
		b.leftover(1, payment.Failed, time.Hour)
		b.attempt(1, 2, payment.AwaitingDeposit)
		b.approveAttempt(1, 2)
		b.said(payment.Hint{OrderID: "order-1"}, payment.HandledHint, "")
		b.wantRow(1, payment.Failed)
		b.wantRow(2, payment.Paid)
	})
	hintsInBubble(t, "leased: kept, and handled when the lease is over", func(b *hintBench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		if _, ending, _ := b.store.ClaimOne(b.Context(), "key-1", 20*time.Second); ending != payment.Applied {
			b.Fatal(ending)
		}
		b.said(hintFor(1), payment.KeptHint, "")
		b.said(hintFor(1), payment.RepeatedHint, "")
		b.runHints(15 * time.Second)
		b.wantRow(1, payment.Pending)
		b.runHints(20 * time.Second)
		b.wantRow(1, payment.Paid)
		if b.kept.left() != 0 {
			b.Error("work is left")
		}
	})
	hintsInBubble(t, "kept, and by then nothing new", func(b *hintBench) {
		b.leftover(1, payment.Paid, time.Minute)
		b.said(payment.Hint{PaymentKey: "key-1", Claim: payment.SeenDone, TransmissionID: "x"}, payment.HandledHint, "")
		before := b.lookups()
		_, _ = b.kept.KeepHint(b.Context(), hintFor(1), payment.KeptHint, 0)
		b.runHints(10 * time.Second)
		if b.kept.left() != 0 || b.lookups() != before {
			b.Errorf("%d left, %d lookups", b.kept.left(), b.lookups()-before)
		}
	})
	hintsInBubble(t, "unknown: one orphan, the rest closed, Toss's silence put off", func(b *hintBench) {
		b.gateway.Set(payment.Observation{Sighting: payment.SeenDone, PaymentKey: "key-1", OrderID: "order-1", Total: 1000, Balance: 1000, Currency: payment.KRW})
		b.gateway.Set(payment.Observation{Sighting: payment.SeenCanceled, PaymentKey: "key-2", OrderID: "order-2", Total: 1000, Currency: payment.KRW})
		b.said(payment.Hint{OrderID: "order-1"}, payment.UnknownHint, "")
		b.said(hintFor(2), payment.UnknownHint, "")
		b.said(hintFor(3), payment.UnknownHint, "")
		b.gateway.Lookups(approvaltest.Try{Kind: payment.KindFault})
		b.runHints(4 * time.Second)
		if b.kept.left() != 1 {
			b.Errorf("%d left, want the one without an answer", b.kept.left())
		}
		b.runHints(10 * time.Second)
		if diff := cmp.Diff([]string{"key-1"}, b.kept.orphans); diff != "" || b.kept.left() != 0 {
			b.Errorf("%d left, orphans (-want +got):\n%s", b.kept.left(), diff)
		}
		if diff := cmp.Diff([]string{"key-2 webhook"}, b.kept.closed); diff != "" {
			b.Errorf("given back (-want +got):\n%s", diff)
		}
	})
	hintsInBubble(t, "unknown, and known by then", func(b *hintBench) {
		b.said(hintFor(1), payment.UnknownHint, "")
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		b.runHints(10 * time.Second)
		b.wantRow(1, payment.Paid)
		if b.kept.left() != 0 || len(b.kept.orphans) != 0 {
			b.Errorf("%d left, orphans %v", b.kept.left(), b.kept.orphans)
		}
	})
	hintsInBubble(t, "too many unknown", func(b *hintBench) {
		b.kept.full = true
		b.said(hintFor(1), "", payment.CodeRateLimited)
	})
}

// TestTrap21_HintsThatFail are handled again: nothing is remembered of them.
func TestTrap21_HintsThatFail(t *testing.T) {
	t.Parallel()
	hintsInBubble(t, "no answer", func(b *hintBench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		b.gateway.Lookups(approvaltest.Try{Kind: payment.KindTimeout})
		b.said(hintFor(1), "", payment.CodePGUnavailable)
		b.said(hintFor(1), payment.HandledHint, "")
		b.wantRow(1, payment.Paid)
	})
	hintsInBubble(t, "no token, something new", func(b *hintBench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.gateway.Lookups(approvaltest.Try{Kind: payment.KindRefused, Refuser: payment.RefusedByLimiter})
		b.said(hintFor(1), "", payment.CodePGUnavailable)
	})
	hintsInBubble(t, "no token, nothing new", func(b *hintBench) {
		b.leftover(1, payment.Paid, time.Minute)
		b.gateway.Lookups(approvaltest.Try{Kind: payment.KindRefused, Refuser: payment.RefusedByLimiter})
		b.said(hintFor(1), payment.IgnoredHint, "")
	})
	hintsInBubble(t, "no database", func(b *hintBench) {
		b.kept.fails = errors.New("dial")
		b.said(hintFor(1), "", payment.CodeDBUnavailable)
		b.kept.fails = nil
		b.said(hintFor(1), payment.UnknownHint, "")
	})
	hintsInBubble(t, "a bug", func(b *hintBench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.resolver.before = func(context.Context, payment.Payment) { panic("bug") }
		if state, err := b.hints.Hint(b.Context(), hintFor(1)); err == nil {
			b.Errorf("a panic is answered %q", state)
		}
	})
}

// TestHintsWaitForNobody: Toss is answered within 8 s, the work goes on, and at most 16 are worked on.
func TestHintsWaitForNobody(t *testing.T) {
	t.Parallel()
	hintsInBubble(t, "slow", func(b *hintBench) {
		for n := range hintsAtOnce {
			b.leftover(n, payment.Pending, time.Minute)
			b.approve(n)
		}
		b.resolver.before = func(context.Context, payment.Payment) { time.Sleep(20 * time.Second) }
		start := time.Now()
		for n := range hintsAtOnce {
			go b.said(hintFor(n), "", payment.CodePGUnavailable)
		}
		synctest.Wait()
		b.said(hintFor(99), "", payment.CodeRateLimited)
		if took := time.Since(start); took != 0 {
			b.Errorf("refused after %s", took)
		}
		time.Sleep(hintWithin + time.Second)
		b.wantRow(0, payment.Pending)
		b.runHints(15 * time.Second)
		b.wantRow(0, payment.Paid)
		b.said(hintFor(99), payment.UnknownHint, "")
	})
}

func TestNewHintsRefusesMissingParts(t *testing.T) {
	t.Parallel()
	if _, err := NewHints(HintOptions{}); err == nil {
		t.Error("hints without parts")
	}
}
