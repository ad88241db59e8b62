// Package docs holds the guides, which svc dev puts into a knowledge base.
package docs

import "embed"

// Guides are the guides for users, in Markdown.
//
//go:embed api-guide.md operator-guide.md tutorial.md embed.md widget.md webhooks.md triggers.md scaling.md console.md
var Guides embed.FS
