package store

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

func hintOf(n int) payment.Hint {
	return payment.Hint{
		TransmissionID: fmt.Sprintf("whtrans_%d", n), Event: "PAYMENT_STATUS_CHANGED", PaymentKey: fmt.Sprintf("pk_%d", n),
		OrderID: fmt.Sprintf("order_%d", n), Claim: payment.SeenDone,
	}
}

func (f *fixture) keep(h payment.Hint, state payment.HintState, in time.Duration) {
	f.t.Helper()
	if kept, err := f.KeepHint(f.t.Context(), h, state, in); !kept || err != nil {
		f.t.Fatalf("keep: %t, %v", kept, err)
	}
}

func (f *fixture) claimHint(state payment.HintState) (payment.KeptWork, bool) {
	f.t.Helper()
	w, found, err := f.ClaimHint(f.t.Context(), state, lease)
	if err != nil {
		f.t.Fatal(err)
	}
	return w, found
}

func (f *fixture) endHint(w payment.KeptWork, again time.Duration) {
	f.t.Helper()
	if err := f.EndHint(f.t.Context(), w, again); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) knowsHint(id string) bool {
	f.t.Helper()
	known, err := f.KnowsHint(f.t.Context(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	return known
}

// TestTrap21_HintsAreKnownOnceHandled: an id is known only after its handling was noted or stored.
func TestTrap21_HintsAreKnownOnceHandled(t *testing.T) {
	t.Parallel()
	f := setup(t)
	h := hintOf(1)
	if f.knowsHint(h.TransmissionID) {
		t.Error("known before")
	}
	for range 2 { // twice: two instances may handle it at once
		if err := f.NoteHint(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	if !f.knowsHint(h.TransmissionID) || f.knowsHint("whtrans_2") {
		t.Error("not known afterwards, or another is")
	}
	h.TransmissionID = ""
	if err := f.NoteHint(t.Context(), h); err != nil || f.count("webhook_deliveries") != 1 {
		t.Errorf("one without an id is remembered: %v", err)
	}
}

func TestKeptHints(t *testing.T) {
	t.Parallel()
	f := setup(t)
	h := hintOf(1)
	f.keep(h, payment.KeptHint, time.Hour)
	if _, found := f.claimHint(payment.KeptHint); found {
		t.Error("claimed before its time")
	}
	f.exec(`UPDATE webhook_deliveries SET due_at = now() - interval '1 s', received_at = now() - interval '1 h'`)
	if _, found := f.claimHint(payment.UnknownHint); found {
		t.Error("claimed as what it is not")
	}
	w, found := f.claimHint(payment.KeptHint)
	if age := w.Age.Round(time.Minute); !found || age != time.Hour {
		t.Errorf("claimed: %t, aged %s", found, age)
	}
	want := payment.KeptWork{
		Hint:  payment.Hint{Event: h.Event, PaymentKey: h.PaymentKey, Claim: h.Claim}, // the key says all
		State: payment.KeptHint, ID: h.TransmissionID, Version: 1, Age: w.Age,
	}
	if diff := cmp.Diff(want, w); diff != "" {
		t.Errorf("work (-want +got):\n%s", diff)
	}
	if _, again := f.claimHint(payment.KeptHint); again {
		t.Error("claimed twice")
	}
	f.endHint(w, time.Hour)
	if n := f.count(`webhook_deliveries WHERE due_at > now() + interval '59 min' AND done_at IS NULL`); n != 1 {
		t.Error("not put off")
	}
	f.endHint(w, 0)
	if n := f.count(`webhook_deliveries WHERE due_at IS NULL AND done_at IS NOT NULL AND state = 'handled'`); n != 1 {
		t.Error("not ended")
	}
	if !f.knowsHint(h.TransmissionID) {
		t.Error("forgotten when done")
	}
}

// TestHintsOfOnePayment are one row of work; news that comes while it is worked on asks for another look.
func TestHintsOfOnePayment(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for n := range 50 {
		h := hintOf(1)
		h.TransmissionID, h.OrderID = fmt.Sprintf("whtrans_%d", n%40), fmt.Sprintf("order_%d", n)
		if n%10 == 0 {
			h.TransmissionID = ""
		}
		f.keep(h, payment.UnknownHint, 0)
	}
	if n := f.count("webhook_deliveries"); n != 1 {
		t.Fatalf("%d rows, want 1", n)
	}
	w, _ := f.claimHint(payment.UnknownHint)
	if w.Claim != payment.SeenDone {
		t.Errorf("claims %q", w.Claim)
	}
	h := hintOf(1)
	h.TransmissionID, h.Claim = "whtrans_late", payment.SeenCanceled
	f.keep(h, payment.UnknownHint, 0)
	f.endHint(w, 0)
	if n := f.count(`webhook_deliveries WHERE due_at < now() + interval '2 s' AND done_at IS NULL AND claim = ''`); n != 1 {
		t.Error("the late news is lost")
	}
	f.exec(`UPDATE webhook_deliveries SET due_at = now()`)
	w, _ = f.claimHint(payment.UnknownHint)
	f.endHint(w, 0)
	f.keep(hintOf(1), payment.UnknownHint, 0)
	if n := f.count(`webhook_deliveries WHERE due_at IS NOT NULL`); n != 1 {
		t.Error("a webhook after the end is no new work")
	}
}

// TestHintsAtOnce: the same delivery, or many of the same payment, at the same moment.
func TestHintsAtOnce(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.RequestConns = 8 })
	var wg sync.WaitGroup
	var lost atomic.Int64
	for n := range 64 {
		wg.Go(func() {
			h := hintOf(n % 4)
			if n%2 == 0 {
				h.TransmissionID = fmt.Sprintf("whtrans_%d_%d", n%4, n)
			}
			if kept, err := f.KeepHint(t.Context(), h, payment.KeptHint, 0); !kept || err != nil {
				lost.Add(1)
			}
		})
	}
	wg.Wait()
	if n := f.count(`webhook_deliveries WHERE due_at IS NOT NULL`); n != 4 || lost.Load() != 0 {
		t.Errorf("%d rows of work, want 4; %d lost", n, lost.Load())
	}
}

// TestTrap41_UnknownHintsAreBounded: an open door must not fill the disk.
func TestTrap41_UnknownHintsAreBounded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.exec(`INSERT INTO webhook_deliveries (transmission_id, payment_key, state, due_at)
		SELECT 'w' || n, 'k' || n, 'unknown', now() + interval '1 h' FROM generate_series(1, $1) AS n`, maxUnknownHints-1)
	f.keep(hintOf(1), payment.UnknownHint, 0)
	if kept, err := f.KeepHint(t.Context(), hintOf(2), payment.UnknownHint, 0); kept || err != nil {
		t.Errorf("one too many is kept: %t, %v", kept, err)
	}
	again := hintOf(1)
	again.TransmissionID = "whtrans_again"
	f.keep(again, payment.UnknownHint, 0) // costs nothing
	f.keep(hintOf(3), payment.KeptHint, 0)
	w, found := f.claimHint(payment.KeptHint)
	if !found || w.PaymentKey != "pk_3" {
		t.Errorf("the flood stands before a known payment: %+v", w)
	}
}

// TestOrphanTurnsUp: the payment of an orphan_approval turns up here, and the sweep closes what is no orphan any more.
func TestOrphanTurnsUp(t *testing.T) {
	t.Parallel()
	f := setup(t)
	known := f.reserved("known")
	for _, p := range []payment.Payment{
		{PaymentKey: "pk_later", OrderID: "order_later", Amount: 15000, Currency: payment.KRW},
		{PaymentKey: "pk_never", OrderID: "order_never", Amount: 15000, Currency: payment.KRW}, known,
	} {
		if got, err := f.OpenOrphan(t.Context(), seen(p, payment.SeenDone, p.Amount), "test"); got != (p.ID == 0) || err != nil {
			t.Errorf("%s: opened %t, %v", p.PaymentKey, got, err)
		}
	}
	f.settle(settlement(f.reserved("later"), payment.Paid, payment.ByConfirm))
	if err := f.SweepHints(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := f.count(`incidents WHERE resolved_at IS NULL AND payment_key = 'pk_never'`); n != 1 || f.count(`incidents WHERE resolved_at IS NULL`) != 1 {
		t.Error("closed the wrong one")
	}
}

// TestSweepHints forgets what Toss repeats no more, and no work.
func TestSweepHints(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.exec(`INSERT INTO webhook_deliveries (transmission_id, payment_key, state, received_at, done_at, due_at) VALUES
		('old', 'a', 'handled', now() - interval '9 d', now() - interval '97 h', NULL),
		('young', 'b', 'handled', now() - interval '9 d', now() - interval '95 h', NULL),
		('work', 'c', 'kept', now() - interval '9 d', NULL, now())`)
	if err := f.SweepHints(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.knowsHint("old") || !f.knowsHint("young") || !f.knowsHint("work") {
		t.Error("forgot the wrong one")
	}
}
