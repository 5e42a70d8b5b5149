package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paymentd/internal/approval"
	"paymentd/internal/payment"
	"paymentd/internal/web"
)

const (
	checkoutSecret = "checkout-secret-0123456789"
	operatorSecret = "operator-secret-0123456789"

	goodOrder = `{"paymentKey":"tgen_1234567890Ab","orderId":"order-1","amount":15000}`
)

var createdAt = time.Date(2026, 3, 1, 9, 0, 0, 250_000_000, time.FixedZone("KST", 9*60*60))

// fixture is the door over fakes; every answer is compared with openapi.yaml.
type fixture struct {
	*web.Door
	spec    *spec
	reg     *prometheus.Registry
	log     *bytes.Buffer
	confirm func(payment.Order) (approval.Answer, error)
	cancel  func(approval.CancelRequest) (approval.CancelAnswer, error)
	ledger  ledger
	sync    func(payment.SyncRequest) (payment.SyncReport, error)
	hint    func(payment.Hint) (payment.HintState, error)
	doubts  doubts
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{spec: loadSpec(t), reg: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	keys, err := web.ParseKeys("shop:checkout:" + checkoutSecret + ",dev:operator:" + operatorSecret)
	if err != nil {
		t.Fatal(err)
	}
	f.Door, err = New(Deps{
		Confirm: confirmer{f}, Cancel: canceler{f}, Read: &f.ledger, Sync: syncer{f}, Hints: hinter{f}, Incidents: &f.doubts, Keys: keys,
		Log: slog.New(slog.NewJSONHandler(f.log, nil)), HTTP: web.NewMetrics(f.reg), Registry: f.reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// call is one request of a test.
type call struct {
	method, path, secret, body string
	header                     http.Header
	// outside marks a call that openapi.yaml has no operation for.
	outside bool
}

func (f *fixture) send(t *testing.T, c call) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), c.method, c.path, strings.NewReader(c.body))
	r.Header.Set("X-Request-Id", "req-1")
	if c.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.secret != "" {
		r.Header.Set("Authorization", "Bearer "+c.secret)
	}
	maps.Copy(r.Header, c.header)
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	if !c.outside {
		f.spec.check(t, r, w)
	}
	return w
}

func (f *fixture) sendConfirm(t *testing.T, body string) *httptest.ResponseRecorder {
	t.Helper()
	return f.send(t, call{method: http.MethodPost, path: "/payments/confirm", secret: checkoutSecret, body: body})
}

// counted returns the confirm results that are not 0.
func (f *fixture) counted(t *testing.T) map[string]int {
	t.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "paymentd_confirm_total" && m.GetCounter().GetValue() > 0 {
				got[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
			}
		}
	}
	return got
}

func (f *fixture) logLine(t *testing.T) map[string]any {
	t.Helper()
	var line map[string]any
	if err := json.Unmarshal(f.log.Bytes(), &line); err != nil {
		t.Fatalf("not exactly one line: %v\n%s", err, f.log)
	}
	return line
}

type confirmer struct{ f *fixture }

func (c confirmer) Confirm(_ context.Context, o payment.Order) (approval.Answer, error) {
	return c.f.confirm(o)
}

type canceler struct{ f *fixture }

func (c canceler) Cancel(_ context.Context, r approval.CancelRequest) (approval.CancelAnswer, error) {
	return c.f.cancel(r)
}

type syncer struct{ f *fixture }

func (s syncer) Sync(_ context.Context, r payment.SyncRequest) (payment.SyncReport, error) {
	return s.f.sync(r)
}

type hinter struct{ f *fixture }

func (h hinter) Hint(_ context.Context, hint payment.Hint) (payment.HintState, error) {
	return h.f.hint(hint)
}

// ledger is a Reader over fixed rows.
type ledger struct {
	payments []payment.Payment
	events   []payment.Event
	err      error
}

func (l *ledger) ByOrder(_ context.Context, orderID string) (payment.Payment, bool, error) {
	for _, p := range l.payments {
		if p.OrderID == orderID {
			return p, true, l.err
		}
	}
	return payment.Payment{}, false, l.err
}

func (l *ledger) Attempts(_ context.Context, orderID string) (found []payment.Payment, err error) {
	for _, p := range l.payments {
		if p.OrderID == orderID {
			found = append(found, p)
		}
	}
	return found, l.err
}

func (l *ledger) Events(_ context.Context, paymentID int64) ([]payment.Event, error) {
	if paymentID != 7 {
		return nil, nil
	}
	return l.events, l.err
}

func paid() payment.Payment {
	return payment.Payment{
		ID: 7, OrderID: "order-1", PaymentKey: "tgen_1234567890Ab", Amount: 15000, Currency: payment.KRW, Status: payment.Paid,
		Method: "카드", ApprovedAt: createdAt, ReceiptURL: "https://example.com/r?a=1&b=2", CreatedAt: createdAt, UpdatedAt: createdAt,
		MemberID: "member-7", ReceiptEmail: "buyer@example.com",
	}
}

func inState(s payment.Status) payment.Payment {
	p := paid()
	p.Status, p.Method, p.ApprovedAt, p.ReceiptURL = s, "", time.Time{}, ""
	return p
}

const (
	paidJSON = `{"orderId":"order-1","paymentKey":"tgen_1234567890Ab","amount":15000,"currency":"KRW","status":"PAID","method":"카드",` +
		`"approvedAt":"2026-03-01T00:00:00.25Z","receiptUrl":"https://example.com/r?a=1\u0026b=2","canceledAmount":0,` +
		`"virtualAccount":null,"failure":null,"createdAt":"2026-03-01T00:00:00.25Z","updatedAt":"2026-03-01T00:00:00.25Z"}`
	pendingJSON = `{"orderId":"order-1","paymentKey":"tgen_1234567890Ab","amount":15000,"currency":"KRW","status":"PENDING","method":null,` +
		`"approvedAt":null,"receiptUrl":null,"canceledAmount":0,` +
		`"virtualAccount":null,"failure":null,"createdAt":"2026-03-01T00:00:00.25Z","updatedAt":"2026-03-01T00:00:00.25Z"}`
)
