package payment

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Amount is money in the minor units of its currency: won for KRW, cents for USD.
type Amount int64

// Currency is an ISO 4217 code. Toss has sent words outside the standard, so what comes from
// the gateway is compared, never interpreted.
type Currency string

// KRW is the default currency.
const KRW Currency = "KRW"

// maxAmountDigits keeps every amount, in minor units, far from overflow.
const maxAmountDigits = 15

// Supported reports whether a checkout may ask for the currency (Toss: KRW, USD and JPY).
func (c Currency) Supported() bool { return c == KRW || c == "USD" || c == "JPY" }

// MinorDigits is the number of decimals of the currency: 0 for KRW and JPY, else 2.
func (c Currency) MinorDigits() int {
	if c == KRW || c == "JPY" {
		return 0
	}
	return 2
}

// ParseAmount reads the text of a JSON number exactly, without floating point: no sign, no exponent, at most
// 15 digits, no fraction finer than the currency's minor unit ("15000.0" is 15000 won).
func ParseAmount(text string, c Currency) (Amount, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	if !digits(whole) || (strings.Contains(text, ".") && !digits(fraction)) {
		return 0, errors.New("must be a plain number without sign or exponent")
	}
	fraction = strings.TrimRight(fraction, "0")
	minor := c.MinorDigits()
	if len(fraction) > minor {
		return 0, fmt.Errorf("has more decimals than %s allows (%d)", c, minor)
	}
	all := whole + fraction + strings.Repeat("0", minor-len(fraction))
	if len(strings.TrimLeft(all, "0")) > maxAmountDigits {
		return 0, fmt.Errorf("has more than %d digits", maxAmountDigits)
	}
	n, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return 0, errors.New("is out of range")
	}
	return Amount(n), nil
}

// Text is the amount as a JSON number: an integer for KRW, two decimals for USD.
func (a Amount) Text(c Currency) string {
	minor := c.MinorDigits()
	s := strconv.FormatInt(int64(a), 10)
	if minor == 0 {
		return s
	}
	sign := ""
	if a < 0 {
		sign, s = "-", s[1:]
	}
	for len(s) <= minor {
		s = "0" + s
	}
	return sign + s[:len(s)-minor] + "." + s[len(s)-minor:]
}

func digits(s string) bool {
	if s == "" {
		return false
	}
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return true
}
