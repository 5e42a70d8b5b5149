package devdb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// CacheDir is the folder for what we fetch and keep, made if it is missing; see the package comment for the place.
func CacheDir() (string, error) {
	if dir := os.Getenv("PAYMENTD_TEST_CACHE"); dir != "" {
		return makeCache(dir)
	}
	if os.Geteuid() == 0 {
		if runtime.GOOS == "darwin" {
			return makeCache("/Library/Caches/paymentd-dev")
		}
		return makeCache("/var/cache/paymentd-dev")
	}
	if base, err := os.UserCacheDir(); err == nil {
		if dir, err := makeCache(filepath.Join(base, "paymentd-dev")); err == nil {
			return dir, nil
		}
	}
	// Users without a home, nobody among them.
	return makeCache(filepath.Join(os.TempDir(), "paymentd-dev-"+strconv.Itoa(os.Getuid())))
}

func makeCache(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	// What lies in the cache is run: nobody else may have put it there.
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("cache folder %s belongs to another user", dir)
	}
	probe, err := os.CreateTemp(dir, ".probe-")
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	probe.Close()
	os.Remove(probe.Name())
	if os.Geteuid() == 0 {
		return dir, os.Chmod(dir, 0o755)
	}
	return dir, nil
}

// ErrInUse says that another living process uses the folder; the text around it names its pid.
var ErrInUse = errors.New("in use by another process")

// tryLock takes the lock file without waiting. The lock ends with the process, however that dies.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder := make([]byte, 16)
		n, _ := f.Read(holder)
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w (pid %s)", ErrInUse, strings.TrimSpace(string(holder[:n])))
		}
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// waitLock waits for the lock file until ctx ends.
func waitLock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	for said := false; ; said = true {
		f, err := tryLock(path)
		if !errors.Is(err, ErrInUse) {
			return f, err
		}
		if !said {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// openToAll lets every user read the tree and pass its folders: the server may run as another one.
func openToAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
