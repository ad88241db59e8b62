//go:build storm

package blackbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// namespaces are networks of their own for the nodes of a bed, joined by a
// bridge: the packets between two nodes are lost or refused by the kernel.
type namespaces struct {
	t   *testing.T
	tag string // begins the names of what is made
}

const (
	bridgeIP   = "10.213.77.1"
	databaseIP = "10.213.77.2" // at which nodes find Postgres
	nobodyMAC  = "02:00:5e:00:00:01"
)

// ours are the names of namespaces and links, with the process that made them.
var ours = regexp.MustCompile(`^svc(\d+)(b|[oin]\d)$`)

func (s *namespaces) ip(args ...string) {
	s.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// newNamespaces makes them where we may; nil where we may not.
func newNamespaces(t *testing.T, nodes int) *namespaces {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	sweepNamespaces()
	s := &namespaces{t: t, tag: fmt.Sprintf("svc%d", os.Getpid())}
	bridge := s.tag + "b"
	if out, err := exec.Command("ip", "link", "add", bridge, "type", "bridge").CombinedOutput(); err != nil {
		t.Logf("no network can be made here (%v: %s): ways are cut by proxies only", err, out)
		return nil
	}
	t.Cleanup(func() { exec.Command("ip", "link", "del", bridge).Run() })
	s.ip("addr", "add", bridgeIP+"/24", "dev", bridge)
	s.ip("addr", "add", databaseIP+"/24", "dev", bridge)
	s.ip("link", "set", bridge, "up")
	for i := range nodes {
		name, outer, inner := s.name(i), fmt.Sprintf("%so%d", s.tag, i), fmt.Sprintf("%si%d", s.tag, i)
		s.ip("netns", "add", name)
		t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
		s.ip("link", "add", outer, "type", "veth", "peer", "name", inner)
		s.ip("link", "set", outer, "master", bridge, "up")
		s.ip("link", "set", inner, "netns", name)
		s.within(i, "link", "set", inner, "name", "eth0")
		s.within(i, "addr", "add", s.addr(i)+"/24", "dev", "eth0")
		s.within(i, "link", "set", "eth0", "up")
		s.within(i, "link", "set", "lo", "up")
	}
	return s
}

// sweepNamespaces removes what a process made that was killed: its bridge has the
// address of ours.
func sweepNamespaces() {
	for dir, remove := range map[string][]string{"/run/netns": {"netns", "del"}, "/sys/class/net": {"link", "del"}} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			made := ours.FindStringSubmatch(e.Name())
			if made == nil {
				continue
			}
			if pid, err := strconv.Atoi(made[1]); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				exec.Command("ip", append(remove, e.Name())...).Run()
			}
		}
	}
}

func (s *namespaces) name(i int) string { return fmt.Sprintf("%sn%d", s.tag, i) }

// addr is the node's address in the network that they share.
func (s *namespaces) addr(i int) string { return fmt.Sprintf("10.213.77.%d", 10+i) }

// database is where a node is to find Postgres that has this port.
func (s *namespaces) database(port string) string { return net.JoinHostPort(databaseIP, port) }

// within changes a node's own network.
func (s *namespaces) within(i int, args ...string) {
	s.t.Helper()
	s.ip(append([]string{"-n", s.name(i)}, args...)...)
}

// wrapper is a program that is the binary in the node's network.
func (s *namespaces) wrapper(i int, binary string) string {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), s.name(i))
	script := fmt.Sprintf("#!/bin/sh\nexec ip netns exec %s %s \"$@\"\n", s.name(i), binary)
	if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// listen listens in the node's network, for as long as the listener is open.
func (s *namespaces) listen(i int, addr string) (net.Listener, error) {
	type made struct {
		ln  net.Listener
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread() // and never unlocked: a thread that has seen another network ends
		fd, err := unix.Open("/run/netns/"+s.name(i), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Setns(fd, unix.CLONE_NEWNET), unix.Close(fd))
		}
		var ln net.Listener
		if err == nil {
			ln, err = net.Listen("tcp", addr)
		}
		done <- made{ln, err}
	}()
	m := <-done
	return m.ln, m.err
}

// part cuts the ways between two nodes, or makes them whole.
func (s *namespaces) part(x, y int, to cut) {
	s.cut(x, s.addr(y), to)
	s.cut(y, s.addr(x), to)
}

// cutOff cuts a node's way to Postgres, or makes it whole.
func (s *namespaces) cutOff(i int, to cut) { s.cut(i, databaseIP, to) }

// cut has the kernel refuse what a node sends to an address, or lose it on the way
// to a machine that is not there.
func (s *namespaces) cut(from int, addr string, to cut) {
	switch to {
	case refused:
		s.within(from, "route", "replace", "unreachable", addr+"/32")
	case dropped:
		s.within(from, "neigh", "replace", addr, "lladdr", nobodyMAC, "dev", "eth0", "nud", "permanent")
	case whole: // either was, perhaps
		exec.Command("ip", "-n", s.name(from), "route", "del", "unreachable", addr+"/32").Run()
		exec.Command("ip", "-n", s.name(from), "neigh", "del", addr, "dev", "eth0").Run()
	}
}
