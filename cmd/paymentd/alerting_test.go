package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"paymentd/deploy"
	"paymentd/internal/tosssim"
)

// TestScenarioS7 is the alert of an outage, with Prometheus, Alertmanager and the rules as they are shipped, in front of
// a real paymentd whose gateway hangs: how long from there to pending, firing and delivered? Before the outage comes an
// evening of bad cards, which alerts nobody. With PAYMENTD_TEST_REAL_TIME=1 (make e2e-alert) everything keeps its true
// time and takes five minutes; else time runs about ten times as fast.
func TestScenarioS7(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of traffic")
	}
	deploy.Program(t, "alertmanager")
	w := newWorld(t)
	in := w.scenario("fail-fast", nil, "PAYMENTD_TOSS_CONFIRM_TIMEOUT=2s", "PAYMENTD_ANSWER_WITHIN=1s", "PAYMENTD_RATE_LIMIT=0", "PAYMENTD_RECOVERY_DUE_EVERY=1s")
	pager := newPager(t)
	alertmanager := startWatcher(t, "alertmanager", "--config.file="+alertmanagerFile(t, pager.url), "--storage.path="+t.TempDir(), "--cluster.listen-address=")
	rules, interval := rulesFile(t)
	prometheus := startPrometheus(t, in, interval, fmt.Sprintf("rule_files: [%q]\nalerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}\n",
		rules, strings.TrimPrefix(alertmanager.url, "http://")), "--rules.alert.resend-delay=1s")

	stop := make(chan struct{})
	buyers := in.buyers(stop, either(8, 3))
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Code: "REJECT_CARD_PAYMENT"})
	evening := time.Now().Add(either(8*time.Second, 90*time.Second))
	seen := watch(t, prometheus, evening, func(map[string]*times) bool { return false })
	awaits(t, "enough are declined", time.Minute, func() bool { return in.confirmed("declined") >= 20 })
	if down := seen["PaymentdDown"]; down != nil && down.firing.IsZero() {
		delete(seen, "PaymentdDown") // a machine that stands still for a scrape
	}
	if len(seen) > 0 || pager.messages() > 0 {
		t.Errorf("an evening of bad cards: alerts %v, %d messages", seen, pager.messages())
	}

	w.faults(silent)
	begin := time.Now()
	first := make(chan []reply, 1)
	go func() { first <- in.volley(newOrders("s7", 20)) }()
	time.AfterFunc(either(3*time.Second, 17*time.Second), func() { in.volley(newOrders("s7-refused", 50)) })
	seen = watch(t, prometheus, begin.Add(either(2*time.Minute, 5*time.Minute)), func(seen map[string]*times) bool {
		for _, name := range []string{"PaymentsFailing", "BreakerOpen"} {
			if seen[name] == nil || seen[name].firing.IsZero() || pager.delivered(name).IsZero() {
				return false
			}
		}
		return true
	})
	close(stop)
	buyers.Wait()
	<-first
	report := "\nseconds from the beginning of the outage | pending | firing | delivered"
	for _, name := range []string{"BreakerOpen", "PaymentsFailing"} {
		at := seen[name]
		if at == nil || at.firing.IsZero() || pager.delivered(name).IsZero() {
			t.Errorf("%s: %+v, delivered %s", name, at, pager.delivered(name))
			continue
		}
		report += fmt.Sprintf("\n%-40s | %7.1f | %6.1f | %9.1f", name, at.pending.Sub(begin).Seconds(), at.firing.Sub(begin).Seconds(), pager.delivered(name).Sub(begin).Seconds())
	}
	if at := seen["BreakerOpen"]; realTime() && at != nil && at.firing.Sub(begin) > 45*time.Second {
		t.Errorf("BreakerOpen fires %s after the outage began, promised are 45 s", at.firing.Sub(begin))
	}
	if groups := pager.groups(); len(groups) != 1 {
		t.Errorf("one outage is %d groups: %v", len(groups), groups)
	}
	t.Logf("%s\nmessages: %d, all of one group; alerts in them: %v", report, pager.messages(), pager.names())
}

