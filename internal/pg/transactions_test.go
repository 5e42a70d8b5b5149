package pg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"paymentd/internal/payment"
	"paymentd/internal/tosssim"
)

// readAll reads a feed to its end.
func readAll(ctx context.Context, c *Client, from, to time.Time) (all []payment.Transaction, pages int, err error) {
	for page, err := range c.Transactions(ctx, from, to) {
		if err != nil {
			return all, pages, err
		}
		all, pages = append(all, page...), pages+1
	}
	return all, pages, nil
}

// hour is the hour around now, as the simulator's clock shows it.
func (w *world) hour() (from, to time.Time) {
	now := w.sim.Now().Truncate(time.Second)
	return now.Add(-time.Hour), now.Add(time.Hour)
}

func keysOf(all []payment.Transaction) (keys []string) {
	for _, x := range all {
		keys = append(keys, fmt.Sprintf("%s %d", x.PaymentKey, x.Amount))
	}
	return keys
}

// TestTransactionsPages: over sockets, in pages of any size, whose borders fall between lines of one second.
func TestTransactionsPages(t *testing.T) {
	t.Parallel()
	for size, calls := range map[int]int64{1: 10, 2: 6, 3: 4, 4: 4, 9: 2, 100: 2} {
		t.Run(fmt.Sprintf("%d lines", size), func(t *testing.T) {
			t.Parallel()
			w := against(t, func(o *Options) { o.TransactionsPage = size })
			var want []string
			for n := range 8 { // all within a second
				key := fmt.Sprintf("test_%d", n)
				w.confirm(t, key)
				want = append(want, key+" 15000")
			}
			if _, err := w.sim.Cancel("test_3", 4000); err != nil {
				t.Fatal(err)
			}
			want = append(want, "test_3 -4000")
			from, to := w.hour()
			all, _, err := readAll(t.Context(), w.Client, from, to)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, keysOf(all)); diff != "" {
				t.Errorf("feed (-want +got):\n%s", diff)
			}
			last := all[len(all)-1]
			if last.Status != payment.SeenPartlyCanceled || last.OrderID != "order-test_3" || last.Currency != payment.KRW || last.Key == "" ||
				w.sim.Now().Sub(last.At).Abs() > time.Minute {
				t.Errorf("the cancel is %+v", last)
			}
			if n := w.sim.Counters().Ops[tosssim.OpTransactions].Calls; n != calls {
				t.Errorf("%d calls, want %d", n, calls)
			}
			if n := valueOf(t, w.reg, `gateway_attempts_total{op="transactions",outcome="approved"}`); int64(n) != calls {
				t.Errorf("%v tries counted, want %d", n, calls)
			}
		})
	}
}

// TestTransactionsWindow: from is in, to is not, whatever Toss makes of endDate.
func TestTransactionsWindow(t *testing.T) {
	t.Parallel()
	w := against(t, nil)
	w.confirm(t, "test_1")
	from, to := w.hour()
	all, _, err := readAll(t.Context(), w.Client, from, to)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v %v", all, err)
	}
	at := all[0].At
	for _, tt := range []struct {
		name     string
		from, to time.Time
		want     int
	}{
		{"from its second", at, at.Add(time.Second), 1},
		{"to its second", at.Add(-time.Minute), at, 0},
		{"after it", at.Add(time.Second), at.Add(time.Minute), 0},
		{"in another zone", at.UTC(), at.Add(time.Second).In(time.FixedZone("", -5*60*60)), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all, _, err := readAll(t.Context(), w.Client, tt.from, tt.to)
			if err != nil || len(all) != tt.want {
				t.Errorf("%d lines, want %d, %v", len(all), tt.want, err)
			}
		})
	}
}

