package api

import (
	"testing"

	"agentsvc/schemas/tool"
)

func TestOrigins(t *testing.T) {
	same := [][2]string{
		{"https://a.example/mcp", "https://a.example/v2/mcp?x=1"},
		{"https://a.example/mcp", "HTTPS://A.Example:443/mcp"},
		{"https://a.example", "https://a.example./"},
		{"https://a.example:/", "https://a.example:0443/"},
		{"http://a.example:80/", "http://a.example"},
		{"https://[2606:4700:0:0::1]/", "https://[2606:4700::1]:443"},
		{"https://[::ffff:1.1.1.1]/", "https://1.1.1.1/"},
		{"https://kim:secret@a.example/", "https://a.example/"},
	}
	for _, c := range same {
		if a, b := OriginOf(c[0]), OriginOf(c[1]); a != b {
			t.Errorf("%s and %s are one origin, got %s and %s", c[0], c[1], a, b)
		}
	}
	other := [][2]string{
		{"https://a.example/", "http://a.example/"},
		{"https://a.example/", "https://a.example:8443/"},
		{"https://a.example/", "https://b.a.example/"},
		{"https://a.example/", "https://a.example.evil.test/"},
		{"https://a.example/", "https://a.example@evil.test/"},
		{"https://a.example/", "https://evil.test/a.example"},
		{"http://a.example:443/", "https://a.example:443/"},
		{"https://[2606:4700::1]/", "https://[2606:4700::2]/"},
	}
	for _, c := range other {
		if a, b := OriginOf(c[0]), OriginOf(c[1]); a == b {
			t.Errorf("%s and %s are two origins, got %s", c[0], c[1], a)
		}
	}
	if got := OriginOf("https://kim:secret@a.example:8443/x"); got != "https://a.example:8443" {
		t.Errorf("an origin holds scheme, host and port alone, got %s", got)
	}
	if ServerOrigin(tool.Stdio, "desk") == ServerOrigin(tool.Stdio, "other") || ServerOrigin(tool.Stdio, "desk") == ServerOrigin(tool.HTTP, "https://desk.example") {
		t.Error("another command is another origin")
	}
}
