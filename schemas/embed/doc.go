// Package embed is what is pure about the embed API: which origins a key may be used
// from, what a theme and a config may say, and what they say where they say nothing
// (open-parts.md, Embed).
//
// An origin is compared as what it means, never as text: scheme, host and port, each
// exactly. A list of origins is stored in the form that browsers send.
package embed
