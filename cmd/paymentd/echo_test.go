package main

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// echo answers every connection with what parrot makes of the request.
func echo(t *testing.T, parrot func(line, authorization string) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				body, _ := io.ReadAll(r.Body)
				_, _ = io.WriteString(c, parrot(r.Method+" "+r.URL.Path+" "+string(body), r.Header.Get("Authorization")))
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestEchoingGateway: what answers in the gateway's place repeats the request. Neither the paymentKey, which world's own
// check looks for, nor the secret key gets into the log, a row or an answer.
func TestEchoingGateway(t *testing.T) {
	t.Parallel()
	token := base64.StdEncoding.EncodeToString([]byte(tossSecret + ":"))
	for name, parrot := range map[string]func(line, authorization string) string{
		"no HTTP, the request":       func(line, _ string) string { return line + "\r\n" },
		"no HTTP, the authorization": func(_, authorization string) string { return authorization + "\r\n" },
		"a broken status":            func(line, authorization string) string { return "HTTP/1.1 " + line + authorization + "\r\n\r\n" },
		"a header": func(line, authorization string) string {
			return "HTTP/1.1 200 OK\r\n" + line + authorization + "\r\n\r\n"
		},
		"a code and a trace id": func(line, authorization string) string {
			line = strings.NewReplacer(`"`, "", " ", "").Replace(line)
			body := fmt.Sprintf(`{"code":%q,"message":%q}`, line, authorization)
			return fmt.Sprintf("HTTP/1.1 400 Bad Request\r\nX-TossPayments-Trace-Id: %s\r\nContent-Length: %d\r\n\r\n%s",
				strings.TrimRight(strings.TrimPrefix(authorization, "Basic "), "="), len(body), body)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, quick...)
			// The confirm looks up by itself; recovery would still be at it when the test ends.
			in := w.start("PAYMENTD_TOSS_URL="+echo(t, parrot), "PAYMENTD_RECOVERY_DUE_EVERY=1000h", "PAYMENTD_RECOVERY_EVERY=1000h")
			o := newOrder("echo")
			a := in.confirm(o).want(t, 202, "PENDING")
			if !strings.Contains(w.log.String(), `"op":"lookup"`) {
				t.Error("nothing was logged of a lookup, whose path holds the key")
			}
			for where, text := range map[string]string{"log": w.log.String(), "answer": a.raw} {
				if strings.Contains(text, strings.TrimRight(token, "=")) {
					t.Errorf("the %s holds the authorization", where)
				}
			}
			if n := w.count(`SELECT count(*) FROM incidents WHERE evidence::text LIKE '%' || $1 || '%'`, strings.TrimRight(token, "=")); n != 0 {
				t.Error("an incident holds the authorization")
			}
		})
	}
}
