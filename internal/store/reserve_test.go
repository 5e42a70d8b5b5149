package store

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

func TestReserve(t *testing.T) {
	t.Parallel()
	f := setup(t)
	o := order("a")
	o.Amount, o.Currency = 50_000_000_000, "USD" // trap 27: more than 32 bits
	p, e, err := f.Reserve(t.Context(), o, lease)
	applied(t, p, e, err)
	want := payment.Payment{
		ID: p.ID, OrderID: "order_a", PaymentKey: "pk_a", Amount: 50_000_000_000, Currency: "USD", Status: payment.Pending,
		MemberID: "m1", ReceiptEmail: "a@example.com", CreatedAt: p.ReadAt, UpdatedAt: p.ReadAt, Version: 1, HoldsOrder: true,
		MaybeSent: true, Leased: true, DueAt: p.ReadAt.Add(lease), ReservedAt: p.ReadAt, FirstSentAt: p.ReadAt,
		LastSentAt: p.ReadAt, Sends: 1, ReadAt: p.ReadAt,
	}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("payment (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(p, f.row("pk_a"), cmpopts.IgnoreFields(payment.Payment{}, "ReadAt")); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
	if n := f.count("payment_events"); n != 0 {
		t.Errorf("%d events, a reservation is none", n)
	}
	if skew := p.ReadAt.Sub(ask[time.Time](f, "SELECT now()")); skew > 0 || skew < -time.Minute {
		t.Errorf("ReadAt is %s from PostgreSQL's clock", skew)
	}
}

// TestTrap33_ReserveConflicts is traps 12 and 33: whichever unique index is in the way, the answer is NoRows and no error.
func TestTrap33_ReserveConflicts(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.reserved("a")
	f.settle(settlement(f.reserved("failed"), payment.Failed, payment.ByConfirm))
	both := order("a")
	for _, tt := range []struct {
		name       string
		key, order string
		want       payment.Ending
	}{
		{"the same call", both.PaymentKey, both.OrderID, payment.NoRows},
		{"another key for the order", "pk_b", both.OrderID, payment.NoRows},
		{"another order for the key", both.PaymentKey, "order_b", payment.NoRows},
		{"the key of one and the order of another", "pk_failed", both.OrderID, payment.NoRows},
		{"an order that was let go", "pk_c", "order_failed", payment.Applied},
	} {
		o := order("a")
		o.PaymentKey, o.OrderID = tt.key, tt.order
		if _, e, err := f.Reserve(t.Context(), o, lease); e != tt.want || err != nil {
			t.Errorf("%s: %s, %v", tt.name, e, err)
		}
	}
}

func TestTrap32_Reserve100AtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, tt := range []struct {
		name string
		key  func(int) string
	}{
		{"one key", func(int) string { return "pk" }},
		{"100 keys", func(i int) string { return fmt.Sprint("pk", i) }},
	} {
		var endings [4]atomic.Int32
		var lost atomic.Int32
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				o := order(tt.name)
				o.PaymentKey = tt.key(i) + tt.name
				_, e, err := f.Reserve(t.Context(), o, lease)
				if err != nil {
					t.Error(err)
				}
				endings[e].Add(1)
				// Trap 32: the loser's own snapshot need not see the winner, a new statement does.
				if _, found, err := f.Find(t.Context(), o.PaymentKey, o.OrderID); !found || err != nil {
					lost.Add(1)
				}
			})
		}
		all.Wait()
		if a, n := endings[payment.Applied].Load(), endings[payment.NoRows].Load(); a != 1 || n != 99 || lost.Load() != 0 {
			t.Errorf("%s: %d applied, %d in the way, %d who saw nobody", tt.name, a, n, lost.Load())
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	f := setup(t)
	first := f.settle(settlement(f.reserved("a"), payment.Failed, payment.ByConfirm))
	o := order("a")
	o.PaymentKey = "pk_second"
	second, e, err := f.Reserve(t.Context(), o, lease)
	applied(t, second, e, err)
	second = f.settle(settlement(second, payment.Paid, payment.ByConfirm))
	o.PaymentKey, o.OrderID = "pk_third", "order_other"
	third, e, err := f.Reserve(t.Context(), o, lease)
	applied(t, third, e, err)
	for _, tt := range []struct {
		name       string
		key, order string
		want       int64
	}{
		{"by key", "pk_second", "", second.ID},
		{"by order, the holder and not the newest attempt", "pk_none", "order_a", second.ID},
		{"the key wins", "pk_a", "order_a", first.ID},
		{"the key wins over a holder", "pk_third", "order_a", third.ID},
		{"nothing", "pk_none", "order_none", 0},
		{"empty order", "pk_none", "", 0},
	} {
		p, found, err := f.Find(t.Context(), tt.key, tt.order)
		if p.ID != tt.want || found != (tt.want != 0) || err != nil {
			t.Errorf("%s: found %v %d, %v, want %d", tt.name, found, p.ID, err, tt.want)
		}
		var now payment.Payment
		var read bool
		for range 100 { // a loaded machine may need more than 50 ms
			if now, found, read = f.FindNow(t.Context(), tt.key, tt.order); read {
				break
			}
		}
		if now.ID != tt.want || found != (tt.want != 0) || !read {
			t.Errorf("%s at once: found %v %d, read %v, want %d", tt.name, found, now.ID, read, tt.want)
		}
	}
}

