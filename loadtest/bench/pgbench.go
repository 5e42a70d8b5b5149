package main

import (
	"context"
	_ "embed" // own.sql
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"paymentd/internal/devdb"
	"paymentd/loadtest"
	"paymentd/loadtest/rig"
)

// own is the product's two hot statements; a test of internal/store holds it equal to them.
//
//go:embed own.sql
var own string

// pgbenchClients is as many as paymentd has connections for requests.
const pgbenchClients = 10

// pgbench is PostgreSQL's own load program with the two scripts.
type pgbench struct {
	bins    devdb.Binaries
	dsn     string
	scripts map[string]string // name → path
}

// newPgbench writes the scripts and makes the bare tables. It is nil where pgbench is not installed with the server.
func newPgbench(ctx context.Context, r *rig.Rig, dir string) (*pgbench, error) {
	p := &pgbench{bins: r.Database.Binaries(), dsn: r.DSN(), scripts: map[string]string{}}
	if _, err := os.Stat(p.path()); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for name, text := range map[string]string{"own": own, "bare": loadtest.Ceiling} {
		p.scripts[name] = filepath.Join(dir, name+".sql")
		if err := os.WriteFile(p.scripts[name], []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("pgbench: %w", err)
		}
	}
	return p, r.Session(ctx, loadtest.CeilingTables)
}

func (p *pgbench) path() string { return filepath.Join(p.bins.Dir, "pgbench") }

var tps = regexp.MustCompile(`(?m)^tps = ([0-9.]+) \(without initial connection time\)`)

// run is how many times per second the script ran to its end.
func (p *pgbench) run(ctx context.Context, script string, length time.Duration) (perSecond float64, err error) {
	seconds := strconv.Itoa(int(math.Ceil(length.Seconds())))
	cmd := exec.CommandContext(ctx, p.path(), "--no-vacuum", "--protocol=prepared", "--client", strconv.Itoa(pgbenchClients),
		"--jobs=2", "--time", seconds, "--define=i=0", "--file", p.scripts[script], p.dsn)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(p.bins.Libs, ":"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench %s: %w\n%s", script, err, out)
	}
	found := tps.FindSubmatch(out)
	if found == nil || !strings.Contains(string(out), "number of failed transactions: 0 ") {
		return 0, fmt.Errorf("pgbench %s: unexpected output\n%s", script, out)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}
