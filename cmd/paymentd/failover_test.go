package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
)

// downFor is how long nobody takes writes after the death of the primary.
func downFor() time.Duration {
	if realTime() {
		return 15 * time.Second
	}
	return 3 * time.Second
}

// TestFailoverUnderLoad is scenario S6c: the primary dies under load with a hundred approvals in flight, and its
// synchronous standby is promoted. Nothing acknowledged is lost. With "hold" nothing is given back and all is PAID; with
// "cancel" what was given back is FAILED; never is a payment PAID here and canceled there.
func TestFailoverUnderLoad(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"hold", "cancel"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			set := []string{"PAYMENTD_ON_COMMIT_FAILURE=" + policy, "PAYMENTD_DB_ACQUIRE_TIMEOUT=500ms"}
			if !realTime() {
				set = append(append(set, brief...), "PAYMENTD_TOSS_CONFIRM_TIMEOUT=10s", "PAYMENTD_DB_ACQUIRE_TIMEOUT=5s")
			}
			w := newWorldOn(t, devdb.Replicated(t, migrated()), tosssim.Options{}, set...)
			in := w.start()
			acknowledged := manyOrders("before", 20)
			answers := in.confirmAll(acknowledged)()
			w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hold: true, Latency: tosssim.Latency{Min: tosssim.Duration(time.Second), Max: tosssim.Duration(2 * time.Second)}})
			flying := manyOrders("flying", 100)
			fly := in.confirmAll(flying)
			w.arrived(tosssim.OpConfirm, int64(len(acknowledged)+80))
			died := time.Now()
			if err := w.db.Server.Crash(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.faults()
			outage := manyOrders("outage", 10)
			late := in.confirmAll(outage)
			promoted := make(chan error, 1)
			time.AfterFunc(downFor(), func() { promoted <- w.db.Standby.Promote(t.Context()) })
			next := w.start() // waits for a server that takes writes
			if time.Since(died) < downFor() {
				t.Error("an instance started on a read-only server")
			}
			if err := <-promoted; err != nil {
				t.Fatal(err)
			}
			t.Logf("writable again after %s", time.Since(died).Round(10*time.Millisecond))
			orders := append(append(acknowledged, flying...), outage...)
			answers = append(append(answers, fly()...), late()...)
			w.faults()
			t.Logf("settled within %s", w.settledAlone(2*time.Minute))
			told := map[string]int{}
			for i, o := range orders {
				told[fmt.Sprint(answers[i].status, " ", answers[i].text("status"), answers[i].text("code"))]++
				w.keptPromise(o, answers[i], policy)
			}
			t.Log(policy, told)
			l := w.ledgerHolds()
			t.Log(l)
			for _, instance := range []*instance{in, next} {
				eventually(t, "confirms are paid again", func() bool { return instance.confirm(newOrder("after")).status == 200 })
			}
		})
	}
}

// TestStandbyGone: while the synchronous standby is away nothing is sent, since a failover would lose the reservation; as
// soon as commits wait for nobody the payment is made.
func TestStandbyGone(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, devdb.Replicated(t, migrated()), tosssim.Options{}, append(brief, "PAYMENTD_DB_STATEMENT_TIMEOUT=3s")...)
	in := w.start()
	in.confirm(newOrder("known")).want(t, 200, "PAID")
	if err := w.db.Standby.Stop(); err != nil {
		t.Fatal(err)
	}
	o := newOrder("alone")
	in.confirm(o).want(t, 202, "PENDING")
	w.equal("sent without a replicated reservation", int(w.sent())-1, 0)
	w.system("RESET synchronous_standby_names")
	w.settles(o, "PAID")
	w.equal("approvals", w.entry(o).Approvals, 1)
	in.confirm(newOrder("after")).want(t, 200, "PAID")
	w.ledgerHolds()
}

