package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/deploy"
	"paymentd/internal/tosssim"
)

// dashboard is what the test reads of a file in deploy/grafana/dashboards.
type dashboard struct {
	Title  string
	Panels []dashboardPanel
}

type dashboardPanel struct {
	Type, Title string
	FieldConfig struct {
		Defaults struct {
			Unit   string
			Custom struct{ DrawStyle string }
		}
	}
	Targets []struct{ Expr, LegendFormat string }
}

// dashboards are all of them by the name of their file.
func dashboards(t testing.TB) map[string]dashboard {
	t.Helper()
	paths, err := filepath.Glob("../../deploy/grafana/dashboards/*.json")
	if err != nil || len(paths) < 5 {
		t.Fatalf("dashboards: %v %v", paths, err)
	}
	all := map[string]dashboard{}
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		var d dashboard
		if err == nil {
			err = json.Unmarshal(raw, &d)
		}
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = d
	}
	return all
}

var (
	metricName  = regexp.MustCompile(`\b(?:paymentd|go|process)_[a-z0-9_]*[a-z0-9]\b`)
	metricLabel = regexp.MustCompile(`\b(\w+)(!?=~?)\\?"([^"\\]*)\\?"`)
)

// TestQueriesNameRealMetrics: dashboards, alerts and the runbook use no metric and no label value that paymentd does not
// have. A query with a wrong word is not an error to Prometheus: it is empty, and an alert on it never fires.
func TestQueriesNameRealMetrics(t *testing.T) {
	t.Parallel()
	text := scrape(t)
	var files []string
	for _, pattern := range []string{"../../deploy/grafana/dashboards/*.json", "../../deploy/prometheus/rules/*.yml", "../../docs/runbook.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(raw), -1) {
			if kind := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); !strings.Contains(text, "# TYPE "+name+" ") &&
				!strings.Contains(text, "# TYPE "+kind+" histogram") && !strings.Contains(text, "# TYPE "+kind+" summary") {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
		for _, m := range metricLabel.FindAllStringSubmatch(string(raw), -1) {
			if !strings.Contains(text, m[1]+`="`) || strings.Contains(m[3], "$") || m[1] == "route" || m[1] == "le" || strings.HasSuffix(file, ".md") {
				continue
			}
			for value := range strings.SplitSeq(m[3], "|") {
				if !strings.Contains(text, m[1]+`="`+value+`"`) {
					t.Errorf("%s: no metric has %s=%q", file, m[1], value)
				}
			}
		}
	}
}

// calm are queries that may stay at 0 in a run in which everything else happens, and why.
var calm = map[string]string{
	"How long does garbage collection stop the program?": "the longest of the pauses may be too short to see",
}

// TestDashboardsShowARun: after half a minute in which everything happens that a dashboard is for, no query of any panel
// is empty, and each has shown something. With PAYMENTD_TEST_PICTURES=1 the same answers are drawn into docs/img.
func TestDashboardsShowARun(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("half a minute of traffic")
	}
	deploy.Program(t, "prometheus")
	d := newDemonstration(t)
	prometheus := startPrometheus(t, d.in, time.Second, "")
	eventually(t, "the first scrape", func() bool {
		_, up := extent(prometheus.between("up", time.Now(), time.Now(), time.Second))
		return up == 1
	})
	from := time.Now()
	d.run()
	to := time.Now()
	for range 3 { // what was over between two scrapes, since the machine was busy with something else, is shown again
		if len(prometheus.unseen(dashboards(t), from, to)) == 0 {
			break
		}
		d.run()
		to = time.Now()
	}
	for _, problem := range prometheus.unseen(dashboards(t), from, to) {
		t.Error(problem)
	}
	for name, board := range dashboards(t) {
		picture := newPicture(board.Title, from, to, d.marks)
		for _, p := range board.Panels {
			var shown []curve
			for _, q := range p.Targets {
				for _, l := range prometheus.drawn(q.Expr, from, to) {
					l.labels["legend"] = legend(q.LegendFormat, l.labels)
					shown = append(shown, l)
				}
			}
			if p.Type != "text" && p.Type != "table" {
				picture.add(p, shown)
			}
		}
		if os.Getenv("PAYMENTD_TEST_PICTURES") == "1" {
			if err := os.WriteFile("../../docs/img/dashboard-"+name+".svg", picture.svg(), 0o644); err != nil {
				t.Error(err)
			}
		}
	}
	if t.Failed() {
		t.Logf("at the end:\n%s", d.in.call(http.MethodGet, d.in.admin+"/metrics", "", "").raw)
	}
}

