package rig

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Notice is one delivery to the shop's webhook.
type Notice struct {
	ID, Kind, OrderID, PaymentKey string
}

// Shop receives the notices of payments and remembers all, those that it refused too.
type Shop struct {
	// URL is its webhook.
	URL string

	server *http.Server
	mu     sync.Mutex
	got    []Notice
	refuse float64
}

func openShop() (*Shop, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open shop: %w", err)
	}
	s := &Shop{URL: "http://" + l.Addr().String() + "/webhook"}
	s.server = &http.Server{Handler: http.HandlerFunc(s.receive), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.server.Serve(l) }() // returns when the shop is closed
	return s, nil
}

func (s *Shop) close() { _ = s.server.Close() }

func (s *Shop) receive(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var n struct {
		Type string
		Data struct{ OrderID, PaymentKey string }
	}
	if err != nil || json.Unmarshal(body, &n) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.got = append(s.got, Notice{r.Header.Get("Webhook-Id"), n.Type, n.Data.OrderID, n.Data.PaymentKey})
	refuse := s.refuse
	s.mu.Unlock()
	if rand.Float64() < refuse {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// Refuse makes the shop answer 503 to this share of the notices, 0 to 1.
func (s *Shop) Refuse(share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = share
}

// IDs are the different ids under which a payment was told of, and how often in all.
func (s *Shop) IDs(paymentKey, kind string) (ids []string, deliveries int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.got {
		if n.PaymentKey != paymentKey || n.Kind != kind {
			continue
		}
		deliveries++
		if !slices.Contains(ids, n.ID) {
			ids = append(ids, n.ID)
		}
	}
	return ids, deliveries
}

// Heard are the paymentKeys of the notices of a kind, each once per id under which it was told.
func (s *Shop) Heard(kind string) (paymentKeys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, n := range s.got {
		if n.Kind == kind && !seen[n.ID] {
			seen[n.ID] = true
			paymentKeys = append(paymentKeys, n.PaymentKey)
		}
	}
	return paymentKeys
}
