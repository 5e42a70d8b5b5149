package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// minimal are the variables that have no default.
func minimal(more ...string) []string {
	return append([]string{
		"PAYMENTD_DATABASE_URL=postgres://pay:db-secret@127.0.0.1/pay",
		"PAYMENTD_API_KEYS=shop:checkout:checkout-secret-0123456789",
		"PAYMENTD_TOSS_SECRET_KEY=test_sk_toss-secret",
	}, more...)
}

func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	c, err := loadConfig(minimal())
	if err != nil {
		t.Fatal(err)
	}
	// The sum of design note "Configuration" with the defaults of every part.
	if want := 58*time.Second + 750*time.Millisecond; c.Deadline() != want {
		t.Errorf("D = %s, want %s", c.Deadline(), want)
	}
	if c.Lease() != c.Deadline()+2*time.Second || c.Resend() != 2*time.Minute || c.Shutdown() != c.Deadline() {
		t.Errorf("lease %s, resend %s, shutdown %s", c.Lease(), c.Resend(), c.Shutdown())
	}
}

func TestConfigDerived(t *testing.T) {
	t.Parallel()
	c, err := loadConfig(minimal("PAYMENTD_TOSS_CONFIRM_TIMEOUT=60s", "PAYMENTD_ON_COMMIT_FAILURE=cancel"))
	if err != nil {
		t.Fatal(err)
	}
	if want := 58*time.Second + 750*time.Millisecond + 90*time.Second + 15*time.Second; c.Deadline() != want {
		t.Errorf("D = %s, want %s", c.Deadline(), want)
	}
	if want := c.Lease() + 10*time.Second; c.Resend() != want {
		t.Errorf("the default of RESEND_WITHIN is %s, want lease + two looks, %s", c.Resend(), want)
	}
}

