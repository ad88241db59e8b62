package mcp

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"agentsvc/schemas/tool"
)

// TestMaskForms: one row, one shape in which a credential comes back.
func TestMaskForms(t *testing.T) {
	const s = secret
	bearer := "Bearer " + s
	for name, form := range map[string]string{
		"plain":                              s,
		"base64":                             base64.StdEncoding.EncodeToString([]byte(s)),
		"base64 without padding":             base64.RawStdEncoding.EncodeToString([]byte(s)),
		"base64, URL":                        base64.URLEncoding.EncodeToString([]byte(s)),
		"base64, URL, without padding":       base64.RawURLEncoding.EncodeToString([]byte(s)),
		"base64 of Bearer":                   base64.StdEncoding.EncodeToString([]byte(bearer)),
		"base64 of Bearer, URL, no padding":  base64.RawURLEncoding.EncodeToString([]byte(bearer)),
		"URL-escaped, query":                 url.QueryEscape(s),
		"URL-escaped, path":                  url.PathEscape(s),
		"URL-escaped, lower case":            strings.NewReplacer("%2F", "%2f", "%3D", "%3d", "%2B", "%2b").Replace(url.QueryEscape(s)),
		"hex":                                hex.EncodeToString([]byte(s)),
		"HEX":                                strings.ToUpper(hex.EncodeToString([]byte(s))),
		"JSON with escaped slashes":          strings.ReplaceAll(s, "/", `\/`),
		"JSON with escaped letters":          strings.ReplaceAll(s, "t", `\u0074`),
		"JSON with everything escaped":       allEscaped(s),
		"within base64, first alignment":     base64.StdEncoding.EncodeToString([]byte("abc" + s + "tail")),
		"within base64, second alignment":    base64.StdEncoding.EncodeToString([]byte("user:" + s + "tail")),
		"within base64, third alignment":     base64.StdEncoding.EncodeToString([]byte("me:" + s)),
		"within base64, third alignment URL": base64.RawURLEncoding.EncodeToString([]byte("admins:" + s + "?>")),
	} {
		t.Run(name, func(t *testing.T) {
			got := newMask(s).Text("before " + form + " after " + form)
			if !strings.HasPrefix(got, "before ") || strings.Count(got, redacted) != 2 {
				t.Fatalf("%s -> %s", form, got)
			}
			// No more than the three characters at either end that other bytes share.
			for _, part := range strings.Split(got, " ") {
				if left := strings.ReplaceAll(part, redacted, ""); strings.HasPrefix(name, "within") == false && part != "before" && part != "after" && left != "" {
					t.Fatalf("left %q of %s", left, form)
				}
			}
			if leaks(got) != "" {
				t.Fatalf("left %s", got)
			}
		})
	}
	t.Run("JSON with escapes", func(t *testing.T) {
		odd := `a"b\c<d>` + "\t\u00e9"
		text, _ := json.Marshal(map[string]string{"k": odd})
		if got := newMask(odd).Text(string(text)); got != `{"k":"[redacted]"}` {
			t.Fatal(got)
		}
	})
	t.Run("a short one only as a whole", func(t *testing.T) {
		m := newMask("abc")
		if m.Text("abc") != redacted || m.Text("abcdef") != "abcdef" {
			t.Fatal(m.Text("abcdef"))
		}
	})
}

// TestMask is what steps show: string values, and parts of them, equal to a
// credential of the run's connection.
func TestMask(t *testing.T) {
	g := gateway(t, nil)
	to := target("http://tools.test/")
	for _, c := range []struct{ name, in, want string }{
		{"a value", `{"a":"` + secret + `"}`, `{"a":"[redacted]"}`},
		{"a part", `{"a":"x ` + secret + ` y"}`, `{"a":"x [redacted] y"}`},
		{"escaped in the JSON", `{"a":"` + strings.ReplaceAll(secret, "/", `\/`) + `"}`, `{"a":"[redacted]"}`},
		{"escaped otherwise", `{"a":"\u0073` + secret[1:] + `"}`, `{"a":"[redacted]"}`},
		{"a key", `{"` + secret + `":1}`, `{"[redacted]":1}`},
		{"deep", `[[{"a":["` + secret + `"]}]]`, `[[{"a":["[redacted]"]}]]`},
		{"a text", `"` + secret + `"`, `"[redacted]"`},
		{"everything else stays as it is", `{ "b" : 1.50, "a": [null,true, "x\u003c\"y\\"] }`, `{ "b" : 1.50, "a": [null,true, "x\u003c\"y\\"] }`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := g.Mask(t.Context(), to, json.RawMessage(c.in))
			if err != nil || string(got) != c.want {
				t.Fatalf("%s %v", got, err)
			}
		})
	}
	t.Run("a number", func(t *testing.T) {
		to := to
		to.Credential = func(context.Context) (string, error) { return "12345678", nil }
		if got, err := g.Mask(t.Context(), to, json.RawMessage(`[12345678,123456789,-12345678,"12345678"]`)); err != nil || string(got) != `["[redacted]",123456789,-12345678,"[redacted]"]` {
			t.Fatalf("%s %v", got, err)
		}
	})
	t.Run("too late", func(t *testing.T) {
		to := to
		to.Credential = func(context.Context) (string, error) { t.Error("the credential is opened"); return secret, nil }
		late, end := context.WithCancel(t.Context())
		end()
		if got, err := g.Mask(late, to, json.RawMessage(`1`)); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s %v", got, err)
		}
	})
	t.Run("no credential", func(t *testing.T) {
		to := to
		to.AuthKind, to.Credential = tool.AuthNone, nil
		if got, err := g.Mask(t.Context(), to, json.RawMessage(`{"a":1}`)); err != nil || string(got) != `{"a":1}` {
			t.Fatalf("%s %v", got, err)
		}
	})
	t.Run("not JSON", func(t *testing.T) {
		if _, err := g.Mask(t.Context(), to, json.RawMessage(`{"a":`)); kindOf(err) != Protocol {
			t.Fatal(err)
		}
	})
}

// FuzzMask: the output is valid JSON without the credential, and otherwise unchanged.
func FuzzMask(f *testing.F) {
	for _, s := range []string{`{}`, `"\"\\"`, `[1,-2.5e3,"x"]`, `{"a":{"b":"\u0000"}}`, `"abcd"`} {
		f.Add(s, "abcd")
	}
	f.Fuzz(func(t *testing.T, v, secret string) {
		if !json.Valid([]byte(v)) || !utf8.ValidString(secret) || !utf8.ValidString(v) || !sendable(secret) || strings.Contains(redacted, secret) {
			return
		}
		m := newMask(secret)
		out := m.JSON([]byte(v))
		if !json.Valid(out) {
			t.Fatalf("%q of %s -> %s", secret, v, out)
		}
		var strs func(x any)
		strs = func(x any) {
			switch x := x.(type) {
			case string:
				if x == secret || len(secret) >= 4 && strings.Contains(x, secret) && !strings.Contains(strings.ReplaceAll(x, redacted, "\x01"), "\x01") {
					t.Fatalf("%q is left in %s", secret, out)
				}
			case []any:
				for _, y := range x {
					strs(y)
				}
			case map[string]any:
				for k, y := range x {
					strs(k)
					strs(y)
				}
			}
		}
		var x any
		if json.Unmarshal(out, &x) == nil {
			strs(x)
		}
	})
}

// FuzzAnswers: no answer of a server makes the decoder panic, and none comes back
// with NUL.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{`{"content":[]}`, `{"content":[{"type":"text","text":"x"}]}`, `{"content":null,"structuredContent":[1]}`, `{"tools":[{"name":"a","inputSchema":{}}],"nextCursor":"x"}`, `null`, `[]`, `{"content":[{"type":"resource","resource":{"blob":"AAAA"}}]}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if a, err := decodeResult(raw); err == nil && strings.ContainsRune(a.Content, 0) {
			t.Fatalf("%q", a.Content)
		}
		p, err := readPage(raw)
		if err != nil {
			return
		}
		for _, e := range p.Tools {
			if l, ok := accept(e); ok {
				if s := l.spec(Target{}, nil); !json.Valid(s.Schema) || !nameFits(s.Name) || len(s.Description) > maxDescription {
					t.Fatalf("%+v", s)
				}
			}
		}
	})
}

// allEscaped writes each character as a JSON escape.
func allEscaped(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, `\u%04X`, c)
	}
	return b.String()
}

// Text that only looks like an escape stays, and so does the text around one.
func TestMaskOfEscapes(t *testing.T) {
	for in, want := range map[string]string{
		`x\u0061y`:                             `x\u0061y`,
		`abc\u`:                                `abc\u`,
		`a\/b \u12 \uZZZZ \`:                   `a\/b \u12 \uZZZZ \`,
		`{"k":"p\u0061ss-\u00e9\ud83d\ude00"}`: `{"k":"[redacted]"}`,
		`p\u0061ss-é😀 and pass-é\ud83d\ude00!`: `[redacted] and [redacted]!`,
		`\\u0070ass-é😀 \/`:                     `\\u0070ass-é😀 \/`,
	} {
		if got := newMask("pass-é😀").Text(in); got != want {
			t.Errorf("%s -> %s, want %s", in, got, want)
		}
	}
}
