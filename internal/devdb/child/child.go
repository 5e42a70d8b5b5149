// Package child runs a server program that must not outlive its parent: it is started in a process group of its
// own, so that Ctrl-C reaches the parent alone, and it is ended when the parent dies, even by SIGKILL.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Spec says what to run. Nothing of our own environment is inherited.
type Spec struct {
	Name string // for messages
	Path string
	Args []string // without the program's name
	Env  []string
	Dir  string
	// Log is the file that gets standard output and error, made anew by every start; Output replaces it.
	Log    string
	Output *os.File
	// Credential is the user to run as; nil: ourselves.
	Credential *syscall.Credential
	// DeathSignal is what the program gets when the parent dies; zero: SIGTERM.
	DeathSignal syscall.Signal
	// Remove is a folder deleted when the parent is gone and the program after it; empty: none.
	Remove string
}

// Process is one started program.
type Process struct {
	spec  Spec
	cmd   *exec.Cmd
	leash *leash
	ready chan struct{} // closed when leash is set
	done  chan struct{}
	err   error
}

// Start runs the program and reaps it in the background; Done tells when it has ended.
func Start(spec Spec) (*Process, error) {
	if spec.DeathSignal == 0 {
		spec.DeathSignal = syscall.SIGTERM
	}
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: spec.Credential}
	dieWithParent(cmd.SysProcAttr, spec.DeathSignal)
	cmd.Stdout, cmd.Stderr = spec.Output, spec.Output
	if spec.Output == nil {
		log, err := os.Create(spec.Log)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", spec.Name, err)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
	}
	p := &Process{spec: spec, cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	started := make(chan error)
	go p.own(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	var err error
	p.leash, err = newLeash(spec, p.Pid())
	close(p.ready)
	if err != nil {
		return nil, errors.Join(err, p.Stop(context.Background(), syscall.SIGKILL))
	}
	return p, nil
}

// own starts the program and stays until it ends. The thread is locked because the death signal of Linux is sent
// when the thread that forked ends, not when the process does.
func (p *Process) own(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	<-p.ready
	p.leash.forget()
	close(p.done)
}

// Pid is the process id of the program.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the ended program ended: nil for status 0. It must not be called before Done.
func (p *Process) Err() error { return p.err }

// Signal sends a signal to the program alone; one that has ended already is no error.
func (p *Process) Signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.spec.Name, err)
	}
	return nil
}

// Stop sends one signal after the other, each when ctx or 20 s have ended without effect, and SIGKILL to the whole
// group at the end. It returns when the program is gone; an error means that it had to be killed.
func (p *Process) Stop(ctx context.Context, signals ...os.Signal) error {
	defer p.leash.release()
	for _, s := range signals {
		if p.ended() {
			return nil
		}
		if err := p.Signal(s); err != nil {
			return err
		}
		timer := time.NewTimer(stopWithin)
		select {
		case <-p.done:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
	}
	if p.ended() {
		return nil
	}
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL) // fails only when nobody is left
	<-p.done
	return fmt.Errorf("stop %s: did not end in time and was killed", p.spec.Name)
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

const stopWithin = 20 * time.Second

// Tail is the last lines of the program's log, at most n; empty without a log file.
func (p *Process) Tail(n int) string { return Tail(p.spec.Log, n) }

// Tail is the last n lines of a file; empty if it cannot be read.
func Tail(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
