package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"paymentd/loadtest/rig"
)

const mailPassword = "mail-password-0123456789"

// mailbox is a mail server with a login; the first refusals mails are put off with 451.
type mailbox struct {
	url      string
	mu       sync.Mutex
	refusals int
	tries    int
	mails    []string
}

func newMailbox(t *testing.T, refusals int) *mailbox {
	t.Helper()
	b := &mailbox{refusals: refusals}
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &letter{box: b}, nil }))
	server.AllowInsecureAuth = true
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	b.url = "smtp://shop:" + mailPassword + "@" + listener.Addr().String()
	return b
}

// takes puts off no more mails.
func (b *mailbox) takes() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refusals = b.tries
}

// count tells the tries and the mails taken.
func (b *mailbox) count() (tries, taken int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tries, len(b.mails)
}

// letter is one conversation.
type letter struct {
	box   *mailbox
	known bool
}

func (*letter) AuthMechanisms() []string { return []string{sasl.Plain} }

func (l *letter) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		l.known = user == "shop" && password == mailPassword
		return nil
	}), nil
}

func (*letter) Mail(string, *smtp.MailOptions) error { return nil }

func (l *letter) Rcpt(to string, _ *smtp.RcptOptions) error {
	l.box.mu.Lock()
	defer l.box.mu.Unlock()
	l.box.tries++
	if !l.known || to != "buyer@shop.example" {
		return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 7, 1}, Message: "not for " + to}
	}
	if l.box.tries <= l.box.refusals {
		return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 7, 1}, Message: "later, " + to}
	}
	return nil
}

func (l *letter) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	l.box.mu.Lock()
	defer l.box.mu.Unlock()
	l.box.mails = append(l.box.mails, string(raw))
	return err
}

func (*letter) Reset()        {}
func (*letter) Logout() error { return nil }

// sickShop is a webhook that fails while it is sick, and keeps everything that it was sent.
type sickShop struct {
	url  string
	mu   sync.Mutex
	sick bool
	got  []*http.Request
	body [][]byte
}

