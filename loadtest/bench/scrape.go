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
	for _, name := range []string{cpuSeconds, mallocs, resident, heapInUse, stackInUse, inFlight} {
		if _, ok := all[name]; !ok {
			return nil, fmt.Errorf("scrape %s: no %s", in.Name, name)
		}
	}
	return all, nil
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
