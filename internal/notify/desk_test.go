package notify

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"paymentd/internal/payment"
)

// handOver is a settle that writes n notices and hands them over, if there is room; they began to wait age ago.
func (b *bundle) handOver(t *testing.T, n int, age time.Duration) (rows []*row) {
	t.Helper()
	lease := b.pool.KeepRoom(n)
	var notices []payment.Notice
	for range n {
		r := b.queue.add(payment.NoticePaid, paid("order-1"))
		if lease > 0 {
			b.queue.mu.Lock()
			r.notice.Attempts, r.dueAt = 1, time.Now().Add(lease-age)
			notices = append(notices, r.notice)
			b.queue.mu.Unlock()
		}
		rows = append(rows, r)
	}
	if lease > 0 {
		b.pool.Hand(n, time.Now().Add(-age), notices)
	}
	return rows
}

// TestHandedOver: notices for the log need no claim, and those of many settles share the statement that ends them.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		b.run(t)
		synctest.Wait()
		for range 5 {
			b.handOver(t, 2, 0)
		}
		synctest.Wait()
		if left := b.queue.left(); left != 10 {
			t.Errorf("%d of 10 left: a few wait for others", left)
		}
		time.Sleep(gatherFor)
		synctest.Wait()
		if left, claims, finishes := b.queue.left(), b.queue.claimed(), b.queue.finished(); left != 0 || claims != 1 || finishes != 1 {
			t.Errorf("%d left after %d claims and %d finishes, want 0, the first poll and 1", left, claims, finishes)
		}
		b.handOver(t, mostLogged+1, 0)
		synctest.Wait()
		if left := b.queue.left(); left != 1 {
			t.Errorf("%d left, want 1: a whole batch waits for nobody", left)
		}
		b.handOver(t, 5*mostLogged, 0)
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if left, strays, got := b.queue.left(), b.queue.strays, b.count(toLog, "delivered"); left != 0 || strays != 0 || got != 10+6*mostLogged+1 {
			t.Errorf("after the stop %d left, %d ended too late, %v delivered", left, strays, got)
		}
	})
}

func TestDeskRefuses(t *testing.T) {
	t.Parallel()
	outside := senderFunc(func(context.Context, payment.Notice) error { return nil })
	tests := []struct {
		name    string
		options Options
		before  func(*bundle)
		n       int
		want    bool
	}{
		{name: "room", n: deskRoom, want: true},
		{name: "no room", n: deskRoom + 1},
		{name: "promised to another", n: 1, before: func(b *bundle) { b.pool.KeepRoom(deskRoom) }},
		{name: "given back", n: 1, want: true, before: func(b *bundle) {
			b.pool.KeepRoom(deskRoom)
			b.pool.Hand(deskRoom, time.Now(), nil)
		}},
		{name: "taken by those who wait", n: 1, before: func(b *bundle) {
			b.pool.KeepRoom(deskRoom)
			b.pool.Hand(deskRoom, time.Now(), make([]payment.Notice, deskRoom))
		}},
		{name: "closed", n: 1, before: func(b *bundle) { b.pool.desk.close() }},
		{name: "a webhook", n: 1, options: Options{Webhook: outside}},
		{name: "mail", n: 1, options: Options{Mail: outside}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, tt.options)
			if tt.before != nil {
				tt.before(b)
			}
			lease := b.pool.KeepRoom(tt.n)
			if lease > 0 != tt.want {
				t.Errorf("a lease of %s for %d", lease, tt.n)
			}
			if least := deskPatience + patience + b.pool.sendTimeout + finishWithin; tt.want && lease <= least {
				t.Errorf("a lease of %s, which must outlast %s", lease, least)
			}
		})
	}
}

// TestDeskForgets what has waited so long that its lease might end in hand: whoever claims it then logs it, once.
func TestDeskForgets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		rows := append(b.handOver(t, 1, deskPatience), b.handOver(t, 1, 0)...)
		b.run(t)
		time.Sleep(gatherFor)
		synctest.Wait()
		if b.queue.stateOf(rows[0]) != payment.NoticeQueued || b.queue.stateOf(rows[1]) != payment.NoticeDelivered {
			t.Errorf("states %s and %s", b.queue.stateOf(rows[0]), b.queue.stateOf(rows[1]))
		}
		time.Sleep(b.pool.lease() + pollEvery)
		synctest.Wait()
		if left, lines := b.queue.left(), b.count(toLog, "delivered"); left != 0 || lines != 2 {
			t.Errorf("%d left, %v delivered, want 0 and 2", left, lines)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestHandedTooLate: a settle that ends after the pool leaves its notices to the end of their lease.
func TestHandedTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		b.run(t)
		synctest.Wait()
		lease := b.pool.KeepRoom(1)
		if err := b.stop(); err != nil || lease == 0 {
			t.Fatal(err, lease)
		}
		b.pool.Hand(1, time.Now(), []payment.Notice{{ID: "late"}})
		if waiting := len(b.pool.desk.waiting); waiting != 0 {
			t.Errorf("%d wait for nobody", waiting)
		}
	})
}

// TestDeskKeepsUp: a database that is slow to answer is asked by several workers at once.
func TestDeskKeepsUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, Options{})
		b.queue.latency = 200 * time.Millisecond
		b.run(t)
		for range 500 { // a thousand a second; one worker alone would end 320
			b.handOver(t, 10, 0)
			time.Sleep(10 * time.Millisecond)
		}
		if err := b.stop(); err != nil {
			t.Error(err)
		}
		if left, got := b.queue.left(), b.count(toLog, "delivered"); left != 0 || got != 5000 {
			t.Errorf("%d left, %v of 5000 delivered", left, got)
		}
	})
}
