package store

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/payment"
)

// metrics counts moves and watches the pools. Figures of the database are read when they are asked for.
type metrics struct {
	store        *Store
	settledTotal *prometheus.CounterVec
	settleTook   *prometheus.HistogramVec
	acquireTook  *prometheus.HistogramVec
	timeouts     *prometheus.CounterVec

	connections, connectionsMax, waiting *prometheus.Desc
	payments, oldest, incidents, notices *prometheus.Desc

	mu      sync.Mutex
	figures figures
	readAt  time.Time
}

const (
	// figuresAge is how old the figures of a scrape may be, figuresWait how long a scrape waits for new ones.
	figuresAge, figuresWait = 2 * time.Second, time.Second
)

func newMetrics(r prometheus.Registerer, s *Store) *metrics {
	gauge := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m := &metrics{
		store: s,
		settledTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "paymentd_settled_total", Help: "Moves of payments, by the state moved to and who brought the news.",
		}, []string{"status", "actor"}),
		settleTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "paymentd_settle_duration_seconds", Help: "Time from the reservation to PAID or FAILED.",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 86400},
		}, []string{"actor"}),
		acquireTook: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "paymentd_db_acquire_duration_seconds", Help: "Wait for a database connection, dialing included.",
			Buckets: []float64{.0001, .001, .005, .01, .05, .1, .5, 1, 2, 5},
		}, []string{"pool"}),
		timeouts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "paymentd_db_acquire_timeouts_total", Help: "Waits for a database connection that took too long.",
		}, []string{"pool"}),
		connections:    gauge("paymentd_db_connections", "Open database connections.", "pool", "state"),
		connectionsMax: gauge("paymentd_db_connections_max", "The most database connections the pool may open.", "pool"),
		waiting:        gauge("paymentd_db_acquire_waiting", "Callers that wait for a database connection, or longer than 50 ms for the statement ahead.", "pool"),
		payments:       gauge("paymentd_payments", "Unfinished payments (the same on every instance).", "status"),
		oldest:         gauge("paymentd_oldest_pending_seconds", "Age of the oldest PENDING payment, 0 if there is none."),
		incidents:      gauge("paymentd_incidents_open", "Open incidents (the same on every instance).", "kind"),
		notices:        gauge("paymentd_notices", "Notices that are not delivered (the same on every instance).", "state"),
	}
	for _, a := range payment.Actors() {
		m.settleTook.WithLabelValues(string(a))
		for _, status := range payment.Statuses() {
			m.settledTotal.WithLabelValues(string(status), string(a))
		}
	}
	for _, p := range []*pool{s.request, s.background} {
		p.took, p.timeouts = m.acquireTook.WithLabelValues(p.name), m.timeouts.WithLabelValues(p.name)
	}
	if r != nil {
		r.MustRegister(m)
	}
	return m
}

func (m *metrics) unregister(r prometheus.Registerer) { r.Unregister(m) }

// settled counts one move. updated_at and reserved_at are one clock.
func (m *metrics) settled(p payment.Payment, by payment.Actor) {
	m.settledTotal.WithLabelValues(string(p.Status), string(by)).Inc()
	if p.Status == payment.Paid || p.Status == payment.Failed {
		m.settleTook.WithLabelValues(string(by)).Observe(p.UpdatedAt.Sub(p.ReservedAt).Seconds())
	}
}

// Describe tells all metrics of the store.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.connections, m.connectionsMax, m.waiting, m.payments, m.oldest, m.incidents, m.notices,
	} {
		to <- d
	}
	for _, c := range m.collectors() {
		c.Describe(to)
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.settledTotal, m.settleTook, m.acquireTook, m.timeouts}
}

// Collect reads the pools and, if the background pool has a connection free at this instant, the database; a sick
// database leaves the last figures.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(to)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, p := range []*pool{m.store.request, m.store.background} {
		stat := p.conns.Stat()
		gauge(m.connections, float64(stat.AcquiredConns()), p.name, "in_use")
		gauge(m.connections, float64(stat.IdleConns()), p.name, "idle")
		gauge(m.connectionsMax, float64(cap(p.slots)), p.name)
		gauge(m.waiting, float64(p.waiting.Load()), p.name)
	}
	f := m.current()
	for _, status := range payment.Statuses() {
		if status.Unfinished() {
			gauge(m.payments, float64(f.Unfinished[status]), string(status))
		}
	}
	gauge(m.oldest, f.OldestPending.Seconds())
	for _, k := range payment.IncidentKinds() {
		gauge(m.incidents, float64(f.Incidents[k]), string(k))
	}
	for _, state := range []payment.NoticeState{payment.NoticeQueued, payment.NoticeDead} {
		gauge(m.notices, float64(f.Notices[state]), string(state))
	}
}

func (m *metrics) current() figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.readAt) < figuresAge {
		return m.figures
	}
	ctx, cancel := context.WithTimeout(context.Background(), figuresWait)
	defer cancel()
	conn := m.store.background.tryAcquire(ctx)
	if conn == nil {
		return m.figures
	}
	_ = conn.run(ctx, func(ctx context.Context, conn *lentConn) error {
		f, err := readFigures(ctx, conn)
		if err == nil {
			m.figures, m.readAt = f, time.Now()
		}
		return err
	})
	return m.figures
}
