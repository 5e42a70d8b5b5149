package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// asleep are settings that keep recovery out of a story.
var asleep = []string{"PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h"}

// notCrashed are the steps without a row: who calls them, and why a death there is a death elsewhere.
func notCrashed() []string {
	return []string{
		// Recovery never takes an order for a caller, and answers nobody.
		"recovery.Reserve", "recovery.FindNow", "recovery.TakeOver", "recovery.Reopen", "recovery.MarkTold",
		// Read after somebody else moved the payment: without effect, the same read as store.Find.
		"recovery.Find",
		// A live confirm gives back only what another holder failed meanwhile, by the statements of recovery.
		"store.BeginGiveBack",
		// Cancels are asked for at the door alone.
		"recovery.FindCancels", "recovery.BeginCancel", "recovery.Abandon",
	}
}

// crashStories is the table of TestCrash.
// long: one table
func crashStories() []story {
	confirm, lookup, cancel := tosssim.OpConfirm, tosssim.OpLookup, tosssim.OpCancel
	return []story{
		{
			name: "approved", drive: (*crash).confirms, end: "200 PAID",
			at: []string{
				"gateway.Peek before", "gateway.Peek after", "store.Reserve before", "store.Reserve after",
				"gateway.Confirm before", "gateway.Confirm during", "gateway.Confirm after", "store.Settle before", "store.Settle after",
				"notices.ClaimNotices after", "webhook.Send before", "webhook.Send during", "webhook.Send after",
				"notices.FinishNotices before", "notices.FinishNotices after", "notices.FinishNotices after 2",
			},
		},
		{
			name: "notices left", before: func(c *crash) { c.leftBy("store.Settle after 1") }, drive: waits, end: "200 PAID",
			at: []string{"notices.ClaimNotices before", "notices.ClaimNotices after", "webhook.Send during", "notices.FinishNotices before"},
		},
		{
			name: "receipt by mail", before: mailed, drive: (*crash).confirms, end: "200 PAID", at: []string{"mail.Send before", "mail.Send after"},
		},
		{
			name: "declined", drive: driveWith(tosssim.Fault{Op: confirm, Code: "INVALID_PASSWORD", Next: 1}), end: "402 declined",
			at: []string{"gateway.Confirm after", "store.Settle before", "store.Settle after"},
		},
		{
			name: "answer lost", drive: driveWith(tosssim.Fault{Op: confirm, Drop: tosssim.DropAfter, Next: 1}), end: "200 PAID",
			at: []string{"gateway.Confirm after", "gateway.Lookup before", "gateway.Lookup during", "gateway.Lookup after", "store.Settle before", "store.Settle after"},
		},
		{
			name: "no answer", end: "200 PAID", drive: driveWith(
				tosssim.Fault{Op: confirm, Drop: tosssim.DropBefore, Next: 1}, tosssim.Fault{Op: lookup, Status: 500, Next: 1}),
			at: []string{"gateway.Lookup after", "store.Release before", "store.Release after"},
		},
		{
			name: "not reached", drive: driveClosed, end: "200 PAID",
			at: []string{"gateway.Confirm before", "gateway.Confirm after", "store.Settle=FAILED before", "store.Settle=FAILED after"},
		},
		{
			name: "not reached, kept", settings: []string{"PAYMENTD_ON_UNAVAILABLE=pending"}, drive: driveClosed, end: "200 PAID",
			at: []string{"store.Release before", "store.Release after"},
		},
		{
			name: "reopened", end: "200 PAID", drive: func(c *crash) {
				c.listen(false)
				c.dead.confirm(c.o).want(c.t, 503, "pg_unavailable")
				c.listen(true)
				c.confirms()
			},
			at: []string{"store.Reopen before", "store.Reopen after", "gateway.Confirm before 2", "gateway.Confirm after 2", "store.Settle before 2", "store.Settle after 2"},
		},
		{
			name: "next key", settings: []string{"PAYMENTD_RETRY_MAX=1"}, end: "200 PAID",
			drive: driveWith(tosssim.Fault{Op: confirm, Code: "FAILED_INTERNAL_SYSTEM_PROCESSING", Next: 1}),
			at: []string{
				"gateway.Lookup before", "gateway.Lookup after", "store.BeginSend before", "store.BeginSend after", "gateway.Confirm during 2",
				"gateway.Confirm after", "store.Settle before",
			},
		},
		{
			name: "taken over", settings: asleep, before: leftApproved, drive: (*crash).confirms, end: "200 PAID",
			at: []string{
				"store.Find before", "store.Find after", "store.TakeOver before", "store.TakeOver after", "gateway.Lookup before",
				"gateway.Lookup after", "store.Settle before", "store.Settle after",
			},
		},
		{
			name: "told 202", settings: []string{"PAYMENTD_ANSWER_WITHIN=300ms"}, end: "200 PAID",
			drive: driveWith(tosssim.Fault{Op: confirm, Latency: tosssim.Fixed(900 * time.Millisecond)}),
			at:    []string{"store.MarkTold before", "store.MarkTold after", "store.Settle before"},
		},
		{
			name: "refused", drive: func(c *crash) { c.dead.breaker("open"); c.confirms() }, end: "200 PAID",
			at: []string{"store.FindNow before", "store.FindNow after"},
		},
		{
			name: "recovery finds it", settings: []string{"PAYMENTD_RECOVERY_EVERY=1s"}, before: leftApproved, drive: waits, end: "200 PAID",
			at: []string{
				"recovery.ClaimDue before", "recovery.ClaimDue after", "gateway.Lookup before", "gateway.Lookup during", "gateway.Lookup after",
				"recovery.Settle before", "recovery.Settle after", "recovery.SweepMissingNotices before", "recovery.SweepMissingNotices after",
				"recovery.SweepStuck before", "recovery.SweepStuck after",
				"recovery.SweepOrphans before", "recovery.SweepOrphans after",
			},
		},
		{
			name: "recovery sends it", before: leftUnsent, drive: waits, end: "200 PAID",
			at: []string{
				"recovery.ClaimDue after", "gateway.Lookup after", "recovery.BeginSend before", "recovery.BeginSend after",
				"gateway.Confirm before", "gateway.Confirm during", "gateway.Confirm after", "recovery.Settle before", "recovery.Settle after",
			},
		},
		{
			name: "recovery waits", settings: []string{"PAYMENTD_RESEND_WITHIN=0"}, before: leftUnsent, drive: waits, end: "200 PAID",
			at: []string{"recovery.Release before", "recovery.Release after"},
		},
		{
			name: "given back", before: leftLateApproval, drive: waits, end: "410 expired",
			at: []string{
				"recovery.ClaimDue after", "recovery.BeginGiveBack before", "recovery.BeginGiveBack after", "gateway.Cancel before",
				"gateway.Cancel during", "gateway.Cancel after", "recovery.EndGiveBack before", "recovery.EndGiveBack after",
			},
		},
		{
			name: "given back, told otherwise", end: "410 expired", drive: waits,
			before: func(c *crash) {
				leftLateApproval(c)
				c.faults(tosssim.Fault{Op: cancel, Code: "ALREADY_CANCELED_PAYMENT", Work: tosssim.WorkDo, Next: 1})
			},
			at: []string{"gateway.Cancel after", "gateway.Lookup before 2", "gateway.Lookup after 2", "recovery.EndGiveBack before", "recovery.EndGiveBack after"},
		},
		{
			// S6: killed between the cancel and the answer.
			name: "cannot be saved", settings: []string{"PAYMENTD_ON_COMMIT_FAILURE=cancel", "PAYMENTD_DB_STATEMENT_TIMEOUT=1s", "PAYMENTD_COMMIT_WITHIN=1s"},
			drive: driveLocked, end: "503 db_failed",
			awaits: func(c *crash) bool { return c.at == "gateway.Cancel before" || c.entry(c.o).Balance == 0 },
			at:     []string{"gateway.Cancel before", "gateway.Cancel during", "gateway.Cancel after", "store.Settle=FAILED before", "store.Settle=FAILED after"},
			ends:   map[string]string{"gateway.Cancel before": "200 PAID"},
		},
		{
			name: "canceled on request", drive: driveCanceled, repeat: repeatCancel, end: "409 payment_canceled",
			at: []string{
				"store.FindCancels before", "store.FindCancels after", "store.BeginCancel before", "store.BeginCancel after", "gateway.Cancel before",
				"gateway.Cancel during", "gateway.Cancel after", "store.EndGiveBack before", "store.EndGiveBack after",
			},
		},
		{
			name: "abandoned", settings: []string{"PAYMENTD_ON_UNAVAILABLE=pending"}, drive: driveAbandoned, end: "200 PAID",
			at: []string{"store.Abandon before", "store.Abandon after"}, ends: map[string]string{"store.Abandon after": "409 payment_canceled"},
		},
		{
			name: "sync", settings: asleep, before: leftApproved, drive: driveSync(`{}`), end: "200 PAID",
			at: []string{"recovery.ListUnfinished before", "recovery.ListUnfinished after", "recovery.ClaimOne before", "recovery.ClaimOne after", "recovery.Settle after"},
		},
		{
			name: "sync of an order", settings: asleep, before: leftApproved, drive: driveSync(`{"orderIds":["ORDER"]}`), end: "200 PAID",
			at: []string{"recovery.Attempts before", "recovery.Attempts after"},
		},
	}
}

