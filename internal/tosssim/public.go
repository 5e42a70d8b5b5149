package tosssim

import (
	_ "embed" // codes.json
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

//go:embed codes.json
var codesJSON []byte

// apiError is one row of Toss's error table.
type apiError struct {
	Status  int    `json:"status"`
	Code    string `json:"code"`
	KO      string `json:"ko"`
	EN      string `json:"en"`
	Decline bool   `json:"decline"`
}

func (e *apiError) message(english bool) string {
	if english {
		return e.EN
	}
	return e.KO
}

func loadCodes() map[string]*apiError {
	var list []*apiError
	if err := json.Unmarshal(codesJSON, &list); err != nil {
		panic("tosssim: codes.json: " + err.Error())
	}
	codes := make(map[string]*apiError, len(list))
	for _, e := range list {
		codes[e.Code] = e
	}
	return codes
}

// call is one request on its way through the simulator.
type call struct {
	s          *Simulator
	st         *state
	w          http.ResponseWriter
	r          *http.Request
	op         string
	paymentKey string
	orderID    string
	key        string
	secret     string
	fault      string
	replayed   bool
	status     int // 0: no answer was given
	code       string
	seq        uint64 // in the journal; 0 before start
	pen        *pen   // from a pool: first the body that came, then the one that goes
}

// endpoint wraps an operation with what every call of Toss has: trace id, authentication, a line in the journal.
func (s *Simulator) endpoint(op string, f func(*call)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{s: s, st: s.state.Load(), w: w, r: r, op: op, pen: s.pens.Get().(*pen)}
		if r.Method == http.MethodPost {
			c.key = r.Header.Get("Idempotency-Key")
		}
		defer func() {
			c.start()
			c.st.journal.end(c)
			if cap(c.pen.b) <= 64<<10 {
				s.pens.Put(c.pen)
			}
		}()
		trace := s.traces.Add(1)
		w.Header()["X-Tosspayments-Trace-Id"] = []string{string(appendHex(appendHex(make([]byte, 0, 32), mix(trace)), trace))}
		secret, bad := s.secrets.of(r.Header.Get("Authorization"), s.codes)
		if bad != nil {
			c.fail(bad)
			return
		}
		c.secret = secret
		f(c)
	}
}

// start writes the call into the journal as running. It comes after the choice of faults and the claim of the payment,
// so that who waits for a running call finds both done.
func (c *call) start() {
	if c.seq == 0 {
		c.seq = c.st.journal.begin(c)
	}
}

// orderOf resolves the call's order when a fault asks for it: look-ups and cancels name the payment only.
func (c *call) orderOf(r *rule) string {
	if r.OrderID == "" || c.orderID != "" {
		return c.orderID
	}
	c.st.mu.Lock()
	defer c.st.mu.Unlock()
	if p := c.st.payments[c.paymentKey]; p != nil {
		return p.orderID
	}
	return ""
}

func (c *call) english() bool { return strings.HasPrefix(c.r.Header.Get("Accept-Language"), "en") }

// testCode is the error that a TossPayments-Test-Code header asks for.
func (c *call) testCode() *apiError {
	code := c.r.Header.Get("Tosspayments-Test-Code")
	if code == "" {
		return nil
	}
	if e := c.s.codes[code]; e != nil {
		return e
	}
	return &apiError{Status: http.StatusBadRequest, Code: code, KO: code, EN: code}
}

var errTooLarge = errors.New("body above 64 KiB")

