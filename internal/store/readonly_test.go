package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"paymentd/internal/payment"
)

// TestReadOnlyServer: after a failover behind one address the pooled connections lead to a server that takes no writes.
// The refusal is certain, and one of them is enough to drop all connections: the next statement dials again.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	conns := make([]*lentConn, 3)
	for i := range conns {
		var err error
		if conns[i], err = f.pool.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := conns[i].Exec(t.Context(), "SET default_transaction_read_only = on"); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range conns {
		c.release()
	}
	_, e, err := f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm))
	if e != payment.NotApplied || err == nil || !strings.Contains(err.Error(), "25006") {
		t.Errorf("%s, %v", e, err)
	}
	_, e, err = f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm))
	if e != payment.Applied || err != nil {
		t.Errorf("the second try: %s, %v", e, err)
	}
}

// TestReadOnlyPing: a server that answers reads alone is no database, whether the connection is old or new.
func TestReadOnlyPing(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.RequestConns = 1 })
	conn, err := f.pool.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	conn.release()
	if err := f.Ping(t.Context()); !errors.Is(err, errReadOnly) {
		t.Errorf("an old connection: %v", err)
	}
	if err := f.Ping(t.Context()); err != nil {
		t.Errorf("the connection after it: %v", err)
	}
	f.exec(fmt.Sprintf("ALTER DATABASE %q SET default_transaction_read_only = on", f.db.Name))
	f.request.conns.Reset()
	if err := f.Ping(t.Context()); !errors.Is(err, errReadOnly) {
		t.Errorf("a new connection: %v", err)
	}
	if _, e, err := f.Reserve(t.Context(), order("a"), lease); e != payment.NotApplied || !errors.Is(err, errReadOnly) {
		t.Errorf("reserve: %s, %v", e, err)
	}
	if _, err := Open(t.Context(), options(f.db.DSN)); !errors.Is(err, errReadOnly) {
		t.Errorf("open: %v", err)
	}
}