// keptPromise compares what a caller was told in a failover with what became of the payment.
func (w *world) keptPromise(o order, a answer, policy string) {
	w.t.Helper()
	r, found := w.row(o)
	e := w.entry(o)
	paid := r.Status == "PAID" && e.Approvals == 1 && e.Balance == 15000 && e.Cancels == 0
	returned := policy == "cancel" && r.Status == "FAILED" && e.Approvals == 1 && e.Balance == 0
	ok := false
	switch {
	case a.status == 200:
		ok = paid
	case a.status == 202 && !found:
		ok = e.Approvals == 0 // the reservation may have been there, and was not
	case a.status == 202:
		ok = paid || returned
	case a.status == 503 && a.text("code") == "db_failed":
		ok = returned
	case a.status == 503 && a.text("code") == "db_unavailable":
		ok = !found && e.Approvals == 0
	}
	if !ok {
		w.t.Errorf("%s: told %d %s; the row is %+v (%v), the simulator has %+v", o.id, a.status, a.raw, r, found, e)
	}
}

func manyOrders(kind string, n int) []order {
	orders := make([]order, n)
	for i := range orders {
		orders[i] = newOrder(fmt.Sprintf("%s%d_", kind, i))
	}
	return orders
}

// confirmAll confirms all orders at once; the returned function waits for the answers.
func (in *instance) confirmAll(orders []order) func() []answer {
	answers := make([]answer, len(orders))
	var calls sync.WaitGroup
	for i, o := range orders {
		calls.Go(func() {
			a, err := call(in.t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, o.json())
			if err != nil {
				in.t.Error(err)
			}
			answers[i] = a
		})
	}
	return func() []answer { calls.Wait(); return answers }
}

// TestReadOnlyDatabase: a server that takes no writes is no database. A start waits for a better one and says why it
// gave up; a running instance is not ready, refuses confirms without a trace, and goes on by itself. Pooled connections
// that lead to a server demoted meanwhile cost no approval: the refusal is certain and one of them drops them all.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, "PAYMENTD_DB_CONNECT_TIMEOUT=5s")
	in := w.start()
	giving := w.start("PAYMENTD_ON_COMMIT_FAILURE=cancel")
	in.confirm(newOrder("known")).want(t, 200, "PAID")
	w.writes(false)
	eventually(t, "not ready", func() bool { return in.call("GET", in.admin+"/readyz", "", "").status == 503 })
	in.call("GET", in.admin+"/livez", "", "").want(t, 200, "")
	o := newOrder("readonly")
	in.confirm(o).want(t, 503, "db_unavailable")
	w.equal("confirms sent without a reservation", int(w.sent())-1, 0)
	c, err := loadConfig(w.env())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // who stands still at the end of the time is not told why
		if err = serve(t.Context(), c, newLogger(c, w.log), nil); err == nil || strings.Contains(err.Error(), "read-only") {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "PAYMENTD_DB_CONNECT_TIMEOUT") || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("start on a read-only server: %v", err)
	}
	w.writes(true)
	eventually(t, "ready again", func() bool { return in.call("GET", in.admin+"/readyz", "", "").status == 200 })
	in.confirm(o).want(t, 200, "PAID")

	for _, in := range []*instance{in, giving} {
		w.holds()
		o, sent := newOrder("demoted"), w.sent()
		answered := in.confirmLater(o)
		w.arrived(tosssim.OpConfirm, sent+1)
		w.writes(false)
		w.faults()
		eventually(t, "the gateway has approved", func() bool { return w.entry(o).Approvals == 1 })
		eventually(t, "the commit is refused", func() bool { return in.number(`paymentd_db_connections{pool="request",state="idle"}`) == 0 })
		w.writes(true)
		answered().want(t, 200, "PAID")
		w.equal("cancels", w.entry(o).Cancels, 0)
	}
	w.ledgerHolds()
}

// writes makes the server read-only for all sessions, as a demotion behind one address does, or takes that back.
func (w *world) writes(on bool) {
	w.t.Helper()
	conn := w.system("SET default_transaction_read_only = " + map[bool]string{true: "off", false: "on"}[on])
	eventually(w.t, "the setting is heard", func() bool {
		var now string
		err := conn.QueryRow(w.t.Context(), "SHOW default_transaction_read_only").Scan(&now)
		return err == nil && (now == "off") == on
	})
}

// system changes a setting of the server for all sessions. The returned connection ends with the test.
func (w *world) system(change string) *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.Connect(w.t.Context(), w.db.DSN)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, sql := range []string{"ALTER SYSTEM " + change, "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(w.t.Context(), sql); err != nil {
			w.t.Fatal(err)
		}
	}
	return conn
}
