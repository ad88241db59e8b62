package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without npm the build leaves no console behind, so that the binary says so.
func TestWithoutNPMThereIsNoConsole(t *testing.T) {
	app, dist := t.TempDir(), t.TempDir()
	t.Setenv("PATH", t.TempDir())
	for name, text := range map[string]string{filepath.Join(app, "package-lock.json"): "{}", filepath.Join(dist, "index.html"): "an older build", filepath.Join(dist, "assets", "main-AAAAAAAA.js"): "1"} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(app, dist, ""); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dist); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// The libraries are installed once for each lock file.
func TestInstalledLibrariesAreKept(t *testing.T) {
	app := t.TempDir()
	t.Setenv("PATH", t.TempDir())
	if err := os.MkdirAll(filepath.Join(app, "node_modules"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(app, filepath.FromSlash(name)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("package-lock.json", "one")
	write(lockOf, "one")
	if ok, err := install(app); !ok || err != nil {
		t.Errorf("the same lock file: %v, %v", ok, err)
	}
	write("package-lock.json", "two")
	if ok, err := install(app); ok || err != nil {
		t.Errorf("another lock file, without npm: %v, %v", ok, err)
	}
}

// The shell names the entry, its style, and what the entry needs before it runs; parts that load
// later are not in it. It has no script or style of its own.
func TestTheShellNamesTheEntry(t *testing.T) {
	const metafile = `{"outputs": {
		"assets/main-AAAAAAAA.js": {"entryPoint": "src/main.tsx", "imports": [{"path": "assets/chunk-BBBBBBBB.js", "kind": "import-statement"}, {"path": "assets/runs-CCCCCCCC.js", "kind": "dynamic-import"}]},
		"assets/chunk-BBBBBBBB.js": {"imports": [{"path": "assets/chunk-DDDDDDDD.js", "kind": "import-statement"}]},
		"assets/chunk-DDDDDDDD.js": {"imports": [{"path": "assets/chunk-BBBBBBBB.js", "kind": "import-statement"}]},
		"assets/runs-CCCCCCCC.js": {"entryPoint": "src/pages/runs/index.tsx", "imports": []},
		"assets/console-EEEEEEEE.css": {"entryPoint": "src/console.css", "imports": []}}}`
	b, err := shell(metafile, "licences-FFFFFFFF.txt")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, want := range []string{
		`<script type="module" src="/console/assets/main-AAAAAAAA.js"></script>`, `<link rel="stylesheet" href="/console/assets/console-EEEEEEEE.css">`,
		`<link rel="modulepreload" href="/console/assets/chunk-BBBBBBBB.js">`, `<link rel="modulepreload" href="/console/assets/chunk-DDDDDDDD.js">`, `/console/assets/licences-FFFFFFFF.txt`,
	} {
		if strings.Count(page, want) != 1 {
			t.Errorf("%d times %s in\n%s", strings.Count(page, want), want, page)
		}
	}
	for _, never := range []string{"CCCCCCCC", "<style", "style=", "onload", "http://cdn", "https://"} {
		if strings.Contains(page, never) {
			t.Errorf("the shell holds %s", never)
		}
	}
	if _, err := shell(`{"outputs": {}}`, "x"); err == nil {
		t.Error("a bundle without the entry is no error")
	}
}

func TestContentHashIsOfTheContent(t *testing.T) {
	a, b := contentHash([]byte("a")), contentHash([]byte("b"))
	if a == b || len(a) != 8 || a != contentHash([]byte("a")) || strings.Trim(a, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		t.Errorf("%q, %q", a, b)
	}
}
