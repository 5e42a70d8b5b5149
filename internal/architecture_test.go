// Package internal_test holds the rules that the whole tree obeys: who may import whom (design §3) and how
// large anything may become (style §6). Both read the sources themselves, because the result of `go list`
// stays in the test cache.
package internal_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const module = "paymentd"

// mayImport lists every package of the module and the packages of the module that it may import.
// A package that is not listed fails the test: add a row and say in the review why.
var mayImport = map[string][]string{
	"breaker":           {},
	"migrations":        {},
	"deploy":            {},
	"deploy/grafana":    {},
	"loadtest/k6":       {},
	"internal/payment":  {},
	"internal/approval": {"internal/payment"},
	// Stand-ins for the tests of approval and recovery.
	"internal/approval/approvaltest": {"internal/payment", "internal/approval"},
	"internal/pg":                    {"internal/payment", "internal/approval", "breaker"},
	"internal/store":                 {"internal/payment", "internal/approval"},
	"internal/notify":                {"internal/payment", "internal/approval"},
	"internal/recovery":              {"internal/payment", "internal/approval"},
	"internal/web":                   {"internal/payment"},
	"internal/httpapi":               {"internal/payment", "internal/approval", "internal/web"},
	"internal/operator":              {"internal/payment", "internal/approval", "internal/web"},
	"internal/tosssim":               {},
	// A test without a program of its own.
	"internal/protocol":    {},
	"internal/devdb":       {"internal/devdb/child", "migrations"},
	"internal/devdb/child": {},
	"cmd/paymentd": {
		"breaker", "migrations", "internal/payment", "internal/approval", "internal/pg", "internal/store",
		"internal/notify", "internal/recovery", "internal/web", "internal/httpapi", "internal/operator",
	},
	"cmd/devstack": {"internal/devdb", "internal/devdb/child", "internal/tosssim"},
	"cmd/tosssim":  {"internal/tosssim"},
	// Scenarios see paymentd from outside alone: its doors, its database and the ledger identity.
	"loadtest/rig":  {"internal/payment", "internal/devdb", "internal/devdb/child", "internal/tosssim", "migrations"},
	"loadtest":      {},
	"loadtest/load": {},
	// The first layers of paymentd alone, its store among them.
	"loadtest/layers": {"internal/payment", "internal/approval", "internal/store"},
	"loadtest/bench":  {"internal/devdb", "internal/tosssim", "loadtest", "loadtest/rig", "loadtest/load"},
	"loadtest/chaos":  {"internal/payment", "internal/devdb", "internal/tosssim", "loadtest/rig"},
	"loadtest/plot":   {},
	"loadtest/soak":   {"internal/tosssim", "loadtest/rig", "loadtest/plot"},
	// What S1 compares with shares nothing with the product.
	"loadtest/baseline":  {},
	"loadtest/scenarios": {"internal/payment", "internal/devdb", "internal/tosssim", "loadtest/rig", "loadtest/plot", "loadtest/baseline"},
}

// mayUse lists every foreign module (by import path prefix) and the packages that may import it outside
// tests. A module that is not listed is for tests alone.
var mayUse = map[string][]string{
	"github.com/failsafe-go/failsafe-go":  {"breaker", "internal/pg"},
	"github.com/google/uuid":              {"internal/store"},
	"github.com/jackc/pgx/v5":             {"internal/store", "internal/devdb", "cmd/paymentd", "migrations", "loadtest/rig", "loadtest/baseline", "loadtest/layers"},
	"github.com/pressly/goose/v3":         {"migrations", "internal/devdb", "cmd/paymentd"},
	"github.com/go-chi/chi/v5":            {"internal/httpapi", "internal/operator", "internal/web", "internal/tosssim", "loadtest/layers"},
	"github.com/caarlos0/env/v11":         {"cmd/paymentd"},
	"golang.org/x/time":                   {"internal/pg", "internal/httpapi", "internal/recovery", "internal/tosssim", "cmd/paymentd"},
	"golang.org/x/sync":                   {"internal/store", "internal/notify", "internal/recovery", "internal/httpapi", "cmd/paymentd"},
	"github.com/wneessen/go-mail":         {"internal/notify"},
	"github.com/prometheus/client_golang": {"internal/pg", "internal/store", "internal/notify", "internal/recovery", "internal/httpapi", "internal/operator", "internal/web", "cmd/paymentd", "loadtest/layers"},
}

// notShipped are the packages that the program cmd/paymentd must not contain, however they got there.
var notShipped = []string{
	"internal/approval/approvaltest", "internal/devdb", "internal/devdb/child", "internal/tosssim", "loadtest/rig", "deploy",
}

func TestArchitecture(t *testing.T) {
	t.Parallel()
	tree, err := parseTree(os.DirFS(".."))
	if err != nil {
		t.Fatal(err)
	}
	if len(tree) < 2 {
		t.Fatalf("found %d packages, the walk did not start at the module root", len(tree))
	}
	for _, broken := range checkImports(tree) {
		t.Error(broken)
	}
}

// TestArchitectureTable keeps the table itself within design §3, so that a convenient row does not pass.
func TestArchitectureTable(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"internal/payment", "internal/tosssim", "breaker", "migrations"} {
		if got := mayImport[pkg]; len(got) != 0 {
			t.Errorf("%s may import nothing of the module, the table says %v", pkg, got)
		}
	}
	if diff := cmp.Diff([]string{"internal/payment"}, mayImport["internal/approval"]); diff != "" {
		t.Errorf("approval imports payment alone (-want +got):\n%s", diff)
	}
	shared := []string{"internal/payment", "internal/approval", "internal/web", "breaker", "migrations"}
	for pkg, allowed := range mayImport {
		if strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "loadtest/") {
			continue
		}
		for _, to := range allowed {
			if !slices.Contains(shared, to) && !strings.HasPrefix(to, pkg+"/") {
				t.Errorf("%s may not import its sibling %s: only cmd/ and loadtest/ join siblings", pkg, to)
			}
		}
	}
	for name, users := range mayUse {
		for _, pkg := range []string{"internal/payment", "internal/approval"} {
			if slices.Contains(users, pkg) {
				t.Errorf("%s may not use %s: it lives on the standard library", pkg, name)
			}
		}
		if slices.Contains(users, "breaker") && name != "github.com/failsafe-go/failsafe-go" {
			t.Errorf("breaker may not use %s: it imports failsafe-go alone", name)
		}
	}
}

