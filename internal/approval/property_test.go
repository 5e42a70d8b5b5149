package approval_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// dice is chance that goroutines may share.
type dice struct {
	mu  sync.Mutex
	rnd *rand.Rand
	off bool
}

func (d *dice) roll(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.IntN(n)
}

func (d *dice) stop() { d.mu.Lock(); defer d.mu.Unlock(); d.off = true }

func (d *dice) stopped() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.off }

func (d *dice) seconds(n int) time.Duration { return time.Duration(d.roll(n*1000)) * time.Millisecond }

// storeFault lets one step in six go wrong. A write that hangs past its lease is part of it.
func (d *dice) storeFault(step approvaltest.Step) approvaltest.Fault {
	if d.stopped() {
		return approvaltest.None()
	}
	switch d.roll(36) {
	case 0, 1:
		return approvaltest.Not()
	case 2:
		return approvaltest.Maybe()
	case 3:
		return approvaltest.Lost()
	case 4:
		return approvaltest.Fault{Delay: d.seconds(6)}
	case 5:
		if step == approvaltest.Settle || step == approvaltest.Reserve {
			return approvaltest.Fault{Panic: "bug"}
		}
	}
	return approvaltest.None()
}

// gatewayFault lets every second try go wrong; what may have arrived may be done at once, late or never.
func (d *dice) gatewayFault(op string) approvaltest.Try {
	if d.stopped() {
		return try{}
	}
	unheard := []payment.Kind{payment.KindReset, payment.KindTimeout, payment.KindFault, payment.KindKeyBusy, payment.KindAmbiguous}
	switch d.roll(12) {
	case 0, 1, 2, 3:
		return try{
			Kind: unheard[d.roll(len(unheard))], Works: op != "lookup" && d.roll(3) > 0, Late: time.Duration(d.roll(2)) * d.seconds(60),
			Latency: d.seconds(14),
		}
	case 4:
		return noDial
	case 5:
		if op == "confirm" {
			return []try{declined, refusedBy(payment.RefusedByBreaker), refusedBy(payment.RefusedByLimiter), {Kind: payment.KindThrottled},
				{Kind: payment.KindSessionGone}, {Panic: "bug"}}[d.roll(6)]
		}
	}
	return try{Latency: d.seconds(14)}
}

// TestMoney is the promise: one order never has two approvals standing, and every approval at the gateway is in the
// ledger or in doubt, whatever fails and whoever races. When the faults are over, nothing is left in doubt.
func TestMoney(t *testing.T) {
	t.Parallel()
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for seed := range rounds {
		d := &dice{rnd: rand.New(rand.NewPCG(uint64(seed), 42))}
		inBubble(t, fmt.Sprintf("seed %d", seed), func(r *rig) { r.money(d) }, func(s *approval.Settings) {
			s.KeepPending, s.CancelOnCommitFailure = seed%2 == 1, seed%3 == 0
		})
	}
}

func (r *rig) money(d *dice) {
	r.gateway.Retries, r.gateway.RetryDelay = 1, 500*time.Millisecond
	r.store.Random(d.storeFault)
	r.gateway.Random(d.gatewayFault)
	services := []*approval.Service{r.service, r.another()}
	over := make(chan struct{})
	var loops, callers sync.WaitGroup
	for _, s := range services {
		loops.Go(func() { r.recover(s, over) })
	}
	loops.Go(func() { r.watch(d, over) })
	final := newVerdicts()
	for range 120 {
		s, at := services[d.roll(2)], d.seconds(180)
		o := anOrder()
		order := d.roll(3)
		o.OrderID, o.PaymentKey = fmt.Sprintf("order-%d", order), fmt.Sprintf("key-%d-%d", order, d.roll(3))
		callers.Go(func() {
			time.Sleep(at)
			_, err := s.Confirm(r.Context(), o)
			final.add(o.PaymentKey, err)
		})
	}
	callers.Wait()
	for _, s := range services {
		if err := s.Drain(r.Context()); err != nil {
			r.Error(err)
		}
	}
	d.stop()
	r.ledger(false)
	time.Sleep(time.Hour)
	close(over)
	loops.Wait()
	synctest.Wait()
	r.ledger(true)
	for _, o := range r.gateway.All() {
		if o.Charged() && final.has(o.PaymentKey) {
			r.Errorf("%s was answered as failed and is charged", o.PaymentKey)
		}
	}
}

// recover is the due loop of one instance.
func (r *rig) recover(s *approval.Service, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(5 * time.Second):
		}
		end := time.Now().Add(r.set.Lease)
		claimed, _ := r.store.ClaimDue(r.Context(), 1, r.set.Lease)
		for _, p := range claimed {
			func() {
				defer func() { _ = recover() }()
				_, _ = s.Resolve(r.Context(), p, payment.ByRecovery, end)
			}()
		}
	}
}

// watch looks every second for two approvals of one order, and every minute when the faults are over.
func (r *rig) watch(d *dice, over <-chan struct{}) {
	pause := time.Second
	for {
		standing := map[string]string{}
		for _, o := range r.gateway.All() {
			if other, twice := standing[o.OrderID]; o.Charged() && twice {
				r.Errorf("%s has two approvals standing: %s and %s", o.OrderID, other, o.PaymentKey)
				return
			}
			if o.Charged() {
				standing[o.OrderID] = o.PaymentKey
			}
		}
		if d.stopped() {
			pause = time.Minute
		}
		select {
		case <-over:
			return
		case <-time.After(pause):
		}
	}
}

// ledger puts every approval into its box; settled says that "in doubt" is empty by now.
func (r *rig) ledger(settled bool) {
	r.Helper()
	for _, o := range r.gateway.All() {
		p := r.store.Row(o.PaymentKey)
		switch {
		case p.Status == payment.Pending && !settled:
		case p.Status == payment.Paid && (o.Charged() || !settled):
		case o.Returned() && (p.Status == payment.Failed || p.Status == payment.Canceled):
		case p.Status == payment.Failed && p.HoldsOrder && !settled: // being given back
		default:
			r.Errorf("%s: %s with balance %d at the gateway, row %s %+v", o.PaymentKey, o.Sighting, o.Balance, p.Status, p.Failure)
		}
	}
	holders := map[string]int{}
	for _, p := range r.store.Rows() {
		if p.HoldsOrder {
			holders[p.OrderID]++
		}
		if o, ok := r.gateway.Truth(p.PaymentKey); p.Status == payment.Paid && !ok {
			r.Errorf("%s is PAID and the gateway knows nothing: %+v", p.PaymentKey, o)
		}
		if settled && p.Status == payment.Pending {
			r.Errorf("%s is still PENDING: %+v", p.PaymentKey, p)
		}
	}
	for order, n := range holders {
		if n > 1 {
			r.Errorf("%d payments hold %s", n, order)
		}
	}
}

// verdicts are the keys of which a caller was told that the payment is over.
type verdicts struct {
	mu   sync.Mutex
	keys map[string]bool
}

func newVerdicts() *verdicts { return &verdicts{keys: map[string]bool{}} }

func (v *verdicts) add(key string, err error) {
	e, ok := errors.AsType[*payment.Error](err)
	if !ok {
		return
	}
	switch e.Code {
	case payment.CodeDeclined, payment.CodeExpired, payment.CodeDBFailed, payment.CodePaymentCanceled:
		v.mu.Lock()
		defer v.mu.Unlock()
		v.keys[key] = true
	}
}

func (v *verdicts) has(key string) bool { v.mu.Lock(); defer v.mu.Unlock(); return v.keys[key] }
