// Grafana writes the dashboards of paymentd as the files that Grafana reads. Change a panel in the file of its
// dashboard here, run go generate ./deploy/grafana, commit both.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run .

func main() {
	for name, d := range all() {
		var out bytes.Buffer
		lines := json.NewEncoder(&out)
		lines.SetEscapeHTML(false)
		lines.SetIndent("", "  ")
		err := lines.Encode(d.model(name))
		if err == nil {
			//nolint:gosec // Grafana reads it as another user
			err = os.WriteFile(filepath.Join("dashboards", name+".json"), out.Bytes(), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// all are the dashboards by the name of their file.
func all() map[string]dashboard {
	return map[string]dashboard{
		"approvals": approvals(), "resilience": resilience(), "money": money(), "database": database(), "process": process(),
	}
}
