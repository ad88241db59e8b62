// Package model speaks to language models: lean streaming clients for the two common wire
// protocols (OpenAI chat completions, Anthropic messages) and the built-in simulated model,
// all behind agentsvc/schemas/model.Client.
//
// A Registry makes clients; they share one pool of guarded connections (transport/egress),
// keep no state between turns and have no goroutines of their own. A turn is one POST whose
// response is read as it arrives. It is bounded everywhere: 1 MiB per line, 8 MiB per
// response, 128 calls, two minutes of silence, and a place on the node for each that holds much (room.go). When the context of a turn ends, its
// connection is closed, so that the provider stops working on it. If a stream breaks, the
// partial turn is lost: the sink has received its text, but no partial Result is returned.
//
// A turn that fails before its first token because of the connection, 429 or 5xx is tried
// three times in all (Retrying); nothing else is retried here.
//
// Embeddings are calls of POST {base_url}/embeddings in batches, retried in the same way. A response
// whose vectors cannot be used (their number, dimensions, NaN, no direction) is an error.
package model
