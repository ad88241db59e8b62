// Package widget holds the chat widget: one JavaScript file for other people's
// pages (open-parts.md, Embed), and the page that shows it.
//
// The sources are TypeScript in src. The program in build compiles them into dist/widget.js,
// which is embedded and not kept in the repository. go generate runs it (make build begins
// with that), and Bundle reports a binary that was built without it. At run time the widget
// needs only its one file: no framework, font or picture from elsewhere.
//
//	src/index.ts      the script tag, window.SvcWidget and <svc-chat>
//	src/element.ts    the custom element
//	src/widget.ts     one widget on a page: its host, its events, its life
//	src/ui.ts         what a visitor sees; src/styles.ts, src/texts.ts, src/theme.ts, src/dom.ts
//	src/client.ts     the embed API without any user interface
//	src/follow.ts     one run's events, over lost connections; src/reply.ts
//	src/store.ts      what the browser keeps
//
// It shares transport/reader with the console: text of models as a tree of safe nodes
// (markdown.ts), and server-sent events over fetch (sse.ts).
//
// Owner of: nothing but the bytes.
package widget

//go:generate go run ./build
