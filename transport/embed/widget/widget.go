package widget

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"sync"

	"agentsvc/transport/edge"
)

// dist is what the build wrote, or a folder without it.
//
//go:embed all:dist
var dist embed.FS

// Asset is the bundle as GET /embed/v1/widget.js serves it. Its bytes are shared and must not
// be changed.
type Asset struct {
	JS   []byte
	Gzip []byte // JS, compressed once
	ETag string // quoted, derived from the content
}

var bundle = sync.OnceValues(func() (Asset, bool) { return load(dist) })

// Bundle returns the widget; ok is false in a binary that was built without it. The route
// then answers EMBED_BUNDLE_UNAVAILABLE.
func Bundle() (Asset, bool) { return bundle() }

func load(from fs.FS) (Asset, bool) {
	js, err := fs.ReadFile(from, "dist/widget.js")
	if err != nil || len(js) == 0 {
		return Asset{}, false
	}
	sum := sha256.Sum256(js)
	return Asset{JS: js, Gzip: edge.Gzip(js), ETag: `"` + hex.EncodeToString(sum[:16]) + `"`}, true
}
