package web_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/web"
)

func TestParseKeys(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		text string
		want []string
		err  string
	}{
		{
			name: "two, with space around and a colon in the secret",
			text: " shop:checkout:checkout-secret-0123456789 ,\n dev:operator:operator:secret:0123456789\n",
			want: []string{"shop:checkout", "dev:operator"},
		},
		{name: "empty", text: "", err: "key 1: must be name:role:secret"},
		{
			name: "every mistake at once",
			text: "a,b b:checkout:0123456789abcdef,c:admin:0123456789abcdef,d:operator:short,e:checkout:0123456789 abcdef",
			err: "key 1: must be name:role:secret\n" +
				"key 2: the name must be 1 to 40 letters, digits, dots, dashes or underscores\n" +
				"key 3: the role must be checkout or operator\n" +
				"key 4: the secret must have at least 16 characters\n" +
				"key 5: the secret must be printable ASCII without spaces",
		},
		{
			name: "twice the same name", text: "a:checkout:0123456789abcdef,a:operator:0123456789abcdeX",
			err: "key 2: the name is taken by an earlier key",
		},
		{
			name: "twice the same secret", text: "a:checkout:0123456789abcdef,b:operator:0123456789abcdef",
			err: "key 2: has the same secret as an earlier key",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			keys, err := web.ParseKeys(test.text)
			var got []string
			for _, k := range keys {
				got = append(got, k.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
			var text string
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(test.err, text); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKeyPrintsNoSecret(t *testing.T) {
	t.Parallel()
	keys, err := web.ParseKeys("shop:checkout:" + checkoutSecret)
	if err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("key", "key", keys[0])
	for _, got := range []string{fmt.Sprintf("%v", keys), fmt.Sprintf("%+v", keys), fmt.Sprintf("%#v", keys[0]), log.String()} {
		if !strings.Contains(got, "shop:checkout") || strings.Contains(got, "hash") || len(got) > 120 {
			t.Errorf("prints %q", got)
		}
	}
}

func TestAuthorization(t *testing.T) {
	t.Parallel()
	header := func(values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Authorization"] = values }
	}
	tests := []struct {
		name   string
		edit   func(*http.Request)
		status int
		key    string
	}{
		{name: "right key", edit: bearer(checkoutSecret), status: 204, key: "shop"},
		{name: "scheme in other case", edit: header("bearer " + checkoutSecret), status: 204, key: "shop"},
		{name: "none", edit: header(), status: 401},
		{name: "empty", edit: header("Bearer "), status: 401},
		{name: "no scheme", edit: header(checkoutSecret), status: 401},
		{name: "basic", edit: header("Basic " + checkoutSecret), status: 401},
		{name: "prefix of the secret", edit: bearer(checkoutSecret[:20]), status: 401},
		{name: "more than the secret", edit: bearer(checkoutSecret + "0"), status: 401},
		{name: "two headers", edit: header("Bearer "+checkoutSecret, "Bearer "+checkoutSecret), status: 401},
		{name: "wrong role", edit: bearer(operatorSecret), status: 403, key: "dev"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.For(web.Roles{web.Checkout}, http.MethodGet, "/", func(w http.ResponseWriter, _ *http.Request) error {
				w.WriteHeader(http.StatusNoContent)
				return nil
			})
			w := f.send(t, http.MethodGet, "/", "", test.edit)
			if w.Code != test.status {
				t.Errorf("status %d, want %d", w.Code, test.status)
			}
			if got := w.Header().Get("WWW-Authenticate"); (got == "Bearer") != (test.status == 401) {
				t.Errorf("WWW-Authenticate %q", got)
			}
			key, _ := f.log.one(t)["key"].(string)
			if key != test.key {
				t.Errorf("logged key %q, want %q", key, test.key)
			}
			if strings.Contains(f.log.String()+w.Body.String(), "secret-0123") {
				t.Errorf("a secret shows: %s %s", f.log, w.Body)
			}
		})
	}
}
