package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// built is the program as people run it, made once for all tests that need a process of its own.
type built struct {
	once sync.Once
	dir  string
	err  error
}

// binary is package state because testing offers no place for what all tests of a process use.
var binary built

func (b *built) path(t testing.TB) string {
	t.Helper()
	b.once.Do(func() {
		//nolint:usetesting // all tests of the process share the binary
		if b.dir, b.err = os.MkdirTemp("", "paymentd-test-"); b.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", filepath.Join(b.dir, "paymentd"), ".").CombinedOutput()
		if err != nil {
			b.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if b.err != nil {
		t.Fatalf("build paymentd: %v", b.err)
	}
	return filepath.Join(b.dir, "paymentd")
}

func (b *built) remove() {
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// process is a paymentd that can be killed.
type process struct {
	*instance
	cmd   *exec.Cmd
	ended chan error
}

// spawn starts the real program and waits until it listens.
func (w *world) spawn(set ...string) *process {
	w.t.Helper()
	p, listens := w.launch(exec.Command(binary.path(w.t), "serve"), set...)
	if !listens {
		w.t.Fatal("paymentd ended instead of listening")
	}
	return p
}

// launch starts a program that serves as paymentd does and waits until it listens or ends.
func (w *world) launch(cmd *exec.Cmd, set ...string) (p *process, listens bool) {
	w.t.Helper()
	cmd.Env = w.env(set...)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = io.MultiWriter(w.log, write), w.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	p = &process{instance: &instance{world: w}, cmd: cmd, ended: make(chan error, 1)}
	go func() {
		err := cmd.Wait()
		_ = write.Close()
		p.ended <- err
	}()
	w.t.Cleanup(func() { _ = cmd.Process.Kill() })
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(read)
		for lines.Scan() {
			var line struct{ Msg, Public, Private string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
				p.url, p.admin = "http://"+line.Public, "http://"+line.Private
				ready <- true
			}
		}
		ready <- false
		_, _ = io.Copy(io.Discard, read)
	}()
	select {
	case listens = <-ready:
	case <-time.After(2 * time.Minute):
		w.t.Fatal("paymentd did not listen in time")
	}
	return p, listens
}

// kill ends the process as a crash does.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.wait()
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait returns the exit status; -1 means killed.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case err := <-p.ended:
		return statusOf(p.t, err)
	case <-time.After(2 * time.Minute):
		p.t.Fatal("paymentd did not end")
		return -1
	}
}

func statusOf(t testing.TB, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// ran is what a finished command left.
type ran struct {
	status         int
	stdout, stderr string
	took           time.Duration
}

// command runs the real program to its end.
func runBinary(t testing.TB, env []string, args ...string) ran {
	t.Helper()
	path := binary.path(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &stdout, &stderr
	begin := time.Now()
	err := cmd.Run()
	return ran{statusOf(t, err), stdout.String(), stderr.String(), time.Since(begin)}
}
