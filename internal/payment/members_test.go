package payment_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

type member struct{ Name, Value string }

func membersOf(text []byte) (all []member, ok bool) {
	ok = payment.Members(text, func(name, value []byte) { all = append(all, member{string(name), string(value)}) })
	return all, ok
}

// decodedMembers are the members as encoding/json reads them.
func decodedMembers(t *testing.T, text []byte) (all []member) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	_, _ = dec.Token()
	for dec.More() {
		name, _ := dec.Token()
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		all = append(all, member{name.(string), string(value)})
	}
	return all
}

func sameAsDecoded(t *testing.T, text []byte) {
	t.Helper()
	got, ok := membersOf(text)
	if want := json.Valid(text) && bytes.TrimLeft(text, " \t\r\n")[0] == '{'; ok != want {
		t.Fatalf("%.200q is an object: %t, want %t", text, ok, want)
	}
	if !ok {
		return
	}
	if diff := cmp.Diff(decodedMembers(t, text), got); diff != "" {
		t.Fatalf("%q (-encoding/json +Members):\n%s", text, diff)
	}
	for _, m := range got {
		var want string
		isText := m.Value[0] == '"'
		if isText {
			if err := json.Unmarshal([]byte(m.Value), &want); err != nil {
				t.Fatal(err)
			}
		}
		if text, ok := payment.Text([]byte(m.Value)); text != want || ok != isText {
			t.Fatalf("%s reads as %q, %t, want %q, %t", m.Value, text, ok, want, isText)
		}
	}
}

// odd are texts on both sides of the border of JSON, each also tried as a member.
func odd() []string {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	return []string{
		``, ` `, `{}`, ` { } `, `{`, `}`, `{}}`, `{}{}`, `{,}`, `[`, `]`, `[]`, `[ ]`, `[,]`, `[1,]`, `[,1]`, `[1 2]`, `[1,2 , 3]`, `[[],{}]`, `[[}`, `{]`,
		`[{"a":[{}]},{}]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`, `{"a" : 1 , "b":2}`, `{"a":{"b":{"c":[]}},"d":""}`, `{a:1}`, `{1:1}`, `{"a":1,"a":2}`,
		`{"\u0061":1,"a":2}`, "{\"a\"\t:\r\n\"x\"\n}", "\ufeff{}", "{\"a\":1}\x00", `{"a":1} x`, `{"a":[1}`, `{"a":{"b":2]}`, `{"a":[1,{"b":"]}"}]}`,
		`"`, `""`, `"a`, `"\`, `"\"`, `"\""`, `"\\"`, `"\u"`, `"\u12"`, `"\u123g"`, `"\uABcd"`, `"\u0000"`, `"\ud83d"`, `"\ud83d\ude00"`, `"\x"`, `"\b\f\n\r\t\/"`,
		"\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\xff\"", "\"\xed\xa0\x80\"", "\"\xff\\n\xc3\"", "\"a\nb\"", `"한글"`,
		`0`, `-0`, `-`, `+1`, `01`, `-01`, `1.`, `.5`, `1.5`, `1.5.5`, `1e`, `1e+`, `1e5`, `1E-05`, `1e5.`, `0e0`, `0x1`, `1_0`, `--1`, `1-1`, `NaN`,
		`true`, `tru`, `truex`, `True`, `false`, `fals`, `null`, `nul`, `nulll`, `nan`, `t`, `'a'`, `/* */1`,
		nested(9999), nested(10000), strings.Repeat(`{"a":`, 9998) + "1" + strings.Repeat("}", 9998), strings.Repeat("[", 20000),
	}
}

func TestMembersAreThoseOfEncodingJSON(t *testing.T) {
	t.Parallel()
	for _, text := range odd() {
		sameAsDecoded(t, []byte(text))
		sameAsDecoded(t, []byte(`{"a":`+text+`}`))
		sameAsDecoded(t, []byte(`{"a": `+text+` ,"b":[`+text+`]}`))
		sameAsDecoded(t, []byte(`{`+text+`:1}`))
	}
}

func FuzzMembers(f *testing.F) {
	for _, text := range odd() {
		if len(text) < 1000 {
			f.Add([]byte(text))
			f.Add([]byte(`{"a":` + text + `,"b":[` + text + `]}`))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) { sameAsDecoded(t, text) })
}

// TestAppendText: a string is written as encoding/json writes it.
func TestAppendText(t *testing.T) {
	t.Parallel()
	texts := []string{"", "tgen_20260301090000AbC12", "카드", "\xff", "a\xc3", "\u2028", "\ufeff", "😀"}
	for c := range rune(256) {
		texts = append(texts, string(c), string([]byte{byte(c)}), "a"+string(c)+"b")
	}
	for _, text := range texts {
		want, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := payment.AppendText([]byte("x"), text); string(got) != "x"+string(want) {
			t.Errorf("%q is written as %s, want x%s", text, got, want)
		}
	}
}

func BenchmarkMembers(b *testing.B) {
	text := []byte(`{"paymentKey":"tgen_20260301090000AbC12","orderId":"order-20260301-0001","amount":15000,"card":{"number":"1234****","a":[1,2,null]},"metadata":null}`)
	b.ReportAllocs()
	for b.Loop() {
		payment.Members(text, func(_, _ []byte) {})
	}
}
