package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"paymentd/loadtest/plot"
)

// row is one line of the table. Pass is "yes", "NO" (the scenario is broken), "missed" (a time, which a busy machine may
// miss) or empty for what is only told.
type row struct {
	What   string `json:"what"`
	Theirs string `json:"theirs"`
	Ours   string `json:"ours"`
	Pass   string `json:"pass,omitempty"`
}

// report is what remains of a scenario. Its methods are safe for concurrent use until it is finished.
type report struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Date    string   `json:"date"`
	Machine string   `json:"machine"`
	Scale   float64  `json:"scale"`
	Took    string   `json:"took"`
	Load    []string `json:"loadAverage"`
	Rows    []row    `json:"rows"`
	Broken  []string `json:"broken"`

	mu    sync.Mutex
	begun time.Time
	chart plot.Chart
}

func newReport(p plan, s scenario) *report {
	return &report{
		Name: s.name, Title: s.title, Date: time.Now().Format(time.DateOnly), Machine: machine(), Scale: p.scale, Load: []string{loadAverage()},
		Broken: []string{}, begun: time.Now(), chart: plot.Chart{Title: strings.ToUpper(s.name) + ": " + s.title},
	}
}

// machine says on what it ran.
func machine() string {
	model := ""
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, after, _ := strings.Cut(string(text), "model name")
		model, _, _ = strings.Cut(after, "\n")
		model = strings.Trim(model, "\t :")
	}
	return strings.TrimSpace(fmt.Sprintf("%d CPUs %s, %s/%s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, runtime.Version()))
}

// loadAverage tells how busy the machine is with other work; "" where the system does not say.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	one, _, found := strings.Cut(string(text), " ")
	if err != nil || !found {
		return ""
	}
	return one
}

func (r *report) add(w row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Rows = append(r.Rows, w)
	if w.Pass == "NO" {
		r.Broken = append(r.Broken, w.What+": "+w.Ours)
	}
}

// told is a figure that is neither good nor bad.
func (r *report) told(what, theirs string, ours any) {
	r.add(row{What: what, Theirs: theirs, Ours: fmt.Sprint(ours)})
}

// must is a count or an invariant.
func (r *report) must(what, theirs string, ours any, ok bool) {
	pass := "yes"
	if !ok {
		pass = "NO"
	}
	r.add(row{what, theirs, fmt.Sprint(ours), pass})
}

// equal is a count that is known beforehand.
func (r *report) equal(what, theirs string, ours, want int) {
	said := fmt.Sprint(ours)
	if ours != want {
		said = fmt.Sprintf("%d, not %d", ours, want)
	}
	r.must(what, theirs, said, ours == want)
}

// goal is a time.
func (r *report) goal(what, theirs string, ours any, ok bool) {
	pass := "yes"
	if !ok {
		pass = "missed"
	}
	r.add(row{what, theirs, fmt.Sprint(ours), pass})
}

// broke is an invariant that does not hold and has no row of its own.
func (r *report) broke(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Broken = append(r.Broken, fmt.Sprintf(format, args...))
}

// breaks counts what is broken.
func (r *report) breaks() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.Broken)
}

// join takes over what a part under way at the same time has seen.
func (r *report) join(part *report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Rows = append(r.Rows, part.Rows...)
	r.Broken = append(r.Broken, part.Broken...)
	r.chart.Series = append(r.chart.Series, part.chart.Series...)
	r.chart.Marks = append(r.chart.Marks, part.chart.Marks...)
}

// draw puts a series into the picture.
func (r *report) draw(s plot.Series) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chart.Series = append(r.chart.Series, s)
}

// mark puts an event into the picture.
func (r *report) mark(at time.Duration, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chart.Marks = append(r.chart.Marks, plot.Mark{X: at.Seconds(), Text: text})
}

func (r *report) finish() {
	r.Took = time.Since(r.begun).Round(100 * time.Millisecond).String()
	r.Load = append(r.Load, loadAverage())
}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s, %s (scale %g, %s)\n", strings.ToUpper(r.Name), r.Title, r.Scale, r.Took)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\ttheirs\tours\tpass")
	for _, l := range r.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", l.What, l.Theirs, l.Ours, l.Pass)
	}
	_ = w.Flush()
	for _, b := range r.Broken {
		fmt.Fprintf(out, "  BROKEN %s\n", b)
	}
}

// write keeps the report as path.json and its picture as path.svg.
func (r *report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path+".json", append(text, '\n'), 0o600)
	}
	if err == nil {
		err = os.WriteFile(path+".svg", []byte(r.chart.SVG()), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// figuresBelow parts the page: what stands below is written by rewrite.
const figuresBelow = "<!-- figures: written by go run ./loadtest/scenarios --page, do not edit below -->"

// rewrite puts the results that are kept in folder results into the page, below what people wrote. Links are relative
// to the page's folder, a sister of loadtest.
func rewrite(page []byte, results string) ([]byte, error) {
	text, _, found := strings.Cut(string(page), figuresBelow)
	if !found {
		return nil, fmt.Errorf("the page lacks the line %q", figuresBelow)
	}
	var b strings.Builder
	b.WriteString(text + figuresBelow + "\n")
	for _, s := range scenarios() {
		kept, err := os.ReadFile(filepath.Join(results, s.name+".json"))
		if err != nil {
			return nil, fmt.Errorf("read results: %w", err)
		}
		var r report
		if err := json.Unmarshal(kept, &r); err != nil {
			return nil, fmt.Errorf("read results of %s: %w", s.name, err)
		}
		r.section(&b)
	}
	return []byte(b.String()), nil
}

// section is the report as Markdown.
func (r *report) section(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s: %s\n\n%s · %s · scale %g · took %s · load average before and after: %s\n\n",
		strings.ToUpper(r.Name), r.Title, r.Date, r.Machine, r.Scale, r.Took, strings.Join(r.Load, ", "))
	fmt.Fprintf(b, "![%s](../loadtest/results/%s.svg)\n\n| | theirs | ours | pass |\n|---|---|---|---|\n", r.Title, r.Name)
	for _, l := range r.Rows {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", l.What, l.Theirs, l.Ours, l.Pass)
	}
}
