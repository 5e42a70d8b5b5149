// Package baseline is two payment servers as teams really wrote them, to show in scenario S1 what this project is not.
// They share nothing with paymentd: no code, no table, no care. Both save the notices of a payment synchronously on a
// second connection while the first one is still held, as listeners "after commit" of a framework do, and both give up
// a request when no connection comes free in time.
package baseline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Architecture is where the gateway is called.
type Architecture string

// The two architectures of S1 that fail.
const (
	// InsideTransaction calls the gateway while a transaction is open.
	InsideTransaction Architecture = "inside the transaction"
	// AfterCommit calls it between two transactions, and gives the money back when the second one cannot begin.
	AfterCommit Architecture = "outside, notices after commit"
)

// Options of a server; all are needed.
type Options struct {
	Architecture Architecture
	// DSN is an empty database of its own.
	DSN string
	// Gateway is the base URL of Toss, Secret its key.
	Gateway, Secret string
	// Conns is the size of the pool, Wait how long a request waits for a connection.
	Conns int32
	Wait  time.Duration
}

// Server answers POST /confirm with 200 or 500.
type Server struct {
	// URL is its base.
	URL string

	o      Options
	pool   *pgxpool.Pool
	client *http.Client
	server *http.Server
}

const schema = `
	CREATE TABLE orders (id text PRIMARY KEY, payment_key text NOT NULL, status text NOT NULL);
	CREATE TABLE messages (order_id text NOT NULL, kind text NOT NULL)`

// Open creates the tables and listens on loopback.
func Open(ctx context.Context, o Options) (*Server, error) {
	config, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	config.MaxConns = o.Conns
	s := &Server{o: o, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	if s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), config); err != nil {
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	if _, err = s.pool.Exec(ctx, schema); err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.pool.Close()
		return nil, fmt.Errorf("open baseline: %w", err)
	}
	s.URL = "http://" + l.Addr().String()
	s.server = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.server.Serve(l) }() // returns when the server is closed
	return s, nil
}

// Close drops what runs.
func (s *Server) Close() error {
	err := s.server.Close()
	s.pool.Close()
	s.client.CloseIdleConnections()
	return err
}

// Stuck counts the orders that are in progress, with nobody left who works on them.
func (s *Server) Stuck(ctx context.Context) (n int, err error) {
	err = s.pool.QueryRow(ctx, `SELECT count(*) FROM orders WHERE status = 'in_progress'`).Scan(&n)
	return n, err
}

type order struct {
	PaymentKey string `json:"paymentKey"`
	OrderID    string `json:"orderId"`
	Amount     int64  `json:"amount"`
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<14)).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	confirm := s.inside
	if s.o.Architecture == AfterCommit {
		confirm = s.outside
	}
	if err := confirm(context.WithoutCancel(r.Context()), o); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// connection waits its turn at the pool, like everybody.
func (s *Server) connection(ctx context.Context) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.Wait, errors.New("no connection in time"))
	defer cancel()
	return s.pool.Acquire(ctx)
}

// inside holds its transaction through the call.
func (s *Server) inside(ctx context.Context, o order) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, 'in_progress')`, o.OrderID, o.PaymentKey); err != nil {
		return err
	}
	if err := s.call(ctx, "confirm", o); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `UPDATE orders SET status = 'paid' WHERE id = $1`, o.OrderID); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	s.notices(ctx, o)
	return nil
}

// diskSQL is what a commit costs on a disk: the throwaway server of the scenarios does not wait for its own (fsync is off),
// and whether the ten connections are all held at one moment must not hang on how fast this machine is.
const diskSQL = `SELECT pg_sleep(0.01)`

// outside holds no connection through the call, and gives back what it cannot save. What was given back stays in
// progress: the job that would look at it knows approved and aborted, not canceled.
func (s *Server) outside(ctx context.Context, o order) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, 'in_progress')`, o.OrderID, o.PaymentKey)
	conn.Release()
	if err != nil {
		return err
	}
	if err := s.call(ctx, "confirm", o); err != nil {
		return err
	}
	conn, err = s.connection(ctx)
	if err == nil {
		defer conn.Release()
		_, err = conn.Exec(ctx, `UPDATE orders SET status = 'paid' WHERE id = $1`, o.OrderID)
	}
	if err == nil {
		_, err = conn.Exec(ctx, diskSQL)
	}
	if err != nil {
		return errors.Join(err, s.call(ctx, "cancel", o))
	}
	s.notices(ctx, o)
	return nil
}

// notices is called with a connection in hand and asks for another one.
func (s *Server) notices(ctx context.Context, o order) {
	conn, err := s.connection(ctx)
	if err != nil {
		return // the payment is committed; the notice is lost
	}
	defer conn.Release()
	_, _ = conn.Exec(ctx, `INSERT INTO messages VALUES ($1, 'paid'), ($1, 'receipt')`, o.OrderID)
}

func (s *Server) call(ctx context.Context, what string, o order) error {
	path, body := "/v1/payments/confirm", any(o)
	if what == "cancel" {
		path, body = "/v1/payments/"+o.PaymentKey+"/cancel", map[string]string{"cancelReason": "could not be saved"}
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.o.Gateway+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.SetBasicAuth(s.o.Secret, "")
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: the gateway answers %d", what, resp.StatusCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