// TestTransactionsFaults: over sockets, what goes wrong once is borne, what stays wrong ends with its reason.
func TestTransactionsFaults(t *testing.T) {
	t.Parallel()
	const op = tosssim.OpTransactions
	for _, tt := range []struct {
		name   string
		fault  tosssim.Fault
		reason string // empty: borne
		series string
		count  float64
	}{
		{"throttled once", tosssim.Fault{Op: op, Status: 429, Next: 1}, "", "unavailable", 1},
		// The transport itself repeats a GET on a connection that it found dead: one more reset is ours.
		{"reset twice", tosssim.Fault{Op: op, Drop: tosssim.DropBefore, Next: 2}, "", "unknown", 1},
		{"hangs once", tosssim.Fault{Op: op, Hang: true, Next: 1}, "", "unknown", 1},
		{"truncated once", tosssim.Fault{Op: op, Malformed: tosssim.MalformedTruncated, Next: 1}, "", "unknown", 1},
		{"hangs", tosssim.Fault{Op: op, Hang: true}, "timeout", "unknown", 3},
		{"a proxy's page", tosssim.Fault{Op: op, Malformed: tosssim.MalformedHTML}, "unreadable page", "unknown", 3},
		{"wrong key", tosssim.Fault{Op: op, Code: "UNAUTHORIZED_KEY"}, "misconfigured, status 401 UNAUTHORIZED_KEY", "misconfigured", 1},
		{"wrong date", tosssim.Fault{Op: op, Code: "INVALID_DATE"}, "rejected, status 400 INVALID_DATE", "declined", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := against(t, func(o *Options) {
				if o.TransactionsTimeout = time.Minute; tt.fault.Hang {
					o.TransactionsTimeout = 3 * time.Second
				}
			})
			w.confirm(t, "test_1")
			if err := w.sim.SetFaults(tt.fault); err != nil {
				t.Fatal(err)
			}
			from, to := w.hour()
			all, _, err := readAll(t.Context(), w.Client, from, to)
			switch {
			case tt.reason == "" && (err != nil || len(all) != 1):
				t.Errorf("%d lines, %v", len(all), err)
			case tt.reason != "" && (err == nil || !strings.Contains(err.Error(), tt.reason)):
				t.Errorf("%v, want %q", err, tt.reason)
			}
			if n := valueOf(t, w.reg, fmt.Sprintf(`gateway_attempts_total{op="transactions",outcome=%q}`, tt.series)); n != tt.count {
				t.Errorf("%v tries are %s, want %v", n, tt.series, tt.count)
			}
			if strings.Contains(w.log.String()+fmt.Sprint(err), "test_sk_secret") || strings.Contains(w.log.String(), "test_1") {
				t.Errorf("the log tells a secret or a paymentKey:\n%s", w.log)
			}
		})
	}
}

// TestTransactionsPatience: how long a sick feed is waited for, in virtual time.
func TestTransactionsPatience(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		answer func(n int, req *http.Request) (*http.Response, error)
		took   time.Duration
		calls  int
	}{
		{"throttled", func(int, *http.Request) (*http.Response, error) { return respond(429, `{"code":"TOO_MANY_REQUESTS"}`) },
			(1 + 2 + 4 + 8 + 16 + 32 + 64) * time.Second, 8},
		{"throttled for a time", func(int, *http.Request) (*http.Response, error) {
			r, err := respond(429, `{"code":"TOO_MANY_REQUESTS"}`)
			r.Header.Set("Retry-After", "3000")
			return r, err
		}, 7 * 2 * time.Minute, 8},
		{"silent", func(_ int, req *http.Request) (*http.Response, error) { return hang(req) }, 3*time.Minute + 3*time.Second, 3},
		{"refused", func(int, *http.Request) (*http.Response, error) { return refusedDial() }, 3 * time.Second, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, plain(), tt.answer)
				start := time.Now()
				_, _, err := readAll(t.Context(), b.Client, start, start.Add(time.Hour))
				if took := time.Since(start); err == nil || took != tt.took || b.gateway.calls() != tt.calls {
					t.Errorf("%v after %v and %d calls, want %v and %d", err, took, b.gateway.calls(), tt.took, tt.calls)
				}
			})
		})
	}
}

// TestTransactionsEndWithTheirContext: an audit that is interrupted says so at once.
func TestTransactionsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, plain(), func(int, *http.Request) (*http.Response, error) { return respond(429, `{}`) })
		cause := errors.New("interrupted")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(2*time.Second, func() { cancel(cause) })
		start := time.Now()
		_, _, err := readAll(ctx, b.Client, start, start.Add(time.Hour))
		if !errors.Is(err, cause) || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// line is one transaction of a feed of which Toss's documentation leaves much open.
func line(key string, change ...string) string {
	fields := map[string]any{
		"mId": "m", "transactionKey": key, "paymentKey": "pay-" + key, "orderId": "order-" + key, "method": nil, "customerKey": nil,
		"useEscrow": nil, "receiptUrl": nil, "status": "DONE", "transactionAt": "2026-11-29T10:00:00+09:00", "currency": "KRW", "amount": 15000,
	}
	for i := 0; i < len(change); i += 2 {
		fields[change[i]] = json.RawMessage(change[i+1])
	}
	b, _ := json.Marshal(fields)
	return string(b)
}

func pageOf(lines ...string) string { return "[" + strings.Join(lines, ",") + "]" }