// drawn is what Grafana draws of a query.
func (w *watcher) drawn(query string, from, to time.Time) []curve {
	w.t.Helper()
	return w.between(strings.NewReplacer("$__rate_interval", "5s", "$instance", ".*").Replace(query), from, to, time.Second)
}

// unseen says which queries are empty or have shown nothing but 0.
func (w *watcher) unseen(boards map[string]dashboard, from, to time.Time) (problems []string) {
	w.t.Helper()
	for name, board := range boards {
		for _, p := range board.Panels {
			for _, q := range p.Targets {
				samples, most := extent(w.drawn(q.Expr, from, to))
				if samples == 0 {
					problems = append(problems, fmt.Sprintf("%s: %s: nothing to see: %s", name, p.Title, q.Expr))
				} else if most <= 0 && calm[p.Title] == "" {
					problems = append(problems, fmt.Sprintf("%s: %s: nothing but 0: %s", name, p.Title, q.Expr))
				}
			}
		}
	}
	return problems
}

// extent counts the samples that are numbers and tells the largest.
func extent(lines []curve) (samples int, most float64) {
	most = math.Inf(-1)
	for _, l := range lines {
		for _, v := range l.value {
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				samples, most = samples+1, max(most, v)
			}
		}
	}
	return samples, most
}

func legend(format string, labels map[string]string) string {
	for name, value := range labels {
		if name == "instance" {
			value = "paymentd"
		}
		format = strings.ReplaceAll(format, "{{"+name+"}}", value)
	}
	return format
}

// demonstration is a paymentd with small limits, in whose half minute everything happens.
type demonstration struct {
	t     testing.TB
	w     *world
	in    *instance
	shop  *sickShop
	marks []mark
}

// mark is the beginning of something that a picture should tell.
type mark struct {
	at   time.Time
	text string
}

func newDemonstration(t *testing.T) *demonstration {
	d := &demonstration{t: t, w: newWorld(t), shop: newSickShop(t, true)}
	box := newMailbox(t, 5)
	d.in = d.w.spawn(
		"PAYMENTD_NOTIFY_WEBHOOK_URL="+d.shop.url, "PAYMENTD_NOTIFY_SMTP_URL="+box.url, "PAYMENTD_NOTIFY_FROM=Shop <shop@shop.example>",
		"PAYMENTD_TOSS_CONNECT_TIMEOUT=1s", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=2s", "PAYMENTD_TOSS_LOOKUP_TIMEOUT=1s", "PAYMENTD_ANSWER_WITHIN=1500ms",
		"PAYMENTD_COMMIT_WITHIN=1s", "PAYMENTD_RETRY_MAX=1", "PAYMENTD_BREAKER_WINDOW=20", "PAYMENTD_BREAKER_MIN_CALLS=5",
		"PAYMENTD_BREAKER_OPEN_FOR=3s", "PAYMENTD_BREAKER_HALF_OPEN_CALLS=2", "PAYMENTD_BULKHEAD=12", "PAYMENTD_RATE_LIMIT=30/s",
		"PAYMENTD_RATE_BURST=15", "PAYMENTD_RATE_WAIT=0s", "PAYMENTD_BULKHEAD_WAIT=1200ms", "PAYMENTD_DB_MAX_CONNS=3", "PAYMENTD_DB_ACQUIRE_TIMEOUT=500ms",
	).instance
	return d
}

