package child

import (
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

// leash is a small shell that waits for the end of its standard input, which comes with the parent's death, however
// it dies. It stops the program where the system has no death signal, and removes the folder left behind.
type leash struct {
	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser // nil once released
}

// leashScript: $1 pid, $2 signal number, $3 folder to remove or empty. It reads "free" to end without doing anything
// and "gone" when the program has ended, after which its pid may belong to another one.
const leashScript = `
pid=$1
while read -r word; do
	if [ "$word" = free ]; then exit 0; fi
	pid=
done
if [ -n "$pid" ]; then
	kill -"$2" "$pid" 2>/dev/null
	i=0
	while kill -0 "$pid" 2>/dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
	kill -9 "$pid" 2>/dev/null
fi
if [ -n "$3" ]; then rm -rf -- "$3"; fi
`

func newLeash(spec Spec, pid int) (*leash, error) {
	if hasDeathSignal && spec.Remove == "" {
		return nil, nil
	}
	cmd := exec.Command("/bin/sh", "-c", leashScript, "leash", strconv.Itoa(pid),
		strconv.Itoa(int(spec.DeathSignal)), spec.Remove)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Dir = "/"
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("leash %s: %w", spec.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("leash %s: %w", spec.Name, err)
	}
	return &leash{cmd: cmd, in: in}, nil
}

// forget tells the shell that the program has ended. It may be called on nil.
func (l *leash) forget() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in != nil {
		_, _ = io.WriteString(l.in, "gone\n") // fails only when the shell has gone
	}
}

// release ends the shell without touching anything. It may be called on nil and twice.
func (l *leash) release() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in == nil {
		return
	}
	_, _ = io.WriteString(l.in, "free\n")
	l.in.Close()
	l.in = nil
	_ = l.cmd.Wait()
}

// hasDeathSignal: only Linux can tie a child's life to its parent's.
const hasDeathSignal = runtime.GOOS == "linux"
