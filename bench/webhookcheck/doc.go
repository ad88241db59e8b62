// Package webhookcheck holds no code, only tests of what others make of our
// signatures: npm stripe's verifier, and the code of docs/webhooks.md and
// docs/triggers.md, taken out of the documents and executed. It needs Node 20, npm,
// Python 3.10, curl and openssl; the npm packages are installed once for each
// package-lock.json into the user's cache directory. It is a module of its own, so
// that go test ./... of the service asks for none of them.
package webhookcheck
