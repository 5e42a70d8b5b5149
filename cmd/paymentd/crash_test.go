package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	netmail "net/mail"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/payment"
	"paymentd/internal/tosssim"
)

// story is a way to a number of steps, the deaths at these, and what must come of the payment.
type story struct {
	name string
	// settings are those of the process that dies; its successor has the defaults of the crash test.
	settings []string
	// before leaves what an earlier process left behind; drive makes the doomed one go to the step.
	before, drive func(*crash)
	// at lists "step when" or "step when n"; "during" is while the gateway or the shop works.
	at []string
	// end is what the same confirm is answered at last: "200 PAID", "402 declined". ends has the exceptions by step.
	end  string
	ends map[string]string
	// repeat is what else the client says again to the successor.
	repeat func(*crash, *process)
	// awaits is something outside that must have happened before the successor starts.
	awaits func(*crash) bool
}

// crash is one death.
type crash struct {
	*world
	*story
	at   string
	o    order
	shop *shop
	box  *mailbox // nil: the receipt goes to the log
	dead *process
	// told is what the dead process's callers had been answered.
	told   func() answer
	unlock func()
}

// TestCrash kills paymentd by SIGKILL at every step of confirm, give back, recovery and notices, starts the program
// as it is shipped, and looks whether the books agree.
func TestCrash(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	table := map[string]string{}
	stories := crashStories()
	t.Run("at", func(t *testing.T) {
		for i, s := range stories {
			for j, at := range s.at {
				t.Run(s.name+"/"+strings.ReplaceAll(at, " ", "_"), func(t *testing.T) {
					t.Parallel()
					row := newCrash(t, s, at).run()
					mu.Lock()
					defer mu.Unlock()
					table[fmt.Sprintf("%02d %02d", i, j)] = s.name + "\t" + at + "\t" + row
				})
			}
		}
	})
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "story\tdies\tstate at death\tstate at the end\tpayment.paid seen\tsame confirm answered")
	for _, key := range slices.Sorted(func(yield func(string) bool) {
		for k := range table {
			if !yield(k) {
				return
			}
		}
	}) {
		fmt.Fprintln(w, table[key])
	}
	_ = w.Flush()
	t.Logf("%d deaths by SIGKILL\n%s", len(table), out.String())
}

func newCrash(t *testing.T, s story, at string) *crash {
	t.Helper()
	shop := newShop(t)
	return &crash{
		world: newWorld(t, "PAYMENTD_RETRY_MAX=0", "PAYMENTD_RATE_WAIT=0s", "PAYMENTD_NOTIFY_WEBHOOK_URL="+shop.url), story: &s, at: at,
		o: newOrder("crash"), shop: shop, unlock: func() {},
	}
}

// run returns the row of the table after the step's name.
func (c *crash) run() string {
	if c.before != nil {
		c.before(c)
	}
	c.die()
	atDeath := c.state()
	c.faults()
	c.listen(true)
	c.unlock()
	c.shop.answers()
	if c.awaits != nil {
		eventually(c.t, "what goes on without the dead", func() bool { return c.awaits(c) })
	}
	c.holderIsDead()
	next := c.spawn()
	eventually(c.t, "nothing is unfinished", func() bool { c.hasten(); return c.leftovers() == 0 && c.entitled() })
	if c.repeat != nil {
		c.repeat(c, next)
	}
	answered := c.again(next)
	c.books()
	c.toldTheTruth()
	c.secondKey(next)
	return strings.Join([]string{atDeath, c.state(), fmt.Sprint(c.shop.count(c.o, "payment.paid")), answered}, "\t")
}

// die drives the doomed process to the step and waits for its death.
func (c *crash) die() {
	step, when, n := parseStep(c.at)
	if when == "during" {
		c.dead = c.spawn(c.settings...)
		if step == "webhook.Send" {
			c.shop.hold()
		} else if err := c.toss.AddFaults(c.held()...); err != nil {
			c.t.Fatal(err)
		}
		c.drive(c)
		for i := range n - 1 { // those before go on
			c.reached(step, i+1)
			c.faults(c.held()...)
		}
		c.reached(step, n)
		c.dead.kill()
		return
	}
	c.dead = c.doomed(fmt.Sprint(step, " ", when, " ", n), c.settings...)
	c.drive(c)
	if status := c.dead.wait(); status != -1 {
		c.t.Errorf("exit status %d, want death by a signal", status)
	}
}

