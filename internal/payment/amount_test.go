package payment_test

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"paymentd/internal/payment"
)

func TestTrap27_ParseAmount(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		currency   payment.Currency
		want       payment.Amount
		refused    string
	}{
		{"won", "15000", payment.KRW, 15000, ""},
		{"won with .0", "15000.0", payment.KRW, 15000, ""},
		{"won with many zeros", "15000." + strings.Repeat("0", 400), payment.KRW, 15000, ""},
		{"half a won", "15000.5", payment.KRW, 0, "more decimals"},
		{"yen", "15000", "JPY", 15000, ""},
		{"a fraction of a yen", "1.01", "JPY", 0, "more decimals"},
		{"dollars", "10", "USD", 1000, ""},
		{"dollars and cents", "10.05", "USD", 1005, ""},
		{"ten cents", "0.1", "USD", 10, ""},
		{"a tenth of a cent", "10.001", "USD", 0, "more decimals"},
		{"trailing zeros of a cent", "10.010", "USD", 1001, ""},
		{"a currency outside the standard", "1.5", "XYZ", 150, ""},
		{"nothing", "0", payment.KRW, 0, ""},
		{"more than 32 bits", "50000000000", payment.KRW, 50_000_000_000, ""},
		{"15 digits", "999999999999999", payment.KRW, 999_999_999_999_999, ""},
		{"16 digits", "1000000000000000", payment.KRW, 0, "more than 15 digits"},
		{"15 digits of cents", "9999999999999.99", "USD", 999_999_999_999_999, ""},
		{"16 digits of cents", "10000000000000.00", "USD", 0, "more than 15 digits"},
		{"out of every range", strings.Repeat("9", 400), payment.KRW, 0, "more than 15 digits"},
		{"float trap", "0.29", "USD", 29, ""},
		{"empty", "", payment.KRW, 0, "plain number"},
		{"point alone", ".", payment.KRW, 0, "plain number"},
		{"no digit before the point", ".5", "USD", 0, "plain number"},
		{"no digit after the point", "5.", "USD", 0, "plain number"},
		{"two points", "1.0.0", payment.KRW, 0, "plain number"},
		{"negative", "-5", payment.KRW, 0, "plain number"},
		{"plus", "+5", payment.KRW, 0, "plain number"},
		{"exponent", "1e3", payment.KRW, 0, "plain number"},
		{"exponent in the fraction", "1.5E1", "USD", 0, "plain number"},
		{"separator", "15,000", payment.KRW, 0, "plain number"},
		{"underscore", "15_000", payment.KRW, 0, "plain number"},
		{"space", " 1", payment.KRW, 0, "plain number"},
		{"full-width digits", "１５", payment.KRW, 0, "plain number"},
		{"words", "NaN", payment.KRW, 0, "plain number"},
		{"null", "null", payment.KRW, 0, "plain number"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, err := payment.ParseAmount(test.text, test.currency)
			switch {
			case test.refused == "" && err != nil:
				t.Fatal(err)
			case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
				t.Fatalf("error is %v, want one about %q", err, test.refused)
			case got != test.want:
				t.Errorf("amount is %d, want %d", got, test.want)
			}
		})
	}
}

func TestAmountText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		have     payment.Amount
		currency payment.Currency
		want     string
	}{
		{15000, payment.KRW, "15000"}, {0, payment.KRW, "0"}, {-5, payment.KRW, "-5"}, {7, "JPY", "7"},
		{0, "USD", "0.00"}, {5, "USD", "0.05"}, {50, "USD", "0.50"}, {1005, "USD", "10.05"}, {-5, "USD", "-0.05"},
		{-1005, "USD", "-10.05"}, {999_999_999_999_999, "USD", "9999999999999.99"},
	}
	for _, test := range tests {
		if got := test.have.Text(test.currency); got != test.want {
			t.Errorf("%d %s is %q, want %q", test.have, test.currency, got, test.want)
		}
	}
}

func TestAmountRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := payment.Amount(rapid.Int64Range(0, 999_999_999_999_999).Draw(t, "amount"))
		c := rapid.SampledFrom([]payment.Currency{payment.KRW, "JPY", "USD", "EUR"}).Draw(t, "currency")
		if got, err := payment.ParseAmount(want.Text(c), c); err != nil || got != want {
			t.Fatalf("%s comes back as %d, %v", want.Text(c), got, err)
		}
	})
}

func TestSupportedCurrencies(t *testing.T) {
	t.Parallel()
	for c, want := range map[payment.Currency]bool{payment.KRW: true, "USD": true, "JPY": true, "EUR": false, "krw": false, "": false} {
		if got := c.Supported(); got != want {
			t.Errorf("%q is supported: %v, want %v", c, got, want)
		}
	}
}

func FuzzParseAmount(f *testing.F) {
	for _, text := range []string{"15000", "15000.0", "0.29", "10.010", "1e3", "-1", "", ".", "00012", "999999999999999", "9999999999999.99"} {
		f.Add(text, "KRW")
		f.Add(text, "USD")
	}
	f.Fuzz(func(t *testing.T, text, currency string) {
		c := payment.Currency(currency)
		a, err := payment.ParseAmount(text, c)
		if err != nil {
			if a != 0 {
				t.Fatalf("refused, but %d", a)
			}
			return
		}
		if a < 0 || a > 999_999_999_999_999 {
			t.Fatalf("%q is %d", text, a)
		}
		shown := a.Text(c)
		if !json.Valid([]byte(shown)) {
			t.Fatalf("%q is shown as %q, which is no JSON number", text, shown)
		}
		if b, err := payment.ParseAmount(shown, c); err != nil || a != b {
			t.Fatalf("%q is %d, shown as %q, which is %d, %v", text, a, shown, b, err)
		}
		// The text itself says the same number: only zeros may have come or gone.
		if trim(text) != trim(shown) {
			t.Fatalf("%q is shown as %q", text, shown)
		}
	})
}

// trim takes the zeros away that do not count.
func trim(number string) string {
	number = strings.TrimLeft(number, "0")
	if strings.Contains(number, ".") {
		number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
	}
	return number
}
