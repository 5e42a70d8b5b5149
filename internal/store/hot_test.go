package store

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

var update = flag.Bool("update", false, "rewrite generated files")

// TestHotScript keeps the pgbench script of "make bench" equal to the two statements of a plain approval.
func TestHotScript(t *testing.T) {
	t.Parallel()
	// A colon before a digit is a variable to some versions of pgbench.
	colons := regexp.MustCompile(`:(\d)`)
	evidence := colons.ReplaceAllString(strings.ReplaceAll(*evidenceOf(payment.Observation{
		Sighting: payment.SeenDone, PaymentKey: "test_b0123456789", OrderID: "bench-0-1", Total: 15000, Balance: 15000,
		Currency: payment.KRW, Method: "카드", ApprovedAt: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC),
	}, ""), `":`, `": `), ".$1")
	// As with the product's own ids, those of one client ascend.
	ascending := func(kind string) string {
		return "('00000000-0000-7000-" + kind + "-' || lpad(:client_id || '', 3, '0') || lpad(:i || '', 9, '0'))::uuid"
	}
	want := `-- The two statements of a plain approval as a script of pgbench. Written by
-- go test ./internal/store -run TestHotScript -update
\set i :i + 1
` + filled(reserveSQL,
		"'bench-' || :client_id || '-' || :i", "'test_' || :client_id || '-' || :i", "15000", "'KRW'", "''", "''", "'60 seconds'") + ` \gset
` + filled(plainSQL+plainNoticesSQL+plainNoticedSQL,
		":id", "false", "'카드'", "'20261130T100000Z'", "'https://dashboard.tosspayments.com/receipt'", "false",
		"'confirm'", "'approved'", "'"+evidence+"'", ascending("8000"), ascending("9000"), "0", "'0 seconds'") + ";\n"

	path := filepath.Join("..", "..", "loadtest", "bench", "own.sql")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale, run this test with -update (-want +got):\n%s", path, diff)
	}
}

// TestNoSequentialScans: reserve, settle, find, and the claim and the end of notices read rows by an index from the first
// one on, since a plan made while the tables are small is kept while they grow.
func TestNoSequentialScans(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const tables = " WHERE relname IN ('payments', 'payment_events', 'notices', 'cancels', 'incidents')"
	before := f.count("pg_stat_user_tables" + tables + " AND seq_scan > 0")
	if before != 0 {
		t.Fatalf("%d tables were read before the test", before)
	}
	for i := range 12 { // a plan is settled after five executions
		f.settle(settlement(f.reserved(strconv.Itoa(i)), payment.Paid, payment.ByConfirm))
		var tries []payment.NoticeTry
		for _, n := range f.claimAll() {
			tries = append(tries, payment.NoticeTry{Notice: n, Result: payment.NoticeResult{State: payment.NoticeDelivered}})
		}
		if err := f.FinishNotices(t.Context(), tries); err != nil {
			t.Fatal(err)
		}
		if _, found, err := f.Find(t.Context(), "pk_"+strconv.Itoa(i), ""); !found || err != nil {
			t.Fatalf("found %t, %v", found, err)
		}
	}
	f.Close() // PostgreSQL writes a session's figures down when it ends
	var got string
	written := 0
	for range 600 {
		conn, err := pgx.Connect(t.Context(), f.db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		err = conn.QueryRow(t.Context(), `SELECT max(n_tup_upd) FILTER (WHERE relname = 'notices'),
			COALESCE(string_agg(relname || ': ' || seq_scan, ', ') FILTER (WHERE seq_scan > 0), '') FROM pg_stat_user_tables`+tables).Scan(&written, &got)
		_ = conn.Close(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if written >= 48 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if written < 48 {
		t.Fatalf("PostgreSQL tells of %d updates of notices, want 48", written)
	}
	if got != "" {
		t.Errorf("scans of whole tables: %s", got)
	}
}

// filled puts SQL in the place of the parameters $1, $2 …
func filled(sql string, values ...string) string {
	return regexp.MustCompile(`\$\d+`).ReplaceAllStringFunc(sql, func(name string) string {
		n, _ := strconv.Atoi(name[1:])
		return values[n-1]
	})
}

// TestPlansAreKept: a merged statement is planned once per connection, whatever the tables' statistics say and however
// many rows it has; planning it costs the server more than a row.
func TestPlansAreKept(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.Merge, o.RequestConns = true, 1 })
	const rounds = 12
	for round := range rounds {
		var reservations []reservation
		for i := range 1 + round%4 {
			reservations = append(reservations, reservation{order(fmt.Sprintf("%d-%d", round, i)), lease})
		}
		reserved, err := f.reserves.together(t.Context(), reservations)
		if err != nil {
			t.Fatal(err)
		}
		var moves []*move
		for _, w := range reserved {
			m := moveOf(settlement(*w.payment, payment.Paid, payment.ByConfirm))
			moves = append(moves, &m)
		}
		if _, err := f.settles.together(t.Context(), moves); err != nil {
			t.Fatal(err)
		}
		f.exec("ANALYZE payments")
	}
	conn, err := f.pool.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.release()
	var statements, planned, kept int
	if err := conn.QueryRow(t.Context(), `SELECT count(*), sum(custom_plans), sum(generic_plans) FROM pg_prepared_statements
		WHERE statement LIKE '%unnest%' AND statement NOT LIKE '%pg_prepared%'`).Scan(&statements, &planned, &kept); err != nil {
		t.Fatal(err)
	}
	if statements != 2 || planned != 0 || kept != 2*rounds {
		t.Errorf("%d merged statements, %d times planned anew and %d times not, want 2, 0 and %d", statements, planned, kept, 2*rounds)
	}
}
