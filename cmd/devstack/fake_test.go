package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"paymentd/internal/tosssim"
)

// TestMain lets the test binary stand in for the programs that devstack starts, and for devstack itself.
func TestMain(m *testing.M) {
	roles := map[string]func(context.Context) error{
		"paymentd": fakePaymentd,
		"tosssim":  fakeTosssim,
		"devstack": func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout) },
	}
	name := os.Getenv("DEVSTACK_TEST_ROLE")
	role, ok := roles[name]
	if !ok {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if name != "devstack" {
		note("pids", os.Getpid())
	}
	if err := role(ctx); err != nil {
		fmt.Println(name, "failed:", err)
		os.Exit(7)
	}
	note("stopped", name)
}

// note leaves a line for the test in devstack's data folder, where its children run.
func note(file string, line any) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}

// fakePaymentd does as little as devstack can see: ready, one row, one call of the gateway.
func fakePaymentd(ctx context.Context) error {
	if os.Getenv("DEVSTACK_TEST_FAULT") == "no start" {
		return fmt.Errorf("PAYMENTD_LISTEN: no such thing")
	}
	db, err := pgx.Connect(ctx, os.Getenv("PAYMENTD_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close(context.Background())
	if _, err := db.Exec(ctx, `CREATE TABLE IF NOT EXISTS payments (order_id text, payment_key text, status text, amount bigint,
		canceled_amount bigint, holds_order bool, version int, maybe_sent bool, due_at timestamptz)`); err != nil {
		return err
	}
	var found int
	if err := db.QueryRow(ctx, "SELECT count(*) FROM payments").Scan(&found); err != nil {
		return err
	}
	note("found", found)
	private := http.NewServeMux()
	private.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	public := http.NewServeMux()
	failed := make(chan error, 1)
	public.HandleFunc("POST /payments/confirm", func(w http.ResponseWriter, r *http.Request) {
		var p payment
		if json.NewDecoder(r.Body).Decode(&p) != nil || r.Header.Get("Authorization") != "Bearer "+checkoutKey {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		body, _ := json.Marshal(p)
		req, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, os.Getenv("PAYMENTD_TOSS_URL")+"/v1/payments/confirm", bytes.NewReader(body))
		req.SetBasicAuth(os.Getenv("PAYMENTD_TOSS_SECRET_KEY"), "")
		req.Header.Set("Content-Type", "application/json")
		if os.Getenv("DEVSTACK_TEST_FAULT") != "no charge" {
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		}
		db.Exec(r.Context(), "INSERT INTO payments VALUES ($1, $2, 'PAID', $3, 0, true, 2, true, NULL)", p.OrderID, p.PaymentKey, p.Amount)
		fmt.Fprintf(w, `{"orderId":%q,"status":"PAID"}`, p.OrderID)
		if os.Getenv("DEVSTACK_TEST_FAULT") == "dies later" {
			time.AfterFunc(300*time.Millisecond, func() { failed <- fmt.Errorf("out of luck") })
		}
	})
	for addr, handler := range map[string]http.Handler{os.Getenv("PAYMENTD_LISTEN"): public, os.Getenv("PAYMENTD_ADMIN_LISTEN"): private} {
		go func() { failed <- http.ListenAndServe(addr, handler) }()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

func fakeTosssim(ctx context.Context) error {
	server, err := tosssim.New(tosssim.Options{}).Listen(ctx, os.Args[2], os.Args[4])
	if err != nil {
		return err
	}
	<-server.Done()
	return nil
}

// fakes makes a folder with the two programs.
func fakes(t *testing.T, fault string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"paymentd", "tosssim"} {
		script := fmt.Sprintf("#!/bin/sh\nDEVSTACK_TEST_ROLE=%s DEVSTACK_TEST_FAULT='%s' exec '%s' \"$@\"\n", name, fault, self)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
