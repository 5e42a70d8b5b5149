package child

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// shell starts a script that writes "up" when it has set its traps.
func shell(t *testing.T, script string) *Process {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	if err := syscall.Mkfifo(ready, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Start(Spec{
		Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"PATH=/bin:/usr/bin", "READY=" + ready},
		Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(context.Background(), syscall.SIGKILL) })
	if text, err := os.ReadFile(ready); err != nil || string(text) != "up\n" {
		t.Fatalf("script said %q, %v", text, err)
	}
	return p
}

func TestStop(t *testing.T) {
	t.Parallel()
	ended, impatient := t.Context(), func() context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}()
	for _, tt := range []struct {
		name, script string
		ctx          context.Context
		wantLog      string
		wantErr      string
	}{
		{"in order", `trap 'echo bye; exit 0' TERM; echo up >"$READY"; while :; do sleep 0.02; done`, ended, "bye", ""},
		{"deaf", `trap '' TERM INT; echo hm; echo up >"$READY"; while :; do sleep 0.02; done`, impatient, "hm", "was killed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := shell(t, tt.script)
			err := p.Stop(tt.ctx, syscall.SIGTERM, syscall.SIGINT)
			if got := p.Tail(1); got != tt.wantLog {
				t.Errorf("log ends %q", got)
			}
			if (err == nil) != (tt.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tt.wantErr)) {
				t.Errorf("got %v", err)
			}
			if err := p.Stop(t.Context(), syscall.SIGTERM); err != nil {
				t.Errorf("second stop: %v", err)
			}
		})
	}
}

func TestEndsByItself(t *testing.T) {
	t.Parallel()
	p := shell(t, `echo up >"$READY"; for i in 1 2 3; do echo $i; done; exit 3`)
	<-p.Done()
	if p.Err() == nil || p.Err().Error() != "exit status 3" || p.Tail(2) != "2\n3" {
		t.Errorf("ended with %v, log %q", p.Err(), p.Tail(2))
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	_, err := Start(Spec{Name: "nothing", Path: "/no/such/program", Log: filepath.Join(t.TempDir(), "log")})
	if err == nil || !strings.HasPrefix(err.Error(), "start nothing: ") {
		t.Errorf("got %v", err)
	}
}

func TestLeashRemovesTheFolder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		let  func(*leash)
		want bool
	}{
		{"parent gone", func(l *leash) { l.forget(); l.in.Close(); _ = l.cmd.Wait() }, false},
		{"released", func(l *leash) { l.release(); l.release() }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			l, err := newLeash(Spec{Name: "test", Remove: dir, DeathSignal: syscall.SIGINT}, os.Getpid())
			if err != nil {
				t.Fatal(err)
			}
			tt.let(l)
			if _, err := os.Stat(dir); (err == nil) != tt.want {
				t.Errorf("folder: %v", err)
			}
		})
	}
}
