package payment_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"paymentd/internal/payment"
)

var statusGen = rapid.SampledFrom(payment.Statuses())

// rowGen is a payment in any state and of any age.
func rowGen(t *rapid.T) payment.Payment {
	p := row(statusGen.Draw(t, "status"), time.Duration(rapid.Int64Range(0, int64(48*time.Hour)).Draw(t, "age")))
	p.MaybeSent = rapid.Bool().Draw(t, "maybe sent")
	if p.Status == payment.Paid {
		p.CanceledAmount = payment.Amount(rapid.Int64Range(0, 14999).Draw(t, "canceled"))
	}
	if p.Status == payment.AwaitingDeposit {
		overdue := time.Duration(rapid.Int64Range(-int64(72*time.Hour), int64(72*time.Hour)).Draw(t, "overdue"))
		p.VirtualAccount = &payment.VirtualAccount{DueDate: now.Add(-overdue)}
	}
	return p
}

func sightGen(t *rapid.T) payment.Observation {
	o := saw(rapid.SampledFrom(payment.Sightings()).Draw(t, "sighting"),
		payment.Amount(rapid.SampledFrom([]int64{0, 1, 5000, 14999, 15000}).Draw(t, "balance")))
	o = other(o, rapid.SampledFrom([]string{"", "", "", "paymentKey", "orderId", "amount", "currency"}).Draw(t, "differs"))
	o.Balance = min(o.Balance, o.Total)
	if rapid.Bool().Draw(t, "canceled by us") {
		o.Cancels = []payment.GatewayCancel{{Reason: ourReason}}
	}
	return o
}

// settle is what the store does with a Settle: the state, and an amount returned that never shrinks.
func settle(t *rapid.T, p payment.Payment, o payment.Observation, a payment.Action) payment.Payment {
	if !slices.Contains(payment.SettleFrom(a.To), p.Status) {
		t.Fatalf("the guard stops %s → %s", p.Status, a.To)
	}
	p.Status, p.Failure = a.To, a.Failure
	if a.To == payment.Paid || a.To == payment.Canceled {
		p.CanceledAmount = max(p.CanceledAmount, o.Total-o.Balance)
	}
	return p
}

// TestSequences plays random news, in whatever order, against a model of the row.
func TestSequences(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, at := rowGen(t), now
		for range rapid.IntRange(1, 12).Draw(t, "news") {
			o := sightGen(t)
			at = at.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "later")))
			a := rules.Decide(p, o, at)
			before := p
			switch a.Do {
			case payment.Settle:
				p = settle(t, p, o, a)
			case payment.Send:
				p.MaybeSent, p.LastSentAt = true, at
				if !before.MaybeSent {
					p.FirstSentAt = at
				}
			}
			left := p.Status != before.Status
			if left && !before.Status.Unfinished() && (before.Status != payment.Paid || p.Status != payment.Canceled) {
				t.Fatalf("left the final state %s for %s by %+v", before.Status, p.Status, o)
			}
			if p.CanceledAmount < before.CanceledAmount {
				t.Fatalf("returned %d, now %d", before.CanceledAmount, p.CanceledAmount)
			}
			if p.Status == payment.Canceled && left && p.CanceledAmount != o.Total {
				t.Fatalf("CANCELED, but only %d of %d returned", p.CanceledAmount, o.Total)
			}
			if again := rules.Decide(p, o, at); left && again.Do == payment.Settle && again.To != p.Status {
				t.Fatalf("the same news moves it twice: %s, %s, %+v", before.Status, p.Status, again)
			}
		}
	})
}

// TestSequencesEndWithToss: whatever was heard before, one plain answer of Toss brings an unfinished payment to
// where the money is.
func TestSequencesEndWithToss(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := rowGen(t)
		if !p.Status.Unfinished() {
			return
		}
		last := rapid.SampledFrom([]payment.Observation{
			full(payment.SeenDone), returned(payment.SeenCanceled, foreignReason), full(payment.SeenAborted), full(payment.SeenExpired),
		}).Draw(t, "last")
		want := payment.Failed
		if last.Sighting == payment.SeenDone {
			want = payment.Paid
		}
		if a := rules.Decide(p, last, now); a.Do != payment.Settle || a.To != want {
			t.Fatalf("%s and %s: %+v, want %s", p.Status, last.Sighting, a, want)
		}
	})
}
