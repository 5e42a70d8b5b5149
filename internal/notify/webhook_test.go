package notify

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"paymentd/internal/payment"
)

var testSecret = "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))

// receiver is a checkout that keeps what it was sent and answers by its handler.
type receiver struct {
	url string

	mu   sync.Mutex
	seen []delivery
}

type delivery struct {
	method string
	header http.Header
	body   string
}

func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.seen = append(r.seen, delivery{method: req.Method, header: req.Header, body: string(body)})
		r.mu.Unlock()
		answer(w, req)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *receiver) deliveries() []delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

func newWebhook(t *testing.T, o WebhookOptions) *Webhook {
	t.Helper()
	if o.Secret == "" {
		o.Secret = testSecret
	}
	w, err := NewWebhook(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func notice() payment.Notice {
	at := time.Date(2026, 3, 1, 9, 0, 0, 120_000_000, time.FixedZone("KST", 9*60*60))
	p := paid("order-1")
	p.CreatedAt, p.UpdatedAt, p.ApprovedAt = at, at, at
	return payment.Notice{
		ID: "msg_1", Kind: payment.NoticePaid, Sequence: 7, Attempts: 1, Fence: 3, CreatedAt: at, Now: at, Payment: p,
	}
}

func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

// TestWebhookIsVerified reads a delivery as a checkout does, with the reference library.
func TestWebhookIsVerified(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		secret string
		oracle func() (*standardwebhooks.Webhook, error)
	}{
		{
			name: "whsec", secret: testSecret,
			oracle: func() (*standardwebhooks.Webhook, error) { return standardwebhooks.NewWebhook(testSecret) },
		},
		{
			name: "raw", secret: "a raw secret, not base64 at all",
			oracle: func() (*standardwebhooks.Webhook, error) {
				return standardwebhooks.NewWebhookRaw([]byte("a raw secret, not base64 at all"))
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, ok)
			w := newWebhook(t, WebhookOptions{URL: r.url, Secret: test.secret, AllowPrivate: true})
			if err := w.Send(t.Context(), notice()); err != nil {
				t.Fatal(err)
			}
			oracle, err := test.oracle()
			if err != nil {
				t.Fatal(err)
			}
			got := r.deliveries()[0]
			if err := oracle.Verify([]byte(got.body), got.header); err != nil {
				t.Error(err)
			}
			if err := oracle.Verify([]byte(got.body+" "), got.header); err == nil {
				t.Error("the signature does not cover the body")
			}
			want := `{"type":"payment.paid","timestamp":"2026-03-01T00:00:00.12Z","sequence":7,"data":{"orderId":"order-1",` +
				`"paymentKey":"key-order-1","amount":15000,"currency":"KRW","status":"PAID","method":null,` +
				`"approvedAt":"2026-03-01T00:00:00.12Z","receiptUrl":null,"canceledAmount":0,"virtualAccount":null,"failure":null,` +
				`"createdAt":"2026-03-01T00:00:00.12Z","updatedAt":"2026-03-01T00:00:00.12Z"}}`
			if diff := cmp.Diff(want, got.body); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			if got.method != http.MethodPost || got.header.Get("Content-Type") != "application/json" || got.header.Get("Webhook-Id") != "msg_1" {
				t.Errorf("%s with %v", got.method, got.header)
			}
		})
	}
}

