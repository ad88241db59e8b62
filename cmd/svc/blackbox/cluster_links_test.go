package blackbox

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// cut says what becomes of a way between two processes.
type cut int

const (
	whole   cut = iota
	refused     // connections are reset, new ones too
	dropped     // bytes wait, as they do while packets are lost, without an error
)

func (c cut) String() string { return [...]string{"whole", "refused", "dropped"}[c] }

// front is a TCP proxy before one listener. Each dialler has a way of its own, which may be
// cut.
type front struct {
	addr   string
	dial   func() (net.Conn, error)
	who    func(net.Conn) string // names the dialler; nil: all are one
	listen func(addr string) (net.Listener, error)

	mu        sync.Mutex // guards the fields below
	ln        net.Listener
	ways      map[string]*way
	crossings map[*crossing]struct{}
	closed    bool
	serving   sync.WaitGroup
}

type way struct {
	cut     cut
	changed chan struct{} // closed when cut is another one
}

// crossing is one connection through a front.
type crossing struct {
	who   string
	ended chan struct{} // closed when it is reset

	mu    sync.Mutex // guards the fields below
	conns []net.Conn
	over  bool
}

// newFront makes a proxy that listens until t ends.
func newFront(t *testing.T, dial func() (net.Conn, error), who func(net.Conn) string) *front {
	t.Helper()
	return newFrontAt(t, reserved(t), func(addr string) (net.Listener, error) { return net.Listen("tcp", addr) }, dial, who)
}

// newFrontAt returns a front at an address that nothing else uses, in the network in which
// listen listens.
func newFrontAt(t *testing.T, addr string, listen func(string) (net.Listener, error), dial func() (net.Conn, error), who func(net.Conn) string) *front {
	t.Helper()
	f := &front{addr: addr, dial: dial, who: who, listen: listen, ways: map[string]*way{}, crossings: map[*crossing]struct{}{}}
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.close)
	return f
}

// open listens; shut refuses connections, as the port of a dead process does.
func (f *front) open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ln != nil || f.closed {
		return nil
	}
	ln, err := f.listen(f.addr)
	if err != nil {
		return err
	}
	f.ln = ln
	f.serving.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			f.serving.Go(func() { f.cross(in) })
		}
	})
	return nil
}

func (f *front) shut() {
	f.mu.Lock()
	if f.ln != nil {
		f.ln.Close()
		f.ln = nil
	}
	all := f.those("", true)
	f.mu.Unlock()
	for _, c := range all {
		c.reset()
	}
}

func (f *front) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.shut()
	f.serving.Wait()
}

// those returns the crossings of one dialler, or of all; under mu.
func (f *front) those(who string, all bool) []*crossing {
	var out []*crossing
	for c := range f.crossings {
		if all || c.who == who {
			out = append(out, c)
		}
	}
	return out
}

// set cuts the way of one dialler, or makes it whole.
func (f *front) set(who string, to cut) {
	f.mu.Lock()
	w := f.way(who)
	w.cut = to
	close(w.changed)
	w.changed = make(chan struct{})
	var reset []*crossing
	if to == refused {
		reset = f.those(who, false)
	}
	f.mu.Unlock()
	for _, c := range reset {
		c.reset()
	}
}

// way returns the way of one dialler; under mu.
func (f *front) way(who string) *way {
	w := f.ways[who]
	if w == nil {
		w = &way{changed: make(chan struct{})}
		f.ways[who] = w
	}
	return w
}

// passes waits until the crossing's way is whole; false: it is refused, or over.
func (f *front) passes(c *crossing) bool {
	for {
		f.mu.Lock()
		w := f.way(c.who)
		state, changed := w.cut, w.changed
		f.mu.Unlock()
		switch state {
		case whole:
			return true
		case refused:
			return false
		}
		select {
		case <-changed:
		case <-c.ended:
			return false
		}
	}
}

func (f *front) cross(in net.Conn) {
	c := &crossing{ended: make(chan struct{}), conns: []net.Conn{in}}
	if f.who != nil {
		c.who = f.who(in)
	}
	f.mu.Lock()
	f.crossings[c] = struct{}{}
	over := f.closed || f.ln == nil
	f.mu.Unlock()
	defer func() {
		c.reset()
		f.mu.Lock()
		delete(f.crossings, c)
		f.mu.Unlock()
	}()
	if over || !f.passes(c) {
		return
	}
	out, err := f.dial()
	if err != nil || !c.reaches(out) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { f.carry(c, out, in) })
	both.Go(func() { f.carry(c, in, out) })
	both.Wait()
}

