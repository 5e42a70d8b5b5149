package notify

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"mime/multipart"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

// receiptNotice is a receipt for 15,000 won, paid at nine in the evening in Seoul.
func receiptNotice() payment.Notice {
	p := paid("order-1")
	p.Method = "간편결제"
	p.ApprovedAt = time.Date(2026, 3, 1, 12, 0, 7, 0, time.UTC)
	p.ReceiptURL = "https://dashboard.tosspayments.com/receipt?id=a&b=c"
	return payment.Notice{
		ID: "6f1c2a34-0000-4000-8000-0123456789ab", Kind: payment.NoticeReceipt, Sequence: 4, Attempts: 1,
		CreatedAt: p.ApprovedAt.Add(time.Second), Now: p.ApprovedAt.Add(time.Minute), Payment: p,
	}
}

// parts decodes the two bodies of a mail.
func parts(t *testing.T, raw string) map[string]string {
	t.Helper()
	message := read(t, raw)
	kind, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/alternative" {
		t.Fatalf("content type %q: %v", kind, err)
	}
	out := map[string]string{}
	for r := multipart.NewReader(message.Body, params["boundary"]); ; {
		part, err := r.NextPart()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, part))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(body), "\r\n", "\n")
		if strings.Count(text, "\n") != strings.Count(string(body), "\r\n") {
			t.Error("a line does not end with CRLF")
		}
		out[part.Header.Get("Content-Type")] = text
	}
}

