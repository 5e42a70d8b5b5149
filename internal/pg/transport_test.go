package pg

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
)

// serve runs a raw TCP server for one test: handle gets each connection and closes it by returning.
func serve(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { conn.Close() })
			wg.Go(func() {
				defer stop()
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// readRequest reads one whole request.
func readRequest(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// after reads a request, writes text and does then.
func after(text string, then func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		if !readRequest(bufio.NewReader(conn)) {
			return
		}
		_, _ = io.WriteString(conn, text)
		if then != nil {
			then(conn)
		}
	}
}

func silence(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func cut(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// deafAddress is a listener whose queue is full, so that a dial gets no answer.
func deafAddress(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 16 {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return addr
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("the queue never got full")
	return ""
}

// nameServer is a resolver over loopback that answers with a code, or never.
func nameServer(t *testing.T, answers bool) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answers && n > 12 {
				buf[2], buf[3] = 0x81, 0x83 // an answer: no such name
				_, _ = conn.WriteTo(buf[:n], from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func at(baseURL string) Options {
	o := plain()
	o.BaseURL = baseURL
	return o
}

// hasten shortens the one time-out that a row waits for; the others are long enough for a busy machine.
func hasten(o *Options, want payment.Kind) {
	switch want {
	case payment.KindNotConnected:
		o.ConnectTimeout = min(o.ConnectTimeout, 150*time.Millisecond)
	case payment.KindTimeout:
		o.ConfirmTimeout = 3 * time.Second
	}
}

// TestFailureKinds makes each failure with real sockets.
func TestFailureKinds(t *testing.T) {
	t.Parallel()
	proxied := func(answer string, then func(net.Conn)) func(*testing.T) (Options, func(*http.Transport)) {
		return func(t *testing.T) (Options, func(*http.Transport)) {
			proxy := serve(t, after(answer, then))
			return at("https://gateway.test"), func(tr *http.Transport) {
				tr.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy})
			}
		}
	}
	resolved := func(answers bool) func(*testing.T) (Options, func(*http.Transport)) {
		return func(t *testing.T) (Options, func(*http.Transport)) {
			dialer := &net.Dialer{Timeout: 150 * time.Millisecond, Resolver: nameServer(t, answers)}
			return at("http://gateway.test"), func(tr *http.Transport) { tr.DialContext = dialer.DialContext }
		}
	}
	plainly := func(scheme string, handle func(net.Conn)) func(*testing.T) (Options, func(*http.Transport)) {
		return func(t *testing.T) (Options, func(*http.Transport)) {
			return at(scheme + "://" + serve(t, handle)), nil
		}
	}
	const half = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"paymentKey\":"
	tests := []struct {
		name string
		make func(*testing.T) (Options, func(*http.Transport))
		want payment.Kind
	}{
		{"dial refused", func(t *testing.T) (Options, func(*http.Transport)) {
			l := httptest.NewServer(nil)
			l.Close()
			return at(l.URL), nil
		}, payment.KindNotConnected},
		{"connect time-out", func(t *testing.T) (Options, func(*http.Transport)) {
			return at("http://" + deafAddress(t)), nil
		}, payment.KindNotConnected},
		{"connect cut to the call's own time-out", func(t *testing.T) (Options, func(*http.Transport)) {
			o := at("http://" + deafAddress(t))
			o.ConfirmTimeout = 300 * time.Millisecond
			return o, nil
		}, payment.KindNotConnected},
		{"no such name", resolved(true), payment.KindNotConnected},
		{"resolver time-out", resolved(false), payment.KindNotConnected},
		{"TLS handshake time-out", plainly("https", silence), payment.KindNotConnected},
		{"TLS handshake broken off", plainly("https", func(net.Conn) {}), payment.KindNotConnected},
		{"no TLS there", plainly("https", func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			silence(conn)
		}), payment.KindNotConnected},
		{"certificate of nobody", func(t *testing.T) (Options, func(*http.Transport)) {
			s := httptest.NewUnstartedServer(http.NotFoundHandler())
			s.Config.ErrorLog = discardLog()
			s.StartTLS()
			t.Cleanup(s.Close)
			return at(s.URL), nil
		}, payment.KindNotConnected},
		{"proxy refuses CONNECT", proxied("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", nil), payment.KindNotConnected},
		{"proxy never answers CONNECT", func(t *testing.T) (Options, func(*http.Transport)) {
			o, change := proxied("", silence)(t)
			o.ConfirmTimeout = 300 * time.Millisecond
			return o, change
		}, payment.KindNotConnected},
		{"closed without an answer", plainly("http", after("", nil)), payment.KindReset},
		{"reset", plainly("http", after("", cut)), payment.KindReset},
		{"closed at once", plainly("http", func(net.Conn) {}), payment.KindReset},
		{"half a header", plainly("http", after("HTTP/1.1 200 OK\r\nContent-", nil)), payment.KindReset},
		{"half a body", plainly("http", after(half, nil)), payment.KindReset},
		{"half a body, reset", plainly("http", after(half, cut)), payment.KindReset},
		{"not HTTP", plainly("http", after("220 smtp ready\r\n", nil)), payment.KindReset},
		{"never answers", plainly("http", after("", silence)), payment.KindTimeout},
		{"never ends its answer", plainly("http", after(half, silence)), payment.KindTimeout},
		{"far too long", plainly("http", func(conn net.Conn) {
			if readRequest(bufio.NewReader(conn)) {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"+strings.Repeat(" ", maxBody+1))
			}
		}), payment.KindFault},
		{"html", plainly("http", after("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", nil)), payment.KindFault},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, change := tt.make(t)
			if !strings.Contains(tt.name, "own time-out") {
				hasten(&o, tt.want)
			}
			tr := newTransport(o)
			if change != nil {
				change(tr)
			}
			c, err := newClient(o, tr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			got := c.Confirm(t.Context(), call("secret-payment-key"))
			if len(got) != 1 || got[0].Kind != tt.want {
				t.Fatalf("got %+v, want %q", got, tt.want)
			}
			if got[0].Kind != payment.KindPayment && got[0].Err == nil {
				t.Error("no error for the log")
			}
			if tt.name == "far too long" && got[0].Err != errTooLarge {
				t.Errorf("read it all: %v", got[0].Err)
			}
			if text := got[0].Err.Error(); strings.Contains(text, "secret-payment-key") || strings.Contains(text, "test_sk") {
				t.Errorf("a key is in the error: %s", text)
			}
			if got[0].Took <= 0 {
				t.Errorf("took %v", got[0].Took)
			}
		})
	}
}

// TestDialIsAskedBeforeTimeout covers transports that report nothing on the way, such as fakes.
func TestDialIsAskedBeforeTimeout(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		err  error
		want payment.Kind
	}{
		{"dial that timed out", &net.OpError{Op: "dial", Err: context.DeadlineExceeded}, payment.KindNotConnected},
		{"resolver that timed out", &net.DNSError{IsTimeout: true}, payment.KindNotConnected},
		{"proxy", &net.OpError{Op: "proxyconnect", Err: io.EOF}, payment.KindNotConnected},
		{"not TLS", tls.RecordHeaderError{Msg: "x"}, payment.KindNotConnected},
		{"read that timed out", &net.OpError{Op: "read", Err: context.DeadlineExceeded}, payment.KindTimeout},
		{"time-out", context.DeadlineExceeded, payment.KindTimeout},
		{"given up", context.Canceled, payment.KindTimeout},
		{"write", &net.OpError{Op: "write", Err: syscall.EPIPE}, payment.KindReset},
		{"end", io.ErrUnexpectedEOF, payment.KindReset},
	}
	for _, tt := range tests {
		var t0 trail
		if got := t0.kind(tt.err); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	var lost trail
	lost.asked.Store(true)
	lost.connected.Store(true)
	if got := lost.kind(&net.OpError{Op: "dial", Err: io.EOF}); got == payment.KindNotConnected {
		t.Error("a request that had its connection counts as never sent")
	}
}

// TestTrap31_NoResend: five warm connections, a server that works and drops: what it worked on is what was
// counted as sent. The control shows that net/http by itself does it more often.
func TestTrap31_NoResend(t *testing.T) {
	t.Parallel()
	const warm = 5
	server := func(t *testing.T) (addr string, worked *atomic.Int64) {
		worked = new(atomic.Int64)
		var opened atomic.Int64
		var together sync.WaitGroup
		together.Add(warm)
		addr = serve(t, func(conn net.Conn) {
			r := bufio.NewReader(conn)
			if !readRequest(r) {
				return
			}
			if opened.Add(1) > warm {
				worked.Add(1)
				return
			}
			together.Done()
			together.Wait() // so that each of the five has a connection of its own
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(doneBody("k")), doneBody("k"))
			if readRequest(r) {
				worked.Add(1)
			}
		})
		return addr, worked
	}
	heat := func(send func()) {
		var wg sync.WaitGroup
		for range warm {
			wg.Go(send)
		}
		wg.Wait()
	}
	t.Run("client", func(t *testing.T) {
		t.Parallel()
		addr, worked := server(t)
		o := plain()
		o.BaseURL = "http://" + addr
		c, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		heat(func() {
			if got := c.Confirm(t.Context(), call("k")); got[0].Kind != payment.KindPayment {
				t.Errorf("warming up: %+v", got)
			}
		})
		got := c.Confirm(t.Context(), call("k"))
		if len(got) != 1 || got[0].Kind != payment.KindReset || worked.Load() != 1 {
			t.Errorf("the server worked %d times for %+v", worked.Load(), got)
		}
		cancel := approval.CancelCall{PaymentKey: "k", Key: "c-1-1", Amount: 1, Balance: 1, Currency: "KRW"}
		if got := c.Cancel(t.Context(), cancel); got.Kind != payment.KindReset || worked.Load() != 2 {
			t.Errorf("the server worked %d times, cancel %+v", worked.Load(), got)
		}
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		addr, worked := server(t)
		tr := &http.Transport{MaxIdleConnsPerHost: warm}
		defer tr.CloseIdleConnections()
		send := func() error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr, bytes.NewReader([]byte("{}")))
			if err != nil {
				return err
			}
			req.Header.Set("Idempotency-Key", "k:1")
			res, err := tr.RoundTrip(req)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			return err
		}
		heat(func() {
			if err := send(); err != nil {
				t.Error(err)
			}
		})
		if err := send(); err == nil || worked.Load() != warm+1 {
			t.Errorf("the trap is gone: net/http sent it %d times (%v), it was %d", worked.Load(), err, warm+1)
		}
	})
}

