package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// gracePoll is how often shut looks whether the silent have spoken.
const gracePoll = 10 * time.Millisecond

// gate is the public door's server and listener. It knows the connections on which no request has come yet: load
// balancers and browsers open some in advance, and http.Server.Shutdown alone would wait 5 s for them.
type gate struct {
	server   *http.Server
	listener net.Listener
	// served is closed when every connection that was let in is known.
	served chan struct{}
	mu     sync.Mutex
	silent map[net.Conn]bool
}

func newGate(server *http.Server, listener net.Listener) *gate {
	g := &gate{server: server, listener: listener, served: make(chan struct{}), silent: map[net.Conn]bool{}}
	server.ConnState = g.changed
	// By now net/http drops a request whose headers were not read before, so that hanging up loses none.
	server.RegisterOnShutdown(g.hangUp)
	return g
}

// serve lets callers in until the gate is shut; http.ErrServerClosed says that it was.
func (g *gate) serve() error {
	defer close(g.served)
	if err := g.server.Serve(g.listener); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return http.ErrServerClosed
}

func (g *gate) changed(conn net.Conn, state http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if state == http.StateNew {
		g.silent[conn] = true
	} else {
		delete(g.silent, conn)
	}
}

func (g *gate) silentNow() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.silent)
}

func (g *gate) hangUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn := range g.silent {
		_ = conn.Close()
	}
}

// shut lets nobody in any more, gives the silent the grace to send what is on its way, hangs up on those that do not,
// and waits until every request is answered or ctx ends, which is its error.
func (g *gate) shut(ctx context.Context, grace time.Duration) error {
	_ = g.listener.Close() // not yet by Shutdown, which would drop what the silent send
	select {
	case <-g.served:
	case <-ctx.Done():
	}
	for end := time.Now().Add(grace); g.silentNow() > 0 && ctx.Err() == nil && time.Now().Before(end); {
		time.Sleep(min(gracePoll, time.Until(end)))
	}
	return g.server.Shutdown(ctx)
}
