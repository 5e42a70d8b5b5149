package tosssim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// route is one call of the control port.
type route struct {
	pattern, about string
	serve          func(*http.Request) (any, error)
}

func (s *Simulator) routes() []route {
	return []route{
		{"POST /control/faults", "replace the fault rules by this list (or one rule); ?add=true puts them behind the others", s.postFaults},
		{"GET /control/faults", "the rules in force and how often each hit", func(*http.Request) (any, error) { return s.Faults(), nil }},
		{"DELETE /control/faults", "remove all fault rules", func(*http.Request) (any, error) { s.ClearFaults(); return s.Faults(), nil }},
		{"POST /control/options", `change settings: {"idempotency","singleUse","windowSeconds","busyAsS008","forgetExpired"}`, s.postOptions},
		{"GET /control/options", "the settings in force", func(*http.Request) (any, error) { return s.shownSettings(), nil }},
		{"POST /control/listen", `{"up":false} closes the public port so that dials are refused, true opens it again`, s.postListen},
		{"GET /control/ledger", "approvals, cancels, sums, payments; ?paymentKey ?orderId ?summary=true", s.ledgerOf},
		{"GET /control/calls", "calls and counters; ?op ?paymentKey ?orderId ?idempotencyKey ?running=true ?limit=100", s.callsOf},
		{"POST /control/payments", "make a payment: {paymentKey, orderId, amount, currency?, method?, status?, decline?, noPartialCancel?}", s.postPayment},
		{"POST /control/status", "move a payment along an edge of Toss: {paymentKey, status}", s.postStatus},
		{"POST /control/cancel", "give money back past the public API: {paymentKey, amount?}", s.postCancel},
		{"POST /control/deposit", `pay a virtual account in: {paymentKey}; {paymentKey, "reverse":true} takes it back`, s.postDeposit},
		{"POST /control/webhook", "send a webhook: {paymentKey, url, event?, transmissionId?, retried?}", s.postWebhook},
		{"POST /control/clock", "move the clock forward: {advanceSeconds}", s.postClock},
		{"POST /control/reset", "forget everything, back to the options of the start", func(*http.Request) (any, error) { s.Reset(); return s.LedgerOf(LedgerQuery{Summary: true}), nil }},
	}
}

// Control is the API by which people and tests script the simulator. It has no authentication: bind it to loopback.
func (s *Simulator) Control() http.Handler {
	m := http.NewServeMux()
	list := map[string]string{}
	for _, rt := range s.routes() {
		list[rt.pattern] = rt.about
		m.HandleFunc(rt.pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := rt.serve(r)
			answerControl(w, v, err)
		})
	}
	m.HandleFunc("GET /control/{$}", func(w http.ResponseWriter, _ *http.Request) { answerControl(w, list, nil) })
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answerControl(w, nil, fmt.Errorf("no call %s %s", r.Method, r.URL.Path))
	})
	return m
}

func answerControl(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		v = map[string]string{"error": err.Error(), "fix": "GET /control/ lists all calls and their fields"}
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // a client that has gone is no news
}

// strict decodes one JSON value without unknown fields or anything behind it.
func strict(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("body: empty, JSON is expected")
		}
		return fmt.Errorf("body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("body: something follows the JSON value")
	}
	return nil
}

func decode(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return strict(b, v)
}

func (s *Simulator) postFaults(r *http.Request) (any, error) {
	var raw json.RawMessage
	if err := decode(r, &raw); err != nil {
		return nil, err
	}
	var list []Fault
	if !bytes.HasPrefix(raw, []byte("[")) {
		raw = append(append([]byte("["), raw...), ']')
	}
	if err := strict(raw, &list); err != nil {
		return nil, err
	}
	set := s.SetFaults
	if r.URL.Query().Get("add") == "true" {
		set = s.AddFaults
	}
	if err := set(list...); err != nil {
		return nil, err
	}
	return s.Faults(), nil
}

