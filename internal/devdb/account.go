package devdb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that runs PostgreSQL; nil means ourselves. PostgreSQL refuses to run as root.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount picks the user: ourselves, or for root the first of PostgreSQL's usual users that exists.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		// nobody is -2 on some systems.
		uid, err1 := strconv.ParseInt(u.Uid, 10, 64)
		gid, err2 := strconv.ParseInt(u.Gid, 10, 64)
		if err1 == nil && err2 == nil && uid != 0 {
			return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL cannot run as root, and neither a user postgres nor nobody exists")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own makes the folder the account's.
func (a *account) own(dir string) error {
	if a == nil {
		return nil
	}
	return os.Chown(dir, int(a.uid), int(a.gid))
}

// canReach explains which parent of path the account may not pass, as /root for everybody else.
func (a *account) canReach(path string) error {
	if a == nil {
		return nil
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if !a.mayPass(info) {
			return fmt.Errorf("user %s, who runs PostgreSQL for root, may not pass %s: choose another folder", a.name, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (a *account) mayPass(info fs.FileInfo) bool {
	mode := info.Mode().Perm()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if st.Uid == a.uid {
			return mode&0o100 != 0
		}
		if st.Gid == a.gid {
			return mode&0o010 != 0
		}
	}
	return mode&0o001 != 0
}
