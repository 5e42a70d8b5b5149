package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"paymentd/internal/tosssim"
)

// TestScenarioS11: two runs of a nightly batch confirm the same orders at once, the second with fresh paymentKeys. The
// first is killed half-way and started again from the beginning. Every order is charged once; every duplicate is a
// replayed 200 or a 409.
func TestScenarioS11(t *testing.T) {
	t.Parallel()
	n := 200
	if realTime() {
		n = 1000
	}
	w := newWorld(t, "PAYMENTD_BULKHEAD=0")
	ins := []*instance{w.start(), w.start()}
	w.faults(tosssim.Fault{Op: tosssim.OpAny, Latency: tosssim.Latency{Max: 20e6}})
	first, fresh := manyOrders("batch", n), make([]order, n)
	for i, o := range first {
		fresh[i] = o
		fresh[i].key += "9"
	}
	var mu sync.Mutex
	var heard []verdict
	hear := func(v verdict) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, v)
	}
	var runs sync.WaitGroup
	runs.Go(func() {
		run, kill := context.WithCancel(t.Context())
		defer kill()
		answered := 0
		ins[0].batch(run, first, func(v verdict) {
			hear(v)
			mu.Lock()
			defer mu.Unlock()
			if answered++; answered == n/2 {
				kill()
			}
		})
		ins[0].batch(t.Context(), first, hear)
	})
	runs.Go(func() { ins[1].batch(t.Context(), fresh, hear) })
	runs.Wait()

	told := map[string]int{}
	winners := map[string]int{}
	for _, v := range heard {
		kind := fmt.Sprint(v.answer.status)
		switch {
		case v.answer.status == 200 && v.answer.header.Get("Idempotent-Replayed") == "true":
			kind += " replayed"
		case v.answer.status == 200:
			winners[v.order.id]++
		case v.answer.status != 409 || v.answer.text("code") != "order_conflict":
			t.Errorf("%s: answered %d %s", v.order.id, v.answer.status, v.answer.raw)
		}
		told[kind]++
	}
	t.Log(told)
	eventually(t, "what the killed run had under way is finished", func() bool { return w.unfinished() == 0 })
	for i, o := range first {
		one, other := w.entry(o).Approvals, w.entry(fresh[i]).Approvals
		if one+other != 1 || winners[o.id] > 1 {
			t.Errorf("%s: charged %d times, %d answers are no replay", o.id, one+other, winners[o.id])
		}
	}
	w.equal("approvals", int(w.toss.Ledger().Approvals), n)
	w.equal("paid", w.paid(), n)
	t.Log(w.ledgerHolds())
}

// verdict is what a batch was told of an order.
type verdict struct {
	order  order
	answer answer
}

// batch confirms the orders in their sequence, eight at a time, until it is killed: nobody reads the answers then.
func (in *instance) batch(run context.Context, orders []order, heard func(verdict)) {
	work := make(chan order)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for o := range work {
				a, err := callUntil(run, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, o.json())
				if run.Err() != nil {
					return
				}
				if err != nil {
					in.t.Error(err)
				}
				heard(verdict{order: o, answer: a})
			}
		})
	}
	for _, o := range orders {
		select {
		case work <- o:
		case <-run.Done():
		}
	}
	close(work)
	workers.Wait()
}