func TestMailIsAKoreanReceipt(t *testing.T) {
	t.Parallel()
	s := newMailServer(t, nil)
	if err := newMail(t, s, "smtp://HOST").Send(t.Context(), receiptNotice()); err != nil {
		t.Fatal(err)
	}
	mails := s.taken()
	if len(mails) != 1 || mails[0].from != "shop@shop.example" || mails[0].to != "someone@example.com" {
		t.Fatalf("took %+v", mails)
	}
	header := read(t, mails[0].raw).Header
	got := map[string]string{}
	for _, name := range []string{"From", "To", "Subject", "Date", "Message-Id", "Auto-Submitted"} {
		var err error
		if got[name], err = new(mime.WordDecoder).DecodeHeader(header.Get(name)); err != nil {
			t.Error(err)
		}
	}
	want := map[string]string{
		"From": "한빛상점 <shop@shop.example>", "To": "<someone@example.com>",
		"Subject": "[한빛상점] 15,000원 결제가 완료되었습니다", "Date": "Sun, 01 Mar 2026 21:00:08 +0900",
		"Message-Id": "<6f1c2a34-0000-4000-8000-0123456789ab@shop.example>", "Auto-Submitted": "auto-generated",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
	bodies := parts(t, mails[0].raw)
	if diff := cmp.Diff(`[한빛상점] 15,000원 결제가 완료되었습니다

상점: 한빛상점
결제 금액: 15,000원
결제 수단: 간편결제
결제 일시: 2026년 3월 1일 21:00:07 (한국 시간)
주문번호: order-1
영수증: https://dashboard.tosspayments.com/receipt?id=a&b=c

이 메일은 결제가 완료되어 자동으로 발송되었습니다.
`, bodies["text/plain; charset=UTF-8"]); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	for _, part := range []string{"15,000원", "간편결제", `href="https://dashboard.tosspayments.com/receipt?id=a&amp;b=c"`} {
		if !strings.Contains(bodies["text/html; charset=UTF-8"], part) {
			t.Errorf("the HTML lacks %q:\n%s", part, bodies["text/html; charset=UTF-8"])
		}
	}
	for _, foreign := range []string{"member-7", "key-order-1"} {
		if strings.Contains(mails[0].raw, foreign) || strings.Contains(fmt.Sprint(bodies), foreign) {
			t.Errorf("the mail tells %s", foreign)
		}
	}
}

// TestMailIsTheSameInEveryTry: a mail server or a mailbox may drop the second copy.
func TestMailIsTheSameInEveryTry(t *testing.T) {
	t.Parallel()
	s := newMailServer(t, nil)
	m := newMail(t, s, "smtp://HOST")
	for range 2 {
		if err := m.Send(t.Context(), receiptNotice()); err != nil {
			t.Fatal(err)
		}
	}
	mails := s.taken()
	if diff := cmp.Diff(mails[0].raw, mails[1].raw); diff != "" {
		t.Errorf("first and second try (-first +second):\n%s", diff)
	}
}

func TestMailAnswers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(s *mailServer, server *smtp.Server)
		// want are the results of one try after the other.
		want  []string
		taken int
	}{
		{
			name: "451, then taken", want: []string{"mail: status 451 4.7.1, sending SMTP RCPT TO command", "<nil>"}, taken: 1,
			change: func(s *mailServer, _ *smtp.Server) {
				s.onRcpt = func(n int) error {
					if n == 1 {
						return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 7, 1}, Message: "later, someone@example.com"}
					}
					return nil
				}
			},
		},
		{
			name: "550", want: []string{"mail: status 550 5.1.1, sending SMTP RCPT TO command"},
			change: func(s *mailServer, _ *smtp.Server) {
				s.onRcpt = func(int) error {
					return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "someone@example.com is unknown"}
				}
			},
		},
		{
			name: "552 to the text", want: []string{"mail: status 552 5.2.2, closing SMTP DATA writer"},
			change: func(s *mailServer, _ *smtp.Server) {
				s.onData = func(int, *smtp.Conn) error {
					return &smtp.SMTPError{Code: 552, EnhancedCode: smtp.EnhancedCode{5, 2, 2}, Message: "full: someone@example.com"}
				}
			},
		},
		{
			name: "hangs at the address", want: []string{"mail: context deadline exceeded, sending SMTP RCPT TO command"},
			change: func(s *mailServer, _ *smtp.Server) {
				s.onRcpt = func(int) error { <-t.Context().Done(); return nil }
			},
		},
		{
			name: "hangs after the text", want: []string{"mail: context deadline exceeded, closing SMTP DATA writer"}, taken: 1,
			change: func(s *mailServer, _ *smtp.Server) {
				s.onGiven = func(int, *smtp.Conn) { <-t.Context().Done() }
			},
		},
		{
			name: "hangs up in the text", want: []string{"mail: the connection broke, closing SMTP DATA writer"},
			change: func(s *mailServer, _ *smtp.Server) {
				s.onData = func(_ int, c *smtp.Conn) error { return hangUp(c) }
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newMailServer(t, test.change)
			m := newMail(t, s, "smtp://HOST")
			for i, want := range test.want {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if strings.Contains(want, "deadline") {
					cancel()
					ctx, cancel = context.WithTimeout(t.Context(), within)
				}
				err := m.Send(ctx, receiptNotice())
				cancel()
				if diff := cmp.Diff(want, fmt.Sprint(err)); diff != "" {
					t.Errorf("try %d (-want +got):\n%s", i+1, diff)
				}
			}
			if n := len(s.taken()); n != test.taken {
				t.Errorf("%d mails taken, want %d", n, test.taken)
			}
		})
	}
}

// raw is a server that says what it is told to and then nothing more.
func raw(t *testing.T, talk func(c net.Conn)) *mailServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			talk(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return &mailServer{address: listener.Addr().String()}
}

