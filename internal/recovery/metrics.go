package recovery

import (
	"paymentd/internal/approval"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	actions     *prometheus.CounterVec
	lastSuccess prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "paymentd_recovery_total", Help: "What recovery, sync and webhooks did, one per payment looked at.",
		}, []string{"action"}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "paymentd_recovery_last_success_timestamp_seconds",
			Help: "When the due loop last found everything worked off, in Unix seconds.",
		}),
	}
	for _, d := range approval.AllDid() {
		m.actions.WithLabelValues(string(d))
	}
	reg.MustRegister(m.actions, m.lastSuccess)
	return m
}

func (m *metrics) did(d approval.Did) { m.actions.WithLabelValues(string(d)).Inc() }

func (m *metrics) succeeded() { m.lastSuccess.SetToCurrentTime() }
