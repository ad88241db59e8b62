// Package embed holds the pure rules of the embed API: from which origins a key may be used,
// and the allowed values and defaults of a theme and a config (open-parts.md, Embed).
//
// Origins are compared by scheme, host and port, each exactly, never as text. A list of
// origins is stored in the form that browsers send.
package embed