func TestMailRudeServers(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		talk func(c net.Conn)
		want string
	}{
		{name: "refuses at once", talk: func(c net.Conn) { fmt.Fprint(c, "554 go away\r\n") }, want: "mail: status 554 before the mail: the server or the login refused"},
		{name: "hangs up", talk: func(net.Conn) {}, want: "mail: the server hung up before the mail"},
		{name: "says nothing", talk: func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }, want: "mail: context deadline exceeded"},
		{name: "trickles", want: "mail: context deadline exceeded", talk: func(c net.Conn) {
			for _, err := fmt.Fprint(c, "220-a\r\n"); err == nil; _, err = fmt.Fprint(c, "220-a\r\n") {
				time.Sleep(10 * time.Millisecond)
			}
		}},
		{name: "talks without end", want: "mail: the server talks without end", talk: func(c net.Conn) {
			for line := strings.Repeat("a", 64<<10); ; {
				if _, err := fmt.Fprint(c, line); err != nil {
					return
				}
			}
		}},
		{name: "no SMTP", talk: func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 400 someone@example.com\r\n") }, want: "mail: the server does not speak SMTP as expected"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := newMail(t, raw(t, test.talk), "smtp://HOST")
			patience := time.Minute
			if strings.Contains(test.want, "deadline") {
				patience = within
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			start := time.Now()
			err := m.Send(ctx, receiptNotice())
			if !strings.HasPrefix(fmt.Sprint(err), test.want) || strings.Contains(fmt.Sprint(err), "someone@") {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	err = newMail(t, &mailServer{address: listener.Addr().String()}, "smtp://HOST").Send(t.Context(), receiptNotice())
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("closed port: %v", err)
	}
}

// TestMailTakenIsDelivered: a server that hangs up after its word has the mail; sending it again would be a second one.
func TestMailTakenIsDelivered(t *testing.T) {
	t.Parallel()
	s := raw(t, func(c net.Conn) {
		fmt.Fprint(c, "220 mail.test\r\n")
		text := false
		for lines := bufio.NewScanner(c); lines.Scan(); {
			switch line := lines.Text(); {
			case text && line == ".":
				fmt.Fprint(c, "250 taken\r\n")
				return
			case text:
			case line == "DATA":
				text = true
				fmt.Fprint(c, "354 go on\r\n")
			default:
				fmt.Fprint(c, "250 mail.test\r\n")
			}
		}
	})
	if err := newMail(t, s, "smtp://HOST").Send(t.Context(), receiptNotice()); err != nil {
		t.Error(err)
	}
}

func TestMailTLSAndLogin(t *testing.T) {
	t.Parallel()
	plain := func(*testing.T, *mailServer, *smtp.Server) {}
	login := mailUser + ":" + mailPassword + "@"
	tests := []struct {
		name   string
		offer  func(t *testing.T, s *mailServer, server *smtp.Server)
		url    string
		change func(m *Mail)
		want   string
		tls    bool
		user   string
	}{
		{name: "STARTTLS when offered", offer: startTLS, url: "smtp://HOST", want: "<nil>", tls: true},
		{name: "smtps", offer: overTLS, url: "smtps://HOST", want: "<nil>", tls: true},
		{name: "smtps with login", offer: overTLS, url: "smtps://" + login + "HOST", want: "<nil>", tls: true, user: mailUser},
		{name: "login after STARTTLS", offer: startTLS, url: "smtp://" + login + "HOST", want: "<nil>", tls: true, user: mailUser},
		{
			name: "STARTTLS, nobody trusts it", offer: startTLS, url: "smtp://" + login + "HOST", want: "certificate signed by unknown authority",
			change: func(m *Mail) { m.tls.RootCAs = nil },
		},
		{
			name: "smtps, nobody trusts it", offer: overTLS, url: "smtps://HOST", want: "certificate signed by unknown authority",
			change: func(m *Mail) { m.tls.RootCAs = nil },
		},
		{
			name: "another host's certificate", offer: startTLS, url: "smtp://HOST", want: "not other.test",
			change: func(m *Mail) { m.host, m.tls.ServerName = "other.test", "other.test" },
		},
		{name: "login in plain text on this machine", offer: plain, url: "smtp://" + login + "HOST", want: "<nil>", user: mailUser},
		{
			name: "login in plain text elsewhere", offer: plain, url: "smtp://" + login + "HOST", want: "mail: " + errPlainText.Error(),
			change: func(m *Mail) { m.host = "mail.test" },
		},
		{name: "wrong password", offer: startTLS, url: "smtp://" + mailUser + ":sesame@HOST", want: "mail: status 535 before the mail: the server or the login refused"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newMailServer(t, func(s *mailServer, server *smtp.Server) { test.offer(t, s, server) })
			m := newMail(t, s, test.url)
			if test.change != nil {
				test.change(m)
			}
			err := m.Send(t.Context(), receiptNotice())
			if got := fmt.Sprint(err); !strings.Contains(got, test.want) || strings.Contains(got, "sesame") {
				t.Errorf("error %s, want %s", got, test.want)
			}
			mails := s.taken()
			if (err == nil) != (len(mails) == 1) {
				t.Fatalf("%d mails taken, error %v", len(mails), err)
			}
			if err == nil && (mails[0].tls != test.tls || mails[0].user != test.user) {
				t.Errorf("TLS %v, user %q", mails[0].tls, mails[0].user)
			}
		})
	}
}

