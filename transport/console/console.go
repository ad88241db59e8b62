package console

import (
	"cmp"
	"context"
	"embed"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"sync"

	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

// dist is what the build wrote, or a folder without it.
//
//go:embed all:dist
var dist embed.FS

// Policy is the content security policy of the shell. It has no nonce, so the shell is one
// static file that browsers may keep.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Home is the path of the console's first page.
const Home = "/console/"

const (
	assetsPath = "/console/assets/"
	tag        = "Console"
)

// Bundle is a built console.
type Bundle struct {
	Shell  *edge.Static
	Assets map[string]*edge.Static // by file name
}

var built = sync.OnceValues(func() (*Bundle, error) {
	b, ok, err := load(dist)
	if !ok {
		b = nil
	}
	return b, err
})

// Built returns the console of this binary, nil if the binary was built without it.
func Built() *Bundle {
	b, err := built()
	if err != nil { // of an embedded file system: the build wrote something that is no console
		panic(err)
	}
	return b
}

// types are the media types of assets by the extension of their names.
var types = map[string]string{
	".js":   "text/javascript; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".svg":  "image/svg+xml",
	".png":  "image/png",
	".json": "application/json",
	".txt":  "text/plain; charset=utf-8",
}

// hashed is the form of an asset's name: its content decides its hash, so it never changes.
var hashed = regexp.MustCompile(`^[a-zA-Z0-9_.-]+-[A-Z0-9]{8}\.[a-z]+$`)

// load reads a built console; ok is false where there is none.
func load(from fs.FS) (b *Bundle, ok bool, err error) {
	shell, err := fs.ReadFile(from, "dist/index.html")
	if err != nil || len(shell) == 0 {
		return nil, false, nil
	}
	b = &Bundle{Shell: edge.NewStatic(htmlType, shell), Assets: map[string]*edge.Static{}}
	files, err := fs.ReadDir(from, "dist/assets")
	if err != nil {
		return nil, false, err
	}
	for _, f := range files {
		if !hashed.MatchString(f.Name()) {
			continue
		}
		body, err := fs.ReadFile(from, path.Join("dist/assets", f.Name()))
		if err != nil {
			return nil, false, err
		}
		b.Assets[f.Name()] = edge.NewStatic(cmp.Or(types[path.Ext(f.Name())], "application/octet-stream"), body)
	}
	return b, true, nil
}

// Console serves a bundle.
type Console struct {
	bundle func() *Bundle
}

// New returns the console that serves what bundle returns: Built, except in tests. nil means
// that the console is not built.
func New(bundle func() *Bundle) *Console { return &Console{bundle} }

// Register adds the routes. They take no key and are charged to no bucket: the bytes are the
// same for everybody.
func (c *Console) Register(t *edge.Table) {
	row := func(id, path, summary string) edge.Route {
		return edge.Route{Method: "GET", Path: path, ID: id, Summary: summary, Tag: tag, MediaType: htmlType, Hidden: true, Bucket: edge.BucketNone}
	}
	edge.HandleRaw(t, row("openConsole", "/", "Go to the console"), home)
	edge.HandleRaw(t, row("showConsole", "/console", "Go to the console's first page"), c.shell)
	edge.HandleRaw(t, rest(row("showConsolePage", Home+"{page...}", "Show a page of the console")), c.shell)
	edge.HandleRaw(t, row("getConsoleAssets", strings.TrimSuffix(assetsPath, "/"), "No part of the console"), c.asset)
	edge.HandleRaw(t, rest(row("getConsoleAsset", assetsPath+"{name...}", "Load a part of the console")), c.asset)
}

func rest(r edge.Route) edge.Route {
	r.EmptyRest = true
	return r
}

const htmlType = "text/html; charset=utf-8"

func home(_ context.Context, _ *edge.Caller, _ *edge.Raw) (*edge.RawAnswer, error) {
	return &edge.RawAnswer{Status: 302, ContentType: htmlType, Headers: append(headers(), edge.Header{Name: "Location", Value: Home})}, nil
}

// headers are those of every HTML answer.
func headers() []edge.Header {
	return []edge.Header{
		{Name: "Content-Security-Policy", Value: Policy},
		{Name: "Referrer-Policy", Value: "no-referrer"},
		{Name: "Cross-Origin-Opener-Policy", Value: "same-origin"},
		{Name: "X-Frame-Options", Value: "DENY"},
		{Name: "Cache-Control", Value: "no-cache"},
	}
}

func (c *Console) shell(_ context.Context, _ *edge.Caller, in *edge.Raw) (*edge.RawAnswer, error) {
	b := c.bundle()
	if b == nil {
		return &edge.RawAnswer{Status: 503, ContentType: htmlType, Body: []byte(notBuilt), Headers: append(headers(), edge.Header{Name: "Cache-Control", Value: "no-store"})}, nil
	}
	return b.Shell.Answer(in, headers()...), nil
}

// notBuilt is the page of a binary without the console. It has no style, which the policy
// would not allow.
const notBuilt = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>Console not built · svc</title>
</head>
<body>
<main>
<h1>This binary has no console</h1>
<p>It was built without npm. Install Node.js with npm, run <code>make build</code>, and start the service again.</p>
<p>The API under <code>/v1</code> and the command line work without it.</p>
</main>
</body>
</html>
`

func (c *Console) asset(_ context.Context, _ *edge.Caller, in *edge.Raw) (*edge.RawAnswer, error) {
	if b := c.bundle(); b != nil {
		if a, ok := b.Assets[in.Param("name")]; ok {
			return a.Answer(in,
				edge.Header{Name: "Cache-Control", Value: "public, max-age=31536000, immutable"},
				edge.Header{Name: "Cross-Origin-Resource-Policy", Value: "same-origin"}), nil
		}
	}
	// Never HTML: a page of an older build that misses a part must notice.
	return nil, problem.New(problem.CodeNotFound, "The console that runs here has no such part.")
}
