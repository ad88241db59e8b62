// Package origin parses the origins of pages, as browsers send them.
package origin

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// Origin is the origin of a page. Equal values are the same origin.
type Origin struct {
	Scheme string // https or http
	Host   string // lower case; an IPv6 address in brackets
	Port   uint16 // always set, also if it is the scheme's default
}

// Errors of an origin; each says how to fix it.
var (
	errForm     = errors.New("must be https://host[:port], or *")
	errScheme   = errors.New("must begin with https://")
	errUser     = errors.New("must not name a user: https://host[:port] is enough")
	errPath     = errors.New("must end after the host or the port: leave out the slash and what follows")
	errWildcard = errors.New("* is allowed only alone, for any origin: list each host")
	errHost     = errors.New("the host is not written as browsers send it: labels of letters, digits and dashes, or an address")
	errPunycode = errors.New("the host must be written as browsers send it, in Punycode (xn--…)")
	errPort     = errors.New("the port must be a number from 1 to 65535")
	errLoopback = errors.New("http:// is for this machine only (localhost, 127.0.0.1, [::1]): use https://")
)

// Parse parses an origin. Letters may be of either case, and the scheme's default port
// may be given. http is for loopback hosts only.
func Parse(s string) (Origin, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return Origin{}, errForm
	}
	o := Origin{Scheme: strings.ToLower(scheme), Port: 443}
	switch o.Scheme {
	case "https":
	case "http":
		o.Port = 80
	default:
		return Origin{}, errScheme
	}
	switch {
	case strings.ContainsAny(rest, "/?#\\"):
		return Origin{}, errPath
	case strings.Contains(rest, "@"):
		return Origin{}, errUser
	case strings.Contains(rest, "*"):
		return Origin{}, errWildcard
	}
	host, port := rest, ""
	named := false
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, ']') {
		host, port, named = rest[:i], rest[i+1:], true
	}
	if named {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || strings.HasPrefix(port, "+") {
			return Origin{}, errPort
		}
		o.Port = uint16(n)
	}
	var loopback bool
	var err error
	if o.Host, loopback, err = parseHost(host); err != nil {
		return Origin{}, err
	}
	if o.Scheme == "http" && !loopback {
		return Origin{}, errLoopback
	}
	return o, nil
}

// parseHost returns the canonical host, and whether it is a loopback host.
func parseHost(s string) (host string, loopback bool, err error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		if !ok || err != nil || !a.Is6() || a.Zone() != "" {
			return "", false, errHost
		}
		return "[" + ipv6(a) + "]", a.IsLoopback(), nil
	}
	for i := range len(s) {
		if s[i] >= 0x80 {
			return "", false, errPunycode
		}
	}
	s = strings.ToLower(s)
	labels := strings.Split(strings.TrimSuffix(s, "."), ".") // a host with a trailing dot is a different host
	if len(s) > 254 {
		return "", false, errHost
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || l[0] == '-' || l[len(l)-1] == '-' {
			return "", false, errHost
		}
	}
	// Browsers read a host that ends in a number as an IPv4 address, in many notations; they
	// send the one that is accepted here.
	if end := labels[len(labels)-1]; strings.Trim(end, "0123456789") == "" || strings.HasPrefix(end, "0x") {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return "", false, errHost
		}
		return s, a.IsLoopback(), nil
	}
	return s, labels[len(labels)-1] == "localhost", nil
}

// ipv6 returns an address as browsers write it: never with an embedded IPv4 notation.
func ipv6(a netip.Addr) string {
	if !a.Is4In6() {
		return a.String()
	}
	b := a.As16()
	hex := func(i int) string { return strconv.FormatUint(uint64(b[i])<<8|uint64(b[i+1]), 16) }
	return "::ffff:" + hex(12) + ":" + hex(14)
}

// String returns the origin as browsers send it.
func (o Origin) String() string {
	s := o.Scheme + "://" + o.Host
	if o.Scheme == "https" && o.Port == 443 || o.Scheme == "http" && o.Port == 80 {
		return s
	}
	return s + ":" + strconv.Itoa(int(o.Port))
}
