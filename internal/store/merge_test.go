package store

import (
	stdcmp "cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/payment"
)

// script is a merger over slow stand-ins for statements, which records what was sent.
type script struct {
	*merger[int, int]
	mu   sync.Mutex
	sent [][]int
	// fail is the error of every merged statement.
	fail error
	// lasts is how long the statement of a call alone takes; slow where it says nothing.
	lasts map[int]time.Duration
}

const slow = time.Second

// watched is a pool that only counts.
func watched() *pool {
	return &pool{
		name: "request", took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "took"}),
		timeouts: prometheus.NewCounter(prometheus.CounterOpts{Name: "timeouts"}),
	}
}

func newScript(lanes int, fail error) *script {
	s := &script{fail: fail}
	send := func(ctx context.Context, calls ...int) error {
		s.mu.Lock()
		s.sent = append(s.sent, slices.Clone(calls))
		s.mu.Unlock()
		time.Sleep(stdcmp.Or(s.lasts[calls[0]], slow))
		return ctx.Err()
	}
	s.merger = &merger[int, int]{
		lanes: lanes, most: lanes, patience: 10 * slow, pool: watched(), key: func(q int) int { return q % 1000 },
		alone: func(ctx context.Context, q int) written {
			err := send(ctx, q)
			return written{payment: &payment.Payment{ID: int64(q)}, ending: endingOf(err), err: err}
		},
		together: func(ctx context.Context, calls []int) ([]written, error) {
			if err := send(ctx, calls...); err != nil || s.fail != nil {
				return nil, errors.Join(err, s.fail)
			}
			results := make([]written, len(calls))
			for i, q := range calls {
				results[i] = written{payment: &payment.Payment{ID: int64(q)}, ending: payment.Applied}
			}
			return results, nil
		},
	}
	return s
}

// call runs the calls one after the other's arrival and returns their results in the same order.
func (s *script) call(ctx context.Context, calls ...int) []written {
	out := make([]written, len(calls))
	var all sync.WaitGroup
	for i, q := range calls {
		all.Go(func() { out[i] = s.do(ctx, q) })
		synctest.Wait()
	}
	all.Wait()
	return out
}

func endings(all []written) string {
	var words []string
	for _, w := range all {
		words = append(words, w.ending.String())
	}
	return strings.Join(words, ", ")
}

func TestMergerSendsWhatWaitsTogether(t *testing.T) {
	t.Parallel()
	many := []int{0}
	for i := range 70 {
		many = append(many, 100-i)
	}
	sorted := func(from, to int) (row []int) {
		for i := from; i <= to; i++ {
			row = append(row, i)
		}
		return row
	}
	tests := []struct {
		name  string
		lanes int
		calls []int
		want  [][]int
	}{
		{"one call is its own statement", 1, []int{7}, [][]int{{7}}},
		{"free lanes are used first", 3, []int{3, 2, 1}, [][]int{{3}, {2}, {1}}},
		{"the rest goes with the next free lane, sorted", 1, []int{9, 5, 3, 4}, [][]int{{9}, {3, 4, 5}}},
		{"equal keys never share a statement", 1, []int{9, 5, 1005, 2005, 6}, [][]int{{9}, {5, 6}, {1005}, {2005}}},
		{"at most 64", 1, many, [][]int{{0}, sorted(37, 100), sorted(31, 36)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScript(tt.lanes, nil)
				for i, w := range s.call(t.Context(), tt.calls...) {
					if w.payment.ID != int64(tt.calls[i]) || w.ending != payment.Applied {
						t.Errorf("call %d got %d, %s, %v", tt.calls[i], w.payment.ID, w.ending, w.err)
					}
				}
				if diff := cmp.Diff(tt.want, s.sent); diff != "" {
					t.Errorf("statements (-want +got):\n%s", diff)
				}
				if s.busy != 0 || len(s.queue) != 0 {
					t.Errorf("%d lanes and %d calls left over", s.busy, len(s.queue))
				}
			})
		})
	}
}