// TestTrap22_SignsEachTry: a late retry must not look like a replay (same id, new timestamp and signature).
func TestTrap22_SignsEachTry(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	w := newWebhook(t, WebhookOptions{URL: r.url, AllowPrivate: true})
	start := time.Now()
	for i := range 2 {
		w.now = func() time.Time { return start.Add(time.Duration(i) * time.Minute) }
		if err := w.Send(t.Context(), notice()); err == nil {
			t.Fatal("500 taken for a success")
		}
	}
	oracle, err := standardwebhooks.NewWebhook(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	seen := r.deliveries()
	for i, d := range seen {
		if err := oracle.Verify([]byte(d.body), d.header); err != nil {
			t.Errorf("try %d: %v", i+1, err)
		}
	}
	first, second := seen[0].header, seen[1].header
	if first.Get("Webhook-Id") != second.Get("Webhook-Id") {
		t.Error("the id changed")
	}
	for _, name := range []string{"Webhook-Timestamp", "Webhook-Signature"} {
		if first.Get(name) == second.Get(name) {
			t.Errorf("%s is the same in both tries: %s", name, first.Get(name))
		}
	}
}

func TestWebhookAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		answer http.HandlerFunc
		want   string
		sends  int
	}{
		{name: "204", answer: ok, want: "<nil>", sends: 1},
		{
			name: "200 with a body without end", want: "<nil>", sends: 1,
			answer: func(w http.ResponseWriter, _ *http.Request) {
				for {
					if _, err := w.Write(make([]byte, 32<<10)); err != nil {
						return
					}
				}
			},
		},
		{
			name: "500", want: "webhook: status 500", sends: 1,
			answer: func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "order-1 someone@example.com", http.StatusInternalServerError)
			},
		},
		{
			name: "redirect", want: "webhook: status 307, redirects are not followed", sends: 1,
			answer: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/other", http.StatusTemporaryRedirect)
			},
		},
		{
			name: "connection dropped", want: "webhook: EOF", sends: 1,
			answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newReceiver(t, test.answer)
			w := newWebhook(t, WebhookOptions{URL: r.url + "/hook?token=sesame", AllowPrivate: true})
			err := w.Send(t.Context(), notice())
			if diff := cmp.Diff(test.want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if got := len(r.deliveries()); got != test.sends {
				t.Errorf("%d requests, want %d", got, test.sends)
			}
		})
	}
}

