package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// doubt leaves a payment that Toss approved and nobody here knows about.
func (in *instance) doubt(name string) order {
	in.t.Helper()
	o := newOrder(name)
	in.faults(tosssim.Fault{Op: tosssim.OpConfirm, Drop: tosssim.DropAfter}, tosssim.Fault{Op: tosssim.OpLookup, Drop: tosssim.DropBefore})
	in.confirm(o).want(in.t, 202, "PENDING")
	in.faults()
	return o
}

// atRest are settings of an instance whose loops do nothing for the length of a test.
var atRest = []string{"PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h", "PAYMENTD_RETRY_MAX=0", "PAYMENTD_RESEND_WITHIN=2100h",
	"PAYMENTD_BREAKER_WINDOW=0"}

// keyless are the variables of a command beside serve, which needs no key of the doors.
func (w *world) keyless() []string {
	return slices.DeleteFunc(w.env(), func(pair string) bool { return strings.HasPrefix(pair, "PAYMENTD_API_KEYS=") })
}

// syncs runs the command beside whatever else runs.
func (w *world) syncs(args ...string) (stdout, stderr string, err error) {
	w.t.Helper()
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(w.t.(*testing.T).Context(), 2*time.Minute)
	defer cancel()
	err = syncTo(ctx, args, w.keyless(), streams{&out, &errs})
	return out.String(), errs.String(), err
}

// TestSyncCommand settles what is in doubt without a running service, and only says so with --dry-run.
func TestSyncCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start(atRest...)
	a, b := in.doubt("first"), in.doubt("second")
	in.stop()
	stdout, _, err := w.syncs("--dry-run")
	if err != nil || !strings.Contains(stdout, "settle: approved") || !strings.Contains(stdout, "2 looked at: 2 paid") || !strings.Contains(stdout, "dry run") {
		t.Errorf("%v, %s", err, stdout)
	}
	if r, _ := w.row(a); r.Status != "PENDING" {
		t.Errorf("the dry run wrote %+v", r)
	}
	w.exec("UPDATE payments SET leased = true, due_at = now() + interval '1 h' WHERE payment_key = $1", b.key)
	stdout, _, err = w.syncs("--json")
	var report syncJSON
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if err != nil || report.Checked != 2 || report.Paid != 1 || report.Waiting != 1 || len(report.Results) != 2 {
		t.Errorf("%v, %+v", err, report)
	}
	if r, _ := w.row(a); r.Status != "PAID" {
		t.Errorf("row %+v", r)
	}
	if r, _ := w.row(b); r.Status != "PENDING" {
		t.Errorf("the row that somebody works on: %+v", r)
	}
	w.exec("UPDATE payments SET leased = false, due_at = now() WHERE payment_key = $1", b.key)
	stdout, _, err = w.syncs(b.id, "--order", "nobody-knows-it")
	if err == nil || !strings.Contains(stdout, "not_found") || !strings.Contains(err.Error(), "1 of 2 could not be finished") {
		t.Errorf("%v, %s", err, stdout)
	}
	w.becomes(b, "PAID")
	if stdout, _, err := w.syncs(); err != nil || !strings.HasPrefix(stdout, "0 looked at") {
		t.Errorf("nothing left: %v, %s", err, stdout)
	}
	w.ledgerHolds()
}

// TestSyncCommandStops: Ctrl-C finishes what is in hand and says what was done.
func TestSyncCommandStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start(atRest...)
	for range 12 {
		in.doubt("stop")
	}
	in.stop()
	w.faults(tosssim.Fault{Op: tosssim.OpLookup, Hold: true})
	begun := w.toss.Counters().Ops[tosssim.OpLookup].Calls
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	go func() { w.arrived(tosssim.OpLookup, begun+2); interrupt(); w.faults() }()
	var out bytes.Buffer
	err := syncTo(ctx, nil, w.env(), streams{&out, &out})
	if err == nil || !strings.Contains(err.Error(), "stopped after") {
		t.Errorf("%v, %s", err, out.String())
	}
	if n := w.count("SELECT count(*) FROM payments WHERE leased"); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if paid := w.count("SELECT count(*) FROM payments WHERE status = 'PAID'"); paid == 0 || paid > 8 || strings.Count(out.String(), "approved") != paid {
		t.Errorf("%d paid, told:\n%s", paid, out.String())
	}
}

// TestSyncCommandUsage: what cannot be meant is refused before anything is opened.
func TestSyncCommandUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no orderId", []string{"a b"}, "is no orderId"},
		{"negative limit", []string{"--limit=-1"}, "must not be negative"},
		{"age beside orders", []string{"order-1", "--older-than=10m"}, "no meaning beside orders"},
		{"no settings", nil, "PAYMENTD_DATABASE_URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := syncTo(t.Context(), tt.args, nil, streams{&out, &out}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
		})
	}
	var out bytes.Buffer
	if err := syncTo(t.Context(), []string{"--help"}, nil, streams{&out, &out}); err != nil || !strings.Contains(out.String(), "-older-than") {
		t.Errorf("%v, %s", err, out.String())
	}
}
