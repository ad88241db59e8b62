//go:build !linux

package main

import "syscall"

// endWithParent does nothing where the kernel has no parent-death signal.
func endWithParent(*syscall.SysProcAttr) {}
