package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/web"
)

func TestNewDoorRefusesMissingParts(t *testing.T) {
	t.Parallel()
	if _, err := web.NewDoor(web.Options{}); err == nil {
		t.Error("a door without parts")
	}
}

func TestTrap26_OneLogLine(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.For(web.Roles{web.Operator}, http.MethodPost, "/orders/{id}", func(_ http.ResponseWriter, r *http.Request) error {
		e := web.EventOf(r.Context())
		e.OrderID, e.Result, e.Action = "order-1", payment.ResultBusy, "sync"
		e.Attempts, e.Gateway, e.DB, e.TraceID, e.Breaker = 2, 1500*time.Microsecond, time.Hour, "trace-1", "closed"
		return fmt.Errorf("outer: %w", &payment.Error{Code: payment.CodeBusy, Public: "Busy.", Err: errors.New("the cause")})
	})
	f.send(t, http.MethodPost, "/orders/7", "", bearer(operatorSecret))
	want := map[string]any{
		"level": "WARN", "msg": "request", "method": "POST", "route": "/orders/{id}", "status": 503.0, "code": "busy",
		"request_id": "req-1", "key": "dev", "order_id": "order-1", "result": "busy", "action": "sync",
		"attempts": 2.0, "gateway_ms": 1.5, "db_ms": 3.6e6, "trace_id": "trace-1", "breaker": "closed", "error": "outer: busy: Busy.: the cause",
	}
	if diff := cmp.Diff(want, f.log.one(t)); diff != "" {
		t.Errorf("log line (-want +got):\n%s", diff)
	}
}

func TestQuietRoutes(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, level string
		status      int
	}{
		{name: "good answers at debug", status: 200, level: "DEBUG"},
		{name: "bad ones not", status: 503, level: "WARN"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.Open(http.MethodGet, "/quiet", func(w http.ResponseWriter, _ *http.Request) error {
				return web.WriteJSON(w, test.status, 1)
			})
			f.send(t, http.MethodGet, "/quiet", "")
			if got := f.log.one(t)["level"]; got != test.level {
				t.Errorf("level %v, want %s", got, test.level)
			}
		})
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		send []string
		keep bool
	}{
		{name: "sane", send: []string{"a.B-3_"}, keep: true},
		{name: "none"},
		{name: "two", send: []string{"a", "b"}},
		{name: "too long", send: []string{strings.Repeat("a", 65)}},
		{name: "line break", send: []string{"a\nb"}},
		{name: "space", send: []string{"a b"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			f.Open(http.MethodGet, "/", func(http.ResponseWriter, *http.Request) error { return errors.New("x") })
			w := f.send(t, http.MethodGet, "/", "", func(r *http.Request) { r.Header["X-Request-Id"] = test.send })
			id := w.Header().Get("X-Request-Id")
			if kept := len(test.send) == 1 && id == test.send[0]; kept != test.keep || len(id) == 0 || len(id) > 64 {
				t.Errorf("answered %q to %q", id, test.send)
			}
			if got := f.log.one(t)["request_id"]; got != id || !strings.Contains(w.Body.String(), `"instance":"`+id+`"`) {
				t.Errorf("header %q, log %v, body %s", id, got, w.Body)
			}
		})
	}
}

