package notify

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/payment"
)

type metrics struct{ attempts *prometheus.CounterVec }

// newMetrics registers paymentd_notice_attempts_total with every pair at 0.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "paymentd_notice_attempts_total",
		Help: "Tries to deliver a notice, by sink and result; dead is the last failed try of a notice.",
	}, []string{"sink", "result"})}
	for _, s := range []sinkName{toLog, toWebhook, toMail} {
		for _, result := range []string{"delivered", "failed", "dead", "superseded"} {
			m.attempts.WithLabelValues(string(s), result)
		}
	}
	if err := r.Register(m.attempts); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return m, nil
}

// count counts one try; a notice that stays queued has failed.
func (m *metrics) count(s sinkName, state payment.NoticeState) {
	result := string(state)
	if state == payment.NoticeQueued {
		result = "failed"
	}
	m.attempts.WithLabelValues(string(s), result).Inc()
}
