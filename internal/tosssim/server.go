package tosssim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Server is a simulator on two sockets of its own, and all methods of the simulator.
type Server struct {
	*Simulator
	mu      sync.Mutex
	public  *port // nil while it is closed
	control *port
	addr    string
	ctrl    string
	closed  bool
	done    chan struct{}
	// letGo ends the hold on the public port while it is closed; nil while it is open.
	letGo func()
}

// Listen opens the public API on addr and the control API on controlAddr (host:port, port 0 picks one) until ctx ends
// or Close is called. A simulator has one server in its life.
func (s *Simulator) Listen(ctx context.Context, addr, controlAddr string) (*Server, error) {
	control, err := net.Listen("tcp", controlAddr)
	if err != nil {
		return nil, fmt.Errorf("control port: %w", err)
	}
	v := &Server{Simulator: s, addr: addr, ctrl: control.Addr().String(), done: make(chan struct{})}
	v.control = serve(control, s.Control())
	if err := v.open(time.Time{}); err != nil {
		_ = v.control.close()
		return nil, err
	}
	s.gate.Store(v)
	stop := context.AfterFunc(ctx, func() { _ = v.Close() })
	go func() {
		<-v.done
		stop()
	}()
	return v, nil
}

// port is a listening socket and the server behind it.
type port struct {
	server *http.Server
	closed chan struct{} // when the socket is
}

func serve(l net.Listener, h http.Handler) *port {
	p := &port{&http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}, make(chan struct{})}
	go func() {
		defer close(p.closed)
		_ = p.server.Serve(l) // returns when the server is closed, having closed the socket
	}()
	return p
}

// close breaks all connections. The server closes only a socket that Serve has begun with; else Serve does it itself,
// later, and until then dials are accepted.
func (p *port) close() error {
	err := p.server.Close()
	<-p.closed
	return err
}

// shutdown lets calls finish until ctx ends.
func (p *port) shutdown(ctx context.Context) error {
	err := p.server.Shutdown(ctx)
	<-p.closed
	if err != nil {
		return p.server.Close()
	}
	return nil
}

// open listens on the public address, trying until the time given: a port that was ours may be taken for a moment.
func (v *Server) open(until time.Time) error {
	l, err := net.Listen("tcp", v.addr)
	for err != nil && time.Now().Before(until) {
		time.Sleep(20 * time.Millisecond)
		l, err = net.Listen("tcp", v.addr)
	}
	if err != nil {
		return fmt.Errorf("public port: %w", err)
	}
	v.addr = l.Addr().String()
	v.public = serve(l, v.Handler())
	return nil
}

// SetListening closes the public port with all its connections, so that dials are refused, or opens it again on the
// same address. Work that had begun goes on, as behind a broken network.
func (v *Server) SetListening(up bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.closed:
		return errors.New("listen: the simulator is closed")
	case up && v.public == nil:
		v.letGo()
		return v.open(time.Now().Add(2 * time.Second))
	case !up && v.public != nil:
		err := v.public.close()
		v.public, v.letGo = nil, hold(v.addr)
		return err
	}
	return nil
}

// hold binds a port without listening: dials are refused, and no other program is given it meanwhile. Where it cannot, the
// port is merely free.
func hold(addr string) (letGo func()) {
	a, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return func() {}
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return func() {}
	}
	syscall.CloseOnExec(fd)
	at := &syscall.SockaddrInet4{Port: a.Port}
	copy(at.Addr[:], a.IP.To4())
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	_ = syscall.Bind(fd, at)
	return func() { _ = syscall.Close(fd) }
}

// URL is the base of the public API, http://host:port.
func (v *Server) URL() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return "http://" + v.addr
}

// ControlURL is the base of the control API, http://host:port.
func (v *Server) ControlURL() string { return "http://" + v.ctrl }

// Done is closed when the server has stopped.
func (v *Server) Done() <-chan struct{} { return v.done }

// Close ends hung calls, lets others finish for up to 2 s, and closes both ports.
func (v *Server) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil
	}
	v.closed = true
	defer close(v.done)
	if v.public == nil && v.letGo != nil {
		v.letGo()
	}
	v.Simulator.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var errs []error
	for _, p := range []*port{v.public, v.control} {
		if p != nil {
			errs = append(errs, p.shutdown(ctx))
		}
	}
	return errors.Join(errs...)
}

// TB is what Start needs of testing.TB.
type TB interface {
	// Helper is testing.TB's.
	Helper()
	// Fatalf is testing.TB's.
	Fatalf(format string, args ...any)
	// Cleanup is testing.TB's.
	Cleanup(func())
}

// Start runs a simulator on loopback for the time of one test.
func Start(t TB, o Options) *Server {
	t.Helper()
	v, err := New(o).Listen(context.Background(), "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start tosssim: %v", err)
		return nil
	}
	t.Cleanup(func() { _ = v.Close() })
	return v
}
