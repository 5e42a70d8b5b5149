package httpapi

import (
	"net/mail"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

const (
	maxMemberID = 100
	maxEmail    = 254
)

var saneDomain = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)+[A-Za-z0-9][A-Za-z0-9-]*[A-Za-z0-9]$`)

// isOrderID reports whether s can be an order: 6 to 64 letters, digits and _.=-
func isOrderID(s string) bool {
	return len(s) >= 6 && len(s) <= 64 && !strings.ContainsFunc(s, func(c rune) bool {
		return (c < 'A' || 'Z' < c) && (c < 'a' || 'z' < c) && (c < '0' || '9' < c) && !strings.ContainsRune("_.=-", c)
	})
}

// isPaymentKey reports whether s can be a key of Toss: 1 to 200 printable ASCII characters without spaces.
func isPaymentKey(s string) bool {
	return s != "" && len(s) <= 200 && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// orderMembers are the members that a confirm may have.
func orderMembers() []string {
	return []string{"paymentKey", "orderId", "amount", "currency", "memberId", "receiptEmail"}
}

// parseOrder reads the body of a confirm and reports everything that is wrong with it at once.
func parseOrder(o *web.Object) (payment.Order, error) {
	o.Require("paymentKey", "orderId", "amount")
	order := payment.Order{Currency: payment.KRW}
	text := func(name string, check func(string) string) string {
		value, ok := o.Text(name)
		if ok {
			if why := check(value); why != "" {
				o.Refuse(name, why)
			}
		}
		return value
	}
	order.PaymentKey = text("paymentKey", checkPaymentKey)
	order.OrderID = text("orderId", checkOrderID)
	if currency := text("currency", checkCurrency); currency != "" {
		order.Currency = payment.Currency(currency)
	}
	if number, ok := o.Number("amount"); ok {
		amount, why := parseAmount(number, order.Currency)
		if why != "" {
			o.Refuse("amount", why)
		}
		order.Amount = amount
	}
	order.MemberID = text("memberId", checkMemberID)
	order.ReceiptEmail = text("receiptEmail", checkEmail)
	if err := o.Err(); err != nil {
		return payment.Order{}, err
	}
	return order, nil
}

func checkPaymentKey(s string) string {
	if !isPaymentKey(s) {
		return "must be 1 to 200 printable ASCII characters without spaces"
	}
	return ""
}

func checkOrderID(s string) string {
	if !isOrderID(s) {
		return "must be 6 to 64 letters, digits or _ . = -"
	}
	return ""
}

func checkCurrency(s string) string {
	if !payment.Currency(s).Supported() {
		return "must be KRW, USD or JPY"
	}
	return ""
}

// parseAmount checks what it can even if the currency is refused.
func parseAmount(text string, c payment.Currency) (payment.Amount, string) {
	if !c.Supported() {
		c = "USD"
	}
	amount, err := payment.ParseAmount(text, c)
	switch {
	case err != nil:
		return 0, err.Error()
	case amount <= 0:
		return 0, "must be more than 0"
	}
	return amount, ""
}

func checkMemberID(s string) string {
	if n := utf8.RuneCountInString(s); n < 1 || n > maxMemberID {
		return "must have 1 to 100 characters"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "must be printable"
	}
	return ""
}

// checkEmail takes one bare address: no display name, no list, nothing that could end a mail header.
func checkEmail(s string) string {
	const why = "must be one plain e-mail address"
	if len(s) > maxEmail {
		return "must have at most 254 characters"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return why
	}
	address, err := mail.ParseAddress(s)
	if err != nil || address.Name != "" || address.Address != s {
		return why
	}
	if _, domain, _ := strings.Cut(s, "@"); !saneDomain.MatchString(domain) {
		return why
	}
	return ""
}
