package pg

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"paymentd/internal/payment"
)

const (
	// maxBody bounds what is read of an answer; a Payment has a few KiB.
	maxBody = 1 << 20
	// usualBody is what an answer may take of memory before it is there.
	usualBody = 8 << 10
	// idleFor is shorter than the idle time-outs of usual proxies, so that few connections are found dead.
	idleFor = 30 * time.Second
	// unboundedIdle is how many connections stay open without a bulkhead.
	unboundedIdle = 4096
)

var errTooLarge = errors.New("answer larger than is possible")

// newTransport speaks HTTP/1.1 alone: with HTTP/2 one broken connection would break every payment on it, and
// the library re-sends streams by rules of its own.
func newTransport(o Options) *http.Transport {
	dialer := &net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: 15 * time.Second}
	idle := unboundedIdle
	if o.Bulkhead.Max > 0 {
		idle = o.Bulkhead.Max + 64 // lookups and cancels use the same host
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    o.ConnectTimeout,
		Protocols:              protocols,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        1 << 10, // a whole confirm; every waiting one has its own
		ReadBufferSize:         1 << 10, // TLS has a buffer of its own
		DisableCompression:     true,
	}
}

// request is one try.
type request struct {
	op      string
	method  string
	path    string // escaped, below the base URL
	query   string // encoded
	key     string // Idempotency-Key, if any
	body    []byte // nil for GET
	timeout time.Duration
	want    expectation
	orderID string // for the log
	// read concludes from a 2xx that holds no Payment; nil: the answer is a Payment.
	read    func(answer, reply)
	maxBody int64 // 0 is maxBody
}

// exchange sends one request and reads the answer to its end before the try's context is cancelled. It goes to
// the transport directly: an http.Client would follow redirects and repeat the URL in its errors.
func (c *Client) exchange(ctx context.Context, q *request) (r reply, failed answer) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	var seen trail
	req, err := c.newRequest(httptrace.WithClientTrace(ctx, seen.trace()), q)
	if err != nil {
		return reply{}, &payment.Answer{Kind: payment.KindNotConnected, Err: errors.New("request could not be made")}
	}
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		return reply{}, &payment.Answer{Kind: seen.kind(err), Err: described(err)}
	}
	defer res.Body.Close()
	return c.read(q, res)
}

// read reads an answer to its end.
func (c *Client) read(q *request, res *http.Response) (r reply, failed answer) {
	r = reply{
		status: res.StatusCode, traceID: c.traceID(q, res.Header), retryAfter: res.Header.Get("Retry-After"),
	}
	var err error
	limit := cmp.Or(q.maxBody, maxBody)
	r.body, err = readBody(res, limit)
	if secret := []byte(c.secret()); len(secret) > 0 && bytes.Contains(r.body, secret) { // from here on nobody could tell it from Toss's words
		r.body = bytes.ReplaceAll(r.body, secret, []byte("[secret]"))
	}
	switch {
	case err != nil && isTimeout(err):
		return r, r.failed(payment.KindTimeout, described(err))
	case err != nil:
		return r, r.failed(payment.KindReset, described(err))
	case int64(len(r.body)) > limit:
		return r, r.failed(payment.KindFault, errTooLarge)
	}
	return r, nil
}

// failed is the answer to what did not arrive whole.
func (r reply) failed(kind payment.Kind, err error) answer {
	return &payment.Answer{Kind: kind, HTTPStatus: r.status, Err: err, Observation: payment.Observation{TraceID: r.traceID}}
}

// readBody reads one byte more than limit at most. What the peer says of the length decides about the first piece of
// memory alone.
func readBody(res *http.Response, limit int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(max(0, min(res.ContentLength, usualBody))) + bytes.MinRead)
	_, err := b.ReadFrom(io.LimitReader(res.Body, limit+1))
	return b.Bytes(), err
}

// secret is what of the Authorization header must not come back to us as a word of Toss; empty if it is too short to be
// anything but chance.
func (c *Client) secret() string {
	secret := strings.TrimRight(strings.TrimPrefix(c.authorization, "Basic "), "=")
	if len(secret) < 12 {
		return ""
	}
	return secret
}

