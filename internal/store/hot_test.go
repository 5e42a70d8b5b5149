package store

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
)

var update = flag.Bool("update", false, "rewrite generated files")

// TestHotScript keeps the pgbench script of "make bench" equal to the two statements of a plain approval.
func TestHotScript(t *testing.T) {
	t.Parallel()
	// A colon before a digit is a variable to some versions of pgbench.
	colons := regexp.MustCompile(`:(\d)`)
	evidence := colons.ReplaceAllString(strings.ReplaceAll(*evidenceOf(payment.Observation{
		Sighting: payment.SeenDone, PaymentKey: "test_b0123456789", OrderID: "bench-0-1", Total: 15000, Balance: 15000,
		Currency: payment.KRW, Method: "카드", ApprovedAt: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC),
	}, ""), `":`, `": `), ".$1")
	want := `-- The two statements of a plain approval as a script of pgbench. Written by
-- go test ./internal/store -run TestHotScript -update
\set i :i + 1
` + filled(reserveSQL,
		"'bench-' || :client_id || '-' || :i", "'test_' || :client_id || '-' || :i", "15000", "'KRW'", "''", "''", "'60 seconds'") + ` \gset
` + filled(plainSQL+plainNoticesSQL+plainResultSQL,
		":id", "false", "'카드'", "'20261130T100000Z'", "'https://dashboard.tosspayments.com/receipt'", "false",
		"'confirm'", "'approved'", "'"+evidence+"'") + ";\n"

	path := filepath.Join("..", "..", "loadtest", "bench", "own.sql")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale, run this test with -update (-want +got):\n%s", path, diff)
	}
}

// filled puts SQL in the place of the parameters $1, $2 …
func filled(sql string, values ...string) string {
	return regexp.MustCompile(`\$\d+`).ReplaceAllStringFunc(sql, func(name string) string {
		n, _ := strconv.Atoi(name[1:])
		return values[n-1]
	})
}
