package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"paymentd/breaker"
)

// TestStress lets many goroutines call, panic, look and force at once; the race detector watches.
func TestStress(t *testing.T) {
	t.Parallel()
	const goroutines, each = 32, 2000
	config := standard()
	config.OpenFor, config.MaxTrial = 50*time.Microsecond, 200*time.Microsecond
	b := newBench(t, config)
	defer b.Stop()

	var made atomic.Int64
	var calls sync.WaitGroup
	for g := range goroutines {
		calls.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 1))
			ctx := context.Background()
			if g%4 == 0 {
				ctx = breaker.Background(ctx)
			}
			for range each {
				made.Add(1)
				randomCall(ctx, b, random.IntN(12))
			}
		})
	}
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if got := b.Snapshot().Trials; got.Admitted > 3 || got.Admitted != got.Running+got.Ended {
				t.Errorf("trials %+v", got)
				return
			}
			_, _ = b.State(), b.Peek()
			if i%500 == 0 {
				b.ForceOpen()
				b.Release()
			}
		}
	})
	calls.Wait()
	close(stop)
	watch.Wait()

	got := b.Snapshot()
	if got.Trials.Running != 0 {
		t.Errorf("permits leak: %+v", got)
	}
	total := got.Totals
	if sum := total.Successes + total.Failures + total.Ignored + total.Dropped + total.Refused; sum != uint64(made.Load()) {
		t.Errorf("%d results of %d calls: %+v", sum, made.Load(), total)
	}
	heard := 0
	for _, n := range b.results {
		heard += n
	}
	if heard != int(made.Load()) {
		t.Errorf("listener heard %d results of %d calls", heard, made.Load())
	}
	from := "closed"
	for i, move := range b.heard() {
		if !strings.HasPrefix(move, from+">") {
			t.Fatalf("transition %d is %s after state %s", i, move, from)
		}
		from = strings.TrimPrefix(move, from+">")
	}
	t.Logf("%d transitions, %+v", len(b.heard()), total)
}

func randomCall(ctx context.Context, b *bench, dice int) {
	defer func() { _ = recover() }()
	_, _ = b.exec.WithContext(ctx).Get(func() (string, error) {
		switch {
		case dice < 6:
			return "", nil
		case dice < 10:
			return "", errSick
		case dice == 10:
			return "", fmt.Errorf("busy: %w", refusal{})
		}
		panic("parser")
	})
}

// TestAllocations runs alone: testing.AllocsPerRun counts for the whole process.
func TestAllocations(t *testing.T) {
	b, err := breaker.New(standard())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	call := func() (string, error) { return "", nil }
	count := func(policies ...failsafe.Policy[string]) float64 {
		exec := failsafe.With(policies...)
		return testing.AllocsPerRun(1000, func() { _, _ = exec.Get(call) })
	}
	bare, ours := count(), count(b)
	theirs := count(circuitbreaker.NewBuilder[string]().Build())
	t.Logf("executor alone %v, with this breaker %v, with failsafe-go's own %v", bare, ours, theirs)
	// failsafe-go asks each policy for a function per execution: that closure is the one allocation.
	if ours > bare+1 || ours > theirs {
		t.Errorf("allocations: executor alone %v, ours %v, theirs %v", bare, ours, theirs)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = b.Do(ctx, call) }); n != 0 {
		t.Errorf("Do allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = b.Peek(), b.State() }); n != 0 {
		t.Errorf("Peek and State allocate %v times", n)
	}
	b.ForceOpen()
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := b.Do(ctx, call); !errors.Is(err, breaker.ErrOpen) {
			t.Fatal("not refused")
		}
	}); n > 1 {
		t.Errorf("a refusal allocates %v times, want its error alone", n)
	}
}
