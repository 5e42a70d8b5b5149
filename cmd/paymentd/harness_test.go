package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
	"paymentd/migrations"
)

const (
	checkoutSecret = "checkout-secret-0123456789abcdef"
	operatorSecret = "operator-secret-0123456789abcdef"
	tossSecret     = "test_sk_e2e_0123456789"
	hookSecret     = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
)

// patient are time-outs that no machine misses: one that stands still for ten seconds does not turn a good answer into a
// late one. A test sets those alone that shall run out, and looks that they did by what happened, not by how long it took.
var patient = []string{
	"PAYMENTD_DB_CONNECT_TIMEOUT=60s", "PAYMENTD_DB_ACQUIRE_TIMEOUT=30s", "PAYMENTD_DB_STATEMENT_TIMEOUT=30s",
	"PAYMENTD_TOSS_CONNECT_TIMEOUT=30s", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s", "PAYMENTD_TOSS_LOOKUP_TIMEOUT=30s",
	"PAYMENTD_TOSS_CANCEL_TIMEOUT=30s", "PAYMENTD_ANSWER_WITHIN=30s", "PAYMENTD_COMMIT_WITHIN=30s",
	"PAYMENTD_SHUTDOWN_WITHIN=60s",
}

// quick are settings for tests in which a confirm hangs; brief is for those in which whatever is asked hangs, or nothing
// can be saved, or a lease has to run out by itself: it is of a few seconds.
var (
	quick = []string{"PAYMENTD_RETRY_MAX=0", "PAYMENTD_RATE_WAIT=0s", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=1s"}
	brief = append([]string{
		"PAYMENTD_TOSS_LOOKUP_TIMEOUT=1s", "PAYMENTD_TOSS_CANCEL_TIMEOUT=1s", "PAYMENTD_COMMIT_WITHIN=1s",
	}, quick...)
)

// shape finds paymentKeys of tests in the log: with a key a payment can be confirmed.
var shape = regexp.MustCompile(`test_[a-z_]*[0-9]{15,}`)

func TestMain(m *testing.M) {
	if at, doomed := os.LookupEnv(failpointVariable); doomed {
		os.Exit(serveDoomed(at))
	}
	flag.Parse()
	// The tests wait for time-outs and leases more than they compute.
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = p.Value.Set("8")
	}
	code := devdb.Main(m)
	binary.remove()
	os.Exit(code)
}

// migrated is how devdb brings a database to our schema.
func migrated() devdb.Migration { return devdb.Migration{Hash: migrations.Hash(), Up: migrations.Up} }

// world is a real PostgreSQL, a simulator over sockets, a receiver of notices, and paymentd between them.
type world struct {
	t    testing.TB
	db   *devdb.DB
	toss *tosssim.Server
	hook *receiver
	set  []string
	log  *logBuffer
	pool *pgxpool.Pool
}

// instance is one running paymentd.
type instance struct {
	*world
	url, admin string
	cancel     context.CancelFunc
	done       chan error
}

// newWorld starts everything but paymentd. The settings make recovery quick.
func newWorld(t testing.TB, set ...string) *world {
	t.Helper()
	return newWorldOn(t, devdb.New(t, migrated()), tosssim.Options{}, set...)
}

// newPrivateWorld has a PostgreSQL of its own, which the test may kill.
func newPrivateWorld(t testing.TB, set ...string) *world {
	t.Helper()
	return newWorldOn(t, devdb.Private(t, migrated(), devdb.Options{}), tosssim.Options{}, set...)
}

func newWorldOn(t testing.TB, db *devdb.DB, gateway tosssim.Options, set ...string) *world {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), db.DSN+"&pool_max_conns=2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	w := &world{t: t, db: db, log: &logBuffer{}, pool: pool}
	w.toss = tosssim.Start(t, gateway)
	w.hook = newReceiver(t)
	w.set = append([]string{
		"PAYMENTD_RECOVERY_DUE_EVERY=100ms", "PAYMENTD_RATE_LIMIT=0", "PAYMENTD_MEMBER_LIMIT=0", "PAYMENTD_RETRY_DELAY=20ms",
		"PAYMENTD_LOOKUP_RATE=1000/s",
	}, set...)
	if !realTime() {
		w.set = slices.Concat(patient, w.set)
	}
	t.Cleanup(func() {
		w.log.check(t)
		if t.Failed() {
			t.Log("paymentd's log:\n" + w.log.tail(60))
		}
	})
	return w
}

// start starts one paymentd and stops it in order at the end of the test.
func (w *world) start(set ...string) *instance {
	w.t.Helper()
	c, err := loadConfig(w.env(set...))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	in := &instance{world: w, cancel: cancel, done: make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		in.done <- serve(ctx, c, newLogger(c, w.log), func(public, private string) {
			in.url, in.admin = "http://"+public, "http://"+private
			close(ready)
		})
	}()
	select {
	case <-ready:
	case err := <-in.done:
		w.t.Fatalf("paymentd did not start: %v", err)
	case <-time.After(2 * time.Minute):
		w.t.Fatal("paymentd did not start in time")
	}
	w.t.Cleanup(in.stop)
	return in
}

