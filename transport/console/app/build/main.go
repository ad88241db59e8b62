// Command build makes the console of its TypeScript sources. It runs in transport/console, by
// go generate:
//
//	build -app app -dist dist    installs the libraries, and writes dist/index.html and dist/assets
//	build -tests DIR             writes the unit tests of this folder to DIR, for node --test
//
// The libraries come from npm, by the lock file. Where npm is missing the build says so and
// leaves dist empty: the binary then serves a page that says it has no console. make consoletypes
// checks the types.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	app := flag.String("app", ".", "the folder of package.json")
	dist := flag.String("dist", "", "write the console to this folder")
	tests := flag.String("tests", "", "write the unit tests to this folder instead")
	flag.Parse()
	if err := run(*app, *dist, *tests); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const noNPM = `The web console is not built: npm is missing. Install Node.js 20 or newer with npm
(Debian: apt install nodejs npm) and run make build again. All else works without it.
`

func run(app, dist, tests string) error {
	if tests != "" {
		return bundleTests(app, tests)
	}
	ok, err := install(app)
	if err != nil {
		return err
	}
	if !ok {
		fmt.Fprint(os.Stderr, noNPM)
		return clear(dist)
	}
	files, err := bundle(app)
	if err != nil {
		return err
	}
	if err := clear(dist); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dist, "assets"), 0o755); err != nil {
		return err
	}
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dist, filepath.FromSlash(name)), body, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// clear removes what an earlier build wrote.
func clear(dist string) error {
	return errors.Join(os.RemoveAll(filepath.Join(dist, "assets")), os.RemoveAll(filepath.Join(dist, "index.html")))
}

// lockOf is the lock file of the installed libraries, in their folder.
const lockOf = "node_modules/.svc-lock.json"

// install puts the libraries of package-lock.json into node_modules, if other ones or none are
// there. ok is false where npm is missing and they are needed.
func install(app string) (ok bool, err error) {
	lock, err := os.ReadFile(filepath.Join(app, "package-lock.json"))
	if err != nil {
		return false, err
	}
	kept := filepath.Join(app, filepath.FromSlash(lockOf))
	if have, err := os.ReadFile(kept); err == nil && bytes.Equal(have, lock) {
		return true, nil
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return false, nil
	}
	ci := exec.Command(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	ci.Dir = app
	if out, err := ci.CombinedOutput(); err != nil {
		return false, fmt.Errorf("npm ci in %s: %w\n%s", app, err, out)
	}
	return true, os.WriteFile(kept, lock, 0o644)
}

func options(app string) (api.BuildOptions, error) {
	dir, err := filepath.Abs(app)
	if err != nil {
		return api.BuildOptions{}, err
	}
	return api.BuildOptions{
		AbsWorkingDir:   dir,
		Bundle:          true,
		Format:          api.FormatESModule,
		Target:          api.ES2022,
		JSX:             api.JSXAutomatic,
		JSXImportSource: "preact",
		Charset:         api.CharsetUTF8,
		// The readers that the widget shares lie beside this folder and have no libraries.
		NodePaths:   []string{filepath.Join(dir, "node_modules")},
		TsconfigRaw: `{"compilerOptions":{"strict":true,"verbatimModuleSyntax":true,"jsx":"react-jsx","jsxImportSource":"preact"}}`,
	}, nil
}

// bundle returns the files of the console whose sources lie in app/src, by their path in dist:
// modules for browsers that know ES2022, as all have since 2023.
func bundle(app string) (map[string][]byte, error) {
	o, err := options(app)
	if err != nil {
		return nil, err
	}
	o.EntryPoints = []string{"src/main.tsx", "src/console.css"}
	o.Outdir = filepath.Join(o.AbsWorkingDir, "assets")
	o.Splitting = true
	o.EntryNames, o.ChunkNames, o.AssetNames = "[name]-[hash]", "[name]-[hash]", "[name]-[hash]"
	o.MinifyWhitespace, o.MinifySyntax, o.MinifyIdentifiers = true, true, true
	o.LegalComments = api.LegalCommentsNone // dist has the licences as a file
	o.Plugins = []api.Plugin{widgetStyles()}
	o.Metafile = true
	o.Define = map[string]string{"process.env.NODE_ENV": `"production"`}
	r := api.Build(o)
	if err := failure(r); err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, f := range r.OutputFiles {
		files["assets/"+filepath.Base(f.Path)] = f.Contents
	}
	texts, err := licences(app)
	if err != nil {
		return nil, err
	}
	licence := fmt.Sprintf("licences-%s.txt", contentHash(texts))
	files["assets/"+licence] = texts
	shell, err := shell(r.Metafile, licence)
	if err != nil {
		return nil, err
	}
	files["index.html"] = shell
	return files, nil
}

// widgetStyles loads the chat widget's style sheet as text: the preview of the page Embed puts it
// into a shadow root, as the widget does.
func widgetStyles() api.Plugin {
	return api.Plugin{Name: "widget-styles", Setup: func(b api.PluginBuild) {
		b.OnLoad(api.OnLoadOptions{Filter: `[/\\]embed[/\\]widget[/\\]src[/\\]styles\.css$`}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			css, err := os.ReadFile(a.Path)
			if err != nil {
				return api.OnLoadResult{}, err
			}
			text := string(css)
			return api.OnLoadResult{Contents: &text, Loader: api.LoaderText}, nil
		})
	}}
}

