package egress

import "net/netip"

func prefixes(list ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(list))
	for i, s := range list {
		ps[i] = netip.MustParsePrefix(s)
	}
	return ps
}

// special4 lists special-purpose IPv4 ranges (IANA, RFC 6890 and later), multicast and
// reserved space, and one public address that answers only inside a cloud.
var special4 = prefixes(
	"0.0.0.0/8",        // this network
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // carrier-grade NAT, and a cloud's metadata
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // a cloud's host agent, reachable only from within
	"169.254.0.0/16",   // link-local, and most clouds' metadata
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocol assignments
	"192.0.2.0/24",     // documentation
	"192.31.196.0/24",  // AS112
	"192.52.193.0/24",  // AMT
	"192.88.99.0/24",   // 6to4 relays, deprecated
	"192.168.0.0/16",   // private
	"192.175.48.0/24",  // AS112
	"198.18.0.0/15",    // benchmarking
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, and broadcast
)

// global6 is all IPv6 space allocated as public unicast. Loopback, mapped, NAT64
// (64:ff9b::/96, 64:ff9b:1::/48), discard, unique local, link-local and multicast addresses
// lie outside it.
var global6 = netip.MustParsePrefix("2000::/3")

var special6 = prefixes(
	"2001::/23",         // protocol assignments: Teredo, ORCHID, benchmarking
	"2001:db8::/32",     // documentation
	"2002::/16",         // 6to4: hides an IPv4 address
	"2620:4f:8000::/48", // AS112
	"3fff::/20",         // documentation
)

// Public reports whether a is public unicast. A mapped IPv4 address counts as the IPv4
// address; an address with a zone is never public.
func Public(a netip.Addr) bool {
	if !a.IsValid() || a.Zone() != "" {
		return false
	}
	a = a.Unmap()
	special := special4
	if a.Is6() {
		if !global6.Contains(a) {
			return false
		}
		special = special6
	}
	return !contains(special, a)
}

func contains(ps []netip.Prefix, a netip.Addr) bool {
	for _, p := range ps {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
