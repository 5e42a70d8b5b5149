package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// programs is package state because testing offers no place for what all tests of a process use.
var programs = sync.OnceValues(func() (dir string, err error) {
	find := filepath.Join("tools", "prometheus")
	for range 5 { // a test runs in its package's folder, somewhere in the module
		if _, err := os.Stat(find); err == nil {
			break
		}
		find = filepath.Join("..", find)
	}
	var complaint strings.Builder
	cmd := exec.Command(find) //nolint:gosec // a script of this module
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("find Prometheus's programs: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
})

// Program is the path of prometheus, promtool, alertmanager or amtool. They are looked for once a process, and fetched
// where Debian's packages can be had. The test is skipped where there are none; CI is a Debian, and has them.
func Program(t testing.TB, name string) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		if _, apt := exec.LookPath("apt-get"); apt == nil || os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no Prometheus here: %v", err)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil && name == "alertmanager" {
		path = filepath.Join(dir, "prometheus-alertmanager")
	}
	return path
}
