package api

import (
	"net/netip"
	"net/url"
	"strings"

	"agentsvc/schemas/tool"
)

// OriginOf returns the scheme, host and port of a URL in one canonical form: lower case, no
// trailing dot, the default port left out, IPv6 compressed. Credentials stay with an object
// only while its origin stays the same. A text that is not a URL with a host is its own
// origin.
func OriginOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return raw
	}
	scheme := strings.ToLower(u.Scheme)
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if a, err := netip.ParseAddr(host); err == nil {
		host = a.Unmap().String()
		if a.Unmap().Is6() {
			host = "[" + host + "]"
		}
	}
	port := strings.TrimLeft(u.Port(), "0")
	if port == "" || scheme == "https" && port == "443" || scheme == "http" && port == "80" {
		return scheme + "://" + host
	}
	return scheme + "://" + host + ":" + port
}

// ServerOrigin returns the origin of a tool server: that of its URL, or the command's name of
// a stdio server.
func ServerOrigin(transport tool.Transport, endpoint string) string {
	if transport == tool.Stdio {
		return "stdio:" + endpoint
	}
	return OriginOf(endpoint)
}
