package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"paymentd/internal/payment"
)

const (
	sendWithin = 10 * time.Second
	// minSecret is the least length of a secret in bytes (Standard Webhooks, "Signature scheme").
	minSecret = 24
	// maxResponse is how much of a response is read, so that its connection may be used again.
	maxResponse = 64 << 10
)

// WebhookOptions says where payment.* notices go.
type WebhookOptions struct {
	// URL is http or https, without user info; it may hold a token and is never logged.
	URL string
	// Secret is whsec_ followed by base64, or else the raw secret, of at least 24 bytes.
	Secret string
	// AllowPrivate lets the host be, or resolve to, a loopback, private or otherwise not public address.
	AllowPrivate bool
}

// Webhook is a Sender that signs by Standard Webhooks (standardwebhooks.com): the same id in every try, a new
// timestamp and signature in each. Only 2xx is a success; redirects are not followed.
type Webhook struct {
	url    string
	secret []byte
	client *http.Client
	now    func() time.Time
}

var _ Sender = (*Webhook)(nil)

// NewWebhook checks the options; its errors name the mistake without repeating the URL or the secret.
func NewWebhook(o WebhookOptions) (*Webhook, error) {
	urlErr := checkURL(o.URL, o.AllowPrivate)
	secret, secretErr := readSecret(o.Secret)
	if err := errors.Join(urlErr, secretErr); err != nil {
		return nil, fmt.Errorf("webhook: %w", err)
	}
	return &Webhook{
		url: o.URL, secret: secret, now: time.Now,
		client: &http.Client{
			Transport:     newTransport(o.AllowPrivate),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

func checkURL(text string, allowPrivate bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("URL: cannot be read")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("URL: must begin with http:// or https://")
	case u.Hostname() == "":
		return errors.New("URL: has no host")
	case u.User != nil:
		return errors.New("URL: user info is not allowed")
	case u.Fragment != "":
		return errors.New("URL: a fragment is not allowed")
	case !allowPrivate && !publicLiteral(u.Hostname()):
		return errors.New("URL: " + errPrivate.Error())
	}
	return nil
}

func readSecret(text string) ([]byte, error) {
	secret := []byte(text)
	if encoded, ok := strings.CutPrefix(text, "whsec_"); ok {
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, errors.New("secret: what follows whsec_ must be base64")
		}
		secret = decoded
	}
	if len(secret) < minSecret {
		return nil, fmt.Errorf("secret: must have at least %d bytes", minSecret)
	}
	return secret, nil
}

// webhookBody is what a receiver reads; data is the Payment JSON of the public API.
type webhookBody struct {
	Type      payment.NoticeKind `json:"type"`
	Timestamp time.Time          `json:"timestamp"`
	Sequence  int64              `json:"sequence"`
	Data      payment.Public     `json:"data"`
}

// Send posts the notice once.
func (w *Webhook) Send(ctx context.Context, n payment.Notice) error {
	body, err := json.Marshal(webhookBody{
		Type: n.Kind, Timestamp: n.CreatedAt.UTC(), Sequence: n.Sequence, Data: payment.View(n.Payment),
	})
	if err != nil {
		return fmt.Errorf("webhook body: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("webhook request: bad URL")
	}
	timestamp := strconv.FormatInt(w.now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "paymentd")
	req.Header.Set("Webhook-Id", n.ID)
	req.Header.Set("Webhook-Timestamp", timestamp)
	req.Header.Set("Webhook-Signature", w.sign(n.ID, timestamp, body))
	resp, err := w.client.Do(req)
	if err != nil {
		return fmt.Errorf("webhook: %w", withoutURL(err))
	}
	defer resp.Body.Close()
	// The status has decided; what cannot be read costs the connection alone.
	_, _ = io.CopyN(io.Discard, resp.Body, maxResponse)
	return statusError(resp.StatusCode)
}

// Close ends the idle connections; tries under way are not disturbed.
func (w *Webhook) Close() { w.client.CloseIdleConnections() }

func (w *Webhook) sign(id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, w.secret)
	fmt.Fprintf(mac, "%s.%s.%s", id, timestamp, body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

func statusError(status int) error {
	switch status / 100 {
	case 2:
		return nil
	case 3:
		return fmt.Errorf("webhook: status %d, redirects are not followed", status)
	default:
		return fmt.Errorf("webhook: status %d", status)
	}
}

// withoutURL drops the address that net/http puts in front: it may hold a token.
func withoutURL(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
