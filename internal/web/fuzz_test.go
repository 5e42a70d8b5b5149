package web

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

// FuzzParseObject: what encoding/json reads of an object, member by member, is what ParseObject splits it into, and what
// is no member of it, or twice, is a mistake.
func FuzzParseObject(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` { } `, `{"a":1}`, `{"a":"\"}\\","b":[{"c":"]"},[[]]],"d":{"e":{}}}`, `{"\u0061":true , "b" : null,"c":-1e3}`,
		`{"a":"\ud83d","":"\\"}`, "{\"a\"\t:\r\n\"x\"\n}", `{"a":1,"a":2}`, `{"a":{"b":"}","b":2},"c":""}`, `{"\u0061":1,"a":2}`, `{"a":1,"\u0062":2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := ParseObject(body, "a", "b", "")
		if err != nil {
			return
		}
		mistakes := sameMembers(t, body, o, "a", "b", "")
		if (mistakes > 0) != (o.Err() != nil) {
			t.Fatalf("%q has %d members too many, but is answered %v", body, mistakes, o.Err())
		}
		if value := o.members["a"]; len(value) > 0 && value[0] == '{' && mistakes == 0 {
			inner, _ := o.Object("a", "b", "")
			if mistakes := sameMembers(t, value, inner, "b", ""); (mistakes > 0) != (o.Err() != nil) {
				t.Fatalf("%q has %d members too many, but is answered %v", value, mistakes, o.Err())
			}
		}
		if value, ok := o.members["a"]; ok && value[0] == '"' {
			var text string
			if got, ok := payment.Text(value); json.Unmarshal(value, &text) != nil || !ok || got != text {
				t.Fatalf("%s is %q, want %q", value, got, text)
			}
		}
	})
}

// sameMembers compares o with what encoding/json reads of the object in body, and counts the members that are not known
// or there twice.
func sameMembers(t *testing.T, body []byte, o *Object, known ...string) (mistakes int) {
	t.Helper()
	want, got := map[string]string{}, map[string]string{}
	dec := json.NewDecoder(bytes.NewReader(body))
	_, _ = dec.Token()
	for dec.More() {
		name, _ := dec.Token()
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			t.Fatalf("accepted %q: %v", body, err)
		}
		if _, again := want[name.(string)]; !again && slices.Contains(known, name.(string)) {
			want[name.(string)] = string(value)
		} else {
			mistakes++
		}
	}
	for name, value := range o.members {
		got[name] = string(value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%q (-encoding/json +ParseObject):\n%s", body, diff)
	}
	return mistakes
}
