// Package consolecheck holds no code, only tests of the web console as people have it: the
// service's real binary and a headless Chromium that does what a person would do. What is
// judged is what is seen, what the browser keeps, and what goes over the network.
//
// It needs Node 20, npm and Chromium (apt: chromium-headless-shell and fonts-liberation), and
// bin/svc with the console in it (make build); the npm packages are installed once for each
// package-lock.json into the user's cache directory. It is a module of its own, so that
// go test ./... of the service asks for none of them.
//
//	go test ./... -args -svc FILE            another binary
//	go test ./... -args -pictures DIR        writes the pictures of the documentation
package consolecheck
