//go:build !linux

package dev

import "syscall"

// endWithParent does nothing where the kernel has no parent-death signal.
func endWithParent(*syscall.SysProcAttr) {}
