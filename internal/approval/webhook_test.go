package approval_test

import (
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// TestResolveForAWebhook: it looks once, settles, gives back, and leaves sends and waits to recovery.
func TestResolveForAWebhook(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		row    func() payment.Payment
		truth  payment.Sighting
		lookup try
		did    approval.Did
		status payment.Status
		heard  payment.Kind
		due    time.Duration // of one that stays unfinished
	}{
		{name: "paid", row: func() payment.Payment { return row(payment.Pending) }, truth: payment.SeenDone,
			did: approval.DidPaid, status: payment.Paid, heard: payment.KindPayment},
		{name: "open: not sent again", row: func() payment.Payment { return row(payment.Pending) }, truth: payment.SeenInProgress,
			did: approval.DidWait, status: payment.Pending, heard: payment.KindPayment, due: approval.LookAgainIn},
		{name: "never sent: not sent", row: func() payment.Payment { return row(payment.Pending, neverSent) }, truth: payment.SeenInProgress,
			did: approval.DidWait, status: payment.Pending, due: approval.LookAgainIn},
		{name: "many looks: soon all the same", row: func() payment.Payment {
			return row(payment.Pending, aged(5*time.Minute), func(p *payment.Payment) { p.Looks = 9 })
		}, truth: payment.SeenInProgress, did: approval.DidWait, status: payment.Pending, heard: payment.KindPayment, due: approval.LookAgainIn},
		{name: "due sooner: not put off", row: func() payment.Payment {
			return row(payment.Pending, aged(5*time.Minute), func(p *payment.Payment) { p.DueAt = time.Now().Add(time.Second) })
		}, truth: payment.SeenInProgress, did: approval.DidWait, status: payment.Pending, heard: payment.KindPayment, due: time.Second},
		{name: "one try", row: func() payment.Payment { return row(payment.Pending) }, truth: payment.SeenDone,
			lookup: try{Kind: payment.KindFault}, did: approval.DidWait, status: payment.Pending, heard: payment.KindFault, due: approval.LookAgainIn},
		{name: "failed here, approved there", row: func() payment.Payment { return row(payment.Failed, failedWith(payment.FailDeclined)) },
			truth: payment.SeenDone, did: approval.DidGiveBack, status: payment.Failed, heard: payment.KindPayment},
		{name: "late news", row: func() payment.Payment { return row(payment.Paid) }, truth: payment.SeenAborted,
			did: approval.DidIncident, status: payment.Paid, heard: payment.KindPayment},
	}
	for _, tt := range tests {
		inBubble(t, tt.name, func(r *rig) {
			p := r.store.Put(tt.row())
			r.gateway.Set(payment.Observation{
				Sighting: tt.truth, PaymentKey: p.PaymentKey, OrderID: p.OrderID, Total: p.Amount, Balance: p.Amount, Currency: p.Currency,
			})
			if tt.lookup.Kind != "" {
				r.gateway.Lookups(tt.lookup)
			}
			held, ending, err := r.store.ClaimOne(r.Context(), p.PaymentKey, r.set.Lease)
			if ending != payment.Applied {
				r.Fatalf("claim: %s, %v", ending, err)
			}
			res, err := r.service.Resolve(r.Context(), held, payment.ByWebhook, time.Now().Add(r.set.Lease))
			if err != nil || res.Did != tt.did || res.Heard.Kind != tt.heard {
				r.Errorf("did %q, heard %q, %v; want %q, %q", res.Did, res.Heard.Kind, err, tt.did, tt.heard)
			}
			q := r.store.Row(p.PaymentKey)
			if q.Status != tt.status || tt.due != 0 && (q.Leased || time.Until(q.DueAt) != tt.due) {
				r.Errorf("row %s, leased %t, due in %s; want %s, %s", q.Status, q.Leased, time.Until(q.DueAt), tt.status, tt.due)
			}
			r.wantSends(0)
			for _, tries := range r.gateway.LookupCalls() {
				if tries == approval.Patient {
					r.Error("a patient lookup while Toss waits for an answer")
				}
			}
		})
	}
}
