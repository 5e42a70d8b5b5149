package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/payment"
)

// TestStandbyGone: PostgreSQL lets a commit succeed when its wait for the synchronous standby is cut short. What a
// failover would lose is never "applied": a payment without a replicated reservation must not be sent.
func TestStandbyGone(t *testing.T) {
	t.Parallel()
	for _, merge := range []bool{false, true} {
		t.Run(fmt.Sprint("merge ", merge), func(t *testing.T) {
			t.Parallel()
			db := devdb.Replicated(t, migration())
			f := setupOn(t, db, func(o *Options) { o.StatementTimeout, o.Merge = 3*time.Second, merge })
			p := f.reserved("a")
			if err := db.Standby.Stop(); err != nil {
				t.Fatal(err)
			}
			_, e, err := f.Reserve(t.Context(), order("b"), lease)
			if e != payment.MaybeApplied || !errors.Is(err, errNotReplicated) {
				t.Errorf("reserve: %s, %v", e, err)
			}
			_, e, err = f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm))
			if e != payment.MaybeApplied || !errors.Is(err, errNotReplicated) {
				t.Errorf("settle: %s, %v", e, err)
			}
			if p := f.row("pk_a"); p.Status != payment.Paid {
				t.Errorf("a read after it: %s", p.Status)
			}
			f.exec("ALTER SYSTEM RESET synchronous_standby_names")
			f.exec("SELECT pg_reload_conf()")
			eventuallyReserved(f)
		})
	}
}

// eventuallyReserved: without a name in synchronous_standby_names commits wait for nobody.
func eventuallyReserved(f *fixture) {
	f.t.Helper()
	var e payment.Ending
	var err error
	for i := range 10 {
		if _, e, err = f.Reserve(f.t.Context(), order(fmt.Sprint("c", i)), lease); e == payment.Applied && err == nil {
			return
		}
	}
	f.t.Errorf("the standby is no longer asked for: %s, %v", e, err)
}
