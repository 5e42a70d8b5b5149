package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/web"
)

// leaseSlack is how much longer than its work a lease is.
const leaseSlack = 2 * time.Second

// maxLease bounds the lease: recovery takes a longer one for a mistake.
const maxLease = 30 * time.Minute

// mostCancel keeps the lease of a cancel, which has three tries, below what recovery takes for a mistake.
const mostCancel = 5 * time.Minute

// Sums of times up to mostTime stay far from the end of a time.Duration, and nothing that counts is sensibly above mostCount.
const (
	leastPause = 10 * time.Millisecond
	mostTime   = 8760 * time.Hour
	mostCount  = 1_000_000
)

// defaultResend is how long an unanswered confirm may be sent again if nothing is set and the lease is short.
const defaultResend = 2 * time.Minute

// Deadline is D, the hard end of detached work: everything a confirm may wait for, one after the other.
func (c Config) Deadline() time.Duration {
	try := c.RateWait + c.BulkheadWait + c.TossConfirmTimeout
	retry := c.RetryDelay + c.RetryDelay/2 + c.TossLookupTimeout + c.DBAcquireTimeout + try
	d := try + time.Duration(c.RetryMax)*retry + c.TossLookupTimeout + c.CommitWithin
	if c.OnCommitFailure == "cancel" {
		d += c.TossCancelTimeout
	}
	return d
}

// Lease is how long a holder keeps a payment to itself.
func (c Config) Lease() time.Duration { return c.Deadline() + leaseSlack }

// Resend is RESEND_WITHIN; its default makes room for one lease and two looks.
func (c Config) Resend() time.Duration {
	if c.ResendWithin != nil {
		return *c.ResendWithin
	}
	return max(defaultResend, c.Lease()+2*c.RecoveryDueEvery)
}

// Shutdown is the longest ordered stop.
func (c Config) Shutdown() time.Duration {
	if c.ShutdownWithin != nil {
		return *c.ShutdownWithin
	}
	return c.Deadline()
}

// problem is what is wrong with one variable.
type problem struct{ name, text string }

// Error names the variable and what is allowed.
func (p problem) Error() string { return p.name + ": " + p.text }

// problems collects mistakes.
type problems []problem

func (p *problems) when(wrong bool, name, format string, args ...any) {
	if wrong {
		*p = append(*p, problem{prefix + name, fmt.Sprintf(format, args...)})
	}
}

// check refuses what is out of range or contradicts itself.
func (c Config) check() problems {
	var p problems
	if c.checkSizes(&p); len(p) > 0 {
		return p // sums of them mean nothing
	}
	c.checkValues(&p)
	c.checkToss(&p)
	c.checkPipeline(&p)
	c.checkTimes(&p)
	c.checkNotices(&p)
	return p
}

// checkSizes bounds every time and every number, so that no sum or buffer made of them overflows.
func (c Config) checkSizes(p *problems) {
	values := reflect.ValueOf(c)
	for _, f := range fields() {
		switch v := reflect.Indirect(values.FieldByName(f.Field)); {
		case !v.IsValid():
		case v.Type() == reflect.TypeFor[time.Duration]():
			p.when(v.Int() > int64(mostTime), f.Name, "must be at most %s", mostTime)
		case v.CanInt():
			p.when(v.Int() > mostCount, f.Name, "must be at most %d", mostCount)
		}
	}
}