// env are the variables of a paymentd of this world.
func (w *world) env(set ...string) []string {
	env := []string{
		"PAYMENTD_DATABASE_URL=" + w.db.DSN, "PAYMENTD_LISTEN=127.0.0.1:0", "PAYMENTD_ADMIN_LISTEN=127.0.0.1:0",
		"PAYMENTD_API_KEYS=shop:checkout:" + checkoutSecret + ",ops:operator:" + operatorSecret,
		"PAYMENTD_TOSS_URL=" + w.toss.URL(), "PAYMENTD_TOSS_SECRET_KEY=" + tossSecret,
		"PAYMENTD_NOTIFY_WEBHOOK_URL=" + w.hook.url, "PAYMENTD_NOTIFY_WEBHOOK_SECRET=" + hookSecret,
	}
	return slices.Concat(env, w.set, set)
}

// faults makes the gateway sick; none makes it well.
func (w *world) faults(faults ...tosssim.Fault) {
	w.t.Helper()
	if err := w.toss.SetFaults(faults...); err != nil {
		w.t.Fatal(err)
	}
}

// listen opens or closes the gateway's port.
func (w *world) listen(up bool) {
	w.t.Helper()
	if err := w.toss.SetListening(up); err != nil {
		w.t.Fatal(err)
	}
}

// arrived waits until n calls of an operation have reached the gateway.
func (w *world) arrived(op string, n int64) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := w.toss.Await(ctx, func(c tosssim.Counters) bool { return c.Ops[op].Calls >= n }); err != nil {
		w.t.Fatalf("%d calls of %s: %v, the simulator has %+v", n, op, err, w.toss.Counters())
	}
}

// sent counts the confirms that reached the gateway.
func (w *world) sent() int64 { return w.toss.Counters().Ops[tosssim.OpConfirm].Calls }

// stop asks for an ordered stop and waits for it.
func (in *instance) stop() {
	in.cancel()
	select {
	case err, ok := <-in.done:
		if ok && err != nil {
			in.t.Errorf("ordered stop: %v", err)
		}
	case <-time.After(90 * time.Second):
		in.t.Error("paymentd did not stop")
	}
	closeOnce(in.done)
}

func closeOnce(c chan error) {
	defer func() { _ = recover() }()
	close(c)
}

// answer is what a call was answered.
type answer struct {
	status int
	header http.Header
	body   map[string]any
	raw    string
}

func (a answer) text(field string) string { s, _ := a.body[field].(string); return s }

// order is one confirm.
type order struct {
	key, id string
	amount  int
}

// newOrder makes ids that no other test uses.
func newOrder(kind string) order {
	n := strconv.FormatInt(time.Now().UnixNano(), 10)
	return order{key: "test_" + kind + n, id: "order-" + kind + n, amount: 15000}
}

func (o order) json() string {
	return fmt.Sprintf(`{"paymentKey":%q,"orderId":%q,"amount":%d,"memberId":"m-1","receiptEmail":"buyer@shop.example"}`, o.key, o.id, o.amount)
}

func (in *instance) confirm(o order) answer {
	in.t.Helper()
	return in.call(http.MethodPost, in.url+"/payments/confirm", checkoutSecret, o.json())
}

func (in *instance) read(o order) answer {
	in.t.Helper()
	return in.call(http.MethodGet, in.url+"/payments/"+o.id, checkoutSecret, "")
}

func (in *instance) sync(body string) answer {
	in.t.Helper()
	return in.call(http.MethodPost, in.url+"/payments/sync", operatorSecret, body)
}

func (in *instance) call(method, url, key, body string) answer {
	in.t.Helper()
	a, err := call(in.t, method, url, key, body)
	if err != nil {
		in.t.Fatal(err)
	}
	return a
}

// call is safe outside the test's goroutine. A server that stands still takes the headers of a request that came before
// for late, and hangs up on it unseen: it is sent once more.
func call(t testing.TB, method, url, key, body string) (answer, error) {
	begin := time.Now()
	a, err := callUntil(context.Background(), method, url, key, body)
	late := errors.Is(err, io.EOF) && time.Since(begin) >= headersWithin
	if !late && (err == nil || !strings.Contains(err.Error(), "server closed idle connection")) {
		return a, err
	}
	if t.Context().Err() == nil { // else it may be over
		t.Logf("sent again after %s: %v", time.Since(begin), err)
	}
	return callUntil(context.Background(), method, url, key, body)
}