func newSickShop(t *testing.T, sick bool) *sickShop {
	t.Helper()
	s := &sickShop{sick: sick}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.got, s.body = append(s.got, r), append(s.body, body)
		if s.sick {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *sickShop) heals()   { s.mu.Lock(); defer s.mu.Unlock(); s.sick = false }
func (s *sickShop) sickens() { s.mu.Lock(); defer s.mu.Unlock(); s.sick = true }
func (s *sickShop) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

// notices runs paymentd notices beside the service.
func (w *world) notices(args ...string) (string, error) {
	w.t.Helper()
	var out bytes.Buffer
	err := run(w.t.Context(), append([]string{"notices"}, args...), []string{"PAYMENTD_DATABASE_URL=" + w.db.DSN, "USER=kim"}, &out)
	return out.String(), err
}

// TestReceiptByMail: the buyer gets one Korean mail though the mail server first puts it off, and the shop its webhook
// meanwhile.
func TestReceiptByMail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin, box, stood := time.Now(), newMailbox(t, math.MaxInt), rig.Standstill(t.Context())
	in := w.start("PAYMENTD_NOTIFY_SMTP_URL="+box.url, "PAYMENTD_NOTIFY_FROM=한빛상점 <shop@shop.example>")
	o := newOrder("mail")
	in.confirm(o).want(t, 200, "PAID")
	eventually(t, "the shop hears of it while the mail waits", func() bool {
		tries, taken := box.count()
		return len(w.hook.types(o)) == 1 && tries > 0 && taken == 0
	})
	box.takes()
	eventually(t, "the mail is taken and marked", func() bool {
		return w.count(`SELECT count(*) FROM notices WHERE state = 'delivered'`) == 2
	})
	tries, taken := box.count()
	if tries < 2 || taken < 1 || taken > tries {
		t.Fatalf("%d tries and %d mails, want two tries or more and a mail", tries, taken)
	}
	// Who cannot write down in time that a mail is sent sends it again.
	if longest := stood(begin, time.Now()); taken != 1 && longest < time.Second {
		t.Fatalf("%d mails of one receipt, want 1: the machine stood still for %s at most, which is no reason", taken, longest)
	}
	message, err := mail.ReadMessage(strings.NewReader(box.mails[0]))
	if err != nil {
		t.Fatal(err)
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(message.Header.Get("Subject"))
	if err != nil || subject != "[한빛상점] 15,000원 결제가 완료되었습니다" {
		t.Errorf("subject %q, %v", subject, err)
	}
	body, err := io.ReadAll(message.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, encoded, _ := strings.Cut(string(body), "\r\n\r\n")
	encoded, _, _ = strings.Cut(encoded, "\r\n--")
	text, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(strings.TrimSpace(encoded), "\r\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"결제 금액: 15,000원\r\n", "결제 수단: ", "(한국 시간)", "주문번호: " + o.id, "영수증: https://"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	id := ""
	if err := w.query(`SELECT id::text FROM notices WHERE kind = 'receipt'`, nil, &id); err != nil || message.Header.Get("Message-Id") != "<"+id+"@shop.example>" {
		t.Errorf("Message-ID %s, notice %s, %v", message.Header.Get("Message-Id"), id, err)
	}
	for series, want := range map[string]string{"failed": strconv.Itoa(tries - taken), "delivered": "1", "dead": "0"} {
		if got := in.metric(`paymentd_notice_attempts_total{result="` + series + `",sink="mail"}`); got != want {
			t.Errorf("%s %s, want %s", got, series, want)
		}
	}
	if strings.Contains(w.log.String(), mailPassword) || !strings.Contains(w.log.String(), "mail: status 451 4.7.1") {
		t.Error("the log must name the reason and not the password")
	}
}

// TestReplayOfADeadNotice: a webhook that is down for a day is told afterwards by command, with the same id and a new
// signature, and the incident closes.
func TestReplayOfADeadNotice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shop := newSickShop(t, true)
	in := w.start("PAYMENTD_NOTIFY_WEBHOOK_URL=" + shop.url)
	o := newOrder("replay")
	in.confirm(o).want(t, 200, "PAID")
	failed := func() bool {
		return w.count(`SELECT count(*) FROM notices WHERE kind = 'payment.paid' AND last_error = 'webhook: status 500'`) == 1
	}
	eventually(t, "the first try fails", failed)
	w.exec(`UPDATE notices SET created_at = created_at - interval '25 h', due_at = now() WHERE kind = 'payment.paid'`)
	eventually(t, "the notice dies", func() bool { return w.incidents(o, "dead_notice") == 1 })
	out, err := w.notices("list")
	if err != nil || !strings.Contains(out, o.id) || !strings.Contains(out, "webhook: status 500") || !strings.Contains(out, "1 notices") {
		t.Errorf("list: %v\n%s", err, out)
	}
	before := shop.count()
	shop.heals()
	if out, err = w.notices("replay", "--all-dead", "--dry-run"); err != nil || out != "1 of 1 dead notices would be replayed\n" {
		t.Errorf("dry run: %v\n%s", err, out)
	}
	if out, err = w.notices("replay", "--all-dead"); err != nil || out != "1 of 1 dead notices replayed\n" {
		t.Errorf("replay: %v\n%s", err, out)
	}
	eventually(t, "the notice is delivered", func() bool {
		return w.count(`SELECT count(*) FROM notices WHERE kind = 'payment.paid' AND state = 'delivered' AND attempts = 1`) == 1
	})
	if n := shop.count(); n != before+1 {
		t.Fatalf("%d requests after %d", n, before)
	}
	if n := w.count(`SELECT count(*) FROM incidents WHERE payment_key = $1 AND resolved_by = 'kim' AND note = 'replayed'`, o.key); n != 1 || w.incidents(o, "dead_notice") != 0 {
		t.Errorf("%d incidents closed by the replay", n)
	}
	first, last := shop.got[0].Header, shop.got[before].Header
	if first.Get("Webhook-Id") != last.Get("Webhook-Id") || first.Get("Webhook-Signature") == last.Get("Webhook-Signature") {
		t.Errorf("first %v, last %v: want the id alone to be the same", first, last)
	}
	oracle, err := standardwebhooks.NewWebhook(hookSecret)
	if err != nil {
		t.Fatal(err)
	}
	if err := oracle.Verify(shop.body[before], last); err != nil {
		t.Error(err)
	}
	var sent struct{ Timestamp time.Time }
	if err := json.Unmarshal(shop.body[before], &sent); err != nil || time.Since(sent.Timestamp) < 25*time.Hour {
		t.Errorf("the body's timestamp is %v (%v), want that of the event", sent.Timestamp, err)
	}
}

// TestNoticesCommand: what it says about ids it cannot replay, and its exit status.
func TestNoticesCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	in := w.start()
	o := newOrder("list")
	in.confirm(o).want(t, 200, "PAID")
	eventually(t, "both are delivered", func() bool {
		return w.count(`SELECT count(*) FROM notices WHERE state = 'delivered'`) == 2
	})
	var id string
	if err := w.query(`SELECT id::text FROM notices WHERE kind = 'payment.paid'`, nil, &id); err != nil {
		t.Fatal(err)
	}
	const unknown = "00000000-0000-4000-8000-000000000000"
	for _, tc := range []struct {
		name, args string
		want, err  string
	}{
		{"nothing dead", "list", "0 notices", ""},
		{"all of an order", "list --state all --order " + o.id, "2 notices", ""},
		{"as JSON", "list --state delivered --kind payment.paid --json", `"id":"` + id + `"`, ""},
		{"the first", "list --state all --limit 1", "the first 1;", ""},
		{"a bad state", "list --state lost", "", "--state must be"},
		{"a bad kind", "list --kind lost", "", "--kind must be"},
		{"no verb", "", "", "say list or replay"},
		{"another verb", "send", "", `unknown verb "send"`},
		{"nothing to replay", "replay", "", "give ids, or --all-dead"},
		{"both", "replay --all-dead " + id, "", "give ids, or --all-dead"},
		{"again all", "replay --all-dead --again", "", "--again goes with ids"},
		{"none dead", "replay --all-dead", "0 of 0 dead notices replayed", ""},
		{"delivered", "replay " + id, id + "  not replayed: it was delivered", "0 unknown, 1 refused"},
		{"unknown", "replay --dry-run nonsense " + unknown, unknown + "  unknown", "2 unknown, 0 refused"},
		{"a try of again", "replay " + id + " --again --dry-run", "1 of 1 notices would be replayed", ""},
		{"again", "replay --again " + id, id + "  was delivered", ""},
	} {
		out, err := w.notices(strings.Fields(tc.args)...)
		if !strings.Contains(out, tc.want) || (err != nil) != (tc.err != "") || !strings.Contains(fmt.Sprint(err), tc.err) {
			t.Errorf("%s: %v\n%s", tc.name, err, out)
		}
	}
	eventually(t, "the shop is told again", func() bool { return len(w.hook.types(o)) == 2 })
	out, err := w.notices("list", "--state", "all")
	if key := shape.FindString(out); err != nil || key != "" {
		t.Errorf("%v; the list shows %s", err, key)
	}
}

// TestNoticesHandedOver: a settle gives the notices for the log to its own process. One that dies with them leaves them to
// the next one, and one that is stopped in order delivers them first.
func TestNoticesHandedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "PAYMENTD_NOTIFY_WEBHOOK_URL=", "PAYMENTD_NOTIFY_WEBHOOK_SECRET=")
	const delivered = `SELECT count(*) FROM notices WHERE state = 'delivered'`
	pay := func(p *process, name string) {
		var buyers sync.WaitGroup
		for range 5 {
			buyers.Go(func() { p.confirm(newOrder(name)).want(t, 200, "PAID") })
		}
		buyers.Wait()
	}
	first := w.spawn()
	pay(first, "dies")
	first.kill()
	if n := w.count(`SELECT count(*) FROM notices WHERE attempts = 1 AND (state = 'delivered' OR due_at > now() + interval '10 s')`); n != 10 {
		t.Errorf("%d of 10 notices were under a lease", n)
	}
	second := w.spawn()
	w.exec(`UPDATE notices SET due_at = now() WHERE due_at IS NOT NULL`)
	eventually(t, "the next process delivers what the dead one had", func() bool { return w.count(delivered) == 10 })
	pay(second, "stops")
	second.signal(syscall.SIGTERM)
	if status := second.wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if n := w.count(delivered + ` AND attempts = 1`); w.count(delivered) != 20 || n < 10 {
		t.Errorf("%d of 20 delivered, %d of them at the first attempt", w.count(delivered), n)
	}
	logged := map[string]string{} // order and kind → id
	for line := range strings.Lines(w.log.String()) {
		var event struct {
			Msg, Notice, Kind string
			Order             string `json:"order_id"`
		}
		if json.Unmarshal([]byte(line), &event) != nil || event.Msg != "notice" {
			continue
		}
		name := event.Order + " " + event.Kind
		if id, again := logged[name]; again && id != event.Notice {
			t.Errorf("%s has two notices, %s and %s", name, id, event.Notice)
		}
		logged[name] = event.Notice
	}
	if len(logged) != 20 {
		t.Errorf("%d notices logged, want 20: %v", len(logged), logged)
	}
	w.ledgerHolds()
}
