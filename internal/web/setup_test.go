package web_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"paymentd/internal/web"
)

const (
	checkoutSecret = "checkout-secret-0123456789"
	operatorSecret = "operator-secret-0123456789"
)

// fixture is a door without routes, its log and its metrics.
type fixture struct {
	*web.Door
	log *logBuffer
	reg *prometheus.Registry
}

// bodyWithin is more than a busy machine takes for a body.
const bodyWithin = 2 * time.Second

func setup(t *testing.T) fixture {
	t.Helper()
	keys, err := web.ParseKeys("shop:checkout:" + checkoutSecret + ",dev:operator:" + operatorSecret)
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{log: &logBuffer{}, reg: prometheus.NewRegistry()}
	log := slog.New(slog.NewJSONHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f.Door, err = web.NewDoor(web.Options{
		Log: log, Metrics: web.NewMetrics(f.reg), Keys: keys, Quiet: []string{"/quiet"}, BodyWithin: bodyWithin, WriteWithin: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// send serves one request; edit may change it.
func (f fixture) send(t *testing.T, method, path, body string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "req-1")
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

func bearer(secret string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret) }
}

func (f fixture) requests(t *testing.T, route, class string) float64 {
	t.Helper()
	return counter(t, f.reg, "paymentd_http_requests_total", map[string]string{"route": route, "code": class})
}

// counter reads one series; -1 if it does not exist.
func counter(t *testing.T, reg prometheus.Gatherer, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				if labels[pair.GetName()] != pair.GetValue() {
					continue series
				}
			}
			return m.GetCounter().GetValue()
		}
	}
	return -1
}

func lint(t *testing.T, reg prometheus.Gatherer) {
	t.Helper()
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

// logBuffer keeps log lines; it is safe for concurrent use.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// one returns the only line of the log, without what changes from run to run.
func (l *logBuffer) one(t *testing.T) map[string]any {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(l.String()), "\n")
	if len(lines) != 1 {
		t.Fatalf("log has %d lines, want 1:\n%s", len(lines), l)
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil {
		t.Fatal(err)
	}
	if own, ok := line["own_ms"].(float64); !ok || own < 0 {
		t.Errorf("own_ms = %v", line["own_ms"])
	}
	delete(line, "time")
	delete(line, "own_ms")
	return line
}
