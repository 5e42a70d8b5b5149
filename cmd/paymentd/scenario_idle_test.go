package main

import (
	"testing"
	"time"
)

// TestScenarioS3NobodyComes: an outage after which no buyer comes any more. Recovery alone closes the breaker and sends
// what could not be sent, one trial at a time.
func TestScenarioS3NobodyComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.scenario("connect-only-pending", []string{"PAYMENTD_BREAKER_OPEN_FOR=500ms"}, "PAYMENTD_RETRY_DELAY=20ms")
	w.listen(false)
	orders := newOrders("idle_", 6)
	for _, o := range orders {
		in.confirm(o).want(t, 202, "PENDING")
	}
	if !in.is("open") && !in.is("half_open") {
		t.Error("the breaker did not open")
	}
	w.listen(true)
	w.hasten()
	for _, o := range orders {
		w.becomes(o, "PAID")
	}
	awaits(t, "the breaker closes", 10*time.Second, func() bool { return in.is("closed") })
	w.chargedOnce(orders)
}
