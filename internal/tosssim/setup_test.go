package tosssim_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"testing"

	"paymentd/internal/tosssim"
)

// bench is one simulator over sockets and a client that re-sends nothing by itself.
type bench struct {
	t   *testing.T
	sim *tosssim.Server
	hc  *http.Client
}

func setup(t *testing.T, faults ...tosssim.Fault) *bench {
	t.Helper()
	return setupWith(t, tosssim.Options{Faults: faults, Seed: 1})
}

func setupWith(t *testing.T, o tosssim.Options) *bench {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &bench{t: t, sim: tosssim.Start(t, o), hc: &http.Client{Transport: transport}}
}

// result is an answer of either API; err is what the client saw in place of one.
type result struct {
	status int
	code   string
	body   map[string]any
	raw    string
	header http.Header
	err    error
}

func (r result) str(field string) string {
	s, _ := r.body[field].(string)
	return s
}

func (r result) num(field string) string { return fmt.Sprint(r.body[field]) }

type header map[string]string

func (b *bench) do(method, url, body string, h header) result {
	req, err := http.NewRequestWithContext(b.t.Context(), method, url, bytes.NewBufferString(body))
	if err != nil {
		return result{err: err}
	}
	req.GetBody = nil
	for k, v := range h {
		req.Header.Set(k, v)
	}
	res, err := b.hc.Do(req)
	if err != nil {
		return result{err: err}
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	r := result{status: res.StatusCode, raw: string(raw), header: res.Header, err: err}
	if json.Valid(raw) && bytes.HasPrefix(raw, []byte("{")) {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		if err := d.Decode(&r.body); err != nil {
			r.err = errors.Join(r.err, err)
		}
		r.code = r.str("code")
	}
	return r
}

const basic = "Basic dGVzdF9zazo=" // test_sk:

func (b *bench) toss(method, path, body string, h header) result {
	all := header{"Authorization": basic}
	maps.Copy(all, h)
	return b.do(method, b.sim.URL()+path, body, all)
}

// confirm asks for 15000 of order-<paymentKey> under an idempotency key ("" sends none).
func (b *bench) confirm(paymentKey, key string) result {
	return b.confirmFor(paymentKey, "order-"+paymentKey, "15000", key)
}

func (b *bench) confirmFor(paymentKey, orderID, amount, key string) result {
	h := header{}
	if key != "" {
		h["Idempotency-Key"] = key
	}
	return b.toss("POST", "/v1/payments/confirm", fmt.Sprintf(`{"paymentKey":%q,"orderId":%q,"amount":%s}`, paymentKey, orderID, amount), h)
}

func (b *bench) cancel(paymentKey, body, key string) result {
	h := header{}
	if key != "" {
		h["Idempotency-Key"] = key
	}
	return b.toss("POST", "/v1/payments/"+paymentKey+"/cancel", body, h)
}

func (b *bench) lookup(paymentKey string) result {
	return b.toss("GET", "/v1/payments/"+paymentKey, "", nil)
}

func (b *bench) control(method, path, body string) result {
	return b.do(method, b.sim.ControlURL()+path, body, nil)
}

func (b *bench) want(r result, status int, code string) {
	b.t.Helper()
	if r.err != nil || r.status != status || r.code != code {
		b.t.Errorf("answer: want %d %q, got %d %q err %v\n%.300s", status, code, r.status, r.code, r.err, r.raw)
	}
}

// wantLedger checks approvals, cancels and balance of one payment.
func (b *bench) wantLedger(paymentKey string, approvals, cancels int, balance int64) {
	b.t.Helper()
	e, _ := b.sim.Payment(paymentKey)
	if e.Approvals != approvals || e.Cancels != cancels || e.Balance != balance {
		b.t.Errorf("ledger of %s: want %d approvals, %d cancels, balance %d, got %+v", paymentKey, approvals, cancels, balance, e)
	}
}

// calls waits until op has been called so often and so many of these still run.
func (b *bench) calls(op string, calls, running int64) {
	b.t.Helper()
	err := b.sim.Await(b.t.Context(), func(c tosssim.Counters) bool {
		return c.Ops[op].Calls == calls && c.Ops[op].Running == running
	})
	if err != nil {
		b.t.Fatalf("await %d calls of %s: %v", calls, op, err)
	}
}

func decodeList(t *testing.T, raw string) []map[string]any {
	t.Helper()
	var list []map[string]any
	if err := json.Unmarshal([]byte(raw), &list); err != nil {
		t.Fatalf("list: %v in %s", err, raw)
	}
	return list
}
