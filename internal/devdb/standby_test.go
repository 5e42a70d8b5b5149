package devdb

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestReplicated(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	db := Replicated(t, migration(t.Name(), &runs))
	const kept = "SELECT count(*)::int FROM pg_class WHERE relname = 'kept'"
	exec1(t, db.DSN, "CREATE TABLE kept (n int)")
	standby := db.Standby.DSN(db.Name)
	if got := query[int](t, standby, kept); got != 1 {
		t.Error("the commit did not wait for the standby")
	}
	conn, err := pgx.Connect(t.Context(), standby)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE TABLE wrong (n int)"); err == nil {
		t.Error("the standby takes writes")
	}
	if err := db.Server.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := db.Standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec1(t, db.DSN, "CREATE TABLE after (n int)")
	if got := query[int](t, db.DSN, kept); got != 1 {
		t.Error("what was committed is lost")
	}
}

func TestStandbyNeedsBaseBackup(t *testing.T) {
	t.Parallel()
	without := &Server{bins: Binaries{Dir: t.TempDir()}}
	if _, err := without.StartStandby(t.Context()); !errors.Is(err, ErrNoBaseBackup) {
		t.Errorf("got %v", err)
	}
}
