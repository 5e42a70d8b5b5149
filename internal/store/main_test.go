package store

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/approval"
	"paymentd/internal/devdb"
	"paymentd/internal/payment"
	"paymentd/migrations"
)

func TestMain(m *testing.M) { os.Exit(devdb.Main(m)) }

func migration() devdb.Migration {
	return devdb.Migration{Hash: migrations.Hash(), Up: migrations.Up}
}

// fixture is a store on a database of its own, and a connection beside it.
type fixture struct {
	*Store
	t    *testing.T
	db   *devdb.DB
	side *pgx.Conn
	reg  *prometheus.Registry
	log  *strings.Builder
}

const lease = time.Minute

func options(dsn string) Options {
	return Options{DSN: dsn, RequestConns: 4, BackgroundConns: 2, AcquireTimeout: 30 * time.Second, StatementTimeout: 20 * time.Second}
}

func setup(t *testing.T, change ...func(*Options)) *fixture {
	t.Helper()
	return setupOn(t, devdb.New(t, migration()), change...)
}

func setupOn(t *testing.T, db *devdb.DB, change ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db, reg: prometheus.NewRegistry(), log: &strings.Builder{}}
	o := options(db.DSN)
	o.Registerer, o.Logger = f.reg, slog.New(slog.NewTextHandler(f.log, nil))
	for _, c := range change {
		c(&o)
	}
	var err error
	if f.Store, err = Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Store.Close)
	if f.side, err = pgx.Connect(t.Context(), db.DSN); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.side.Close(context.Background()) })
	return f
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.side.Exec(f.t.Context(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func ask[T any](f *fixture, sql string, args ...any) T {
	f.t.Helper()
	var v T
	if err := f.side.QueryRow(f.t.Context(), sql, args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (f *fixture) count(sql string, args ...any) int {
	f.t.Helper()
	return ask[int](f, "SELECT count(*)::int FROM "+sql, args...)
}

func order(name string) payment.Order {
	return payment.Order{PaymentKey: "pk_" + name, OrderID: "order_" + name, Amount: 15000, Currency: payment.KRW, MemberID: "m1", ReceiptEmail: "a@example.com"}
}

// applied fails the test unless the write was applied.
func applied(t *testing.T, p payment.Payment, e payment.Ending, err error) payment.Payment {
	t.Helper()
	if e != payment.Applied || err != nil {
		t.Fatalf("ending %s, %v", e, err)
	}
	return p
}

func (f *fixture) reserved(name string) payment.Payment {
	f.t.Helper()
	p, e, err := f.Reserve(f.t.Context(), order(name), lease)
	return applied(f.t, p, e, err)
}

func (f *fixture) row(key string) payment.Payment {
	f.t.Helper()
	p, found, err := f.Find(f.t.Context(), key, "")
	if err != nil || !found {
		f.t.Fatalf("find %s: %v, %v", key, found, err)
	}
	return p
}

// seen is what Toss says of p with so much of it left.
func seen(p payment.Payment, s payment.Sighting, balance payment.Amount, cancels ...payment.GatewayCancel) payment.Observation {
	return payment.Observation{
		Sighting: s, PaymentKey: p.PaymentKey, OrderID: p.OrderID, Total: p.Amount, Balance: balance, Currency: p.Currency,
		Method: "카드", ReceiptURL: "https://example.com/r", ApprovedAt: p.CreatedAt.Truncate(time.Second), Cancels: cancels, TraceID: "trace",
	}
}

func settlement(p payment.Payment, to payment.Status, by payment.Actor) approval.Settlement {
	st := approval.Settlement{
		Payment: p, Actor: by, Action: payment.Action{Do: payment.Settle, To: to, Reason: "test"},
		Observation: payment.Observation{Sighting: payment.SeenDeclined},
	}
	switch to {
	case payment.Paid:
		st.Observation = seen(p, payment.SeenDone, p.Amount)
	case payment.Failed:
		st.Action.Failure = &payment.Failure{Code: payment.FailDeclined, GatewayCode: "REJECT_CARD_PAYMENT", Message: "한도초과"}
	case payment.AwaitingDeposit:
		st.Observation = seen(p, payment.SeenWaiting, p.Amount)
		st.Observation.VirtualAccount = &payment.VirtualAccount{BankCode: "20", AccountNumber: "X123", CustomerName: "kim", DueDate: p.CreatedAt.Add(72 * time.Hour).Truncate(time.Second)}
	case payment.Canceled:
		st.Observation = seen(p, payment.SeenCanceled, 0, payment.GatewayCancel{TransactionKey: "tx-" + p.PaymentKey, Amount: p.Amount, Reason: "customer"})
	}
	return st
}

func (f *fixture) settle(st approval.Settlement) payment.Payment {
	f.t.Helper()
	p, e, err := f.Settle(f.t.Context(), st)
	return applied(f.t, p, e, err)
}

// unsent is a FAILED payment that a confirm may reopen.
func (f *fixture) unsent(p payment.Payment) payment.Payment {
	f.t.Helper()
	st := settlement(p, payment.Failed, payment.ByConfirm)
	st.NotSent, st.Action.Failure = true, &payment.Failure{Code: payment.FailPGUnavailable}
	return f.settle(st)
}

// sources are the files of the patterns by name, without tests.
func sources(t *testing.T, patterns ...string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
		}
	}
	return texts
}
