package widget

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"strings"
)

// ScriptPath is the path of the widget.
const ScriptPath = "/embed/v1/widget.js"

//go:embed demo.html
var demoHTML string

var (
	demo = template.Must(template.New("demo").Parse(demoHTML))
	tag  = template.Must(template.New("tag").Parse(`<script async src="{{.Script}}" data-key="{{.Key}}"></script>`))
)

// DemoPolicy is the Content-Security-Policy of the demo page, which is served from the
// widget's origin. A page elsewhere must allow the same for the widget.
var DemoPolicy = policy()

func policy() string {
	_, style, _ := strings.Cut(demoHTML, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// DemoPage returns a page with the widget of an embed key, and the snippet to paste into
// one's own page (open-parts.md, Embed). It is served with DemoPolicy. The widget is its only
// script, loaded from the page's own origin, under whatever host name the service was called.
// key and base, the URL of the service, may be untrusted text.
func DemoPage(key, base string) []byte {
	var snippet, page bytes.Buffer
	data := struct{ Script, Key, Snippet string }{Script: base + ScriptPath, Key: key}
	// Neither can fail: a buffer accepts every write, and the templates are constants.
	if err := tag.Execute(&snippet, data); err != nil {
		panic(err)
	}
	data.Snippet, data.Script = snippet.String(), ScriptPath
	if err := demo.Execute(&page, data); err != nil {
		panic(err)
	}
	return page.Bytes()
}
