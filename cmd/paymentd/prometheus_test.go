package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// prometheusDir finds Prometheus's programs once, fetching them where Debian's packages can be had.
var prometheusDir = sync.OnceValues(func() (string, error) {
	var complaint strings.Builder
	find := exec.Command("../../tools/prometheus")
	find.Stderr = &complaint
	out, err := find.Output()
	if err != nil {
		return complaint.String(), err
	}
	return strings.TrimSpace(string(out)), nil
})

// prometheusProgram is the path of one of them; the test is skipped where there are none. CI is a Debian, and has them.
func prometheusProgram(t testing.TB, name string) string {
	t.Helper()
	dir, err := prometheusDir()
	if err != nil {
		if _, apt := exec.LookPath("apt-get"); apt == nil || os.Getenv("CI") != "" {
			t.Fatalf("%v: %s", err, dir)
		}
		t.Skipf("no Prometheus here: %s", dir)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil && name == "alertmanager" {
		path = filepath.Join(dir, "prometheus-alertmanager")
	}
	return path
}