// body reads to the end, without which net/http does not notice that the client has gone. It is valid until reply.
func (c *call) body() ([]byte, error) {
	const limit = 64 << 10
	b := c.pen.b[:0]
	for len(b) <= limit {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := c.r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			c.pen.b = b
			return b, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, errTooLarge
}

// reply is an answer, or a body ready made.
type reply struct {
	answer
	raw []byte
}

// deliver gives the caller the answer, or what a fault makes of it.
func (s *Simulator) deliver(c *call, e effect, a reply) {
	r := e.rule
	switch {
	case r == nil:
		c.reply(a, nil)
	case r.Drop != "":
		c.reset()
	case r.answer != nil:
		if r.RetryAfter > 0 {
			c.w.Header().Set("Retry-After", strconv.Itoa(r.RetryAfter))
		}
		c.fail(r.answer)
	case r.Hang || r.Late > 0:
		select {
		case <-c.r.Context().Done():
		case <-s.stop:
		}
		c.reset()
	default:
		c.reply(a, r)
	}
}

func (c *call) fail(e *apiError) { c.reply(reply{answer: answer{err: e}}, nil) }

func (c *call) reply(a reply, r *rule) {
	p := c.pen
	p.b, p.english = p.b[:0], c.english()
	c.status = http.StatusOK
	switch {
	case a.err != nil:
		c.status, c.code = a.err.Status, a.err.Code
		if a.err.Code == "" {
			p.raw(`<html><body>` + http.StatusText(a.err.Status) + `</body></html>`)
		} else {
			p.failure(a.err)
		}
	case a.raw != nil:
		p.raw(string(a.raw))
	default:
		c.st.mu.Lock()
		p.payment(a.p, a.as)
		c.st.mu.Unlock()
	}
	length, kind := len(p.b), "application/json"
	if a.err != nil && a.err.Code == "" {
		kind = "text/html"
	}
	if r != nil {
		switch {
		case r.Malformed == MalformedTruncated:
			p.b = p.b[:length/2] // net/http closes the connection: less than Content-Length came
		case r.Malformed == MalformedHTML:
			p.b, kind = append(p.b[:0], "<html><body>maintenance</body></html>"...), "text/html"
			length = len(p.b)
		case r.Malformed == MalformedEmpty:
			p.b, length = p.b[:0], 0
		case r.Patch != nil && a.err == nil:
			p.b = patched(p.b, r.Patch)
			length = len(p.b)
		}
	}
	values := [2]string{kind, strconv.Itoa(length)}
	h := c.w.Header()
	h["Content-Type"], h["Content-Length"] = values[:1:1], values[1:]
	c.w.WriteHeader(c.status)
	_, _ = c.w.Write(p.b) // a client that has gone is no news
}

func patched(body []byte, patch map[string]json.RawMessage) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return body
	}
	maps.Copy(fields, patch)
	b, err := json.Marshal(fields)
	if err != nil {
		return body
	}
	return b
}

// reset closes the connection by RST, as a crashed peer or a load balancer does.
func (c *call) reset() {
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// secretCache remembers Authorization headers that were good.
type secretCache struct {
	allowed []string
	mu      sync.RWMutex
	known   map[string]string
}

func (a *secretCache) of(header string, codes map[string]*apiError) (string, *apiError) {
	a.mu.RLock()
	secret, ok := a.known[header]
	a.mu.RUnlock()
	if ok {
		return secret, nil
	}
	encoded, basic := strings.CutPrefix(header, "Basic ")
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if !basic || err != nil || len(raw) == 0 {
		return "", codes["UNAUTHORIZED_KEY"]
	}
	secret, _, colon := strings.Cut(string(raw), ":")
	if !colon {
		return "", codes["INCORRECT_BASIC_AUTH_FORMAT"]
	}
	if err := checkSecret(secret); err != nil {
		refused := *codes["UNAUTHORIZED_KEY"]
		if strings.HasPrefix(secret, "live_") {
			refused.KO, refused.EN = err.Error(), err.Error()
		}
		return "", &refused
	}
	ok = len(a.allowed) == 0
	for _, k := range a.allowed {
		ok = ok || k == secret
	}
	if !ok {
		return "", codes["UNAUTHORIZED_KEY"]
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil || len(a.known) > 1000 {
		a.known = map[string]string{}
	}
	a.known[header] = secret
	return secret, nil
}