func (f *front) carry(c *crossing, to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !f.passes(c) || n == 0 && err != nil {
			break
		}
		if _, err := to.Write(buf[:n]); err != nil {
			break
		}
	}
	// The end of one side is news for the other one, and crosses like bytes.
	c.end(false)
}

// reaches adds the connection to what lies behind the front; false: too late.
func (c *crossing) reaches(out net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		out.Close()
		return false
	}
	c.conns = append(c.conns, out)
	return true
}

// reset ends both connections at once, whatever is on its way.
func (c *crossing) reset() { c.end(true) }

func (c *crossing) end(reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	c.over = true
	close(c.ended)
	for _, conn := range c.conns {
		if tcp, ok := conn.(*net.TCPConn); ok && reset {
			tcp.SetLinger(0)
		}
		conn.Close()
	}
}

// dialler is which of the processes has the other end of an accepted connection
// of this machine, 0 for none.
func dialler(c net.Conn, pids []int) int {
	theirs, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	ours, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return 0
	}
	inode := socketInode(theirs.Port, ours.Port)
	if inode == "" {
		return 0
	}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == "socket:["+inode+"]" {
				return pid
			}
		}
	}
	return 0
}

// socketInode names the socket that is bound to the port local and connected to
// the port remote.
func socketInode(local, remote int) string {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			row := strings.Fields(s.Text())
			if len(row) > 9 && strings.HasSuffix(row[1], fmt.Sprintf(":%04X", local)) && strings.HasSuffix(row[2], fmt.Sprintf(":%04X", remote)) {
				return row[9]
			}
		}
	}
	return ""
}

// listens reports whether a process listens at a port of this machine, without dialling it.
func listens(addr string) bool {
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return false
	}
	const listening = "0A"
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for row := range strings.Lines(string(b)) {
			f := strings.Fields(row)
			if len(f) > 3 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				return true
			}
		}
	}
	return false
}

// The proxy of the storms does what it says: a way that is dropped keeps what was
// sent until it is whole again, one that is refused resets, and ways are told
// apart by the process that dials.
func TestClusterLinks(t *testing.T) {
	t.Parallel()
	behind, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer behind.Close()
	go func() {
		for {
			c, err := behind.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintln(c, "heard", s.Text())
				}
			}()
		}
	}()
	f := newFront(t, func() (net.Conn, error) { return net.Dial("tcp", behind.Addr().String()) }, func(c net.Conn) string {
		if dialler(c, []int{os.Getpid()}) == os.Getpid() {
			return "us"
		}
		return "them"
	})
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	hear := func(within time.Duration) (string, error) {
		c.SetReadDeadline(time.Now().Add(within))
		return in.ReadString('\n')
	}
	say := func(text string) {
		if _, err := fmt.Fprintln(c, text); err != nil {
			t.Error(err)
		}
	}
	say("one")
	if got, err := hear(time.Minute); got != "heard one\n" {
		t.Fatalf("%q %v", got, err)
	}
	f.set("them", refused)
	f.set("us", dropped)
	say("two")
	if got, err := hear(50 * time.Millisecond); err == nil {
		t.Errorf("over a dropped way came %q", got)
	}
	f.set("us", whole)
	if got, err := hear(time.Minute); got != "heard two\n" {
		t.Errorf("%q %v", got, err)
	}
	f.set("us", refused)
	if got, err := hear(time.Minute); err == nil || os.IsTimeout(err) {
		t.Errorf("over a refused way came %q, %v", got, err)
	}
	f.set("us", whole)
	if !listens(f.addr) {
		t.Error("the front listens and is not seen")
	}
	f.shut()
	if _, err := net.Dial("tcp", f.addr); err == nil || listens(f.addr) {
		t.Error("a front that is shut accepts")
	}
	if err := f.open(); err != nil {
		t.Fatal(err)
	}
	if again, err := net.Dial("tcp", f.addr); err != nil {
		t.Error(err)
	} else {
		again.Close()
	}
}
