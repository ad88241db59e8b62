package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip" // its best is one percent smaller
)

// limitBytes is what open-parts.md, Embed, allows the compressed widget.
const limitBytes = 20_000

func built(t *testing.T) []byte {
	t.Helper()
	js, err := bundle("..")
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// "Compressed it is at most 20 KB".
func TestTheBundleIsSmall(t *testing.T) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	js := built(t)
	w.Write(js)
	w.Close()
	t.Logf("%d bytes, %d compressed", len(js), out.Len())
	if out.Len() > limitBytes {
		t.Errorf("the bundle has %d bytes compressed, %d are allowed", out.Len(), limitBytes)
	}
	if out.Len() < 5_000 {
		t.Errorf("the bundle has only %d bytes: it is none", out.Len())
	}
}

// A page that uses the client without an interface knows these names from docs/widget.md.
func TestPublicNamesAreKept(t *testing.T) {
	js := string(built(t))
	for _, name := range []string{".idempotencyKey", ".retryAfter", ".threadId", ".runId", ".signal", ".userToken", ".baseUrl"} {
		if !strings.Contains(js, name) {
			t.Errorf("the bundle has another name for %s", name)
		}
	}
}

// "Loads nothing from anywhere else".
func TestTheBundleKnowsNoOtherAddress(t *testing.T) {
	js := string(built(t))
	for _, url := range regexp.MustCompile(`[a-z]+://[a-zA-Z0-9][^\s"'\x60)]*`).FindAllString(js, -1) {
		if url != "http://www.w3.org/2000/svg" { // the name of a namespace, not an address
			t.Errorf("the bundle holds %s", url)
		}
	}
	for _, way := range []string{"@import", "@font-face", "url(", "import(", "importScripts", "XMLHttpRequest", "WebSocket", "EventSource", "sendBeacon", "new Image", "new Worker", "new SharedWorker"} {
		if strings.Contains(js, way) {
			t.Errorf("the bundle holds %s", way)
		}
	}
	if n := strings.Count(js, "fetch("); n != 1 {
		t.Errorf("the bundle calls fetch in %d places; there is one, in the client", n)
	}
}

// "Model output is rendered as text and a safe subset of Markdown, never as HTML":
// there is nothing in the bundle that reads HTML, or code.
func TestTheBundleReadsNoMarkup(t *testing.T) {
	js := string(built(t))
	for _, sink := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "createContextualFragment", "DOMParser", "document.write", "srcdoc", "setHTML", "eval(", "Function(", "javascript:", `"script"`, "cssText"} {
		if strings.Contains(js, sink) {
			t.Errorf("the bundle holds %s", sink)
		}
	}
}

// The ETag is made of the content: the same sources are the same bytes, wherever
// they are built.
func TestTheBundleIsReproducible(t *testing.T) {
	first := built(t)
	top := t.TempDir()
	elsewhere := filepath.Join(top, "embed", "widget")
	for to, from := range map[string]string{filepath.Join(elsewhere, "src"): "../src", filepath.Join(top, "reader"): "../../../reader"} {
		if err := os.CopyFS(to, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	second, err := bundle(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("two builds of the same sources differ")
	}
}

func TestBrokenSourcesAreAnError(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"none":                    {},
		"a syntax error":          {"index.ts": "let let = ;"},
		"a missing import":        {"index.ts": `import "./gone"; export {};`},
		"a style sheet that ends": {"index.ts": `import css from "./a.css"; console.log(css);`, "a.css": "a { color: red"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for f, text := range files {
				path := filepath.Join(dir, "src", f)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if js, err := bundle(dir); err == nil {
				t.Errorf("built %d bytes", len(js))
			}
		})
	}
}

// Each unit test is bundled, so that node runs all of them.
func TestUnitTestsAreBundled(t *testing.T) {
	out := t.TempDir()
	if err := bundleTests("..", out); err != nil {
		t.Fatal(err)
	}
	names := func(dir string) []string {
		paths, err := filepath.Glob(filepath.Join(dir, "*.test.mjs"))
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range paths {
			paths[i] = filepath.Base(p)
		}
		return paths
	}
	if have, want := names(out), names("../test"); !slices.Equal(have, want) {
		t.Errorf("bundled %v of %v", have, want)
	}
	if err := bundleTests(t.TempDir(), out); err == nil {
		t.Error("a folder without tests is no error")
	}
}