// TestWebhookHangs: a receiver that never answers costs one send time-out and tells no URL.
func TestWebhookHangs(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	w := newWebhook(t, WebhookOptions{URL: r.url + "/hook?token=sesame", AllowPrivate: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := w.Send(ctx, notice())
	if diff := cmp.Diff("webhook: context deadline exceeded", fmt.Sprint(err)); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

// TestWebhookTrickles: a receiver that answers byte by byte costs one send time-out too; a header that never ends is no
// success, a body that never ends takes none back.
func TestWebhookTrickles(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, first, more, want string }{
		{name: "header", first: "HTTP/1.1 200 OK\r\n", more: "X: y\r\n", want: "webhook: context deadline exceeded"},
		{name: "body", first: "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", more: "x", want: "<nil>"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := raw(t, func(c net.Conn) {
				if _, err := c.Read(make([]byte, 4096)); err != nil {
					return
				}
				for _, err := fmt.Fprint(c, test.first); err == nil; _, err = fmt.Fprint(c, test.more) {
					time.Sleep(10 * time.Millisecond)
				}
			})
			w := newWebhook(t, WebhookOptions{URL: "http://" + s.address, AllowPrivate: true})
			patience := 10 * time.Second // and as long does the body take
			if strings.Contains(test.want, "deadline") {
				patience = within
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			start := time.Now()
			err := w.Send(ctx, notice())
			if diff := cmp.Diff(test.want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestWebhookRefusesPrivateAddresses(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, ok)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	w := newWebhook(t, WebhookOptions{URL: "http://localhost:" + port + "/?token=sesame"})
	err = w.Send(t.Context(), notice())
	if err == nil || !strings.Contains(err.Error(), errPrivate.Error()) || strings.Contains(err.Error(), "sesame") {
		t.Errorf("error %v, want %q", err, errPrivate)
	}
	if n := len(r.deliveries()); n != 0 {
		t.Errorf("%d requests reached the private address", n)
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		want bool
	}{
		{name: "8.8.8.8", want: true},
		{name: "2001:4860:4860::8888", want: true},
		{name: "127.0.0.1"}, {name: "127.8.8.8"}, {name: "0.0.0.0"}, {name: "0.1.2.3"}, {name: "10.1.2.3"},
		{name: "172.16.0.1"}, {name: "192.168.1.1"}, {name: "169.254.169.254"}, {name: "100.64.0.1"},
		{name: "192.0.0.1"}, {name: "198.19.0.1"}, {name: "224.0.0.1"}, {name: "250.1.1.1"}, {name: "255.255.255.255"},
		{name: "::"}, {name: "::1"}, {name: "fe80::1"}, {name: "fec0::1"}, {name: "fd00::1"}, {name: "ff02::1"},
		{name: "::ffff:127.0.0.1"}, {name: "::ffff:10.0.0.1"}, {name: "::ffff:100.64.0.1"}, {name: "64:ff9b::7f00:1"}, {name: "2002:7f00:1::"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := public(netip.MustParseAddr(test.name)); got != test.want {
				t.Errorf("public = %v, want %v", got, test.want)
			}
		})
	}
}

func TestNewWebhookRefuses(t *testing.T) {
	t.Parallel()
	good := "https://shop.example/hook"
	tests := []struct {
		name    string
		options WebhookOptions
		want    string
	}{
		{name: "good", options: WebhookOptions{URL: good, Secret: testSecret}, want: "<nil>"},
		{name: "private literal allowed", options: WebhookOptions{URL: "http://10.0.0.1", Secret: testSecret, AllowPrivate: true}, want: "<nil>"},
		{name: "private literal", options: WebhookOptions{URL: "http://[::1]:80/", Secret: testSecret}, want: "webhook: URL: the address is not a public one"},
		{name: "unreadable", options: WebhookOptions{URL: "http://sesame\x7f", Secret: testSecret}, want: "webhook: URL: cannot be read"},
		{name: "scheme", options: WebhookOptions{URL: "ftp://shop.example", Secret: testSecret}, want: "webhook: URL: must begin with http:// or https://"},
		{name: "no host", options: WebhookOptions{URL: "https:///hook", Secret: testSecret}, want: "webhook: URL: has no host"},
		{name: "user info", options: WebhookOptions{URL: "https://a:sesame@shop.example", Secret: testSecret}, want: "webhook: URL: user info is not allowed"},
		{name: "fragment", options: WebhookOptions{URL: good + "#top", Secret: testSecret}, want: "webhook: URL: a fragment is not allowed"},
		{name: "no secret", options: WebhookOptions{URL: good}, want: "webhook: secret: must have at least 24 bytes"},
		{name: "short secret", options: WebhookOptions{URL: good, Secret: "whsec_c2VzYW1l"}, want: "webhook: secret: must have at least 24 bytes"},
		{name: "broken base64", options: WebhookOptions{URL: good, Secret: "whsec_" + strings.Repeat("!", 40)}, want: "webhook: secret: what follows whsec_ must be base64"},
		{name: "both", options: WebhookOptions{}, want: "webhook: URL: must begin with http:// or https://\nsecret: must have at least 24 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w, err := NewWebhook(test.options)
			if diff := cmp.Diff(test.want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if (w == nil) != (err != nil) {
				t.Errorf("webhook %v with error %v", w, err)
			}
		})
	}
}

// TestPoolOverSockets joins the parts: a receiver that hangs takes the payment.* notices, the receipts go on,
// and the fence of each claim comes back with its result.
func TestPoolOverSockets(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() })
	w := newWebhook(t, WebhookOptions{URL: r.url, AllowPrivate: true})
	b := setup(t, Options{Webhook: w, SendTimeout: 3 * time.Second})
	for range 3 {
		b.queue.add(payment.NoticePaid, paid("order-1"))
	}
	b.queue.add(payment.NoticeReceipt, paid("order-1"))
	if drained, err := b.pool.runOnce(t.Context()); drained || err != nil {
		t.Fatalf("drained %t, error %v", drained, err)
	}
	if err := b.pool.drain(); err != nil {
		t.Fatal(err)
	}
	receipt := b.queue.rows[3]
	if receipt.state != payment.NoticeDelivered {
		t.Errorf("receipt %s", receipt.state)
	}
	for _, row := range b.queue.rows[:3] {
		if row.state != payment.NoticeQueued || len(row.results) != 1 ||
			row.results[0].Error != "webhook: context deadline exceeded" {
			t.Errorf("webhook notice %s: %+v", row.state, row.results)
		}
		if !receipt.doneAt.Before(row.doneAt) {
			t.Error("the receipt waited for the receiver that hangs")
		}
	}
	if failed := b.count(toWebhook, "failed"); failed != 3 || b.queue.strays != 0 {
		t.Errorf("%v failed, %d results with a wrong fence", failed, b.queue.strays)
	}
}
