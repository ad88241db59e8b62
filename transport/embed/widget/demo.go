package widget

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"strings"
)

// ScriptPath is where the widget is served.
const ScriptPath = "/embed/v1/widget.js"

//go:embed demo.html
var demoHTML string

var (
	demo = template.Must(template.New("demo").Parse(demoHTML))
	tag  = template.Must(template.New("tag").Parse(`<script async src="{{.Script}}" data-key="{{.Key}}"></script>`))
)

// DemoPolicy is the Content-Security-Policy of the demo page, where it comes from the
// origin that the widget comes from. It is also what the widget needs of any page.
var DemoPolicy = policy()

func policy() string {
	_, style, _ := strings.Cut(demoHTML, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// DemoPage is a page with the widget of an embed key on it, and with what to paste
// into one's own (open-parts.md, Embed). It is served with DemoPolicy; there is no
// script on it but the widget's, which it takes from its own origin, under whatever
// name the service was called. key and base, where the service is, may be anything
// that a stranger wrote.
func DemoPage(key, base string) []byte {
	var snippet, page bytes.Buffer
	data := struct{ Script, Key, Snippet string }{Script: base + ScriptPath, Key: key}
	// Neither can fail: a buffer takes everything, and the templates are constants.
	if err := tag.Execute(&snippet, data); err != nil {
		panic(err)
	}
	data.Snippet, data.Script = snippet.String(), ScriptPath
	if err := demo.Execute(&page, data); err != nil {
		panic(err)
	}
	return page.Bytes()
}
