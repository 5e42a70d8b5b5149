package pg

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"good", func(*Options) {}, ""},
		{"no URL", func(o *Options) { o.BaseURL = "" }, "BaseURL"},
		{"other scheme", func(o *Options) { o.BaseURL = "ftp://x" }, "BaseURL"},
		{"URL with a password", func(o *Options) { o.BaseURL = "http://u:hush@x" }, "BaseURL"},
		{"no key", func(o *Options) { o.SecretKey = "" }, "SecretKey"},
		{"key with a colon", func(o *Options) { o.SecretKey = "hush:" }, "SecretKey"},
		{"key with a byte order mark", func(o *Options) { o.SecretKey = "\ufeffhush" }, "SecretKey"},
		{"no time-out", func(o *Options) { o.LookupTimeout = 0 }, "LookupTimeout"},
		{"retries", func(o *Options) { o.Retry.Max = -1 }, "Retry.Max"},
		{"cause", func(o *Options) { o.Retry.On = []Cause{"timeout"} }, "Retry.On"},
		{"place", func(o *Options) { o.Retry.Place = "around" }, "Retry.Place"},
		{"burst", func(o *Options) { o.Rate.Burst = 0 }, "Rate.Burst"},
		{"bulkhead", func(o *Options) { o.Bulkhead.Max = -1 }, "Bulkhead.Max"},
		{"breaker", func(o *Options) { o.Breaker.MinCalls = 21 }, "MinCalls 21 is more than Window 20"},
		{"breaker's rate", func(o *Options) { o.Breaker.FailureRate = math.NaN() }, "FailureRate"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := layered()
			tt.change(&o)
			c, err := New(o)
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hush")):
				t.Errorf("got %v, want it to name %s", err, tt.want)
			}
			if c != nil {
				c.Close()
			}
		})
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := New(Options{})
	for _, name := range []string{"BaseURL", "SecretKey", "ConnectTimeout", "ConfirmTimeout", "LookupTimeout", "CancelTimeout"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

func TestMaxTrial(t *testing.T) {
	t.Parallel()
	o := layered()
	o.Bulkhead.Wait = time.Second
	if got, want := o.maxTrial(), 2*(4+1+15)*time.Second+750*time.Millisecond+5*time.Second+ownWork; got != want {
		t.Errorf("inside: %v, want %v", got, want)
	}
	o.Retry.Place = Outside
	if got, want := o.maxTrial(), 20*time.Second+ownWork; got != want {
		t.Errorf("outside: %v, want %v", got, want)
	}
}

// TestSeriesExistAtZero: a counter that first appears with a value is invisible to rate().
func TestSeriesExistAtZero(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	o := layered()
	o.Registerer = reg
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		got[f.GetName()] = len(f.GetMetric())
		for _, m := range f.GetMetric() {
			v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if v != 0 && f.GetName() != "paymentd_breaker_state" {
				t.Errorf("%s starts at %v", f.GetName(), v)
			}
		}
	}
	want := map[string]int{
		"paymentd_gateway_attempts_total": 24, "paymentd_gateway_duration_seconds": 24, "paymentd_retry_sequences_total": 2,
		"paymentd_breaker_state": 4, "paymentd_breaker_transitions_total": 12, "paymentd_breaker_results_total": 5,
		"paymentd_bulkhead_in_flight": 1, "paymentd_bulkhead_waiting": 1, "paymentd_refused_total": 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	if valueOf(t, reg, `breaker_state{state="closed"}`) != 1 {
		t.Error("not closed at the start")
	}
	if _, err := New(o); err == nil {
		t.Error("a second client took the same registerer silently")
	}
}
