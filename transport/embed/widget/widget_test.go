package widget

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"html"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func TestABinaryBuiltWithoutTheBundleSaysSo(t *testing.T) {
	for name, files := range map[string]fstest.MapFS{
		"never built":  {"dist/.gitignore": {Data: []byte("*")}},
		"an empty one": {"dist/widget.js": {}},
	} {
		if a := load(files); a != nil {
			t.Errorf("%s: there is a bundle of %d bytes", name, len(a.Body))
		}
	}
}

func TestTheAssetIsTheBundle(t *testing.T) {
	js := []byte(strings.Repeat("console.log(1);", 100))
	a := load(fstest.MapFS{"dist/widget.js": {Data: js}})
	if a == nil || !bytes.Equal(a.Body, js) {
		t.Fatalf("loaded %+v", a)
	}
	r, err := gzip.NewReader(bytes.NewReader(a.Gzip))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := io.ReadAll(r); err != nil || !bytes.Equal(plain, js) {
		t.Errorf("compressed: %q, %v", plain, err)
	}
	if len(a.Gzip) >= len(js) {
		t.Errorf("%d bytes compressed, %d plain", len(a.Gzip), len(js))
	}
	if !regexp.MustCompile(`^"[0-9a-f]{32}"$`).MatchString(a.ETag) {
		t.Errorf("ETag %s", a.ETag)
	}
	other := load(fstest.MapFS{"dist/widget.js": {Data: append(js, ' ')}})
	if other.ETag == a.ETag {
		t.Error("another content has the same ETag")
	}
}

// Bundle serves the output of go generate; if that did not run, Bundle says so.
func TestBundleIsWhatIsEmbedded(t *testing.T) {
	js, err := dist.ReadFile("dist/widget.js")
	a := Bundle()
	if (a != nil) != (err == nil) || a != nil && !bytes.Equal(a.Body, js) {
		t.Errorf("embedded %d bytes (%v), served %+v", len(js), err, a)
	}
}

func TestTheDemoPageShowsTheSnippet(t *testing.T) {
	page := string(DemoPage("svc_pk_abc", "https://svc.example"))
	for _, want := range []string{
		`<script async src="/embed/v1/widget.js" data-key="svc_pk_abc"></script>`,
		`&lt;script async src=&#34;https://svc.example/embed/v1/widget.js&#34; data-key=&#34;svc_pk_abc&#34;&gt;&lt;/script&gt;`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// The page works under script-src 'self': the only script is the widget.
func TestTheDemoPageHasNoInlineScript(t *testing.T) {
	page := string(DemoPage("k", ""))
	scripts := regexp.MustCompile(`(?is)<script[^>]*>(.*?)</script>`).FindAllStringSubmatch(page, -1)
	if len(scripts) != 1 || scripts[0][1] != "" {
		t.Errorf("scripts: %q", scripts)
	}
	if m := regexp.MustCompile(`(?i)\son[a-z]+\s*=|javascript:|<iframe|<img|@import|url\(`).FindString(page); m != "" {
		t.Errorf("the page holds %q", m)
	}
}

func TestTheDemoPageEscapesWhatItIsGiven(t *testing.T) {
	tag := regexp.MustCompile(`<script async src="([^"<>]*)" data-key="([^"<>]*)"></script>`)
	for _, evil := range []string{
		`"><script>alert(1)</script>`, `" onload="alert(1)`, `'><img src=x onerror=alert(1)>`, `</code><script>alert(1)</script>`, "javascript:alert(1)", "\x00\"><script>", "{{.Key}}",
	} {
		for name, page := range map[string]string{"key": string(DemoPage(evil, "")), "base": string(DemoPage("k", evil))} {
			tags := tag.FindAllStringSubmatch(page, -1)
			switch {
			case len(tags) != 1 || strings.Count(page, "<script") != 1 || strings.Contains(page, "<img"):
				t.Errorf("%s %q: tags %q", name, evil, tags)
			case strings.HasPrefix(tags[0][1], "javascript:"):
				t.Errorf("%s %q: the script is %s", name, evil, tags[0][1])
			case name == "key" && !strings.Contains(evil, "\x00") && html.UnescapeString(tags[0][2]) != evil:
				t.Errorf("%s %q: the key is %s", name, evil, tags[0][2])
			}
		}
	}
}

// The policy allows the page its own style sheet and nothing inline beside it.
func TestTheDemoPolicyFitsThePage(t *testing.T) {
	style := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindAllStringSubmatch(string(DemoPage("k", "")), -1)
	if len(style) != 1 {
		t.Fatalf("%d style sheets", len(style))
	}
	sum := sha256.Sum256([]byte(style[0][1]))
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "connect-src 'self'", "style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"} {
		if !strings.Contains(DemoPolicy, want+";") {
			t.Errorf("%s lacks %s", DemoPolicy, want)
		}
	}
	if strings.Contains(DemoPolicy, "unsafe") || strings.Contains(DemoPolicy, "*") {
		t.Errorf("too wide: %s", DemoPolicy)
	}
}