func (c Config) checkValues(p *problems) {
	_, err := pgx.ParseConfig(string(c.DatabaseURL))
	p.when(c.DatabaseURL == "" || err != nil, "DATABASE_URL", "must be a PostgreSQL DSN such as postgres://user:password@host/database")
	_, err = web.ParseKeys(string(c.APIKeys))
	p.when(err != nil, "API_KEYS", "%v", err)
	for name, address := range map[string]string{"LISTEN": c.Listen, "ADMIN_LISTEN": c.AdminListen} {
		_, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port)
		}
		p.when(err != nil, name, "must be host:port or :port")
	}
	p.when(c.Listen == c.AdminListen && !strings.HasSuffix(c.Listen, ":0"), "ADMIN_LISTEN", "must not be the address of LISTEN")
	p.when(c.DBMaxConns < 1, "DB_MAX_CONNS", "must be at least 1")
	p.when(c.DBBackgroundConns < 1, "DB_BACKGROUND_CONNS", "must be at least 1")
	p.when(!oneOf(c.OnUnavailable, "reject", "pending"), "ON_UNAVAILABLE", "must be reject or pending")
	p.when(!oneOf(c.OnCommitFailure, "hold", "cancel"), "ON_COMMIT_FAILURE", "must be hold or cancel")
	p.when(!oneOf(c.LogLevel, "debug", "info", "warn", "error"), "LOG_LEVEL", "must be debug, info, warn or error")
	p.when(!oneOf(c.LogFormat, "json", "text"), "LOG_FORMAT", "must be json or text")
	p.when(c.RecoveryConcurrency < 1 || c.RecoveryConcurrency > 64, "RECOVERY_CONCURRENCY", "must be 1 to 64")
	p.when(c.LookupRate.N < 1, "LOOKUP_RATE", "must not be 0: lookups are the way back for money")
	p.when(c.CancelRate.N < 1, "CANCEL_RATE", "must not be 0: cancels are the way back for money")
}

func (c Config) checkToss(p *problems) {
	u, err := url.Parse(c.TossURL)
	if err != nil {
		u = &url.URL{}
	}
	p.when(!oneOf(u.Scheme, "http", "https") || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "", "TOSS_URL",
		"must be an http or https URL without user, query and fragment")
	p.when(c.Live() && u.Scheme == "http", "TOSS_URL", "must be https with a live key")
	key := string(c.TossSecretKey)
	p.when(!strings.HasPrefix(key, "test_") && !c.Live(), "TOSS_SECRET_KEY", "must begin with test_ or live_")
	p.when(strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }), "TOSS_SECRET_KEY",
		"must be printable ASCII without colon and white space")
}

func (c Config) checkPipeline(p *problems) {
	p.when(c.RetryMax < 0 || c.RetryMax > 10, "RETRY_MAX", "must be 0 to 10")
	for _, on := range c.RetryOn {
		p.when(!oneOf(on, "connect", "reset", "5xx"), "RETRY_ON", "may hold connect, reset and 5xx only")
	}
	p.when(!oneOf(c.RetryPlace, "inside", "outside"), "RETRY_PLACE", "must be inside or outside")
	p.when(c.RateLimit.N > 0 && c.RateBurst < 1, "RATE_BURST", "must be at least 1 when RATE_LIMIT is set")
	p.when(c.Bulkhead < 0, "BULKHEAD", "must not be negative")
	p.when(c.BreakerWindow < 0, "BREAKER_WINDOW", "must not be negative")
	if c.BreakerWindow == 0 {
		return
	}
	p.when(c.BreakerMinCalls < 1, "BREAKER_MIN_CALLS", "must be at least 1")
	p.when(c.BreakerMinCalls > c.BreakerWindow, "BREAKER_MIN_CALLS", "must not be above BREAKER_WINDOW (%d)", c.BreakerWindow)
	p.when(!(c.BreakerFailureRate > 0 && c.BreakerFailureRate <= 1), "BREAKER_FAILURE_RATE", "must be above 0 and at most 1")
	p.when(c.BreakerHalfOpenCalls < 1, "BREAKER_HALF_OPEN_CALLS", "must be at least 1")
	p.when(c.BreakerOpenFor == 0, "BREAKER_OPEN_FOR", "must be above 0")
}

