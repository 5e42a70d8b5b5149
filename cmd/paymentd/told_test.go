package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"paymentd/internal/tosssim"
)

// confirmedBySomebody is a confirm at the gateway that is not paymentd's.
func (w *world) confirmedBySomebody(o order) {
	w.t.Helper()
	body := fmt.Sprintf(`{"paymentKey":%q,"orderId":%q,"amount":%d}`, o.key, o.id, o.amount)
	req, err := http.NewRequest(http.MethodPost, w.toss.URL()+"/v1/payments/confirm", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(tossSecret+":")))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = resp.Body.Close()
}

// toldThenKilled is a payment of which a caller was answered 202 by a process that died at once, before it could store
// that, and that the gateway then declines.
func (w *world) toldThenKilled() order {
	w.t.Helper()
	a := w.spawn("PAYMENTD_ANSWER_WITHIN=300ms", "PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h")
	w.faults(tosssim.Fault{Op: tosssim.OpConfirm, Hang: true, Next: 1}, tosssim.Fault{Op: tosssim.OpConfirm, Code: "INVALID_PASSWORD"})
	o := newOrder("told")
	a.confirm(o).want(w.t, 202, "PENDING")
	a.kill()
	// It died before it came to store that, and by now its lease is over.
	w.exec(`UPDATE payments SET told = false, due_at = now() WHERE payment_key = $1`, o.key)
	w.confirmedBySomebody(o)
	return o
}

func (w *world) hearsOfTheFailure(o order) {
	w.t.Helper()
	eventually(w.t, "who was answered 202 hears of the failure", func() bool {
		return slices.Equal(w.hook.types(o), []string{"payment.failed"})
	})
}

// TestToldThenRecovered: recovery follows on the dead process.
func TestToldThenRecovered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, append(quick, "PAYMENTD_RESEND_WITHIN=0")...)
	o := w.toldThenKilled()
	w.start()
	w.settles(o, "FAILED")
	w.hearsOfTheFailure(o)
}

// TestToldThenTakenOver: a duplicate elsewhere follows on the dead process.
func TestToldThenTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, append(quick, "PAYMENTD_RESEND_WITHIN=0")...)
	o := w.toldThenKilled()
	b := w.start("PAYMENTD_ANSWER_WITHIN=20s", "PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h")
	b.confirm(o).want(t, 402, "declined")
	w.hearsOfTheFailure(o)
}
