package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"paymentd/internal/devdb"
)

// request is one call over HTTP.
type request struct {
	method, url, key string
	body             string
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
	took   time.Duration
}

func call(ctx context.Context, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	// No proxy of the environment stands between us and loopback, and no idle connection outlives the call.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	began := time.Now()
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	return answer{status: res.StatusCode, header: res.Header, body: body, took: time.Since(began)}, err
}

// payment is the one that the demonstration confirms; the simulator knows every key that begins with test_.
type payment struct {
	PaymentKey string `json:"paymentKey"`
	OrderID    string `json:"orderId"`
	Amount     int    `json:"amount"`
}

func newPayment() payment {
	id := strings.ToLower(rand.Text()[:12])
	return payment{PaymentKey: "test_" + id, OrderID: "order-" + id, Amount: 15000}
}

// demo confirms one payment and prints what each part of the stack has seen of it.
func (s *stack) demo(ctx context.Context, out io.Writer) error {
	p := newPayment()
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	url := "http://" + s.public + "/payments/confirm"
	fmt.Fprintf(out, "\nRequest\n  POST %s\n  Authorization: Bearer %s\n  %s\n", url, checkoutKey, body)
	got, err := call(ctx, request{method: http.MethodPost, url: url, key: checkoutKey, body: string(body)})
	if err != nil {
		return fmt.Errorf("confirm: %w; %s", err, s.tail("paymentd"))
	}
	fmt.Fprintf(out, "\nAnswer after %v\n  %d %s\n", got.took.Round(time.Millisecond), got.status, http.StatusText(got.status))
	for _, name := range []string{"Server-Timing", "Location", "Retry-After"} {
		if v := got.header.Get(name); v != "" {
			fmt.Fprintf(out, "  %s: %s\n", name, v)
		}
	}
	fmt.Fprintln(out, indent(pretty(got.body)))
	if got.status != http.StatusOK {
		return fmt.Errorf("confirm: answered %d, not 200; %s", got.status, s.tail("paymentd"))
	}
	if err := s.showRow(ctx, out, p); err != nil {
		return err
	}
	if err := s.showSimulator(ctx, out, p); err != nil {
		return err
	}
	return s.checkCharged(ctx, p)
}

// rowColumns are those that design §9 lets others read.
const rowColumns = "order_id, payment_key, status, amount, canceled_amount, holds_order, version, maybe_sent, due_at"

func (s *stack) showRow(ctx context.Context, out io.Writer, p payment) error {
	row, err := s.postgres.Cluster().Row(ctx, database, "SELECT "+rowColumns+" FROM payments WHERE payment_key = $1", p.PaymentKey)
	if err != nil {
		return fmt.Errorf("row in payments: %w", err)
	}
	fmt.Fprintln(out, "\nRow in payments\n"+indent(table(row)))
	return nil
}

func table(row []devdb.Field) string {
	var b strings.Builder
	for _, f := range row {
		fmt.Fprintf(&b, "%-16s %s\n", f.Name, f.Value)
	}
	return strings.TrimRight(b.String(), "\n")
}

func (s *stack) showSimulator(ctx context.Context, out io.Writer, p payment) error {
	fmt.Fprintln(out, "\nWhat the simulator saw")
	for _, part := range []struct{ path, list string }{{"calls", "calls"}, {"ledger", "payments"}} {
		items, err := s.simulator(ctx, part.path+"?paymentKey="+p.PaymentKey, part.list)
		if err != nil {
			return err
		}
		for _, item := range items {
			fmt.Fprintf(out, "  %-6s  %s\n", part.path, item)
		}
	}
	return nil
}

// simulator reads one list of the control port.
func (s *stack) simulator(ctx context.Context, path, list string) ([]json.RawMessage, error) {
	got, err := call(ctx, request{method: http.MethodGet, url: "http://" + s.control + "/control/" + path})
	if err != nil {
		return nil, fmt.Errorf("simulator: %w", err)
	}
	var all map[string]json.RawMessage
	var items []json.RawMessage
	if err := json.Unmarshal(got.body, &all); err != nil {
		return nil, fmt.Errorf("simulator: %s: %w", path, err)
	}
	if err := json.Unmarshal(all[list], &items); err != nil {
		return nil, fmt.Errorf("simulator: %s: %w", path, err)
	}
	return items, nil
}

// checkCharged makes --once a test: the money was taken exactly once.
func (s *stack) checkCharged(ctx context.Context, p payment) error {
	items, err := s.simulator(ctx, "ledger?paymentKey="+p.PaymentKey, "payments")
	if err != nil {
		return err
	}
	var entry struct {
		Approvals int `json:"approvals"`
		Balance   int `json:"balance"`
	}
	if len(items) == 1 {
		err = json.Unmarshal(items[0], &entry)
	}
	if err != nil || entry.Approvals != 1 || entry.Balance != p.Amount {
		return fmt.Errorf("the simulator took the money %d times and holds %d, expected once and %d", entry.Approvals, entry.Balance, p.Amount)
	}
	s.confirmed = p
	return nil
}

func pretty(body []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, body, "", "  ") != nil {
		return string(body)
	}
	return strings.TrimSpace(b.String())
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }
