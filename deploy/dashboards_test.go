package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

const dashboardDir = "grafana/dashboards"

type source struct{ Type, UID string }

// dashboard is what the lint reads of one.
type dashboard struct {
	UID, Title, Description string
	Panels                  []struct {
		ID                       int
		Type, Title, Description string
		GridPos                  struct{ X, Y, W, H int }
		Datasource               *source
		FieldConfig              struct{ Defaults struct{ Unit string } }
		Options                  struct{ Content string }
		Targets                  []struct {
			RefID, Expr, LegendFormat string
			Datasource                source
		}
	}
	Templating struct {
		List []struct {
			Name       string
			Datasource source
		}
	}
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	paths, err := filepath.Glob(dashboardDir + "/*.json")
	if err != nil || len(paths) < 5 {
		t.Fatalf("dashboards: %v %v", paths, err)
	}
	all := map[string]dashboard{}
	for _, path := range paths {
		var d dashboard
		if err := json.Unmarshal([]byte(read(t, path)), &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all[filepath.Base(path)] = d
	}
	return all
}

// provisioned is the data source that Grafana is started with.
func provisioned(t *testing.T) source {
	t.Helper()
	var file struct {
		Datasources []struct {
			UID, Type string
			JSONData  struct {
				TimeInterval string `yaml:"timeInterval"`
			} `yaml:"jsonData"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "grafana/provisioning/datasources/prometheus.yml")), &file); err != nil || len(file.Datasources) != 1 {
		t.Fatalf("data sources: %+v, %v", file, err)
	}
	s := file.Datasources[0]
	if !strings.Contains(read(t, "prometheus/prometheus.yml"), "scrape_interval: "+s.JSONData.TimeInterval+"\n") {
		t.Errorf("timeInterval %q is not the scrape interval: $__rate_interval would be wrong", s.JSONData.TimeInterval)
	}
	return source{s.Type, s.UID}
}

// TestDashboardsAreReadable: every panel says what it shows to somebody who has never seen the project, in its place.
func TestDashboardsAreReadable(t *testing.T) {
	t.Parallel()
	wanted := provisioned(t)
	uids := map[string]string{}
	for file, d := range dashboards(t) {
		if other := uids[d.UID]; other != "" || d.UID == "" || d.Title == "" || d.Description == "" {
			t.Errorf("%s: uid %q (also of %q), title %q", file, d.UID, other, d.Title)
		}
		uids[d.UID] = file
		for _, v := range d.Templating.List {
			if v.Name != "instance" || v.Datasource != wanted {
				t.Errorf("%s: variable %+v", file, v)
			}
		}
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			name := file + ": " + p.Title
			if ids[p.ID] || p.ID == 0 || p.Title == "" || len(p.Description) < 15 {
				t.Errorf("%s: id %d (used: %t), description %q", name, p.ID, ids[p.ID], p.Description)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
						t.Fatalf("%s lies on %q or outside", name, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "text" {
				if p.Options.Content == "" {
					t.Errorf("%s: no text", name)
				}
				continue
			}
			if p.FieldConfig.Defaults.Unit == "" || p.Datasource == nil || *p.Datasource != wanted || len(p.Targets) == 0 {
				t.Errorf("%s: unit %q, data source %v, %d queries", name, p.FieldConfig.Defaults.Unit, p.Datasource, len(p.Targets))
			}
			for _, q := range p.Targets {
				if q.Datasource != wanted || q.LegendFormat == "" && p.Type != "table" {
					t.Errorf("%s: query %s: data source %v, legend %q", name, q.RefID, q.Datasource, q.LegendFormat)
				}
			}
		}
	}
	if !strings.Contains(read(t, "grafana/provisioning/dashboards/paymentd.yml"), "path: /etc/grafana/dashboards\n") {
		t.Error("Grafana looks for the dashboards elsewhere")
	}
}

var (
	ofDatabase = regexp.MustCompile(`paymentd_(payments|oldest_pending_seconds|incidents_open|notices)\b`)
	window     = regexp.MustCompile(`\[([^\]]*)\]`)
)

// TestDashboardQueries: Prometheus reads every one; figures of the database are not summed over the instances.
func TestDashboardQueries(t *testing.T) {
	t.Parallel()
	promtool := Program(t, "promtool")
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboards\n    rules:\n")
	n := 0
	for file, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				n++
				fmt.Fprintf(&rules, "      - record: panel%d # %s, %s\n        expr: %q\n", n, file, p.Title,
					strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*").Replace(q.Expr))
				if ofDatabase.MatchString(q.Expr) && !strings.Contains(q.Expr, "max") {
					t.Errorf("%s: %s: a figure of the database is the same on every instance, take max: %s", file, p.Title, q.Expr)
				}
				if !ofDatabase.MatchString(q.Expr) && !strings.Contains(q.Expr, `instance=~"$instance"`) && !strings.Contains(q.Expr, "last_success") {
					t.Errorf("%s: %s does not follow the variable instance: %s", file, p.Title, q.Expr)
				}
				for _, w := range window.FindAllStringSubmatch(q.Expr, -1) {
					if w[1] != "$__rate_interval" {
						t.Errorf("%s: %s looks back %s: too short a window is empty, take $__rate_interval", file, p.Title, w[1])
					}
				}
			}
		}
	}
	path := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(path, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	out := mustRun(t, promtool, "check", "rules", path)
	if !strings.Contains(out, fmt.Sprintf("%d rules found", n)) || n < 40 {
		t.Errorf("%d queries, promtool says %s", n, out)
	}
}

// TestDashboardsAreGenerated: the committed files are what their Go source says.
func TestDashboardsAreGenerated(t *testing.T) {
	t.Parallel()
	gotool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command")
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "dashboards"), 0o700); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "generate")
	mustRun(t, gotool, "build", "-o", program, "./grafana")
	generate := exec.CommandContext(t.Context(), program)
	generate.Dir = dir
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for file := range dashboards(t) {
		if read(t, filepath.Join(dir, "dashboards", file)) != read(t, filepath.Join(dashboardDir, file)) {
			t.Errorf("%s is stale: go generate ./deploy/grafana", file)
		}
	}
}
