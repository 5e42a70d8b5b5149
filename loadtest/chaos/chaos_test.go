package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/tosssim"
	"paymentd/loadtest/rig"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A round waits more than it computes.
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = p.Value.Set("4")
	}
	os.Exit(m.Run())
}

// seeds are those of the short rounds, or the one in PAYMENTD_TEST_SEED, as a failed run prints it.
func seeds(t *testing.T) []uint64 {
	t.Helper()
	var all []uint64
	for n := range uint64(20) {
		all = append(all, n+1)
	}
	if text := os.Getenv("PAYMENTD_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = []uint64{n}
	}
	return all
}

// TestS10_Chaos is 20 short rounds of scenario S10.
func TestS10_Chaos(t *testing.T) {
	t.Parallel()
	if testing.Short() && os.Getenv("PAYMENTD_REQUIRE_DB") != "1" {
		t.Skip("needs PostgreSQL; -short")
	}
	program, err := rig.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	logs := t.TempDir()
	var all total
	begin := time.Now()
	done := make(chan result, 20)
	t.Run("seed", func(t *testing.T) {
		for _, n := range seeds(t) {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				p, err := parse([]string{
					"-hurry", "-confirms", "60", "-spread", "2s", "-kill-every", "700ms", "-instances", "1-2", "-paymentd", program, "-logs", logs,
				}, t.Output())
				if err != nil {
					t.Fatal(err)
				}
				r, err := newRound(p, n, t.Output()).run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, v := range r.Violations {
					t.Errorf("seed %d: %s", n, v)
				}
				t.Log(r)
				done <- r
			})
		}
	})
	close(done)
	for r := range done {
		all.add(r)
	}
	all.Took = time.Since(begin).Round(time.Second).String()
	var table bytes.Buffer
	all.print(&table)
	t.Log(table.String())
	if all.Sigkill < all.Rounds || all.Paid < all.Rounds {
		t.Errorf("%d kills and %d paid: the rounds show nothing", all.Sigkill, all.Paid)
	}
}

// TestChecksFind feeds books with one fault each: a check that finds nothing is worthless.
func TestChecksFind(t *testing.T) {
	t.Parallel()
	r, err := rig.Start(t.Context(), rig.Options{Settings: []string{"PAYMENTD_RECOVERY_DUE_EVERY=100ms", "PAYMENTD_RECOVERY_EVERY=1000h"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	o := rig.Order{PaymentKey: "test_find_1", OrderID: "order-find-1", Amount: amount}
	a, err := r.Instances[0].Confirm(t.Context(), o)
	if err != nil || a.Status != 200 || a.PaymentStatus != "PAID" {
		t.Fatal(a, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if err := rig.Await(ctx, "the notices", func() bool { n, err := r.Unfinished(ctx); return err == nil && n == 0 }); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		harm []string
		told rig.Answer
		want string
	}{
		{name: "nothing", told: a},
		{name: "told that it was declined", told: rig.Answer{Status: 402}, want: "was answered 402"},
		{name: "an unknown answer", told: rig.Answer{Status: 500}, want: "was answered 500"},
		{name: "a notice is missing", told: a, harm: []string{`DELETE FROM notices WHERE kind = 'receipt'`}, want: "notices: order-find-1 PAID has 1 payment.paid, 0 receipt"},
		{name: "paid is lost", told: a, harm: []string{`UPDATE payments SET status = 'FAILED', holds_order = false`}, want: "in no box"},
	} {
		got := chaosCheck(t, r, tc.harm, told{o, tc.told})
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: found %q, want %q", tc.name, got, tc.want)
		}
	}
	if err := r.Toss.SetFaults(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Toss.AddPayment(tosssim.NewPayment{PaymentKey: "other_1", OrderID: o.OrderID, Amount: amount}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Toss.Move("other_1", tosssim.Done); err != nil {
		t.Fatal(err)
	}
	if got := chaosCheck(t, r, nil, told{o, a}); !strings.Contains(got, "order charged twice") {
		t.Errorf("charged twice: found %q", got)
	}
}

func chaosCheck(t *testing.T, on *rig.Rig, harm []string, heard told) string {
	t.Helper()
	if err := on.Session(t.Context(), harm...); err != nil {
		t.Fatal(err)
	}
	r := &round{rig: on, told: []told{heard}}
	if err := r.check(t.Context()); err != nil {
		t.Fatal(err)
	}
	return strings.Join(r.result.Violations, "\n")
}

// TestSameSeedSameMix: what is drawn comes from the seed alone.
func TestSameSeedSameMix(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) any {
		r := newRound(plan{confirms: 200}, seed, nil)
		rng := r.rng(7)
		shared, own := settings(rng, 3)
		faults := mix(rng)
		var orders []rig.Order
		caller := r.rng(100)
		for range 20 {
			orders = append(orders, r.order(caller))
		}
		return []any{shared, own, faults, orders}
	}
	if diff := cmp.Diff(draw(5), draw(5)); diff != "" {
		t.Errorf("the same seed (-first +second):\n%s", diff)
	}
	if cmp.Equal(draw(5), draw(6)) {
		t.Error("another seed draws the same")
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args string
		want string
	}{
		{args: "-instances 2 -seed 7"},
		{args: "-instances 3-1", want: "instances"},
		{args: "-instances x", want: "instances"},
		{args: "-confirms 0", want: "above 0"},
		{args: "more", want: "no arguments"},
	} {
		_, err := parse(strings.Fields(tc.args), t.Output())
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.args, err, tc.want)
		}
	}
}
