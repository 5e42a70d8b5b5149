package httpapi

import (
	"regexp"
	"strings"
	"testing"
)

func TestShapesOfNames(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		is   func(string) bool
		want *regexp.Regexp
	}{
		{"orderId", isOrderID, regexp.MustCompile(`^[A-Za-z0-9_.=-]{6,64}$`)},
		{"paymentKey", isPaymentKey, regexp.MustCompile(`^[\x21-\x7e]{1,200}$`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			texts := []string{"", "A\n", "A\xff", "AÀ", "\u212a", "Ａ"}
			for c := range rune(256) {
				texts = append(texts, string(c), string([]byte{byte(c)}), "order"+string(c)+"9")
			}
			for n := range 210 {
				texts = append(texts, strings.Repeat("A", n), strings.Repeat("é", n))
			}
			for _, text := range texts {
				if got, want := tt.is(text), tt.want.MatchString(text); got != want {
					t.Errorf("%q: %t, want %t", text, got, want)
				}
			}
		})
	}
}