// isTraceID reports whether the text can be a trace id: 1 to 64 letters, digits and _.:-
func isTraceID(text string) bool {
	return text != "" && len(text) <= 64 && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'A' || 'Z' < c) && (c < 'a' || 'z' < c) && (c < '0' || '9' < c) && !strings.ContainsRune("_.:-", c)
	})
}

// traceID reads the id that becomes a log field; none if it is no id or repeats what we sent.
func (c *Client) traceID(q *request, h http.Header) string {
	id := h.Get("X-TossPayments-Trace-Id")
	if !isTraceID(id) || echoes(id, q.want.paymentKey) || echoes(id, c.secret()) {
		return ""
	}
	return id
}

// echoes reports whether the text repeats the secret or paymentKey.
func echoes(text, secret string) bool { return secret != "" && strings.Contains(text, secret) }

// newRequest makes a request that net/http cannot send twice: it would, by itself, on every reused connection
// that dies, when a POST has an Idempotency-Key and a body that GetBody can bring back.
func (c *Client) newRequest(ctx context.Context, q *request) (*http.Request, error) {
	u := *c.base
	u.RawPath = c.base.EscapedPath() + q.path
	path, err := url.PathUnescape(u.RawPath)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawQuery = path, q.query
	req := (&http.Request{
		Method: q.method, URL: &u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{
			"Authorization": {c.authorization},
			"Accept":        {"application/json"},
			"User-Agent":    {"paymentd"},
		},
	}).WithContext(ctx)
	if q.body != nil {
		req.Body, req.ContentLength, req.GetBody = io.NopCloser(bytes.NewReader(q.body)), int64(len(q.body)), nil
		req.Header.Set("Content-Type", "application/json")
	}
	if q.key != "" {
		req.Header.Set("Idempotency-Key", q.key)
	}
	return req, nil
}

// trail is how far a request came.
type trail struct{ asked, connected atomic.Bool }

func (t *trail) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { t.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { t.connected.Store(true) },
	}
}

// kind tells "certainly never left" from "may have been written". The first is asked before Timeout(), because
// a dial that times out says both.
func (t *trail) kind(err error) payment.Kind {
	switch {
	case t.asked.Load() && !t.connected.Load(), !t.connected.Load() && isConnecting(err):
		return payment.KindNotConnected
	case isTimeout(err):
		return payment.KindTimeout
	default:
		return payment.KindReset
	}
}

// isConnecting knows the errors of getting a connection.
func isConnecting(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "dial" || op.Op == "proxyconnect") {
		return true
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}

// described is the error of a connection in words of our own: the texts of net/http repeat bytes of the peer, and a
// peer that echoes our request would put the paymentKey or the secret key into the log. What it does not know is told
// by its type.
func described(err error) error {
	for _, known := range []error{
		context.DeadlineExceeded, context.Canceled, io.ErrUnexpectedEOF, io.EOF, http.ErrSchemeMismatch, net.ErrClosed,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	if err == nil {
		return nil
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("look up host: not found %t, timed out %t", dns.IsNotFound, dns.IsTimeout)
	}
	if text := describedTLS(err); text != "" {
		return errors.New(text)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return errors.New(op.Op + ": " + cause(op.Err))
	}
	return errors.New(cause(err))
}

// cause is the text of the operating system, else whether it was a time-out, else the type.
func cause(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "timed out"
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return fmt.Sprintf("error of type %T", err)
}

// describedTLS names the error of a handshake, which holds names out of the peer's certificate; empty if it is none.
func describedTLS(err error) string {
	if alert, ok := errors.AsType[tls.AlertError](err); ok {
		return alert.Error()
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "tls: certificate of an unknown authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "tls: certificate of another host"
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		return fmt.Sprintf("tls: certificate not valid, reason %d", invalid.Reason)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "tls: certificate cannot be verified"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "tls: the peer does not speak TLS"
	}
	return ""
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return true
	}
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
