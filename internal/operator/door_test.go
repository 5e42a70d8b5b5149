package operator

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/web"
)

const (
	checkoutSecret = "checkout-secret-0123456789"
	operatorSecret = "operator-secret-0123456789"
)

// fixture is the door over fakes.
type fixture struct {
	*web.Door
	breaker *fakeBreaker
	log     *strings.Builder
}

func setup(t *testing.T, edit ...func(*Deps)) fixture {
	t.Helper()
	keys, err := web.ParseKeys("shop:checkout:" + checkoutSecret + ",dev:operator:" + operatorSecret)
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{breaker: &fakeBreaker{state: "closed"}, log: &strings.Builder{}}
	reg := prometheus.NewRegistry()
	deps := Deps{
		Checks: []Check{{Name: "database", Run: pass}, {Name: "migrations", Run: pass}}, Draining: func() bool { return false },
		Gatherer: reg, Breaker: f.breaker, Keys: keys, HTTP: web.NewMetrics(reg), Log: slog.New(slog.NewTextHandler(f.log, nil)),
	}
	for _, e := range edit {
		e(&deps)
	}
	f.Door, err = New(deps)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func pass(context.Context) error { return nil }

func (f fixture) send(t *testing.T, method, path, secret, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

type fakeBreaker struct {
	mu    sync.Mutex
	state string
}

func (b *fakeBreaker) ForceOpen() { b.set("forced_open") }
func (b *fakeBreaker) Release()   { b.set("half_open") }

func (b *fakeBreaker) set(state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = state
}

func (b *fakeBreaker) State() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func TestHealth(t *testing.T) {
	t.Parallel()
	fail := func(context.Context) error { return errors.New("password=secret") }
	draining := func(d *Deps) { d.Draining = func() bool { return true } }
	check := func(i int, run func(context.Context) error) func(*Deps) {
		return func(d *Deps) { d.Checks[i].Run = run }
	}
	tests := []struct {
		name   string
		path   string
		edit   []func(*Deps)
		status int
		want   string
	}{
		{name: "alive", path: "/livez", status: 200, want: `{"alive":true}`},
		{name: "alive though not ready", path: "/livez", edit: []func(*Deps){draining, check(0, fail)}, status: 200, want: `{"alive":true}`},
		{
			name: "ready", path: "/readyz", status: 200,
			want: `{"ready":true,"draining":false,"checks":[{"name":"database","ok":true},{"name":"migrations","ok":true}]}`,
		},
		{
			name: "database away", path: "/readyz", edit: []func(*Deps){check(0, fail)}, status: 503,
			want: `{"ready":false,"draining":false,"checks":[{"name":"database","ok":false},{"name":"migrations","ok":true}]}`,
		},
		{
			name: "migrations behind", path: "/readyz", edit: []func(*Deps){check(1, fail)}, status: 503,
			want: `{"ready":false,"draining":false,"checks":[{"name":"database","ok":true},{"name":"migrations","ok":false}]}`,
		},
		{
			name: "draining", path: "/readyz", edit: []func(*Deps){draining}, status: 503,
			want: `{"ready":false,"draining":true,"checks":[{"name":"database","ok":true},{"name":"migrations","ok":true}]}`,
		},
		{
			name: "a check panics", path: "/readyz", edit: []func(*Deps){check(0, func(context.Context) error { panic("secret") })}, status: 503,
			want: `{"ready":false,"draining":false,"checks":[{"name":"database","ok":false},{"name":"migrations","ok":true}]}`,
		},
		{
			name: "nothing to check", path: "/readyz", edit: []func(*Deps){func(d *Deps) { d.Checks = nil }}, status: 200,
			want: `{"ready":true,"draining":false,"checks":[]}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t, test.edit...)
			w := f.send(t, http.MethodGet, test.path, "", "")
			if diff := cmp.Diff(test.want+"\n", w.Body.String()); diff != "" || w.Code != test.status {
				t.Errorf("%d (-want +got):\n%s", w.Code, diff)
			}
			if logged := f.log.Len() > 0; logged != (test.status == 503) {
				t.Errorf("log: %s", f.log)
			}
		})
	}
}

// TestHangingCheck: a probe answers although a check does not.
func TestHangingCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := setup(t, func(d *Deps) {
			d.Checks[0].Run = func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			}
		})
		start := time.Now()
		if w := f.send(t, http.MethodGet, "/readyz", "", ""); w.Code != 503 || time.Since(start) != checkWithin {
			t.Errorf("%d after %s", w.Code, time.Since(start))
		}
		if !strings.Contains(f.log.String(), "database: context deadline exceeded") {
			t.Errorf("log: %s", f.log)
		}
	})
}

func TestMetricsAndProfiles(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, path, want string }{
		{name: "metrics", path: "/metrics", want: `paymentd_http_requests_total{code="5xx",route="/readyz"} 0`},
		{name: "index", path: "/debug/pprof/", want: "goroutine"},
		{name: "named profile", path: "/debug/pprof/goroutine?debug=1", want: "goroutine profile:"},
		{name: "command line", path: "/debug/pprof/cmdline", want: "test"},
		{name: "symbol", path: "/debug/pprof/symbol", want: "num_symbols"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := setup(t).send(t, http.MethodGet, test.path, "", "")
			if w.Code != 200 || !strings.Contains(w.Body.String(), test.want) {
				t.Errorf("%d %.200s", w.Code, w.Body)
			}
		})
	}
}

func TestBrokenCollectorHidesNoOther(t *testing.T) {
	t.Parallel()
	broken := prometheus.NewRegistry()
	broken.MustRegister(brokenCollector{})
	f := setup(t, func(d *Deps) { d.Gatherer = prometheus.Gatherers{d.Gatherer, broken} })
	w := f.send(t, http.MethodGet, "/metrics", "", "")
	if w.Code != 200 || !strings.Contains(w.Body.String(), "paymentd_http_requests_total") {
		t.Errorf("%d %.200s", w.Code, w.Body)
	}
	if !strings.Contains(f.log.String(), "collector is broken") {
		t.Errorf("log: %s", f.log)
	}
}

type brokenCollector struct{}

func (brokenCollector) Describe(chan<- *prometheus.Desc) {}

func (brokenCollector) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(errBroken), errBroken)
}

var errBroken = errors.New("collector is broken")

func TestBreakerSwitch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method, secret, body string
		status                     int
		want, state                string
	}{
		{name: "state", method: "GET", secret: operatorSecret, status: 200, want: `{"state":"closed"}`, state: "closed"},
		{name: "open", method: "POST", secret: operatorSecret, body: `{"force":"open"}`, status: 200, want: `{"state":"forced_open"}`, state: "forced_open"},
		{name: "none", method: "POST", secret: operatorSecret, body: `{"force":"none"}`, status: 200, want: `{"state":"half_open"}`, state: "half_open"},
		{name: "other word", method: "POST", secret: operatorSecret, body: `{"force":"closed"}`, status: 400, want: `"errors":[{"field":"force","reason":"must be open or none"}]`, state: "closed"},
		{name: "nothing", method: "POST", secret: operatorSecret, body: `{}`, status: 400, want: `"errors":[{"field":"force","reason":"is required"}]`, state: "closed"},
		{name: "twice", method: "POST", secret: operatorSecret, body: `{"force":"open","force":"none"}`, status: 400, want: `"reason":"appears more than once"`, state: "closed"},
		{name: "no key", method: "POST", body: `{"force":"open"}`, status: 401, want: `"code":"unauthorized"`, state: "closed"},
		{name: "checkout key", method: "POST", secret: checkoutSecret, body: `{"force":"open"}`, status: 403, want: `"code":"forbidden"`, state: "closed"},
		{name: "checkout key reads", method: "GET", secret: checkoutSecret, status: 403, want: `"code":"forbidden"`, state: "closed"},
		{name: "other method", method: "DELETE", secret: operatorSecret, status: 405, want: `"code":"method_not_allowed"`, state: "closed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			w := f.send(t, test.method, "/breaker", test.secret, test.body)
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if got := f.breaker.State(); got != test.state {
				t.Errorf("state %s, want %s", got, test.state)
			}
			audited := strings.Contains(f.log.String(), "key=dev") && strings.Contains(f.log.String(), "was=closed")
			if moved := test.method == "POST" && test.status == 200; audited != moved {
				t.Errorf("log: %s", f.log)
			}
			if strings.Contains(f.log.String(), "secret") {
				t.Errorf("a secret is in the log: %s", f.log)
			}
		})
	}
}

func TestNoBreakerNoSwitch(t *testing.T) {
	t.Parallel()
	f := setup(t, func(d *Deps) { d.Breaker = nil })
	for _, path := range []string{"/breaker", "/", "/payments/confirm"} {
		if w := f.send(t, http.MethodPost, path, operatorSecret, `{"force":"open"}`); w.Code != 404 || !strings.Contains(w.Body.String(), `"code":"not_found"`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestRoles walks every route without a key: what is open stands here.
func TestRoles(t *testing.T) {
	t.Parallel()
	open := map[string]bool{
		"/livez": true, "/readyz": true, "/metrics": true, "/debug/pprof/*": true, "/debug/pprof/cmdline": true,
		"/debug/pprof/profile": true, "/debug/pprof/symbol": true, "/debug/pprof/trace": true,
	}
	f := setup(t)
	err := chi.Walk(f.Routes(), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if open[route] {
			return nil
		}
		for secret, want := range map[string]int{"": 401, "wrong-secret-0123456789": 401, checkoutSecret: 403} {
			if w := f.send(t, method, route, secret, "{}"); w.Code != want {
				t.Errorf("%s %s with %q: %d, want %d", method, route, secret, w.Code, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNewRefusesMissingParts(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	no := func() bool { return false }
	for _, d := range []Deps{{}, {Draining: no}, {Draining: no, Gatherer: reg}, {Draining: no, Gatherer: reg, Checks: []Check{{Name: "x"}}}} {
		if _, err := New(d); err == nil {
			t.Errorf("a door of %+v", d)
		}
	}
}
