package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// programs returns the folder that holds paymentd and tosssim, building them when nobody has.
func (s *stack) programs(ctx context.Context) (string, error) {
	if s.bin != "" {
		return filepath.Abs(s.bin)
	}
	if self, err := os.Executable(); err == nil && holdsPrograms(filepath.Dir(self)) {
		return filepath.Dir(self), nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	s.say("building paymentd and tosssim into %s", bin)
	build := exec.CommandContext(ctx, "go", "build", "-o", bin+string(filepath.Separator), "./cmd/paymentd", "./cmd/tosssim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build paymentd and tosssim: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return bin, nil
}

func holdsPrograms(dir string) bool {
	for _, name := range []string{"paymentd", "tosssim"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// moduleRoot is the folder of our go.mod at or above the working folder.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module paymentd\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("paymentd and tosssim: neither beside devstack nor is this the source folder; give --bin")
		}
		dir = parent
	}
}