func TestMergerFailures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		err  error
		want string
		sent [][]int
	}{
		{
			"refused: each row alone", &pgconn.PgError{Severity: "ERROR", Code: "23514"},
			"applied, applied, applied", [][]int{{9}, {1, 2}, {2}, {1}},
		},
		{"broken connection: never again", io.ErrUnexpectedEOF, "applied, maybe applied, maybe applied", [][]int{{9}, {1, 2}}},
		{
			"killed by the server: never again", &pgconn.PgError{Severity: "FATAL", Code: "57P01"},
			"applied, maybe applied, maybe applied", [][]int{{9}, {1, 2}},
		},
		{
			"no connection", &AcquireError{Pool: "request", Err: errBusy},
			"applied, not applied, not applied", [][]int{{9}, {1, 2}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScript(1, tt.err)
				got := s.call(t.Context(), 9, 2, 1)
				if endings(got) != tt.want {
					t.Errorf("endings %s, want %s", endings(got), tt.want)
				}
				sort := cmp.Transformer("sort", func(all [][]int) [][]int {
					return slices.SortedFunc(slices.Values(all[2:]), slices.Compare)
				})
				if diff := cmp.Diff(tt.sent, s.sent, sort); diff != "" {
					t.Errorf("statements (-want +got):\n%s", diff)
				}
				if s.busy != 0 {
					t.Errorf("%d lanes left over", s.busy)
				}
			})
		})
	}
}

func TestMergerPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript(1, nil)
		s.patience = slow / 2
		start := time.Now()
		got := s.call(t.Context(), 1, 2)
		if endings(got) != "applied, not applied" || !errors.Is(got[1].err, errBusy) {
			t.Errorf("endings %s, %v", endings(got), got[1].err)
		}
		if diff := cmp.Diff([][]int{{1}}, s.sent); diff != "" || time.Since(start) != slow {
			t.Errorf("after %s, statements (-want +got):\n%s", time.Since(start), diff)
		}
	})
}

// TestMergerHeldUp: statements that wait for something must not have all lanes, and the further ones are not kept.
func TestMergerHeldUp(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		most  int
		calls []int
		want  [][]int
		took  time.Duration
	}{
		{"one more lane", 3, []int{9, 6, 5}, [][]int{{9}, {5, 6}}, heldUp + slow},
		{"no more than there are", 1, []int{9, 6, 5}, [][]int{{9}, {5, 6}}, 2 * slow},
	}
	t.Run("a further lane is given back, and opened again", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript(1, nil)
			s.most, s.lasts = 2, map[int]time.Duration{9: 5 * slow, 1: slow + heldUp/2}
			start := time.Now()
			var took time.Duration
			var all sync.WaitGroup
			for _, q := range []int{9, 1, 1001} { // the last two never share a statement
				all.Go(func() {
					s.do(t.Context(), q)
					if q == 1001 {
						took = time.Since(start)
					}
				})
				synctest.Wait()
			}
			all.Wait()
			// The further lane ends between two ticks and is given back; at the next tick it is opened again.
			if want := slow + 2*heldUp + slow; took != want || s.busy != 0 {
				t.Errorf("the last one took %s, want %s; %d lanes left over", took, want, s.busy)
			}
		})
	})
	t.Run("a short patience", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := newScript(1, nil)
			s.most, s.patience, s.lasts = 2, heldUp, map[int]time.Duration{9: 5 * slow}
			if got := endings(s.call(t.Context(), 9, 1)); got != "applied, applied" {
				t.Error(got)
			}
		})
	})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScript(1, nil)
				s.most = tt.most
				start := time.Now()
				s.call(t.Context(), tt.calls...)
				if took := time.Since(start); took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				if diff := cmp.Diff(tt.want, s.sent); diff != "" {
					t.Errorf("statements (-want +got):\n%s", diff)
				}
				if s.busy != 0 || len(s.queue) != 0 {
					t.Errorf("%d lanes and %d calls left over", s.busy, len(s.queue))
				}
			})
		})
	}
}

// TestMergerStrict: what a strict merged statement did not meet is for the statement alone to say, but one that was never
// sent hides nothing.
func TestMergerStrict(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		alone written
		want  payment.Ending
	}{
		{"applied", written{ending: payment.Applied, payment: &payment.Payment{}}, payment.Applied},
		{"maybe applied", written{ending: payment.MaybeApplied, err: io.ErrUnexpectedEOF}, payment.MaybeApplied},
		{"not met either", written{ending: payment.NoRows}, payment.NoRows},
		{"never sent", written{ending: payment.NotApplied, err: &AcquireError{Err: errBusy}}, payment.NoRows},
		{"poisoned", written{ending: payment.NotApplied, err: &pgconn.PgError{Severity: "ERROR", Code: "23514"}}, payment.NotApplied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newScript(1, nil)
				s.strict = true
				alone := s.alone
				s.alone = func(ctx context.Context, q int) written {
					if w := alone(ctx, q); q == 9 {
						return w
					}
					return tt.alone
				}
				s.together = func(_ context.Context, calls []int) ([]written, error) { return noRows(len(calls)), nil }
				want := fmt.Sprintf("applied, %s, %s", tt.want, tt.want)
				if got := endings(s.call(t.Context(), 9, 1, 2)); got != want {
					t.Errorf("endings %s, want %s", got, want)
				}
			})
		})
	}
}

