package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"paymentd/internal/payment"
	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

// heal ends the faults and lets recovery work until nothing is left, or its time is over.
func (r *round) heal(ctx context.Context) error {
	begin := time.Now()
	if err := r.rig.Healthy(ctx); err != nil {
		return err
	}
	if r.hurry {
		for _, in := range r.rig.Instances {
			in.Kill()
		}
		if err := r.rig.EndLeases(ctx); err != nil {
			return err
		}
	}
	for _, in := range r.rig.Instances {
		if err := in.Start(ctx); err != nil {
			return err
		}
	}
	within, cancel := context.WithTimeoutCause(ctx, healWithin, errors.New("not in time"))
	defer cancel()
	calm := 0
	err := rig.Await(within, "recovery", func() bool {
		// Twice in a row, since a late approval may come between two looks.
		if r.settled(within) {
			calm++
		} else {
			calm = 0
		}
		return calm == 2
	})
	r.result.Healed = time.Since(begin)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		left, failed := r.rig.Unfinished(ctx)
		if failed != nil {
			return failed
		}
		r.violate("%v: %d unfinished after %s", err, left, healWithin)
	}
	return nil
}

// settled reports whether nothing is under way, here or at the gateway.
func (r *round) settled(ctx context.Context) bool {
	if len(r.rig.Toss.CallsOf(tosssim.CallQuery{Running: true})) > 0 {
		return false
	}
	left, err := r.rig.Unfinished(ctx)
	if err != nil || left > 0 {
		_ = r.rig.Hasten(ctx)
		return false
	}
	l, err := r.rig.Ledger(ctx)
	if err != nil || !l.Holds() || l.Doubt > 0 {
		_ = r.rig.Hasten(ctx)
		return false
	}
	return true
}

// check is the invariants of every scenario.
func (r *round) check(ctx context.Context) error {
	l, err := r.rig.Ledger(ctx)
	if err != nil {
		return err
	}
	r.result.Ledger, r.result.Paid, r.result.Returned = l.String(), l.Paid, l.Returned
	if !l.Holds() || l.Doubt > 0 {
		r.violate("%s", l)
	}
	incidents, err := r.rig.Text(ctx, `SELECT order_id || ' ' || kind || ' ' || COALESCE(evidence::text, '') FROM incidents WHERE resolved_at IS NULL`)
	if err != nil {
		return err
	}
	for _, i := range incidents {
		r.violate("open incident: %s", i)
	}
	wrong, err := r.rig.Notices(ctx)
	if err != nil {
		return err
	}
	for _, w := range wrong {
		r.violate("notices: %s", w)
	}
	status, err := r.statuses(ctx)
	if err != nil {
		return err
	}
	for key, is := range status {
		want := 0
		if is == payment.Paid || is == payment.Canceled {
			want = 1
		}
		if ids, n := r.rig.Shop.IDs(key, string(payment.NoticePaid)); len(ids) != want {
			r.violate("the shop was told payment.paid of %s (%s) under %d ids in %d deliveries", key, is, len(ids), n)
		}
	}
	for _, t := range r.told {
		r.truthful(t, status)
	}
	return nil
}

func (r *round) statuses(ctx context.Context) (map[string]payment.Status, error) {
	lines, err := r.rig.Text(ctx, `SELECT payment_key || ' ' || status FROM payments`)
	out := map[string]payment.Status{}
	for _, line := range lines {
		var key, status string
		_, _ = fmt.Sscan(line, &key, &status)
		out[key] = payment.Status(status)
	}
	return out, err
}

// truthful compares what a caller was told with what became of the payment.
func (r *round) truthful(t told, status map[string]payment.Status) {
	e, _ := r.rig.Toss.Payment(t.order.PaymentKey)
	is, here := status[t.order.PaymentKey]
	var ok bool
	switch t.answer.Status {
	case 200:
		ok = e.Approvals == 1 && e.Amount == t.order.Amount && (is == payment.Paid || is == payment.Canceled && r.cancels)
		if ok && is == payment.Canceled {
			r.result.Narrow++
		}
	case 202:
		// Pending, or nobody knows whether the reservation was committed.
		ok = true
	case 402, 410:
		ok = e.Balance == 0
	case 409:
		ok = true
	case 502:
		ok = t.answer.Code == string(payment.CodeGatewayMisconfigured)
	case 503:
		ok = t.answer.Code != string(payment.CodeDBFailed) || e.Balance == 0
	}
	if !ok {
		r.violate("%s was answered %s, is %s (%t) here and %+v at the gateway", t.order.PaymentKey, t.answer, is, here, e)
	}
}