// buyers confirm n times a second until stop.
func (in *instance) buyers(stop chan struct{}, n time.Duration) *sync.WaitGroup {
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(time.Second / n)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				all.Go(func() { in.timed(newOrder("s7-buyer")) })
			}
		}
	})
	return &all
}

// times are when an alert was first seen.
type times struct{ pending, firing time.Time }

// watch looks at Prometheus's alerts until a time or until enough is seen.
func watch(t testing.TB, prometheus *watcher, end time.Time, enough func(map[string]*times) bool) map[string]*times {
	t.Helper()
	seen := map[string]*times{}
	for ; time.Now().Before(end) && !enough(seen); time.Sleep(200 * time.Millisecond) {
		var now struct {
			Alerts []struct {
				Labels   map[string]string
				State    string
				ActiveAt time.Time
			}
		}
		prometheus.ask("/api/v1/alerts", &now)
		for _, a := range now.Alerts {
			name := a.Labels["alertname"]
			if seen[name] == nil {
				seen[name] = &times{pending: a.ActiveAt}
			}
			if a.State == "firing" && seen[name].firing.IsZero() {
				seen[name].firing = time.Now()
			}
		}
	}
	return seen
}

// shorter is how durations of the rules shrink when time runs faster; the others stay.
var shorter = map[string]string{"5m": "15s", "1m": "3s", "10s": "2s"}

func shrink(text string) string {
	return regexp.MustCompile(`\b(5m|1m|10s)\b`).ReplaceAllStringFunc(text, func(d string) string { return shorter[d] })
}

// rulesFile are the rules as they are shipped, or quicker ones, and how often to scrape and evaluate.
func rulesFile(t testing.TB) (path string, interval time.Duration) {
	t.Helper()
	path, err := filepath.Abs("../../deploy/prometheus/rules/paymentd.yml")
	if err != nil {
		t.Fatal(err)
	}
	if realTime() {
		return path, 10 * time.Second
	}
	return written(t, "rules.yml", shrink(text(t, path))), time.Second
}

// alertmanagerFile is the shipped one with another receiver.
func alertmanagerFile(t testing.TB, receiver string) string {
	t.Helper()
	raw := text(t, "../../deploy/alertmanager/alertmanager.yml")
	if !realTime() {
		raw = shrink(raw)
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(raw), &config); err != nil {
		t.Fatal(err)
	}
	config["receivers"] = []any{map[string]any{
		"name": "operators", "webhook_configs": []any{map[string]any{"url": receiver, "send_resolved": true}},
	}}
	out, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return written(t, "alertmanager.yml", string(out))
}

func text(t testing.TB, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func written(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// pager receives what Alertmanager would mail to operators.
type pager struct {
	url string
	mu  sync.Mutex
	got []page
}

// page is one message.
type page struct {
	at       time.Time
	GroupKey string
	Alerts   []struct {
		Status string
		Labels map[string]string
	}
}

func newPager(t testing.TB) *pager {
	p := &pager{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		message := page{at: time.Now()}
		if err := json.NewDecoder(r.Body).Decode(&message); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.got = append(p.got, message)
	}))
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

func (p *pager) messages() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got)
}

// delivered is when an alert first came, zero if it has not.
func (p *pager) delivered(name string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.got {
		for _, a := range m.Alerts {
			if a.Labels["alertname"] == name && a.Status == "firing" {
				return m.at
			}
		}
	}
	return time.Time{}
}

func (p *pager) groups() []string {
	return p.distinct(func(m page, add func(string)) { add(m.GroupKey) })
}

func (p *pager) names() []string {
	return p.distinct(func(m page, add func(string)) {
		for _, a := range m.Alerts {
			add(a.Labels["alertname"])
		}
	})
}

func (p *pager) distinct(of func(page, func(string))) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, m := range p.got {
		of(m, func(s string) { all = append(all, s) })
	}
	slices.Sort(all)
	return slices.Compact(all)
}
