package mcp

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the command the leader of a process group, so that we can kill the whole
// group, and has the kernel kill it when we die.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // an error means that it is gone already
