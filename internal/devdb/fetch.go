package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// source fills the cache with a PostgreSQL.
type source interface {
	// folder is the name of the result in the cache; a new version has a new name.
	folder() string
	// need explains why the source cannot work here; nil: it may.
	need() error
	// fill unpacks into the empty folder dir.
	fill(ctx context.Context, dir string) error
	// binaries finds the programs in a filled folder.
	binaries(dir string) (Binaries, error)
}

// cached takes what an earlier run has fetched, else fetches it; several processes at once fetch it once.
func (f *finder) cached(ctx context.Context, s source) (Binaries, error) {
	if err := f.openCache(); err != nil {
		return Binaries{}, err
	}
	dir := filepath.Join(f.Cache, s.folder())
	if bins, err := f.unpacked(ctx, s, dir); err == nil {
		return bins, nil
	}
	if err := s.need(); err != nil {
		return Binaries{}, err
	}
	lock, err := f.lockCache(ctx)
	if err != nil {
		return Binaries{}, err
	}
	defer lock.Close()
	if bins, err := f.unpacked(ctx, s, dir); err == nil {
		return bins, nil
	}
	if err := f.refill(ctx, s, dir); err != nil {
		return Binaries{}, err
	}
	return f.unpacked(ctx, s, dir)
}

// openCache is late: whoever has PostgreSQL installed needs no cache.
func (f *finder) openCache() (err error) {
	if f.Cache == "" {
		f.Cache, err = CacheDir()
	}
	return err
}

// lockCache waits until no other process fetches.
func (f *finder) lockCache(ctx context.Context) (*os.File, error) {
	if err := f.openCache(); err != nil {
		return nil, err
	}
	lock, err := waitLock(ctx, filepath.Join(f.Cache, "fetch.lock"), func() {
		f.Progress("waiting for another process that fetches PostgreSQL")
	})
	if err != nil {
		return nil, fmt.Errorf("cache lock: %w", err)
	}
	return lock, nil
}

// refill works in a folder beside the final one, so that a broken run leaves nothing that looks complete.
func (f *finder) refill(ctx context.Context, s source, dir string) error {
	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), os.RemoveAll(dir), os.Mkdir(part, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(part)
	if err := s.fill(ctx, part); err != nil {
		return err
	}
	if err := openToAll(part); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

func (f *finder) unpacked(ctx context.Context, s source, dir string) (Binaries, error) {
	bins, err := s.binaries(dir)
	if err != nil {
		return Binaries{}, err
	}
	return f.check(ctx, bins)
}

// outputOf runs a helper program; its error carries the last lines of what the program said.
func outputOf(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if err == nil {
		return string(out), nil
	}
	said := string(out)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		said += string(exit.Stderr)
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return "", fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.Join(lines[max(0, len(lines)-3):], "; "))
}

// firstMatch is the newest folder that fits the pattern.
func firstMatch(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return "", errors.New("nothing in " + pattern)
	}
	slices.SortFunc(found, newestFirst)
	return found[0], nil
}

// npmVersion is the package's version of PostgreSQL 18.4; all of its versions carry "beta", it is their packaging's.
const npmVersion = "18.4.0-beta.17"

func npmPlatform() string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return runtime.GOOS + "-" + arch
}
