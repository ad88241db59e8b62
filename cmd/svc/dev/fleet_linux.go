package dev

import "syscall"

// endWithParent has the kernel stop a child when the thread that started it ends.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