func parseStep(at string) (step, when string, n int64) {
	n = 1
	_, _ = fmt.Sscan(at, &step, &when, &n)
	return step, when, n
}

// op is the gateway's operation of a step.
func op(step string) string {
	_, method, _ := strings.Cut(step, ".")
	return strings.ToLower(method)
}

// held keeps the gateway at the step of a death "during" it.
func (c *crash) held() []tosssim.Fault {
	step, when, _ := parseStep(c.at)
	if when != "during" || step == "webhook.Send" {
		return nil
	}
	return []tosssim.Fault{{Op: op(step), Hold: true}}
}

func (c *crash) reached(step string, n int64) {
	if step == "webhook.Send" {
		eventually(c.t, "the shop hears", func() bool { return c.shop.count(c.o, "payment.paid") >= int(n) })
		return
	}
	c.arrived(op(step), n)
}

// confirms sends the confirm; nobody waits for its answer.
func (c *crash) confirms() { c.told = c.dead.confirmLater(c.o) }

// holderIsDead lets the leases of the dead process run out at once: nobody is there to use them.
func (c *crash) holderIsDead() {
	c.ghosts()
	c.exec(`UPDATE payments SET due_at = now() WHERE leased`)
	c.exec(`UPDATE notices SET due_at = now() WHERE state = 'queued'`)
}

func (c *crash) leftovers() int {
	return c.count(`SELECT (SELECT count(*) FROM payments WHERE status NOT IN ('PAID', 'FAILED', 'CANCELED') OR status = 'FAILED' AND holds_order)
		+ (SELECT count(*) FROM cancels WHERE done_at IS NULL)`)
}

// entitled reports whether the gateway holds money for payments alone that are PAID here: a late approval is found by
// the second look.
func (c *crash) entitled() bool { return payment.CheckLedger(c.approvals(), c.ledgerRows()).Holds() }

// again is the client's repetition; a payment that never was is confirmed by it.
func (c *crash) again(next *process) string {
	want := c.end
	if other, ok := c.ends[c.at]; ok {
		want = other
	}
	a := next.confirm(c.o)
	got := fmt.Sprint(a.status, " ", a.text("status")+a.text("code"))
	if a.status >= 400 {
		got = fmt.Sprint(a.status, " ", a.text("code"))
	}
	if got != want {
		c.t.Errorf("the same confirm is answered %s, want %s: %s", got, want, a.raw)
	}
	return got
}

// books are the invariants after recovery.
func (c *crash) books() {
	c.t.Helper()
	eventually(c.t, "every notice is delivered", func() bool {
		return c.count(`SELECT count(*) FROM notices WHERE state = 'queued'`) == 0
	})
	if l := c.ledgerHolds(); l.Doubt != 0 || l.Incident != 0 {
		c.t.Error(l)
	}
	if n := c.leftovers(); n != 0 {
		c.t.Errorf("%d leftovers", n)
	}
	e, r := c.entry(c.o), c.mustRow()
	if e.Approvals > 1 || e.Cancels > 1 {
		c.t.Errorf("the gateway has %+v", e)
	}
	paid := map[string]int{"PAID": 1, "CANCELED": 1}[r.Status]
	if ids := c.shop.ids(c.o, "payment.paid"); len(ids) != paid {
		c.t.Errorf("%s, and the shop was told payment.paid under the ids %v", r.Status, ids)
	}
	if ids := c.shop.ids(c.o, "payment.failed"); len(ids) > 1-paid {
		c.t.Errorf("%s, and the shop was told payment.failed under the ids %v", r.Status, ids)
	}
	c.receipts()
}

// receipts: the buyer may get a mail twice, but it is the same one.
func (c *crash) receipts() {
	if c.box == nil {
		return
	}
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	ids := map[string]bool{}
	for _, mail := range c.box.mails {
		m, err := netmail.ReadMessage(strings.NewReader(mail))
		if err != nil {
			c.t.Fatal(err)
		}
		ids[m.Header.Get("Message-Id")] = true
	}
	if len(ids) != 1 || ids[""] {
		c.t.Errorf("%d mails under the ids %v", len(c.box.mails), ids)
	}
}

