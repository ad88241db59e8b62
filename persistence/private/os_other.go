//go:build !linux

package private

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent does nothing if the kernel has no parent-death signal: the next owner stops a
// survivor.
func dieWithParent(*syscall.SysProcAttr) {}

// serversOf returns the server that works in the directory data.
func serversOf(data string) []int {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return nil
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 0 {
		return nil
	}
	out, err := exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	if err != nil || !strings.Contains(string(out), "postgres") || !strings.Contains(string(out), data) {
		return nil
	}
	return []int{pid}
}

// syncFileSystem makes everything written so far durable.
func syncFileSystem(string) error {
	unix.Sync()
	return nil
}
