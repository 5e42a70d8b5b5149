package store

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

func TestClaimDue(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.reserved("leased")
	f.inState("later", payment.Pending)
	f.inState("paid", payment.Paid)
	for i, tt := range []struct {
		name  string
		state payment.Status
	}{{"c", payment.Pending}, {"b", payment.Paid}, {"a", payment.Failed}} {
		p := f.inState(tt.name, tt.state)
		f.exec("UPDATE payments SET due_at = now() - interval '1 s' * $2 WHERE id = $1", p.ID, 10*(i+1))
	}
	f.exec("UPDATE payments SET due_at = now() - interval '1 ms', leased = true WHERE payment_key = 'pk_c'") // a dead holder
	var got []string
	for {
		list, err := f.ClaimDue(t.Context(), 2, lease)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		for _, p := range list {
			got = append(got, p.PaymentKey)
			if !p.Leased || p.Version != 2 || p.Looks != 1 || !p.DueAt.Equal(p.ReadAt.Add(lease)) {
				t.Errorf("%+v", p)
			}
		}
	}
	if strings.Join(got, " ") != "pk_a pk_b pk_c" && strings.Join(got, " ") != "pk_b pk_a pk_c" {
		t.Errorf("claimed %v", got)
	}
}

// TestHolderDied: whoever follows on a holder that died takes it that a caller was answered 202.
func TestHolderDied(t *testing.T) {
	t.Parallel()
	f := setup(t)
	take := map[string]func(payment.Payment) (payment.Payment, payment.Ending, error){
		"due": func(payment.Payment) (payment.Payment, payment.Ending, error) {
			list, err := f.ClaimDue(t.Context(), 1, lease)
			if err != nil || len(list) != 1 {
				return payment.Payment{}, payment.NoRows, err
			}
			return list[0], payment.Applied, nil
		},
		"one": func(p payment.Payment) (payment.Payment, payment.Ending, error) {
			return f.ClaimOne(t.Context(), p.PaymentKey, lease)
		},
		"over": func(p payment.Payment) (payment.Payment, payment.Ending, error) {
			return f.TakeOver(t.Context(), p, lease)
		},
	}
	for _, how := range []string{"due", "one", "over"} {
		for _, tt := range []struct {
			name, row string
			status    payment.Status
			want      bool
		}{
			{"dead holder", "leased = true", payment.Pending, true},
			{"given back", "leased = false", payment.Pending, false},
			{"dead holder of a failure", "leased = true", payment.Failed, false},
		} {
			if how == "over" && tt.status != payment.Pending {
				continue
			}
			p := f.inState(how+" "+tt.name, tt.status)
			f.exec("UPDATE payments SET told = false, due_at = now() - interval '1 s', "+tt.row+" WHERE id = $1", p.ID)
			q, ending, err := take[how](f.row(p.PaymentKey))
			if q = applied(t, q, ending, err); q.ID != p.ID || q.Told != tt.want {
				t.Errorf("%s: %s: told %v, want %v", how, tt.name, q.Told, tt.want)
			}
		}
	}
}

func TestClaimDueByMany(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i := range 60 {
		f.reserved(fmt.Sprint(i))
	}
	f.exec("UPDATE payments SET due_at = now()")
	var mu sync.Mutex
	seen := map[int64]int{}
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for {
				list, err := f.ClaimDue(t.Context(), 7, lease)
				if err != nil {
					t.Error(err)
				}
				if len(list) == 0 {
					return
				}
				mu.Lock()
				for _, p := range list {
					seen[p.ID]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("payment %d was claimed %d times", id, n)
		}
	}
	// A worker that meets nothing but locked rows may stop early; what it left is due for the next.
	if rest, err := f.ClaimDue(t.Context(), 100, lease); err != nil || len(seen)+len(rest) != 60 {
		t.Errorf("%d and %d claimed, %v", len(seen), len(rest), err)
	}
}

