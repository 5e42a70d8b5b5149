package main

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"testing"
)

// wire stands between paymentd and PostgreSQL. Once a statement that holds the mark has been forwarded, its answer is
// lost, every connection breaks and no new one is accepted, until repair.
type wire struct {
	addr, server string
	mark         []byte

	mu     sync.Mutex
	armed  bool
	down   bool
	conns  map[net.Conn]bool
	marked int
}

func newWire(t *testing.T, server, mark string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{addr: l.Addr().String(), server: server, mark: []byte(mark), armed: true, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { _ = l.Close(); w.breakAll(true) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(c)
		}
	}()
	return w
}

func (w *wire) pass(client net.Conn) {
	server, err := net.Dial("tcp", w.server)
	if err != nil || !w.keep(client, server) {
		_ = client.Close()
		return
	}
	muted := make(chan bool, 1)
	go func() {
		defer server.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := client.Read(buf)
			if n > 0 && w.hit(buf[:n]) {
				muted <- true
			}
			if n > 0 {
				_, _ = server.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	defer client.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		select {
		case <-muted:
			w.breakAll(true)
			return
		default:
		}
		if n > 0 {
			_, _ = client.Write(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// keep remembers a pair of connections; false while the wire is down.
func (w *wire) keep(pair ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range pair {
		if w.down {
			_ = c.Close()
			continue
		}
		w.conns[c] = true
	}
	return !w.down
}

func (w *wire) hit(b []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.armed || !bytes.Contains(b, w.mark) {
		return false
	}
	w.marked++
	w.armed = false
	return true
}

func (w *wire) breakAll(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	for c := range w.conns {
		_ = c.Close()
	}
	clear(w.conns)
}

// TestTrap37_TheAcknowledgementIsLost: the commit is there, but nobody hears of it. The policy "cancel" must not give
// that payment back: it may only act when every try certainly left nothing.
func TestTrap37_TheAcknowledgementIsLost(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"hold", "cancel"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, append(quick, "PAYMENTD_TOSS_CONFIRM_TIMEOUT=30s", "PAYMENTD_DB_ACQUIRE_TIMEOUT=5s", "PAYMENTD_COMMIT_WITHIN=5s")...)
			u, err := url.Parse(w.db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			// Only the settle of an approval carries the method of the payment.
			line := newWire(t, u.Host, "카드")
			u.Host = line.addr
			in := w.start("PAYMENTD_DATABASE_URL="+u.String(), "PAYMENTD_ON_COMMIT_FAILURE="+policy)
			o := newOrder("ack")
			in.confirm(o).want(t, 202, "PENDING")
			if line.marked != 1 {
				t.Fatalf("the settle passed the wire %d times", line.marked)
			}
			w.becomes(o, "PAID")
			if e := w.entry(o); e.Cancels != 0 || e.Balance != 15000 {
				t.Errorf("PAID here, the simulator has %+v", e)
			}
			line.breakAll(false)
			eventually(t, "the database is reached again", func() bool { return in.confirm(o).status == 200 })
			w.ledgerHolds()
		})
	}
}
