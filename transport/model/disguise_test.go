package model

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode"

	"agentsvc/schemas/redact"
)

// TestADisguisedKeyIsHidden: a provider's message is cleaned, then freed of the key, then
// cut. It contains the key in no form, whatever stood between its characters.
func TestADisguisedKeyIsHidden(t *testing.T) {
	const key = "sk-very-secret/with+odd=chars"
	between := func(s, piece string) string { return strings.Join(strings.Split(s, ""), piece) }
	b64 := base64.StdEncoding.EncodeToString([]byte("user:" + key))
	for name, form := range map[string]string{
		"plain": key, "NUL": between(key, `\u0000`), "a control character": between(key, `\u001b`), "invalid bytes": between(key, "\xff"), "zero width": between(key, "\u200b"),
		"half a pair": between(key, `\ud800`), "base64": b64, "base64 with NUL": between(b64, `\u0000`), "URL": url.QueryEscape(key), "URL with NUL": between(url.QueryEscape(key), `\u0000`),
		"escapes": strings.ReplaceAll(key, "s", `\u0073`), "escapes of escapes": strings.ReplaceAll(key, "s", `\\u0073`), "line breaks": key[:12] + `\n` + key[12:],
		"behind much": strings.Repeat("x", maxMessage-len(key)/2) + key,
	} {
		for shape, body := range map[string]string{"as JSON": `{"error":{"message":"no %s"}}`, "as text": `no %s`} {
			t.Run(name+" "+shape, func(t *testing.T) {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.WriteHeader(http.StatusBadRequest)
					fmt.Fprintf(w, body, form)
				}))
				defer server.Close()
				u := &upstream{hc: server.Client(), kind: OpenAI, url: server.URL, key: key}
				_, err := u.stream(t.Context(), nil, &turn{}, nil)
				seen := strings.Map(func(r rune) rune {
					if unicode.IsControl(r) || unicode.IsSpace(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar {
						return -1
					}
					return r
				}, err.Error())
				for _, f := range redact.NewKnown(key).Forms() {
					if strings.Contains(seen, f) {
						t.Errorf("%q shows %q", err, f)
					}
				}
				if name == "behind much" && strings.Contains(err.Error(), key[:10]) {
					t.Errorf("a part of the key is left: %q", err)
				}
			})
		}
	}
}

// A key of words comes back with other white space than it has.
func TestAKeyOfWordsIsHidden(t *testing.T) {
	t.Parallel()
	u := &upstream{key: "correct horse battery"}
	for _, said := range []string{"correct  horse\tbattery", "correct\n  horse\r\nbattery", strings.Repeat("x", maxMessage-10) + "correct  horse battery"} {
		if got := u.show("bad key: " + said); strings.Contains(got, "correct") {
			t.Errorf("%q -> %q", said, got)
		}
	}
	u.key = "a bcd" // too short to be found across other white space, and found all the same once the message is one line
	if got := u.show("bad key: a\n\tbcd"); got != "bad key: "+redact.Mark {
		t.Errorf("a short one: %q", got)
	}
}
