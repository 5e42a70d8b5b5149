package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// results are all figures of a run.
type results struct {
	Machine string  `json:"machine"`
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds"`
	Durable bool    `json:"durable"`
	Webhook bool    `json:"webhook"`
	Ceiling []round `json:"ceiling,omitempty"`
	Sweep   sweep   `json:"sweep"`
}

func (r results) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o750)
	}
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// medians is one row per cell of the first round, each figure the median over the rounds.
func medians(rounds []round) []cell {
	var rows []cell
	for i, first := range rounds[0].Cells {
		of := func(figure func(cell) float64) float64 {
			var values []float64
			for _, r := range rounds {
				for _, c := range r.Cells {
					if c.Name == first.Name && c.Clients == first.Clients {
						values = append(values, figure(c))
					}
				}
			}
			return median(values)
		}
		rows = append(rows, rounds[0].Cells[i])
		row := &rows[i]
		row.PerSecond = of(func(c cell) float64 { return c.PerSecond })
		row.P50, row.P95 = of(func(c cell) float64 { return c.P50 }), of(func(c cell) float64 { return c.P95 })
		row.P99, row.Own = of(func(c cell) float64 { return c.P99 }), of(func(c cell) float64 { return c.Own })
		row.CPU, row.Allocations = of(func(c cell) float64 { return c.CPU }), of(func(c cell) float64 { return c.Allocations })
		row.Spent, row.SpentByDB = of(func(c cell) float64 { return c.Spent }), of(func(c cell) float64 { return c.SpentByDB })
		row.OwnRatio, row.BareRatio = of(func(c cell) float64 { return c.OwnRatio }), of(func(c cell) float64 { return c.BareRatio })
	}
	return rows
}

// median is 0 for no values.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

func printCeiling(out io.Writer, rounds []round) {
	var own, bare []float64
	for _, r := range rounds {
		own, bare = append(own, r.Own), append(bare, r.Bare)
	}
	fmt.Fprintf(out, "\nS9: medians of %d rounds; times in ms; spent is processor time per confirm; own and bare are confirms per second ÷ pgbench's\n\n", len(rounds))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tclients\tper s\tp50\tp95\tp99\town time p50\tCPU\tspent\tby PostgreSQL\tallocations\town\tbare\t")
	if own[0] > 0 {
		fmt.Fprintf(w, "pgbench, our statements\t%d\t%.0f\t\t\t\t\t\t\t\t\t1.00\t%.2f\t\n", pgbenchClients, median(own), median(own)/median(bare))
		fmt.Fprintf(w, "pgbench, ceiling.sql\t%d\t%.0f\t\t\t\t\t\t\t\t\t\t1.00\t\n", pgbenchClients, median(bare))
	}
	names := variantsOf(rounds)
	rows := medians(rounds)
	slices.SortStableFunc(rows, func(a, b cell) int { return slices.Index(names, a.Name) - slices.Index(names, b.Name) })
	for _, c := range rows {
		ownTime := "–" // nobody told it
		if c.Own > 0 {
			ownTime = fmt.Sprintf("%.2f", c.Own)
		}
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.1f\t%.1f\t%.1f\t%s\t%.0f %%\t%.2f\t%.2f\t%.0f\t%.2f\t%.2f\t\n", c.Name, c.Clients, c.PerSecond, c.P50, c.P95, c.P99,
			ownTime, 100*c.CPU, c.Spent, c.SpentByDB, c.Allocations, c.OwnRatio, c.BareRatio)
	}
	_ = w.Flush()
	for _, other := range names[1:] {
		printGains(out, rounds, names[0], other)
	}
}

// variantsOf names the variants in the order of the first round, paymentd first.
func variantsOf(rounds []round) (names []string) {
	for _, c := range rounds[0].Cells {
		if !slices.Contains(names, c.Name) {
			names = append(names, c.Name)
		}
	}
	return names
}

// printGains compares two variants within each round, which is what a busy machine leaves comparable.
func printGains(out io.Writer, rounds []round, name, other string) {
	gains := map[int][]float64{}
	for _, r := range rounds {
		perSecond := map[int]map[string]float64{}
		for _, c := range r.Cells {
			if perSecond[c.Clients] == nil {
				perSecond[c.Clients] = map[string]float64{}
			}
			perSecond[c.Clients][c.Name] = c.PerSecond
		}
		for clients, of := range perSecond {
			gains[clients] = append(gains[clients], of[name]/of[other])
		}
	}
	var texts []string
	for _, clients := range slices.Sorted(maps.Keys(gains)) {
		texts = append(texts, fmt.Sprintf("%.2f at %d (%.2f to %.2f)", median(gains[clients]), clients, slices.Min(gains[clients]), slices.Max(gains[clients])))
	}
	fmt.Fprintf(out, "\n%s ÷ %s, confirms per second: %s\n", name, other, strings.Join(texts, ", "))
}

func printSweep(out io.Writer, s sweep, gateway time.Duration) {
	fmt.Fprintf(out, "\nS8: the gateway works for %s; ideal is clients ÷ that; times in ms\n\n", gateway)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tclients\tper s\tof ideal\tp50\tp95\tp99\tanswers\t")
	for _, s := range s.Steps {
		ideal := ""
		if s.Ideal > 0 {
			ideal = fmt.Sprintf("%.0f %%", 100*s.PerSecond/s.Ideal)
		}
		var answers []string
		for _, status := range slices.Sorted(maps.Keys(s.Statuses)) {
			answers = append(answers, fmt.Sprintf("%d × %s", s.Statuses[status], status))
		}
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%s\t%.0f\t%.0f\t%.0f\t%s\t\n", s.Kind, s.Clients, s.PerSecond, ideal, s.P50, s.P95, s.P99, strings.Join(answers, ", "))
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\np95 is within a tenth of the gateway's time up to %d clients\n", s.Knee)
	fmt.Fprintf(out, "a waiting confirm costs %.1f KiB of resident memory, %.1f KiB live (%d waiting)\n",
		s.Memory.Resident/1024, s.Memory.Live/1024, s.Memory.Waiting)
}
