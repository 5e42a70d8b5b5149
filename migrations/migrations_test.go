package migrations_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"paymentd/internal/devdb"
	"paymentd/migrations"
)

var update = flag.Bool("update", false, "write schema.sql")

func TestMain(m *testing.M) { os.Exit(devdb.Main(m)) }

// empty is a database without a schema.
func empty(t *testing.T) string {
	t.Helper()
	return devdb.New(t, devdb.Migration{Hash: "empty", Up: func(context.Context, string) error { return nil }}).DSN
}

func migrated(t *testing.T) string {
	t.Helper()
	return devdb.New(t, devdb.Migration{Hash: migrations.Hash(), Up: migrations.Up}).DSN
}

func TestSchema(t *testing.T) {
	t.Parallel()
	got := dump(t, migrated(t))
	if *update {
		if err := os.WriteFile("schema.sql", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("schema.sql (-want +got); go test ./migrations -run TestSchema -update:\n%s", diff)
	}
}

func TestUpDownUp(t *testing.T) {
	t.Parallel()
	dsn := empty(t)
	before := dump(t, dsn)
	for _, round := range []string{"first", "second"} {
		if err := migrations.Up(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(dump(t, migrated(t)), dump(t, dsn)); diff != "" {
			t.Errorf("%s up (-want +got):\n%s", round, diff)
		}
		if err := migrations.Down(t.Context(), dsn); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, dump(t, dsn)); diff != "" {
			t.Errorf("%s down (-want +got):\n%s", round, diff)
		}
	}
}

// TestNewerSchema: the version before starts on the schema of the next, which is how one goes back.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)"); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Error(err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	dsn := empty(t)
	list, err := migrations.Status(t.Context(), dsn)
	if err != nil || len(list) == 0 || !list[0].AppliedAt.IsZero() || list[0].Version != 1 || list[0].Name != "00001_payments.sql" {
		t.Fatalf("before: %+v, %v", list, err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if list, err = migrations.Status(t.Context(), dsn); err != nil || list[0].AppliedAt.IsZero() {
		t.Errorf("after: %+v, %v", list, err)
	}
}

// TestUpByManyAtOnce: several instances start together.
func TestUpByManyAtOnce(t *testing.T) {
	t.Parallel()
	dsn := empty(t)
	errs := make(chan error, 5)
	var all sync.WaitGroup
	for range cap(errs) {
		all.Go(func() { errs <- migrations.Up(t.Context(), dsn) })
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	list, err := migrations.Status(t.Context(), dsn)
	if err != nil || len(list) == 0 || slices.ContainsFunc(list, func(m migrations.Migration) bool { return m.AppliedAt.IsZero() }) {
		t.Errorf("after: %+v, %v", list, err)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]func(string) error{
		"up":     func(dsn string) error { return migrations.Up(t.Context(), dsn) },
		"down":   func(dsn string) error { return migrations.Down(t.Context(), dsn) },
		"status": func(dsn string) error { _, err := migrations.Status(t.Context(), dsn); return err },
	} {
		for _, dsn := range []string{"postgres://u:hunter2@127.0.0.1:1/x", "postgres://u:hunter2@%zz/x"} {
			if err := step(dsn); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestEventsAreAppendOnly: the history cannot be rewritten, not even by us.
func TestEventsAreAppendOnly(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `INSERT INTO payment_events (payment_id, version, from_status, to_status, actor, reason)
		VALUES (1, 2, 'PENDING', 'PAID', 'confirm', '')`); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"UPDATE payment_events SET reason = 'x'", "DELETE FROM payment_events", "TRUNCATE payment_events"} {
		_, err := conn.Exec(t.Context(), sql)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// TestPaymentChecks: rows that no statement of ours writes are refused by the schema too.
func TestPaymentChecks(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), migrated(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	for _, tt := range []struct{ name, status, holds, due, amount, want string }{
		{"good", "PENDING", "true", "now()", "1", ""},
		{"pending that nobody looks at", "PENDING", "true", "NULL", "2", "payments_pending_due_check"},
		{"paid that lets go", "PAID", "false", "NULL", "3", "payments_holds_order_check"},
		{"unknown state", "REFUNDED", "true", "NULL", "4", "payments_status_check"},
		{"no money", "PAID", "true", "NULL", "0", "payments_amount_check"},
	} {
		_, err := conn.Exec(t.Context(), `INSERT INTO payments (order_id, payment_key, amount, currency, status, holds_order,
			version, maybe_sent, leased, due_at, reserved_at, sends, created_at, updated_at)
			VALUES ('o`+tt.amount+`', 'k`+tt.amount+`', `+tt.amount+`, 'KRW', '`+tt.status+`', `+tt.holds+`, 1, true, false, `+tt.due+`, now(), 1, now(), now())`)
		got := ""
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			got = pg.ConstraintName
		}
		if got != tt.want {
			t.Errorf("%s: refused by %q (%v), want %q", tt.name, got, err, tt.want)
		}
	}
}

// TestIndexPredicates: an index predicate with a state in it would be touched by every move.
func TestIndexPredicates(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(dump(t, migrated(t))) {
		if strings.Contains(line, "INDEX payments_") && strings.Contains(line, "status") {
			t.Error(line)
		}
	}
}

// dump writes the schema from the catalog, the same on every version of PostgreSQL that we support.
func dump(t *testing.T, dsn string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var out strings.Builder
	out.WriteString("-- The schema after all migrations. Written by: go test ./migrations -run TestSchema -update\n")
	rows, err := conn.Query(t.Context(), `
		WITH ours AS (
			SELECT c.oid, c.relname FROM pg_class AS c
			WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> 'goose_db_version')
		SELECT text FROM (
			SELECT o.relname AS name, 1 AS part, a.attnum AS place,
				format('%s.%s %s%s%s%s', o.relname, a.attname, format_type(a.atttypid, a.atttypmod),
					CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END,
					COALESCE(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), ''),
					CASE WHEN a.attidentity <> '' THEN ' IDENTITY' ELSE '' END) AS text
			FROM ours AS o JOIN pg_attribute AS a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
			LEFT JOIN pg_attrdef AS d ON d.adrelid = o.oid AND d.adnum = a.attnum
			UNION ALL
			SELECT o.relname, 2, 0, format('%s CONSTRAINT %s %s', o.relname, c.conname, pg_get_constraintdef(c.oid))
			FROM ours AS o JOIN pg_constraint AS c ON c.conrelid = o.oid AND c.contype <> 'n'
			UNION ALL
			SELECT o.relname, 3, 0, pg_get_indexdef(i.indexrelid)
			FROM ours AS o JOIN pg_index AS i ON i.indrelid = o.oid
			WHERE NOT EXISTS (SELECT FROM pg_constraint AS c WHERE c.conindid = i.indexrelid)
			UNION ALL
			SELECT o.relname, 4, 0, pg_get_triggerdef(g.oid)
			FROM ours AS o JOIN pg_trigger AS g ON g.tgrelid = o.oid AND NOT g.tgisinternal
			UNION ALL
			SELECT '~', 5, 0, pg_get_functiondef(p.oid) FROM pg_proc AS p WHERE p.pronamespace = 'public'::regnamespace
		) AS all_parts ORDER BY name COLLATE "C", part, place, text COLLATE "C"`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		out.WriteString(strings.TrimSpace(line) + ";\n")
	}
	return out.String()
}

func TestLatest(t *testing.T) {
	t.Parallel()
	db := devdb.New(t, devdb.Migration{Hash: migrations.Hash(), Up: migrations.Up})
	list, err := migrations.Status(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	latest, err := migrations.Latest()
	if err != nil || latest != list[len(list)-1].Version {
		t.Errorf("latest %d (%v), want %d", latest, err, list[len(list)-1].Version)
	}
}
