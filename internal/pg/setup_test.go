package pg

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// plain are options with every layer off.
func plain() Options {
	return Options{
		BaseURL: "http://gateway.test", SecretKey: "test_sk_secret",
		ConnectTimeout: 3 * time.Second, ConfirmTimeout: 15 * time.Second, LookupTimeout: 5 * time.Second, CancelTimeout: 15 * time.Second,
	}
}

// layered are options with every layer on, retry inside the breaker.
func layered() Options {
	o := plain()
	o.Retry = Retry{Max: 1, Delay: 500 * time.Millisecond, On: []Cause{CauseConnect, CauseReset, Cause5xx}}
	o.Rate = Rate{PerSecond: 30, Burst: 5, Wait: 4 * time.Second}
	o.Bulkhead = Bulkhead{Max: 20}
	o.Breaker = Breaker{Window: 20, MinCalls: 10, FailureRate: 0.5, OpenFor: 30 * time.Second, HalfOpenCalls: 3}
	return o
}

// gateway is a RoundTripper that answers by a script and keeps what it was asked.
type gateway struct {
	answer func(n int, req *http.Request) (*http.Response, error)

	mu       sync.Mutex
	requests []seen
	running  int
	most     int
}

type seen struct {
	at   time.Time
	path string
	key  string
	body string
}

// RoundTrip runs the script for call n, counted from 1.
func (g *gateway) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		body, _ = io.ReadAll(req.Body)
	}
	g.mu.Lock()
	g.requests = append(g.requests, seen{time.Now(), req.URL.EscapedPath(), req.Header.Get("Idempotency-Key"), string(body)})
	n := len(g.requests)
	g.running++
	g.most = max(g.most, g.running)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.running--
		g.mu.Unlock()
	}()
	return g.answer(n, req)
}

func (g *gateway) calls() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.requests)
}

// bench is a client over a scripted gateway.
type bench struct {
	*Client
	gateway *gateway
	reg     *prometheus.Registry
}

func setup(t *testing.T, o Options, answer func(n int, req *http.Request) (*http.Response, error)) *bench {
	t.Helper()
	b := &bench{gateway: &gateway{answer: answer}, reg: prometheus.NewRegistry()}
	o.Registerer = b.reg
	c, err := newClient(o, b.gateway)
	if err != nil {
		t.Fatal(err)
	}
	b.Client = c
	t.Cleanup(c.Close)
	return b
}

// value reads one series, named like `refused_total{by="limiter"}`.
func (b *bench) value(t *testing.T, series string) float64 { return valueOf(t, b.reg, series) }

func valueOf(t *testing.T, reg *prometheus.Registry, series string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := strings.TrimPrefix(f.GetName(), "paymentd_")
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			if name == series {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Fatalf("no series %s", series)
	return 0
}

func orderOf(key string) payment.Order {
	return payment.Order{PaymentKey: key, OrderID: "order-" + key, Amount: 15000, Currency: "KRW"}
}

// call is a confirm whose key rule always sends the next key.
func call(key string) approval.ConfirmCall {
	n := 1
	return approval.ConfirmCall{
		Order: orderOf(key), Key: payment.ConfirmKey(key, 1), NotAfter: time.Now().Add(time.Hour),
		Next: func(_ context.Context, last payment.Answer) (string, bool, payment.Answer) {
			if last.SpendsKey() {
				n++
			}
			return payment.ConfirmKey(key, n), true, payment.Answer{}
		},
	}
}

func respond(status int, body string) (*http.Response, error) {
	return &http.Response{
		StatusCode: status, Header: http.Header{"X-Tosspayments-Trace-Id": {"trace-1"}}, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func fault() (*http.Response, error) {
	return respond(500, `{"code":"FAILED_INTERNAL_SYSTEM_PROCESSING","message":"m"}`)
}

// approve answers the request's own order.
func approve(req *http.Request) (*http.Response, error) {
	key := strings.TrimSuffix(req.Header.Get("Idempotency-Key"), ":1")
	if i := strings.LastIndex(key, ":"); i > 0 {
		key = key[:i]
	}
	return respond(200, doneBody(key))
}

func doneBody(key string) string {
	return fmt.Sprintf(`{"paymentKey":%q,"orderId":"order-%s","status":"DONE","currency":"KRW","totalAmount":15000,"balanceAmount":15000}`, key, key)
}

// connected is what a real transport reports when a request has got its connection.
func connected(req *http.Request) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
		trace.GetConn("")
		trace.GotConn(httptrace.GotConnInfo{})
	}
}

func reset(req *http.Request) (*http.Response, error) {
	connected(req)
	return nil, &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
}

func refusedDial() (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

// hang answers when the caller gives up.
func hang(req *http.Request) (*http.Response, error) {
	connected(req)
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func kinds(answers []payment.Answer) (all []string) {
	for _, a := range answers {
		word := string(a.Kind)
		if a.Refuser != "" {
			word += " by " + string(a.Refuser)
		}
		all = append(all, word)
	}
	return all
}

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }
