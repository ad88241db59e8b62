package toolbox

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/tool"
	"agentsvc/transport/egress"
	"agentsvc/transport/mcp"
	"agentsvc/transport/mcp/leak"
)

// TestADisguisedCredentialIsHidden: what a tool answers goes through all that cleans
// it on the way to model, step and stream. Whatever is dropped or decoded there,
// the credential is not what is left.
func TestADisguisedCredentialIsHidden(t *testing.T) {
	const secret = "cAnArY-7f3a+9b==qZ"
	between := func(s, piece string) string { return strings.Join(strings.Split(s, ""), piece) }
	text := func(s string) string { // as a JSON string; bytes that are no UTF-8 stay
		var b strings.Builder
		b.WriteByte('"')
		for _, c := range []byte(s) {
			switch {
			case c == '"' || c == '\\':
				b.WriteByte('\\')
				b.WriteByte(c)
			case c < 0x20:
				fmt.Fprintf(&b, `\u%04x`, c)
			default:
				b.WriteByte(c)
			}
		}
		b.WriteByte('"')
		return b.String()
	}
	b64 := base64.StdEncoding.EncodeToString([]byte("user:" + secret))
	block := func(s string) string { return `{"type":"text","text":` + text(s) + `}` }
	results := map[string]string{
		"plain":                       `{"content":[` + block("x "+secret) + `]}`,
		"NUL":                         `{"content":[` + block(between(secret, "\x00")) + `]}`,
		"NUL in JSON":                 `{"content":[` + block(`{"k":"`+between(secret, `\u0000`)+`"}`) + `]}`,
		"NUL in a key":                `{"content":[` + block(`{"`+between(secret, `\u0000`)+`":1}`) + `]}`,
		"half a pair in JSON":         `{"content":[` + block(`{"k":"`+between(secret, `\udc00`)+`"}`) + `]}`,
		"invalid bytes":               `{"content":[` + block(between(secret, "\xff")) + `]}`,
		"invalid bytes in JSON":       `{"content":[` + block(`{"k":"`+between(secret, "\xfe")+`"}`) + `]}`,
		"zero width":                  `{"content":[` + block(between(secret, "\u200b")) + `]}`,
		"escapes":                     `{"content":[` + block(`{"k":"\u0063`+secret[1:]+`"}`) + `]}`,
		"structured":                  `{"structuredContent":{"k":"` + between(secret, `\u0000`) + `","` + between(secret, `\u0000`) + `":1}}`,
		"structured, bytes":           `{"structuredContent":{"k":["` + between(secret, "\xff") + `"]}}`,
		"base64":                      `{"content":[` + block(b64) + `]}`,
		"base64 with NUL":             `{"content":[` + block(between(b64, "\x00")) + `]}`,
		"base64 with NUL in JSON":     `{"content":[` + block(`["`+between(b64, `\u0000`)+`"]`) + `]}`,
		"URL":                         `{"content":[` + block(url.QueryEscape(secret)) + `]}`,
		"URL with NUL":                `{"content":[` + block(`["`+between(url.QueryEscape(secret), `\u0000`)+`"]`) + `]}`,
		"two blocks":                  `{"content":[` + block(secret[:9]) + `,` + block(secret[9:]) + `]}`,
		"many blocks":                 `{"content":[` + block(secret[:3]) + `,` + block("\x00"+secret[3:7]) + `,` + block(secret[7:]) + `]}`,
		"another kind of block":       `{"content":[{"type":"resource_link","uri":"x:` + between(secret, `\u0000`) + `"}]}`,
		"an error of the tool":        `{"isError":true,"content":[` + block(between(secret, "\x00")) + `]}`,
		"an error of the server":      between(secret, `\u0000`),
		"an error with invalid bytes": between(secret, "\xff"),
	}
	answers := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &m)
		say := func(s string) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, s)
		}
		switch {
		case m.Method == "initialize":
			say(`"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}`)
		case m.Method == "server/discover":
			say(`"error":{"code":-32601,"message":"method not found"}`)
		case m.Method == "tools/list":
			d := text(between(secret, "\u200b"))
			say(`"result":{"tools":[{"name":"t","description":` + d + `,"inputSchema":{"type":"object","description":` + d + `}}]}`)
		case m.Method == "tools/call" && answers[0] == '{':
			say(`"result":` + answers)
		case m.Method == "tools/call":
			say(`"error":{"code":-32000,"message":"no ` + answers + `"}`)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	defer server.Close()
	g := mcp.New(mcp.Config{Guard: egress.New(egress.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}), Log: zerolog.Nop()})
	defer g.Close(t.Context())
	connection := id.ConnectionID{UUID: id.New(1)}
	to := mcp.Target{Tenant: id.TenantID{UUID: id.New(1)}, Server: id.ServerID{UUID: id.New(1)}, Slug: "s", Transport: tool.HTTP, Endpoint: server.URL, AuthKind: tool.AuthBearer,
		Version: time.Now(), Connection: &connection, Credential: func(context.Context) (string, error) { return secret, nil }}

	shows := func(what, s string) {
		t.Helper()
		// As a reader has it: without what can't be seen, on one line, and with the escapes
		// of JSON read.
		readers := []string{s}
		var v any
		if json.Unmarshal([]byte(s), &v) == nil {
			readers = append(readers, fmt.Sprint(v))
			if inner, ok := v.(string); ok && json.Unmarshal([]byte(inner), &v) == nil {
				readers = append(readers, fmt.Sprint(v))
			}
		}
		for _, r := range readers {
			seen := strings.Map(func(r rune) rune {
				if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar {
					return -1
				}
				return r
			}, model.Clean(r))
			if l := leak.Find(secret, seen); l != "" {
				t.Errorf("%s: %q shows %q", what, s, l)
			}
		}
	}
	specs, err := g.Tools(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	shows("the description", specs[0].Description)
	shows("the schema", string(specs[0].Schema))
	for name, answer := range results {
		answers = answer
		a, err := g.Call(t.Context(), to, "t", json.RawMessage(`{}`))
		out := outcome(a)
		if err != nil {
			out = failedCall(err)
			shows(name+", the error", err.Error())
		}
		if !strings.Contains(out.Content, "[redacted]") || !json.Valid(out.Shown) {
			t.Errorf("%s: %q, shown as %s", name, out.Content, out.Shown)
		}
		shows(name+", to the model", out.Content)
		shows(name, string(out.Shown))
	}
}
