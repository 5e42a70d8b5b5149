package main

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// realTime makes the scenarios run with the time-outs and windows of the reports that they come from.
func realTime() bool { return os.Getenv("PAYMENTD_TEST_REAL_TIME") == "1" }

// either is the duration for the run at hand.
func either(quick, real time.Duration) time.Duration {
	if realTime() {
		return real
	}
	return quick
}

// scenario starts paymentd with a profile. Without real time the quick settings shorten it; with it recovery keeps
// its own pace too.
func (w *world) scenario(name string, always []string, quick ...string) *instance {
	w.t.Helper()
	set, _ := profile(w.t, name)
	if realTime() {
		quick = []string{"PAYMENTD_RECOVERY_DUE_EVERY=5s", "PAYMENTD_LOOKUP_RATE=10/s"}
	} else {
		quick = slices.Concat(patient, []string{"PAYMENTD_RESEND_WITHIN=20m"}, quick) // more than such a lease
	}
	return w.start(slices.Concat(set, quick, always)...)
}

// rested are settings without recovery for the time of an outage: what it sends again while some calls still wait for
// their time-out would be counted with them. After the outage recovers lets another instance begin. With real time it is there all along.
func rested() []string {
	if realTime() {
		return nil
	}
	return append(slices.Clone(asleep), "PAYMENTD_RESEND_WITHIN=0")
}

func (w *world) recovers() {
	w.t.Helper()
	if !realTime() {
		w.start()
	}
}

// reply is what one caller got and how long it took.
type reply struct {
	answer
	took time.Duration
}

// timed confirms once; it is safe outside the test's goroutine.
func (in *instance) timed(o order) (r reply) {
	begin := time.Now()
	a, err := call(in.t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, o.json())
	if err != nil {
		a.raw = err.Error()
	}
	return reply{a, time.Since(begin)}
}

// volley confirms all orders at once.
func (in *instance) volley(orders []order) []reply {
	replies := make([]reply, len(orders))
	var callers sync.WaitGroup
	for i, o := range orders {
		callers.Go(func() { replies[i] = in.timed(o) })
	}
	callers.Wait()
	return replies
}

func newOrders(kind string, n int) []order {
	orders := make([]order, n)
	for i := range orders {
		orders[i] = newOrder(fmt.Sprintf("%s%d_", kind, i))
	}
	return orders
}

// tally counts answers by status and word.
func tally(replies []reply) map[string]int {
	n := map[string]int{}
	for _, r := range replies {
		n[strings.TrimSpace(fmt.Sprintf("%d %s", r.status, r.word()))]++
	}
	return n
}

// word is the problem's code, else the payment's status.
func (a answer) word() string {
	if code := a.text("code"); code != "" {
		return code
	}
	return a.text("status")
}

// quantile is the q-th of the waiting times.
func quantile(replies []reply, q float64) time.Duration {
	if len(replies) == 0 {
		return 0
	}
	var took []time.Duration
	for _, r := range replies {
		took = append(took, r.took)
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(q*float64(len(took))))].Round(100 * time.Microsecond)
}

// number reads one series as a whole number.
func (in *instance) number(series string) int {
	in.t.Helper()
	f, err := strconv.ParseFloat(in.metric(series), 64)
	if err != nil {
		in.t.Errorf("%s: %v", series, err)
	}
	return int(f)
}

// moves counts the breaker's transitions.
func (in *instance) moves(from, to string) int {
	in.t.Helper()
	return in.number(fmt.Sprintf(`paymentd_breaker_transitions_total{from=%q,to=%q}`, from, to))
}

func (in *instance) result(kind string) int {
	in.t.Helper()
	return in.number(fmt.Sprintf(`paymentd_breaker_results_total{result=%q}`, kind))
}

func (in *instance) is(state string) bool {
	in.t.Helper()
	return in.number(fmt.Sprintf(`paymentd_breaker_state{state=%q}`, state)) == 1
}

// equal compares a count.
func (w *world) equal(what string, got, want int) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: %d, want %d", what, got, want)
	}
}

// awaits waits at most so long for a condition, and 90 s at least: a busy machine may take them.
func awaits(t testing.TB, what string, most time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(max(most, 90*time.Second)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not in time: %s", what)
}

// settledAlone waits until nothing is unfinished. With real time nobody helps; else what waits for its next look is
// made due at once.
func (w *world) settledAlone(most time.Duration) (took time.Duration) {
	w.t.Helper()
	begin := time.Now()
	awaits(w.t, "every payment is settled", most, func() bool {
		if !realTime() {
			w.hasten()
		}
		return w.unfinished() == 0
	})
	return time.Since(begin).Round(10 * time.Millisecond)
}

func (w *world) unfinished() int {
	w.t.Helper()
	return w.count(`SELECT count(*) FROM payments WHERE status NOT IN ('PAID', 'FAILED')`)
}

func (w *world) paid() int {
	w.t.Helper()
	return w.count(`SELECT count(*) FROM payments WHERE status = 'PAID'`)
}

// chargedOnce fails unless every one of the orders was charged exactly once and is PAID.
func (w *world) chargedOnce(orders []order) {
	w.t.Helper()
	for _, o := range orders {
		if r, _ := w.row(o); r.Status != "PAID" || w.entry(o).Approvals != 1 {
			w.t.Errorf("%s is %q, the simulator has %+v", o.id, r.Status, w.entry(o))
		}
	}
}

// starts are the times at which confirms reached the gateway.
func (w *world) starts() (at []time.Time) {
	for _, c := range w.toss.CallsOf(tosssim.CallQuery{Op: tosssim.OpConfirm}) {
		at = append(at, c.Started)
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}
