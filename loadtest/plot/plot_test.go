package plot

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// TestSVG draws every kind on both axes and reads the document back.
func TestSVG(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name          string
		chart         Chart
		circles, bars int
	}{
		{name: "empty", chart: Chart{Title: "nothing"}},
		{name: "one point at zero", chart: Chart{Series: []Series{{Name: "a", Kind: Dots, Points: []Point{{}}}}}, circles: 1},
		{name: "logarithmic", chart: Chart{Log: true, Series: []Series{{Name: "a", Kind: Line, Points: []Point{{1, 0}, {2, 0.5}, {3, 5000}}}}}, circles: 3},
		{name: "bars and marks", chart: Chart{
			Title: "a < b & c", Marks: []Mark{{X: 9, Text: "killed"}},
			Series: []Series{{Name: "theirs", Kind: Bars, Points: []Point{{1, 3}, {2, 3}}}, {Name: "ours", Kind: Dots, Points: []Point{{1, 1}}}},
		}, circles: 1, bars: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			svg := tc.chart.SVG()
			if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
				t.Error("a coordinate is no number")
			}
			circles, bars := 0, 0
			for d := xml.NewDecoder(strings.NewReader(svg)); ; {
				token, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				e, ok := token.(xml.StartElement)
				if ok && e.Name.Local == "circle" {
					circles++
				}
				if ok && e.Name.Local == "rect" {
					bars++
				}
			}
			bars -= 1 + len(tc.chart.Series) // the ground and the legend
			if circles != tc.circles || bars != tc.bars {
				t.Errorf("%d points and %d bars, want %d and %d", circles, bars, tc.circles, tc.bars)
			}
		})
	}
}

func TestScale(t *testing.T) {
	t.Parallel()
	s := scale{low: 1, high: 1000, log: true, from: 0, to: 300}
	for v, want := range map[float64]float64{0: 0, 1: 0, 10: 100, 1000: 300} {
		if got := s.at(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("%g is drawn at %g, want %g", v, got, want)
		}
	}
	if n := len(scale{high: 130}.ticks()); n < 4 || n > 11 {
		t.Errorf("%d ticks", n)
	}
}
