// Package plot draws charts of measurements as SVG, with the standard library alone: points, lines and bars over one
// pair of axes.
package plot

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Kind is how a series is drawn.
type Kind string

// The kinds of series. Bars stand at their x.
const (
	Dots Kind = "dots"
	Line Kind = "line"
	Bars Kind = "bars"
)

// Point is one measurement in the units of the axes.
type Point struct {
	X, Y float64
}

// Series is what a line of the legend stands for.
type Series struct {
	Name   string
	Kind   Kind
	Points []Point
}

// Mark is an event on the x axis.
type Mark struct {
	X    float64
	Text string
}

// Chart is one picture. Log makes the y axis logarithmic; what is not above 0 is then drawn at its foot.
type Chart struct {
	Title, XLabel, YLabel string
	Log                   bool
	Series                []Series
	Marks                 []Mark
}

const (
	width, height            = 900.0, 420.0
	left, right, top, bottom = 70.0, 20.0, 70.0, 50.0
	steps                    = 5
)

// colors are told apart by people who do not see red and green as well.
var colors = [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// scale maps values to pixels.
type scale struct {
	low, high float64
	log       bool
	from, to  float64
}

func (s scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.log {
		low, high, v = math.Log10(low), math.Log10(high), math.Log10(max(v, s.low))
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

// ticks are round numbers within the scale.
func (s scale) ticks() (at []float64) {
	if s.log {
		for v := s.low; v <= s.high*1.001; v *= 10 {
			at = append(at, v)
		}
		return at
	}
	step := math.Pow(10, math.Floor(math.Log10((s.high-s.low)/steps)))
	for _, times := range []float64{1, 2, 5, 10} {
		if (s.high-s.low)/(step*times) <= 2*steps {
			step *= times
			break
		}
	}
	for v := math.Ceil(s.low/step) * step; v <= s.high+step/1000; v += step {
		at = append(at, v)
	}
	return at
}

func (c Chart) scales() (x, y scale) {
	var xs, ys []float64
	for _, s := range c.Series {
		for _, p := range s.Points {
			xs, ys = append(xs, p.X), append(ys, p.Y)
		}
	}
	for _, m := range c.Marks {
		xs = append(xs, m.X)
	}
	xs, ys = append(xs, 0), append(ys, 0)
	x = scale{low: slices.Min(xs), high: slices.Max(xs) * 1.02, from: left, to: width - right}
	y = scale{high: slices.Max(ys) * 1.05, from: height - bottom, to: top}
	if x.high <= x.low {
		x.high = x.low + 1
	}
	if y.high <= 0 {
		y.high = 1
	}
	if !c.Log {
		return x, y
	}
	least := y.high
	for _, v := range ys {
		if v > 0 {
			least = min(least, v)
		}
	}
	y.log, y.low, y.high = true, math.Pow(10, math.Floor(math.Log10(least))), math.Pow(10, math.Ceil(math.Log10(y.high)))
	if y.high <= y.low {
		y.high = 10 * y.low
	}
	return x, y
}

// SVG is the picture as an SVG document on a white ground.
func (c Chart) SVG() string {
	var b strings.Builder
	x, y := c.scales()
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/>`+"\n")
	text := func(px, py float64, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", px, py, anchor, html.EscapeString(s))
	}
	line := func(x1, y1, x2, y2 float64, style string) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`+"\n", x1, y1, x2, y2, style)
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="20" font-size="15" font-weight="bold">%s</text>`+"\n", left, html.EscapeString(c.Title))
	for _, v := range y.ticks() {
		line(left, y.at(v), width-right, y.at(v), `stroke="#ddd"`)
		text(left-6, y.at(v)+4, "end", fmt.Sprintf("%.4g", v))
	}
	for _, v := range x.ticks() {
		line(x.at(v), height-bottom, x.at(v), height-bottom+5, `stroke="#333"`)
		text(x.at(v), height-bottom+18, "middle", fmt.Sprintf("%.4g", v))
	}
	line(left, height-bottom, width-right, height-bottom, `stroke="#333"`)
	text((left+width-right)/2, height-12, "middle", c.XLabel)
	fmt.Fprintf(&b, `<text transform="translate(16 %.1f) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (top+height-bottom)/2, html.EscapeString(c.YLabel))
	for i, m := range c.Marks {
		line(x.at(m.X), top-8, x.at(m.X), height-bottom, `stroke="#888" stroke-dasharray="4 3"`)
		text(x.at(m.X)+3, top-4+float64(i%3)*12, "start", m.Text)
	}
	next := left
	for i, s := range c.Series {
		color := colors[i%len(colors)]
		fmt.Fprintf(&b, `<rect x="%.1f" y="30" width="10" height="10" fill="%s"/>`+"\n", next, color)
		text(next+15, 39, "start", s.Name)
		next += 15 + 7*float64(len(s.Name)) + 20
		b.WriteString(s.draw(x, y, color))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (s Series) draw(x, y scale, color string) string {
	var b strings.Builder
	var path []string
	for _, p := range s.Points {
		px, py := x.at(p.X), y.at(p.Y)
		path = append(path, fmt.Sprintf("%.1f,%.1f", px, py))
		if s.Kind == Bars {
			fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="16" height="%.1f" fill="%s"/>`+"\n", px-8, py, height-bottom-py, color)
			continue
		}
		if s.Kind == Line && len(s.Points) > 100 {
			continue // the line is enough
		}
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s" fill-opacity="0.7"/>`+"\n", px, py, color)
	}
	if s.Kind == Line {
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`+"\n", strings.Join(path, " "), color)
	}
	return b.String()
}
