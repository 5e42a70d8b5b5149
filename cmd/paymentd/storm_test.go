package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
)

// stormFaults are what the gateway does to the calls of the storm.
func stormFaults() []tosssim.Fault {
	c := tosssim.OpConfirm
	return []tosssim.Fault{
		{Op: tosssim.OpAny, Latency: tosssim.Latency{Min: 5e6, Max: 60e6}},
		{Op: c, Latency: tosssim.Fixed(400 * time.Millisecond), Rate: 0.1},
		{Op: c, Hang: true, Rate: 0.03},
		{Op: c, Hang: true, Work: tosssim.WorkDo, Rate: 0.03},
		{Op: c, Late: tosssim.Duration(1500 * time.Millisecond), Rate: 0.03},
		{Op: c, Drop: tosssim.DropAfter, Rate: 0.06},
		{Op: c, Drop: tosssim.DropBefore, Rate: 0.05},
		{Op: c, Status: 503, Rate: 0.05},
		{Op: c, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Rate: 0.04},
		{Op: c, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Work: tosssim.WorkDo, Rate: 0.03},
		{Op: c, Code: "PROVIDER_ERROR", Rate: 0.04},
		{Op: c, Code: "ALREADY_PROCESSED_PAYMENT", Work: tosssim.WorkDo, Rate: 0.03},
		{Op: c, Code: "INVALID_PASSWORD", Rate: 0.04},
		{Op: c, Status: 429, Rate: 0.03},
		{Op: c, Malformed: tosssim.MalformedTruncated, Rate: 0.03},
		{Op: tosssim.OpLookup, Status: 500, Rate: 0.08},
		{Op: tosssim.OpLookup, Drop: tosssim.DropBefore, Rate: 0.05},
		{Op: tosssim.OpLookup, Hang: true, Rate: 0.03},
	}
}

// seed is PAYMENTD_TEST_SEED, else a new one; the log tells it.
func seed(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(os.Getenv("PAYMENTD_TEST_SEED"), 10, 64)
	if err != nil {
		n = uint64(time.Now().UnixNano())
	}
	t.Logf("PAYMENTD_TEST_SEED=%d", n)
	return n
}

// TestStorm: 200 confirms of 60 orders, doubled and with second keys, on two instances of both policies, while the
// gateway does everything wrong that it can. Then it is well, and the books agree.
func TestStorm(t *testing.T) {
	t.Parallel()
	n := seed(t)
	rng := rand.New(rand.NewPCG(n, 1))
	w := newWorldOn(t, devdb.New(t, migrated()), tosssim.Options{Seed: n},
		append(brief, "PAYMENTD_RETRY_MAX=1", "PAYMENTD_BREAKER_OPEN_FOR=300ms", "PAYMENTD_ANSWER_WITHIN=2s")...)
	ins := []*instance{w.start(), w.start("PAYMENTD_ON_UNAVAILABLE=pending")}
	w.faults(stormFaults()...)
	calls := stormCalls(rng)
	answers := make([]answer, len(calls))
	work := make(chan int)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range work {
				a, err := call(t, http.MethodPost, ins[i%2].url+"/payments/confirm", checkoutSecret, calls[i].json())
				if err != nil {
					t.Error(err)
				}
				answers[i] = a
			}
		})
	}
	for i := range calls {
		work <- i
		switch i {
		case 60, 130:
			w.listen(false)
		case 75, 140:
			w.listen(true)
		}
	}
	close(work)
	workers.Wait()

	w.faults()
	w.listen(true)
	eventually(t, "nothing is unfinished", func() bool {
		w.hasten()
		return w.count(`SELECT count(*) FROM payments WHERE status NOT IN ('PAID', 'FAILED')`) == 0
	})
	l := w.ledgerHolds()
	t.Log(l, w.toss.Counters().Codes)
	if l.Doubt != 0 || l.Incident != 0 || l.Paid == 0 {
		t.Error(l)
	}
	for i, a := range answers {
		w.truthful(calls[i], a)
	}
}

func stormCalls(rng *rand.Rand) []order {
	orders := make([]order, 60)
	for i := range orders {
		orders[i] = newOrder(fmt.Sprintf("storm%d_", i))
	}
	calls := make([]order, 200)
	for i := range calls {
		calls[i] = orders[rng.IntN(len(orders))]
		if rng.IntN(5) == 0 {
			calls[i].key += "9"
		}
	}
	return calls
}

// truthful compares what a caller was told with what became of the payment.
func (w *world) truthful(o order, a answer) {
	w.t.Helper()
	e := w.entry(o)
	ok := false
	switch a.status {
	case 200:
		ok = e.Approvals == 1 && e.Balance == 15000
	case 402:
		ok = e.Approvals == 0
	case 202, 409:
		ok = true
	case 503:
		// The same payment may have been paid by a later call; nothing more is promised.
		ok = a.text("code") == "pg_unavailable"
	}
	if !ok {
		w.t.Errorf("answered %d %s, the simulator has %+v", a.status, a.raw, e)
	}
}
