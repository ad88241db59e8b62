// Package site is a small back office without an API: people sign in, look orders up and cancel
// them on pages. It is what browser skills are shown and tested with. `svc dev` serves it as the
// old back office of its first tenant, and tests turn its knobs: late elements, renamed fields, a
// page that changes between preparing and committing, cut connections, and a laboratory of
// hostile pages.
//
// It counts the effects of every order, so that a test sees whether a commit happened once, twice
// or never. A Site owns its state and is safe for concurrent use; it starts no goroutine. Orders
// live in memory and are lost with it.
package site
