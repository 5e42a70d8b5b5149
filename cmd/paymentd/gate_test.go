package main

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"paymentd/internal/tosssim"
)

// openGate serves "served" until the test ends; dial connects without a word.
func openGate(t *testing.T) (g *gate, dial func() net.Conn) {
	t.Helper()
	return openGateAt(t, func(l net.Listener) net.Listener { return l })
}

func openGateAt(t *testing.T, wrap func(net.Listener) net.Listener) (g *gate, dial func() net.Conn) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener = wrap(listener)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") })}
	g = newGate(server, listener)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = g.serve() }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return g, func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

// counted waits until so many connections have said nothing yet.
func (g *gate) counted(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " silent connections"), func() bool { return g.silentNow() == n })
}

// TestGateHangsUpOnTheSilent: whoever has sent nothing does not hold up the stop, nor does one who is idle.
func TestGateHangsUpOnTheSilent(t *testing.T) {
	t.Parallel()
	g, dial := openGate(t)
	silent, idle := []net.Conn{dial(), dial()}, dial()
	asks(t, idle)
	g.counted(t, len(silent))
	// The patience is short of the 5 s for which net/http waits.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := g.shut(ctx, 0); err != nil {
		t.Fatal(err)
	}
	for _, conn := range append(silent, idle) {
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("read %d bytes and %v", n, err)
		}
	}
}

// TestGateHearsTheLast: a request that follows its connection within the grace is answered, though nobody is let in any
// more, and ends the wait.
func TestGateHearsTheLast(t *testing.T) {
	t.Parallel()
	g, dial := openGate(t)
	late := dial()
	g.counted(t, 1)
	shut := make(chan error, 1)
	go func() { shut <- g.shut(t.Context(), time.Hour) }()
	eventually(t, "closed", func() bool {
		conn, err := net.Dial("tcp", late.RemoteAddr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	asks(t, late)
	if err := <-shut; err != nil {
		t.Error(err)
	}
}

// slowListener holds a connection between the listener and the server until it is told to go on.
type slowListener struct {
	net.Listener
	accepted chan struct{}
	goOn     chan struct{}
}

func (l slowListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted <- struct{}{}
		<-l.goOn
	}
	return conn, err
}

// TestGateKnowsTheLastOne: a connection that the server has not seen yet, though it was let in, is one of the silent too.
func TestGateKnowsTheLastOne(t *testing.T) {
	t.Parallel()
	accepted, goOn := make(chan struct{}, 1), make(chan struct{})
	g, dial := openGateAt(t, func(l net.Listener) net.Listener { return slowListener{l, accepted, goOn} })
	last := dial()
	<-accepted
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	shut := make(chan error, 1)
	go func() { shut <- g.shut(ctx, 0) }()
	eventually(t, "closed", func() bool {
		conn, err := net.Dial("tcp", last.RemoteAddr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	close(goOn)
	if err := <-shut; err != nil {
		t.Fatal(err)
	}
	if n, err := last.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("read %d bytes and %v", n, err)
	}
}

func asks(t *testing.T, conn net.Conn) {
	t.Helper()
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: shop\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestStopBesideSilentConnections: connections that never send anything neither delay an ordered stop nor spoil its
// status, and the request under way is answered.
func TestStopBesideSilentConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.spawn("PAYMENTD_SHUTDOWN_WITHIN=4s")
	w.holds()
	o := newOrder("silent")
	answered := p.confirmLater(o)
	w.arrived(tosssim.OpConfirm, 1)
	for range 3 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	p.signal(syscall.SIGTERM)
	eventually(t, "it stops", func() bool { return strings.Contains(w.log.String(), `"msg":"stopping"`) })
	w.faults()
	answered().want(t, 200, "PAID")
	if status := p.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	w.ledgerHolds()
}

// TestStopNamesTheUnfinishedRequest: what kept an ordered stop from ending is named, and nothing that had no time left.
func TestStopNamesTheUnfinishedRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.spawn("PAYMENTD_SHUTDOWN_WITHIN=1s")
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /payments/confirm HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n", checkoutSecret)
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v", line, err) // the handler waits for the body
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 1 {
		t.Errorf("exit status %d", status)
	}
	if log := w.log.String(); !strings.Contains(log, "some requests were still running") || strings.Contains(log, "background work") {
		t.Errorf("the reason is not the request: %s", log)
	}
}

// TestStopBeforeTheDatabase: a stop that is asked for while the database is still waited for is no failure.
func TestStopBeforeTheDatabase(t *testing.T) {
	t.Parallel()
	env := minimal()
	env[0] = "PAYMENTD_DATABASE_URL=postgres://pay@127.0.0.1:1/pay?sslmode=disable" // a privileged port: nobody listens
	c, err := loadConfig(env)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	time.AfterFunc(150*time.Millisecond, stop)
	var log strings.Builder
	if err := serve(ctx, c, slog.New(slog.NewJSONHandler(&log, nil)), nil); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "does not answer") || !strings.Contains(log.String(), "stopped before the database was ready") {
		t.Errorf("log: %s", log.String())
	}
}
