package payment

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Public is a payment as the public API and the webhook show it (design note §8, "Payment JSON"): fields in this
// order, null where unknown, amounts as exact JSON numbers, times in RFC 3339 UTC. Embed it to add fields.
type Public struct {
	OrderID        string                `json:"orderId"`
	PaymentKey     string                `json:"paymentKey"`
	Amount         json.Number           `json:"amount"`
	Currency       Currency              `json:"currency"`
	Status         Status                `json:"status"`
	Method         *string               `json:"method"`
	ApprovedAt     *time.Time            `json:"approvedAt"`
	ReceiptURL     *string               `json:"receiptUrl"`
	CanceledAmount json.Number           `json:"canceledAmount"`
	VirtualAccount *PublicVirtualAccount `json:"virtualAccount"`
	Failure        *PublicFailure        `json:"failure"`
	CreatedAt      *time.Time            `json:"createdAt"`
	UpdatedAt      *time.Time            `json:"updatedAt"`
}

// PublicVirtualAccount is a VirtualAccount inside Public.
type PublicVirtualAccount struct {
	BankCode      *string    `json:"bankCode"`
	AccountNumber *string    `json:"accountNumber"`
	CustomerName  *string    `json:"customerName"`
	DueDate       *time.Time `json:"dueDate"`
}

// PublicFailure is a Failure inside Public.
type PublicFailure struct {
	Code        FailureCode `json:"code"`
	GatewayCode *string     `json:"gatewayCode"`
	Message     *string     `json:"message"`
}

// View returns what the outside may see of p: neither memberId nor receiptEmail nor anything internal.
func View(p Payment) Public {
	v := Public{
		OrderID:        p.OrderID,
		PaymentKey:     p.PaymentKey,
		Amount:         json.Number(p.Amount.Text(p.Currency)),
		Currency:       p.Currency,
		Status:         p.Status,
		Method:         known(p.Method),
		ApprovedAt:     knownTime(p.ApprovedAt),
		ReceiptURL:     known(p.ReceiptURL),
		CanceledAmount: json.Number(p.CanceledAmount.Text(p.Currency)),
		CreatedAt:      knownTime(p.CreatedAt),
		UpdatedAt:      knownTime(p.UpdatedAt),
	}
	if a := p.VirtualAccount; a != nil {
		v.VirtualAccount = &PublicVirtualAccount{
			BankCode:      known(a.BankCode),
			AccountNumber: known(a.AccountNumber),
			CustomerName:  known(a.CustomerName),
			DueDate:       knownTime(a.DueDate),
		}
	}
	if f := p.Failure; f != nil {
		v.Failure = &PublicFailure{Code: f.Code, GatewayCode: known(f.GatewayCode), Message: known(f.Message)}
	}
	return v
}

func known(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func knownTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// Members calls f with every member of text, which is one JSON object: the name without its escapes, the value as it
// stands there, valid, both to be left as they are. It tells whether text is one JSON object; if not, what f was told means
// nothing. As with encoding/json invalid UTF-8 is no error; names, and Text, have U+FFFD for it.
func Members(text []byte, f func(name, value []byte)) (ok bool) {
	at := spaceEnd(text, 0)
	if !is(text, at, '{') {
		return false
	}
	if at = spaceEnd(text, at+1); is(text, at, '}') {
		return spaceEnd(text, at+1) == len(text)
	}
	for {
		name := at
		nameEnd := stringEnd(text, at)
		value := colonEnd(text, nameEnd)
		end := valueEnd(text, value)
		if end > len(text) {
			return false
		}
		f(unescaped(text[name:nameEnd]), text[value:end:end])
		switch at = spaceEnd(text, end); {
		case is(text, at, ','):
			at = spaceEnd(text, at+1)
		case is(text, at, '}'):
			return spaceEnd(text, at+1) == len(text)
		default:
			return false
		}
	}
}

// Text is the text of a valid JSON value, with U+FFFD in place of what is no Unicode; ok is false if it is no string.
func Text(value []byte) (text string, ok bool) {
	if value[0] != '"' {
		return "", false
	}
	return string(unescaped(value)), true
}

// AppendText appends text as a JSON string, as encoding/json writes it.
func AppendText(to []byte, text string) []byte {
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || '~' < c || strings.ContainsRune(`"\<>&`, c) }) {
		quoted, _ := json.Marshal(text) // a string always has one
		return append(to, quoted...)
	}
	return append(append(append(to, '"'), text...), '"')
}

