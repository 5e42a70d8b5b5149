package notify

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"paymentd/internal/payment"
)

// TestTrap23_DeadReceiverDelaysNobody: a backlog for a receiver that is down stands in front, and more comes with
// every payment; the other receiver, and the log, must not notice.
func TestTrap23_DeadReceiverDelaysNobody(t *testing.T) {
	t.Parallel()
	refuse := func(context.Context, payment.Notice) error { return errors.New("connection refused") }
	tests := []struct {
		name    string
		workers int
		sick    payment.NoticeKind
		does    senderFunc
		within  time.Duration
	}{
		{name: "four workers, the webhook hangs", workers: 4, sick: payment.NoticePaid, does: hang, within: 3 * time.Second},
		{name: "two workers, the webhook hangs", workers: 2, sick: payment.NoticePaid, does: hang, within: 3 * time.Second},
		{name: "one worker, the webhook hangs", workers: 1, sick: payment.NoticePaid, does: hang, within: 14 * time.Second},
		{name: "four workers, the webhook refuses", workers: 4, sick: payment.NoticePaid, does: refuse, within: 3 * time.Second},
		{name: "one worker, the webhook refuses", workers: 1, sick: payment.NoticePaid, does: refuse, within: 3 * time.Second},
		{name: "four workers, the mail server hangs", workers: 4, sick: payment.NoticeReceipt, does: hang, within: 3 * time.Second},
		{name: "one worker, the mail server hangs", workers: 1, sick: payment.NoticeReceipt, does: hang, within: 14 * time.Second},
		{name: "four workers, the mail server refuses", workers: 4, sick: payment.NoticeReceipt, does: refuse, within: 3 * time.Second},
	}
	well := func(context.Context, payment.Notice) error { return nil }
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				options := Options{Workers: test.workers, Webhook: senderFunc(well), Mail: test.does, Log: slog.New(slog.DiscardHandler)}
				other, sink := payment.NoticePaid, toMail
				if test.sick == payment.NoticePaid {
					options.Webhook, options.Mail = options.Mail, options.Webhook
					other, sink = payment.NoticeReceipt, toWebhook
				}
				b := setup(t, options)
				b.queue.latency = 2 * time.Millisecond
				for i := range 400 {
					b.queue.add(test.sick, paid("order-"+strconv.Itoa(i)))
				}
				b.run(t)
				var healthy []*row
				for i := range 60 {
					time.Sleep(500 * time.Millisecond)
					p := paid("order-" + strconv.Itoa(i))
					b.queue.add(test.sick, p)
					healthy = append(healthy, b.queue.add(other, p))
					p.ReceiptEmail = ""
					healthy = append(healthy, b.queue.add(payment.NoticeReceipt, p))
				}
				time.Sleep(30 * time.Second)
				if err := b.stop(); err != nil {
					t.Error(err)
				}
				var longest time.Duration
				for _, r := range healthy {
					if r.state != payment.NoticeDelivered {
						t.Fatalf("a notice for another receiver is %s", r.state)
					}
					longest = max(longest, r.doneAt.Sub(r.notice.CreatedAt))
				}
				t.Logf("longest delay: %v", longest)
				if longest > test.within {
					t.Errorf("a notice for another receiver waited %v, want at most %v", longest, test.within)
				}
				if b.count(sink, "failed") == 0 {
					t.Error("the sick receiver was never tried")
				}
			})
		})
	}
}

// TestBurstIsNotPutBack: a receiver that works gets a burst at full speed, each notice in its first attempt.
func TestBurstIsNotPutBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{Webhook: senderFunc(func(context.Context, payment.Notice) error {
			time.Sleep(50 * time.Millisecond) // virtual
			return nil
		})})
		for range 300 {
			b.queue.add(payment.NoticePaid, paid("order-1"))
		}
		b.run(t)
		time.Sleep(5*time.Second + 100*time.Millisecond) // 300 sends, three at a time
		if n := b.queue.left(); n != 0 {
			t.Errorf("%d left after the time that 300 sends take", n)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		for _, r := range b.queue.rows {
			if r.notice.Attempts != 1 {
				t.Fatalf("%s took %d attempts", r.notice.ID, r.notice.Attempts)
			}
		}
	})
}

// TestReceiverComesBack: what piled up is delivered, and what found no place was not counted as an attempt.
func TestReceiverComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := setup(t, Options{Webhook: senderFunc(func(ctx context.Context, n payment.Notice) error {
			if time.Since(start) < 10*time.Minute {
				return hang(ctx, n)
			}
			return nil
		})})
		for range 200 {
			b.queue.add(payment.NoticePaid, paid("order-1"))
		}
		b.run(t)
		time.Sleep(10 * time.Minute)
		if failed := b.count(toWebhook, "failed"); failed < 30 || failed > 100 {
			t.Errorf("%v failed tries in 10 min: want three per 20 s", failed)
		}
		time.Sleep(30 * time.Minute)
		if n := b.queue.left(); n != 0 {
			t.Errorf("%d not delivered half an hour after the receiver came back", n)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestPutBackDies: a notice that never finds a place does not live for ever.
func TestPutBackDies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{Workers: 1, Webhook: senderFunc(hang)})
		for range 3 {
			r := b.queue.add(payment.NoticePaid, paid("order-1"))
			r.notice.CreatedAt = time.Now().Add(time.Hour - lifetime)
		}
		s := b.pool.sinks[payment.NoticePaid]
		s.restsTo = time.Now().Add(48 * time.Hour)
		b.run(t)
		time.Sleep(2 * time.Hour)
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if dead, failed := b.count(toWebhook, "dead"), b.count(toWebhook, "failed"); dead != 3 || failed != 0 {
			t.Errorf("%v dead, %v failed; want 3 dead and no try counted", dead, failed)
		}
		if n := b.queue.left(); n != 0 {
			t.Errorf("%d still queued after their lifetime", n)
		}
	})
}