// driveWith confirms at a sick gateway.
func driveWith(faults ...tosssim.Fault) func(*crash) {
	return func(c *crash) {
		if err := c.toss.AddFaults(faults...); err != nil {
			c.t.Fatal(err)
		}
		c.confirms()
	}
}

// driveClosed confirms at a gateway that refuses connections.
func driveClosed(c *crash) {
	c.listen(false)
	c.confirms()
}

// driveLocked makes every commit of the approval fail for certain: the server ends the statement that waits.
func driveLocked(c *crash) {
	driveWith(tosssim.Fault{Op: tosssim.OpConfirm, Hold: true})(c)
	c.arrived(tosssim.OpConfirm, 1)
	c.locked()
	c.faults(c.held()...)
}

func driveSync(body string) func(*crash) {
	return func(c *crash) {
		go func() {
			_, _ = call(c.t, http.MethodPost, c.dead.url+"/payments/sync", operatorSecret, strings.ReplaceAll(body, "ORDER", c.o.id))
		}()
	}
}

// waits lets the loops of the process come to the step, which may be before it listens.
func waits(*crash) {}

// leftBy is what a process left that died at a step of a confirm, and whose lease has run out.
func (c *crash) leftBy(at string) {
	c.t.Helper()
	first := c.doomed(at, asleep...)
	first.confirmLater(c.o)
	if status := first.wait(); status != -1 {
		c.t.Fatalf("exit status %d, want death by a signal", status)
	}
	c.holderIsDead()
}

