package pg

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options say how the client talks to Toss. Every time-out includes connecting. A number that is not called
// "0 = off" has no default: it comes from the configuration (docs/config.md).
type Options struct {
	// BaseURL is https://api.tosspayments.com, or the simulator's; a path in it is kept.
	BaseURL string
	// SecretKey is the merchant's secret key. It leaves the client in the Authorization header alone.
	SecretKey string

	// ConnectTimeout bounds DNS and dial and, again, the TLS handshake; the call's own time-out cuts it.
	ConnectTimeout time.Duration
	// ConfirmTimeout, LookupTimeout and CancelTimeout bound one try each, up to the last byte of the answer.
	ConfirmTimeout, LookupTimeout, CancelTimeout time.Duration
	// TransactionsTimeout bounds one page of the reconciliation feed; 0 = the 60 s that Toss asks for.
	TransactionsTimeout time.Duration
	// TransactionsPage is the most lines of a page, at most 5,000; 0 = 1,000.
	TransactionsPage int

	Retry    Retry
	Rate     Rate
	Bulkhead Bulkhead
	Breaker  Breaker
	// LookupRate and CancelRate are the budgets of lookups and cancels per second, with bursts of one second's
	// worth; 0 = off.
	LookupRate, CancelRate float64

	// Registerer gets the metrics; nil keeps them unregistered.
	Registerer prometheus.Registerer
	// Logger hears of each answer that is not plainly good; nil discards.
	Logger *slog.Logger
}

// Cause is a kind of failure after which a confirm may be sent again. A time-out never is one: the payment
// may be under way.
type Cause string

// The causes of PAYMENTD_RETRY_ON.
const (
	CauseConnect Cause = "connect"
	CauseReset   Cause = "reset"
	Cause5xx     Cause = "5xx"
)

// Place says where the retry stands (PAYMENTD_RETRY_PLACE).
type Place string

// The places; empty means Inside.
const (
	// Inside is breaker(retry(call)): a whole sequence is one result for the breaker.
	Inside Place = "inside"
	// Outside is retry(breaker(call)): every try is one.
	Outside Place = "outside"
)

// Retry says when a confirm is sent again.
type Retry struct {
	// Max is the number of retries after the first try; 0 = off.
	Max int
	// Delay is the mean of the wait before a retry, which lies between half of it and one and a half.
	Delay time.Duration
	On    []Cause
	Place Place
}

// Rate is the token bucket in front of confirms: any t seconds see at most Burst + PerSecond·t sends.
type Rate struct {
	// PerSecond 0 = off.
	PerSecond float64
	Burst     int
	// Wait is the longest wait for a token; who would wait longer is refused on arrival.
	Wait time.Duration
}

// Bulkhead bounds how many confirms are at Toss at once.
type Bulkhead struct {
	// Max 0 = off.
	Max int
	// Wait is the longest wait for a free slot.
	Wait time.Duration
}

// Breaker says when confirms are refused because Toss is sick (package breaker).
type Breaker struct {
	// Window 0 = off: no breaker at all.
	Window, MinCalls int
	// FailureRate is in (0, 1].
	FailureRate   float64
	OpenFor       time.Duration
	HalfOpenCalls int
}

// validate reports every mistake at once and repeats neither the key nor the URL.
func (o Options) validate() error {
	var problems []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf("gateway options: "+format, args...))
		}
	}
	must(isBase(o.BaseURL), "BaseURL must be http:// or https:// and a host")
	must(o.SecretKey != "" && !strings.ContainsFunc(o.SecretKey, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }),
		"SecretKey must be printable ASCII without spaces and colons")
	for name, d := range map[string]time.Duration{
		"ConnectTimeout": o.ConnectTimeout, "ConfirmTimeout": o.ConfirmTimeout,
		"LookupTimeout": o.LookupTimeout, "CancelTimeout": o.CancelTimeout,
	} {
		must(d > 0, "%s is %v, must be above 0", name, d)
	}
	must(o.TransactionsTimeout >= 0, "TransactionsTimeout is %v, must be at least 0", o.TransactionsTimeout)
	must(o.TransactionsPage >= 0 && o.TransactionsPage <= maxPage, "TransactionsPage is %d, must be 0 to %d", o.TransactionsPage, maxPage)
	must(o.Retry.Max >= 0, "Retry.Max is %d, must be at least 0", o.Retry.Max)
	must(o.Retry.Delay >= 0, "Retry.Delay is %v, must be at least 0", o.Retry.Delay)
	for _, cause := range o.Retry.On {
		must(slices.Contains([]Cause{CauseConnect, CauseReset, Cause5xx}, cause), "Retry.On knows connect, reset and 5xx, not %q", cause)
	}
	must(slices.Contains([]Place{"", Inside, Outside}, o.Retry.Place), "Retry.Place is %q, must be inside or outside", o.Retry.Place)
	must(o.Rate.PerSecond >= 0 && o.LookupRate >= 0 && o.CancelRate >= 0, "rates must be at least 0")
	must(o.Rate.PerSecond == 0 || o.Rate.Burst >= 1, "Rate.Burst is %d, must be at least 1", o.Rate.Burst)
	must(o.Rate.Wait >= 0, "Rate.Wait is %v, must be at least 0", o.Rate.Wait)
	must(o.Bulkhead.Max >= 0, "Bulkhead.Max is %d, must be at least 0", o.Bulkhead.Max)
	must(o.Bulkhead.Wait >= 0, "Bulkhead.Wait is %v, must be at least 0", o.Bulkhead.Wait)
	must(o.Breaker.Window >= 0, "Breaker.Window is %d, must be at least 0", o.Breaker.Window)
	return errors.Join(problems...)
}

// isBase reports whether paths may be appended to the URL.
func isBase(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == ""
}

// ownWork is what a trial may take besides the waits and time-outs named in the options: the statements by
// which the key rule stores a send, scheduling, and decoding.
const ownWork = 10 * time.Second

// maxTrial is longer than the longest honest use of one breaker permit: a sequence with retries inside, a try
// with retries outside.
func (o Options) maxTrial() time.Duration {
	try := o.Rate.Wait + o.Bulkhead.Wait + o.ConfirmTimeout
	if o.Retry.Place == Outside {
		return try + ownWork
	}
	retry := o.Retry.Delay + o.Retry.Delay/2 + o.LookupTimeout + try
	return try + time.Duration(o.Retry.Max)*retry + ownWork
}