// TestTrap40_ByOrder is trap 40: the newest row of an order may be FAILED while an older one is PAID.
func TestTrap40_ByOrder(t *testing.T) {
	t.Parallel()
	f := setup(t)
	if _, found, err := f.ByOrder(t.Context(), "order_a"); found || err != nil {
		t.Fatalf("found %v, %v", found, err)
	}
	paid := f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	f.exec(`INSERT INTO payments (order_id, payment_key, amount, currency, status, holds_order, version, maybe_sent, leased,
		reserved_at, sends, created_at, updated_at) VALUES ('order_a', 'pk_newer', 1, 'KRW', 'FAILED', false, 2, true, false, now(), 1, now(), now())`)
	p, found, err := f.ByOrder(t.Context(), "order_a")
	if p.ID != paid.ID || !found || err != nil {
		t.Errorf("got %d %v, %v", p.ID, found, err)
	}
	all, err := f.Attempts(t.Context(), "order_a")
	if len(all) != 2 || all[0].ID != paid.ID || err != nil {
		t.Errorf("attempts %v, %v", all, err)
	}
	f.settle(settlement(f.reserved("b"), payment.Failed, payment.ByConfirm))
	if p, found, _ := f.ByOrder(t.Context(), "order_b"); !found || p.Status != payment.Failed {
		t.Errorf("without a holder: %v %s", found, p.Status)
	}
}

// TestFindNow: the refusing path never waits for a connection, and a slow read costs none.
func TestFindNow(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.RequestConns = 1 })
	f.reserved("a")
	pid := ask[int](f, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() LIMIT 1")
	conn, err := f.pool.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, found, read := f.FindNow(t.Context(), "pk_a", ""); found || read {
		t.Errorf("read %v without a free connection", read)
	}
	conn.release()
	f.exec("BEGIN; LOCK TABLE payments IN ACCESS EXCLUSIVE MODE")
	start := time.Now()
	if _, found, read := f.FindNow(t.Context(), "pk_a", ""); found || read {
		t.Errorf("read %v through a lock", read)
	}
	if took := time.Since(start); took < findNowWait || took > time.Minute {
		t.Errorf("waited %s", took)
	}
	f.exec("ROLLBACK")
	if _, found, err := f.Find(t.Context(), "pk_a", ""); !found || err != nil {
		t.Errorf("after it: %v, %v", found, err)
	}
	if !ask[bool](f, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", pid) {
		t.Error("the slow read cost its connection")
	}
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change string
		stale  bool
		want   payment.Ending
	}{
		{"free", "leased = false, due_at = now() + interval '5 s'", false, payment.Applied},
		{"lease over", "due_at = now() - interval '1 s'", false, payment.Applied},
		{"leased", "leased = true", false, payment.NoRows},
		{"another version", "leased = false", true, payment.NoRows},
		{"no longer pending", "leased = false, status = 'PAID'", false, payment.NoRows},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			p := f.reserved("a")
			f.exec("UPDATE payments SET " + tt.change)
			if tt.stale {
				f.exec("UPDATE payments SET version = version + 1")
			}
			q, e, err := f.TakeOver(t.Context(), p, lease)
			if e != tt.want || err != nil {
				t.Fatalf("%s, %v", e, err)
			}
			if e == payment.Applied && (q.Version != 2 || !q.Leased || !q.DueAt.Equal(q.ReadAt.Add(lease)) || q.Sends != 1) {
				t.Errorf("%+v", q)
			}
		})
	}
}

