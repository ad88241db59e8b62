// Package hooks is the public hook endpoint (service.md, Hook endpoint;
// open-parts.md, Hooks): whoever knows the secret of a trigger starts a run of its
// target with a JSON object.
//
// A call is judged in this order, and by the first that applies:
//
//	unknown, paused, a schedule, target archived   404 NOT_FOUND, always the same
//	signature missing or wrong                     401 INVALID_SIGNATURE
//	body that is no JSON object                    400 INVALID_BODY
//	target without a published version             409 AGENT_NOT_PUBLISHED
//	else                                           202 { run_id }
//
// Owner of: nothing but what it remembers of hooks, opened secrets among it; a
// change of a trigger is answered when every node has forgotten (package platform,
// Revoked).
//
// Limits: so many hooks and so many unknown ids are remembered, these for a moment
// only. A wrong signature costs its hash and, every other second, a look whether the
// target is still there; an id that is not known here is looked up for as long as
// the caller's address has tokens.
//
// Loss: none. A call that is answered 202 has its run; one that was not is repeated
// with the same delivery id.
package hooks
