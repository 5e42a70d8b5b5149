package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/tosssim"
)

// audited is what one run of the command left.
type audited struct {
	err            error
	stdout, stderr string
}

// audit runs the command over the hour around now.
func (w *world) audit(args ...string) audited {
	w.t.Helper()
	var out, errs bytes.Buffer
	now := time.Now()
	args = append([]string{"--from", now.Add(-time.Hour).Format(time.RFC3339), "--to", now.Add(time.Hour).Format(time.RFC3339)}, args...)
	err := auditTo(w.t.Context(), args, w.keyless(), streams{&out, &errs})
	return audited{err, out.String(), errs.String()}
}

func (a audited) wantStatus(t *testing.T, differs bool) {
	t.Helper()
	var want error
	if differs {
		want = exitDiffers
	}
	if !errors.Is(a.err, want) {
		t.Errorf("ended with %v, want %v\n%s%s", a.err, want, a.stdout, a.stderr)
	}
}

// kinds are the differences as "kind order", sorted.
func (a audited) kinds(t *testing.T) []string {
	t.Helper()
	var report struct {
		Differences []struct{ Kind, OrderID string }
	}
	if err := json.Unmarshal([]byte(a.stdout), &report); err != nil {
		t.Fatalf("%v in %s", err, a.stdout)
	}
	lines := []string{}
	for _, d := range report.Differences {
		lines = append(lines, d.Kind+" "+d.OrderID)
	}
	slices.Sort(lines)
	return lines
}

// atToss makes a payment behind our back.
func (w *world) atToss(o order, status tosssim.Status) {
	w.t.Helper()
	if _, err := w.toss.AddPayment(tosssim.NewPayment{PaymentKey: o.key, OrderID: o.id, Amount: int64(o.amount), Status: status}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) cancelAtToss(o order, amount int64) {
	w.t.Helper()
	if _, err := w.toss.Cancel(o.key, amount); err != nil {
		w.t.Fatal(err)
	}
}

// TestAuditEqual: after a real day with declines, cancels and a deposit both sides agree, and the command says so.
func TestAuditEqual(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	for range 5 {
		in.confirm(newOrder("good")).want(t, 200, "PAID")
	}
	in.confirm(newOrder("decline_")).want(t, 402, "declined")
	usd := newOrder("usd_")
	dollars := strings.Replace(usd.json(), "{", `{"currency":"USD",`, 1)
	in.call(http.MethodPost, in.url+"/payments/confirm", checkoutSecret, dollars).want(t, 200, "PAID")
	part, whole, account := newOrder("part"), newOrder("whole"), newOrder("va_")
	in.confirm(part).want(t, 200, "PAID")
	in.confirm(whole).want(t, 200, "PAID")
	in.confirm(account).want(t, 202, "AWAITING_DEPOSIT")
	w.cancelAtToss(part, 4000)
	w.cancelAtToss(whole, 0)
	if _, err := w.toss.Deposit(account.key); err != nil {
		t.Fatal(err)
	}
	in.sync(fmt.Sprintf(`{"orderIds":[%q,%q,%q]}`, part.id, whole.id, account.id)).want(t, 200, "")
	w.atToss(newOrder("ready"), tosssim.InProgress) // no money has moved
	w.atToss(newOrder("expired"), tosssim.Expired)

	a := w.audit()
	a.wantStatus(t, false)
	for _, want := range []string{"missing_here                0", "ledger holds: 9 approved, 8 paid + 1 returned + 0 under incident + 0 in doubt"} {
		if !strings.Contains(a.stdout, want) {
			t.Errorf("no %q in\n%s", want, a.stdout)
		}
	}
	if last := a.stdout[strings.LastIndex(strings.TrimSpace(a.stdout), "\n")+1:]; !strings.HasPrefix(last, "ledger holds") {
		t.Errorf("the last line is %q", last)
	}
	if n := w.toss.Counters().Ops[tosssim.OpTransactions].Calls; n != 2 { // a page, and the end
		t.Errorf("%d pages were asked for", n)
	}
	w.ledgerHolds()
}

// TestAuditFindsOrphan: money at Toss that we know nothing of is told every time and becomes one incident.
func TestAuditFindsOrphan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	in.confirm(newOrder("good")).want(t, 200, "PAID")
	orphan := newOrder("orphan")
	w.atToss(orphan, tosssim.Done)

	dry := w.audit("--json", "--dry-run")
	dry.wantStatus(t, true)
	if n := w.incidents(orphan, "orphan_approval"); n != 0 {
		t.Errorf("a dry run opened %d incidents", n)
	}
	if !strings.Contains(dry.stderr, "ledger BROKEN") {
		t.Errorf("stderr: %s", dry.stderr)
	}
	for run := range 2 {
		a := w.audit("--json")
		a.wantStatus(t, true)
		if diff := cmp.Diff([]string{"missing_here " + orphan.id}, a.kinds(t)); diff != "" {
			t.Errorf("run %d (-want +got):\n%s", run, diff)
		}
		if n := w.incidents(orphan, "orphan_approval"); n != 1 {
			t.Errorf("run %d: %d incidents", run, n)
		}
		if opened := fmt.Sprintf(`"incidentsOpened": %d,`, 1-run); !strings.Contains(a.stdout, opened) {
			t.Errorf("run %d: no %s in %s", run, opened, a.stdout)
		}
		if !strings.Contains(a.stderr, "ledger holds: 2 approved, 1 paid + 0 returned + 1 under incident") {
			t.Errorf("run %d: stderr %s", run, a.stderr)
		}
	}
	var evidence struct {
		PaymentKey, OrderID, Sighting, Currency string
		Total, Balance                          int
	}
	var text string
	if err := w.query(`SELECT evidence::text FROM incidents WHERE payment_key = $1`, []any{orphan.key}, &text); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), &evidence); err != nil || evidence.PaymentKey != orphan.key || evidence.OrderID != orphan.id ||
		evidence.Sighting != "DONE" || evidence.Total != 15000 || evidence.Balance != 15000 || evidence.Currency != "KRW" {
		t.Errorf("evidence %s %v", text, err)
	}
	w.ledgerHolds()
}

