// Package tool says what an agent may call (service.md, Tool grant, Approval
// policy; open-parts.md, Tools): what a tool is, which grants and policies match
// it, who has to approve a call, and what becomes of the calls that a model asks
// for. Everything here is plain data and pure rules; who speaks to a tool server
// is agentsvc/transport/mcp.
//
// Nothing is callable until granted. What a model writes, and what a tool
// answers, is never read as a rule: names are looked up among what manifest and
// grants allow, and found there or not.
package tool
