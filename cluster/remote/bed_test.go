package remote

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "a secret of more than 32 characters, for tests"

// ping is answered by the echo actor with itself.
type ping struct {
	N    int    `json:"n"`
	Text string `json:"text,omitempty"`
}

// again is a ping that may be received twice.
type again struct {
	N int `json:"n"`
}

func (again) Repeatable() {}

// private crosses in tests in which only one side knows it.
type private struct{}

func newCodec() *msg.Codec {
	c := msg.NewCodec()
	c.Add("test_ping", ping{})
	c.Add("test_again", again{})
	return c
}

func newMember() id.MemberID { return id.MemberID{UUID: id.NewAnywhere()} }

// member is one node with its remote plane.
type member struct {
	*cluster.Node
	*Remote
	id      id.MemberID
	addr    string
	refused atomic.Int32
	down    bool
}

type scripted func(c cluster.Context, m any)

func (s scripted) Receive(c cluster.Context, m any) { s(c, m) }
func (s scripted) Stopped()                         {}

func echo(c cluster.Context, m any) { c.Reply(m) }

type setup struct {
	kinds    map[string]func(cluster.Context, any)
	services map[string]cluster.Service
	codec    *msg.Codec
	beat     time.Duration
	id       id.MemberID
	listen   net.Listener
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// reserve takes an address that refuses connections until open is called.
func reserve(t *testing.T) (addr string, open func() net.Listener) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "reserved")
	t.Cleanup(func() { socket.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port), func() net.Listener {
		if err := syscall.Listen(fd, 128); err != nil {
			t.Fatal(err)
		}
		l, err := net.FileListener(socket)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

func startMember(t testing.TB, s setup) *member {
	t.Helper()
	m := &member{id: s.id}
	if m.id.IsZero() {
		m.id = newMember()
	}
	if s.codec == nil {
		s.codec = newCodec()
	}
	if s.listen == nil {
		s.listen = listen(t)
	}
	m.addr = s.listen.Addr().String()
	var err error
	m.Remote, err = New(Config{
		Self: m.id, Build: "test", Listen: s.listen, Secret: secret, Codec: s.codec, Log: zerolog.Nop(), Beat: s.beat,
		OnRefused: func(id.MemberID) { m.refused.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Node = cluster.New(cluster.Config{Member: m.id, Peers: m.Remote, Log: zerolog.Nop()})
	for kind, f := range s.kinds {
		m.Register(kind, func(cluster.Address) cluster.Behavior { return scripted(f) })
	}
	for name, f := range s.services {
		m.Serve(name, f)
	}
	if err := m.Node.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Remote.Start(t.Context(), m.Node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.stop(t) })
	return m
}

// stop is an orderly end.
func (m *member) stop(t testing.TB) {
	if m.down {
		return
	}
	m.down = true
	testkit.Stop(t, m.Node.Stop)
	testkit.Stop(t, m.Remote.Stop)
}

// kill closes all connections and the listener silently, like the kernel of a killed process.
// The actors' work continues and reaches no other node.
func (m *member) kill() {
	_ = m.cfg.Listen.Close()
	m.listen.cut(func(net.Conn) bool { return true })
}

// join makes the members know each other.
func join(t testing.TB, members ...*member) {
	t.Helper()
	for _, m := range members {
		peers, ids := map[id.MemberID]string{}, []id.MemberID{}
		for _, o := range members {
			peers[o.id] = o.addr
			ids = append(ids, o.id)
		}
		m.SetPeers(peers)
		if err := m.SetMembers(ids); err != nil {
			t.Fatal(err)
		}
	}
}

// at is an address of a kind that m owns.
func at(m *member, kind string) cluster.Address {
	for {
		a := cluster.Address{Kind: kind, Tenant: id.TenantID{UUID: id.NewAnywhere()}, ID: id.NewAnywhere()}
		if m.Owns(a.Shard()) {
			return a
		}
	}
}

// proxy is the network between two members.
type proxy struct {
	net.Listener
	to   string
	drop atomic.Bool // silently, whatever comes
	wg   sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func startProxy(t testing.TB, to string) *proxy {
	p := &proxy{Listener: listen(t), to: to}
	p.wg.Go(func() {
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			o, err := net.Dial("tcp", p.to)
			if err != nil {
				c.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, c, o)
			p.mu.Unlock()
			p.wg.Go(func() { p.pipe(c, o) })
			p.wg.Go(func() { p.pipe(o, c) })
		}
	})
	t.Cleanup(func() { p.Close(); p.cut(); p.wg.Wait() })
	return p
}

func (p *proxy) pipe(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if p.drop.Load() {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}
