// Package pg is the client of Toss Payments: wire shapes, the table that classifies answers, and the pipeline
// breaker(retry(limiter(bulkhead(call)))) in front of confirms. Whatever happens is a payment.Answer.
package pg

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"paymentd/breaker"
	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// Client talks to Toss for one merchant. Make one with [New]; it is safe for concurrent use.
type Client struct {
	options       Options
	base          *url.URL
	authorization string
	transport     http.RoundTripper
	classifier    classifier
	pipeline      *pipeline
	lookups       *limiter
	cancels       *limiter
	strangers     *limiter
	metrics       *metrics
	log           *slog.Logger
}

// strangersRate is how many lookups per second webhooks of unknown payments get.
const strangersRate = 1

var _ approval.Gateway = (*Client)(nil)

// New makes a client and registers its metrics. It connects to nothing. The error names every option that is
// wrong and repeats no secret.
func New(o Options) (*Client, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	return newClient(o, newTransport(o))
}

// newClient is New over any transport.
func newClient(o Options, transport http.RoundTripper) (*Client, error) {
	base, err := url.Parse(o.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("gateway options: %w", err)
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("gateway metrics: %w", err)
	}
	p, err := newPipeline(o, m)
	if err != nil {
		return nil, fmt.Errorf("gateway options: %w", err)
	}
	c := &Client{
		options:       o,
		base:          base.JoinPath("/"),
		authorization: "Basic " + base64.StdEncoding.EncodeToString([]byte(o.SecretKey+":")),
		transport:     transport,
		classifier:    newClassifier(),
		pipeline:      p,
		lookups:       newLimiter(o.LookupRate, secondsWorth(o.LookupRate)),
		cancels:       newLimiter(o.CancelRate, secondsWorth(o.CancelRate)),
		strangers:     newLimiter(strangersRate, 1),
		metrics:       m,
		log:           o.Logger,
	}
	c.options.SecretKey = ""
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if err := showState(o.Registerer, c.breakerState); err != nil {
		return nil, fmt.Errorf("gateway metrics: %w", err)
	}
	return c, nil
}

// Close drops idle connections and the breaker's timer. Calls under way end as they would.
func (c *Client) Close() {
	if t, ok := c.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
	if c.pipeline.breaker != nil {
		c.pipeline.breaker.Stop()
	}
}

// Switch is the breaker as an operator sees it.
type Switch interface {
	// ForceOpen refuses every confirm until Release.
	ForceOpen()
	// Release goes to half-open: Toss has to prove itself with trials.
	Release()
	// State is the state at this moment.
	State() breaker.State
	// Snapshot is everything about the breaker at this moment.
	Snapshot() breaker.Snapshot
}

// Breaker returns the breaker of confirms, or nil when it is switched off.
func (c *Client) Breaker() Switch {
	if c.pipeline.breaker == nil {
		return nil
	}
	return c.pipeline.breaker
}

func (c *Client) breakerState() breaker.State {
	if c.pipeline.breaker == nil {
		return breaker.Closed
	}
	return c.pipeline.breaker.State()
}

// Peek tells whether the breaker, or a bulkhead without waiting, would refuse a confirm now. It takes nothing;
// a refusal is counted, because its caller sends nothing.
func (c *Client) Peek() *payment.Answer {
	var refused *ended
	switch p := c.pipeline; {
	case p.breaker != nil && p.breaker.Peek() != nil:
		refused = refusedByBreaker(p.breaker.Peek())
	case p.bulkhead.full():
		refused = refuse(payment.RefusedByBulkhead, slotFree, nil)
	default:
		return nil
	}
	c.metrics.refusal(refused.answer.Refuser)
	return &refused.answer
}

// Confirm runs the pipeline and returns the answer of every try in order, then the refusal or lookup that ended
// the sequence, if one did; at least one answer. When ctx ends, what was heard until then is returned.
func (c *Client) Confirm(ctx context.Context, call approval.ConfirmCall) []payment.Answer {
	if call.Background {
		ctx = breaker.Background(ctx)
	}
	s := &sequence{ctx: ctx, call: call}
	s.request = c.confirmRequest(&s.call)
	if heard := c.runSequence(s); heard != nil {
		s.hear(heard)
	}
	if s.begun > 1 {
		c.metrics.sequence(s.last())
	}
	return s.answers
}

// runSequence returns what was heard besides the tries, nil for nothing. A panic, which only the caller's NextTry can bring
// here, is one more unknown.
func (c *Client) runSequence(s *sequence) (heard answer) {
	defer func() {
		if r := recover(); r != nil {
			heard = panicked(r)
			c.note(s.ctx, &s.request, heard)
		}
	}()
	_, err := c.pipeline.compose(s).Get(func() (answer, error) { return c.sendConfirm(s) })
	heard = endOf(err)
	if heard != nil && heard.Kind == payment.KindRefused {
		c.metrics.refusal(heard.Refuser)
	}
	return heard
}

// sendConfirm is the innermost call: one try, within the lease.
func (c *Client) sendConfirm(s *sequence) (answer, error) {
	if err := s.ctx.Err(); err != nil {
		stop := refuse(payment.RefusedByLease, 0, err)
		return &stop.answer, stop
	}
	if end := s.call.NotAfter; !end.IsZero() && !time.Now().Before(end) {
		stop := refuse(payment.RefusedByLease, 0, nil)
		return &stop.answer, stop
	}
	a := c.try(s.ctx, &s.request)
	s.hear(a)
	return a, nil
}

func (c *Client) confirmRequest(call *approval.ConfirmCall) request {
	order := &call.Order
	return request{
		op: opConfirm, method: http.MethodPost, path: "v1/payments/confirm", key: call.Key, body: confirmBody(*order),
		timeout: c.options.ConfirmTimeout, want: expectation{paymentKey: order.PaymentKey, order: order}, orderID: order.OrderID,
	}
}
