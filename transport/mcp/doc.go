// Package mcp is the tool gateway: it speaks to tenants' tool servers (service.md, Tool
// server contract) over Streamable HTTP, and to the stdio servers that the operator allows.
//
// There is one client per (tenant, server, connection, version of their rows). It keeps a
// session and the list of tools, both for five minutes; concurrent requests for a list share
// one exchange. If the server has forgotten a session (404), a new one is made and the call,
// which was not processed, is repeated once. Nothing else is ever sent twice.
//
// The credential is opened for each exchange by the Target's function, set as a header on
// requests to exactly the server's origin, and dropped; a pooled client never holds it. A
// stdio server gets it in its environment (MCP_TOKEN or MCP_API_KEY), as the protocol
// requires, so there it lives as long as the process. The credential is removed from
// everything that a server returns, result or failure: in plain, base64, hex and URL-escaped
// form.
//
// Text from servers is treated as hostile. A response is capped at 8 MiB and 250,000 JSON
// values, a list at 4 MiB, 100 pages and 1,000 tools. A tool is left out if its name is not 1
// to 128 of [A-Za-z0-9_.-/], or its schema is not an object or over 256 KiB. A description is
// cut at 8 KiB and loses control, bidirectional and invisible characters. Pictures, sound and
// other binary content are replaced by their kind and size: results are text for a model.
// Requests from the server (sampling, elicitation, roots) are refused; at most 16 per call
// are answered. A redirect is a failure.
//
// A call ends after Config.Timeout, the caller's deadline or its cancellation. Then the HTTP
// request is closed, and a server with sessions gets notifications/cancelled. While this
// process does not hold its lease nothing is sent, and a call aborted by that is Cancelled:
// the Guard checks the lease for connections, Config.Live for the pipes of stdio servers. A
// stdio server that missed a message is not used again, and one that got part of a message is
// killed. For stdio, Error.MaybeRan is exact, because the bytes written are known; over HTTP
// a request counts as sent once its head was written.
//
// At most 256 calls of one client run at once; others wait within their time. An answer above 64
// KiB is read on only with a place (Config.Large), of which each tenant has a part. No lock is
// held over I/O, and no other limit is shared between servers, so that a slow server delays no
// other. Processes of stdio servers are the operator's programs: their output is read without a
// place, and decoded with one.
package mcp
