package devdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folder holds the databases of one server, its log and the lock that keeps a second server out.
type folder struct {
	root      string
	data      string // PGDATA, one per major version
	temporary bool
	lock      *os.File
}

const temporaryPrefix = "paymentd-pg-"

// openFolder makes and locks the folder; an empty name means a temporary one.
func openFolder(dir string) (*folder, error) {
	f := &folder{root: dir}
	var err error
	if dir == "" {
		sweep(os.TempDir())
		f.temporary = true
		f.root, err = os.MkdirTemp("", temporaryPrefix)
	} else {
		if f.root, err = filepath.Abs(dir); err == nil {
			err = os.MkdirAll(f.root, 0o755)
		}
	}
	if err != nil {
		return nil, err
	}
	if f.lock, err = tryLock(filepath.Join(f.root, "lock")); err != nil {
		return nil, fmt.Errorf("data folder %s: %w", f.root, err)
	}
	return f, nil
}

func (f *folder) log() string { return filepath.Join(f.root, "postgres.log") }

// prepare brings the folder to where the server can be started on it.
func (f *folder) prepare(ctx context.Context, s *Server) error {
	f.data = filepath.Join(f.root, "data-"+strconv.Itoa(s.bins.Major))
	if os.Geteuid() == 0 {
		if err := os.Chmod(f.root, 0o755); err != nil {
			return err
		}
	}
	if err := s.account.canReach(f.data); err != nil {
		return err
	}
	if err := endOrphan(ctx, f.data); err != nil {
		return err
	}
	if s.options.Fresh {
		if err := os.RemoveAll(f.data); err != nil {
			return err
		}
	}
	if _, err := os.Stat(f.data); err == nil {
		return nil
	}
	// Beside the final name: an interrupted initdb leaves nothing that looks complete.
	half := f.data + ".new"
	if err := errors.Join(os.RemoveAll(half), os.Mkdir(half, 0o700), s.account.own(half)); err != nil {
		return err
	}
	if err := s.fill(ctx, half); err != nil {
		return err
	}
	return os.Rename(half, f.data)
}

// close gives the folder free, and removes a temporary one. It may be called twice.
func (f *folder) close() error {
	if f.lock == nil {
		return nil
	}
	defer func() { f.lock = nil }()
	if f.temporary {
		if err := os.RemoveAll(f.root); err != nil {
			return err
		}
	}
	return f.lock.Close()
}

// endOrphan stops a server that a killed process left on the folder, and removes a pid file whose process is gone or,
// after a reuse of the number, another program. The caller holds the folder's lock: no owner is alive.
func endOrphan(ctx context.Context, data string) error {
	path := filepath.Join(data, "postmaster.pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 1 {
		return os.Remove(path)
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		if !serves(ctx, pid, data) {
			break
		}
		_ = syscall.Kill(pid, s) // whether it helped shows below
		for range 250 {
			if !serves(ctx, pid, data) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// serves reports whether pid is a server on this folder.
func serves(ctx context.Context, pid int, data string) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	command, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		if command, err = exec.CommandContext(ctx, "ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output(); err != nil {
			return false
		}
	}
	return strings.Contains(string(command), data)
}

// sweep removes temporary folders whose owner died together with its leash, as at a power cut.
func sweep(base string) {
	old, _ := filepath.Glob(filepath.Join(base, temporaryPrefix+"*"))
	for _, dir := range old {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
			continue
		}
		lock, err := tryLock(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		servers, _ := filepath.Glob(filepath.Join(dir, "data-*"))
		ended := true
		for _, data := range servers {
			ended = endOrphan(context.Background(), data) == nil && ended
		}
		if ended {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}
