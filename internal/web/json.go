package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"paymentd/internal/payment"
)

const (
	// maxBody is the largest request body, in bytes.
	maxBody = 16 << 10
	// maxErrors bounds how many problems one answer lists.
	maxErrors = 20
	// wholeBody is the field that a problem of the body as such is reported under.
	wholeBody = "body"
)

// Object is a JSON object of a request. Its readers collect every problem for Err and never repeat a value.
type Object struct {
	members map[string]json.RawMessage
	errors  []payment.FieldError
	refused map[string]bool
	// within is the object that this one is a member of, under name; it collects the problems.
	within *Object
	name   string
}

// nameable are member names that an answer may repeat: a key or card number has digits or is longer.
var nameable = regexp.MustCompile(`^[A-Za-z_]{1,32}$`)

// ReadObject reads a request body as ParseObject does. Not JSON is unsupported_media_type, more than 16 KiB
// too_large.
func ReadObject(w http.ResponseWriter, r *http.Request, allowed ...string) (*Object, error) {
	body, err := ReadBody(w, r, maxBody)
	if err != nil {
		return nil, err
	}
	return ParseObject(body, allowed...)
}

// ReadBody reads a body of at most so many bytes, of which the headers say that it is JSON; what it holds is not looked
// at. Not JSON is unsupported_media_type, more than limit too_large.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if !isJSON(r.Header.Get("Content-Type")) || r.Header.Get("Content-Encoding") != "" {
		return nil, &payment.Error{Code: payment.CodeUnsupportedMediaType, Public: "Send application/json in UTF-8, not compressed."}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case int64(len(body)) > limit:
		w.Header().Set("Connection", "close")
		return nil, &payment.Error{Code: payment.CodeTooLarge, Public: fmt.Sprintf("The body has more than %d KiB.", limit>>10)}
	case err != nil:
		w.Header().Set("Connection", "close")
		bad := invalidBody("did not arrive whole and in time")
		bad.Err = err
		return nil, bad
	}
	return body, nil
}

func isJSON(contentType string) bool {
	if contentType == "application/json" { // as nearly all send it
		return true
	}
	media, params, err := mime.ParseMediaType(contentType)
	charset := params["charset"]
	return err == nil && media == "application/json" && (charset == "" || strings.EqualFold(charset, "utf-8"))
}

// ParseObject reads exactly one JSON object with the allowed members. What is wrong with its shape is an error at
// once; unknown and repeated members wait for Err. Comparison of names is exact.
func ParseObject(body []byte, allowed ...string) (*Object, error) {
	if !utf8.Valid(body) {
		return nil, invalidBody("is not valid UTF-8")
	}
	o := &Object{members: make(map[string]json.RawMessage, len(allowed))}
	if !o.fill(body, allowed) {
		return nil, invalidBody(notObject(body))
	}
	return o, nil
}

