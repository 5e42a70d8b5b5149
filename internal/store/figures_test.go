package store

import (
	"strings"
	"testing"
	"time"
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
