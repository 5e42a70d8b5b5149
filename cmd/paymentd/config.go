package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// prefix begins the name of every variable.
const prefix = "PAYMENTD_"

// Config is everything that can be set, read once from the environment. docs/config.md explains each; a test
// keeps the two equal.
type Config struct {
	DatabaseURL        Secret        `env:"DATABASE_URL,required" help:"PostgreSQL DSN (pgx), several hosts and target_session_attrs included"`
	DBConnectTimeout   time.Duration `env:"DB_CONNECT_TIMEOUT" envDefault:"30s" help:"how long to try to reach the database at start"`
	DBMaxConns         int           `env:"DB_MAX_CONNS" envDefault:"10" help:"connections for requests"`
	DBBackgroundConns  int           `env:"DB_BACKGROUND_CONNS" envDefault:"4" help:"connections for recovery and notices"`
	DBAcquireTimeout   time.Duration `env:"DB_ACQUIRE_TIMEOUT" envDefault:"2s" help:"longest wait for a connection"`
	DBStatementTimeout time.Duration `env:"DB_STATEMENT_TIMEOUT" envDefault:"5s" help:"longest statement, enforced by the server"`
	DBMerge            Switch        `env:"DB_MERGE" envDefault:"on" help:"merge the plain statements of concurrent calls: on or off"`

	Listen      string `env:"LISTEN" envDefault:":8080" help:"public door"`
	AdminListen string `env:"ADMIN_LISTEN" envDefault:"127.0.0.1:9090" help:"private door: health, metrics, pprof, breaker switch"`
	APIKeys     Secret `env:"API_KEYS,required" help:"name:role:secret, comma separated; roles checkout and operator"`

	TossURL            string        `env:"TOSS_URL" envDefault:"https://api.tosspayments.com" help:"base URL of Toss"`
	TossSecretKey      Secret        `env:"TOSS_SECRET_KEY,required" help:"Toss secret key, test_… or live_…"`
	TossConnectTimeout time.Duration `env:"TOSS_CONNECT_TIMEOUT" envDefault:"3s" help:"longest connect; cut to a call's own time-out"`
	TossConfirmTimeout time.Duration `env:"TOSS_CONFIRM_TIMEOUT" envDefault:"15s" help:"longest confirm, connecting included"`
	TossLookupTimeout  time.Duration `env:"TOSS_LOOKUP_TIMEOUT" envDefault:"5s" help:"longest lookup, connecting included"`
	TossCancelTimeout  time.Duration `env:"TOSS_CANCEL_TIMEOUT" envDefault:"15s" help:"longest cancel, connecting included"`
	TossWindow         time.Duration `env:"TOSS_WINDOW" envDefault:"10m" help:"how long Toss lets an authenticated payment be confirmed"`
	TossWindowMargin   time.Duration `env:"TOSS_WINDOW_MARGIN" envDefault:"5m" help:"what may still be under way after the window"`

	AnswerWithin time.Duration `env:"ANSWER_WITHIN" envDefault:"10s" help:"longest wait of a caller, then 202"`
	CommitWithin time.Duration `env:"COMMIT_WITHIN" envDefault:"8s" help:"how long the commit of an outcome is tried"`

	RetryMax   int           `env:"RETRY_MAX" envDefault:"1" help:"retries after the first try, 0 to 10"`
	RetryDelay time.Duration `env:"RETRY_DELAY" envDefault:"500ms" help:"pause before a retry, with jitter"`
	RetryOn    []string      `env:"RETRY_ON" envDefault:"connect,reset,5xx" help:"what is tried again: connect, reset, 5xx"`
	RetryPlace string        `env:"RETRY_PLACE" envDefault:"inside" help:"retry inside or outside the breaker"`
	RateLimit  Rate          `env:"RATE_LIMIT" envDefault:"30/s" help:"confirms sent to Toss, N/s or N/m; 0 = off"`
	RateBurst  int           `env:"RATE_BURST" envDefault:"5" help:"burst above the rate"`
	RateWait   time.Duration `env:"RATE_WAIT" envDefault:"4s" help:"longest wait for the rate"`

	Bulkhead             int           `env:"BULKHEAD" envDefault:"200" help:"confirms at Toss at the same time; 0 = off"`
	BulkheadWait         time.Duration `env:"BULKHEAD_WAIT" envDefault:"0s" help:"longest wait for a place"`
	BreakerWindow        int           `env:"BREAKER_WINDOW" envDefault:"20" help:"calls the breaker remembers; 0 = off"`
	BreakerMinCalls      int           `env:"BREAKER_MIN_CALLS" envDefault:"10" help:"calls before the breaker judges"`
	BreakerFailureRate   float64       `env:"BREAKER_FAILURE_RATE" envDefault:"0.5" help:"failure rate that opens it, above 0 to 1"`
	BreakerOpenFor       time.Duration `env:"BREAKER_OPEN_FOR" envDefault:"30s" help:"how long it stays open"`
	BreakerHalfOpenCalls int           `env:"BREAKER_HALF_OPEN_CALLS" envDefault:"3" help:"trials that must go well to close it"`

	OnUnavailable   string         `env:"ON_UNAVAILABLE" envDefault:"reject" help:"reject or pending: what becomes of a payment that cannot be sent"`
	SendWithin      time.Duration  `env:"SEND_WITHIN" envDefault:"9m" help:"how long a never-sent payment may be sent; below TOSS_WINDOW"`
	ResendWithin    *time.Duration `env:"RESEND_WITHIN" help:"how long an unanswered confirm may be sent again; 0 = off; default 2m, more if the lease is longer"`
	OnCommitFailure string         `env:"ON_COMMIT_FAILURE" envDefault:"hold" help:"hold or cancel: what becomes of an approval that cannot be saved"`
	MemberLimit     Rate           `env:"MEMBER_LIMIT" envDefault:"10/m" help:"confirms per memberId, N/s or N/m; 0 = off"`

	RecoveryEvery        time.Duration `env:"RECOVERY_EVERY" envDefault:"10m" help:"pace of the sweep"`
	RecoveryDueEvery     time.Duration `env:"RECOVERY_DUE_EVERY" envDefault:"5s" help:"pace at which due payments are looked for"`
	RecoveryConcurrency  int           `env:"RECOVERY_CONCURRENCY" envDefault:"4" help:"payments looked at at the same time"`
	LookupRate           Rate          `env:"LOOKUP_RATE" envDefault:"10/s" help:"lookups at Toss, N/s or N/m; webhooks of unknown payments have 1/s besides"`
	CancelRate           Rate          `env:"CANCEL_RATE" envDefault:"5/s" help:"cancels at Toss, N/s or N/m"`
	UnknownIncidentAfter time.Duration `env:"UNKNOWN_INCIDENT_AFTER" envDefault:"1h" help:"when a payment Toss cannot tell about becomes an incident"`
	VerifyAfter          time.Duration `env:"VERIFY_AFTER" envDefault:"30m" help:"second look at a payment that expired here"`

	NotifyWorkers       int    `env:"NOTIFY_WORKERS" envDefault:"4" help:"workers that deliver notices, 1 to 4"`
	NotifyWebhookURL    string `env:"NOTIFY_WEBHOOK_URL" help:"where payment.* notices go (Standard Webhooks)"`
	NotifyWebhookSecret Secret `env:"NOTIFY_WEBHOOK_SECRET" help:"its signing secret, whsec_…"`
	NotifyAllowPrivate  bool   `env:"NOTIFY_ALLOW_PRIVATE" envDefault:"true" help:"allow the webhook private and loopback addresses"`
	NotifySMTPURL       Secret `env:"NOTIFY_SMTP_URL" help:"mail server for receipts, smtp://… or smtps://…"`
	NotifyFrom          string `env:"NOTIFY_FROM" help:"sender of receipts: one address, the shop's name before it"`

	ShutdownWithin *time.Duration `env:"SHUTDOWN_WITHIN" help:"longest ordered stop; default D, the deadline of detached work"`
	LogLevel       string         `env:"LOG_LEVEL" envDefault:"info" help:"debug, info, warn or error"`
	LogFormat      string         `env:"LOG_FORMAT" envDefault:"json" help:"json or text"`
}

