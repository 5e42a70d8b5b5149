package pg

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/breaker"
	"paymentd/internal/payment"
)

const (
	outcomeApproved      = "approved"
	outcomeDeclined      = "declined"
	outcomeUnknown       = "unknown"
	outcomeUnavailable   = "unavailable"
	outcomeMisconfigured = "misconfigured"
	outcomeOther         = "other"

	sequenceAbsorbed  = "absorbed"
	sequenceExhausted = "exhausted"
)

type metrics struct {
	attempts    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	sequences   *prometheus.CounterVec
	transitions *prometheus.CounterVec
	results     *prometheus.CounterVec
	inFlight    prometheus.Gauge
	waiting     prometheus.Gauge
	refused     *prometheus.CounterVec
}

// newMetrics registers every series at 0. A nil registerer registers nothing.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "paymentd_" + name, Help: help}, labels)
	}
	m := &metrics{
		attempts: counter("gateway_attempts_total", "Tries that were sent to Toss or failed to connect, by what they told.", "op", "outcome"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "paymentd_gateway_duration_seconds", Help: "Time of one try at the gateway.",
			Buckets: []float64{.01, .05, .1, .2, .3, .5, .75, 1, 2, 3, 5, 7.5, 10, 15, 30, 60},
		}, []string{"op", "outcome"}),
		sequences:   counter("retry_sequences_total", "Confirms that needed a retry, by whether it helped.", "result"),
		transitions: counter("breaker_transitions_total", "Changes of the breaker's state.", "from", "to"),
		results:     counter("breaker_results_total", "What became of calls at the breaker.", "result"),
		inFlight:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "paymentd_bulkhead_in_flight", Help: "Confirms at the gateway now."}),
		waiting:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "paymentd_bulkhead_waiting", Help: "Confirms that wait for a place at the gateway."}),
		refused:     counter("refused_total", "Confirms refused before anything was sent.", "by"),
	}
	for _, op := range []string{opConfirm, opLookup, opCancel, opTransactions} {
		for _, outcome := range []string{outcomeApproved, outcomeDeclined, outcomeUnknown, outcomeUnavailable, outcomeMisconfigured, outcomeOther} {
			m.attempts.WithLabelValues(op, outcome)
			m.duration.WithLabelValues(op, outcome)
		}
	}
	m.sequences.WithLabelValues(sequenceAbsorbed)
	m.sequences.WithLabelValues(sequenceExhausted)
	for _, from := range breaker.States() {
		for _, to := range breaker.States() {
			if from != to {
				m.transitions.WithLabelValues(from.String(), to.String())
			}
		}
	}
	for _, r := range breaker.Results() {
		m.results.WithLabelValues(r.String())
	}
	for _, by := range []payment.Refuser{payment.RefusedByBreaker, payment.RefusedByLimiter, payment.RefusedByBulkhead} {
		m.refused.WithLabelValues(string(by))
	}
	return m, register(reg, m.attempts, m.duration, m.sequences, m.transitions, m.results, m.inFlight, m.waiting, m.refused)
}

// showState registers the state as it is at each scrape, so that an idle gauge cannot lie. No breaker is closed.
func showState(reg prometheus.Registerer, state func() breaker.State) error {
	var all []prometheus.Collector
	for _, s := range breaker.States() {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "paymentd_breaker_state", Help: "1 for the state that the breaker is in.",
			ConstLabels: prometheus.Labels{"state": s.String()},
		}, func() float64 {
			if state() == s {
				return 1
			}
			return 0
		}))
	}
	return register(reg, all...)
}

func register(reg prometheus.Registerer, all ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) transition(from, to breaker.State) {
	m.transitions.WithLabelValues(from.String(), to.String()).Inc()
}

func (m *metrics) breakerResult(r breaker.Result) { m.results.WithLabelValues(r.String()).Inc() }

func (m *metrics) try(op string, a payment.Answer) {
	outcome := outcomeOf(op, a)
	m.attempts.WithLabelValues(op, outcome).Inc()
	m.duration.WithLabelValues(op, outcome).Observe(a.Took.Seconds())
}

func (m *metrics) refusal(by payment.Refuser) {
	if by != payment.RefusedByLease {
		m.refused.WithLabelValues(string(by)).Inc()
	}
}

// sequence counts a confirm with a retry: absorbed if its end shows Toss well.
func (m *metrics) sequence(last answer) {
	result := sequenceExhausted
	if verdict(*last) == breaker.Success {
		result = sequenceAbsorbed
	}
	m.sequences.WithLabelValues(result).Inc()
}

// outcomeOf is the label of one try: approved means that Toss did what was asked for, or shows it done.
func outcomeOf(op string, a payment.Answer) string {
	switch a.Kind {
	case payment.KindPayment:
		return outcomeOfPayment(op, a.Observation.Sighting)
	case payment.KindDeclined, payment.KindRejected, payment.KindSessionGone:
		return outcomeDeclined
	case payment.KindNotConnected, payment.KindThrottled:
		return outcomeUnavailable
	case payment.KindMisconfigured:
		return outcomeMisconfigured
	case payment.KindNotFound:
		return outcomeOther
	default:
		return outcomeUnknown
	}
}

func outcomeOfPayment(op string, s payment.Sighting) string {
	switch {
	case s == payment.SeenDone || op == opCancel || op == opTransactions:
		return outcomeApproved
	case s == payment.SeenAborted || s == payment.SeenExpired:
		return outcomeDeclined
	case s == payment.SeenUnknownStatus:
		return outcomeUnknown
	default:
		return outcomeOther
	}
}
