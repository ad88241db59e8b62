package widget

import (
	"embed"
	"io/fs"
	"sync"

	"agentsvc/transport/edge"
)

// dist is what the build wrote, or a folder without it.
//
//go:embed all:dist
var dist embed.FS

var bundle = sync.OnceValue(func() *edge.Static { return load(dist) })

// Bundle returns the widget as GET /embed/v1/widget.js serves it; nil in a binary that was built
// without it. The route then answers EMBED_BUNDLE_UNAVAILABLE.
func Bundle() *edge.Static { return bundle() }

func load(from fs.FS) *edge.Static {
	js, err := fs.ReadFile(from, "dist/widget.js")
	if err != nil || len(js) == 0 {
		return nil
	}
	return edge.NewStatic("text/javascript; charset=utf-8", js)
}