// TestMergedMeetsANotice: a merged settle does not look for notices; one that is there sends each row alone, and nothing stays
// with the courier of what was not written.
func TestMergedMeetsANotice(t *testing.T) {
	t.Parallel()
	f := setup(t, merged(1))
	d := &bag{lease: lease}
	f.HandNoticesTo(d)
	var moves []*move
	for _, name := range []string{"noticed", "plain"} {
		m := moveOf(settlement(f.reserved(name), payment.Paid, payment.ByConfirm))
		moves = append(moves, &m)
	}
	f.exec(`INSERT INTO notices (payment_id, kind, event, sequence) VALUES ($1, 'receipt', 'receipt', 9)`, moves[0].Payment.ID)
	_, err := f.settles.together(t.Context(), moves)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "23505" || severity(pg) != "ERROR" {
		t.Errorf("together: %v, want 23505", err)
	}
	if d.promised != 0 || len(d.notices) != 0 {
		t.Errorf("%d places kept, %d notices handed over", d.promised, len(d.notices))
	}
	for _, m := range moves {
		p, e, err := f.Settle(t.Context(), m.Settlement)
		applied(t, p, e, err)
	}
	if got := f.noticed(); got != "payment.paid/2 payment.paid/2 receipt/2 receipt/9" {
		t.Error(got)
	}
	// Of the first payment nothing is handed over: one of its notices has another id.
	if len(d.notices) != 2 || d.notices[0].Payment.OrderID != "order_plain" || d.promised != 0 {
		t.Errorf("handed over %+v, %d places kept", d.notices, d.promised)
	}
}

// TestMergerContext: the statement is for many; none of them may end it for the others.
func TestMergerContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript(1, nil)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(slow/2, cancel)
		got := s.call(ctx, 1, 2, 3)
		if endings(got) != "maybe applied, applied, applied" {
			t.Errorf("endings %s", endings(got))
		}
	})
}

func TestMergerPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScript(1, nil)
		s.together = func(context.Context, []int) ([]written, error) { panic("bug") }
		var panics atomic.Int32
		out := make([]written, 3)
		var all sync.WaitGroup
		for i := range out {
			all.Go(func() {
				defer func() {
					if recover() != nil {
						panics.Add(1)
					}
				}()
				out[i] = s.do(t.Context(), i)
			})
			synctest.Wait()
		}
		all.Wait()
		if endings(out) != "applied, maybe applied, maybe applied" || panics.Load() != 1 || s.busy != 0 {
			t.Errorf("endings %s, %d panics, %d busy", endings(out), panics.Load(), s.busy)
		}
	})
}

func merged(lanes int) func(*Options) {
	return func(o *Options) { o.Merge, o.RequestConns = true, 2*lanes }
}

// TestLockedRowHoldsUpItself: while one payment's settle waits for a lock, the others go past it.
func TestLockedRowHoldsUpItself(t *testing.T) {
	t.Parallel()
	f := setup(t, merged(2))
	locked, other := f.reserved("locked"), f.reserved("other")
	f.exec("BEGIN; SELECT FROM payments WHERE order_id = 'order_locked' FOR UPDATE")
	settled := make(chan payment.Ending, 1)
	go func() {
		_, e, _ := f.Settle(t.Context(), settlement(locked, payment.Paid, payment.ByConfirm))
		settled <- e
	}()
	for f.count("pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == 0 {
		time.Sleep(time.Millisecond)
	}
	f.settle(settlement(other, payment.Paid, payment.ByConfirm))
	select {
	case e := <-settled:
		t.Errorf("the locked one is %s: the test shows nothing", e)
	default:
	}
	f.exec("COMMIT")
	if e := <-settled; e != payment.Applied {
		t.Errorf("the locked one: %s", e)
	}
	if f.settles.busy != 0 {
		t.Errorf("%d lanes left over", f.settles.busy)
	}
}

// TestMergedEqualsAlone gives 64 callers the same hard rows with and without merging. One row that the server refuses
// sends a whole statement back, so a round without such rows shows what a merged statement itself does.
func TestMergedEqualsAlone(t *testing.T) {
	t.Parallel()
	for name, poison := range map[string]bool{"contended": false, "contended and poisoned": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compareMerged(t, poison)
		})
	}
}

