package load_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"paymentd/loadtest/load"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var seen sync.Map
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if _, again := seen.LoadOrStore(string(body), true); again || err != nil || r.URL.Path != "/x" || r.Header.Get("Authorization") != "Bearer key" {
			w.WriteHeader(http.StatusTeapot)
		}
		calls.Add(1)
		w.Header().Set("Server-Timing", "gateway;dur=9.000, db;dur=1.500, app;dur=0.250")
		fmt.Fprint(w, "{}")
	}))
	defer server.Close()
	var got load.Result
	for round := 0; got.Statuses[http.StatusOK] == 0 && round < 20; round++ { // a machine may stand still for all of it
		var err error
		calls.Store(0)
		got, err = load.Run(t.Context(), load.Options{
			Address: strings.TrimPrefix(server.URL, "http://"), Path: "/x", Secret: "key", Clients: 3,
			Warm: 50 * time.Millisecond, For: 100 * time.Millisecond,
			Body: func(b []byte, client, n int) []byte { return fmt.Appendf(b, `{"n":"%d-%d-%d"}`, round, client, n) },
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := got.Only(http.StatusOK); err != nil {
		t.Error(err)
	}
	if got.All[http.StatusOK] != int(calls.Load()) {
		t.Errorf("counted %d answers, the server gave %d", got.All[http.StatusOK], calls.Load())
	}
	if n := got.Statuses[http.StatusOK]; n == 0 || n != len(got.Latencies) || n != len(got.Own) || n >= got.All[http.StatusOK] {
		t.Errorf("%d measured of %d, %d latencies, %d own times", n, got.All[http.StatusOK], len(got.Latencies), len(got.Own))
	}
	if want := 1750 * time.Microsecond; load.Quantile(got.Own, 0.5) != want {
		t.Errorf("own time %s, want %s", load.Quantile(got.Own, 0.5), want)
	}
}

// TestRunUnanswered: what nobody answered must not pass for a slow rate.
func TestRunUnanswered(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer server.Close()
	_, err := load.Run(t.Context(), load.Options{
		Address: strings.TrimPrefix(server.URL, "http://"), Path: "/", Clients: 2, For: 50 * time.Millisecond,
		Body: func(b []byte, _, _ int) []byte { return append(b, "{}"...) },
	})
	if err == nil {
		t.Error("no error")
	}
}

func TestOnly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		all  map[int]int
		good bool
	}{
		{"all", map[int]int{200: 3}, true}, {"none", nil, false}, {"others", map[int]int{503: 3}, false}, {"one other", map[int]int{200: 3, 202: 1}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := (load.Result{All: test.all}).Only(200); (err == nil) != test.good {
				t.Error(err)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	values := []time.Duration{1, 2, 3, 4}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.99: 4, 1: 4} {
		if got := load.Quantile(values, q); got != want {
			t.Errorf("quantile %g is %d, want %d", q, got, want)
		}
	}
	if got := load.Quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing is %d", got)
	}
}
