package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestFiguresOfALargeTable: a scrape reads what is unfinished, not the history, by the planner's own choice.
func TestFiguresOfALargeTable(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.reserved("pending")
	f.exec(`INSERT INTO payments (payment_key, order_id, amount, currency, status, holds_order, version, maybe_sent, leased,
			reserved_at, sends, created_at, updated_at)
		SELECT 'pk_' || n, 'order_' || n, 15000, 'KRW', 'PAID', true, 2, true, false, now(), 1, now(), now()
		FROM generate_series(1, 100000) AS n`)
	f.exec(`INSERT INTO notices (payment_id, kind, event, sequence, state, due_at)
		SELECT id, 'receipt', 'e', 2, 'delivered', NULL FROM payments WHERE status = 'PAID'`)
	f.exec(`VACUUM ANALYZE payments, notices, incidents`)
	rows, err := f.side.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) "+figuresSQL)
	if err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan.WriteString(line + "\n")
		if strings.Contains(line, "Seq Scan on payments") || strings.Contains(line, "Seq Scan on notices") {
			t.Errorf("reads a whole table: %s", line)
		}
	}
	if rows.Err() != nil || plan.Len() == 0 {
		t.Error(rows.Err())
	}
	t.Log(plan.String())
}

// TestFiguresAreKept: scrapes that follow on one another closely cost one read.
func TestFiguresAreKept(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if got := f.metrics.current().Unfinished["PENDING"]; got != 0 {
		t.Fatalf("%d PENDING in an empty database", got)
	}
	f.reserved("new")
	f.metrics.readAt = time.Now()
	if got := f.metrics.current().Unfinished["PENDING"]; got != 0 {
		t.Errorf("read again at once: %d", got)
	}
	f.metrics.readAt = time.Now().Add(-figuresAge)
	if got := f.metrics.current().Unfinished["PENDING"]; got != 1 {
		t.Errorf("not read again after %s: %d", figuresAge, got)
	}
}

// TestLanesAreWatched: who waits for the lane of a merged statement waits for the request pool, as the gauge, the counter
// and the alert on them see it.
func TestLanesAreWatched(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.Merge, o.RequestConns, o.AcquireTimeout = true, 2, 3*time.Second })
	lock, err := f.side.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "LOCK TABLE payments IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	const callers = 6
	gaveUp, first := make(chan error, callers), make(chan error, callers)
	for i := range callers {
		go func() {
			_, _, err := f.Reserve(t.Context(), order(fmt.Sprint(i)), lease)
			if _, busy := errors.AsType[*AcquireError](err); busy {
				gaveUp <- err
				return
			}
			first <- err
		}()
	}
	for waiting := int64(0); waiting < callers-2; waiting = max(waiting, f.request.waiting.Load()) {
		time.Sleep(time.Millisecond)
	}
	for range callers - 1 {
		<-gaveUp
	}
	if got := testutil.ToFloat64(f.request.timeouts); got != callers-1 {
		t.Errorf("%v gave up, say the metrics, want %d", got, callers-1)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil || f.request.waiting.Load() != 0 {
		t.Errorf("the first one: %v; %d wait at the end", err, f.request.waiting.Load())
	}
}
