package web

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseObject: what encoding/json reads of an object, member by member, is what ParseObject splits it into, also of
// the objects within it.
func FuzzParseObject(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` { } `, `{"a":1}`, `{"a":"\"}\\","b":[{"c":"]"},[[]]],"d":{"e":{}}}`, `{"\u0061":true , "b" : null,"c":-1e3}`,
		`{"a":"\ud83d","":"\\"}`, "{\"a\"\t:\r\n\"x\"\n}", `{"a":1,"a":2}`, `{"a":{"b":"}","b":2},"c":""}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := ParseObject(body, "a", "b", "")
		if err != nil {
			return
		}
		want, known := map[string]string{}, []string{"a", "b", ""}
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
			}
		}
		got := map[string]string{}
		for name, value := range o.members {
			got[name] = string(value)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q (-encoding/json +ParseObject):\n%s", body, diff)
		}
		if value, ok := o.members["a"]; ok && value[0] == '"' {
			var text string
			if err := json.Unmarshal(value, &text); err != nil || unquoted(value) != text {
				t.Fatalf("%s is %q, want %q: %v", value, unquoted(value), text, err)
			}
		}
	})
}