// TestTransactionsCursor: feeds that count the cursor in, overlap, or turn in a circle.
func TestTransactionsCursor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		pages  map[string]string // by startingAfter
		want   int
		reason string
	}{
		{"empty", map[string]string{"": "[]"}, 0, ""},
		{"short pages", map[string]string{"": pageOf(line("a")), "a": pageOf(line("b"), line("c")), "c": "[]"}, 3, ""},
		{"counts the cursor in", map[string]string{"": pageOf(line("a"), line("b")), "b": pageOf(line("b"), line("c")), "c": pageOf(line("c"))}, 3, ""},
		{"ignores the cursor", map[string]string{"": pageOf(line("a"), line("b")), "b": pageOf(line("a"), line("b"))}, 2, "repeats a page"},
		{"circle", map[string]string{"": pageOf(line("a")), "a": pageOf(line("b")), "b": pageOf(line("c")), "c": pageOf(line("a"))}, 3, "repeats a page"},
		{"no key", map[string]string{"": pageOf(line("a"), line("b", "transactionKey", "null"))}, 0, "without a key"},
		{"no payment", map[string]string{"": pageOf(line("a", "paymentKey", `""`))}, 0, "unreadable page"},
		{"null", map[string]string{"": "null"}, 0, "unreadable page"},
		{"an object", map[string]string{"": "{}"}, 0, "unreadable page"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, plain(), func(_ int, req *http.Request) (*http.Response, error) {
					return respond(200, tt.pages[req.URL.Query().Get("startingAfter")])
				})
				from := time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC)
				all, _, err := readAll(t.Context(), b.Client, from, from.Add(24*time.Hour))
				if len(all) != tt.want || (err == nil) != (tt.reason == "") || err != nil && !strings.Contains(err.Error(), tt.reason) {
					t.Errorf("%d lines, %v, want %d, %q", len(all), err, tt.want, tt.reason)
				}
			})
		})
	}
}

// TestTransactionForms: Toss does not say how a cancel looks in the feed; a line that cannot be read hides no other.
func TestTransactionForms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change []string
		status payment.Sighting
		amount payment.Amount
	}{
		{"approval", nil, payment.SeenDone, 15000},
		{"negative cancel", []string{"status", `"CANCELED"`, "amount", "-15000"}, payment.SeenCanceled, -15000},
		{"positive cancel", []string{"status", `"CANCELED"`, "amount", "15000"}, payment.SeenCanceled, -15000},
		{"positive part", []string{"status", `"PARTIAL_CANCELED"`, "amount", "4000.0"}, payment.SeenPartlyCanceled, -4000},
		{"negative under DONE", []string{"amount", "-4000"}, payment.SeenDone, -4000},
		{"deposit taken back", []string{"status", `"WAITING_FOR_DEPOSIT"`, "amount", "-15000"}, payment.SeenWaiting, -15000},
		{"dollars", []string{"currency", `"USD"`, "amount", "12.5"}, payment.SeenDone, 1250},
		{"big", []string{"amount", "50000000000"}, payment.SeenDone, 50000000000},
		{"a new status", []string{"status", `"BRAND_NEW"`}, payment.SeenUnknownStatus, 15000},
		{"no amount", []string{"amount", "null"}, payment.SeenUnknownStatus, 0},
		{"an exponent", []string{"amount", "1e3"}, payment.SeenUnknownStatus, 0},
		{"an object", []string{"amount", `{"value":1}`}, payment.SeenUnknownStatus, 0},
		{"no status", []string{"status", "null"}, payment.SeenUnknownStatus, 15000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			page, err := decodeTransactions([]byte(pageOf(line("a", tt.change...), line("b"))))
			if err != nil || len(page) != 2 || page[0].Status != tt.status || page[0].Amount != tt.amount || page[1].Amount != 15000 {
				t.Errorf("%+v, %v", page, err)
			}
		})
	}
}

// TestTransactionsRequest: Korean time without an offset; a page larger than a Payment may be.
func TestTransactionsRequest(t *testing.T) {
	t.Parallel()
	lines := make([]string, maxPage)
	for i := range lines {
		lines[i] = line(fmt.Sprint(i), "receiptUrl", `"https://dashboard.tosspayments.com/receipt?`+strings.Repeat("x", 200)+`"`)
	}
	var query []string
	b := setup(t, plain(), func(n int, req *http.Request) (*http.Response, error) {
		query = append(query, req.URL.RawQuery)
		if n > 1 {
			return respond(200, "[]")
		}
		return respond(200, pageOf(lines...))
	})
	from := time.Date(2026, 11, 28, 15, 0, 0, 0, time.UTC)
	all, pages, err := readAll(t.Context(), b.Client, from, from.Add(24*time.Hour))
	if err != nil || len(all) != maxPage || pages != 1 {
		t.Errorf("%d lines in %d pages, %v", len(all), pages, err)
	}
	want := []string{
		"endDate=2026-11-30T00%3A00%3A00&limit=1000&startDate=2026-11-29T00%3A00%3A00",
		"endDate=2026-11-30T00%3A00%3A00&limit=1000&startDate=2026-11-29T00%3A00%3A00&startingAfter=4999",
	}
	if diff := cmp.Diff(want, query); diff != "" {
		t.Errorf("queries (-want +got):\n%s", diff)
	}
}

// FuzzTransactions: whatever comes, a page or an error, and every line has its paymentKey.
func FuzzTransactions(f *testing.F) {
	f.Add(pageOf(line("a"), line("b", "amount", "-1")))
	f.Add(`[{"paymentKey":"k","amount":"x"}]`)
	f.Add(`[null]`)
	f.Fuzz(func(t *testing.T, body string) {
		page, err := decodeTransactions([]byte(body))
		for _, x := range page {
			if x.PaymentKey == "" || err != nil {
				t.Errorf("%+v beside %v", x, err)
			}
		}
	})
}