// gateway is how the gateway answers beside what a phase adds: some cards are declined, some connections are reset once.
func (d *demonstration) gateway(more ...tosssim.Fault) {
	d.w.faults(append(more,
		tosssim.Fault{Op: tosssim.OpConfirm, OrderID: "order-declined*", Code: "REJECT_CARD_PAYMENT"},
		tosssim.Fault{Op: tosssim.OpConfirm, OrderID: "order-reset*", Drop: tosssim.DropBefore, Rate: 0.5},
		tosssim.Fault{Op: tosssim.OpConfirm, Latency: tosssim.Latency{Min: tosssim.Duration(100 * time.Millisecond), Max: tosssim.Duration(300 * time.Millisecond)}})...)
}

// phase does something for a while, under a name.
func (d *demonstration) phase(name string, long time.Duration, begin func()) {
	d.marks = append(d.marks, mark{time.Now(), name})
	end := time.After(long)
	if begin != nil {
		begin()
	}
	<-end
}

func (d *demonstration) run() {
	d.gateway()
	d.shop.sickens()
	stop := make(chan struct{})
	var buyers sync.WaitGroup
	buyers.Go(func() { d.buyers(stop, &buyers) })
	va := newOrder("va_")
	var crowd sync.WaitGroup
	var doubt order
	d.phase("all is well", 6*time.Second, func() {
		doubt = d.in.mismatched(func(there *order) { there.amount = 14000 })
		crowd.Go(func() { d.in.timed(va) })
	})
	d.phase("a crowd", 3*time.Second, func() {
		d.w.exec(`UPDATE notices SET created_at = now() - interval '25 h' WHERE id IN (SELECT id FROM notices WHERE state = 'queued' LIMIT 3)`)
		for range 2 {
			crowd.Go(func() { d.in.volley(newOrders("crowd", 45)) })
			time.Sleep(time.Second)
		}
	})
	d.phase("the database is locked", 4*time.Second, func() { d.lock(1500 * time.Millisecond) })
	d.phase("the gateway hangs", 8*time.Second, func() {
		d.gateway(silent)
		crowd.Go(func() { d.in.volley(newOrders("hung", 8)) })
	})
	d.phase("it is back", 8*time.Second, func() {
		d.gateway()
		d.shop.heals()
		d.w.deposit(va)
		_, _ = call(d.in.t, http.MethodPost, d.in.url+"/payments/sync", operatorSecret, `{}`)
		d.hurry(5)
	})
	d.phase("switched off", 2*time.Second, func() { d.in.breaker("open") })
	d.phase("and on", 6*time.Second, func() {
		d.in.breaker("none")
		d.in.resolve(doubt, "accept").want(d.t, 200, "")
		d.hurry(4)
	})
	close(stop)
	buyers.Wait()
	crowd.Wait()
}

// hurry makes due every second what waits for its next look: in half a minute nobody waits for the growing delays.
func (d *demonstration) hurry(seconds int) {
	for range seconds {
		time.Sleep(time.Second)
		d.w.hasten()
	}
}

// buyers are eight confirms per second, every one from somebody who does not wait for the others.
func (d *demonstration) buyers(stop chan struct{}, all *sync.WaitGroup) {
	kinds := []string{"plain", "plain", "declined", "plain", "reset", "plain", "twice", "plain"}
	tick := time.NewTicker(time.Second / time.Duration(len(kinds)))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		o := newOrder(kinds[n%len(kinds)])
		all.Go(func() {
			d.in.timed(o)
			if strings.Contains(o.key, "twice") {
				d.in.timed(o)
			}
			_, _ = call(d.in.t, http.MethodGet, d.in.url+"/payments/"+o.id, checkoutSecret, "")
		})
	}
}

// lock keeps everybody out of the payments.
func (d *demonstration) lock(long time.Duration) {
	conn, err := pgx.Connect(d.t.Context(), d.w.db.DSN)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer conn.Close(d.t.Context())
	if _, err := conn.Exec(d.t.Context(), "BEGIN; LOCK TABLE payments IN EXCLUSIVE MODE"); err != nil {
		d.t.Error(err)
		return
	}
	var callers sync.WaitGroup
	callers.Go(func() { d.in.volley(newOrders("locked", 8)) })
	time.Sleep(long)
	_, err = conn.Exec(d.t.Context(), "ROLLBACK")
	if err != nil {
		d.t.Error(err)
	}
	callers.Wait()
}
