package httpapi

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/payment"
)

// metrics count the answers to confirms.
type metrics struct {
	confirms *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		confirms: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "paymentd_confirm_total",
			Help: "Answers to POST /payments/confirm, one each; calls without a good key do not count.",
		}, []string{"result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "paymentd_confirm_duration_seconds",
			Help:    "Time from the end of a confirm's headers to its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2, 3, 5, 7.5, 10, 12, 15, 30},
		}, []string{"result"}),
	}
	reg.MustRegister(m.confirms, m.duration)
	for _, result := range payment.Results() {
		m.confirms.WithLabelValues(string(result))
		m.duration.WithLabelValues(string(result))
	}
	return m
}

func (m *metrics) known(r payment.Result) bool { return slices.Contains(payment.Results(), r) }

func (m *metrics) answered(r payment.Result, took time.Duration) {
	m.confirms.WithLabelValues(string(r)).Inc()
	m.duration.WithLabelValues(string(r)).Observe(took.Seconds())
}