func TestClaimOne(t *testing.T) {
	t.Parallel()
	f := setup(t)
	p := f.reserved("a")
	if _, e, err := f.ClaimOne(t.Context(), "pk_a", lease); e != payment.NoRows || err != nil {
		t.Errorf("leased: %s, %v", e, err)
	}
	if _, e, err := f.ClaimOne(t.Context(), "pk_none", lease); e != payment.NoRows || err != nil {
		t.Errorf("none: %s, %v", e, err)
	}
	f.exec("UPDATE payments SET due_at = now() - interval '1 s'")
	q, e, err := f.ClaimOne(t.Context(), "pk_a", lease)
	if applied(t, q, e, err); !q.Leased || q.Version != 2 || q.ID != p.ID {
		t.Errorf("lease over: %+v", q)
	}
	if q.WasDue.IsZero() || q.WasDue.After(q.ReadAt) {
		t.Errorf("was due at %s", q.WasDue)
	}
	by := q.ReadAt.Add(3 * time.Second)
	if e, err := f.Release(t.Context(), approval.Release{Payment: q, DueIn: time.Minute, DueBy: by}); e != payment.Applied || !f.row("pk_a").DueAt.Equal(by) {
		t.Errorf("given back: %s, %v, due %s", e, err, f.row("pk_a").DueAt)
	}
	// A finished row keeps its second look.
	paid := f.settle(settlement(f.reserved("b"), payment.Paid, payment.ByRecovery))
	q, e, err = f.ClaimOne(t.Context(), "pk_b", lease)
	if applied(t, q, e, err); q.Leased || !q.DueAt.Equal(paid.DueAt) || q.Version != paid.Version+1 {
		t.Errorf("second look: %+v", q)
	}
	f.settle(settlement(f.reserved("c"), payment.Paid, payment.ByConfirm))
	q, e, err = f.ClaimOne(t.Context(), "pk_c", lease)
	if applied(t, q, e, err); q.Leased || !q.DueAt.IsZero() {
		t.Errorf("nothing due: %+v", q)
	}
}

func TestListUnfinished(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for i, s := range []payment.Status{payment.Pending, payment.Paid, payment.AwaitingDeposit, payment.Failed, payment.Pending, payment.Pending} {
		f.inState(fmt.Sprint(i), s)
	}
	f.exec("UPDATE payments SET reserved_at = now() - interval '1 h' WHERE payment_key <> 'pk_5'")
	var got []string
	for after := int64(0); ; {
		page, err := f.ListUnfinished(t.Context(), time.Minute, 2, after)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, p := range page {
			got, after = append(got, p.PaymentKey), p.ID
		}
	}
	if diff := cmp.Diff([]string{"pk_0", "pk_2", "pk_4"}, got); diff != "" {
		t.Errorf("unfinished (-want +got):\n%s", diff)
	}
}

func TestNotices(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.settle(settlement(f.reserved("a"), payment.Paid, payment.ByConfirm))
	claim := func() []payment.Notice {
		t.Helper()
		list, err := f.ClaimNotices(t.Context(), 10, lease)
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	finish := func(n payment.Notice, r payment.NoticeResult) {
		t.Helper()
		if err := f.FinishNotices(t.Context(), []payment.NoticeTry{{Notice: n, Result: r}}); err != nil {
			t.Error(err)
		}
	}
	list := claim()
	if len(list) != 2 || len(claim()) != 0 {
		t.Fatalf("claimed %+v", list)
	}
	for _, n := range list {
		if n.Attempts != 1 || n.Sequence != 2 || n.Payment.Status != payment.Paid || n.Payment.PaymentKey != "pk_a" || n.Now.IsZero() || n.CreatedAt.IsZero() || len(n.ID) != 36 {
			t.Errorf("%+v", n)
		}
	}
	first, second := list[0], list[1]
	finish(first, payment.NoticeResult{State: payment.NoticeQueued, RetryIn: time.Hour, Error: "503\x00"})
	if len(claim()) != 0 {
		t.Error("claimed before its time")
	}
	// A worker that comes late with its result does not disturb the one that took over.
	f.exec("UPDATE notices SET due_at = now() - interval '1 s'")
	for _, n := range claim() {
		if n.ID == second.ID {
			if err := f.FinishNotices(t.Context(), []payment.NoticeTry{{Notice: second, Result: payment.NoticeResult{State: payment.NoticeDead}}}); err == nil || !strings.Contains(err.Error(), ErrNoticeLost.Error()) {
				t.Errorf("late: %v", err)
			}
			finish(n, payment.NoticeResult{State: payment.NoticeDelivered})
		} else {
			if n.Attempts != 2 {
				t.Errorf("attempt %d", n.Attempts)
			}
			finish(n, payment.NoticeResult{State: payment.NoticeDead, Error: "410"})
		}
	}
	if n := f.count("notices WHERE state = 'dead' AND due_at IS NULL"); n != 1 || f.count("notices WHERE due_at IS NOT NULL") != 0 {
		t.Errorf("%d dead, %d left", n, f.count("notices WHERE due_at IS NOT NULL"))
	}
	if n := f.count("incidents WHERE kind = 'dead_notice' AND order_id = 'order_a' AND evidence->>'error' = '410' AND resolved_at IS NULL"); n != 1 {
		t.Errorf("%d incidents", n)
	}
	f.exec("UPDATE notices SET state = 'queued', due_at = now() WHERE state = 'dead'") // as an operator replays it
	list = claim()
	if len(list) != 1 || list[0].ID != first.ID {
		t.Fatalf("%+v", list)
	}
	finish(list[0], payment.NoticeResult{State: payment.NoticeSuperseded})
	if n := f.count("notices WHERE due_at IS NOT NULL"); n != 0 {
		t.Errorf("%d left", n)
	}
}

// TestMetrics is trap 24: every series is there before anything happens.
func TestMetrics(t *testing.T) {
	t.Parallel()
	f := setup(t)
	series := func() (n map[string]int, sum map[string]float64) {
		families, err := f.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n, sum = map[string]int{}, map[string]float64{}
		for _, family := range families {
			n[family.GetName()] = len(family.GetMetric())
			for _, m := range family.GetMetric() {
				sum[family.GetName()] += value(m)
			}
		}
		return n, sum
	}
	n, _ := series()
	want := map[string]int{
		"paymentd_db_connections": 4, "paymentd_db_connections_max": 2, "paymentd_db_acquire_waiting": 2, "paymentd_db_acquire_duration_seconds": 2,
		"paymentd_db_acquire_timeouts_total": 2, "paymentd_settled_total": 25, "paymentd_settle_duration_seconds": 5, "paymentd_payments": 2,
		"paymentd_oldest_pending_seconds": 1, "paymentd_incidents_open": 6, "paymentd_notices": 2,
	}
	if diff := cmp.Diff(want, n); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	f.reserved("a")
	f.exec("UPDATE payments SET reserved_at = now() - interval '1 h'")
	f.settle(settlement(f.reserved("b"), payment.Paid, payment.ByConfirm))
	f.metrics.readAt = time.Time{}
	_, sum := series()
	if sum["paymentd_payments"] != 1 || sum["paymentd_oldest_pending_seconds"] < 3600 || sum["paymentd_notices"] != 2 ||
		sum["paymentd_settled_total"] != 1 || sum["paymentd_settle_duration_seconds"] != 1 || sum["paymentd_db_connections_max"] != 6 {
		t.Errorf("%v", sum)
	}
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	default:
		return float64(m.GetHistogram().GetSampleCount())
	}
}

