// Package widget holds the chat widget: one JavaScript file for other people's
// pages (open-parts.md, Embed), and the page that shows it.
//
// The sources are TypeScript in src. The build in build makes dist/widget.js of
// them, which is embedded and not kept in the repository: go generate (which make
// build begins with) writes it, and a binary that was built without it says so
// (Bundle). The widget needs nothing at run time but its one file: no framework,
// no font, no picture from anywhere else.
//
//	src/index.ts      the script tag, window.SvcWidget and <svc-chat>
//	src/element.ts    the custom element
//	src/widget.ts     one widget on a page: its host, its events, its life
//	src/ui.ts         what a visitor sees; src/styles.ts, src/texts.ts, src/theme.ts, src/dom.ts
//	src/markdown.ts   text of models as a tree of safe nodes
//	src/client.ts     the embed API without any user interface
//	src/follow.ts     one run's events, over lost connections; src/sse.ts, src/reply.ts
//	src/store.ts      what the browser keeps
//
// Owner of: nothing but the bytes.
package widget

//go:generate go run ./build