// exempt are names with our prefix that tests and the developer's PostgreSQL use.
var exempt = []string{"REQUIRE_DB", "PG_BIN"}

// loadConfig reads the variables ("NAME=value") and reports every mistake at once; no message repeats a value that
// may be secret. unneeded are names that may be missing or empty although serve requires them.
func loadConfig(environ []string, unneeded ...string) (Config, error) {
	vars := env.ToMap(environ)
	problems := resolveFiles(vars)
	problems = append(problems, unknownNames(vars)...)
	for _, name := range unneeded {
		if vars[name] == "" {
			delete(vars, name)
		}
	}
	c, wrong := parseConfig(vars)
	for name, problem := range wrong {
		if _, given := vars[name]; given || !slices.Contains(unneeded, name) {
			problems = append(problems, problem)
		}
		delete(vars, name)
	}
	if len(wrong) > 0 {
		// The rest is checked beside the defaults of what cannot be read.
		c, _ = parseConfig(vars)
	}
	for _, p := range c.check() {
		if _, known := wrong[p.name]; !known {
			problems = append(problems, p)
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if err := errors.Join(problems...); err != nil {
		return Config{}, err
	}
	return c, nil
}

// parseConfig reads the variables; wrong names those that cannot be read.
func parseConfig(vars map[string]string) (c Config, wrong map[string]problem) {
	err := env.ParseWithOptions(&c, env.Options{
		Environment: vars, Prefix: prefix,
		FuncMap: map[reflect.Type]env.ParserFunc{
			reflect.TypeFor[time.Duration](): parseDuration,
			reflect.TypeFor[Rate]():          parseRate,
			reflect.TypeFor[Switch]():        parseSwitch,
		},
	})
	return c, plainErrors(err)
}

// resolveFiles replaces NAME_FILE by the content of the file, for the secrets.
func resolveFiles(vars map[string]string) []error {
	var problems []error
	for _, f := range fields() {
		name := prefix + f.Name
		path, given := vars[name+"_FILE"]
		if !f.Secret || !given {
			continue
		}
		delete(vars, name+"_FILE")
		if _, both := vars[name]; both {
			problems = append(problems, fmt.Errorf("%s: give either it or %s_FILE", name, name))
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s_FILE: %w", name, err))
			continue
		}
		vars[name] = strings.TrimRight(string(text), "\r\n")
	}
	return problems
}

func unknownNames(vars map[string]string) []error {
	known := slices.Clone(exempt)
	for _, f := range fields() {
		known = append(known, f.Name)
	}
	var problems []error
	for name := range vars {
		short, ours := strings.CutPrefix(name, prefix)
		if ours && !strings.HasPrefix(short, "TEST_") && !slices.Contains(known, short) {
			problems = append(problems, fmt.Errorf("%s: unknown name, see paymentd serve --help", name))
		}
	}
	return problems
}

// plainErrors names the variable instead of the struct field, and never repeats its value.
func plainErrors(err error) map[string]problem {
	aggregate, _ := errors.AsType[env.AggregateError](err)
	wrong := map[string]problem{}
	for _, e := range aggregate.Errors {
		if missing, ok := errors.AsType[env.VarIsNotSetError](e); ok {
			wrong[missing.Key] = problem{missing.Key, "is required"}
		}
		parse, _ := errors.AsType[env.ParseError](e)
		for _, f := range fields() {
			if f.Field == parse.Name {
				wrong[prefix+f.Name] = problem{prefix + f.Name, allowed(f.Type)}
			}
		}
	}
	return wrong
}

func allowed(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration](), reflect.TypeFor[*time.Duration]():
		return "must be a duration such as 500ms, 10s or 2m, not negative"
	case reflect.TypeFor[Rate]():
		return "must be a rate such as 30/s or 100/m, or 0"
	case reflect.TypeFor[Switch]():
		return "must be on or off"
	case reflect.TypeFor[int]():
		return "must be a whole number"
	case reflect.TypeFor[float64]():
		return "must be a number"
	case reflect.TypeFor[bool]():
		return "must be true or false"
	default:
		return "is not valid"
	}
}

// field is what the help and the checks need to know of one variable.
type field struct {
	Field, Name, Default, Help string
	Required, Secret           bool
	Type                       reflect.Type
}

func fields() []field {
	t := reflect.TypeFor[Config]()
	out := make([]field, 0, t.NumField())
	for f := range t.Fields() {
		name, required := strings.CutSuffix(f.Tag.Get("env"), ",required")
		out = append(out, field{
			Field: f.Name, Name: name, Default: f.Tag.Get("envDefault"), Help: f.Tag.Get("help"),
			Required: required, Secret: f.Type == reflect.TypeFor[Secret](), Type: f.Type,
		})
	}
	return out
}
