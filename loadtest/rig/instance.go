package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"paymentd/internal/devdb/child"
)

// startWithin bounds a start: paymentd itself waits for its database for DB_CONNECT_TIMEOUT.
const startWithin = 60 * time.Second

// Instance is one paymentd, through all its lives.
type Instance struct {
	Name string

	rig     *Rig
	program string
	env     []string
	log     string

	mu   sync.Mutex
	proc *child.Process
	// doors are the public and the private one; nil while the instance is down.
	doors atomic.Pointer[[2]string]
}

// Build makes paymentd from the sources around the working folder into dir and returns its path.
func Build(ctx context.Context, dir string) (string, error) {
	return BuildInstead(ctx, dir, "paymentd/cmd/paymentd")
}

// BuildInstead is Build for another program of the module, by its import path, that an instance runs in place of paymentd.
func BuildInstead(ctx context.Context, dir, program string) (string, error) {
	name := path.Base(program)
	built := filepath.Join(dir, name)
	out, err := exec.CommandContext(ctx, "go", "build", "-o", built, program).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, strings.TrimSpace(string(out)))
	}
	return built, nil
}

// Start starts a dead instance and returns when it listens. An instance that ends before that is an error; one that
// runs already is none.
func (in *Instance) Start(ctx context.Context) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.alive() {
		return nil
	}
	// A pipe to this process would take a part of the machine that a load test measures: every line would wake it.
	log, err := os.OpenFile(in.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", in.Name, err)
	}
	before, err := log.Seek(0, io.SeekEnd)
	if err == nil {
		in.proc, err = child.Start(child.Spec{
			Name: in.Name, Path: in.program, Args: []string{"serve"}, Env: in.env, Dir: in.rig.dir, Output: log, DeathSignal: syscall.SIGKILL,
		})
	}
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start %s: %w", in.Name, err)
	}
	if err := in.listens(ctx, before); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", in.Name, err), in.end(syscall.SIGKILL))
	}
	return nil
}

// listens waits for the addresses in the log of this life, which begins at an offset.
func (in *Instance) listens(ctx context.Context, from int64) error {
	log, err := os.Open(in.log)
	if err != nil {
		return err
	}
	defer log.Close()
	late := time.NewTimer(startWithin)
	defer late.Stop()
	for ended := false; ; {
		doors, err := listening(io.NewSectionReader(log, from, 1<<20))
		if err != nil {
			return err
		}
		if doors[0] != "" {
			in.doors.Store(&doors)
			return nil
		}
		if ended {
			return errors.New("it ended instead of listening")
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-in.proc.Done():
			ended = true // what it wrote last is still to be read
		case <-late.C:
			return errors.New("it does not listen in time")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listening finds the public and the private door in a log; empty if they are not in it yet.
func listening(log io.Reader) (doors [2]string, err error) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct{ Msg, Public, Private string }
		if json.Unmarshal(lines.Bytes(), &event) == nil && event.Msg == "listening" {
			return [2]string{"http://" + event.Public, "http://" + event.Private}, nil
		}
	}
	return doors, lines.Err()
}

// alive must be called with mu held.
func (in *Instance) alive() bool {
	if in.proc == nil {
		return false
	}
	select {
	case <-in.proc.Done():
		return false
	default:
		return true
	}
}

// end must be called with mu held.
func (in *Instance) end(s os.Signal) error {
	in.doors.Store(nil)
	if in.proc == nil {
		return nil
	}
	if s == syscall.SIGKILL {
		err := in.proc.Signal(s)
		<-in.proc.Done()
		return err
	}
	if err := in.proc.Stop(context.Background(), s); err != nil {
		return err
	}
	if err := in.proc.Err(); err != nil {
		return fmt.Errorf("%s after %s: %w", in.Name, s, err)
	}
	return nil
}

// Kill ends the instance by SIGKILL, at whatever it does. A dead one stays dead.
func (in *Instance) Kill() {
	in.mu.Lock()
	defer in.mu.Unlock()
	_ = in.end(syscall.SIGKILL)
}

// Stop ends the instance in order by SIGTERM; an exit status other than 0 is an error.
func (in *Instance) Stop() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.alive() {
		return nil
	}
	return in.end(syscall.SIGTERM)
}

// Pause stops the process for d, as a machine that swaps or a container that is frozen does, and wakes it up.
func (in *Instance) Pause(d time.Duration) {
	wake := in.Freeze()
	time.Sleep(d)
	wake()
}

// Freeze stops the process until wake is called.
func (in *Instance) Freeze() (wake func()) {
	in.mu.Lock()
	proc := in.proc
	in.mu.Unlock()
	if proc == nil || proc.Signal(syscall.SIGSTOP) != nil {
		return func() {}
	}
	return func() { _ = proc.Signal(syscall.SIGCONT) }
}

// URL is the public door, "" while the instance is down.
func (in *Instance) URL() string { return in.door(0) }

// AdminURL is the private door, "" while the instance is down.
func (in *Instance) AdminURL() string { return in.door(1) }

func (in *Instance) door(i int) string {
	doors := in.doors.Load()
	if doors == nil {
		return ""
	}
	return doors[i]
}
