// Package model speaks to language models: lean streaming clients for the two
// wire protocols of the field (OpenAI chat completions, Anthropic messages) and
// the built-in simulated model, all behind agentsvc/schemas/model.Client.
//
// A Registry hands out clients; they share one pool of guarded connections
// (transport/egress), keep no state between turns and have no goroutines of
// their own. A turn is one POST whose answer is read as it arrives and is
// bounded everywhere: 1 MiB a line, 8 MiB an answer, 128 calls, two minutes of
// silence. A turn whose context ends closes the connection, so that the provider
// stops working on it. What was understood before a stream broke is lost with
// it: the sink has heard it, the Result is never handed out in part.
//
// A turn that fails before its first token by connection, 429 or 5xx is tried
// three times in all (Retrying); nothing else is tried again here.
package model