// TestNoRedirect: a confirm goes where it was sent or nowhere.
func TestNoRedirect(t *testing.T) {
	t.Parallel()
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for _, status := range []int{301, 302, 307, 308} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) }))
		o := plain()
		o.BaseURL = s.URL
		c, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		got := c.Confirm(t.Context(), call("k"))
		if got[0].Kind != payment.KindFault || got[0].HTTPStatus != status || elsewhere.Load() != 0 {
			t.Errorf("%d: %+v, followed %d times", status, got[0], elsewhere.Load())
		}
		c.Close()
		s.Close()
	}
}

// TestIdleConnections: a hundred payments at once leave a hundred connections for the next hundred.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	const many = 100
	var opened atomic.Int64
	var gate atomic.Pointer[sync.WaitGroup]
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		together := gate.Load()
		together.Done()
		together.Wait()
		_, _ = io.WriteString(w, doneBody("k"))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	o := plain()
	o.BaseURL, o.Bulkhead = s.URL, Bulkhead{Max: many}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 3 {
		together := new(sync.WaitGroup)
		together.Add(many)
		gate.Store(together)
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() { c.Confirm(t.Context(), call("k")) })
		}
		wg.Wait()
	}
	if n := opened.Load(); n > many+many/10 {
		t.Errorf("%d connections for %d at once", n, many)
	}
}
