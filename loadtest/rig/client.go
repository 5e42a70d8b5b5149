package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrDown is the error of a call to an instance that is down.
var ErrDown = errors.New("the instance is down")

// Order is one confirm as the checkout sends it. Amount is won.
type Order struct {
	PaymentKey   string `json:"paymentKey"`
	OrderID      string `json:"orderId"`
	Amount       int64  `json:"amount"`
	MemberID     string `json:"memberId,omitempty"`
	ReceiptEmail string `json:"receiptEmail,omitempty"`
}

// Answer is what a call was answered. Code is that of a problem, PaymentStatus that of a payment.
type Answer struct {
	Status        int
	Header        http.Header
	Code          string
	PaymentStatus string
	Body          []byte
	Took          time.Duration
}

// String is the answer in one line, without its body.
func (a Answer) String() string {
	return strings.TrimSpace(fmt.Sprint(a.Status, " ", a.PaymentStatus, a.Code))
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4096, IdleConnTimeout: 30 * time.Second}}
}

// Confirm is POST /payments/confirm by the checkout.
func (in *Instance) Confirm(ctx context.Context, o Order) (Answer, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return Answer{}, fmt.Errorf("confirm: %w", err)
	}
	return in.Call(ctx, Request{Method: http.MethodPost, Path: "/payments/confirm", Secret: CheckoutSecret, Body: string(body)})
}

// Read is GET /payments/{orderId} by the checkout.
func (in *Instance) Read(ctx context.Context, orderID string) (Answer, error) {
	return in.Call(ctx, Request{Method: http.MethodGet, Path: "/payments/" + orderID, Secret: CheckoutSecret})
}

// Sync is POST /payments/sync by an operator; body is its JSON.
func (in *Instance) Sync(ctx context.Context, body string) (Answer, error) {
	return in.Call(ctx, Request{Method: http.MethodPost, Path: "/payments/sync", Secret: OperatorSecret, Body: body})
}

// Request is one call to a door of an instance.
type Request struct {
	Method, Path string
	// Secret is the bearer key; empty: none.
	Secret string
	Body   string
	Header http.Header
	// Private calls the private door.
	Private bool
}

// Call sends one request. An error means that no whole answer came, so that the caller knows nothing.
func (in *Instance) Call(ctx context.Context, q Request) (Answer, error) {
	base := in.URL()
	if q.Private {
		base = in.AdminURL()
	}
	if base == "" {
		return Answer{}, ErrDown
	}
	req, err := http.NewRequestWithContext(ctx, q.Method, base+q.Path, strings.NewReader(q.Body))
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s: %w", q.Method, q.Path, err)
	}
	if q.Header != nil {
		req.Header = q.Header.Clone()
	}
	req.Header.Set("Content-Type", "application/json")
	if q.Secret != "" {
		req.Header.Set("Authorization", "Bearer "+q.Secret)
	}
	begin := time.Now()
	resp, err := in.rig.client.Do(req)
	if err != nil {
		return Answer{Took: time.Since(begin)}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	a := Answer{Status: resp.StatusCode, Header: resp.Header, Body: body, Took: time.Since(begin)}
	if err != nil {
		return a, fmt.Errorf("%s %s: %w", q.Method, q.Path, err)
	}
	a.Code, a.PaymentStatus = words(a)
	return a, nil
}

// words reads the code of a problem or the status of a payment; other answers have neither.
func words(a Answer) (code, status string) {
	var said struct {
		Code   string          `json:"code"`
		Status json.RawMessage `json:"status"`
	}
	if json.Unmarshal(a.Body, &said) != nil {
		return "", ""
	}
	if said.Code == "" {
		_ = json.Unmarshal(said.Status, &status) // a number in a problem
	}
	return said.Code, status
}

// Metrics reads /metrics; series are written as they stand there.
func (in *Instance) Metrics(ctx context.Context) (map[string]float64, error) {
	a, err := in.Call(ctx, Request{Method: http.MethodGet, Path: "/metrics", Private: true})
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("metrics: %s", a)
	}
	if err != nil {
		return nil, err
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(a.Body)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			all[line[:i]] = v
		}
	}
	return all, nil
}
