package recovery

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"paymentd/internal/approval"
	"paymentd/internal/approval/approvaltest"
	"paymentd/internal/payment"
)

// TestDueLoop works off what is due, one claim at a time.
func TestDueLoop(t *testing.T) {
	t.Parallel()
	inBubble(t, "settles leftovers", func(b *bench) {
		for n := range 50 {
			b.leftover(n, payment.Pending, time.Minute)
			b.approve(n)
		}
		stop := b.run()
		time.Sleep(time.Second)
		stop()
		for n := range 50 {
			b.wantRow(n, payment.Paid)
		}
		b.wantActions(map[approval.Did]float64{approval.DidPaid: 50})
	})
	inBubble(t, "one that hangs does not stall the others", func(b *bench) {
		for n := range 200 {
			b.leftover(n, payment.Pending, time.Minute)
			b.approve(n)
		}
		b.resolver.before = func(ctx context.Context, p payment.Payment) {
			if p.PaymentKey == "key-0" {
				time.Sleep(30 * time.Second)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		stop := b.run()
		time.Sleep(10 * time.Second)
		for n := 1; n < 200; n++ {
			b.wantRow(n, payment.Paid)
		}
		b.wantRow(0, payment.Pending)
		stop()
		if p := b.store.Row("key-0"); p.Leased || p.DueAt.After(time.Now()) {
			b.Errorf("the look that hung left %+v", p)
		}
		if b.resolver.most > 5 {
			b.Errorf("%d at once", b.resolver.most)
		}
	})
	inBubble(t, "comes back for what becomes due", func(b *bench) {
		stop := b.run()
		time.Sleep(time.Minute)
		b.leftover(1, payment.Pending, 0)
		b.approve(1)
		time.Sleep(6 * time.Second)
		stop()
		b.wantRow(1, payment.Paid)
	})
	inBubble(t, "leaves leased rows alone", func(b *bench) {
		p := b.leftover(1, payment.Pending, 0)
		b.approve(1)
		b.store.Change(p.PaymentKey, func(p *payment.Payment) { p.Leased, p.DueAt = true, time.Now().Add(20*time.Second) })
		stop := b.run()
		time.Sleep(19 * time.Second)
		b.wantRow(1, payment.Pending)
		time.Sleep(8 * time.Second)
		stop()
		b.wantRow(1, payment.Paid)
	})
	inBubble(t, "two instances claim each payment once", func(b *bench) {
		for n := range 20 {
			b.leftover(n, payment.Pending, time.Minute)
			b.approve(n)
		}
		b.resolver.before = func(context.Context, payment.Payment) { time.Sleep(time.Second) }
		second, err := New(Options{
			Queue: b.store, Sweeper: b.store, Resolver: b.resolver, DueEvery: 5 * time.Second, SweepEvery: time.Minute, Concurrency: 4, Lease: 42 * time.Second,
			Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		go func() { ended <- second.Run(ctx) }()
		stop := b.run()
		time.Sleep(10 * time.Second)
		stop()
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		if n := len(b.gateway.LookupCalls()); n != 20 {
			b.Errorf("%d lookups of 20 payments", n)
		}
	})
	inBubble(t, "resends what was never answered, until its window is over", func(b *bench) {
		p := b.leftover(1, payment.Pending, 0)
		b.gateway.Random(func(op string) approvaltest.Try {
			if op == "confirm" {
				return approvaltest.Try{Kind: payment.KindTimeout}
			}
			return approvaltest.Try{}
		})
		stop := b.run()
		time.Sleep(3 * time.Minute)
		sends := len(b.gateway.Sends())
		time.Sleep(30 * time.Minute)
		stop()
		if after := len(b.gateway.Sends()); sends == 0 || after != sends {
			b.Errorf("%d sends within RESEND_WITHIN, %d after", sends, after)
		}
		if p = b.store.Row(p.PaymentKey); p.Status != payment.Failed || p.Failure.Code != payment.FailExpired {
			b.Errorf("row %+v", p)
		}
	})
}

// TestLoopsSurvive errors and panics of everything that they call.
func TestLoopsSurvive(t *testing.T) {
	t.Parallel()
	inBubble(t, "panic in a resolution", func(b *bench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		panicked := false
		b.resolver.before = func(context.Context, payment.Payment) {
			if !panicked {
				panicked = true
				panic("bug")
			}
		}
		stop := b.run()
		time.Sleep(30 * time.Second)
		b.wantActions(map[approval.Did]float64{approval.DidError: 1})
		time.Sleep(30 * time.Second) // the lease has run out by then
		stop()
		b.wantRow(1, payment.Paid)
	})
	inBubble(t, "panic in a claim", func(b *bench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		b.store.Script(approvaltest.ClaimDue, approvaltest.Fault{Panic: "bug"}, approvaltest.Fault{Panic: "bug"},
			approvaltest.Fault{Panic: "bug"}, approvaltest.Fault{Panic: "bug"})
		stop := b.run()
		time.Sleep(time.Minute)
		stop()
		b.wantRow(1, payment.Paid)
	})
	inBubble(t, "panic in the sweep", func(b *bench) {
		b.store.Script(approvaltest.SweepNotices, approvaltest.Fault{Panic: "bug"})
		stop := b.run()
		time.Sleep(15 * time.Minute)
		stop()
		if n := b.store.Calls(approvaltest.SweepNotices); n != 2 {
			b.Errorf("%d sweeps", n)
		}
	})
	inBubble(t, "claims fail for a while", func(b *bench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		b.store.Always(approvaltest.ClaimDue, approvaltest.Not())
		stop := b.run()
		time.Sleep(20 * time.Second)
		if at := testutil.ToFloat64(b.recovery.metrics.lastSuccess); at != 0 {
			b.Errorf("success at %v", at)
		}
		b.store.Always(approvaltest.ClaimDue, approvaltest.None())
		time.Sleep(10 * time.Second)
		stop()
		b.wantRow(1, payment.Paid)
		if at := testutil.ToFloat64(b.recovery.metrics.lastSuccess); at == 0 {
			b.Error("no success")
		}
	})
	inBubble(t, "a settle that fails leaves the row to its lease", func(b *bench) {
		b.leftover(1, payment.Pending, time.Minute)
		b.approve(1)
		b.store.Script(approvaltest.Settle, approvaltest.Not())
		stop := b.run()
		time.Sleep(41 * time.Second)
		b.wantRow(1, payment.Pending)
		time.Sleep(10 * time.Second)
		stop()
		b.wantRow(1, payment.Paid)
		b.wantActions(map[approval.Did]float64{approval.DidError: 1, approval.DidPaid: 1})
	})
}

// TestStop ends looks at once and everything else when it is done, and begins nothing new.
func TestStop(t *testing.T) {
	t.Parallel()
	inBubble(t, "looks are cut short and due again at once", func(b *bench) {
		for n := range 10 {
			b.leftover(n, payment.Pending, 2*time.Hour)
			b.approve(n)
		}
		b.resolver.before = func(ctx context.Context, _ payment.Payment) {
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
			}
		}
		stop := b.run()
		time.Sleep(2 * time.Second)
		start := time.Now()
		stop()
		if took := time.Since(start); took != 0 {
			b.Errorf("stopped after %v", took)
		}
		for _, p := range b.store.Rows() {
			if p.Leased || p.DueAt.After(time.Now()) || p.Status != payment.Pending {
				b.Errorf("left %+v", p)
			}
		}
		if got := b.store.Incidents(); len(got) > 0 {
			b.Errorf("a look that was cut short opened %v", got)
		}
	})
	inBubble(t, "a send goes on", func(b *bench) {
		for n := range 10 {
			b.leftover(n, payment.Pending, time.Minute)
			b.store.Change(fmt.Sprintf("key-%d", n), func(p *payment.Payment) { p.MaybeSent = false })
		}
		b.gateway.Random(func(op string) approvaltest.Try {
			return approvaltest.Try{Before: func() { time.Sleep(5 * time.Second) }}
		})
		stop := b.run()
		time.Sleep(2 * time.Second)
		stop()
		paid := 0
		for _, p := range b.store.Rows() {
			if p.Leased {
				b.Errorf("%s is still leased", p.PaymentKey)
			}
			if p.Status == payment.Paid {
				paid++
			}
		}
		if paid == 0 || paid > 5 || len(b.gateway.Sends()) != paid {
			b.Errorf("%d paid of %d sent, want what was in hand", paid, len(b.gateway.Sends()))
		}
	})
	inBubble(t, "idle loops end at once", func(b *bench) {
		stop := b.run()
		time.Sleep(time.Minute)
		synctest.Wait()
		start := time.Now()
		stop()
		if took := time.Since(start); took != 0 {
			b.Errorf("stopped after %v", took)
		}
	})
}

// TestSweep adds missing notices every ten minutes, and once at the start.
func TestSweep(t *testing.T) {
	t.Parallel()
	inBubble(t, "paces", func(b *bench) {
		b.store.MissNotices(3)
		stop := b.run()
		time.Sleep(35 * time.Minute)
		stop()
		if n := b.store.Calls(approvaltest.SweepNotices); n < 4 || n > 5 {
			b.Errorf("%d sweeps in 35 minutes", n)
		}
	})
}

// TestSweepFreesWhatIsStuck: a lease that no holder can have is taken back by the sweep, and the payment settled.
func TestSweepFreesWhatIsStuck(t *testing.T) {
	t.Parallel()
	inBubble(t, "a lease of 1000 hours", func(b *bench) {
		p := b.leftover(1, payment.Pending, time.Minute)
		b.store.Change(p.PaymentKey, func(p *payment.Payment) { p.Leased, p.DueAt = true, time.Now().Add(1000*time.Hour) })
		b.approve(1)
		if n, err := b.recovery.runDue(b.Context()); n != 0 || err != nil {
			b.Fatalf("the due loop resolved %d (%v)", n, err)
		}
		if err := b.recovery.sweep(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.wantRow(1, payment.Paid)
	})
	inBubble(t, "the living lease of an instance with longer time-outs", func(b *bench) {
		p := b.leftover(1, payment.Pending, time.Minute)
		b.store.Change(p.PaymentKey, func(p *payment.Payment) { p.Leased, p.DueAt = true, time.Now().Add(3*b.recovery.opt.Lease) })
		b.approve(1)
		if err := b.recovery.sweep(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.wantRow(1, payment.Pending)
	})
}

// TestMetricsFromZero is trap 24: every label value is there from the start.
func TestMetricsFromZero(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if n := testutil.CollectAndCount(b.registry, "paymentd_recovery_total"); n != len(approval.AllDid()) {
		t.Errorf("%d series of paymentd_recovery_total", n)
	}
	if n := testutil.CollectAndCount(b.registry, "paymentd_recovery_last_success_timestamp_seconds"); n != 1 {
		t.Errorf("%d series of last success", n)
	}
	b.wantActions(map[approval.Did]float64{})
}

// TestNew refuses missing parts and paces.
func TestNew(t *testing.T) {
	t.Parallel()
	good := func() Options {
		b := setup(t)
		o := b.recovery.opt
		o.Registerer = prometheus.NewRegistry()
		return o
	}
	for i, spoil := range []func(*Options){
		func(o *Options) { o.Queue = nil }, func(o *Options) { o.Resolver = nil }, func(o *Options) { o.Logger = nil },
		func(o *Options) { o.Registerer = nil }, func(o *Options) { o.DueEvery = 0 }, func(o *Options) { o.SweepEvery = 0 },
		func(o *Options) { o.Lease = 0 }, func(o *Options) { o.Concurrency = 0 },
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			o := good()
			if _, err := New(o); err != nil {
				t.Fatalf("good options: %v", err)
			}
			o.Registerer = prometheus.NewRegistry()
			if spoil(&o); o.Registerer != nil {
				o.Registerer = prometheus.NewRegistry()
			}
			if _, err := New(o); err == nil {
				t.Error("accepted")
			}
		})
	}
}