// TestAuditFindsDifferences: rows that were changed by hand and changes at Toss that we were not told of.
func TestAuditFindsDifferences(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	names := []string{"deleted", "amount", "failed", "canceled", "partly", "moved", "good"}
	orders := map[string]order{}
	for _, name := range names {
		orders[name] = newOrder(name)
		in.confirm(orders[name]).want(t, 200, "PAID")
	}
	in.stop()
	w.exec(`DELETE FROM payments WHERE payment_key = $1`, orders["deleted"].key)
	w.exec(`UPDATE payments SET amount = 14000 WHERE payment_key = $1`, orders["amount"].key)
	w.exec(`UPDATE payments SET status = 'FAILED', holds_order = false WHERE payment_key = $1`, orders["failed"].key)
	w.exec(`UPDATE payments SET payment_key = 'never-at-toss' WHERE payment_key = $1`, orders["moved"].key)
	w.cancelAtToss(orders["canceled"], 0)
	w.cancelAtToss(orders["partly"], 1000)

	want := []string{
		"amount_differs " + orders["amount"].id, "amount_differs " + orders["partly"].id,
		"missing_here " + orders["deleted"].id, "missing_here " + orders["moved"].id, "missing_there " + orders["moved"].id,
		"state_differs " + orders["canceled"].id, "state_differs " + orders["failed"].id,
	}
	a := w.audit("--json")
	a.wantStatus(t, true)
	if diff := cmp.Diff(want, a.kinds(t)); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	table := w.audit()
	table.wantStatus(t, true)
	list := w.audit("--csv")
	list.wantStatus(t, true)
	rows, err := csv.NewReader(strings.NewReader(list.stdout)).ReadAll()
	if err != nil || len(rows) != len(want)+1 {
		t.Fatalf("%d rows of CSV, %v:\n%s", len(rows), err, list.stdout)
	}
	var got []string
	for _, row := range rows[1:] {
		got = append(got, row[0]+" "+row[1])
		if !strings.Contains(table.stdout, row[2]) {
			t.Errorf("the table lacks %s", row[2])
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("CSV (-want +got):\n%s", diff)
	}
	if !strings.Contains(table.stdout, "ledger BROKEN") || !strings.Contains(list.stderr, "ledger BROKEN") {
		t.Errorf("no broken ledger:\n%s%s", table.stdout, list.stderr)
	}
	for line := range strings.Lines(list.stderr) {
		if strings.HasPrefix(line, "{") && shape.MatchString(line) {
			t.Errorf("the log tells a paymentKey: %s", line)
		}
	}
}

// TestAuditWhileConfirming: what is under way at the moment of the audit is no difference.
func TestAuditWhileConfirming(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 40 {
			o := newOrder("busy")
			_, _ = call(t, "POST", in.url+"/payments/confirm", checkoutSecret, o.json())
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		w.audit().wantStatus(t, false)
	}
	w.ledgerHolds()
}

// TestAuditErrors: an audit that could not be done says so, and is no difference.
func TestAuditErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.faults(tosssim.Fault{Op: tosssim.OpTransactions, Code: "UNAUTHORIZED_KEY"})
	a := w.audit()
	if a.err == nil || errors.Is(a.err, exitDiffers) || !strings.Contains(a.err.Error(), "UNAUTHORIZED_KEY") {
		t.Errorf("ended with %v", a.err)
	}
	if strings.Contains(a.err.Error()+a.stderr, tossSecret) {
		t.Error("a secret is told")
	}
	w.faults()
	if err := run(t.Context(), []string{"migrate", "down", "--yes"}, w.env(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := w.audit().err; err == nil || !strings.Contains(err.Error(), "schema") {
		t.Errorf("without a schema it ended with %v", err)
	}
}

func TestAuditWindow(t *testing.T) {
	t.Parallel()
	// Just after midnight in Korea, the day before in UTC.
	now := time.Date(2026, 11, 29, 15, 30, 0, 0, time.UTC)
	for _, tc := range []struct {
		name, from, to string
		want           string // or the reason of the refusal
	}{
		{name: "yesterday in Korea", want: "2026-11-29T00:00:00+09:00 2026-11-30T00:00:00+09:00"},
		{name: "a day", from: "2026-11-01", want: "2026-11-01T00:00:00+09:00 2026-11-02T00:00:00+09:00"},
		{name: "the day before", to: "2026-11-01", want: "2026-10-31T00:00:00+09:00 2026-11-01T00:00:00+09:00"},
		{name: "Korean hours", from: "2026-11-29T10:00:00", to: "2026-11-29T11:00:00", want: "2026-11-29T10:00:00+09:00 2026-11-29T11:00:00+09:00"},
		{name: "offsets", from: "2026-11-29T10:00:00Z", to: "2026-11-29T21:00:00+09:00", want: "2026-11-29T19:00:00+09:00 2026-11-29T21:00:00+09:00"},
		{name: "31 days", from: "2026-10-01", to: "2026-11-01", want: "2026-10-01T00:00:00+09:00 2026-11-01T00:00:00+09:00"},
		{name: "32 days", from: "2026-10-01", to: "2026-11-02", want: "more than 31 days"},
		{name: "backwards", from: "2026-11-02", to: "2026-11-01", want: "must be before"},
		{name: "empty", from: "2026-11-01", to: "2026-11-01", want: "must be before"},
		{name: "no time", from: "yesterday", want: "--from: must be like"},
		{name: "fractions", to: "2026-11-29T10:00:00.5Z", want: "--to: must be like"},
		{name: "no such day", from: "2026-02-30", want: "--from: must be like"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			from, to, err := auditWindow(tc.from, tc.to, now)
			got := from.Format(time.RFC3339) + " " + to.Format(time.RFC3339)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestAuditExitStatus: cron reads the status.
func TestAuditExitStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	today := []string{"audit", "--from", time.Now().Add(-time.Hour).Format(time.RFC3339), "--to", time.Now().Add(time.Hour).Format(time.RFC3339)}
	if r := runBinary(t, w.env(), today...); r.status != 0 || !strings.HasPrefix(r.stdout, "audit from ") {
		t.Errorf("equal: %+v", r)
	}
	w.atToss(newOrder("orphan"), tosssim.Done)
	if r := runBinary(t, w.env(), today...); r.status != 3 || !strings.Contains(r.stdout, "missing_here") || r.stderr != "" {
		t.Errorf("differs: %+v", r)
	}
	if r := runBinary(t, w.env(), append(today, "--json", "--csv")...); r.status != 1 || !strings.Contains(r.stderr, "not both") {
		t.Errorf("wrong flags: %+v", r)
	}
	w.listen(false)
	if r := runBinary(t, w.env(), today...); r.status != 1 || !strings.Contains(r.stderr, "read transactions") {
		t.Errorf("no gateway: %+v", r)
	}
}

// TestAuditPrintsForeignText: an orderId of Toss cannot move the cursor.
func TestAuditPrintsForeignText(t *testing.T) {
	t.Parallel()
	if got := printable("order-1\x1b[2J\tx\n주문"); got != "order-1?[2J?x?주문" {
		t.Errorf("got %q", got)
	}
}

// TestInert: what a spreadsheet would run is text.
func TestInert(t *testing.T) {
	t.Parallel()
	for cell, want := range map[string]string{"": "", "order-1": "order-1", "=1+1": "'=1+1", "-order": "'-order", "@x": "'@x", "a=b": "a=b"} {
		if got := inert(cell); got != want {
			t.Errorf("%q: %q", cell, got)
		}
	}
}