func TestNewMailRefuses(t *testing.T) {
	t.Parallel()
	const good, from = "smtp://user:sesame@mail.example:25", "shop@shop.example"
	const badFrom = "mail: from: must be one address such as shop@example.com or 상점 <shop@example.com>"
	tests := []struct{ name, url, from, want string }{
		{name: "good", url: good, from: from, want: "<nil>"},
		{name: "good, with name", url: "smtps://mail.example", from: `"Shop, Inc." <shop@shop.example>`, want: "<nil>"},
		{name: "unreadable", url: "smtp://user:sesame%@mail.example", from: from, want: "mail: URL: cannot be read; a user or password with special characters is written with %XX"},
		{name: "scheme", url: "https://user:sesame@mail.example", from: from, want: "mail: URL: must begin with smtp:// or smtps://"},
		{name: "no host", url: "smtp://user:sesame@", from: from, want: "mail: URL: has no host"},
		{name: "user alone", url: "smtp://user@mail.example", from: from, want: "mail: URL: user and password go together"},
		{name: "path", url: "smtp://mail.example/x", from: from, want: "mail: URL: nothing may follow the port"},
		{name: "no from", url: good, want: badFrom},
		{name: "two addresses", url: good, from: "a@shop.example, b@shop.example", want: badFrom},
		{name: "header injection", url: good, from: "Shop <shop@shop.example>\r\nBcc: all@shop.example", want: badFrom},
		{name: "line break in the name", url: good, from: "\"Shop\r\n X\" <shop@shop.example>", want: badFrom},
		{name: "address in Korean", url: good, from: "상점@shop.example", want: badFrom},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m, err := NewMail(MailOptions{URL: test.url, From: test.from})
			if diff := cmp.Diff(test.want, fmt.Sprint(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if (m == nil) != (err != nil) {
				t.Errorf("mail %v with error %v", m, err)
			}
		})
	}
}

