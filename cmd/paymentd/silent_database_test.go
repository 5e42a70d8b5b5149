package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// line stands between paymentd and PostgreSQL. Hushed connections stay open and carry nothing more, as after a failover
// behind one address; new ones work.
type line struct {
	addr string
	mu   sync.Mutex
	hush []*atomic.Bool
	all  []net.Conn
}

func newLine(t *testing.T, server string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &line{addr: l.Addr().String()}
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, c := range w.all {
			_ = c.Close()
		}
	})
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			hushed := &atomic.Bool{}
			w.mu.Lock()
			w.hush, w.all = append(w.hush, hushed), append(w.all, client, up)
			w.mu.Unlock()
			go carry(up, client, hushed)
			go carry(client, up, hushed)
		}
	}()
	return w
}

func carry(to, from net.Conn, hushed *atomic.Bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if hushed.Load() {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if n > 0 {
			_, _ = to.Write(buf[:n])
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

func (l *line) silence() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.hush {
		h.Store(true)
	}
}

// TestSilentDatabase: connections that never answer cost their callers a bounded wait, and the service comes back by
// itself.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, brief...)
	u, err := url.Parse(w.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	l := newLine(t, u.Host)
	u.Host = l.addr
	in := w.start("PAYMENTD_DATABASE_URL="+u.String(), "PAYMENTD_DB_MAX_CONNS=4", "PAYMENTD_ANSWER_WITHIN=3s",
		"PAYMENTD_DB_STATEMENT_TIMEOUT=500ms", "PAYMENTD_DB_ACQUIRE_TIMEOUT=1s")
	known := newOrder("known")
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			_, _ = call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, newOrder("warm").json())
		})
	}
	calls.Wait()
	eventually(t, "a payment is known", func() bool { return in.confirm(known).status == 200 })
	l.silence()
	begin := time.Now()
	for range 6 {
		calls.Go(func() {
			_, _ = call(t, http.MethodPost, in.url+"/payments/confirm", checkoutSecret, newOrder("silent").json())
		})
	}
	calls.Go(func() { _, _ = call(t, http.MethodGet, in.url+"/payments/"+known.id, checkoutSecret, "") })
	calls.Wait()
	// Without an end of our own these waits are those of TCP: a quarter of an hour.
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("the last caller was answered after %s", took)
	}
	eventually(t, "confirms and reads succeed again", func() bool {
		return in.confirm(newOrder("after")).status == 200 && in.read(known).status == 200
	})
}
