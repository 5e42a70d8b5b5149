//go:build !linux

package child

import "syscall"

// dieWithParent has nothing to set here: the leash stops the program.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}