func TestTrap29_ConfigRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, set, want string }{
		{"bad duration", "TOSS_CONFIRM_TIMEOUT=soon", "PAYMENTD_TOSS_CONFIRM_TIMEOUT: must be a duration"},
		{"negative duration", "ANSWER_WITHIN=-1s", "PAYMENTD_ANSWER_WITHIN: must be a duration"},
		{"zero time-out", "TOSS_CONFIRM_TIMEOUT=0s", "PAYMENTD_TOSS_CONFIRM_TIMEOUT: must be above 0"},
		{"bad rate", "RATE_LIMIT=30", "PAYMENTD_RATE_LIMIT: must be a rate"},
		{"bad switch", "DB_MERGE=yes", "PAYMENTD_DB_MERGE: must be on or off"},
		{"bad number", "BULKHEAD=many", "PAYMENTD_BULKHEAD: must be a whole number"},
		{"bad policy", "ON_UNAVAILABLE=hope", "PAYMENTD_ON_UNAVAILABLE: must be reject or pending"},
		{"bad commit policy", "ON_COMMIT_FAILURE=hope", "PAYMENTD_ON_COMMIT_FAILURE: must be hold or cancel"},
		{"unknown name", "RETRY_MAXIMUM=1", "PAYMENTD_RETRY_MAXIMUM: unknown name"},
		{"retry on what", "RETRY_ON=timeout", "PAYMENTD_RETRY_ON: may hold"},
		{"retry place", "RETRY_PLACE=around", "PAYMENTD_RETRY_PLACE: must be inside or outside"},
		{"minimum above window", "BREAKER_MIN_CALLS=21", "PAYMENTD_BREAKER_MIN_CALLS: must not be above BREAKER_WINDOW (20)"},
		{"rate in percent", "BREAKER_FAILURE_RATE=50", "PAYMENTD_BREAKER_FAILURE_RATE: must be above 0 and at most 1"},
		{"not a rate at all", "BREAKER_FAILURE_RATE=NaN", "PAYMENTD_BREAKER_FAILURE_RATE: must be above 0 and at most 1"},
		{"no trials", "BREAKER_HALF_OPEN_CALLS=0", "PAYMENTD_BREAKER_HALF_OPEN_CALLS: must be at least 1"},
		{"endless lease", "TOSS_CONFIRM_TIMEOUT=20m", "PAYMENTD_TOSS_CONFIRM_TIMEOUT: and the waits and retries add up to a lease of"},
		{"a lease that overflows", "TOSS_CONFIRM_TIMEOUT=2562047h", "PAYMENTD_TOSS_CONFIRM_TIMEOUT: must be at most 8760h0m0s"},
		{"a pause that overflows", "RETRY_DELAY=2562047h", "PAYMENTD_RETRY_DELAY: must be at most 8760h0m0s"},
		{"a wait that overflows", "BULKHEAD_WAIT=2562047h", "PAYMENTD_BULKHEAD_WAIT: must be at most 8760h0m0s"},
		{"resend for ever", "RESEND_WITHIN=2562047h", "PAYMENTD_RESEND_WITHIN: must be at most 8760h0m0s"},
		{"a window of gigabytes", "BREAKER_WINDOW=2000000000", "PAYMENTD_BREAKER_WINDOW: must be at most 1000000"},
		{"no statement limit", "DB_STATEMENT_TIMEOUT=100us", "PAYMENTD_DB_STATEMENT_TIMEOUT: must be at least 1ms"},
		{"a loop without a pause", "RECOVERY_DUE_EVERY=1ns", "PAYMENTD_RECOVERY_DUE_EVERY: must be at least 10ms"},
		{"bad port", "LISTEN=:99999", "PAYMENTD_LISTEN: must be host:port"},
		{"one address for both doors", "LISTEN=127.0.0.1:9090", "PAYMENTD_ADMIN_LISTEN: must not be the address of LISTEN"},
		{"endless cancel", "TOSS_CANCEL_TIMEOUT=20m", "PAYMENTD_TOSS_CANCEL_TIMEOUT: must be at most"},
		{"no burst", "RATE_BURST=0", "PAYMENTD_RATE_BURST: must be at least 1"},
		{"negative bulkhead", "BULKHEAD=-1", "PAYMENTD_BULKHEAD: must not be negative"},
		{"resend inside the lease", "RESEND_WITHIN=60s", "PAYMENTD_RESEND_WITHIN: must be 0 or at least"},
		{"send after the window", "SEND_WITHIN=10m", "PAYMENTD_SEND_WITHIN: must be below TOSS_WINDOW"},
		{"too many workers", "NOTIFY_WORKERS=5", "PAYMENTD_NOTIFY_WORKERS: must be 1 to 4"},
		{"no background connection", "DB_BACKGROUND_CONNS=0", "PAYMENTD_DB_BACKGROUND_CONNS: must be at least 1"},
		{"no lookups", "LOOKUP_RATE=0", "PAYMENTD_LOOKUP_RATE: must not be 0"},
		{"webhook without secret", "NOTIFY_WEBHOOK_URL=https://shop.example/hook", "PAYMENTD_NOTIFY_WEBHOOK_SECRET: is needed"},
		{"webhook's weak secret", "NOTIFY_WEBHOOK_URL=https://shop.example/hook\x00NOTIFY_WEBHOOK_SECRET=short", "PAYMENTD_NOTIFY_WEBHOOK_URL: or its secret"},
		{"mail without sender", "NOTIFY_SMTP_URL=smtp://mail.example", "PAYMENTD_NOTIFY_SMTP_URL: and NOTIFY_FROM go together"},
		{"mail's URL", "NOTIFY_SMTP_URL=http://mail.example\x00NOTIFY_FROM=shop@shop.example", "PAYMENTD_NOTIFY_SMTP_URL: or NOTIFY_FROM: mail: URL: must begin with smtp:// or smtps://"},
		{"mail's sender", "NOTIFY_SMTP_URL=smtp://mail.example\x00NOTIFY_FROM=shop", "PAYMENTD_NOTIFY_SMTP_URL: or NOTIFY_FROM: mail: from: must be one address"},
		{"log level", "LOG_LEVEL=loud", "PAYMENTD_LOG_LEVEL: must be"},
		{"Toss URL", "TOSS_URL=ftp://toss.example", "PAYMENTD_TOSS_URL: must be an http or https URL"},
		{"bad DSN", "DATABASE_URL=postgres://u:db-secret@host:notaport/x", "PAYMENTD_DATABASE_URL: must be a PostgreSQL DSN"},
		{"bad address", "LISTEN=nonsense", "PAYMENTD_LISTEN: must be host:port"},
		{"URL with user", "TOSS_URL=https://user@toss.example", "PAYMENTD_TOSS_URL: must be an http or https URL without user"},
		{"no ASCII key", "TOSS_SECRET_KEY=test_sk_키", "PAYMENTD_TOSS_SECRET_KEY: must be printable ASCII"},
		{"no such file", "TOSS_SECRET_KEY_FILE=/does/not/exist", "PAYMENTD_TOSS_SECRET_KEY: give either"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var set []string
			for pair := range strings.SplitSeq(tc.set, "\x00") {
				set = append(set, "PAYMENTD_"+pair)
			}
			_, err := loadConfig(minimal(set...))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want a text with %q", err, tc.want)
			}
		})
	}
}