func TestReopen(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change string
		want   payment.Ending
	}{
		{"unavailable", "UPDATE payments SET failure_code = 'pg_unavailable'", payment.Applied},
		{"busy", "UPDATE payments SET failure_code = 'busy'", payment.Applied},
		{"misconfigured", "UPDATE payments SET failure_code = 'gateway_misconfigured', key_spent = true", payment.Applied},
		{"declined", "UPDATE payments SET failure_code = 'declined'", payment.NoRows},
		{"given back", "UPDATE payments SET failure_code = 'given_back'", payment.NoRows},
		{"maybe sent", "UPDATE payments SET maybe_sent = true", payment.NoRows},
		{"another version", "UPDATE payments SET version = version + 1", payment.NoRows},
		{"paid", "UPDATE payments SET status = 'PAID', holds_order = true", payment.NoRows},
		{"a cancel", "INSERT INTO cancels (id, payment_id, payment_key, amount, state, ours) SELECT 'c-1', id, payment_key, 1, 'open', true FROM payments", payment.NoRows},
		{"order held", `INSERT INTO payments (order_id, payment_key, amount, currency, status, holds_order, version, maybe_sent, leased, reserved_at, sends, created_at, updated_at)
			VALUES ('order_a', 'pk_other', 1, 'KRW', 'PAID', true, 1, true, false, now(), 1, now(), now())`, payment.NoRows},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			p := f.unsent(f.reserved("a"))
			if p.MaybeSent || p.HoldsOrder || !p.FirstSentAt.IsZero() || !p.LastSentAt.IsZero() {
				t.Fatalf("unsent: %+v", p)
			}
			f.exec(tt.change)
			q, e, err := f.Reopen(t.Context(), p, lease)
			if e != tt.want || err != nil {
				t.Fatalf("%s, %v", e, err)
			}
			if e == payment.NoRows {
				return
			}
			want := payment.Payment{
				ID: p.ID, OrderID: p.OrderID, PaymentKey: p.PaymentKey, Amount: p.Amount, Currency: p.Currency, Status: payment.Pending,
				MemberID: "m1", ReceiptEmail: "a@example.com", CreatedAt: p.CreatedAt, UpdatedAt: q.ReadAt, Version: 3, HoldsOrder: true,
				MaybeSent: true, Leased: true, DueAt: q.ReadAt.Add(lease), ReservedAt: q.ReadAt, FirstSentAt: q.ReadAt, LastSentAt: q.ReadAt,
				Sends: 2, ReadAt: q.ReadAt,
			}
			if diff := cmp.Diff(want, q); diff != "" {
				t.Errorf("payment (-want +got):\n%s", diff)
			}
			events, err := f.Events(t.Context(), p.ID)
			if err != nil || len(events) != 2 || events[1].From != payment.Failed || events[1].To != payment.Pending || events[1].Version != 3 {
				t.Errorf("events %+v, %v", events, err)
			}
		})
	}
}

func TestMarkTold(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.reserved("a")
	f.settle(settlement(f.reserved("b"), payment.Failed, payment.ByConfirm))
	for range 2 {
		for _, key := range []string{"pk_a", "pk_b", "pk_none"} {
			if err := f.MarkTold(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
	}
	if p := f.row("pk_a"); !p.Told || p.Version != 1 {
		t.Errorf("%+v", p)
	}
	// The failure was committed before the 202: it needs its notice now.
	if n := f.count("notices WHERE kind = 'payment.failed'"); n != 1 {
		t.Errorf("%d notices", n)
	}
}

// TestOneNoticePerFailure: whoever learns of the 202 first, one failure has one notice, and the next failure another.
func TestOneNoticePerFailure(t *testing.T) {
	t.Parallel()
	f := setup(t)
	st := settlement(f.reserved("a"), payment.Failed, payment.ByRecovery)
	st.NotSent, st.Action.Failure = true, &payment.Failure{Code: payment.FailBusy}
	f.settle(st)
	p, e, err := f.ClaimOne(t.Context(), "pk_a", lease)
	applied(t, p, e, err)
	if err := f.MarkTold(t.Context(), "pk_a"); err != nil {
		t.Fatal(err)
	}
	f.exec("UPDATE payments SET notices_missing = true")
	if _, err := f.SweepMissingNotices(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.noticed(); got != "payment.failed/3" {
		t.Errorf("notices %s", got)
	}
	p, e, err = f.Reopen(t.Context(), f.row("pk_a"), lease)
	applied(t, p, e, err)
	st = settlement(p, payment.Failed, payment.ByRecovery)
	st.Told = true
	f.settle(st)
	if got := f.noticed(); got != "payment.failed/3 payment.failed/5" {
		t.Errorf("after reopening: %s", got)
	}
}

// TestContract holds the store to what the use cases rely on, as their stand-in is.
func TestContract(t *testing.T) {
	t.Parallel()
	approvaltest.StoreContract(t, func(t *testing.T) approval.Store { return setup(t) })
}

var _ approvaltest.Probe = (*fixture)(nil)

// NoticesOf implements approvaltest.Probe.
func (f *fixture) NoticesOf(paymentKey string, kind payment.NoticeKind) int {
	return f.count("notices AS n JOIN payments AS p ON p.id = n.payment_id WHERE p.payment_key = $1 AND n.kind = $2", paymentKey, string(kind))
}

// DoneCancelsOf implements approvaltest.Probe.
func (f *fixture) DoneCancelsOf(paymentKey string) int {
	return f.count("cancels WHERE payment_key = $1 AND state = 'done'", paymentKey)
}
