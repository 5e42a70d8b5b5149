package web_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

func TestParseObject(t *testing.T) {
	t.Parallel()
	field := func(pairs ...string) (want []payment.FieldError) {
		for i := 0; i < len(pairs); i += 2 {
			want = append(want, payment.FieldError{Field: pairs[i], Reason: pairs[i+1]})
		}
		return want
	}
	tests := []struct {
		name string
		body string
		want []payment.FieldError
	}{
		{name: "all members", body: `{"text":"a","number":1.50,"flag":true,"list":["x"]}`},
		{name: "optional ones null", body: `{"text":"a","number":null,"flag":null,"list":null}`},
		{name: "space around", body: " \n{\"text\":\"a\"}\r\n\t "},
		{name: "empty", body: "", want: field("body", "is empty")},
		{name: "spaces", body: "  ", want: field("body", "is empty")},
		{name: "cut off", body: `{"text":"a"`, want: field("body", "is not valid JSON")},
		{name: "comment", body: `{"text":"a"} // x`, want: field("body", "has data after its JSON value")},
		{name: "comma at the end", body: `{"text":"a",}`, want: field("body", "is not valid JSON")},
		{name: "two objects", body: `{"text":"a"}{"text":"b"}`, want: field("body", "has data after its JSON value")},
		{name: "brace at the end", body: `{"text":"a"}}`, want: field("body", "has data after its JSON value")},
		{name: "array", body: `[{"text":"a"}]`, want: field("body", "must be a JSON object")},
		{name: "null", body: `null`, want: field("body", "must be a JSON object")},
		{name: "string", body: `"text"`, want: field("body", "must be a JSON object")},
		{name: "byte order mark", body: "\ufeff{}", want: field("body", "is not valid JSON")},
		{name: "invalid UTF-8", body: "{\"text\":\"\xff\"}", want: field("body", "is not valid UTF-8")},
		{name: "raw NUL", body: "{\"text\":\"a\x00\"}", want: field("body", "is not valid JSON")},
		{name: "deep", body: strings.Repeat("[", 16000), want: field("body", "is not valid JSON")},
		{name: "deep in a member", body: `{"text":` + strings.Repeat("[", 8000) + strings.Repeat("]", 8000) + `}`, want: field("text", "must be a string")},
		{name: "leading zero", body: `{"number":01}`, want: field("body", "is not valid JSON")},
		{name: "missing", body: `{}`, want: field("text", "is required")},
		{name: "null for required", body: `{"text":null}`, want: field("text", "must not be null")},
		{name: "escaped NUL", body: `{"text":"a\u0000"}`, want: field("text", "must not contain control characters")},
		{name: "line break", body: `{"text":"a\n"}`, want: field("text", "must not contain control characters")},
		{name: "half a surrogate pair", body: `{"text":"\ud83d"}`, want: field("text", "must be valid Unicode text")},
		{name: "unknown", body: `{"text":"a","ordreId":1}`, want: field("ordreId", "is not known")},
		{name: "other case is unknown", body: `{"text":"a","Text":"b"}`, want: field("Text", "is not known")},
		{name: "unknown that may be a secret", body: `{"text":"a","tgen_20260301":1}`, want: field("body", "has a member that is not known")},
		{name: "twice", body: `{"text":"a","text":"a"}`, want: field("text", "appears more than once")},
		{name: "twice, escaped", body: `{"text":"a","\u0074ext":"b"}`, want: field("text", "appears more than once")},
		{
			name: "wrong types, all at once", body: `{"text":1,"number":"1","flag":"yes","list":"x"}`,
			want: field("text", "must be a string", "number", "must be a number", "flag", "must be true or false", "list", "must be an array of strings"),
		},
		{name: "item of a wrong type", body: `{"text":"a","list":["x",2]}`, want: field("list", "every item must be a string")},
		{name: "null item", body: `{"text":"a","list":[null]}`, want: field("list", "every item must be a string")},
		{name: "too many items", body: `{"text":"a","list":["x","y","z"]}`, want: field("list", "has too many items")},
		{name: "object for a number", body: `{"text":"a","number":{}}`, want: field("number", "must be a number")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var got []payment.FieldError
			err := readAll([]byte(test.body))
			if e, ok := errors.AsType[*payment.Error](err); ok {
				got = e.Fields
				if e.Code != payment.CodeInvalidRequest {
					t.Errorf("code %s", e.Code)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func readAll(body []byte) error {
	o, err := web.ParseObject(body, "text", "number", "flag", "list")
	if err != nil {
		return err
	}
	o.Require("text")
	o.Text("text")
	o.Number("number")
	o.Flag("flag")
	o.Texts("list", 2)
	return o.Err()
}

func TestNumberKeepsItsText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0.10", "50000000000", "9007199254740993", "1e3", "-5"} {
		o, err := web.ParseObject([]byte(`{"n":`+text+`}`), "n")
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := o.Number("n"); !ok || got != text {
			t.Errorf("%s reads as %q, %t", text, got, ok)
		}
	}
}

func TestManyMistakesAreBounded(t *testing.T) {
	t.Parallel()
	var body strings.Builder
	for i := range 500 {
		body.WriteString(`"` + strings.Repeat("a", i%30+1) + string(rune('b'+i/30)) + `":1,`)
	}
	o, err := web.ParseObject([]byte(`{` + body.String() + `"x":1}`))
	if err != nil {
		t.Fatal(err)
	}
	e, ok := errors.AsType[*payment.Error](o.Err())
	if !ok || len(e.Fields) != 20 {
		t.Errorf("%d errors, want 20", len(e.Fields))
	}
}

func TestReadObject(t *testing.T) {
	t.Parallel()
	header := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = values }
	}
	fill := func(n int) string { return `{"text":"` + strings.Repeat("a", n-len(`{"text":""}`)) + `"}` }
	tests := []struct {
		name   string
		body   string
		edit   func(*http.Request)
		status int
	}{
		{name: "largest", body: fill(16 << 10), status: 204},
		{name: "one more", body: fill(16<<10 + 1), status: 413},
		{name: "largest and a space", body: fill(16<<10) + " ", status: 413},
		{name: "length unknown", body: fill(1 << 20), edit: func(r *http.Request) { r.ContentLength = -1 }, status: 413},
		{name: "charset", body: `{"text":"a"}`, edit: header("Content-Type", "application/json; charset=UTF-8"), status: 204},
		{name: "other charset", body: `{"text":"a"}`, edit: header("Content-Type", "application/json; charset=latin1"), status: 415},
		{name: "no type", body: `{"text":"a"}`, edit: header("Content-Type"), status: 415},
		{name: "form", body: `text=a`, edit: header("Content-Type", "application/x-www-form-urlencoded"), status: 415},
		{name: "json by another name", body: `{"text":"a"}`, edit: header("Content-Type", "text/json"), status: 415},
		{name: "compressed", body: `{"text":"a"}`, edit: header("Content-Encoding", "gzip"), status: 415},
		{name: "type is asked before size", body: fill(1 << 20), edit: header("Content-Type", "text/plain"), status: 415},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.Open(http.MethodPost, "/", func(w http.ResponseWriter, r *http.Request) error {
				o, err := web.ReadObject(w, r, "text")
				if err != nil {
					return err
				}
				if _, ok := o.Text("text"); !ok {
					t.Error("text is missing")
				}
				w.WriteHeader(http.StatusNoContent)
				return nil
			})
			if test.edit == nil {
				test.edit = func(*http.Request) {}
			}
			if w := f.send(t, http.MethodPost, "/", test.body, test.edit); w.Code != test.status {
				t.Errorf("status %d, want %d: %s", w.Code, test.status, w.Body)
			}
		})
	}
}