func compareMerged(t *testing.T, poison bool) {
	t.Helper()
	var dumps [2]string
	for i, merge := range []bool{false, true} {
		f := setup(t, func(o *Options) { o.Merge, o.RequestConns = merge, 2 })
		var together atomic.Int64
		if merge {
			reserves, settles := f.reserves.together, f.settles.together
			f.reserves.together = func(ctx context.Context, all []reservation) ([]written, error) {
				together.Add(1)
				return reserves(ctx, all)
			}
			f.settles.together = func(ctx context.Context, all []*move) ([]written, error) {
				together.Add(1)
				return settles(ctx, all)
			}
		}
		dumps[i] = f.hardRows(poison)
		if merge && together.Load() < 2 {
			t.Error("nothing was merged: the test shows nothing")
		}
	}
	if diff := cmp.Diff(dumps[0], dumps[1]); diff != "" {
		t.Errorf("merged differs (-alone +merged):\n%s", diff)
	}
}

// hardRows reserves and settles with 64 callers at once, and tells how each group ended and what the tables hold.
func (f *fixture) hardRows(poison bool) string {
	f.t.Helper()
	// Whoever settles a payment called "bad" cannot write its notices.
	f.exec(`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF (SELECT payment_key LIKE '%bad%' FROM payments WHERE id = NEW.payment_id) THEN PERFORM 1/0; END IF; RETURN NEW; END $$`)
	f.exec(`CREATE TRIGGER poison BEFORE INSERT ON notices FOR EACH ROW EXECUTE FUNCTION poison()`)
	var mu sync.Mutex
	ended := map[string][]string{}
	note := func(group string, p payment.Payment, e payment.Ending, err error) {
		mu.Lock()
		defer mu.Unlock()
		code := ""
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			code = pg.Code
		}
		ended[group] = append(ended[group], fmt.Sprintf("%s %s v%d %s", e, code, p.Version, p.Status))
	}
	held := make([]payment.Payment, 0, 64)
	f.atOnce(64, func(i int) {
		o, group := order(fmt.Sprintf("plain%d", i)), "plain"
		switch {
		case i < 8: // one order, several keys
			o.OrderID, group = "order_contended", "contended"
		case i < 16: // one payment, several calls
			o, group = order("twice"), "twice"
		case i < 20: // one key, several orders
			o.PaymentKey, group = "pk_shared", "shared"
		case i < 24 && poison:
			o.Amount, group = 0, "refused"
		case i < 28 && poison:
			o, group = order(fmt.Sprintf("bad%d", i)), "poisoned"
		}
		p, e, err := f.Reserve(f.t.Context(), o, lease)
		note("reserve "+group, p, e, err)
		if e == payment.Applied {
			mu.Lock()
			held = append(held, p)
			mu.Unlock()
		}
		if e == payment.Applied && (p.PaymentKey != o.PaymentKey || p.OrderID != o.OrderID || p.Amount != o.Amount) {
			f.t.Errorf("reserved %s of %s for %s of %s", p.PaymentKey, p.OrderID, o.PaymentKey, o.OrderID)
		}
		f.isRow(p, e)
	})
	// Somebody has moved, told of or released these rows since their holders read them: news of an approval counts all the same.
	f.exec(`UPDATE payments SET version = version + 1, looks = 1, method = 'x' WHERE order_id IN ('order_plain60', 'order_plain61')`)
	f.exec(`UPDATE payments SET leased = false, key_spent = true WHERE order_id = 'order_plain62'`)
	f.exec(`UPDATE payments SET told = true WHERE order_id = 'order_plain63'`)
	gone := f.reserved("gone")
	f.settle(settlement(gone, payment.Failed, payment.ByConfirm))
	f.atOnce(len(held)+8, func(i int) {
		p, group := gone, "contradicted"
		switch {
		case i < len(held):
			p, group = held[i], "settle"
			if strings.Contains(p.PaymentKey, "bad") {
				group = "settle poisoned"
			}
		case i < len(held)+4: // again, in the same moment
			p, group = held[0], "settle"
		}
		st := settlement(p, payment.Paid, payment.ByConfirm)
		st.Action.Reason = "approved " + p.PaymentKey
		if i%3 == 0 { // PostgreSQL keeps neither
			st.Observation.Method, st.Observation.ReceiptURL = "카드\x00", "https://receipt\xff"
		}
		q, e, err := f.Settle(f.t.Context(), st)
		note(group, q, e, err)
		if e == payment.Applied && q.PaymentKey != p.PaymentKey {
			f.t.Errorf("settled %s for %s", q.PaymentKey, p.PaymentKey)
		}
		f.isRow(q, e)
	})
	var out strings.Builder
	for _, group := range slices.Sorted(maps.Keys(ended)) {
		slices.Sort(ended[group])
		fmt.Fprintf(&out, "%s: %s\n", group, strings.Join(ended[group], "; "))
	}
	// Which of the contenders wins is chance; how many is not.
	for _, sql := range []string{
		`SELECT string_agg(row::text, E'\n' ORDER BY row) FROM (SELECT status, version, holds_order, maybe_sent, leased, method,
			approved_at = created_at IS NULL, notices_missing, count(*) FROM payments GROUP BY 1, 2, 3, 4, 5, 6, 7, 8) AS row`,
		`SELECT string_agg(row::text, E'\n' ORDER BY row) FROM (SELECT e.version, from_status, to_status, actor,
			reason = 'approved ' || p.payment_key, evidence->>'sighting', evidence->>'paymentKey' = p.payment_key, count(*)
			FROM payment_events AS e JOIN payments AS p ON p.id = e.payment_id GROUP BY 1, 2, 3, 4, 5, 6, 7) AS row`,
		`SELECT string_agg(row::text, E'\n' ORDER BY row) FROM (SELECT kind, event, sequence, count(*) FROM notices GROUP BY 1, 2, 3) AS row`,
	} {
		fmt.Fprintln(&out, ask[string](f, sql))
	}
	return out.String()
}