// TestWaitingIsSeen: who waits for a connection is counted while it waits.
func TestWaitingIsSeen(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.RequestConns = 1 })
	conn, err := f.pool.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() { got <- f.Ping(t.Context()) }()
	for f.pool.waiting.Load() != 1 {
		time.Sleep(time.Millisecond)
	}
	conn.release()
	if err := <-got; err != nil || f.pool.waiting.Load() != 0 {
		t.Errorf("%v, %d still wait", err, f.pool.waiting.Load())
	}
	if text := (&AcquireError{Pool: "request", Err: io.EOF}).Error(); text != "acquire request connection: EOF" {
		t.Error(text)
	}
}

// TestPlans: no statement of a request or loop reads a whole table.
func TestPlans(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.reserved("a")
	f.exec("SET enable_seqscan = off")
	for _, tt := range []struct {
		name string
		sql  string
		args []any
	}{
		{"find", findSQL, []any{"k", "o"}},
		{"take over", takeOverSQL, []any{1, 1, lease}},
		{"by order", "SELECT " + columns + " FROM payments AS p WHERE " + ofOrder, []any{"o"}},
		{"claim due", claimDueSQL, []any{1, lease}},
		{"claim one", claimOneSQL, []any{"k", lease}},
		{"stuck", stuckSQL, []any{lease, lease, lease, lease, newestPayments, payment.WindowOver, 10}},
		{"missing notices", missingNoticesSQL, nil},
		{"claim notices", claimNoticesSQL, []any{1, lease}},
		{"dead notices", listNoticesSQL, []any{"dead", "", "", 0 * time.Second, "", 0, 1}},
		{"notices of an order", listNoticesSQL, []any{"", "", "o", 0 * time.Second, "", 0, 1}},
		{"replay", replaySQL, []any{[]string{nobody}, false, false}},
		{"lock dead incidents", lockDeadIncidentsSQL, []any{[]string{nobody}}},
		{"figures", figuresSQL, nil},
		{"reopen", reopenSQL, []any{1, 1, lease, reopenable()}},
		{"begin give back", beginGiveBackSQL, []any{1, 1, lease, true, "c", 1, "", "", "recovery"}},
		{"find cancels", findCancelsSQL(ofOrder), []any{"o", "k"}},
		{"find cancels of one", findCancelsSQL("p.id = $1"), []any{1, "k"}},
		{"begin cancel", beginCancelSQL, []any{1, 1, lease, "c", 1, "", "k", nil, "ops", false, "", "operator"}},
		{"abandon", abandonSQL, []any{1, 1, "operator", "c", "", "k", "ops", nil}},
		{"begin send", beginSendSQL, []any{1, 1, lease, false, nil, "recovery", ""}},
		{"release", releaseSQL, []any{1, 1, false, lease, false, false, false, false, false, "mismatch", nil, "recovery", "", nil, []string{"unexpected_state"}}},
		{"mark told", markToldSQL, []any{"k"}},
	} {
		rows, err := f.side.Query(t.Context(), "EXPLAIN "+tt.sql, tt.args...)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(line, "Seq Scan on") {
				t.Errorf("%s: %s", tt.name, line)
			}
		}
		if err := rows.Err(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
