// Package tool decides what an agent may call (service.md, Tool grant, Approval policy;
// open-parts.md, Tools): what a tool is, which grants and policies match it, who must approve
// a call, and what happens to the calls that a model requests. Everything here is plain data
// and pure rules; agentsvc/transport/mcp speaks to tool servers.
//
// Nothing is callable until granted. Text from a model or a tool is never read as a rule:
// names are only looked up among those that manifest and grants allow.
package tool
