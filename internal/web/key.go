package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"paymentd/internal/payment"
)

// Role says what a key may do.
type Role string

// The roles.
const (
	Checkout Role = "checkout"
	Operator Role = "operator"
)

// Roles are the roles that may call a route.
type Roles []Role

// minSecret is the least length of a key's secret, in bytes.
const minSecret = 16

// Key is one bearer key. It keeps a hash of the secret alone and prints as its name and role.
type Key struct {
	Name string
	Role Role
	hash [sha256.Size]byte
}

var keyName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,40}$`)

// String is the name and role, never the hash.
func (k Key) String() string { return k.Name + ":" + string(k.Role) }

// GoString is String, so that no verb prints the hash.
func (k Key) GoString() string { return k.String() }

// LogValue is String.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// ParseKeys reads `name:role:secret,…`. The error joins every mistake and names keys by place and name, never by
// secret. Names and secrets are unique; a secret has at least 16 printable ASCII characters, no comma or space.
func ParseKeys(text string) ([]Key, error) {
	var keys []Key
	var mistakes []error
	for i, entry := range strings.Split(strings.TrimSpace(text), ",") {
		key, why := parseKey(strings.TrimSpace(entry))
		for _, other := range keys {
			if why == "" && other.Name == key.Name {
				why = "the name is taken by an earlier key"
			}
			if why == "" && other.hash == key.hash {
				why = "has the same secret as an earlier key"
			}
		}
		if why != "" {
			mistakes = append(mistakes, fmt.Errorf("key %d: %s", i+1, why))
			continue
		}
		keys = append(keys, key)
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	return keys, nil
}

func parseKey(entry string) (Key, string) {
	parts := strings.SplitN(entry, ":", 3)
	if len(parts) != 3 {
		return Key{}, "must be name:role:secret"
	}
	name, role, secret := parts[0], Role(parts[1]), parts[2]
	switch {
	case !keyName.MatchString(name):
		return Key{}, "the name must be 1 to 40 letters, digits, dots, dashes or underscores"
	case role != Checkout && role != Operator:
		return Key{}, "the role must be checkout or operator"
	case len(secret) < minSecret:
		return Key{}, fmt.Sprintf("the secret must have at least %d characters", minSecret)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Key{}, "the secret must be printable ASCII without spaces"
	}
	return Key{Name: name, Role: role, hash: sha256.Sum256([]byte(secret))}, ""
}

// authorize finds the caller's key. Every key is compared, in constant time and over hashes, so that the time
// tells nothing about the secrets.
func authorize(keys []Key, roles Roles, r *http.Request) (Key, error) {
	token, ok := bearer(r)
	if !ok {
		return Key{}, &payment.Error{Code: payment.CodeUnauthorized, Public: "Send a key as a Bearer token in Authorization."}
	}
	hash := sha256.Sum256([]byte(token))
	found := -1
	for i, key := range keys {
		if subtle.ConstantTimeCompare(key.hash[:], hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Key{}, &payment.Error{Code: payment.CodeUnauthorized, Public: "The key is not one of ours."}
	}
	if !slices.Contains(roles, keys[found].Role) {
		EventOf(r.Context()).Key = keys[found]
		return Key{}, &payment.Error{Code: payment.CodeForbidden, Public: "The key's role may not do this."}
	}
	return keys[found], nil
}

func bearer(r *http.Request) (string, bool) {
	given := r.Header.Values("Authorization")
	if len(given) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(given[0], " ")
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}
