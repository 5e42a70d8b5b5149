package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

func TestRunServesUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"}, in, io.Discard)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	m := regexp.MustCompile(`^tosssim: listening on (http://127\.0\.0\.1:\d+) control (http://127\.0\.0\.1:\d+)\n$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("first line: %q %v", line, err)
	}
	for url, want := range map[string]int{m[1] + "/v1/payments/x": 401, m[2] + "/control/": 200} {
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: want %d, got %d", url, want, res.StatusCode)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"live key", []string{"--secret-keys", "test_sk_a,live_sk_b"}, "refuses live_ keys"},
		{"argument", []string{"serve"}, `unexpected argument "serve"`},
		{"flag", []string{"--port", "1"}, "not defined"},
		{"address", []string{"--listen", "127.0.0.1:99999", "--control", "127.0.0.1:0"}, "public port"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if err := run(t.Context(), tt.args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("want %q, got %v", tt.want, err)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var help bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, io.Discard, &help); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("want ErrHelp, got %v", err)
	}
	for _, want := range []string{"-listen", "-control", "-secret-keys", "-rude", "-seed"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("help lacks %s:\n%s", want, &help)
		}
	}
}