func TestConfigZeroSwitchesOff(t *testing.T) {
	t.Parallel()
	c, err := loadConfig(minimal("PAYMENTD_RATE_LIMIT=0", "PAYMENTD_RATE_BURST=0", "PAYMENTD_BULKHEAD=0",
		"PAYMENTD_MEMBER_LIMIT=0", "PAYMENTD_RESEND_WITHIN=0", "PAYMENTD_BREAKER_WINDOW=0"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Resend() != 0 || c.RateLimit.PerSecond() != 0 {
		t.Errorf("resend %s, rate %v", c.Resend(), c.RateLimit)
	}
}

func TestConfigTellsAllMistakesAtOnceAndNoSecret(t *testing.T) {
	t.Parallel()
	_, err := loadConfig([]string{
		"PAYMENTD_DATABASE_URL=postgres://pay:db-secret@127.0.0.1/pay", "PAYMENTD_TOSS_SECRET_KEY=toss:secret",
		"PAYMENTD_API_KEYS=x", "PAYMENTD_RETRY_MAX=99", "PAYMENTD_NOTIFY_WORKERS=0", "PAYMENTD_LOG_FORMAT=xml",
	})
	text := fmt.Sprint(err)
	for _, want := range []string{"RETRY_MAX", "NOTIFY_WORKERS", "LOG_FORMAT", "TOSS_SECRET_KEY", "API_KEYS"} {
		if !strings.Contains(text, "PAYMENTD_"+want) {
			t.Errorf("%s is not named in %q", want, text)
		}
	}
	if strings.Contains(text, "toss:secret") || strings.Contains(text, "db-secret") {
		t.Errorf("a secret in %q", text)
	}
	_, err = loadConfig(minimal("PAYMENTD_RATE_LIMIT=abc", "PAYMENTD_BREAKER_MIN_CALLS=99", "PAYMENTD_NOTIFY_WORKERS=9", "PAYMENTD_TOSS_WINDOW=soon"))
	for _, want := range []string{"RATE_LIMIT", "BREAKER_MIN_CALLS", "NOTIFY_WORKERS", "TOSS_WINDOW"} {
		if n := strings.Count(fmt.Sprint(err), "PAYMENTD_"+want+":"); n != 1 {
			t.Errorf("%s is named %d times in %q", want, n, err)
		}
	}
	if strings.Contains(fmt.Sprint(err), "SEND_WITHIN") {
		t.Errorf("a mistake that follows from another is told: %v", err)
	}
	_, err = loadConfig(nil)
	for _, want := range []string{"DATABASE_URL", "API_KEYS", "TOSS_SECRET_KEY"} {
		if !strings.Contains(fmt.Sprint(err), "PAYMENTD_"+want) {
			t.Errorf("missing %s is not named in %q", want, err)
		}
	}
}

// TestConfigBesideServe: a command that opens no door does without keys, but takes no wrong ones and spares nothing else.
func TestConfigBesideServe(t *testing.T) {
	t.Parallel()
	given := minimal("PAYMENTD_BULKHEAD=7")
	for _, tc := range []struct {
		name string
		env  []string
		want string
	}{
		{"no keys", []string{given[0], given[2], given[3]}, ""},
		{"empty keys", []string{given[0], "PAYMENTD_API_KEYS=", given[2], given[3]}, ""},
		{"keys", given, ""},
		{"wrong keys", []string{given[0], "PAYMENTD_API_KEYS=x", given[2]}, "PAYMENTD_API_KEYS: "},
		{"no database", given[1:], "PAYMENTD_DATABASE_URL: is required"},
		{"another mistake", []string{given[0], given[2], "PAYMENTD_BULKHEAD=-1"}, "PAYMENTD_BULKHEAD: must not be negative"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := settingsBeside(tc.env)
			if tc.want == "" {
				if err != nil || c.Bulkhead != 7 || c.TossSecretKey != "test_sk_toss-secret" {
					t.Errorf("%v, %+v", err, c)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "API_KEYS: is required") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestConfigLiveKey(t *testing.T) {
	t.Parallel()
	env := minimal("PAYMENTD_TOSS_URL=http://toss.example")
	env[2] = "PAYMENTD_TOSS_SECRET_KEY=live_sk_x"
	for _, url := range []string{"http://toss.example", "HTTP://toss.example"} {
		env[3] = "PAYMENTD_TOSS_URL=" + url
		if _, err := loadConfig(env); err == nil || !strings.Contains(err.Error(), "https with a live key") {
			t.Errorf("a live key over %s: %v", url, err)
		}
	}
}

func TestSecretsFromFilesAndNeverShown(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("test_sk_from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := minimal("PAYMENTD_TOSS_SECRET_KEY_FILE=" + path)
	c, err := loadConfig(append(env[:2], env[3:]...))
	if err != nil {
		t.Fatal(err)
	}
	if c.TossSecretKey != "test_sk_from-a-file" {
		t.Error("the file's content is not the key")
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("config", "config", c)
	shown := fmt.Sprintf("%v %+v %#v %s", c, c, c, log.String())
	for _, secret := range []string{"from-a-file", "db-secret", "checkout-secret"} {
		if strings.Contains(shown, secret) {
			t.Errorf("%q is shown", secret)
		}
	}
}

// TestConfigDocument holds docs/config.md to the struct: every variable with its default and meaning.
func TestConfigDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| `") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if diff := cmp.Diff(configRows(), got); diff != "" {
		t.Errorf("docs/config.md (-want +got):\n%s", diff)
	}
}

func configRows() []string {
	var rows []string
	for _, f := range fields() {
		value := "–"
		switch {
		case f.Required:
			value = "required"
		case f.Default != "":
			value = "`" + f.Default + "`"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", f.Name, value, f.Help))
	}
	return rows
}
