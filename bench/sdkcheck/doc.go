// Package sdkcheck holds no code, only tests: the official client libraries of
// the two model protocols talk to our fake provider and parse what our clients
// send. It is a module of its own, so that those libraries stay out of the
// service.
package sdkcheck
