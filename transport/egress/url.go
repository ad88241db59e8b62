package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Rules apply to one kind of URL.
type Rules struct {
	// HTTPSOnly refuses plain http except to an allowed range.
	HTTPSOnly bool
}

// CheckURL returns an error if a URL may not be saved (open-parts.md, Questions settled:
// "Refused when saved"). The error wraps ErrRefused and its text may be shown. A name that
// does not resolve passes: it is checked at each use.
func (g *Guard) CheckURL(ctx context.Context, raw string, rules Rules) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("%w: not a URL", ErrRefused) // the error of package url quotes the whole input
	}
	if u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%w: the scheme must be %s", ErrRefused, schemes(rules))
	}
	if u.User != nil {
		return fmt.Errorf("%w: user info in a URL", ErrRefused)
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	port, err := portOf(u)
	if err != nil {
		return err
	}
	plain := rules.HTTPSOnly && u.Scheme == "http"
	if a, err := netip.ParseAddr(host); err == nil {
		if plain && !g.allowed(a) {
			return fmt.Errorf("%w: the scheme must be https", ErrRefused)
		}
		return g.CheckAddr(netip.AddrPortFrom(a, port))
	}
	if err := checkName(host); err != nil {
		return err
	}
	addrs := g.resolve(ctx, host)
	lifted := false
	for _, a := range addrs {
		lifted = lifted || g.allowed(a)
	}
	if !lifted {
		if plain {
			return fmt.Errorf("%w: the scheme must be https", ErrRefused)
		}
		if local(host) {
			return fmt.Errorf("%w: %q is not a public name", ErrRefused, host)
		}
	}
	for _, a := range addrs {
		if lifted && a.IsLoopback() && !g.isOwn(a.Unmap(), port) {
			continue // localhost has two addresses, and an allowed 127.0.0.0/8 covers it
		}
		if g.CheckAddr(netip.AddrPortFrom(a, port)) != nil {
			// The address is not named, so that a tenant cannot map our network.
			return fmt.Errorf("%w: %q resolves to an address that is not public", ErrRefused, host)
		}
		if plain && !g.allowed(a) {
			return fmt.Errorf("%w: the scheme must be https", ErrRefused)
		}
	}
	return nil
}

func schemes(r Rules) string {
	if r.HTTPSOnly {
		return "https"
	}
	return "https or http"
}

func portOf(u *url.URL) (uint16, error) {
	if u.Port() == "" {
		if u.Scheme == "http" {
			return 80, nil
		}
		return 443, nil
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: no such port", ErrRefused)
	}
	return uint16(n), nil
}

// checkName refuses everything but host names of letters, digits, hyphens and underscores,
// and names that some resolvers read as an IPv4 address (127.1, 0x7f.0.0.1, 2130706433).
func checkName(host string) error {
	if host == "" || len(host) > 253 {
		return fmt.Errorf("%w: no host", ErrRefused)
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 {
			return fmt.Errorf("%w: not a host name", ErrRefused)
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return fmt.Errorf("%w: not a host name (an international one must be in its xn-- form)", ErrRefused)
			}
		}
		last = label
	}
	if last[0] >= '0' && last[0] <= '9' {
		return fmt.Errorf("%w: not a host name", ErrRefused)
	}
	return nil
}

// local reports whether public resolvers should not know this name.
func local(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	for _, suffix := range [...]string{".internal", ".local", ".localhost", ".home.arpa"} {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

func (g *Guard) resolve(ctx context.Context, host string) []netip.Addr {
	r := g.lookup
	if r == nil {
		r = net.DefaultResolver
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	return addrs
}