// leftApproved is approved at the gateway and PENDING here.
func leftApproved(c *crash) { c.leftBy("gateway.Confirm after 1") }

// leftUnsent is PENDING here; the gateway has never heard of it, and nobody here can know.
func leftUnsent(c *crash) { c.leftBy("store.Reserve after 1") }

// leftLateApproval is FAILED here because its window had ended, and then approved at the gateway all the same.
func leftLateApproval(c *crash) {
	c.t.Helper()
	leftUnsent(c)
	c.exec(`UPDATE payments SET reserved_at = reserved_at - interval '1 hour', first_sent_at = first_sent_at - interval '1 hour',
		last_sent_at = last_sent_at - interval '1 hour' WHERE payment_key = $1`, c.o.key)
	first := c.spawn()
	c.becomes(c.o, "FAILED") // not hastened: the second look must come after the approval
	first.kill()
	c.ghosts() // a claim of the dead process would take the row for a whole lease
	c.confirmedBySomebody(c.o)
	c.hasten()
}

// mailed gives the doomed process and its successor a mail server.
func mailed(c *crash) {
	t, _ := c.t.(*testing.T)
	c.box = newMailbox(t, 0)
	c.set = append(c.set, "PAYMENTD_NOTIFY_SMTP_URL="+c.box.url, "PAYMENTD_NOTIFY_FROM=shop@shop.example")
}

// asksToCancel is a full cancel; nobody waits for its answer.
func (c *crash) asksToCancel(secret string) {
	url := c.dead.url + "/payments/" + c.o.id + "/cancel"
	go func() {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(cancelBody))
		if err != nil {
			return
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "cancel-1")
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
}

const cancelBody = `{"reason":"the buyer changed her mind"}`

func driveCanceled(c *crash) {
	c.dead.confirm(c.o).want(c.t, 200, "PAID")
	c.asksToCancel(operatorSecret)
}

// repeatCancel is the operator's repetition of what was cut off.
func repeatCancel(c *crash, next *process) {
	next.cancelAs(operatorSecret, c.o, "cancel-1", cancelBody).want(c.t, 200, "CANCELED")
}

func driveAbandoned(c *crash) {
	c.listen(false)
	c.dead.confirm(c.o).want(c.t, 202, "PENDING")
	c.asksToCancel(checkoutSecret)
}
