package parser

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// addresses is the room that a Go process reserves and does not use. RLIMIT_DATA is no limit for
// one: it counts what the heap has prepared, and a process that meets it fails in odd places. So
// the parent watches what a child has in memory, and this limit only bounds what it can take
// between two looks.
const addresses = 4 << 30

// confine limits this process: its addresses and its CPU time.
func confine(memory, cpu int64) error {
	for limit, n := range map[int]uint64{syscall.RLIMIT_AS: uint64(memory) + addresses, syscall.RLIMIT_CPU: uint64(cpu), syscall.RLIMIT_CORE: 0} {
		if err := syscall.Setrlimit(limit, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			return err
		}
	}
	return nil
}

// niceness of a child: whatever else wants the processor has it first.
const niceness = 15

// giveWay lowers the priority of a process that has just been started: of each of its threads, since Linux keeps a
// priority by thread, and a new thread has that of the one that made it. The start of the process itself
// (packages that are initialized, pages that are mapped) is a tenth of a second of processor.
func giveWay(pid int) {
	for again := true; again; {
		again = false
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)) // none: it has ended
		for _, t := range threads {
			thread, _ := strconv.Atoi(t.Name())
			if is, err := syscall.Getpriority(syscall.PRIO_PROCESS, thread); err == nil && is != kernelNice-niceness { // one more may have been made
				again = syscall.Setpriority(syscall.PRIO_PROCESS, thread, niceness) == nil || again
			}
		}
	}
}

// kernelNice less a niceness is what the system call answers.
const kernelNice = 20

// dieWithParent kills the child when the thread that starts it ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// overtime reports whether the child was stopped by its limit of CPU time. The kernel enforces it with SIGKILL, which the kernel
// also sends to a process that the machine has no memory for, and counts it in ticks: a child that has used much less
// than its limit was not stopped by it.
func overtime(err *exec.ExitError, limit time.Duration) bool {
	s, ok := err.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && (s.Signal() == syscall.SIGXCPU || s.Signal() == syscall.SIGKILL) && err.UserTime()+err.SystemTime() >= limit*3/4
}

// resident returns the bytes of memory that a process has; 0 if it has ended.
func resident(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var all, pages int64
	if _, err := fmt.Sscan(string(b), &all, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
