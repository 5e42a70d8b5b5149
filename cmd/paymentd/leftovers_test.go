package main

import (
	"strconv"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// heap is what the process's heap takes.
func (p *process) heap() int {
	p.t.Helper()
	f, err := strconv.ParseFloat(p.metric("go_memstats_heap_inuse_bytes"), 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return int(f)
}

// TestManyLeftovers: thousands of payments that were reserved and never sent are all due at once. Recovery works them off
// to their end without a lookup and without holding them in memory, and confirms go on meanwhile. With
// PAYMENTD_TEST_REAL_TIME=1 they are 10,000.
func TestManyLeftovers(t *testing.T) {
	t.Parallel()
	leftovers, most := 2000, 2*time.Minute
	if realTime() {
		leftovers, most = 10_000, 10*time.Minute
	}
	w := newWorld(t)
	p := w.spawn()
	p.confirm(newOrder("warm")).want(t, 200, "PAID")
	begin, first, top := time.Now(), p.heap(), 0
	w.exec(`INSERT INTO payments (order_id, payment_key, amount, currency, status, holds_order, version, maybe_sent, leased, due_at,
			reserved_at, sends, created_at, updated_at)
		SELECT 'order-left-' || n, 'test_left' || n, 15000, 'KRW', 'PENDING', true, 1, false, false, now(),
			now() - interval '10 min', 1, now() - interval '10 min', now() - interval '10 min'
		FROM generate_series(1, $1) AS n`, leftovers)
	beside, confirmed := 0, 1
	left := func() int {
		return w.count(`SELECT count(*) FROM payments WHERE status = 'PENDING' AND order_id LIKE 'order-left-%'`)
	}
	awaits(t, "all leftovers are worked off", most, func() bool {
		p.confirm(newOrder("beside")).want(t, 200, "PAID")
		confirmed++
		top = max(top, p.heap())
		n := left()
		if n > 0 {
			beside++
		}
		return n == 0
	})
	took := time.Since(begin)
	if n := w.count(`SELECT count(*) FROM payments WHERE status = 'FAILED' AND failure_code = 'expired' AND NOT holds_order AND due_at IS NULL`); n != leftovers {
		t.Errorf("%d of %d expired", n, leftovers)
	}
	if n := w.count(`SELECT count(*) FROM payment_events WHERE to_status = 'FAILED' AND actor = 'recovery'`); n != leftovers {
		t.Errorf("%d events for %d leftovers", n, leftovers)
	}
	if beside == 0 {
		t.Error("no confirm was approved beside the leftovers")
	}
	w.equal("lookups", int(w.lookups()), 0)
	w.equal("cancels", int(w.toss.Counters().Ops[tosssim.OpCancel].Calls), 0)
	w.equal("confirms sent", int(w.sent()), confirmed)
	if grown := top - first; grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	t.Logf("%d leftovers took %s beside %d confirms; heap %.1f MiB before, at most %.1f MiB", leftovers, took.Round(10*time.Millisecond), beside,
		float64(first)/(1<<20), float64(top)/(1<<20))
	w.ledgerHolds()
}
