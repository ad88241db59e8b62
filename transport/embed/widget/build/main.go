// Command build makes the widget's one file of its TypeScript sources. It runs in
// transport/embed/widget, by go generate:
//
//	build               writes dist/widget.js, and dist/widget.js.br, which is the same compressed
//	build -tests DIR    writes the unit tests to DIR, for node --test
//
// Types are not checked here but by make widgetcheck.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/andybalholm/brotli"
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
	file := filepath.Join("dist", "widget.js")
	return errors.Join(os.WriteFile(file, js, 0o644), os.WriteFile(file+".br", compress(js), 0o644))
}

// compress returns js compressed with Brotli at its highest level. That takes a moment,
// so it is done here and not by the service.
func compress(js []byte) []byte {
	var out bytes.Buffer
	w := brotli.NewWriterLevel(&out, brotli.BestCompression)
	// Neither can fail: a buffer takes everything.
	if _, err := w.Write(js); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return out.Bytes()
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
			Engines: []api.Engine{
				{Name: api.EngineChrome, Version: "90"},
				{Name: api.EngineFirefox, Version: "90"},
				{Name: api.EngineSafari, Version: "15"},
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
