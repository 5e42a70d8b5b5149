package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"paymentd/loadtest/rig"
)

// figures are what a process says of itself at one moment.
type figures map[string]float64

const (
	cpuSeconds = "process_cpu_seconds_total"
	mallocs    = "go_memstats_mallocs_total"
	resident   = "process_resident_memory_bytes"
	heapInUse  = "go_memstats_heap_inuse_bytes"
	stackInUse = "go_memstats_stack_inuse_bytes"
	inFlight   = "paymentd_bulkhead_in_flight"
)

// scrape reads the series without labels of /metrics.
func scrape(ctx context.Context, in *rig.Instance) (figures, error) {
	body, err := private(ctx, in, "/metrics")
	if err != nil {
		return nil, err
	}
	all := figures{}
	lines := bufio.NewScanner(bytes.NewReader(body))
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			all[name] = n
		}
	}
	for _, name := range []string{cpuSeconds, mallocs, resident, heapInUse, stackInUse} {
		if _, ok := all[name]; !ok {
			return nil, fmt.Errorf("scrape %s: no %s", in.Name, name)
		}
	}
	return all, nil
}

// databaseCPU is the processor time in seconds that the server's processes of this moment have taken; 0 without /proc.
// Only differences mean something, and only while no connection ends.
func (b *bench) databaseCPU(ctx context.Context) (seconds float64, err error) {
	pid, err := b.rig.Count(ctx, "SELECT pg_backend_pid()")
	if err != nil {
		return 0, err
	}
	server := processStat(strconv.Itoa(pid))[statParent]
	all, err := filepath.Glob("/proc/[0-9]*")
	for _, path := range all {
		if stat := processStat(filepath.Base(path)); server > 0 && stat[statParent] == server && filepath.Base(path) != strconv.Itoa(pid) {
			seconds += (stat[statUser] + stat[statSystem]) / clockTicks
		}
	}
	return seconds, err
}

// The fields of /proc/[pid]/stat after the name, see proc(5).
const (
	statParent = 1
	statUser   = 11
	statSystem = 12
	// clockTicks per second are what Linux shows to programs on every machine of today.
	clockTicks = 100
)

func processStat(pid string) (fields [statSystem + 1]float64) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return fields
	}
	after := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	for i := range min(len(fields), len(after)) {
		fields[i], _ = strconv.ParseFloat(after[i], 64)
	}
	return fields
}

func private(ctx context.Context, in *rig.Instance, path string) ([]byte, error) {
	a, err := in.Call(ctx, rig.Request{Method: http.MethodGet, Path: path, Private: true})
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, a)
	}
	return a.Body, err
}

// profiled takes a CPU profile while the load runs, and the allocations since the start after it.
func (b *bench) profiled(ctx context.Context, in *rig.Instance, name string) (wait func() error) {
	if b.profile == "" {
		return func() error { return nil }
	}
	ended := make(chan error, 1)
	save := func(path, file string) error {
		body, err := private(ctx, in, path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(b.profile, file), body, 0o600)
	}
	go func() {
		err := save("/debug/pprof/profile?seconds="+strconv.Itoa(int(max(b.length, time.Second).Seconds())), name+"-cpu.pprof")
		if err == nil {
			err = save("/debug/pprof/allocs", name+"-allocs.pprof")
		}
		ended <- err
	}()
	return func() error { return <-ended }
}
