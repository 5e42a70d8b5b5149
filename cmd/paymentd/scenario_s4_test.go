package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
)

// naive is the client that S4 is about: it sends a confirm to the gateway up to three times, whatever the error was. Its
// time-out begins when the gateway has the call.
func (w *world) naive(o order, timeout time.Duration) int {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for tries := 1; tries <= 3; tries++ {
		ctx, cancel := context.WithCancel(w.t.Context())
		go func() {
			got := func(tosssim.Counters) bool {
				return len(w.toss.CallsOf(tosssim.CallQuery{Op: tosssim.OpConfirm, PaymentKey: o.key})) >= tries
			}
			if w.toss.Await(ctx, got) == nil {
				time.AfterFunc(timeout, cancel)
			}
		}()
		ok := w.naiveTry(ctx, client, o)
		cancel()
		if ok {
			return tries
		}
	}
	return 3
}

func (w *world) naiveTry(ctx context.Context, client *http.Client, o order) bool {
	w.t.Helper()
	body := `{"paymentKey":"` + o.key + `","orderId":"` + o.id + `","amount":15000}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.toss.URL()+"/v1/payments/confirm", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.SetBasicAuth(tossSecret, "")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", o.key+":1")
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// TestScenarioS4: a gateway that neither keeps idempotency keys nor charges a payment only once does the work and
// loses the answer. Who tries again after every error charges three times; we charge once.
func TestScenarioS4(t *testing.T) {
	t.Parallel()
	settings := tosssim.DefaultSettings()
	settings.Idempotency, settings.SingleUse = false, false
	for _, tc := range []struct {
		name    string
		confirm tosssim.Fault
		lookup  []tosssim.Fault
		timeout string
		answer  int
	}{
		{name: "slow", confirm: tosssim.Fault{Hang: true, Work: tosssim.WorkDo}, timeout: "1s", answer: 200},
		{name: "worked on after the time-out", confirm: tosssim.Fault{Late: 1, Hold: true}, timeout: "1s", answer: 202},
		{name: "reset after work", confirm: tosssim.Fault{Drop: tosssim.DropAfter}, timeout: "15s", answer: 200},
		{name: "5xx after work", confirm: tosssim.Fault{Status: 502, Work: tosssim.WorkDo}, timeout: "15s", answer: 200},
		{
			name: "reset, and the lookup fails too", confirm: tosssim.Fault{Drop: tosssim.DropAfter},
			lookup: []tosssim.Fault{{Op: tosssim.OpLookup, Status: 500, Next: 1}}, timeout: "15s", answer: 202,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOn(t, devdb.New(t, migrated()), tosssim.Options{Settings: &settings})
			in := w.scenario("connect-only-pending", []string{"PAYMENTD_RESEND_WITHIN=0", "PAYMENTD_TOSS_CONFIRM_TIMEOUT=" + tc.timeout})
			tc.confirm.Op = tosssim.OpConfirm
			w.faults(append(tc.lookup, tc.confirm)...)
			theirs, ours := newOrder("naive"), newOrder("ours")

			w.equal("tries of the naive client", w.naive(theirs, time.Second), 3)
			w.faults(append(tc.lookup, tc.confirm)...) // late work of the naive client is done now
			awaits(t, "the naive client has charged three times", 10*time.Second, func() bool { return w.entry(theirs).Approvals == 3 })

			a := in.confirm(ours)
			if a.status != tc.answer {
				t.Errorf("answered %d %s, want %d", a.status, a.raw, tc.answer)
			}
			w.faults()
			w.settles(ours, "PAID")
			in.confirm(ours).want(t, 200, "PAID")
			w.equal("our charges", w.entry(ours).Approvals, 1)
			w.equal("our confirms at the gateway", len(w.toss.CallsOf(tosssim.CallQuery{Op: tosssim.OpConfirm, PaymentKey: ours.key})), 1)
			w.equal("incidents", w.count(`SELECT count(*) FROM incidents`), 0)
			t.Logf("S4, %s: charges: retrying every error %d, ours %d", tc.name, w.entry(theirs).Approvals, w.entry(ours).Approvals)
		})
	}
}
