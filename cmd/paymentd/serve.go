package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"paymentd/internal/approval"
	"paymentd/internal/notify"
	"paymentd/internal/pg"
	"paymentd/internal/recovery"
	"paymentd/internal/store"
	"paymentd/internal/web"
	"paymentd/migrations"
)

const (
	headersWithin = 5 * time.Second
	idleFor       = 2 * time.Minute
	maxHeader     = 16 << 10
	// balancerBeat is how long a load balancer gets to see that we are not ready before we stop listening,
	// and after that what its last connections carry gets to us.
	balancerBeat = time.Second
)

// program is every object of the running service.
type program struct {
	config   Config
	log      *slog.Logger
	registry *prometheus.Registry
	keys     []web.Key
	store    *store.Store
	gateway  *pg.Client
	confirm  *approval.Service
	recovery *recovery.Recovery
	hints    *recovery.Hints
	notices  *notify.Pool
	draining atomic.Bool
	// between is nil but in the crash test, which stands between the parts and their ports and kills the process there.
	between func(*ports)
}

// serve runs the service until ctx ends and then stops it in order. ready, if not nil, gets the addresses of the
// doors once they listen.
func serve(ctx context.Context, c Config, log *slog.Logger, ready func(public, private string)) error {
	return (&program{config: c, log: log}).serve(ctx, ready)
}

func (p *program) serve(ctx context.Context, ready func(public, private string)) (err error) {
	c, log := p.config, p.log
	if p.keys, err = web.ParseKeys(string(c.APIKeys)); err != nil {
		return fmt.Errorf("settings:\n%sAPI_KEYS: %w", prefix, err)
	}
	p.registry = prometheus.NewRegistry()
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	for _, w := range c.warnings() {
		log.Warn(w)
	}
	if err := p.connect(ctx); err != nil {
		if ctx.Err() != nil { // a stop that was asked for is no failure, and nothing runs yet
			log.Info("stopped before the database was ready", "error", err)
			return nil
		}
		return err
	}
	defer p.store.Close()
	if err := p.build(); err != nil {
		return err
	}
	defer p.gateway.Close()
	p.store.HandNoticesTo(p.notices)
	public, private, err := p.doors()
	if err != nil {
		return err
	}
	return p.run(ctx, public, private, ready)
}

// connect tries to reach the database until DB_CONNECT_TIMEOUT and brings it to this version's schema.
func (p *program) connect(ctx context.Context) error {
	if err := p.reach(ctx); err != nil {
		return err
	}
	// A migration may take longer than connecting.
	err := migrations.Up(ctx, string(p.config.DatabaseURL))
	if err == nil {
		err = p.checkDurability(ctx)
	}
	if err != nil {
		p.store.Close()
	}
	return err
}

func (p *program) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.DBConnectTimeout)
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := p.open(ctx)
		if err == nil {
			return nil
		}
		p.log.Warn("the database does not answer", "error", err, "again_in", pause.String())
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("database not reached within %sDB_CONNECT_TIMEOUT (%s): %w", prefix, p.config.DBConnectTimeout, err)
		}
	}
}

func (p *program) open(ctx context.Context) (err error) {
	c := p.config
	p.store, err = store.Open(ctx, store.Options{
		DSN: string(c.DatabaseURL), RequestConns: c.DBMaxConns, BackgroundConns: c.DBBackgroundConns,
		AcquireTimeout: c.DBAcquireTimeout, StatementTimeout: c.DBStatementTimeout, Merge: bool(c.DBMerge),
		Registerer: p.registry, Logger: p.log,
	})
	return err
}

// checkDurability refuses a database that may lose what it said it saved, if real money moves.
func (p *program) checkDurability(ctx context.Context) error {
	d, err := p.store.Durability(ctx)
	if err != nil {
		return err
	}
	if d.Fsync && d.SynchronousCommit != "off" {
		return nil
	}
	const text = "the database may lose saved payments (fsync or synchronous_commit is off)"
	if p.config.Live() {
		return errors.New(text + ": refused with a live key")
	}
	p.log.Warn(text)
	return nil
}

// run listens, works until ctx ends or a part fails, and stops in order: not ready, doors, running confirms,
// loops; the caller closes the pools.
func (p *program) run(ctx context.Context, public, private http.Handler, ready func(string, string)) error {
	privateListener, err := new(net.ListenConfig).Listen(ctx, "tcp", p.config.AdminListen)
	if err != nil {
		return fmt.Errorf("private door (%sADMIN_LISTEN): %w", prefix, err)
	}
	publicListener, err := new(net.ListenConfig).Listen(ctx, "tcp", p.config.Listen)
	if err != nil {
		return errors.Join(fmt.Errorf("public door (%sLISTEN): %w", prefix, err), privateListener.Close())
	}
	privateServer, gate := p.server(private), newGate(p.server(public), publicListener)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoops()
	var parts sync.WaitGroup
	start := func(name string, part func() error) {
		parts.Go(func() {
			if err := part(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, context.Canceled) {
				fail(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	start("private door", func() error { return privateServer.Serve(privateListener) })
	start("public door", gate.serve)
	start("recovery", func() error { return p.recovery.Run(loops) })
	start("webhooks", func() error { return p.hints.Run(loops) })
	start("notices", func() error { return p.notices.Run(loops) })
	p.log.Info("listening", "public", publicListener.Addr().String(), "private", privateListener.Addr().String(),
		"version", version, "deadline", p.config.Deadline().String(), "lease", p.config.Lease().String(),
		"resend_within", p.config.Resend().String())
	if ready != nil {
		ready(publicListener.Addr().String(), privateListener.Addr().String())
	}
	<-ctx.Done()
	err = p.stop(ctx, gate, func() { stopLoops(); _ = privateServer.Close(); parts.Wait() })
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, ctx.Err()) {
		return errors.Join(cause, err)
	}
	return err
}

// stop ends everything within SHUTDOWN_WITHIN. What does not end in time is left: its leases run out, and recovery
// of another instance or of the next start finds it. endParts stops the loops and waits for every part.
func (p *program) stop(ctx context.Context, public *gate, endParts func()) error {
	p.draining.Store(true)
	within := p.config.Shutdown()
	p.log.Info("stopping", "cause", context.Cause(ctx).Error(), "within", within.String())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	beat := min(balancerBeat, within/10)
	time.Sleep(beat)
	// A sync may have an hour of work before it; what it has done it tells, and recovery goes on with the rest.
	p.recovery.StopSyncs()
	var left error
	if err := public.shut(ctx, beat); err != nil {
		left = errors.New("some requests were still running at the end of SHUTDOWN_WITHIN")
	}
	if err := p.confirm.Drain(ctx); err != nil {
		left = errors.New("some confirms were still running at the end of SHUTDOWN_WITHIN; recovery will find them")
	}
	ended := make(chan struct{})
	go func() { endParts(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		if left == nil { // else it had no time
			left = errors.New("some background work was still running at the end of SHUTDOWN_WITHIN; recovery will find it")
		}
	}
	p.log.Info("stopped")
	return left
}

func (p *program) server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headersWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
}

func newLogger(c Config, out io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // checked with the settings
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(out, options))
	}
	return slog.New(slog.NewJSONHandler(out, options))
}

func buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "paymentd_build_info", Help: "1, with the version as a label.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
}