// isRow reports where a payment that was returned as applied is not the row.
func (f *fixture) isRow(p payment.Payment, e payment.Ending) {
	f.t.Helper()
	if e != payment.Applied {
		return
	}
	row, found, err := f.Find(f.t.Context(), p.PaymentKey, "")
	p.ReadAt = row.ReadAt
	if diff := cmp.Diff(row, p); diff != "" || !found {
		f.t.Errorf("found %t, %v; returned (-row +got):\n%s", found, err, diff)
	}
}

// atOnce starts n callers together.
func (f *fixture) atOnce(n int, do func(i int)) {
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		all.Go(func() { <-begin; do(i) })
	}
	close(begin)
	all.Wait()
}

// TestMergedConnectionKilled: what a killed connection leaves unknown is unknown for every row of the statement, and
// none is sent again.
func TestMergedConnectionKilled(t *testing.T) {
	t.Parallel()
	f := setup(t, merged(1))
	payments := make([]payment.Payment, 4)
	for i := range payments {
		payments[i] = f.reserved(fmt.Sprint(i))
	}
	var statements atomic.Int64
	settles := f.settles.together
	f.settles.together = func(ctx context.Context, all []*move) ([]written, error) {
		statements.Add(1)
		return settles(ctx, all)
	}
	first, second := f.locks(payments[0]), f.locks(payments[1])
	var all sync.WaitGroup
	endings := make([]payment.Ending, len(payments))
	settle := func(i int) {
		_, endings[i], _ = f.Settle(t.Context(), settlement(payments[i], payment.Paid, payment.ByConfirm))
	}
	all.Go(func() { settle(0) })
	f.waitFor("the first to hold the lane", func() bool { return f.lockWaits() == 1 })
	for i := 1; i < len(payments); i++ {
		all.Go(func() { settle(i) })
	}
	f.waitFor("the others to queue", func() bool {
		f.settles.mu.Lock()
		defer f.settles.mu.Unlock()
		return len(f.settles.queue) == 3
	})
	first()
	f.waitFor("the merged statement to block", func() bool { return statements.Load() == 1 && f.lockWaits() == 1 })
	f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	all.Wait()
	second()
	want := []payment.Ending{payment.Applied, payment.MaybeApplied, payment.MaybeApplied, payment.MaybeApplied}
	if diff := cmp.Diff(want, endings); diff != "" {
		t.Errorf("endings (-want +got):\n%s", diff)
	}
	if n := f.count("payments WHERE status = 'PAID'"); n != 1 || statements.Load() != 1 {
		t.Errorf("%d paid, %d merged statements", n, statements.Load())
	}
}

// locks holds the row until the returned function is called.
func (f *fixture) locks(p payment.Payment) (unlock func()) {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.db.DSN)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close(context.Background()) })
	for _, sql := range []string{"BEGIN", fmt.Sprintf("SELECT FROM payments WHERE id = %d FOR UPDATE", p.ID)} {
		if _, err := conn.Exec(f.t.Context(), sql); err != nil {
			f.t.Fatal(err)
		}
	}
	return func() {
		if _, err := conn.Exec(context.Background(), "ROLLBACK"); err != nil {
			f.t.Error(err)
		}
	}
}

func (f *fixture) lockWaits() int {
	return f.count("pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

func (f *fixture) waitFor(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatal("waited in vain for " + what)
		}
	}
}
