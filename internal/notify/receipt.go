package notify

import (
	"errors"
	"fmt"
	htmltemplate "html/template"
	"net/url"
	"strings"
	texttemplate "text/template"
	"time"

	gomail "github.com/wneessen/go-mail"

	"paymentd/internal/payment"
)

// koreanTime is the time zone of the buyers; Korea has no summer time.
var koreanTime = time.FixedZone("KST", 9*60*60)

// line is one row of a receipt.
type line struct{ Name, Value string }

// receiptView is what the templates show.
type receiptView struct {
	Subject string
	Lines   []line
	Link    string
}

var receiptText = texttemplate.Must(texttemplate.New("text").Parse(`{{.Subject}}

{{range .Lines}}{{.Name}}: {{.Value}}
{{end}}{{with .Link}}영수증: {{.}}
{{end}}
이 메일은 결제가 완료되어 자동으로 발송되었습니다.
`))

var receiptHTML = htmltemplate.Must(htmltemplate.New("html").Parse(`<!DOCTYPE html>
<html lang="ko">
<head><meta charset="utf-8"><title>{{.Subject}}</title></head>
<body style="font-family:sans-serif;color:#222">
<p style="font-size:1.2em">{{.Subject}}</p>
<table cellpadding="4">
{{range .Lines}}<tr><th align="left" style="color:#666;font-weight:normal">{{.Name}}</th><td>{{.Value}}</td></tr>
{{end}}</table>
{{with .Link}}<p><a href="{{.}}">영수증 보기</a></p>
{{end}}<p style="color:#666;font-size:0.9em">이 메일은 결제가 완료되어 자동으로 발송되었습니다.</p>
</body>
</html>
`))

// receipt makes the mail of a notice, the same in every try as long as the payment stays as it is.
func (m *Mail) receipt(n payment.Notice) (*gomail.Msg, error) {
	// Base64 holds no hyphen, so the boundary cannot occur in a part.
	message := gomail.NewMsg(gomail.WithEncoding(gomail.EncodingB64), gomail.WithNoDefaultUserAgent(), gomail.WithBoundary("part-"+n.ID))
	if message.To(n.Payment.ReceiptEmail) != nil {
		return nil, errors.New("the buyer's address cannot be used")
	}
	message.FromMailAddress(&m.from)
	_, domain, _ := strings.Cut(m.from.Address, "@")
	message.SetMessageIDWithValue(n.ID + "@" + domain)
	message.SetDateWithValue(n.CreatedAt.In(koreanTime))
	message.SetGenHeader("Auto-Submitted", "auto-generated")
	view := m.view(n)
	message.Subject(view.Subject)
	var text, html strings.Builder
	if err := errors.Join(receiptText.Execute(&text, view), receiptHTML.Execute(&html, view)); err != nil {
		return nil, fmt.Errorf("receipt: %w", err)
	}
	message.SetBodyString(gomail.TypeTextPlain, mailLines(text.String()))
	message.AddAlternativeString(gomail.TypeTextHTML, mailLines(html.String()))
	return message, nil
}

// mailLines ends lines as mail does: base64 keeps what it is given (RFC 2045, section 6.8).
func mailLines(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func (m *Mail) view(n payment.Notice) receiptView {
	p := n.Payment
	v := receiptView{Subject: price(p.Amount, p.Currency) + " 결제가 완료되었습니다"}
	add := func(name, value string) {
		if value = oneLine(value); value != "" {
			v.Lines = append(v.Lines, line{name, value})
		}
	}
	if shop := oneLine(m.from.Name); shop != "" {
		v.Subject = "[" + shop + "] " + v.Subject
		add("상점", shop)
	}
	paidAt := p.ApprovedAt
	if paidAt.IsZero() {
		paidAt = n.CreatedAt
	}
	add("결제 금액", price(p.Amount, p.Currency))
	add("결제 수단", p.Method)
	add("결제 일시", paidAt.In(koreanTime).Format("2006년 1월 2일 15:04:05")+" (한국 시간)")
	add("주문번호", p.OrderID)
	if p.CanceledAmount > 0 {
		add("취소 금액", price(p.CanceledAmount, p.Currency))
	}
	v.Link = httpsOnly(p.ReceiptURL)
	return v
}

// price is an amount as Koreans read it: 15,000원; other currencies by their code: 1,234.50 USD.
func price(a payment.Amount, c payment.Currency) string {
	whole, fraction, _ := strings.Cut(a.Text(c), ".")
	var b strings.Builder
	for i, digit := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	if fraction != "" {
		b.WriteString("." + fraction)
	}
	if c == payment.KRW {
		return b.String() + "원"
	}
	return b.String() + " " + string(c)
}

// oneLine keeps what others wrote from looking like more than one line.
func oneLine(s string) string { return strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ") }

// httpsOnly is the link if it is one that a buyer may be sent to.
func httpsOnly(link string) string {
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return ""
	}
	return u.String()
}