// TestArchitectureCatches feeds trees with one fault each: a checker that finds nothing is worthless.
func TestArchitectureCatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		tree map[string]string
		want []string
	}{
		{name: "clean", tree: map[string]string{"internal/approval/a.go": `"paymentd/internal/payment"`}},
		{
			name: "sibling", tree: map[string]string{"internal/store/a.go": `"paymentd/internal/pg"`},
			want: []string{"internal/store/a.go: internal/store may not import internal/pg"},
		},
		{
			name: "unlisted package", tree: map[string]string{"internal/util/a.go": `"fmt"`},
			want: []string{"internal/util: not listed in mayImport"},
		},
		{
			name: "foreign module in the core", tree: map[string]string{"internal/approval/a.go": `"github.com/jackc/pgx/v5/pgxpool"`},
			want: []string{"internal/approval/a.go: internal/approval may not use github.com/jackc/pgx/v5"},
		},
		{
			name: "prefix of another module", tree: map[string]string{"internal/store/a.go": `"github.com/jackc/pgx/v55"`},
			want: []string{"internal/store/a.go: github.com/jackc/pgx/v55 is not listed in mayUse"},
		},
		{
			name: "test module in the program", tree: map[string]string{"internal/pg/a.go": `"pgregory.net/rapid"`},
			want: []string{"internal/pg/a.go: pgregory.net/rapid is not listed in mayUse"},
		},
		{
			name: "tests may import what they need", tree: map[string]string{
				"internal/store/a.go":      `"fmt"`,
				"internal/store/a_test.go": `"paymentd/internal/devdb"`,
			},
		},
		{
			name: "simulator shipped by a detour", tree: map[string]string{
				"cmd/paymentd/main.go":  `"paymentd/internal/pg"`,
				"internal/pg/a.go":      `"paymentd/internal/tosssim"`,
				"internal/tosssim/a.go": `"fmt"`,
			},
			want: []string{
				"cmd/paymentd: ships internal/tosssim",
				"internal/pg/a.go: internal/pg may not import internal/tosssim",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			files := fstest.MapFS{}
			for name, imported := range test.tree {
				files[name] = &fstest.MapFile{Data: []byte("package a\n\nimport _ " + imported + "\n")}
			}
			tree, err := parseTree(files)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, checkImports(tree)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// checkImports returns one line per broken rule, sorted.
func checkImports(tree sources) []string {
	var broken []string
	for dir, files := range tree {
		allowed, listed := mayImport[dir]
		if !listed {
			broken = append(broken, dir+": not listed in mayImport")
			continue
		}
		for _, f := range files {
			for _, imported := range f.imports() {
				if why := refusal(dir, allowed, imported); why != "" {
					broken = append(broken, f.name+": "+why)
				}
			}
		}
	}
	shipped := closure(tree, "cmd/paymentd")
	for _, dir := range notShipped {
		if shipped[dir] {
			broken = append(broken, "cmd/paymentd: ships "+dir)
		}
	}
	slices.Sort(broken)
	return broken
}

// refusal says why dir may not import a path, or nothing.
func refusal(dir string, allowed []string, imported string) string {
	if own, ok := strings.CutPrefix(imported, module+"/"); ok {
		if slices.Contains(allowed, own) {
			return ""
		}
		return dir + " may not import " + own
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return ""
	}
	for name, users := range mayUse {
		if imported != name && !strings.HasPrefix(imported, name+"/") {
			continue
		}
		if slices.Contains(users, dir) {
			return ""
		}
		return dir + " may not use " + name
	}
	return imported + " is not listed in mayUse"
}

// closure follows the imports of one package through the module.
func closure(tree sources, from string) map[string]bool {
	seen := map[string]bool{}
	var visit func(dir string)
	visit = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		for _, f := range tree[dir] {
			for _, imported := range f.imports() {
				if own, ok := strings.CutPrefix(imported, module+"/"); ok {
					visit(own)
				}
			}
		}
	}
	visit(from)
	return seen
}

// sources are the non-test Go files of the module by folder.
type sources map[string][]source

// dirs returns the folders in order, so that findings always come in the same one.
func (s sources) dirs() []string { return slices.Sorted(maps.Keys(s)) }

// source is one parsed file.
type source struct {
	name  string
	lines int
	fset  *token.FileSet
	file  *ast.File
}

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		if imported, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, imported)
		}
	}
	return paths
}

// parseTree reads every non-test Go file of the module, whatever its build constraints say.
func parseTree(root fs.FS) (sources, error) {
	tree := sources{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && outside(root, name, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an editor's temporary file, gone between listing and reading
		}
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		dir := path.Dir(name)
		lines := strings.Count(string(text), "\n")
		tree[dir] = append(tree[dir], source{name: name, lines: lines, fset: fset, file: file})
		return nil
	})
	return tree, err
}

// outside tells whether a folder is none of the module's: hidden, test data, packages of npm, or a module
// of its own.
func outside(root fs.FS, name, base string) bool {
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "node_modules" {
		return true
	}
	_, err := fs.Stat(root, path.Join(name, "go.mod"))
	return err == nil
}
