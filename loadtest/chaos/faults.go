package main

import (
	"math/rand/v2"
	"time"

	"paymentd/internal/tosssim"
)

// gatewayFaults is everything that a call to Toss can meet.
func gatewayFaults() []tosssim.Fault {
	c, l, g := tosssim.OpConfirm, tosssim.OpLookup, tosssim.OpCancel
	late := func(d time.Duration) tosssim.Duration { return tosssim.Duration(d) }
	return []tosssim.Fault{
		{Op: c, Hang: true}, {Op: c, Hang: true, Work: tosssim.WorkDo}, {Op: c, Latency: tosssim.Fixed(500 * time.Millisecond)},
		{Op: c, Late: late(1500 * time.Millisecond)}, {Op: c, Late: late(4 * time.Second)}, {Op: c, Late: late(2 * time.Second), Drop: tosssim.DropBefore},
		{Op: c, Late: late(2 * time.Second), Status: 503}, {Op: c, Late: late(3 * time.Second), Code: "PROVIDER_ERROR"},
		{Op: c, Drop: tosssim.DropAfter}, {Op: c, Drop: tosssim.DropBefore}, {Op: c, Status: 503}, {Op: c, Status: 502, Work: tosssim.WorkDo},
		{Op: c, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING"}, {Op: c, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Work: tosssim.WorkDo},
		{Op: c, Code: "PROVIDER_ERROR"}, {Op: c, Code: "ALREADY_PROCESSED_PAYMENT", Work: tosssim.WorkDo}, {Op: c, Code: "INVALID_PASSWORD"},
		{Op: c, Status: 429}, {Op: c, Status: 401, Code: "UNAUTHORIZED_KEY"}, {Op: c, Malformed: tosssim.MalformedTruncated},
		{Op: c, Malformed: tosssim.MalformedHTML}, {Op: c, Malformed: tosssim.MalformedEmpty}, {Op: c, Code: "NOT_FOUND_PAYMENT_SESSION"},
		{Op: c, Code: "NOT_FOUND_PAYMENT_SESSION", Work: tosssim.WorkDo}, {Op: c, Code: "INVALID_REQUEST", Work: tosssim.WorkDo},
		{Op: c, Code: "FORBIDDEN_REQUEST"}, {Op: c, Status: 409, Code: "IDEMPOTENT_REQUEST_PROCESSING"},
		{Op: l, Status: 500}, {Op: l, Drop: tosssim.DropBefore}, {Op: l, Hang: true}, {Op: l, Malformed: tosssim.MalformedTruncated}, {Op: l, Status: 429},
		{Op: g, Drop: tosssim.DropAfter}, {Op: g, Hang: true, Work: tosssim.WorkDo}, {Op: g, Status: 500}, {Op: g, Late: late(2 * time.Second)},
		{Op: g, Drop: tosssim.DropBefore}, {Op: g, Code: "PROVIDER_ERROR"},
	}
}

// mix draws half of the faults, each for 1 to 11 % of its calls, over a latency of up to 320 ms.
func mix(rng *rand.Rand) []tosssim.Fault {
	slowest := tosssim.Duration(20+rng.IntN(300)) * tosssim.Duration(time.Millisecond)
	out := []tosssim.Fault{{Op: tosssim.OpAny, Latency: tosssim.Latency{Min: tosssim.Duration(5 * time.Millisecond), Max: slowest}}}
	for _, f := range gatewayFaults() {
		if rng.IntN(2) == 0 {
			f.Rate = 0.01 + 0.10*rng.Float64()
			out = append(out, f)
		}
	}
	return out
}

// settings draws what all instances of a round share, and what each has of its own. Time-outs and leases are short, so
// that a dead holder's work is taken over within seconds.
func settings(rng *rand.Rand, instances int) (shared []string, own [][]string) {
	pick := func(name string, values ...string) string {
		return "PAYMENTD_" + name + "=" + values[rng.IntN(len(values))]
	}
	shared = []string{
		"PAYMENTD_RATE_LIMIT=0", "PAYMENTD_MEMBER_LIMIT=0", "PAYMENTD_RATE_WAIT=0s", "PAYMENTD_RETRY_DELAY=20ms", "PAYMENTD_LOOKUP_RATE=1000/s",
		"PAYMENTD_CANCEL_RATE=1000/s", "PAYMENTD_TOSS_CONNECT_TIMEOUT=1s", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=1s", "PAYMENTD_TOSS_LOOKUP_TIMEOUT=1s",
		"PAYMENTD_TOSS_CANCEL_TIMEOUT=1s", "PAYMENTD_COMMIT_WITHIN=1s", "PAYMENTD_DB_CONNECT_TIMEOUT=8s", "PAYMENTD_SHUTDOWN_WITHIN=3s",
		"PAYMENTD_RECOVERY_DUE_EVERY=100ms", "PAYMENTD_RECOVERY_EVERY=3s",
		pick("BREAKER_OPEN_FOR", "300ms", "1s", "2s"), pick("ANSWER_WITHIN", "800ms", "2s", "4s"),
		pick("DB_STATEMENT_TIMEOUT", "300ms", "2s", "5s"), pick("DB_MAX_CONNS", "2", "4", "10"), pick("DB_BACKGROUND_CONNS", "1", "4"),
	}
	for range instances {
		own = append(own, []string{
			pick("RETRY_MAX", "0", "1", "2"), pick("RETRY_PLACE", "inside", "outside"), pick("ON_UNAVAILABLE", "reject", "pending"),
			pick("ON_COMMIT_FAILURE", "hold", "cancel", "cancel"), pick("BULKHEAD", "3", "20", "0"), pick("DB_MERGE", "on", "off"),
		})
	}
	return shared, own
}