// contentHash is a hash in the form of the bundler's.
func contentHash(b []byte) string {
	h := uint64(14695981039346656037) // FNV-1a
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	var out [8]byte
	for i := range out {
		out[i] = digits[h&31]
		h >>= 5
	}
	return string(out[:])
}

// licences are the texts that the licences of the libraries ask to ship.
func licences(app string) ([]byte, error) {
	var lock struct {
		Packages map[string]struct {
			Version string `json:"version"`
			License string `json:"license"`
			Dev     bool   `json:"dev"`
		} `json:"packages"`
	}
	b, err := os.ReadFile(filepath.Join(app, "package-lock.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &lock); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	var names []string
	for name, p := range lock.Packages {
		if name != "" && !p.Dev {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		p := lock.Packages[name]
		fmt.Fprintf(&out, "%s %s (%s)\n\n", strings.TrimPrefix(name, "node_modules/"), p.Version, p.License)
		found, err := filepath.Glob(filepath.Join(app, filepath.FromSlash(name), "LICENSE*"))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			text, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			out.Write(text)
			out.WriteString("\n\n")
		}
	}
	return out.Bytes(), nil
}

// meta is what the bundler says about its files.
type meta struct {
	Outputs map[string]struct {
		EntryPoint string `json:"entryPoint"`
		Imports    []struct {
			Path string `json:"path"`
			Kind string `json:"kind"`
		} `json:"imports"`
	} `json:"outputs"`
}

// shell is the one page of the console. It has neither script nor style of its own, so its
// policy allows none.
func shell(metafile, licence string) ([]byte, error) {
	var m meta
	if err := json.Unmarshal([]byte(metafile), &m); err != nil {
		return nil, err
	}
	script, style := "", ""
	for name, f := range m.Outputs {
		switch f.EntryPoint {
		case "src/main.tsx":
			script = name
		case "src/console.css":
			style = name
		}
	}
	if script == "" || style == "" {
		return nil, errors.New("the bundle lacks src/main.tsx or src/console.css")
	}
	var b strings.Builder
	at := func(name string) string { return html.EscapeString("/console/assets/" + path.Base(name)) }
	b.WriteString(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<meta name="color-scheme" content="light dark">
<title>svc</title>
<link rel="icon" href="data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'%3E%3Crect width='32' height='32' rx='8' fill='%234f46e5'/%3E%3Cpath d='M9 17l5 5 9-11' fill='none' stroke='white' stroke-width='3.4' stroke-linecap='round' stroke-linejoin='round'/%3E%3C/svg%3E">
`)
	fmt.Fprintf(&b, "<link rel=\"license\" href=\"%s\">\n", at(licence))
	fmt.Fprintf(&b, "<link rel=\"stylesheet\" href=\"%s\">\n", at(style))
	for _, im := range reach(&m, script) {
		fmt.Fprintf(&b, "<link rel=\"modulepreload\" href=\"%s\">\n", at(im))
	}
	fmt.Fprintf(&b, "<script type=\"module\" src=\"%s\"></script>\n", at(script))
	b.WriteString(`</head>
<body>
<noscript><p>The console needs JavaScript.</p></noscript>
<div id="app"></div>
</body>
</html>
`)
	return []byte(b.String()), nil
}

// reach are the modules that a module needs before it runs, without itself.
func reach(m *meta, from string) []string {
	var out []string
	seen := map[string]bool{from: true}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, im := range m.Outputs[queue[0]].Imports {
			if im.Kind == "import-statement" && !seen[im.Path] {
				seen[im.Path] = true
				out = append(out, im.Path)
				queue = append(queue, im.Path)
			}
		}
	}
	slices.Sort(out)
	return out
}

// bundleTests writes each test of app/test with the sources it imports to out.
func bundleTests(app, out string) error {
	tests, err := filepath.Glob(filepath.Join(app, "test", "*.test.mjs"))
	if err != nil {
		return err
	}
	if len(tests) == 0 {
		return errors.New("no tests found in test/*.test.mjs")
	}
	o, err := options(app)
	if err != nil {
		return err
	}
	for _, t := range tests {
		abs, err := filepath.Abs(t)
		if err != nil {
			return err
		}
		o.EntryPoints = append(o.EntryPoints, abs)
	}
	if o.Outdir, err = filepath.Abs(out); err != nil {
		return err
	}
	o.OutExtension = map[string]string{".js": ".mjs"}
	o.Write, o.AllowOverwrite = true, true
	o.Platform = api.PlatformNode
	o.Sourcemap = api.SourceMapInline
	return failure(api.Build(o))
}

func failure(r api.BuildResult) error {
	var errs []error
	for _, m := range append(r.Errors, r.Warnings...) {
		at := ""
		if m.Location != nil {
			at = fmt.Sprintf("%s:%d:%d: ", m.Location.File, m.Location.Line, m.Location.Column)
		}
		errs = append(errs, errors.New(at+m.Text))
	}
	return errors.Join(errs...)
}
