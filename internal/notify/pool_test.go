package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"paymentd/internal/payment"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		options Options
		want    string
	}{
		{name: "nothing given", want: "notice pool: queue, log and registerer are required\nworkers must be 1 to 4, not 0"},
		{
			name: "too many workers", want: "notice pool: workers must be 1 to 4, not 5",
			options: Options{Queue: &outbox{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Workers: 5},
		},
		{
			name: "typed nil", want: "notice pool: webhook is a nil *Webhook, leave the field empty instead",
			options: Options{
				Queue: &outbox{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Workers: 1, Webhook: (*Webhook)(nil),
			},
		},
		{
			name: "typed nil mail", want: "notice pool: mail is a nil *Mail, leave the field empty instead",
			options: Options{
				Queue: &outbox{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Workers: 1, Mail: (*Mail)(nil),
			},
		},
		{
			name: "negative time-out", want: "notice pool: send time-out must not be negative",
			options: Options{
				Queue: &outbox{}, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Workers: 1, SendTimeout: -1,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := New(test.options)
			if diff := cmp.Diff(test.want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMetricsStartAtZero(t *testing.T) {
	t.Parallel()
	b := setup(t, Options{})
	var want strings.Builder
	want.WriteString("# HELP paymentd_notice_attempts_total Tries to deliver a notice, by sink and result; dead is the last failed try of a notice.\n")
	want.WriteString("# TYPE paymentd_notice_attempts_total counter\n")
	for _, s := range []string{"log", "webhook", "mail"} {
		for _, result := range []string{"delivered", "failed", "dead", "superseded"} {
			fmt.Fprintf(&want, "paymentd_notice_attempts_total{result=%q,sink=%q} 0\n", result, s)
		}
	}
	if err := testutil.GatherAndCompare(b.registry, strings.NewReader(want.String())); err != nil {
		t.Error(err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		start := time.Now()
		first := b.queue.add(payment.NoticePaid, paid("order-1"))
		for range 9 {
			b.queue.add(payment.NoticeReceipt, paid("order-1"))
		}
		b.run(t)
		synctest.Wait()
		if n := b.queue.left(); n != 0 {
			t.Errorf("%d of 10 notices left: the first tick is at once, and so is the next after a batch", n)
		}
		time.Sleep(10 * time.Second)
		late := b.queue.add(payment.NoticeReceipt, paid("order-2"))
		time.Sleep(700 * time.Millisecond)
		if b.queue.stateOf(late) != payment.NoticeDelivered {
			t.Error("a notice waits longer than one poll")
		}
		if n := b.queue.claimed(); n < 19 || n > 40 {
			t.Errorf("%d claims in %v: want about one per 500 ms", n, time.Since(start))
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]payment.NoticeResult{{State: payment.NoticeDelivered}}, first.results); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if b.queue.strays != 0 {
			t.Errorf("%d results with a wrong fence", b.queue.strays)
		}
		if got := b.count(toLog, "delivered"); got != 11 {
			t.Errorf("%v delivered, want 11", got)
		}
	})
}

func TestRunOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{Workers: 2, Mail: senderFunc(func(context.Context, payment.Notice) error { return nil })})
		for range 5 {
			b.queue.add(payment.NoticeReceipt, paid("order-1"))
		}
		var left []int
		for i := range 4 {
			drained, err := b.pool.runOnce(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if drained != (i >= 2) {
				t.Errorf("batch %d: drained is %t", i+1, drained)
			}
			synctest.Wait()
			left = append(left, b.queue.left())
		}
		if diff := cmp.Diff([]int{3, 1, 0, 0}, left); diff != "" {
			t.Errorf("left after each batch (-want +got):\n%s", diff)
		}
	})
}

// TestLoggedTogether: what goes to the log costs two statements a batch, not two a notice.
func TestLoggedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		for range mostLogged + 10 {
			b.queue.add(payment.NoticePaid, paid("order-1"))
		}
		unknown := b.queue.add("payment.unheard", paid("order-1"))
		b.run(t)
		synctest.Wait()
		if left, claims, finishes := b.queue.left(), b.queue.claimed(), b.queue.finished(); left != 1 || claims != 2 || finishes != 2 {
			t.Errorf("%d left, %d claims and %d finishes, want 1, 2 and 2", left, claims, finishes)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if len(unknown.results) != 1 || unknown.results[0].State != payment.NoticeQueued {
			t.Errorf("the one of an unknown kind ended as %+v", unknown.results)
		}
		if got := b.count(toLog, "delivered"); got != mostLogged+10 {
			t.Errorf("%v delivered", got)
		}
	})
}

// slowLog is a handler whose every line takes 400 ms.
type slowLog struct{ slog.Handler }

func (h slowLog) Handle(ctx context.Context, r slog.Record) error {
	time.Sleep(400 * time.Millisecond)
	return h.Handler.Handle(ctx, r)
}

// TestSlowLog: a batch whose leases might end in hand is given back, and nothing is logged twice.
func TestSlowLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := setup(t, Options{Workers: 1, Log: slog.New(slowLog{slog.NewJSONHandler(&log, nil)})})
		for range mostLogged {
			b.queue.add(payment.NoticePaid, paid("order-1"))
		}
		if _, err := b.pool.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.pool.drain(); err != nil {
			t.Fatal(err)
		}
		if left := b.queue.left(); left != mostLogged-3 {
			t.Errorf("%d notices left, want all but the 3 that were begun within %v", left, patience)
		}
		b.run(t)
		time.Sleep(time.Minute)
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if lines := strings.Count(log.String(), `"msg":"notice"`); lines != mostLogged || b.queue.left() != 0 || b.queue.strays != 0 {
			t.Errorf("%d lines for %d notices, %d left, %d finished too late", lines, mostLogged, b.queue.left(), b.queue.strays)
		}
	})
}