// TestMailInjection: whatever others wrote stays inside its line, its tag and its link.
func TestMailInjection(t *testing.T) {
	t.Parallel()
	s := newMailServer(t, nil)
	m := newMail(t, s, "smtp://HOST")
	n := receiptNotice()
	n.Payment.Method = "카드\r\nBcc: all@shop.example\r\n\r\n<script>"
	n.Payment.ReceiptURL = "javascript:alert(1)"
	n.Payment.CanceledAmount = 5000
	if err := m.Send(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	mail := s.taken()[0]
	if header := read(t, mail.raw).Header; header.Get("Bcc") != "" || len(header["Subject"]) != 1 {
		t.Errorf("header %v", header)
	}
	bodies := parts(t, mail.raw)
	if text := bodies["text/plain; charset=UTF-8"]; !strings.Contains(text, "\n결제 수단: 카드 Bcc: all@shop.example <script>\n") ||
		!strings.Contains(text, "\n취소 금액: 5,000원\n") || strings.Contains(text, "javascript") {
		t.Errorf("text:\n%s", text)
	}
	if html := bodies["text/html; charset=UTF-8"]; strings.Contains(html, "<script>") || strings.Contains(html, "javascript") {
		t.Errorf("HTML:\n%s", html)
	}
	for _, address := range []string{"a@shop.example\r\nBcc: b@shop.example", "a@shop.example, b@shop.example", "nobody", "a@shop.example> RCPT TO:<b@shop.example"} {
		n.Payment.ReceiptEmail = address
		if err := m.Send(t.Context(), n); err == nil || strings.Contains(err.Error(), "shop.example") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if got := len(s.taken()); got != 1 {
		t.Errorf("%d mails", got)
	}
}

func TestPrice(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		amount   payment.Amount
		currency payment.Currency
		want     string
	}{
		{15000, payment.KRW, "15,000원"},
		{1, payment.KRW, "1원"},
		{999, payment.KRW, "999원"},
		{50_000_000_000, payment.KRW, "50,000,000,000원"},
		{123456, "USD", "1,234.56 USD"},
		{5, "USD", "0.05 USD"},
		{15000, "JPY", "15,000 JPY"},
	} {
		if got := price(test.amount, test.currency); got != test.want {
			t.Errorf("%d %s: %q, want %q", test.amount, test.currency, got, test.want)
		}
	}
}

// TestMailPool joins pool and mail: the mail goes out once though the server refuses first; a receipt for nobody goes
// to the log; a result that cannot be written brings the same mail again, by its Message-ID.
func TestMailPool(t *testing.T) {
	t.Parallel()
	s := newMailServer(t, func(s *mailServer, _ *smtp.Server) {
		s.onRcpt = func(n int) error {
			if n == 1 {
				return &smtp.SMTPError{Code: 451, EnhancedCode: smtp.EnhancedCode{4, 3, 0}, Message: "later"}
			}
			return nil
		}
	})
	b := setup(t, Options{Mail: newMail(t, s, "smtp://HOST"), Log: slog.New(slog.DiscardHandler)})
	p := paid("order-1")
	receipt := b.queue.add(payment.NoticeReceipt, p)
	p.ReceiptEmail = ""
	nobody := b.queue.add(payment.NoticeReceipt, p)
	once := func() {
		t.Helper()
		if _, err := b.pool.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.pool.drain(); err != nil {
			t.Fatal(err)
		}
	}
	once()
	if nobody.state != payment.NoticeDelivered || b.count(toLog, "delivered") != 1 {
		t.Errorf("the receipt for nobody is %s", nobody.state)
	}
	if receipt.state != payment.NoticeQueued || receipt.results[0].Error != "mail: status 451 4.3.0, sending SMTP RCPT TO command" {
		t.Fatalf("the receipt is %s: %+v", receipt.state, receipt.results)
	}
	// The worker dies between the send and its result: the fence moves, as when its lease runs out.
	receipt.dueAt = time.Now()
	s.onGiven = func(n int, _ *smtp.Conn) {
		if n == 2 {
			b.queue.mu.Lock()
			receipt.notice.Fence++
			receipt.dueAt = time.Now()
			b.queue.mu.Unlock()
		}
	}
	once()
	once()
	mails := s.taken()
	if receipt.state != payment.NoticeDelivered || len(mails) != 2 {
		t.Fatalf("the receipt is %s, %d mails", receipt.state, len(mails))
	}
	first, second := read(t, mails[0].raw).Header.Get("Message-Id"), read(t, mails[1].raw).Header.Get("Message-Id")
	if first != second || !strings.Contains(first, receipt.notice.ID) {
		t.Errorf("Message-ID %s, then %s", first, second)
	}
	once()
	if n := len(s.taken()); n != 2 {
		t.Errorf("%d mails: a delivered one was sent again", n)
	}
}
