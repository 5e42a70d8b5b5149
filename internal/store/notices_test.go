package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
)

const nobody = "00000000-0000-4000-8000-000000000000"

func (f *fixture) claimAll() map[payment.NoticeKind]payment.Notice {
	f.t.Helper()
	list, err := f.ClaimNotices(f.t.Context(), 100, lease)
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[payment.NoticeKind]payment.Notice{}
	for _, n := range list {
		out[n.Kind] = n
	}
	return out
}

func (f *fixture) end(n payment.Notice, state payment.NoticeState, why string) {
	f.t.Helper()
	if err := f.FinishNotices(f.t.Context(), []payment.NoticeTry{{Notice: n, Result: payment.NoticeResult{State: state, RetryIn: time.Hour, Error: why}}}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) list(filter NoticeFilter) (out []string) {
	f.t.Helper()
	if filter.Limit == 0 {
		filter.Limit = 100
	}
	rows, err := f.ListNotices(f.t.Context(), filter)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, n := range rows {
		out = append(out, fmt.Sprintf("%s %s %s %d %s", n.OrderID, n.Kind, n.State, n.Attempts, n.LastError))
	}
	return out
}

func (f *fixture) replay(r Replay) []Replayed {
	f.t.Helper()
	list, err := f.ReplayNotices(f.t.Context(), r)
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

// openIncidents counts the open incidents dead_notice.
func (f *fixture) openIncidents() int {
	return f.count("incidents WHERE kind = 'dead_notice' AND resolved_at IS NULL")
}

// TestTrap21_DeliveredStaysDelivered: neither a worker that comes late, nor a replay, nor the next claim sends again what
// was delivered; and what failed the first time is not taken for done.
func TestTrap21_DeliveredStaysDelivered(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	late := f.claimAll()
	f.exec("UPDATE notices SET due_at = now() - interval '1 s'")
	second := f.claimAll()
	f.end(second[payment.NoticePaid], payment.NoticeDelivered, "")
	f.end(second[payment.NoticeReceipt], payment.NoticeQueued, "451")
	for _, state := range []payment.NoticeState{payment.NoticeQueued, payment.NoticeDead} {
		if err := f.FinishNotices(t.Context(), []payment.NoticeTry{{Notice: late[payment.NoticePaid], Result: payment.NoticeResult{State: state}}}); err == nil || !strings.Contains(err.Error(), ErrNoticeLost.Error()) {
			t.Errorf("a late %s: %v", state, err)
		}
	}
	id := second[payment.NoticePaid].ID
	if diff := cmp.Diff([]Replayed{{ID: id, Was: payment.NoticeDelivered}}, f.replay(Replay{IDs: []string{id}})); diff != "" {
		t.Errorf("replay of a delivered one (-want +got):\n%s", diff)
	}
	f.exec("UPDATE notices SET due_at = now() WHERE due_at IS NOT NULL")
	third := f.claimAll()
	if _, again := third[payment.NoticePaid]; again || third[payment.NoticeReceipt].Attempts != 3 {
		t.Errorf("claimed %+v, want the receipt alone", third)
	}
}

// TestNoticesClaimedOnce: workers of several instances share the due notices, each claimed by one, while others are
// finished, put off and come due again beside them.
func TestNoticesClaimedOnce(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	f.exec(`INSERT INTO notices (payment_id, kind, event, sequence)
		SELECT p.id, 'receipt', 'copy-' || i, 1 FROM payments AS p, generate_series(1, 150) AS i`)
	f.exec("DELETE FROM notices WHERE event NOT LIKE 'copy-%'")
	var mu sync.Mutex
	claimed, due := map[string]bool{}, map[string]bool{} // by id; due are those put back, until they are claimed again
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for {
				list, err := f.ClaimNotices(t.Context(), 7, lease)
				if err != nil {
					t.Error(err)
				}
				if len(list) == 0 {
					return
				}
				var tries []payment.NoticeTry
				mu.Lock()
				for i, n := range list {
					if claimed[n.ID] && !due[n.ID] {
						t.Errorf("notice %s was claimed again at attempt %d, though nobody had put it back", n.ID, n.Attempts)
					}
					claimed[n.ID], due[n.ID] = true, false
					r := payment.NoticeResult{State: payment.NoticeDelivered}
					if n.Attempts == 1 && (i+w)%3 == 0 {
						r, due[n.ID] = payment.NoticeResult{State: payment.NoticeQueued}, true // due again at once
					}
					tries = append(tries, payment.NoticeTry{Notice: n, Result: r})
				}
				mu.Unlock()
				if err := f.FinishNotices(t.Context(), tries); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	if n := f.count("notices WHERE state = 'delivered'"); n != 150 || len(claimed) != 150 {
		t.Errorf("%d delivered, %d claimed, want 150", n, len(claimed))
	}
}

// TestNoticesFinishedTogether: each keeps its own result, one that was lost holds up none, and the two that die with one
// payment are one incident.
func TestNoticesFinishedTogether(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var tries []payment.NoticeTry
	results := map[string]payment.NoticeResult{
		"order_a payment.paid": {State: payment.NoticeDelivered},
		"order_a receipt":      {State: payment.NoticeQueued, RetryIn: time.Hour, Error: "451"},
		"order_b payment.paid": {State: payment.NoticeDead, Error: "410"},
		"order_b receipt":      {State: payment.NoticeDead, Error: "550"},
		"order_c payment.paid": {State: payment.NoticeSuperseded},
		"order_c receipt":      {State: payment.NoticeDelivered},
	}
	for _, name := range []string{"a", "b", "c"} {
		f.settle(settlement(f.reserved(name), payment.Paid, payment.ByConfirm))
		for kind, n := range f.claimAll() {
			if name == "c" && kind == payment.NoticeReceipt {
				n.Fence--
			}
			tries = append(tries, payment.NoticeTry{Notice: n, Result: results[n.Payment.OrderID+" "+string(kind)]})
		}
	}
	if err := f.FinishNotices(t.Context(), tries); !errors.Is(err, ErrNoticeLost) {
		t.Errorf("with one lost: %v", err)
	}
	want := []string{
		"order_a payment.paid delivered 1 ", "order_a receipt queued 1 451", "order_b payment.paid dead 1 410",
		"order_b receipt dead 1 550", "order_c payment.paid superseded 1 ", "order_c receipt queued 1 ",
	}
	got := f.list(NoticeFilter{})
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
	if n := f.count("notices WHERE state = 'queued' AND last_error = '451' AND due_at BETWEEN now() + interval '59 min' AND now() + interval '60 min'"); n != 1 {
		t.Error("the one to be tried again is not due in an hour")
	}
	if n := f.count("incidents WHERE kind = 'dead_notice' AND order_id = 'order_b'"); n != 1 || f.openIncidents() != 1 {
		t.Errorf("%d incidents of the payment, %d open", n, f.openIncidents())
	}
	if err := f.FinishNotices(t.Context(), nil); err != nil {
		t.Errorf("nothing to finish: %v", err)
	}
}

func TestListNotices(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, name := range []string{"a", "b"} {
		f.settle(settlement(f.reserved(name), payment.Paid, payment.ByConfirm))
	}
	f.exec("UPDATE notices SET state = 'dead', due_at = NULL, last_error = 'HTTP 500', attempts = 57, created_at = now() - interval '30 h' WHERE kind = 'receipt'")
	f.exec("UPDATE notices SET state = 'delivered', due_at = NULL, delivered_at = now() FROM payments AS p WHERE p.id = payment_id AND p.order_id = 'order_a' AND kind = 'payment.paid'")
	const deadA, deadB = "order_a receipt dead 57 HTTP 500", "order_b receipt dead 57 HTTP 500"
	const deliveredA, queuedB = "order_a payment.paid delivered 0 ", "order_b payment.paid queued 0 "
	for _, tt := range []struct {
		name   string
		filter NoticeFilter
		want   []string
	}{
		{"dead, newest payment first", NoticeFilter{State: payment.NoticeDead}, []string{deadB, deadA}},
		{"queued", NoticeFilter{State: payment.NoticeQueued}, []string{queuedB}},
		{"of a kind", NoticeFilter{Kind: payment.NoticePaid}, []string{queuedB, deliveredA}},
		{"of an order", NoticeFilter{Order: "order_a", Kind: payment.NoticeReceipt}, []string{deadA}},
		{"of a day", NoticeFilter{Since: 24 * time.Hour}, []string{queuedB, deliveredA}},
		{"of an unknown order", NoticeFilter{Order: "order_x"}, nil},
		{"superseded", NoticeFilter{State: payment.NoticeSuperseded}, nil},
		{"the first", NoticeFilter{State: payment.NoticeDead, Limit: 1}, []string{deadB}},
	} {
		if diff := cmp.Diff(tt.want, f.list(tt.filter)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	var pages int
	for after := (NoticeRow{}); ; pages++ {
		page, err := f.ListNotices(t.Context(), NoticeFilter{Limit: 1, After: after})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		after = page[0]
		if pages > 4 {
			t.Fatal("the pages do not end")
		}
	}
	if pages != 4 {
		t.Errorf("%d pages of one, want 4", pages)
	}
}

func TestReplayNotices(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, name := range []string{"a", "b"} {
		f.settle(settlement(f.reserved(name), payment.Paid, payment.ByConfirm))
	}
	list, err := f.ClaimNotices(t.Context(), 100, lease)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, n := range list {
		f.end(n, payment.NoticeDead, "410")
		ids[n.Payment.OrderID+" "+string(n.Kind)] = n.ID
	}
	f.exec("UPDATE notices SET attempts = 57, created_at = now() - interval '30 h'")
	paidA, receiptA := ids["order_a payment.paid"], ids["order_a receipt"]
	if n := f.openIncidents(); n != 2 {
		t.Fatalf("%d incidents, want one per payment", n)
	}

	dry := f.replay(Replay{IDs: []string{paidA, nobody}, DryRun: true, By: "kim"})
	if diff := cmp.Diff([]Replayed{{ID: paidA, Was: payment.NoticeDead, Done: true}}, dry); diff != "" {
		t.Errorf("dry run (-want +got):\n%s", diff)
	}
	if n := f.count("notices WHERE state = 'dead'"); n != 4 {
		t.Errorf("a dry run left %d dead of 4", n)
	}

	f.replay(Replay{IDs: []string{paidA}, By: "kim"})
	if n := f.openIncidents(); n != 2 {
		t.Errorf("%d incidents; the other notice of the payment is still dead", n)
	}
	f.replay(Replay{IDs: []string{receiptA}, By: "kim"})
	if n := f.openIncidents(); n != 1 {
		t.Errorf("%d open incidents, want the other payment's", n)
	}
	if n := f.count("incidents WHERE order_id = 'order_a' AND resolved_by = 'kim' AND action = '' AND note = 'replayed' AND resolved_at IS NOT NULL"); n != 1 {
		t.Errorf("%d closed as asked", n)
	}

	claimed := f.claimAll()
	n := claimed[payment.NoticePaid]
	if len(claimed) != 2 || n.ID != paidA || n.Attempts != 1 {
		t.Fatalf("claimed %+v", claimed)
	}
	if age := n.Age(); age > time.Minute || n.Now.Sub(n.CreatedAt) < 30*time.Hour {
		t.Errorf("age %v, created %v before: want a new life and the old time of the event", age, n.Now.Sub(n.CreatedAt))
	}
	if got := f.replay(Replay{IDs: []string{paidA}, Again: true}); got[0].Done {
		t.Errorf("replayed what is in a worker's hands: %+v", got)
	}
	f.end(n, payment.NoticeDelivered, "")
	f.end(claimed[payment.NoticeReceipt], payment.NoticeSuperseded, "")
	if got := f.replay(Replay{IDs: []string{paidA, receiptA}, Again: true}); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	again := f.claimAll()
	if len(again) != 1 || again[payment.NoticePaid].ID != paidA {
		t.Errorf("claimed %+v, want the delivered one once more and the superseded one never", again)
	}
	// Dead a second time: a new incident, the closed one stays.
	f.end(again[payment.NoticePaid], payment.NoticeDead, "410")
	if n := f.count("incidents WHERE order_id = 'order_a' AND kind = 'dead_notice'"); n != 2 || f.openIncidents() != 2 {
		t.Errorf("%d incidents of the order, %d open", n, f.openIncidents())
	}
}

// TestReplayRacesDeath: one notice of a payment is replayed while the other dies and has not committed yet. The replay waits,
// sees the dead one, and leaves the incident open.
func TestReplayRacesDeath(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	claimed := f.claimAll()
	f.end(claimed[payment.NoticePaid], payment.NoticeDead, "410")
	dying, err := pgx.Connect(t.Context(), f.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dying.Close(context.Background()) })
	tx, err := dying.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	receipt := claimed[payment.NoticeReceipt]
	if _, err := tx.Exec(t.Context(), finishNoticesSQL, []string{receipt.ID}, []int64{receipt.Fence}, []string{"dead"}, []int64{0}, []string{"550"}); err != nil {
		t.Fatal(err)
	}
	replayed := make(chan error, 1)
	go func() {
		_, err := f.ReplayNotices(t.Context(), Replay{IDs: []string{claimed[payment.NoticePaid].ID}, By: "kim"})
		replayed <- err
	}()
	for f.count("pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == 0 && len(replayed) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-replayed; err != nil {
		t.Fatal(err)
	}
	if n := f.openIncidents(); n != 1 || f.count("notices WHERE state = 'dead'") != 1 {
		t.Errorf("%d open incidents for the notice that is dead", n)
	}
}

// TestReplayBesideDeaths: a batch that kills a notice of each of two payments, and a replay of their other ones, both
// wait for the first open incident, and neither for the other.
func TestReplayBesideDeaths(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var dead []string
	var dying []payment.NoticeTry
	for _, name := range []string{"z", "a"} { // the ids of the incidents rise as the keys fall
		f.settle(settlement(f.reserved(name), payment.Paid, payment.ByConfirm))
		claimed := f.claimAll()
		f.end(claimed[payment.NoticePaid], payment.NoticeDead, "410")
		dead = append(dead, claimed[payment.NoticePaid].ID)
		dying = append(dying, payment.NoticeTry{Notice: claimed[payment.NoticeReceipt], Result: payment.NoticeResult{State: payment.NoticeDead}})
	}
	other, err := pgx.Connect(t.Context(), f.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close(context.Background()) })
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM incidents WHERE payment_key = 'pk_a' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 2)
	waiting := func(n int) {
		for f.count("pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") < n && len(ended) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	go func() { ended <- f.FinishNotices(t.Context(), dying) }()
	waiting(1)
	go func() {
		_, err := f.ReplayNotices(t.Context(), Replay{IDs: dead, By: "kim"})
		ended <- err
	}()
	waiting(2)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// bag is a courier that keeps what it is handed.
type bag struct {
	lease time.Duration

	mu             sync.Mutex
	promised, most int
	notices        []payment.Notice
	since          time.Time
}

func (d *bag) KeepRoom(n int) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lease > 0 {
		d.promised += n
		d.most += n
	}
	return d.lease
}

func (d *bag) Hand(n int, since time.Time, notices []payment.Notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.promised -= n
	d.since = since
	d.notices = append(d.notices, notices...)
}

// TestHandover: a courier gets just the notices that were written, each with what is needed to end it, and nobody else
// claims them before their lease is over.
func TestHandover(t *testing.T) {
	t.Parallel()
	for _, merge := range []bool{false, true} {
		t.Run(fmt.Sprint("merge ", merge), func(t *testing.T) {
			t.Parallel()
			f := setup(t, func(o *Options) { o.Merge, o.RequestConns = merge, 2 })
			d := &bag{lease: lease}
			f.HandNoticesTo(d)
			const payments = 40
			var callers sync.WaitGroup
			for i := range payments {
				p := f.reserved(fmt.Sprint(i))
				for range 2 { // the second of them meets a row that is PAID
					callers.Go(func() {
						if _, e, err := f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm)); err != nil || e == payment.NotApplied {
							t.Errorf("%s: %s, %v", p.OrderID, e, err)
						}
					})
				}
			}
			callers.Wait()
			// What a merged statement does not meet asks for room once more, alone.
			if d.promised != 0 || len(d.notices) != 2*payments || d.most < 4*payments || d.most > 4*payments && !merge || d.most > 6*payments {
				t.Fatalf("%d places still kept, %d notices of %d handed over", d.promised, len(d.notices), d.most)
			}
			if n := f.count("notices WHERE attempts = 1 AND due_at BETWEEN now() + interval '50 s' AND now() + interval '1 min'"); n != 2*payments {
				t.Errorf("%d notices have the lease", n)
			}
			if list := f.claimAll(); len(list) != 0 {
				t.Errorf("%d claimed by another", len(list))
			}
			half := d.notices[:payments]
			tries := make([]payment.NoticeTry, 0, payments)
			for _, n := range half {
				tries = append(tries, payment.NoticeTry{Notice: n, Result: payment.NoticeResult{State: payment.NoticeDelivered}})
			}
			if err := f.FinishNotices(t.Context(), tries); err != nil {
				t.Error(err)
			}
			if n := f.count("notices WHERE state = 'delivered'"); n != payments {
				t.Errorf("%d delivered, want %d", n, payments)
			}
			// The process dies with the rest.
			f.exec("UPDATE notices SET due_at = now() WHERE due_at IS NOT NULL")
			rest := map[string]payment.Notice{}
			for range 2 {
				list, err := f.ClaimNotices(t.Context(), 100, lease)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range list {
					rest[n.ID] = n
				}
			}
			for _, n := range d.notices[payments:] {
				got := rest[n.ID]
				if got.Kind != n.Kind || got.Sequence != n.Sequence || got.Attempts != 2 || got.Payment.OrderID != n.Payment.OrderID || !got.CreatedAt.Equal(n.CreatedAt) {
					t.Errorf("handed over %+v, claimed later %+v", n, got)
				}
			}
			if len(rest) != payments {
				t.Errorf("%d claimed after the lease, want %d", len(rest), payments)
			}
		})
	}
}

// TestHandoverRefused: without room the notices are due at once, and a settle that fails keeps no room.
func TestHandoverRefused(t *testing.T) {
	t.Parallel()
	f := setup(t)
	d := &bag{}
	f.HandNoticesTo(d)
	f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	if list := f.claimAll(); len(list) != 2 || list[payment.NoticePaid].Attempts != 1 || len(d.notices) != 0 {
		t.Errorf("claimed %+v, handed over %+v", list, d.notices)
	}
	d.lease = lease
	f.exec("ALTER TABLE notices RENAME TO away")
	f.settle(settlement(f.reserved("b"), payment.Paid, payment.ByConfirm)) // without its notices
	if d.promised != 0 || len(d.notices) != 0 {
		t.Errorf("%d places kept, handed over %+v", d.promised, d.notices)
	}
}

// TestHandoverSince: the lease counts from before the statement, also for a settle that has to wait in it.
func TestHandoverSince(t *testing.T) {
	t.Parallel()
	f := setup(t)
	d := &bag{lease: lease}
	f.HandNoticesTo(d)
	p := f.reserved("a")
	f.exec("BEGIN; SELECT FROM payments FOR UPDATE")
	settled := make(chan error, 1)
	go func() {
		_, _, err := f.Settle(t.Context(), settlement(p, payment.Paid, payment.ByConfirm))
		settled <- err
	}()
	for f.count("pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == 0 {
		time.Sleep(time.Millisecond)
	}
	waiting := time.Now()
	f.exec("COMMIT")
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if !d.since.Before(waiting) || len(d.notices) != 2 {
		t.Errorf("%d notices since %s, and the settle waited at %s", len(d.notices), d.since, waiting)
	}
}
