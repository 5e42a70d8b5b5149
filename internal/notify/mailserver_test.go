package notify

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

const (
	mailUser     = "shop-user"
	mailPassword = "open-sesame-0123"
)

// mailServer is a real SMTP server on a socket. Its hooks may refuse, wait or hang up; n counts the tries from 1.
type mailServer struct {
	address string
	roots   *x509.CertPool
	smtps   bool

	onRcpt func(n int) error
	onData func(n int, c *smtp.Conn) error
	// onGiven runs after a mail was taken and before the server says so.
	onGiven func(n int, c *smtp.Conn)

	mu    sync.Mutex
	tries int
	mails []takenMail
}

// takenMail is one mail that the server took.
type takenMail struct {
	from, to, raw, user string
	tls                 bool
}

// newMailServer starts a server; change may set its TLS and its hooks.
func newMailServer(t *testing.T, change func(s *mailServer, server *smtp.Server)) *mailServer {
	t.Helper()
	s := &mailServer{}
	server := smtp.NewServer(s)
	server.Domain, server.AllowInsecureAuth = "mail.test", true
	server.ErrorLog = quiet{}
	if change != nil {
		change(s, server)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	if s.smtps {
		listener = tls.NewListener(listener, server.TLSConfig)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return s
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
func (quiet) Println(...any)        {}

// startTLS lets the server offer STARTTLS with a certificate for 127.0.0.1 that nobody trusts but s.roots.
func startTLS(t *testing.T, s *mailServer, server *smtp.Server) {
	t.Helper()
	web := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	s.roots = x509.NewCertPool()
	s.roots.AddCert(web.Certificate())
	server.TLSConfig = &tls.Config{Certificates: web.TLS.Certificates}
}

// overTLS makes it a server for smtps.
func overTLS(t *testing.T, s *mailServer, server *smtp.Server) {
	t.Helper()
	startTLS(t, s, server)
	s.smtps = true
}

// taken lists the mails.
func (s *mailServer) taken() []takenMail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]takenMail(nil), s.mails...)
}

func (s *mailServer) try() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tries
}

// NewSession begins one conversation.
func (s *mailServer) NewSession(c *smtp.Conn) (smtp.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	return &session{server: s, conn: c}, nil
}

type session struct {
	server         *mailServer
	conn           *smtp.Conn
	user, from, to string
}

func (*session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if user != mailUser || password != mailPassword {
			return &smtp.SMTPError{Code: 535, EnhancedCode: smtp.EnhancedCode{5, 7, 8}, Message: "no " + password}
		}
		s.user = user
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.from = from
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = to
	if hook := s.server.onRcpt; hook != nil {
		return hook(s.server.try())
	}
	return nil
}

func (s *session) Data(r io.Reader) error {
	if hook := s.server.onData; hook != nil {
		if err := hook(s.server.try(), s.conn); err != nil {
			return err
		}
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, overTLS := s.conn.TLSConnectionState()
	s.server.mu.Lock()
	s.server.mails = append(s.server.mails, takenMail{from: s.from, to: s.to, raw: string(raw), user: s.user, tls: overTLS})
	n := s.server.tries
	s.server.mu.Unlock()
	if hook := s.server.onGiven; hook != nil {
		hook(n, s.conn)
	}
	return nil
}

func (*session) Reset()        {}
func (*session) Logout() error { return nil }

// hangUp ends the connection without a word.
func hangUp(c *smtp.Conn) error {
	_ = c.Conn().Close()
	return errors.New("gone")
}

func newMail(t *testing.T, s *mailServer, url string) *Mail {
	t.Helper()
	m, err := NewMail(MailOptions{URL: strings.ReplaceAll(url, "HOST", s.address), From: "한빛상점 <shop@shop.example>"})
	if err != nil {
		t.Fatal(err)
	}
	m.tls.RootCAs = s.roots
	return m
}

func read(t *testing.T, raw string) *mail.Message {
	t.Helper()
	message, err := mail.ReadMessage(strings.NewReader(raw))
	if err != nil {
		t.Fatalf("%v in\n%s", err, raw)
	}
	return message
}

// within is what a test gives a server that hangs.
const within = 3 * time.Second
