// Command build makes the widget's one file of its TypeScript sources. It runs in
// transport/embed/widget, by go generate:
//
//	build               writes dist/widget.js
//	build -tests DIR    writes the unit tests to DIR, for node --test
//
// Types are not checked here but by make widgetcheck.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

func main() {
	tests := flag.String("tests", "", "write the unit tests to this folder instead")
	flag.Parse()
	if err := run(*tests); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(tests string) error {
	if tests != "" {
		return bundleTests(".", tests)
	}
	js, err := bundle(".")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("dist", "widget.js"), js, 0o644)
}

// bundle is the widget whose sources lie in dir/src: one classic script for
// browsers that know ES2022, as all have since 2023.
func bundle(dir string) ([]byte, error) {
	src, err := filepath.Abs(filepath.Join(dir, "src"))
	if err != nil {
		return nil, err
	}
	r := api.Build(api.BuildOptions{
		EntryPoints:       []string{filepath.Join(src, "index.ts")},
		AbsWorkingDir:     filepath.Dir(src),
		Bundle:            true,
		Format:            api.FormatIIFE,
		Target:            api.ES2022,
		Charset:           api.CharsetUTF8,
		MinifyWhitespace:  true,
		MinifySyntax:      true,
		MinifyIdentifiers: true,
		LegalComments:     api.LegalCommentsNone,
		MangleProps:       "^(" + strings.Join(internal, "|") + ")$",
		Plugins:           []api.Plugin{styleSheets},
		TsconfigRaw:       `{"compilerOptions":{"strict":true,"verbatimModuleSyntax":true}}`,
	})
	if err := failure(r); err != nil {
		return nil, err
	}
	return r.OutputFiles[0].Contents, nil
}

// bundleTests writes each test of dir/test with the sources it imports to out.
func bundleTests(dir, out string) error {
	tests, err := filepath.Glob(filepath.Join(dir, "test", "*.test.mjs"))
	if err != nil {
		return err
	}
	if len(tests) == 0 {
		return errors.New("no tests found in test/*.test.mjs")
	}
	return failure(api.Build(api.BuildOptions{
		EntryPoints:    tests,
		Outdir:         out,
		OutExtension:   map[string]string{".js": ".mjs"},
		Bundle:         true,
		Write:          true,
		AllowOverwrite: true,
		Platform:       api.PlatformNode,
		Format:         api.FormatESModule,
		Target:         api.ES2022,
		Sourcemap:      api.SourceMapInline,
	}))
}

// internal are names of properties that only the widget's own code uses: the bundle has
// shorter ones. None of them is a name of the browser's, the embed API's or the page's,
// nor is it kept in the browser or written in quotation marks.
var internal = strings.Fields(`
	adrift after align attach become blocks busy client current draft emit empty ended events feed fresh
	identified indent inline isOpen kids loading look next notice off onClose onOpen online phase prefix
	queued reset restore retry rtl shadow shared show signIn source sources store sub transient unqueue update watch
	write
`)

// styleSheets makes minified texts of imported style sheets: the widget gives them
// to its shadow root itself.
var styleSheets = api.Plugin{Name: "style sheets", Setup: func(b api.PluginBuild) {
	b.OnLoad(api.OnLoadOptions{Filter: `\.css$`}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
		css, err := os.ReadFile(a.Path)
		if err != nil {
			return api.OnLoadResult{}, err
		}
		r := api.Transform(string(css), api.TransformOptions{
			Loader:           api.LoaderCSS,
			MinifyWhitespace: true,
			MinifySyntax:     true,
			Charset:          api.CharsetUTF8,
			Engines: []api.Engine{
				{Name: api.EngineChrome, Version: "110"},
				{Name: api.EngineFirefox, Version: "110"},
				{Name: api.EngineSafari, Version: "16.4"},
			},
		})
		if err := failure(api.BuildResult{Errors: r.Errors, Warnings: r.Warnings}); err != nil {
			return api.OnLoadResult{}, err
		}
		text := strings.TrimSpace(string(r.Code))
		return api.OnLoadResult{Contents: &text, Loader: api.LoaderText}, nil
	})
}}

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