func (s *Simulator) postOptions(r *http.Request) (any, error) {
	var in struct {
		Idempotency   *bool    `json:"idempotency"`
		SingleUse     *bool    `json:"singleUse"`
		WindowSeconds *float64 `json:"windowSeconds"`
		BusyAsS008    *bool    `json:"busyAsS008"`
		ForgetExpired *bool    `json:"forgetExpired"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if in.WindowSeconds != nil && *in.WindowSeconds <= 0 {
		return nil, errors.New("windowSeconds: must be above 0")
	}
	s.Configure(func(set *Settings) {
		for _, f := range []struct{ to, from *bool }{
			{&set.Idempotency, in.Idempotency}, {&set.SingleUse, in.SingleUse},
			{&set.BusyAsS008, in.BusyAsS008}, {&set.ForgetExpired, in.ForgetExpired},
		} {
			if f.from != nil {
				*f.to = *f.from
			}
		}
		if in.WindowSeconds != nil {
			set.Window = time.Duration(*in.WindowSeconds * float64(time.Second))
		}
	})
	return s.shownSettings(), nil
}

func (s *Simulator) shownSettings() any {
	set := s.Settings()
	return map[string]any{
		"idempotency": set.Idempotency, "singleUse": set.SingleUse, "windowSeconds": set.Window.Seconds(),
		"busyAsS008": set.BusyAsS008, "forgetExpired": set.ForgetExpired,
	}
}

func (s *Simulator) postListen(r *http.Request) (any, error) {
	var in struct {
		Up *bool `json:"up"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if in.Up == nil {
		return nil, errors.New("up: true or false is needed")
	}
	server := s.gate.Load()
	if server == nil {
		return nil, errors.New("listen: this simulator was not started by Listen and has no port of its own")
	}
	if err := server.SetListening(*in.Up); err != nil {
		return nil, err
	}
	return map[string]any{"up": *in.Up, "url": server.URL()}, nil
}

func (s *Simulator) ledgerOf(r *http.Request) (any, error) {
	q := r.URL.Query()
	if err := known(q, "paymentKey", "orderId", "summary"); err != nil {
		return nil, err
	}
	l := s.LedgerOf(LedgerQuery{PaymentKey: q.Get("paymentKey"), OrderID: q.Get("orderId"), Summary: q.Get("summary") == "true"})
	if q.Get("summary") == "true" {
		return l.Totals, nil
	}
	return struct {
		Totals
		Payments []Entry `json:"payments"`
	}{l.Totals, append([]Entry{}, l.Payments...)}, nil
}

func (s *Simulator) callsOf(r *http.Request) (any, error) {
	q := r.URL.Query()
	if err := known(q, "op", "paymentKey", "orderId", "idempotencyKey", "running", "limit"); err != nil {
		return nil, err
	}
	limit := 100
	if l := q.Get("limit"); l != "" {
		n, err := strconv.Atoi(l)
		if err != nil || n < 0 {
			return nil, errors.New("limit: must be a number, 0 for all remembered calls")
		}
		limit = n
	}
	calls := s.CallsOf(CallQuery{
		Op: q.Get("op"), PaymentKey: q.Get("paymentKey"), OrderID: q.Get("orderId"), IdempotencyKey: q.Get("idempotencyKey"),
		Running: q.Get("running") == "true", Limit: limit,
	})
	return map[string]any{"counters": s.Counters(), "calls": calls}, nil
}

func known(q url.Values, names ...string) error {
	for name := range q {
		if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+name+" ") {
			return fmt.Errorf("%s: unknown; possible: %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

func (s *Simulator) postPayment(r *http.Request) (any, error) {
	var in NewPayment
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	return s.AddPayment(in)
}

func (s *Simulator) postStatus(r *http.Request) (any, error) {
	var in struct {
		PaymentKey string `json:"paymentKey"`
		Status     Status `json:"status"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	return s.Move(in.PaymentKey, in.Status)
}

func (s *Simulator) postCancel(r *http.Request) (any, error) {
	var in struct {
		PaymentKey string `json:"paymentKey"`
		Amount     int64  `json:"amount"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	return s.Cancel(in.PaymentKey, in.Amount)
}

func (s *Simulator) postDeposit(r *http.Request) (any, error) {
	var in struct {
		PaymentKey string `json:"paymentKey"`
		Reverse    bool   `json:"reverse"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if in.Reverse {
		return s.ReverseDeposit(in.PaymentKey)
	}
	return s.Deposit(in.PaymentKey)
}

func (s *Simulator) postWebhook(r *http.Request) (any, error) {
	var in Webhook
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	return s.SendWebhook(r.Context(), in)
}

func (s *Simulator) postClock(r *http.Request) (any, error) {
	var in struct {
		AdvanceSeconds float64 `json:"advanceSeconds"`
	}
	if err := decode(r, &in); err != nil {
		return nil, err
	}
	if in.AdvanceSeconds < 0 {
		return nil, errors.New("advanceSeconds: the clock goes forward only")
	}
	s.Advance(time.Duration(in.AdvanceSeconds * float64(time.Second)))
	return map[string]any{"now": s.Now().UTC().Add(kst).Format("2006-01-02T15:04:05+09:00")}, nil
}