func TestUnknownRoutesAndMethods(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method, path, allow, body string
		status                          int
	}{
		{name: "no such path", method: "GET", path: "/nothing", status: 404, body: `"code":"not_found"`},
		{name: "root", method: "GET", path: "/", status: 404, body: `"code":"not_found"`},
		{name: "slash at the end", method: "GET", path: "/a/", status: 404, body: `"code":"not_found"`},
		{name: "other method", method: "DELETE", path: "/a", status: 405, allow: "GET,POST", body: `"code":"method_not_allowed"`},
		{name: "method nobody knows", method: "BREW", path: "/a", status: 405, allow: "GET,POST", body: `"code":"method_not_allowed"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := setup(t)
			ok := func(w http.ResponseWriter, _ *http.Request) error { return web.WriteJSON(w, 200, 1) }
			f.Open(http.MethodGet, "/a", ok)
			f.Open(http.MethodPost, "/a", ok)
			w := f.send(t, test.method, test.path, "")
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.body) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if got := strings.Join(w.Header().Values("Allow"), ","); got != test.allow {
				t.Errorf("Allow %q, want %q", got, test.allow)
			}
			if got := f.log.one(t)["route"]; got != "other" {
				t.Errorf("route %v", got)
			}
			if got := f.requests(t, "other", "4xx"); got != 1 {
				t.Errorf("counted %v", got)
			}
		})
	}
}

func TestTrap24_MetricsAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Open(http.MethodGet, "/orders/{id}", func(w http.ResponseWriter, _ *http.Request) error {
		return web.WriteJSON(w, http.StatusAccepted, 1)
	})
	for _, route := range []string{"other", "/orders/{id}"} {
		for _, class := range []string{"2xx", "3xx", "4xx", "5xx"} {
			if got := f.requests(t, route, class); got != 0 {
				t.Errorf("%s %s starts at %v", route, class, got)
			}
		}
	}
	f.send(t, http.MethodGet, "/orders/1", "")
	f.send(t, http.MethodGet, "/orders/2", "")
	if got := f.requests(t, "/orders/{id}", "2xx"); got != 2 {
		t.Errorf("counted %v", got)
	}
	lint(t, f.reg)
}

func TestPanicBecomesAProblem(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Open(http.MethodGet, "/", func(http.ResponseWriter, *http.Request) error { panic("secret of the fault") })
	w := f.send(t, http.MethodGet, "/", "")
	if diff := cmp.Diff(internalBody+"\n", w.Body.String()); diff != "" || w.Code != 500 {
		t.Errorf("%d (-want +got):\n%s", w.Code, diff)
	}
	if got := f.requests(t, "/", "5xx"); got != 1 {
		t.Errorf("counted %v", got)
	}
	line := f.log.one(t)
	stack, _ := line["stack"].(string)
	if strings.Contains(fmt.Sprint(line), "secret of the fault") {
		t.Errorf("the log holds the panic's value: %v", line)
	}
	if line["error"] != "panic of type string" || line["level"] != "ERROR" || !strings.Contains(stack, "door_test.go") {
		t.Errorf("log %v", line)
	}
}

// TestPanicAfterTheAnswerBegan drops the connection: half an answer must not look whole.
func TestPanicAfterTheAnswerBegan(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Open(http.MethodGet, "/", func(w http.ResponseWriter, _ *http.Request) error {
		if err := web.WriteJSON(w, http.StatusOK, "half"); err != nil {
			return err
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err
		}
		panic("late")
	})
	server := httptest.NewServer(f)
	defer server.Close()
	body, err := fetch(t, server.URL)
	if err == nil {
		t.Errorf("the answer looks whole: %s", body)
	}
	server.Close()
	if line := f.log.one(t); line["error"] != "panic of type string" {
		t.Errorf("log %v", line)
	}
}

// TestErrorAfterTheAnswerBegan adds nothing to the answer; the log has the cause.
func TestErrorAfterTheAnswerBegan(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Open(http.MethodGet, "/", func(w http.ResponseWriter, _ *http.Request) error {
		_, _ = io.WriteString(w, "done")
		return errors.New("late")
	})
	if w := f.send(t, http.MethodGet, "/", ""); w.Code != 200 || w.Body.String() != "done" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if line := f.log.one(t); line["error"] != "late" || line["status"] != 200.0 {
		t.Errorf("log %v", line)
	}
}

// TestHangUpIsNoted hangs up over a real socket while the handler works.
func TestHangUpIsNoted(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	f.Open(http.MethodPost, "/", func(w http.ResponseWriter, r *http.Request) error {
		if _, err := web.ReadObject(w, r); err != nil {
			return err
		}
		hangUp()
		<-r.Context().Done()
		return web.WriteJSON(w, http.StatusOK, 1)
	})
	server := httptest.NewServer(f)
	defer server.Close()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if answer, err := server.Client().Do(r); err == nil {
		answer.Body.Close()
		t.Error("an answer after hanging up")
	}
	server.Close()
	if line := f.log.one(t); line["client_gone"] != true || line["status"] != 200.0 || line["error"] != nil {
		t.Errorf("log %v", line)
	}
}

// TestSlowBody sends half a body over a real socket and waits for the door to lose patience.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Open(http.MethodPost, "/", func(w http.ResponseWriter, r *http.Request) error {
		_, err := web.ReadObject(w, r, "text")
		return err
	})
	server := httptest.NewServer(f)
	defer server.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != 400 || !strings.Contains(string(body), `{"field":"body","reason":"did not arrive whole and in time"}`) {
		t.Errorf("%d %s", answer.StatusCode, body)
	}
}

// TestSlowReader: a client that asks and never reads is dropped, so that it cannot hold a goroutine or a stop for ever.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	f := setup(t)
	ended := make(chan error, 1)
	f.Open(http.MethodGet, "/", func(w http.ResponseWriter, _ *http.Request) error {
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return err
			}
		}
	})
	server := httptest.NewServer(f)
	defer server.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the write ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the write never ended")
	}
}

// TestBodyDeadlineEndsWithTheBody: a wait longer than BodyWithin must not look like a hang-up.
func TestBodyDeadlineEndsWithTheBody(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Open(http.MethodPost, "/", func(w http.ResponseWriter, r *http.Request) error {
		if _, err := web.ReadObject(w, r); err != nil {
			return err
		}
		select {
		case <-r.Context().Done():
			return errors.New("canceled by its own deadline")
		case <-time.After(bodyWithin + bodyWithin/4):
			return web.WriteJSON(w, http.StatusOK, 1)
		}
	})
	server := httptest.NewServer(f)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		t.Errorf("status %d: %s", answer.StatusCode, f.log)
	}
}

func TestRoutesAreWalkable(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.Open(http.MethodGet, "/a", web.Plain(http.NotFoundHandler()))
	var got []string
	err := chi.Walk(f.Routes(), func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		got = append(got, method+" "+route)
		return nil
	})
	if diff := cmp.Diff([]string{"GET /a"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func fetch(t *testing.T, url string) (string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}
