package main

import (
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"paymentd/deploy"
)

const (
	confirmResults = "result=approved|replayed|awaiting_deposit|declined|expired|pending_unknown|pending_running|pending_unavailable|" +
		"pg_unavailable|busy|db_unavailable|db_failed|order_conflict|payment_canceled|invalid_request|member_rate_limited|" +
		"gateway_misconfigured|internal"
	actors   = "actor=confirm|recovery|sync|webhook|operator"
	attempts = "op=confirm|lookup|cancel|transactions outcome=approved|declined|unknown|unavailable|misconfigured|other"
	states   = "closed|open|half_open|forced_open"
	pools    = "pool=request|background"
)

// contract is every metric with every value of its labels, written down here a second time on purpose: dashboards and
// alerts of others are built on these words. "*" stands for whatever the other door tests hold.
var contract = []struct{ kind, name, labels string }{
	{"counter", "confirm_total", confirmResults},
	{"histogram", "confirm_duration_seconds", confirmResults},
	{"counter", "settled_total", "status=PENDING|AWAITING_DEPOSIT|PAID|FAILED|CANCELED " + actors},
	{"histogram", "settle_duration_seconds", actors},
	{"counter", "gateway_attempts_total", attempts},
	{"histogram", "gateway_duration_seconds", attempts},
	{"counter", "retry_sequences_total", "result=absorbed|exhausted"},
	{"gauge", "breaker_state", "state=" + states},
	{"counter", "breaker_transitions_total", "from=" + states + " to=" + states},
	{"counter", "breaker_results_total", "result=success|failure|ignored|dropped|refused"},
	{"gauge", "bulkhead_in_flight", ""},
	{"gauge", "bulkhead_waiting", ""},
	{"counter", "refused_total", "by=breaker|limiter|bulkhead"},
	{"gauge", "db_connections", pools + " state=in_use|idle"},
	{"gauge", "db_connections_max", pools},
	{"gauge", "db_acquire_waiting", pools},
	{"histogram", "db_acquire_duration_seconds", pools},
	{"counter", "db_acquire_timeouts_total", pools},
	{"gauge", "payments", "status=PENDING|AWAITING_DEPOSIT"},
	{"gauge", "oldest_pending_seconds", ""},
	{"counter", "recovery_total", "action=paid|failed|canceled|awaiting_deposit|sent|waited|given_back|incident|error"},
	{"gauge", "recovery_last_success_timestamp_seconds", ""},
	{"gauge", "incidents_open", "kind=mismatch|cancel_failed|unexpected_state|orphan_approval|unknown_outcome|dead_notice"},
	{"gauge", "notices", "state=queued|dead"},
	{"counter", "notice_attempts_total", "sink=log|webhook|mail result=delivered|failed|dead|superseded"},
	{"counter", "http_requests_total", "route=* code=2xx|3xx|4xx|5xx"},
	{"histogram", "http_duration_seconds", "route=*"},
	{"gauge", "build_info", "version=*"},
}

// standing are series that are not 0 in a paymentd without traffic, and why.
var standing = map[string]string{
	`breaker_state{state="closed"}`:           "1 for the state it is in",
	"build_info":                              "always 1",
	"db_connections_max":                      "a setting",
	"db_connections":                          "a pool may hold connections",
	"db_acquire_waiting":                      "recovery and notices begin together, with more loops than connections",
	"db_acquire_duration_seconds":             "recovery and the figures themselves use the database",
	"recovery_last_success_timestamp_seconds": "recovery runs",
	"http_requests_total":                     "this scrape",
	"http_duration_seconds":                   "this scrape",
}

var (
	// series is one line of /metrics.
	series = regexp.MustCompile(`(?m)^paymentd_([a-z0-9_]+)(?:\{(.*)\})? (\S+)$`)
	bound  = regexp.MustCompile(`,?le="[^"]*"`)
	open   = regexp.MustCompile(`(route|version)="[^"]*"`)
)

// TestMetricsContract: a paymentd that nobody has called yet shows every series, and no other, each at 0. A counter
// that appeared with its first event would hide that event from every rate (trap 24).
func TestMetricsContract(t *testing.T) {
	t.Parallel()
	text := scrape(t)
	kind, got, values := kinds(text), map[string]bool{}, map[string]string{}
	for _, m := range series.FindAllStringSubmatch(text, -1) {
		name, labels := m[1], m[2]
		if kind[name] == "" { // a part of a histogram
			name = name[:strings.LastIndex(name, "_")]
			labels = bound.ReplaceAllString(labels, "")
		}
		labels = open.ReplaceAllString(labels, `$1="*"`)
		id := kind[name] + " " + name + "{" + sortedLabels(labels) + "}"
		got[id] = true
		if m[3] != "0" {
			values[name], values[name+"{"+labels+"}"] = m[3], m[3]
		}
	}
	want := map[string]bool{}
	for _, c := range contract {
		for _, labels := range product(strings.Fields(c.labels)) {
			if c.name != "breaker_transitions_total" || !sameState(labels) {
				want[c.kind+" "+c.name+"{"+sortedLabels(labels)+"}"] = true
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
	for id, v := range values {
		name, _, labeled := strings.Cut(id, "{")
		if _, ok := standing[name]; ok {
			continue
		}
		if _, ok := standing[id]; !ok && (labeled || name != "breaker_state") {
			t.Errorf("%s is %s before anything happened", id, v)
		}
	}
}

// criticised are names that promtool does not like and the contract keeps: nothing today.
var criticised []string

// TestMetricsAreClean: Prometheus's own check has nothing to say about names, help texts and units.
func TestMetricsAreClean(t *testing.T) {
	t.Parallel()
	check := exec.CommandContext(t.Context(), deploy.Program(t, "promtool"), "check", "metrics")
	check.Stdin = strings.NewReader(scrape(t))
	out, err := check.CombinedOutput()
	var left []string
	for line := range strings.Lines(string(out)) {
		if !slices.ContainsFunc(criticised, func(name string) bool { return strings.HasPrefix(line, name+" ") }) {
			left = append(left, line)
		}
	}
	if len(left) > 0 || err != nil && len(criticised) == 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, strings.Join(left, ""))
	}
}

// scrape is the text that a fresh paymentd shows.
func scrape(t *testing.T) string {
	t.Helper()
	in := newWorld(t).start()
	return in.call(http.MethodGet, in.admin+"/metrics", "", "").want(t, 200, "").raw
}

// kinds are the types of all metrics by name.
func kinds(text string) map[string]string {
	all := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE paymentd_(\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
		all[m[1]] = m[2]
	}
	return all
}

// product is every combination of "name=value|value" as the labels of a series.
func product(labels []string) []string {
	all := []string{""}
	for _, l := range labels {
		name, values, _ := strings.Cut(l, "=")
		var next []string
		for _, head := range all {
			for v := range strings.SplitSeq(values, "|") {
				next = append(next, head+","+name+`="`+v+`"`)
			}
		}
		all = next
	}
	return all
}

func sortedLabels(labels string) string {
	parts := strings.Split(strings.Trim(labels, ","), ",")
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// sameState: the breaker does not move from a state to itself.
func sameState(labels string) bool {
	m := regexp.MustCompile(`from="(.*?)",to="(.*?)"`).FindStringSubmatch(labels)
	return m != nil && m[1] == m[2]
}
