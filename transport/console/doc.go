// Package console serves the web console (the console's contract, section 1, Serving): one
// HTML shell for every path under /console, and the assets that it loads.
//
// The sources are TypeScript in app/src. The program in app/build compiles them into dist,
// which is embedded and not kept in the repository. go generate runs it (make build begins
// with that); it needs npm, because the console's libraries come from there. A binary that was
// built without it serves a page that says so.
//
//	app/src/main.tsx   the entry: signs in, then shows the frame
//	app/src/client     the API: problems, sessions, idempotency keys
//	app/src/live       what changed elsewhere, one feed per browser
//	app/src/frame      the banner, the navigation, the router, the search, the account
//	app/src/controls   lists, dialogs, forms, times
//	app/src/lib        pure helpers
//	app/src/pages      one folder for each page
//	app/src/styles     what all pages share of the style sheet
//
// Owner of: nothing but the bytes. The console is a client of /v1 and knows no other way to data.
package console

//go:generate go run ./app/build -app app -dist dist
