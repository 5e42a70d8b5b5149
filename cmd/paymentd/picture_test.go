package main

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// picture draws the panels of a dashboard as Grafana would, in two columns: lines over time, with what happened when.
type picture struct {
	title    string
	from, to time.Time
	marks    []mark
	body     bytes.Buffer
	panels   int
}

const (
	panelWidth, panelHeight = 620, 250
	plotLeft, plotTop       = 66, 34
	plotWidth, plotHeight   = 366, 168
)

var colors = []string{"#3274d9", "#e0752d", "#37872d", "#c4162a", "#8f3bb8", "#e0b400", "#1f9e9e", "#705da0", "#8a5a2b", "#7f7f7f"}

func newPicture(title string, from, to time.Time, marks []mark) *picture {
	return &picture{title: title, from: from, to: to, marks: marks}
}

// steps are panels that show words for numbers.
var steps = []string{"closed", "half open", "open", "forced open"}

// add draws one panel.
func (c *picture) add(p dashboardPanel, lines []curve) {
	slices.SortStableFunc(lines, func(a, b curve) int { return cmp.Compare(a.labels["legend"], b.labels["legend"]) })
	x0, y0 := 10+c.panels%2*(panelWidth+10), 40+c.panels/2*(panelHeight+10)
	c.panels++
	stacked := p.FieldConfig.Defaults.Custom.DrawStyle == "bars"
	_, most := extent(lines)
	if stacked {
		most = slices.Max(slices.Collect(maps.Values(stack(lines))))
	}
	top := niceTop(most)
	if p.Type == "state-timeline" {
		top = float64(len(steps) - 1)
	}
	c.printf(`<g transform="translate(%d,%d)"><rect width="%d" height="%d" fill="#fff" stroke="#d0d0d0"/>`, x0, y0, panelWidth, panelHeight)
	c.printf(`<text x="10" y="20" font-weight="bold">%s</text>`, html.EscapeString(p.Title))
	for i, m := range c.marks {
		x := c.x(m.at)
		c.printf(`<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#bbb" stroke-dasharray="3,3"/>`, x, x, plotTop, plotTop+plotHeight)
		c.printf(`<text x="%.1f" y="%d" font-size="9" fill="#888">%s</text>`, x+2, plotTop+plotHeight+24+i%2*11, html.EscapeString(m.text))
	}
	for i := range 4 {
		y := plotTop + plotHeight - float64(i)/3*plotHeight
		label := amount(top*float64(i)/3, p.FieldConfig.Defaults.Unit)
		if p.Type == "state-timeline" {
			label = steps[i]
		}
		c.printf(`<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#eee"/>`, plotLeft, plotLeft+plotWidth, y, y)
		c.printf(`<text x="%d" y="%.1f" font-size="9" text-anchor="end">%s</text>`, plotLeft-4, y+3, html.EscapeString(label))
	}
	for s := 0.0; s <= c.to.Sub(c.from).Seconds(); s += 10 {
		c.printf(`<text x="%.1f" y="%d" font-size="9" text-anchor="middle">%.0f s</text>`, c.x(c.from.Add(time.Duration(s)*time.Second)), plotTop+plotHeight+12, s)
	}
	below := map[time.Time]float64{}
	for i, l := range lines {
		color := colors[i%len(colors)]
		if stacked {
			c.bars(l, top, color, below)
			l.value = nil
		}
		for _, points := range c.strokes(l, top, p.Type == "state-timeline") {
			c.printf(`<polyline fill="none" stroke="%s" stroke-width="1.8" points="%s"/>`, color, points)
		}
		if y := plotTop + 8 + i*14; y < plotTop+plotHeight+30 {
			c.printf(`<rect x="%d" y="%d" width="9" height="9" fill="%s"/><text x="%d" y="%d" font-size="10">%s</text>`,
				plotLeft+plotWidth+10, y-8, color, plotLeft+plotWidth+23, y, html.EscapeString(l.labels["legend"]))
		}
	}
	c.printf("</g>\n")
}

// stack sums the lines of a panel.
func stack(lines []curve) map[time.Time]float64 {
	sum := map[time.Time]float64{{}: 0}
	for _, l := range lines {
		for i, v := range l.value {
			sum[l.at[i]] += v
		}
	}
	return sum
}

// bars puts a line's values on top of those below.
func (c *picture) bars(l curve, top float64, color string, below map[time.Time]float64) {
	wide := plotWidth / c.to.Sub(c.from).Seconds()
	for i, v := range l.value {
		base := plotTop + plotHeight - below[l.at[i]]/top*plotHeight
		high := v / top * plotHeight
		c.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`, c.x(l.at[i])-wide/2, base-high, 0.85*wide, high, color)
		below[l.at[i]] += v
	}
}

// strokes are a line's points, broken where there is no number or no sample.
func (c *picture) strokes(l curve, top float64, stepped bool) []string {
	var all []string
	var points []string
	end := func() {
		if len(points) == 1 {
			points = append(points, points[0])
		}
		if len(points) > 0 {
			all = append(all, strings.Join(points, " "))
		}
		points = nil
	}
	var last float64
	for i, v := range l.value {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			end()
			continue
		}
		if i > 0 && l.at[i].Sub(l.at[i-1]) > 1500*time.Millisecond {
			end()
		}
		y := plotTop + plotHeight - max(0, min(1, v/top))*plotHeight
		if stepped && len(points) > 0 {
			points = append(points, fmt.Sprintf("%.1f,%.1f", c.x(l.at[i]), last))
		}
		points = append(points, fmt.Sprintf("%.1f,%.1f", c.x(l.at[i]), y))
		last = y
	}
	end()
	return all
}

func (c *picture) x(at time.Time) float64 {
	return plotLeft + float64(at.Sub(c.from))/float64(c.to.Sub(c.from))*plotWidth
}

func (c *picture) printf(format string, args ...any) { fmt.Fprintf(&c.body, format, args...) }

// svg is the whole picture.
func (c *picture) svg() []byte {
	height := 40 + (c.panels+1)/2*(panelHeight+10)
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#f4f5f5\"/><text x=\"12\" y=\"27\" font-size=\"18\" font-weight=\"bold\">%s</text>\n%s</svg>\n",
		2*panelWidth+30, height, html.EscapeString(c.title), c.body.Bytes())
}

// niceTop is a round number above the largest value.
func niceTop(most float64) float64 {
	if most <= 0 || math.IsInf(most, 0) {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(most)))
	for _, f := range []float64{1, 1.5, 2, 3, 5, 7.5, 10} {
		if f*unit >= most {
			return f * unit
		}
	}
	return 10 * unit
}

// amount writes a value with its unit, short.
func amount(v float64, unit string) string {
	small := map[string]string{"s": " s", "reqps": "/s", "cps": "/s", "ops": "/s"}
	switch {
	case unit == "percentunit":
		return fmt.Sprintf("%.3g %%", 100*v)
	case unit == "bytes" || unit == "Bps":
		suffix := map[bool]string{true: " MB/s", false: " MB"}[unit == "Bps"]
		return fmt.Sprintf("%.3g%s", v/1e6, suffix)
	case unit == "s" && v > 0 && v < 1:
		return fmt.Sprintf("%.3g ms", 1000*v)
	case slices.Contains(slices.Collect(maps.Keys(small)), unit):
		return fmt.Sprintf("%.3g%s", v, small[unit])
	default:
		return fmt.Sprintf("%.3g", v)
	}
}
