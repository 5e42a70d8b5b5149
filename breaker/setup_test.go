package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/google/go-cmp/cmp"

	"paymentd/breaker"
)

var errSick = errors.New("gateway sick")

// errPanic makes a hanging call panic.
var errPanic = errors.New("panic in the call")

// refusal is an error of an inner layer that knows that it is one.
type refusal struct{}

func (refusal) Error() string { return "limiter: no token" }
func (refusal) Ignored() bool { return true }

// bench is a breaker with everything that its listeners heard.
type bench struct {
	*breaker.Breaker[string]
	exec failsafe.Executor[string]

	mu      sync.Mutex
	moves   []string
	results map[string]int
}

// standard is window 10, minimum 5, 50 %, open 10 s, 3 trials of at most 1 minute.
func standard() breaker.Config[string] {
	return breaker.Config[string]{
		Window: 10, MinCalls: 5, FailureRate: 0.5,
		OpenFor: 10 * time.Second, HalfOpenCalls: 3, MaxTrial: time.Minute,
	}
}

func newBench(t *testing.T, c breaker.Config[string]) *bench {
	t.Helper()
	b := &bench{results: map[string]int{}}
	c.OnTransition = func(from, to breaker.State) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.moves = append(b.moves, fmt.Sprintf("%v>%v", from, to))
	}
	c.OnResult = func(r breaker.Result) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.results[r.String()]++
	}
	var err error
	if b.Breaker, err = breaker.New(c); err != nil {
		t.Fatal(err)
	}
	b.exec = failsafe.With[string](b.Breaker)
	return b
}

func (b *bench) heard() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.moves...)
}

// calls makes n calls that return err.
func (b *bench) calls(n int, err error) (last error) {
	for range n {
		_, last = b.exec.Get(func() (string, error) { return "", err })
	}
	return last
}

// hanging is a call that waits to be told how to end.
type hanging struct {
	end  chan error
	done chan error
}

// hang starts a call and returns when it hangs or was refused.
func (b *bench) hang(ctx context.Context) *hanging {
	h := &hanging{end: make(chan error), done: make(chan error, 1)}
	go func() {
		defer func() {
			if p := recover(); p != nil {
				h.done <- errPanic
			}
		}()
		_, err := b.exec.WithContext(ctx).Get(func() (string, error) {
			err := <-h.end
			if err == errPanic {
				panic(err)
			}
			return "", err
		})
		h.done <- err
	}()
	synctest.Wait()
	return h
}

func (h *hanging) finish(err error) error {
	h.end <- err
	synctest.Wait()
	return <-h.done
}

func (h *hanging) refused() bool {
	select {
	case err := <-h.done:
		h.done <- err
		return errors.Is(err, breaker.ErrOpen)
	default:
		return false
	}
}

func wantState(t *testing.T, b *bench, want breaker.State) {
	t.Helper()
	if got := b.State(); got != want {
		t.Fatalf("state = %v, want %v (heard %v)", got, want, b.heard())
	}
}

func wantMoves(t *testing.T, b *bench, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, b.heard()); diff != "" {
		t.Errorf("transitions (-want +got):\n%s", diff)
	}
}