func (c Config) checkTimes(p *problems) {
	for name, d := range map[string]time.Duration{
		"DB_CONNECT_TIMEOUT": c.DBConnectTimeout, "DB_ACQUIRE_TIMEOUT": c.DBAcquireTimeout,
		"DB_STATEMENT_TIMEOUT": c.DBStatementTimeout, "TOSS_CONNECT_TIMEOUT": c.TossConnectTimeout,
		"TOSS_CONFIRM_TIMEOUT": c.TossConfirmTimeout, "TOSS_LOOKUP_TIMEOUT": c.TossLookupTimeout,
		"TOSS_CANCEL_TIMEOUT": c.TossCancelTimeout, "TOSS_WINDOW": c.TossWindow, "ANSWER_WITHIN": c.AnswerWithin,
		"COMMIT_WITHIN": c.CommitWithin, "RECOVERY_EVERY": c.RecoveryEvery, "RECOVERY_DUE_EVERY": c.RecoveryDueEvery,
		"UNKNOWN_INCIDENT_AFTER": c.UnknownIncidentAfter, "VERIFY_AFTER": c.VerifyAfter,
	} {
		p.when(d <= 0, name, "must be above 0")
	}
	p.when(c.DBStatementTimeout > 0 && c.DBStatementTimeout < time.Millisecond, "DB_STATEMENT_TIMEOUT", "must be at least 1ms: PostgreSQL takes less for no limit")
	for name, d := range map[string]time.Duration{"RECOVERY_EVERY": c.RecoveryEvery, "RECOVERY_DUE_EVERY": c.RecoveryDueEvery} {
		p.when(d > 0 && d < leastPause, name, "must be at least %s", leastPause)
	}
	p.when(c.SendWithin >= c.TossWindow, "SEND_WITHIN", "must be below TOSS_WINDOW (%s)", c.TossWindow)
	least := c.Lease() + 2*c.RecoveryDueEvery
	p.when(c.ResendWithin != nil && *c.ResendWithin > 0 && *c.ResendWithin < least, "RESEND_WITHIN",
		"must be 0 or at least the lease plus two looks (%s): a confirm could never be sent again", least)
	p.when(c.Lease() > maxLease, "TOSS_CONFIRM_TIMEOUT", "and the waits and retries add up to a lease of %s, more than %s", c.Lease(), maxLease)
	p.when(c.TossCancelTimeout > mostCancel, "TOSS_CANCEL_TIMEOUT", "must be at most %s", mostCancel)
	p.when(c.ShutdownWithin != nil && *c.ShutdownWithin <= 0, "SHUTDOWN_WITHIN", "must be above 0")
}

func (c Config) checkNotices(p *problems) {
	p.when(c.NotifyWorkers < 1 || c.NotifyWorkers > 4, "NOTIFY_WORKERS", "must be 1 to 4")
	p.when(c.NotifyWebhookURL != "" && c.NotifyWebhookSecret == "", "NOTIFY_WEBHOOK_SECRET", "is needed with NOTIFY_WEBHOOK_URL")
	if c.NotifyWebhookURL != "" && c.NotifyWebhookSecret != "" {
		_, err := c.webhook()
		p.when(err != nil, "NOTIFY_WEBHOOK_URL", "or its secret: %v", err)
	}
	p.when((c.NotifySMTPURL == "") != (c.NotifyFrom == ""), "NOTIFY_SMTP_URL", "and NOTIFY_FROM go together")
	if c.NotifySMTPURL != "" && c.NotifyFrom != "" {
		_, err := c.mail()
		p.when(err != nil, "NOTIFY_SMTP_URL", "or NOTIFY_FROM: %v", err)
	}
}

// Live reports whether real money moves.
func (c Config) Live() bool { return strings.HasPrefix(string(c.TossSecretKey), "live_") }

// warnings are settings that are allowed and probably not meant.
func (c Config) warnings() []string {
	const testPerSecond = 100.0 / 60
	var out []string
	unlimited := c.RateLimit.N == 0
	if !c.Live() && strings.HasPrefix(c.TossURL, "https://api.tosspayments.com") &&
		(unlimited || max(c.RateLimit.PerSecond(), c.LookupRate.PerSecond(), c.CancelRate.PerSecond()) > testPerSecond) {
		out = append(out, "a test key at the real Toss allows 100 requests per minute and API; a rate here is above that")
	}
	if c.TossConnectTimeout > min(c.TossConfirmTimeout, c.TossLookupTimeout, c.TossCancelTimeout) {
		out = append(out, "TOSS_CONNECT_TIMEOUT is cut to the shorter time-out of a call")
	}
	return out
}

func oneOf(s string, allowed ...string) bool { return slices.Contains(allowed, s) }