// TestLoggedShareAWorker: beside a receiver outside, the notices for the log leave the workers to it.
func TestLoggedShareAWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{Webhook: senderFunc(hang)})
		for range 3 {
			b.queue.add(payment.NoticeReceipt, paid("order-1"))
		}
		b.queue.add(payment.NoticePaid, paid("order-1"))
		if _, err := b.pool.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if left, finishes, hands := b.queue.left(), b.queue.finished(), len(b.pool.hands); left != 1 || finishes != 1 || hands != 1 {
			t.Errorf("%d left after %d finishes, %d workers busy, want 1 each", left, finishes, hands)
		}
		if err := b.pool.drain(); err != nil {
			t.Error(err)
		}
	})
}

func TestRunOutlivesTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		b.queue.claimErr = errors.New("no connection")
		b.run(t)
		time.Sleep(10 * time.Minute)
		b.queue.mu.Lock()
		claims := len(b.queue.claims)
		b.queue.claimErr = nil
		b.queue.mu.Unlock()
		if claims < 20 || claims > 40 {
			t.Errorf("%d failed claims in 10 min: want about two per minute", claims)
		}
		r := b.queue.add(payment.NoticePaid, paid("order-1"))
		time.Sleep(40 * time.Second)
		if state := b.queue.stateOf(r); state != payment.NoticeDelivered {
			t.Errorf("state %s after the queue came back", state)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestRunStops(t *testing.T) {
	t.Parallel()
	t.Run("finishes what is in hand", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := setup(t, Options{Webhook: senderFunc(func(ctx context.Context, _ payment.Notice) error {
				select {
				case <-time.After(3 * time.Second):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})})
			for range 10 {
				b.queue.add(payment.NoticePaid, paid("order-1"))
			}
			b.run(t)
			time.Sleep(100 * time.Millisecond) // virtual: three are under way, one waits for a place
			start := time.Now()
			if err := b.stop(); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took != 2900*time.Millisecond {
				t.Errorf("stop took %v, want the rest of the sends", took)
			}
			if got := b.count(toWebhook, "delivered"); got != 3 {
				t.Errorf("%v delivered, want 3", got)
			}
			free := 0
			for _, r := range b.queue.rows {
				if r.state == payment.NoticeQueued && !r.dueAt.After(time.Now()) {
					free++
				}
			}
			if free != 7 {
				t.Errorf("%d notices are free at once for another instance, want the other 7", free)
			}
		})
	})
	t.Run("loses no claim that is under way", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := setup(t, Options{})
			b.queue.latency = 100 * time.Millisecond
			r := b.queue.add(payment.NoticePaid, paid("order-1"))
			b.run(t)
			time.Sleep(50 * time.Millisecond) // virtual: in the middle of the claim
			if err := b.stop(); err != nil {
				t.Error(err)
			}
			if r.state != payment.NoticeDelivered {
				t.Errorf("state %s: it would lie still for a whole lease", r.state)
			}
		})
	})
	t.Run("does not wait for ever", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			b := setup(t, Options{Webhook: senderFunc(func(context.Context, payment.Notice) error {
				<-release
				return nil
			})})
			b.queue.add(payment.NoticePaid, paid("order-1"))
			b.run(t)
			synctest.Wait()
			start := time.Now()
			if err := b.stop(); err == nil {
				t.Error("no error although a sender never let go")
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("stop took %v", took)
			}
			close(release)
			synctest.Wait()
		})
	})
}

func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int64
		var log bytes.Buffer
		b := setup(t, Options{
			Workers: 1, Log: slog.New(slog.NewJSONHandler(&log, nil)),
			Webhook: senderFunc(func(context.Context, payment.Notice) error {
				if tries.Add(1) == 1 {
					panic("someone@example.com")
				}
				return nil
			}),
		})
		r := b.queue.add(payment.NoticePaid, paid("order-1"))
		b.run(t)
		time.Sleep(time.Minute)
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if r.state != payment.NoticeDelivered || len(r.results) != 2 || r.results[0].Error != "panic" {
			t.Errorf("state %s, results %+v; want a failed try, then delivered", r.state, r.results)
		}
		if got := b.count(toWebhook, "failed"); got != 1 {
			t.Errorf("%v failed, want the panic counted", got)
		}
		if !strings.Contains(log.String(), "notice sender panicked") || !strings.Contains(log.String(), "pool_test.go") {
			t.Errorf("the log does not show where it panicked:\n%s", log.String())
		}
		if strings.Contains(log.String(), "someone@example.com") {
			t.Errorf("the log repeats the value of the panic:\n%s", log.String())
		}
	})
}

func TestLogSenderTellsNoPersonalData(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := setup(t, Options{Log: slog.New(slog.NewJSONHandler(&log, nil))})
		b.queue.add(payment.NoticeReceipt, paid("order-1"))
		if _, err := b.pool.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, want := range []string{`"order_id":"order-1"`, `"kind":"receipt"`, `"notice":"n-1"`, `"sequence":4`} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("no %s in %s", want, log.String())
			}
		}
		for _, secret := range []string{"someone@example.com", "member-7", "key-order-1"} {
			if strings.Contains(log.String(), secret) {
				t.Errorf("%s in %s", secret, log.String())
			}
		}
	})
}
