package main

import "strings"

// object is a JSON object; its keys are written in order, so that a file changes only where a panel does.
type object = map[string]any

// dashboard is a page of panels, read from the top.
type dashboard struct {
	title, about string
	panels       []panel
}

// panel is one question with the queries that answer it.
type panel struct {
	kind  kind
	title string
	// about tells somebody who has never seen the project what the panel shows and what to make of it.
	about   string
	unit    string
	width   int // of 24
	queries []query
	// change adapts the fields that Grafana calls defaults.
	change func(defaults object)
	text   string // of a text panel, in Markdown
}

// query is PromQL with the legend of its lines.
type query struct{ expr, legend string }

type kind string

const (
	lines    kind = "timeseries"
	bars     kind = "timeseries " // stacked; a kind of Grafana's timeseries
	number   kind = "stat"
	timeline kind = "state-timeline"
	table    kind = "table"
	text     kind = "text"
)

// height of a row of panels in Grafana's grid of 24 columns.
const height, low = 8, 5

// only is the filter of every query; the variable is made by model.
const only = `{instance=~"$instance"}`

// with is the filter with more matchers.
func with(matchers string) string { return `{instance=~"$instance",` + matchers + `}` }

func (d dashboard) model(uid string) object {
	panels := []object{intro(d.about)}
	x, y, tallest := 0, 3, 0
	for i, p := range d.panels {
		h := height
		if p.kind == number || p.kind == timeline || p.kind == table {
			h = low
		}
		if x+p.width > 24 {
			x, y, tallest = 0, y+tallest, 0
		}
		m := p.model()
		m["id"], m["gridPos"] = i+2, object{"x": x, "y": y, "w": p.width, "h": h}
		panels = append(panels, m)
		x, tallest = x+p.width, max(tallest, h)
	}
	return object{
		"uid": "paymentd-" + uid, "title": d.title, "description": d.about, "tags": []string{"paymentd"}, "schemaVersion": 41,
		"editable": false, "graphTooltip": 1, "refresh": "10s", "timezone": "browser", "panels": panels,
		"time":       object{"from": "now-30m", "to": "now"},
		"templating": object{"list": []object{instances()}},
		"links": []object{{
			"type": "dashboards", "tags": []string{"paymentd"}, "title": "paymentd", "asDropdown": false, "includeVars": true, "keepTime": true,
		}},
	}
}

// intro says at the top what the page is for.
func intro(about string) object {
	return object{
		"id": 1, "type": "text", "title": "What this page answers", "description": "Read this first.", "gridPos": object{"x": 0, "y": 0, "w": 24, "h": 3},
		"options": object{"mode": "markdown", "content": about},
	}
}

// source is the data source of deploy/grafana/provisioning.
func source() object { return object{"type": "prometheus", "uid": "prometheus"} }

func instances() object {
	return object{
		"name": "instance", "label": "Instance", "type": "query", "datasource": source(), "query": "label_values(paymentd_build_info, instance)",
		"refresh": 2, "multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"}, "sort": 1,
	}
}

func (p panel) model() object {
	m := object{"type": strings.TrimSpace(string(p.kind)), "title": p.title, "description": p.about}
	if p.kind == text {
		m["options"] = object{"mode": "markdown", "content": p.text}
		return m
	}
	defaults := object{"unit": p.unit, "color": object{"mode": "palette-classic"}}
	switch p.kind { //nolint:exhaustive // the others have no style of their own
	case lines:
		defaults["custom"] = object{"lineWidth": 2, "fillOpacity": 8, "showPoints": "never", "spanNulls": true}
		defaults["min"] = 0
	case bars:
		defaults["custom"] = object{"drawStyle": "bars", "lineWidth": 0, "fillOpacity": 80, "stacking": object{"mode": "normal", "group": "A"}}
		defaults["min"] = 0
	case timeline:
		defaults["custom"] = object{"fillOpacity": 80, "lineWidth": 0}
	}
	if p.change != nil {
		p.change(defaults)
	}
	m["datasource"], m["fieldConfig"] = source(), object{"defaults": defaults, "overrides": []object{}}
	m["options"] = p.options()
	var targets []object
	for i, q := range p.queries {
		t := object{"refId": string(rune('A' + i)), "datasource": source(), "expr": q.expr, "legendFormat": q.legend, "editorMode": "code"}
		if p.kind == table {
			t["instant"], t["format"] = true, "table"
		}
		targets = append(targets, t)
	}
	m["targets"] = targets
	return m
}

func (p panel) options() object {
	switch p.kind {
	case number:
		return object{"graphMode": "area", "colorMode": "value", "textMode": "auto", "reduceOptions": object{"calcs": []string{"lastNotNull"}}}
	case timeline:
		return object{"mergeValues": true, "showValue": "always", "rowHeight": 0.8, "legend": object{"displayMode": "list", "placement": "bottom"}}
	case table:
		return object{"showHeader": true}
	default:
		return object{
			"legend":  object{"displayMode": "table", "placement": "right", "calcs": []string{"lastNotNull", "max"}},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		}
	}
}

// limits paints a number: green, orange from the first, red from the second.
func limits(orange, red float64) func(object) {
	return func(defaults object) {
		defaults["color"] = object{"mode": "thresholds"}
		defaults["thresholds"] = object{"mode": "absolute", "steps": []object{
			{"color": "green", "value": nil}, {"color": "orange", "value": orange}, {"color": "red", "value": red},
		}}
	}
}

// answerQuantile is a quantile of the time that confirms took to be answered.
func answerQuantile(q, filter string) string {
	return "histogram_quantile(" + q + ", sum by (le) (rate(" + answered + "_bucket" + filter + "[$__rate_interval])))"
}

// quantileBy is the same by labels, without those to which nothing happened.
func quantileBy(by, q, histogram, filter string) string {
	return "histogram_quantile(" + q + ", sum by (le, " + by + ") (rate(" + histogram + "_bucket" + filter + "[$__rate_interval]))) > 0"
}

// perSecond is a counter's rate over all chosen instances.
func perSecond(counter, filter string) string {
	return "sum(rate(" + counter + filter + "[$__rate_interval]))"
}

// perSecondBy is the same by labels, without those that stand still.
func perSecondBy(by, counter, filter string) string {
	return "sum by (" + by + ") (rate(" + counter + filter + "[$__rate_interval])) > 0"
}
