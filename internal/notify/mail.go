package notify

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/mail"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"
	"github.com/wneessen/go-mail/smtp"

	"paymentd/internal/payment"
)

const (
	// quitWithin bounds the farewell after a mail was accepted.
	quitWithin = time.Second
	// mostHeard is how many bytes a server may say in one session, TLS included.
	mostHeard = 1 << 20
)

var (
	errPlainText   = errors.New("user and password are not sent over a connection without TLS")
	errEndless     = errors.New("the server talks without end")
	errNoMechanism = errors.New("the server offers neither AUTH PLAIN nor AUTH LOGIN")
)

// MailOptions says how receipts go out.
type MailOptions struct {
	// URL is smtp://[user:password@]host[:port] (port 587; STARTTLS when the server offers it) or smtps://… (port 465;
	// TLS from the start). It may hold a password and is never logged.
	URL string
	// From is one address, with the shop's name before it if buyers are to see one: 상점 <shop@example.com>.
	From string
}

// Mail is a Sender of receipts by SMTP. Every try sends the same message: its Message-ID is made of the notice's id.
// User and password go over TLS alone, except to this machine; certificates are checked.
type Mail struct {
	host, address  string
	tls            *tls.Config
	fromTheStart   bool
	user, password string
	from           mail.Address
}

var _ Sender = (*Mail)(nil)

// NewMail checks the options, all mistakes at once; its errors repeat neither the URL nor the address.
func NewMail(o MailOptions) (*Mail, error) {
	m := &Mail{}
	if err := errors.Join(m.readURL(o.URL), m.readFrom(o.From)); err != nil {
		return nil, fmt.Errorf("mail: %w", err)
	}
	return m, nil
}

func (m *Mail) readURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return errors.New("URL: cannot be read; a user or password with special characters is written with %XX")
	case u.Scheme != "smtp" && u.Scheme != "smtps":
		return errors.New("URL: must begin with smtp:// or smtps://")
	case u.Hostname() == "":
		return errors.New("URL: has no host")
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return errors.New("URL: nothing may follow the port")
	}
	m.fromTheStart = u.Scheme == "smtps"
	port := "587"
	if m.fromTheStart {
		port = "465"
	}
	m.host = u.Hostname()
	m.address = net.JoinHostPort(m.host, cmp.Or(u.Port(), port))
	m.tls = &tls.Config{ServerName: m.host, MinVersion: tls.VersionTLS12}
	m.user = u.User.Username()
	m.password, _ = u.User.Password()
	if u.User != nil && (m.user == "" || m.password == "") {
		return errors.New("URL: user and password go together")
	}
	return nil
}

func (m *Mail) readFrom(text string) error {
	from, err := mail.ParseAddress(text)
	if err != nil || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }) ||
		strings.ContainsFunc(from.Address, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New(`from: must be one address such as shop@example.com or 상점 <shop@example.com>`)
	}
	m.from = *from
	return nil
}

// Send hands one receipt to the mail server. What the server has accepted is a success, whatever follows.
func (m *Mail) Send(ctx context.Context, n payment.Notice) error {
	message, err := m.receipt(n)
	if err != nil {
		return fmt.Errorf("mail: %w", err)
	}
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", m.address)
	if err != nil {
		return mailError(ctx, err)
	}
	defer raw.Close()
	// A server that hangs or trickles is left at the end of ctx, whatever deadlines the client sets meanwhile.
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	client, err := m.client(&patientConn{Conn: raw, left: mostHeard})
	if err != nil {
		return mailError(ctx, err)
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return mailError(ctx, err)
	}
	err = client.SendWithSMTPClient(session, message)
	if !message.IsDelivered() {
		return mailError(ctx, err)
	}
	farewell := time.AfterFunc(quitWithin, func() { _ = raw.Close() })
	defer farewell.Stop()
	_ = client.CloseWithSMTPClient(session)
	return nil
}

// patientConn ends a session in which the server says too much: the client keeps a line whole, however long it is.
type patientConn struct {
	net.Conn
	left int
}

// Read fails once the server has said all that it may.
func (c *patientConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errEndless
	}
	n, err := c.Conn.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// client speaks SMTP over one connection.
func (m *Mail) client(raw net.Conn) (*gomail.Client, error) {
	conn := raw
	if m.fromTheStart {
		conn = tls.Client(raw, m.tls)
	}
	options := []gomail.Option{
		gomail.WithTLSConfig(m.tls), gomail.WithTLSPolicy(gomail.TLSOpportunistic), gomail.WithTimeout(sendWithin),
		gomail.WithDialContextFunc(func(context.Context, string, string) (net.Conn, error) { return conn, nil }),
		gomail.WithoutNoop(),
	}
	if m.fromTheStart {
		options = append(options, gomail.WithSSL())
	}
	if m.user != "" {
		options = append(options, gomail.WithSMTPAuthCustom(&login{
			user: m.user, password: m.password, loopback: loopback(m.host),
		}))
	}
	return gomail.NewClient(m.host, options...)
}

// login is AUTH PLAIN, or LOGIN where the server has only that.
type login struct {
	smtp.Auth
	user, password string
	loopback       bool
}

// Start refuses to show the password to whoever listens on the line.
func (l *login) Start(server *smtp.ServerInfo) (proto string, toServer []byte, err error) {
	switch {
	case !server.TLS && !l.loopback:
		return "", nil, errPlainText
	case slices.Contains(server.Auth, "PLAIN"):
		l.Auth = smtp.PlainAuth("", l.user, l.password, server.Name, true)
	case slices.Contains(server.Auth, "LOGIN"):
		l.Auth = smtp.LoginAuth(l.user, l.password, server.Name, true)
	default:
		return "", nil, errNoMechanism
	}
	return l.Auth.Start(server)
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// mailError says what went wrong without the server's own words, which may repeat an address.
func mailError(ctx context.Context, err error) error {
	at := ""
	sent, ok := errors.AsType[*gomail.SendError](err)
	if ok {
		at = ", " + sent.Reason.String()
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("mail: %w%s", ctx.Err(), at)
	case ok && sent.ErrorCode() > 0:
		return fmt.Errorf("mail: status %s%s", strings.TrimSpace(fmt.Sprintf("%d %s", sent.ErrorCode(), sent.EnhancedStatusCode())), at)
	case ok:
		return errors.New("mail: the connection broke" + at)
	}
	return fmt.Errorf("mail: %s", beforeTheMail(err))
}

// beforeTheMail words an error of the connection, of TLS and of the login.
func beforeTheMail(err error) string {
	if refused, ok := errors.AsType[*textproto.Error](err); ok {
		return fmt.Sprintf("status %d before the mail: the server or the login refused", refused.Code)
	}
	for _, known := range []error{errPlainText, errNoMechanism, errEndless} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return certificate.Error()
	}
	if network, ok := errors.AsType[*net.OpError](err); ok {
		return network.Error()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the server hung up before the mail"
	}
	return fmt.Sprintf("the server does not speak SMTP as expected (%T)", err)
}
