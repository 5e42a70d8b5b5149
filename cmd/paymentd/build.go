package main

import (
	"context"
	"fmt"
	"net/http"

	"paymentd/internal/approval"
	"paymentd/internal/httpapi"
	"paymentd/internal/notify"
	"paymentd/internal/operator"
	"paymentd/internal/payment"
	"paymentd/internal/pg"
	"paymentd/internal/recovery"
	"paymentd/internal/web"
	"paymentd/migrations"
)

// ports are the database, the gateway and the shop as the parts see them.
type ports struct {
	requests, background approval.Store
	gateway              approval.Gateway
	queue                recovery.Queue
	sweeper              recovery.Sweeper
	outbox               notify.Queue
	webhook, mail        notify.Sender // nil: none
}

// build makes every part from the settings.
func (p *program) build() error {
	c := p.config
	var err error
	if p.gateway, err = pg.New(p.gatewayOptions()); err != nil {
		return err
	}
	background := p.store.Background()
	to := ports{
		requests: p.store, background: background, gateway: p.gateway, queue: background, sweeper: background, outbox: background,
	}
	if c.NotifyWebhookURL != "" {
		if to.webhook, err = c.webhook(); err != nil {
			return err
		}
	}
	if c.NotifySMTPURL != "" {
		if to.mail, err = c.mail(); err != nil {
			return err
		}
	}
	if p.between != nil {
		p.between(&to)
	}
	if p.confirm, err = approval.New(approval.Deps{
		Store: to.requests, Gateway: to.gateway, Logger: p.log, Settings: c.approval(),
	}); err != nil {
		return err
	}
	if p.recovery, err = recovery.New(recovery.Options{
		Queue: to.queue, Sweeper: to.sweeper, Resolver: p.confirm.WithStore(to.background), Lease: c.Lease(),
		DueEvery: c.RecoveryDueEvery, SweepEvery: c.RecoveryEvery, Concurrency: c.RecoveryConcurrency,
		Logger: p.log, Registerer: p.registry,
	}); err != nil {
		return err
	}
	if p.hints, err = recovery.NewHints(recovery.HintOptions{
		Recovery: p.recovery, Store: background, Queue: background, Gateway: p.gateway,
	}); err != nil {
		return err
	}
	p.notices, err = notify.New(notify.Options{
		Queue: to.outbox, Workers: c.NotifyWorkers, Log: p.log, Registerer: p.registry, Webhook: to.webhook, Mail: to.mail,
	})
	return err
}

func (c Config) approval() approval.Settings {
	return approval.Settings{
		AnswerWithin: c.AnswerWithin, CommitWithin: c.CommitWithin, Deadline: c.Deadline(), Lease: c.Lease(),
		StatementTimeout: c.DBStatementTimeout, CancelTimeout: c.TossCancelTimeout, LookupTimeout: c.TossLookupTimeout,
		KeepPending:           c.OnUnavailable == "pending",
		CancelOnCommitFailure: c.OnCommitFailure == "cancel",
		MemberCalls:           c.MemberLimit.N, MemberPeriod: c.MemberLimit.Per,
		Rules: payment.Rules{
			SendWithin: c.SendWithin, ResendWithin: c.Resend(), Window: c.TossWindow, Margin: c.TossWindowMargin,
			UnknownIncidentAfter: c.UnknownIncidentAfter, VerifyAfter: c.VerifyAfter,
		},
	}
}

func (c Config) webhook() (*notify.Webhook, error) {
	return notify.NewWebhook(notify.WebhookOptions{
		URL: c.NotifyWebhookURL, Secret: string(c.NotifyWebhookSecret), AllowPrivate: c.NotifyAllowPrivate,
	})
}

func (c Config) mail() (*notify.Mail, error) {
	return notify.NewMail(notify.MailOptions{URL: string(c.NotifySMTPURL), From: c.NotifyFrom})
}

func (p *program) gatewayOptions() pg.Options {
	c := p.config
	causes := make([]pg.Cause, 0, len(c.RetryOn))
	for _, on := range c.RetryOn {
		causes = append(causes, pg.Cause(on))
	}
	return pg.Options{
		BaseURL: c.TossURL, SecretKey: string(c.TossSecretKey), ConnectTimeout: c.TossConnectTimeout,
		ConfirmTimeout: c.TossConfirmTimeout, LookupTimeout: c.TossLookupTimeout, CancelTimeout: c.TossCancelTimeout,
		Retry:    pg.Retry{Max: c.RetryMax, Delay: c.RetryDelay, On: causes, Place: pg.Place(c.RetryPlace)},
		Rate:     pg.Rate{PerSecond: c.RateLimit.PerSecond(), Burst: c.RateBurst, Wait: c.RateWait},
		Bulkhead: pg.Bulkhead{Max: c.Bulkhead, Wait: c.BulkheadWait},
		Breaker: pg.Breaker{
			Window: c.BreakerWindow, MinCalls: c.BreakerMinCalls, FailureRate: c.BreakerFailureRate,
			OpenFor: c.BreakerOpenFor, HalfOpenCalls: c.BreakerHalfOpenCalls,
		},
		LookupRate: c.LookupRate.PerSecond(), CancelRate: c.CancelRate.PerSecond(),
		Registerer: p.registry, Logger: p.log,
	}
}

// doors makes the handlers of both listeners.
func (p *program) doors() (public, private http.Handler, err error) {
	shared := web.NewMetrics(p.registry)
	var breaker operator.Breaker
	var state func() string
	if p.config.BreakerWindow > 0 {
		breaker = breakerSwitch{p.gateway.Breaker()}
		state = breaker.State
	}
	public, err = httpapi.New(httpapi.Deps{
		Confirm: p.confirm, Cancel: p.confirm, Read: p.store, Sync: p.recovery, Hints: p.hints, Incidents: p.store, Keys: p.keys,
		Log: p.log, HTTP: shared, Registry: p.registry, Breaker: state,
	})
	if err != nil {
		return nil, nil, err
	}
	d := operator.Deps{
		Checks:   []operator.Check{{Name: "database", Run: p.store.Ping}, {Name: "migrations", Run: p.migrated}},
		Draining: p.draining.Load, Gatherer: p.registry, Keys: p.keys, Log: p.log, HTTP: shared, Breaker: breaker,
	}
	private, err = operator.New(d)
	return public, private, err
}

// migrated fails when the schema is older than this build needs.
func (p *program) migrated(ctx context.Context) error {
	need, err := migrations.Latest()
	if err != nil {
		return err
	}
	have, err := p.store.Background().SchemaVersion(ctx)
	if err == nil && have < need {
		err = fmt.Errorf("schema %d, need %d", have, need)
	}
	return err
}

// breakerSwitch is the gateway's breaker as the private door wants it.
type breakerSwitch struct{ pg.Switch }

// State is the state's name.
func (b breakerSwitch) State() string { return b.Switch.State().String() }
