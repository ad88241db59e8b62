package browser

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// become makes this process the program args[0]: in a session of its own, with a low
// priority, as another user if uid is not negative, without our environment, and dying with the
// thread that started it.
func become(uid, gid, parent int, home string, args []string) error {
	runtime.LockOSThread()                      // the signal of the parent's death belongs to the thread
	if _, err := syscall.Setsid(); err != nil { // it leads a session or a group already
		_ = syscall.Setpgid(0, 0)
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, niceness); err != nil {
		return fmt.Errorf("lower the priority: %w", err)
	}
	for limit, n := range map[int]uint64{syscall.RLIMIT_CORE: 0, syscall.RLIMIT_FSIZE: 512 << 20} {
		if err := syscall.Setrlimit(limit, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("set a limit: %w", err)
		}
	}
	if uid >= 0 {
		if err := errors.Join(syscall.Setgroups([]int{gid}), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ask to die with the parent: %w", err)
	}
	if parent > 0 && os.Getppid() != parent {
		return errors.New("the parent has ended")
	}
	// The kernel ends browsers first where memory runs out.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	if err := os.Chdir(home); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + home, "TMPDIR=" + home, "XDG_CONFIG_HOME=" + home, "XDG_CACHE_HOME=" + home, "LC_ALL=C.UTF-8", "TZ=UTC"})
}

// process is one line of the table of processes.
type process struct{ pid, parent, group, session int }

// processes returns all processes of this machine.
func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		s := string(b)
		var state string
		p := process{pid: pid}
		if _, err := fmt.Sscan(s[strings.LastIndexByte(s, ')')+1:], &state, &p.parent, &p.group, &p.session); err == nil && state != "Z" {
			out = append(out, p)
		}
	}
	return out
}

// familyOf returns the processes whose command line names the directory, and everything that
// descends from them or shares their sessions, our own session excepted.
func familyOf(dir string) []int {
	all := processes()
	in, sessions := map[int]bool{}, map[int]bool{}
	ours, _ := unix.Getsid(0)
	for _, p := range all {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid)); err == nil && p.pid != os.Getpid() && strings.Contains(string(b), dir+"/") {
			in[p.pid] = true
			if p.session == p.pid && p.session != ours {
				sessions[p.session] = true
			}
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if in[p.pid] || p.pid == os.Getpid() || !in[p.parent] && !sessions[p.session] {
				continue
			}
			in[p.pid], grown = true, true
			if p.session == p.pid && p.session != ours {
				sessions[p.session] = true
			}
		}
	}
	var out []int
	for pid := range in {
		out = append(out, pid)
	}
	return out
}

// giveWay lowers the priority of the sessions that processes lead, and reports whether no session
// is left to lower: where the kernel shares the processors among sessions (sched_autogroup_enabled), the
// priority of a process counts only within its session, and Chromium leads its own. Without
// CAP_SYS_ADMIN the kernel accepts one such change in a tenth of a second, of all processes of the
// machine together, and answers EAGAIN to the others.
func giveWay(pids []int) bool {
	done := true
	for _, pid := range pids {
		if sid, err := unix.Getsid(pid); err != nil || sid != pid {
			continue
		}
		path := fmt.Sprintf("/proc/%d/autogroup", pid)
		if group, err := os.ReadFile(path); err != nil || strings.HasSuffix(strings.TrimSpace(string(group)), fmt.Sprintf("nice %d", niceness)) {
			continue // the process has ended, or the kernel has no such groups
		}
		if err := os.WriteFile(path, []byte(strconv.Itoa(niceness)), 0); errors.Is(err, unix.EAGAIN) {
			done = false
		}
	}
	return done
}

// resident returns the bytes that processes have in memory: shared pages are divided among those
// that share them.
func resident(pids []int) int64 {
	var sum int64
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				var kb int64
				if _, err := fmt.Sscan(rest, &kb); err == nil {
					sum += kb << 10
				}
				break
			}
		}
	}
	return sum
}

// mapped returns at least the bytes that processes have in memory: what they share is counted for each.
func mapped(pids []int) int64 {
	var sum int64
	for _, pid := range pids {
		var size, pages int64
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)); err == nil {
			if _, err := fmt.Sscan(string(b), &size, &pages); err == nil {
				sum += pages * int64(os.Getpagesize())
			}
		}
	}
	return sum
}

// isPage reports whether a process shows pages.
func isPage(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(b), "--type=renderer")
}

func endProcess(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }
