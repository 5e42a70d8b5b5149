package pg

import (
	"regexp"
	"strings"
	"testing"
)

func TestShapes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		is   func(string) bool
		want *regexp.Regexp
	}{
		{"code", isCode, regexp.MustCompile(`^[A-Z0-9_]{1,64}$`)},
		{"trace id", isTraceID, regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,64}$`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			texts := []string{"", "A\n", "A\xff", "AÀ", "\u212a", "Ａ"}
			for c := range rune(256) {
				texts = append(texts, string(c), string([]byte{byte(c)}), "A"+string(c)+"9")
			}
			for n := range 70 {
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