func (c *crash) mustRow() row {
	r, found := c.row(c.o)
	if !found {
		c.t.Error("no payment at the end")
	}
	return r
}

// toldTheTruth: whatever the dead process said is not belied by the end.
func (c *crash) toldTheTruth() {
	if c.told == nil {
		return
	}
	a, e := c.told(), c.entry(c.o)
	ok := true
	switch a.status {
	case 0, 202: // cut off, or not known yet
	case 200:
		ok = e.Approvals == 1 && e.Balance == int64(c.o.amount)
	case 402, 410:
		ok = e.Balance == 0
	default:
		ok = a.text("code") == "pg_unavailable" || a.text("code") == "db_failed" && e.Balance == 0
	}
	if !ok {
		c.t.Errorf("the dead process had answered %d %s, the gateway has %+v", a.status, a.raw, e)
	}
}

// secondKey tries another paymentKey of the order: refused if it is paid or was, else it may pay it, once.
func (c *crash) secondKey(next *process) {
	second := c.o
	second.key += "9"
	paid := 1
	switch c.mustRow().Status {
	case "CANCELED":
		paid = 0
		fallthrough
	case "PAID":
		next.confirm(second).want(c.t, 409, "order_conflict")
	default:
		next.confirm(second).want(c.t, 200, "PAID")
	}
	if l := c.ledgerHolds(); l.Paid != paid {
		c.t.Error(l)
	}
}

// state is the payment here and at the gateway, in short.
func (c *crash) state() string {
	here := "none"
	var lease, failure, cancels string
	err := c.query(`SELECT status, CASE WHEN leased THEN ' leased' ELSE '' END, CASE WHEN failure_code = '' THEN '' ELSE ' ' || failure_code END,
		COALESCE((SELECT ', cancel ' || string_agg(state, '+') FROM cancels AS c WHERE c.payment_id = p.id), '')
		FROM payments AS p WHERE payment_key = $1`, []any{c.o.key}, &here, &lease, &failure, &cancels)
	if err != nil && err != pgx.ErrNoRows {
		c.t.Fatal(err)
	}
	there := "unseen"
	if e, ok := c.toss.Payment(c.o.key); ok {
		there = fmt.Sprint(e.Status)
	}
	return here + failure + lease + cancels + " | Toss " + there
}

// locked keeps everybody else from writing the payment, as a stuck session does.
func (c *crash) locked() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, c.db.DSN)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `BEGIN`); err != nil {
		c.t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, `SELECT FROM payments WHERE payment_key = $1 FOR UPDATE`, c.o.key); err != nil {
		c.t.Fatal(err)
	}
	c.unlock = func() { _ = conn.Close(ctx) }
	c.t.Cleanup(c.unlock)
}

// shop receives notices and remembers their ids.
type shop struct {
	url  string
	mu   sync.Mutex
	got  []delivered
	open chan struct{}
}

type delivered struct{ id, kind, orderID string }

func newShop(t testing.TB) *shop {
	s := &shop{open: make(chan struct{})}
	close(s.open)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		var n struct {
			Type string
			Data struct{ OrderID string }
		}
		if json.Unmarshal(body, &n) != nil {
			return
		}
		s.mu.Lock()
		s.got = append(s.got, delivered{q.Header.Get("Webhook-Id"), n.Type, n.Data.OrderID})
		open := s.open
		s.mu.Unlock()
		select {
		case <-open:
		case <-q.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// hold keeps answers back until answers.
func (s *shop) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = make(chan struct{})
}

func (s *shop) answers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.open:
	default:
		close(s.open)
	}
}

// count counts the deliveries, repeated ones included.
func (s *shop) count(o order, kind string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.got {
		if d.orderID == o.id && d.kind == kind {
			n++
		}
	}
	return n
}

// ids are the different notices.
func (s *shop) ids(o order, kind string) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.got {
		if d.orderID == o.id && d.kind == kind && !slices.Contains(ids, d.id) {
			ids = append(ids, d.id)
		}
	}
	return ids
}
