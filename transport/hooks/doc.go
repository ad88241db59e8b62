// Package hooks is the public hook endpoint (service.md, Hook endpoint; open-parts.md,
// Hooks): a caller that knows a trigger's secret starts a run of its target with a JSON
// object.
//
// A call is checked in this order, and the first failure is the answer:
//
//	unknown, paused, a schedule, target archived   404 NOT_FOUND, always the same
//	signature missing or wrong                     401 INVALID_SIGNATURE
//	body that is no JSON object                    400 INVALID_BODY
//	target without a published version             409 AGENT_NOT_PUBLISHED
//	else                                           202 { run_id }
//
// Owner of: nothing but its cache of hooks, with their opened secrets. A change of a trigger
// is answered once every node has dropped it (package platform, Revoked).
//
// Limits: the cache of hooks and that of unknown ids are bounded; unknown ids stay for a
// moment only. A call of a hook that is not cached, or without a plausible signature, costs a
// token of its address before its body is read and anything is looked up. For a cached hook a
// wrong signature costs reading and hashing the body, and then the token. An address without
// tokens pays in advance for five seconds, so that a 429 costs no body. A correctly signed
// call takes only its tenant's tokens. An empty address bucket refuses it in two cases: while
// this node has not cached the hook, and in those five seconds, because the signature cannot
// be checked without the body. A hook whose target was archived is dropped at its first call,
// and then costs the same as an unknown id.
//
// Loss: none. A call that is answered 202 has its run; a caller repeats any other with the
// same delivery id.
package hooks