// unescaped is the text of a valid JSON string, a part of it if it stands there plainly.
func unescaped(value []byte) []byte {
	if plain := value[1 : len(value)-1]; bytes.IndexByte(plain, '\\') < 0 && utf8.Valid(plain) {
		return plain
	}
	var text string
	_ = json.Unmarshal(value, &text) // it is valid
	return []byte(text)
}

const (
	// beyond is where a thing of JSON ends that is none: behind every text, so that nothing is found after it.
	beyond = math.MaxInt
	// maxNested is how deep a member's value may nest: encoding/json allows 10,000 with the object around it.
	maxNested = 9999
)

func is(text []byte, at int, c byte) bool { return at < len(text) && text[at] == c }

func spaceEnd(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t') {
		at++
	}
	return at
}

// colonEnd is where the value begins whose name ends at at.
func colonEnd(text []byte, at int) int {
	if at = spaceEnd(text, at); is(text, at, ':') {
		return spaceEnd(text, at+1)
	}
	return beyond
}

// valueEnd is where the JSON value ends that begins at at. It does not recurse: whoever sends it decides how deep it is.
func valueEnd(text []byte, at int) int {
	var room [16]byte
	open := room[:0] // what closes the objects and arrays around at
	for {
		if is(text, at, '{') || is(text, at, '[') {
			if len(open) == maxNested {
				return beyond
			}
			open = append(open, text[at]+2)
			at = spaceEnd(text, at+1)
			if !is(text, at, open[len(open)-1]) {
				at = itemStart(text, at, open)
				continue
			}
		} else {
			at = scalarEnd(text, at)
		}
		for {
			if len(open) == 0 {
				return at
			}
			if at = spaceEnd(text, at); !is(text, at, open[len(open)-1]) {
				break
			}
			at, open = at+1, open[:len(open)-1]
		}
		if !is(text, at, ',') {
			return beyond
		}
		at = itemStart(text, spaceEnd(text, at+1), open)
	}
}

// itemStart is where the value begins of the next item of what is open: in an object behind its name.
func itemStart(text []byte, at int, open []byte) int {
	if open[len(open)-1] == ']' {
		return at
	}
	return colonEnd(text, stringEnd(text, at))
}

func scalarEnd(text []byte, at int) int {
	if at >= len(text) {
		return beyond
	}
	switch c := text[at]; c {
	case '"':
		return stringEnd(text, at)
	case 't':
		return wordEnd(text, at, "true")
	case 'f':
		return wordEnd(text, at, "false")
	case 'n':
		return wordEnd(text, at, "null")
	default:
		return numberEnd(text, at)
	}
}

func wordEnd(text []byte, at int, word string) int {
	if end := at + len(word); end <= len(text) && string(text[at:end]) == word {
		return end
	}
	return beyond
}

func stringEnd(text []byte, at int) int {
	if !is(text, at, '"') {
		return beyond
	}
	for i := at + 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return beyond
		case c == '\\':
			if i = escapeEnd(text, i) - 1; i >= len(text) {
				return beyond
			}
		}
	}
	return beyond
}

func escapeEnd(text []byte, at int) int {
	if at+1 >= len(text) {
		return beyond
	}
	switch text[at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return at + 2
	case 'u':
		end := at + 6
		if end <= len(text) && len(bytes.Trim(text[at+2:end], "0123456789abcdefABCDEF")) == 0 {
			return end
		}
	}
	return beyond
}

func numberEnd(text []byte, at int) int {
	if is(text, at, '-') {
		at++
	}
	if is(text, at, '0') {
		at++
	} else {
		at = digitsEnd(text, at)
	}
	if is(text, at, '.') {
		at = digitsEnd(text, at+1)
	}
	if is(text, at, 'e') || is(text, at, 'E') {
		if at++; is(text, at, '+') || is(text, at, '-') {
			at++
		}
		at = digitsEnd(text, at)
	}
	return at
}

// digitsEnd is where at least one digit ends.
func digitsEnd(text []byte, at int) int {
	end := at
	for end < len(text) && '0' <= text[end] && text[end] <= '9' {
		end++
	}
	if end == at {
		return beyond
	}
	return end
}
