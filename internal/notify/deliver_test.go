package notify

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

func TestDelayAfter(t *testing.T) {
	t.Parallel()
	want := []time.Duration{
		5 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second,
		160 * time.Second, 320 * time.Second, 640 * time.Second, 1280 * time.Second, 30 * time.Minute, 30 * time.Minute,
	}
	var got []time.Duration
	for attempts := range want {
		got = append(got, delayAfter(attempts))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delays (-want +got):\n%s", diff)
	}
	if got := delayAfter(1 << 40); got != 30*time.Minute {
		t.Errorf("delay after very many attempts: %v", got)
	}
}

func TestSpread(t *testing.T) {
	t.Parallel()
	low, high := time.Hour, time.Duration(0)
	for range 10_000 {
		d := spread(time.Minute)
		low, high = min(low, d), max(high, d)
	}
	if low < 45*time.Second || high > 75*time.Second {
		t.Errorf("%v to %v leaves 1 min give or take a quarter", low, high)
	}
	if low > 50*time.Second || high < 70*time.Second {
		t.Errorf("%v to %v: too little jitter", low, high)
	}
}

func TestConclude(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	refused := errors.New("connection refused")
	tests := []struct {
		name     string
		age      time.Duration
		took     time.Duration
		replayed bool
		err      error
		want     payment.NoticeState
		min, max time.Duration
	}{
		{name: "delivered", age: time.Second, want: payment.NoticeDelivered},
		{name: "delivered late", age: 30 * time.Hour, want: payment.NoticeDelivered},
		{name: "failed", age: time.Second, err: refused, want: payment.NoticeQueued, min: 15 * time.Second, max: 25 * time.Second},
		{
			name: "the last try is at the end of the lifetime", age: lifetime - 3*time.Second, err: refused,
			want: payment.NoticeQueued, min: 3 * time.Second, max: 3 * time.Second,
		},
		{name: "failed at the end", age: lifetime, err: refused, want: payment.NoticeDead},
		{name: "replayed after its death", age: time.Hour, replayed: true, err: refused, want: payment.NoticeQueued, min: 15 * time.Second, max: 25 * time.Second},
		{name: "failed at the end of its second life", age: lifetime, replayed: true, err: refused, want: payment.NoticeDead},
		{name: "the try itself outlives it", age: lifetime - time.Second, took: 2 * time.Second, err: refused, want: payment.NoticeDead},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := payment.Notice{Attempts: 3, CreatedAt: created, Now: created.Add(test.age)}
			if test.replayed {
				n.CreatedAt, n.ReplayedAt = created.Add(-72*time.Hour), created
			}
			got := conclude(n, test.took, test.err)
			if got.State != test.want || got.RetryIn < test.min || got.RetryIn > test.max {
				t.Errorf("got %+v, want %s in %v to %v", got, test.want, test.min, test.max)
			}
			if (got.Error != "") != (test.err != nil) {
				t.Errorf("error %q for %v", got.Error, test.err)
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	got := errorText(errors.New("a\x00b\xff" + strings.Repeat("가", 200)))
	if !strings.HasPrefix(got, "ab가") || len(got) > 300 || strings.ToValidUTF8(got, "?") != got {
		t.Errorf("not fit for a text column: %q", got)
	}
}

// TestDeadAfterADay walks the last hours of a notice in virtual time; its first try comes late, as after an
// outage of our own, and it still has all the delays from the shortest on.
func TestDeadAfterADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const left = 4 * time.Hour
		var tries []time.Duration
		start := time.Now()
		b := setup(t, Options{Webhook: senderFunc(func(context.Context, payment.Notice) error {
			tries = append(tries, time.Since(start))
			return errors.New("connection refused")
		})})
		r := b.queue.add(payment.NoticePaid, paid("order-1"))
		r.notice.CreatedAt = start.Add(left - lifetime)
		b.run(t)
		time.Sleep(left - time.Second)
		if state := b.queue.stateOf(r); state != payment.NoticeQueued {
			t.Errorf("%s before the end of its lifetime", state)
		}
		time.Sleep(time.Hour)
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if r.state != payment.NoticeDead {
			t.Fatalf("%s after its lifetime", r.state)
		}
		if last := tries[len(tries)-1]; last < left || last > left+time.Second {
			t.Errorf("last try after %v, want it at the end of the lifetime, %v", last, left)
		}
		if len(tries) < 14 || len(tries) > 21 {
			t.Errorf("%d tries in %v, want about 17", len(tries), left)
		}
		for i := 1; i < len(tries)-1; i++ {
			gap, want := tries[i]-tries[i-1], delayAfter(i)
			if gap < want*3/4 || gap > want*5/4+time.Second {
				t.Errorf("gap %d is %v, want %v give or take a quarter and one poll", i, gap, want)
			}
		}
		if failed, dead := b.count(toWebhook, "failed"), b.count(toWebhook, "dead"); int(failed) != len(tries)-1 || dead != 1 {
			t.Errorf("%v failed and %v dead of %d tries", failed, dead, len(tries))
		}
	})
}

func TestSuperseded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		kind   payment.NoticeKind
		status payment.Status
		want   payment.NoticeState
	}{
		{name: "failed, still so", kind: payment.NoticeFailed, status: payment.Failed, want: payment.NoticeDelivered},
		{name: "failed, reopened since", kind: payment.NoticeFailed, status: payment.Pending, want: payment.NoticeSuperseded},
		{name: "failed, paid since", kind: payment.NoticeFailed, status: payment.Paid, want: payment.NoticeSuperseded},
		{name: "paid, canceled since", kind: payment.NoticePaid, status: payment.Canceled, want: payment.NoticeDelivered},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				b := setup(t, Options{Webhook: senderFunc(func(context.Context, payment.Notice) error {
					sent++
					return nil
				})})
				p := paid("order-1")
				p.Status = test.status
				r := b.queue.add(test.kind, p)
				if _, err := b.pool.runOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if r.state != test.want {
					t.Errorf("state %s, want %s", r.state, test.want)
				}
				if (sent == 1) != (test.want == payment.NoticeDelivered) {
					t.Errorf("%d sends", sent)
				}
				if got := b.count(toWebhook, string(test.want)); got != 1 {
					t.Errorf("%v counted as %s", got, test.want)
				}
			})
		})
	}
}

func TestUnknownKind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		r := b.queue.add("payment.unheard", paid("order-1"))
		if _, err := b.pool.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r.state != payment.NoticeQueued || r.results[0].Error != errUnknownKind.Error() {
			t.Errorf("state %s, results %+v: want it kept for a newer version", r.state, r.results)
		}
	})
}
