package internal_test

import (
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// lastTrap is the number of the last known trap; none in between is without a test.
const lastTrap = 42

var (
	trapFunc = regexp.MustCompile(`(?m)^func Test(Trap\d+_\w+)\(`)
	trapRow  = regexp.MustCompile(`(?m)^\| (\d+) \| .+ \| (.+) \|$`)
	trapName = regexp.MustCompile("`(\\w+)`")
)

// TestTrapTable holds the table of docs/testing.md to the tests: every trap has one, and those that it names are there.
func TestTrapTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range checkTraps(os.DirFS(".."), string(doc)) {
		t.Error(broken)
	}
}

// TestTrapTableCatches feeds one fault each.
func TestTrapTableCatches(t *testing.T) {
	t.Parallel()
	whole, tree := "", "package a\n"
	for n := 1; n <= lastTrap; n++ {
		whole += "| " + strconv.Itoa(n) + " | what | `It` |\n"
		tree += "func TestTrap" + strconv.Itoa(n) + "_It(t *testing.T) {}\n"
	}
	for _, tt := range []struct {
		name, doc, tree string
		want            []string
	}{
		{name: "whole", doc: whole, tree: tree},
		{name: "no row", doc: strings.Replace(whole, "| 7 | what | `It` |\n", "", 1), tree: tree, want: []string{"trap 7 has no test in the table"}},
		{name: "a row without a test", doc: strings.Replace(whole, "| 7 | what | `It` |", "| 7 | what | – |", 1), tree: tree, want: []string{"trap 7 has no test in the table"}},
		{
			name: "a test that is gone", doc: whole, tree: strings.Replace(tree, "TestTrap7_It", "TestIt", 1),
			want: []string{"TestTrap7_It is in the table and nowhere else"},
		},
	} {
		files := fstest.MapFS{"a/a_test.go": {Data: []byte(tt.tree)}}
		if diff := cmp.Diff(tt.want, checkTraps(files, tt.doc)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func checkTraps(tree fs.FS, doc string) (broken []string) {
	there := map[string]bool{}
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(tree, path)
		for _, m := range trapFunc.FindAllStringSubmatch(string(text), -1) {
			there[m[1]] = true
		}
		return err
	})
	if err != nil {
		return []string{err.Error()}
	}
	rows := map[string]string{}
	for _, m := range trapRow.FindAllStringSubmatch(doc, -1) {
		rows[m[1]] = m[2]
	}
	for n := 1; n <= lastTrap; n++ {
		trap := strconv.Itoa(n)
		names := trapName.FindAllStringSubmatch(rows[trap], -1)
		if len(names) == 0 {
			broken = append(broken, "trap "+trap+" has no test in the table")
		}
		for _, m := range names {
			if name := "Trap" + trap + "_" + m[1]; !there[name] {
				broken = append(broken, "Test"+name+" is in the table and nowhere else")
			}
		}
	}
	return broken
}
