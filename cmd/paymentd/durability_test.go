package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"paymentd/internal/devdb"
	"paymentd/internal/tosssim"
)

// TestDurabilityIsChecked: a database that may lose what it said it saved is refused with a live key, and warned of with
// any other. A level between off and on is raised by every session and needs no word.
func TestDurabilityIsChecked(t *testing.T) {
	t.Parallel()
	const warning = "the database may lose saved payments"
	durable := newWorldOn(t, devdb.Private(t, migrated(), devdb.Options{Durable: true}), tosssim.Options{})
	fast := newWorld(t) // fsync=off
	for _, tc := range []struct {
		name string
		*world
		commit string
		weak   bool
	}{
		{"safe", durable, "on", false},
		{"local", durable, "local", false},
		{"remote_write", durable, "remote_write", false},
		{"synchronous_commit off", durable, "off", true},
		{"fsync off", fast, "on", true},
	} {
		tc.alterDatabase("synchronous_commit", tc.commit)
		live := []string{"PAYMENTD_TOSS_SECRET_KEY=live_sk_e2e_0123456789", "PAYMENTD_TOSS_URL=https://127.0.0.1:1"}
		if said, err := tc.startsBriefly(live...); (err != nil) != tc.weak || tc.weak && !strings.Contains(err.Error(), "refused with a live key") {
			t.Errorf("%s, live key: %v %s", tc.name, err, said)
		}
		if said, err := tc.startsBriefly(); err != nil || strings.Contains(said, warning) != tc.weak {
			t.Errorf("%s, test key: %v %s", tc.name, err, said)
		}
	}
}

func (w *world) alterDatabase(setting, value string) {
	w.t.Helper()
	if _, err := w.pool.Exec(w.t.Context(), fmt.Sprintf("ALTER DATABASE %q SET %s = %s", w.db.Name, setting, value)); err != nil {
		w.t.Fatal(err)
	}
}

// startsBriefly starts a paymentd that stops as soon as it listens, and returns what it logged.
func (w *world) startsBriefly(set ...string) (said string, err error) {
	w.t.Helper()
	c, err := loadConfig(w.env(set...))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	log := &logBuffer{}
	err = serve(ctx, c, newLogger(c, log), func(string, string) { cancel() })
	return log.String(), err
}
