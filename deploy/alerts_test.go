package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

func mustRun(t *testing.T, path string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", filepath.Base(path), strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestPrometheusFiles(t *testing.T) {
	t.Parallel()
	promtool := Program(t, "promtool")
	mustRun(t, promtool, "check", "config", "prometheus/prometheus.yml")
	mustRun(t, promtool, "check", "rules", "prometheus/rules/paymentd.yml")
}

var ruleTests = []string{"prometheus/rules_test.yml", "prometheus/rules_budget_test.yml"}

func TestAlertRules(t *testing.T) {
	t.Parallel()
	mustRun(t, Program(t, "promtool"), append([]string{"test", "rules"}, ruleTests...)...)
}

func TestAlertmanagerFile(t *testing.T) {
	t.Parallel()
	amtool := Program(t, "amtool")
	const file = "alertmanager/alertmanager.yml"
	mustRun(t, amtool, "check-config", file)
	for _, alert := range []string{"PaymentsFailing", "BreakerOpen", "MoneyIncidentOpen"} {
		if got := mustRun(t, amtool, "config", "routes", "test", "--config.file="+file, "job=paymentd", "alertname="+alert); !strings.HasSuffix(got, "\noperators\n") {
			t.Errorf("%s goes to %q", alert, got)
		}
	}
	config := read(t, file)
	if !strings.Contains(config, "group_by: [job]") {
		t.Error("one outage is more than one message: group_by is not the job alone")
	}
}

// alert is one rule with what this package promises of it.
type alert struct {
	Alert       string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) []alert {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []alert }
	}
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/rules/paymentd.yml")), &file); err != nil {
		t.Fatal(err)
	}
	var list []alert
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				list = append(list, r)
			}
		}
	}
	if len(list) < 8 {
		t.Fatalf("read only %d alerts", len(list))
	}
	return list
}

var heading = regexp.MustCompile(`(?m)^(#+) (.*)$`)

// TestAlertsLeadSomewhere: each has a summary, a severity and a heading in the runbook with its name, cause, look here, do this.
func TestAlertsLeadSomewhere(t *testing.T) {
	t.Parallel()
	sections := map[string]string{}
	runbook := read(t, "../docs/runbook.md")
	places := heading.FindAllStringSubmatchIndex(runbook, -1)
	for i, at := range places {
		end := len(runbook)
		for _, next := range places[i+1:] {
			if next[3]-next[2] <= at[3]-at[2] { // its level is not deeper
				end = next[0]
				break
			}
		}
		sections[anchor(runbook[at[4]:at[5]])] = runbook[at[1]:end]
	}
	for _, a := range alerts(t) {
		if a.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) {
			t.Errorf("%s has no summary or severity", a.Alert)
		}
		name, ok := strings.CutPrefix(a.Annotations["runbook"], "docs/runbook.md#")
		text, found := sections[name]
		if !ok || !found {
			t.Errorf("%s leads to %q, which is not in the runbook", a.Alert, a.Annotations["runbook"])
			continue
		}
		for _, part := range []string{"**Cause.**", "**Look here.**", "**Do this.**", "`" + a.Alert + "`"} {
			if !strings.Contains(text, part) {
				t.Errorf("%s: the runbook's %q has no %s", a.Alert, name, part)
			}
		}
	}
}

// TestEveryAlertIsTested: the rule tests show each firing and each silent.
func TestEveryAlertIsTested(t *testing.T) {
	t.Parallel()
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, name := range ruleTests {
		var file struct {
			Tests []struct {
				Cases []struct {
					Name   string `yaml:"alertname"`
					Alerts []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			}
		}
		if err := yaml.Unmarshal([]byte(read(t, name)), &file); err != nil {
			t.Fatal(err)
		}
		for _, test := range file.Tests {
			for _, c := range test.Cases {
				fires[c.Name] = fires[c.Name] || len(c.Alerts) > 0
				silent[c.Name] = silent[c.Name] || len(c.Alerts) == 0
			}
		}
	}
	for _, a := range alerts(t) {
		if !fires[a.Alert] || !silent[a.Alert] {
			t.Errorf("%s: shown firing %t, shown silent %t", a.Alert, fires[a.Alert], silent[a.Alert])
		}
	}
}

// anchor is how a heading is linked to: lower case, spaces as hyphens, nothing else but letters, digits and "_".
func anchor(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		}
	}
	return b.String()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
