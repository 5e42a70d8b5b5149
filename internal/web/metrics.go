package web

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// otherRoute counts what matched no route.
const otherRoute = "other"

// Metrics count the requests of both doors; make one and give it to both.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec

	mu     sync.RWMutex
	routes map[string]bool
}

// NewMetrics registers paymentd_http_requests_total{route,code} and paymentd_http_duration_seconds{route}. A door
// adds its routes, every one at 0 in all four classes.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := newMetrics(reg)
	m.register(otherRoute)
	return m
}

func newMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "paymentd_http_requests_total",
			Help: "Answered HTTP requests by route and class of status.",
		}, []string{"route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "paymentd_http_duration_seconds",
			Help:    "Time from the end of a request's headers to the end of its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30},
		}, []string{"route"}),
		routes: map[string]bool{},
	}
	reg.MustRegister(m.requests, m.duration)
	return m
}

func (m *Metrics) register(route string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.routes[route] = true
	for _, class := range []string{"2xx", "3xx", "4xx", "5xx"} {
		m.requests.WithLabelValues(route, class)
	}
	m.duration.WithLabelValues(route)
}

func (m *Metrics) known(route string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.routes[route]
}

func (m *Metrics) observe(route string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status/100)+"xx").Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
}