// callUntil hangs up when the context ends.
func callUntil(ctx context.Context, method, url, key, body string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	a = answer{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	_ = json.Unmarshal(raw, &a.body) // metrics and the spec are no JSON
	return a, err
}

// want fails unless the answer has the status and, if given, the status word or problem code.
func (a answer) want(t testing.TB, status int, word string) answer {
	t.Helper()
	if a.status != status || word != "" && a.text("code") != word && a.text("status") != word {
		t.Errorf("answered %d %s, want %d %s", a.status, a.raw, status, word)
	}
	return a
}

// row is what the tests may read of a payment.
type row struct {
	Status    string
	Holds     bool
	Version   int64
	MaybeSent bool
	Due       bool
}

func (w *world) row(o order) (r row, found bool) {
	w.t.Helper()
	err := w.query(`SELECT status, holds_order, version, maybe_sent, due_at IS NOT NULL FROM payments WHERE payment_key = $1`,
		[]any{o.key}, &r.Status, &r.Holds, &r.Version, &r.MaybeSent, &r.Due)
	if err != nil && err != pgx.ErrNoRows {
		w.t.Fatal(err)
	}
	return r, err == nil
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	if err := w.query(sql, args, &n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) query(sql string, args []any, into ...any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	err := w.pool.QueryRow(ctx, sql, args...).Scan(into...)
	if _, said := errors.AsType[*pgconn.PgError](err); err == nil || said || errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	w.pool.Reset() // the test has killed the database meanwhile
	return w.pool.QueryRow(ctx, sql, args...).Scan(into...)
}

// eventually waits for a condition that background work brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(40 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Errorf("not within 90 s: %s", what)
}

func (w *world) becomes(o order, status string) {
	w.t.Helper()
	eventually(w.t, o.id+" becomes "+status, func() bool { r, ok := w.row(o); return ok && r.Status == status })
}

// settles waits until recovery has brought the payment to a state. What waits for its next look is made due at once,
// so that no test waits out the growing delays; leases are left alone.
func (w *world) settles(o order, status string) {
	w.t.Helper()
	eventually(w.t, o.id+" is settled to "+status, func() bool {
		w.hasten()
		r, ok := w.row(o)
		return ok && r.Status == status
	})
}

func (w *world) hasten() {
	w.t.Helper()
	// Rows that are being written are left alone: many rows at once would deadlock with paymentd's own statements.
	w.exec(`UPDATE payments SET due_at = now() WHERE id IN (
		SELECT id FROM payments WHERE due_at > now() AND due_at < 'infinity' AND NOT leased FOR UPDATE SKIP LOCKED)`)
}

// ghosts waits until the server has noticed the death of every paymentd: a statement that was on its way might still claim
// a payment.
func (w *world) ghosts() {
	w.t.Helper()
	eventually(w.t, "no session of the dead is left", func() bool {
		return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'paymentd'`) == 0
	})
}

// leaseEnds lets the lease of a holder that is dead, or has given up without a database, run out at once.
func (w *world) leaseEnds(o order) {
	w.t.Helper()
	w.exec(`UPDATE payments SET due_at = now() WHERE leased AND payment_key = $1`, o.key)
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	var n int
	if err := w.query(`WITH done AS (`+sql+` RETURNING 1) SELECT count(*) FROM done`, args, &n); err != nil {
		w.t.Fatal(err)
	}
}

// incidents counts the open incidents of a kind.
func (w *world) incidents(o order, kind string) int {
	w.t.Helper()
	return w.count(`SELECT count(*) FROM incidents WHERE payment_key = $1 AND kind = $2 AND resolved_at IS NULL`, o.key, kind)
}

// entry is what the simulator has of the payment.
func (w *world) entry(o order) tosssim.Entry { e, _ := w.toss.Payment(o.key); return e }

// receiver is a shop's webhook.
type receiver struct {
	url string
	mu  sync.Mutex
	got []string
}

func newReceiver(t testing.TB) *receiver {
	r := &receiver{}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, string(body))
	}))
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

// types lists the notices of one order, in the order of their arrival.
func (r *receiver) types(o order) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, body := range r.got {
		var n struct {
			Type string
			Data struct{ OrderID string }
		}
		if json.Unmarshal([]byte(body), &n) == nil && n.Data.OrderID == o.id {
			out = append(out, n.Type)
		}
	}
	return out
}

// logBuffer keeps paymentd's log and refuses secrets in it.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logBuffer) tail(n int) string {
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (l *logBuffer) check(t testing.TB) {
	t.Helper()
	for _, secret := range []string{checkoutSecret, operatorSecret, tossSecret, hookSecret, "buyer@shop.example"} {
		if strings.Contains(l.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	if key := shape.FindString(l.String()); key != "" {
		t.Errorf("the log holds the paymentKey %s", key)
	}
}
