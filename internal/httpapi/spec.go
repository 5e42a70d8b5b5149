package httpapi

import (
	_ "embed" // openapi.yaml is part of the program
	"net/http"
)

//go:embed openapi.yaml
var openapi []byte

// spec is GET /openapi.yaml.
func (a *api) spec(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(openapi)
	return nil
}
