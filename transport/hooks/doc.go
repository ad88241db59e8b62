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
// only. A call that is not known here, or carries nothing that could be a signature,
// costs a token of its address before its body is read and anything is looked up.
// Of a hook that is known a wrong signature costs its body and its hash, and then the
// token; an address that has none left for it pays in advance for five seconds, so
// that a 429 costs no body. Who signs correctly pays with its tenant's tokens only,
// and is refused because of its address only where that is empty: while this node
// does not know the hook, and in those seconds, since nobody can tell a right
// signature without the body. A hook whose target was archived is forgotten at its
// first call, and then costs what every unknown id does.
//
// Loss: none. A call that is answered 202 has its run; one that was not is repeated
// with the same delivery id.
package hooks