// notObject says what a body is that is not one JSON object.
func notObject(body []byte) string {
	if json.Valid(body) {
		return "must be a JSON object"
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	var first json.RawMessage
	switch err := dec.Decode(&first); {
	case errors.Is(err, io.EOF):
		return "is empty"
	case err != nil:
		return "is not valid JSON"
	default:
		return "has data after its JSON value"
	}
}

// fill takes the members of text; ok is false if it is not one JSON object.
func (o *Object) fill(text []byte, allowed []string) (ok bool) {
	return payment.Members(text, func(member, value []byte) {
		name := string(member)
		switch _, again := o.members[name]; {
		case !slices.Contains(allowed, name) && nameable.MatchString(name):
			o.Refuse(name, "is not known")
		case !slices.Contains(allowed, name):
			o.Refuse(wholeBody, "has a member that is not known")
		case again:
			o.Refuse(name, "appears more than once")
		default:
			o.members[name] = value
		}
	})
}

// Refuse records why a field is not accepted; the first reason of a field stands.
func (o *Object) Refuse(field, reason string) {
	if o.refused[field] {
		return
	}
	if o.refused == nil {
		o.refused = map[string]bool{}
	}
	o.refused[field] = true
	if o.within != nil {
		o.within.Refuse(o.name+"."+field, reason)
		return
	}
	o.errors = append(o.errors, payment.FieldError{Field: field, Reason: reason})
}

// Has reports whether the member is there and not null.
func (o *Object) Has(name string) bool {
	value, ok := o.members[name]
	return ok && string(value) != "null"
}

// Require refuses a member that is missing or null.
func (o *Object) Require(names ...string) {
	for _, name := range names {
		if value, ok := o.members[name]; !ok {
			o.Refuse(name, "is required")
		} else if string(value) == "null" {
			o.Refuse(name, "must not be null")
		}
	}
}

// Text reads a string; ok is false if it is missing, null or refused.
func (o *Object) Text(name string) (text string, ok bool) {
	if !o.Has(name) || o.refused[name] {
		return "", false
	}
	text, why := plainText(o.members[name])
	if why != "" {
		o.Refuse(name, why)
		return "", false
	}
	return text, true
}

// Texts reads an array of at most limit strings.
func (o *Object) Texts(name string, limit int) (texts []string, ok bool) {
	if !o.Has(name) || o.refused[name] {
		return nil, false
	}
	var items []json.RawMessage
	if json.Unmarshal(o.members[name], &items) != nil {
		o.Refuse(name, "must be an array of strings")
		return nil, false
	}
	if len(items) > limit {
		o.Refuse(name, "has too many items")
		return nil, false
	}
	for _, item := range items {
		text, why := plainText(item)
		if why != "" {
			o.Refuse(name, "every item "+why)
			return nil, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

// Number reads a number as the text it was sent as, so that amounts stay exact.
func (o *Object) Number(name string) (text string, ok bool) {
	if !o.Has(name) || o.refused[name] {
		return "", false
	}
	value := o.members[name]
	if c := value[0]; c != '-' && (c < '0' || c > '9') {
		o.Refuse(name, "must be a number")
		return "", false
	}
	return string(value), true
}

// Object reads a member that is an object itself; its problems are this object's, under "name.member".
func (o *Object) Object(name string, allowed ...string) (inner *Object, ok bool) {
	if !o.Has(name) || o.refused[name] {
		return nil, false
	}
	value := o.members[name]
	inner = &Object{members: map[string]json.RawMessage{}, within: o, name: name}
	if !inner.fill(value, allowed) {
		o.Refuse(name, "must be an object")
		return nil, false
	}
	return inner, true
}

// Flag reads true or false; missing and null are false.
func (o *Object) Flag(name string) bool {
	if !o.Has(name) || o.refused[name] {
		return false
	}
	value := string(o.members[name])
	if value != "true" && value != "false" {
		o.Refuse(name, "must be true or false")
	}
	return value == "true"
}

// Err is nil, or the invalid_request that names every refused field.
func (o *Object) Err() error {
	if len(o.errors) == 0 {
		return nil
	}
	return Invalid(o.errors[:min(len(o.errors), maxErrors)]...)
}

// Invalid is the error that refuses a request for the given fields.
func Invalid(fields ...payment.FieldError) *payment.Error {
	return &payment.Error{
		Code: payment.CodeInvalidRequest, Public: "Nothing was saved or sent; errors says what to repair.", Fields: fields,
	}
}

func invalidBody(reason string) *payment.Error {
	return Invalid(payment.FieldError{Field: wholeBody, Reason: reason})
}

func plainText(value json.RawMessage) (text, why string) {
	text, ok := payment.Text(value)
	if !ok {
		return "", "must be a string"
	}
	for _, r := range text {
		switch {
		case unicode.IsControl(r):
			return "", "must not contain control characters"
		case r == utf8.RuneError:
			// encoding/json puts it in place of half a surrogate pair.
			return "", "must be valid Unicode text"
		}
	}
	return text, ""
}
