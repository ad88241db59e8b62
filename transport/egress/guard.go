package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// ErrRefused is wrapped by every error for a URL or address that the guard refused. The
// error's text gives the reason and may be shown to the tenant.
var ErrRefused = errors.New("refused by the outbound guard")

// ErrSuspended is wrapped by every error that occurs because this process does not hold its
// lease. It sends nothing, because another process may have taken over its work. It is not a
// failure of the other side and matches context.Canceled: the caller should stop without a
// retry.
var ErrSuspended = fmt.Errorf("this node has lost its lease and sends nothing: %w", context.Canceled)

// ErrTooLarge is returned by a read past a response's cap.
var ErrTooLarge = errors.New("answer larger than allowed")

const (
	dialTimeout = 3 * time.Second
	tlsTimeout  = 5 * time.Second
)

// Resolver looks up names, as net.Resolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config holds the settings of a Guard.
type Config struct {
	// Allow are ranges that may be reached although they are not public (SVC_OUTBOUND_ALLOW),
	// also with plain http, whatever the rules say.
	Allow []netip.Prefix
	// Own are our own listeners, refused even inside Allow. An unspecified address stands for
	// every address of this machine.
	Own []netip.AddrPort
	// Resolver resolves names; nil means the system's resolver.
	Resolver Resolver
	// Observe, if set, receives the verdict on each address about to be dialled, nil if
	// allowed, and may refuse it by returning an error.
	Observe func(to netip.AddrPort, verdict error) error
	// Live, if set, reports whether this process still holds its lease. While it does not, no
	// connection is made and nothing is written: pending requests fail with ErrSuspended. It
	// is called before every write and must be cheap.
	Live func() bool
}

// Guard decides which addresses may be dialled. It is safe for concurrent use and has no
// goroutines.
type Guard struct {
	allow   []netip.Prefix
	own     []netip.AddrPort
	lookup  Resolver // nil: net.Dialer resolves names itself, racing the address families
	observe func(netip.AddrPort, error) error
	live    func() bool // nil: always
}

// New returns a Guard.
func New(c Config) *Guard {
	g := &Guard{lookup: c.Resolver, observe: c.Observe, live: c.Live}
	for _, p := range c.Allow {
		if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		g.allow = append(g.allow, p.Masked())
	}
	for _, o := range c.Own {
		g.own = append(g.own, netip.AddrPortFrom(o.Addr().Unmap(), o.Port()))
	}
	return g
}

// CheckAddr returns an error wrapping ErrRefused if a connection to this address is not
// allowed. Port 0 means any port.
func (g *Guard) CheckAddr(to netip.AddrPort) error {
	a := to.Addr()
	switch {
	case !a.IsValid():
		return fmt.Errorf("%w: not an address", ErrRefused)
	case a.Zone() != "":
		return fmt.Errorf("%w: an address with a zone", ErrRefused)
	case g.isOwn(a.Unmap(), to.Port()):
		return fmt.Errorf("%w: %s is this service itself", ErrRefused, to)
	case Public(a) || g.allowed(a):
		return nil
	}
	return fmt.Errorf("%w: %s is not a public address", ErrRefused, a)
}

func (g *Guard) suspended() bool { return g.live != nil && !g.live() }

func (g *Guard) allowed(a netip.Addr) bool { return a.Zone() == "" && contains(g.allow, a.Unmap()) }

func (g *Guard) isOwn(a netip.Addr, port uint16) bool {
	for _, o := range g.own {
		if o.Port() != port {
			continue
		}
		// Dialling the unspecified address reaches this machine.
		if o.Addr() == a || a.IsUnspecified() || o.Addr().IsUnspecified() && (a.IsLoopback() || ofThisMachine(a)) {
			return true
		}
	}
	return false
}

// ofThisMachine reports whether a is an address of this machine. It is called only if the
// port is one of ours, so it can read the interfaces each time and follow changing addresses.
func ofThisMachine(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, n := range addrs {
		if p, ok := n.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(p.IP); ok && own.Unmap() == a {
				return true
			}
		}
	}
	return false
}

// plainKey marks the context of a plain-text request, which may only reach an allowed range.
type plainKey struct{}

func (g *Guard) control(ctx context.Context, network, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("%w: %s %s", ErrRefused, network, address)
	}
	if err = g.CheckAddr(to); err == nil && ctx.Value(plainKey{}) != nil && !g.allowed(to.Addr()) {
		err = fmt.Errorf("%w: https is required", ErrRefused)
	}
	if err == nil && g.suspended() { // resolving the name may have taken long
		return ErrSuspended
	}
	countVerdict(err)
	if g.observe != nil {
		if own := g.observe(to, err); err == nil {
			err = own
		}
	}
	return err
}

// Dial connects to host:port over TCP within 3 s if the guard allows it. It is a DialContext
// for protocols other than HTTP.
func (g *Guard) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if g.suspended() {
		return nil, ErrSuspended
	}
	c, err := g.dial(ctx, network, address)
	if err != nil || g.live == nil {
		return c, err
	}
	return leased(c, g.live)
}

func (g *Guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := net.Dialer{ControlContext: g.control, KeepAlive: 30 * time.Second}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); g.lookup == nil || err == nil {
		return d.DialContext(ctx, network, address)
	}
	addrs, err := g.lookup.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	if len(addrs) == 0 {
		return nil, &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
	}
	var first error
	for _, a := range addrs {
		conn, err := d.DialContext(ctx, network, net.JoinHostPort(a.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}
