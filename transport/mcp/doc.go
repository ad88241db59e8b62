// Package mcp is the tool gateway: it speaks to tenants' tool servers (service.md,
// Tool server contract) over Streamable HTTP, and to the stdio servers that the
// operator allows.
//
// There is one client per (tenant, server, connection, version of their rows). It
// keeps a session and the list of tools, both for five minutes; a list is asked
// for once however many want it. A session that the server has forgotten (404) is
// made anew and the call, which was not processed, is made once more. Nothing
// else is ever sent twice.
//
// The credential is opened for each exchange by the Target's function, set as a
// header on requests to exactly the server's origin, and dropped; a pooled client
// never holds it. A stdio server gets it in its environment (MCP_TOKEN or
// MCP_API_KEY) as the protocol asks, so there it lives as long as the process.
// Whatever a server says, result or failure, comes back without it: plain, in
// base64, in hex and URL-escaped.
//
// What servers say is hostile text. An answer is capped at 8 MiB and 250,000
// JSON values, a list at 4 MiB, 100 pages and 1,000 tools; a tool is left out if
// its name is not 1 to 128 of [A-Za-z0-9_.-/], its schema no object or over
// 256 KiB; a description is cut at 8 KiB and loses control, bidirectional and
// invisible characters. Pictures, sound and other binary content are named with
// their size and left out: results are text for a model. Requests of the server
// (sampling, elicitation, roots) are refused; at most 16 of a call are answered.
// A redirect is a failure.
//
// A call ends after Config.Timeout, the caller's deadline or cancellation: the
// HTTP request is closed, and a server with sessions is told notifications/cancelled.
// While this process does not hold its lease nothing is sent, and what is cut short
// by that is Cancelled: connections ask for the lease by the Guard, the pipes of
// stdio servers by Config.Live. A stdio server that was not told something is not
// asked again, and one that was told a part of a message is killed. Error.MaybeRan
// knows for stdio what was written; over HTTP a request counts as sent from its
// head on.
//
// At most 256 calls of one client run at once, others wait within their time. No
// lock is held over I/O, and no limit is shared between servers, so that a slow
// one delays nobody else.
package mcp
