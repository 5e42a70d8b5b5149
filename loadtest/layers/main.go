// Command layers is a server made of the first layers of paymentd alone, so that the benchmark can say what each of them
// costs on the machine at hand. It has nothing else that paymentd has: no authentication, limits, retry, log, metrics,
// detached work or delivery of notices, and a confirm that fails is a 500. The load rig alone starts it, in place of paymentd.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"paymentd/internal/payment"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. Its settings are paymentd's, and LAYERS: how much of paymentd there is (see open).
func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	kept, err := open(ctx, getenv("LAYERS"), getenv("PAYMENTD_DATABASE_URL"))
	if err != nil {
		return err
	}
	floor := make([]byte, 32<<20) // as paymentd's (ADR 0012), so that the collector runs as often
	defer runtime.KeepAlive(floor)
	s := &server{
		books: kept, confirmURL: getenv("PAYMENTD_TOSS_URL") + "/v1/payments/confirm", secretKey: getenv("PAYMENTD_TOSS_SECRET_KEY"),
		transport: &http.Transport{MaxIdleConnsPerHost: 4096, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10},
	}
	public := chi.NewRouter()
	public.Post("/payments/confirm", s.confirm)
	private := http.NewServeMux()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	private.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	ended := make(chan error, 2)
	var addresses [2]string
	for i, h := range []http.Handler{public, private} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addresses[i] = l.Addr().String()
		door := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
		go func() { ended <- door.Serve(l) }()
	}
	slog.New(slog.NewJSONHandler(out, nil)).Info("listening", "public", addresses[0], "private", addresses[1])
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// server answers confirms.
type server struct {
	books                 books
	confirmURL, secretKey string
	transport             *http.Transport
}

// confirmBody is what the caller sends and what Toss gets.
type confirmBody struct {
	PaymentKey string `json:"paymentKey"`
	OrderID    string `json:"orderId"`
	Amount     int64  `json:"amount"`
}

func (s *server) confirm(w http.ResponseWriter, r *http.Request) {
	status, err := s.approve(r)
	if err != nil {
		slog.Error("confirm", "error", err)
		http.Error(w, "failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"status": status})
}

// approve reserves, asks Toss and settles, and returns the status at Toss.
func (s *server) approve(r *http.Request) (status string, err error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	var asked confirmBody
	if err := json.Unmarshal(text, &asked); err != nil {
		return "", err
	}
	p, err := s.books.reserve(r.Context(), payment.Order{
		PaymentKey: asked.PaymentKey, OrderID: asked.OrderID, Amount: payment.Amount(asked.Amount), Currency: payment.KRW,
	})
	if err != nil {
		return "", fmt.Errorf("reserve: %w", err)
	}
	o, status, err := s.ask(r.Context(), asked)
	if err != nil {
		return "", fmt.Errorf("ask Toss: %w", err)
	}
	if err := s.books.settle(r.Context(), p, o); err != nil {
		return "", fmt.Errorf("settle: %w", err)
	}
	return status, nil
}

// tossPayment is what is read of Toss's answer.
type tossPayment struct {
	Status      string    `json:"status"`
	TotalAmount int64     `json:"totalAmount"`
	Method      string    `json:"method"`
	ApprovedAt  time.Time `json:"approvedAt"`
	Receipt     struct {
		URL string `json:"url"`
	} `json:"receipt"`
}

var errRefused = errors.New("not approved")

func (s *server) ask(ctx context.Context, asked confirmBody) (o payment.Observation, status string, err error) {
	body, err := json.Marshal(asked)
	if err != nil {
		return o, "", err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.confirmURL, bytes.NewReader(body))
	if err != nil {
		return o, "", err
	}
	request.SetBasicAuth(s.secretKey, "")
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", payment.ConfirmKey(asked.PaymentKey, 1))
	response, err := s.transport.RoundTrip(request)
	if err != nil {
		return o, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return o, "", err
	}
	var p tossPayment
	if err := json.Unmarshal(text, &p); err != nil {
		return o, "", err
	}
	if response.StatusCode != http.StatusOK {
		return o, "", fmt.Errorf("%w: %d", errRefused, response.StatusCode)
	}
	return payment.Observation{
		Sighting: payment.SightingOf(p.Status), PaymentKey: asked.PaymentKey, OrderID: asked.OrderID, Currency: payment.KRW,
		Total: payment.Amount(p.TotalAmount), Balance: payment.Amount(p.TotalAmount), Method: p.Method, ApprovedAt: p.ApprovedAt,
		ReceiptURL: p.Receipt.URL,
	}, p.Status, nil
}
