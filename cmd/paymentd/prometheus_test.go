package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"paymentd/deploy"
)

// watcher is a running Prometheus or Alertmanager.
type watcher struct {
	t   testing.TB
	url string
}

// startWatcher runs a program that listens where --web.listen-address says, until the end of the test.
func startWatcher(t testing.TB, name string, args ...string) *watcher {
	t.Helper()
	program, dir, log := deploy.Program(t, name), t.TempDir(), &logBuffer{}
	if name == "alertmanager" {
		program = relocated(t, program, dir)
	}
	address := freeAddress(t)
	cmd := exec.Command(program, append(args, "--web.listen-address="+address)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(name + "'s log:\n" + log.tail(15))
		}
	})
	w := &watcher{t: t, url: "http://" + address}
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if resp, err := http.Get(w.url + "/-/ready"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return w
			}
		}
	}
	t.Fatalf("%s is not ready:\n%s", name, log.tail(15))
	return nil
}

// relocated is a copy of Debian's Alertmanager that finds its templates beside it: the packaged one insists on
// /usr/share, where an unpacked package is not. A path of the same length is no change to the program.
func relocated(t testing.TB, program, dir string) string {
	t.Helper()
	const installed, beside = "/usr/share/prometheus/alertmanager", "./././././././././././././././data"
	templates := filepath.Join(filepath.Dir(program), "../share/prometheus/alertmanager")
	if _, err := os.Stat(templates); err != nil || filepath.Dir(program) == "/usr/bin" {
		return program
	}
	raw, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(dir, "data"), os.DirFS(templates)); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "alertmanager")
	if err := os.WriteFile(program, bytes.ReplaceAll(raw, []byte(installed), []byte(beside)), 0o700); err != nil {
		t.Fatal(err)
	}
	return program
}

// freeAddress is one that nobody listens on.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startPrometheus scrapes one paymentd as the job that rules and dashboards expect. The config adds what the test
// needs.
func startPrometheus(t testing.TB, in *instance, interval time.Duration, config string, args ...string) *watcher {
	t.Helper()
	dir := t.TempDir()
	config = fmt.Sprintf("global: {scrape_interval: %s, evaluation_interval: %[1]s}\nscrape_configs:\n"+
		"  - job_name: paymentd\n    static_configs: [{targets: [%q]}]\n", interval, strings.TrimPrefix(in.admin, "http://")) + config
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return startWatcher(t, "prometheus", append(args, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"))...)
}

// curve is one series over time.
type curve struct {
	labels map[string]string
	at     []time.Time
	value  []float64
}

// between asks for a query's lines over a time.
func (w *watcher) between(query string, from, to time.Time, step time.Duration) []curve {
	w.t.Helper()
	var answer struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	w.ask("/api/v1/query_range?"+url.Values{
		"query": {query}, "step": {step.String()},
		"start": {strconv.FormatFloat(seconds(from), 'f', 3, 64)}, "end": {strconv.FormatFloat(seconds(to), 'f', 3, 64)},
	}.Encode(), &answer)
	var all []curve
	for _, r := range answer.Result {
		l := curve{labels: r.Metric}
		for _, v := range r.Values {
			at, _ := v[0].(float64)
			text, _ := v[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				w.t.Fatalf("%s: %v", query, err)
			}
			l.at, l.value = append(l.at, time.UnixMilli(int64(at*1000))), append(l.value, value)
		}
		all = append(all, l)
	}
	return all
}

func seconds(at time.Time) float64 { return float64(at.UnixMilli()) / 1000 }

// ask reads the data of an answer of Prometheus's API.
func (w *watcher) ask(path string, into any) {
	w.t.Helper()
	resp, err := http.Get(w.url + path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Status != "success" {
		w.t.Fatalf("%s: %v %s", path, err, raw)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		w.t.Fatalf("%s: %v %s", path, err, raw)
	}
}
