// Package skill is what a browser skill means (service.md, Browser skill, Browser skill approval
// modes, Browser skill run outcomes; open-parts.md, Browser skills): its definition and policy with
// every rule that is checked when it is saved, the tools that agents get of it, the values of one
// call, the addresses that it may visit, and the decisions of a run. It is pure: no clock, no
// chance, no I/O.
//
// # Saving
//
// Parse reads definition, policy and auth of a create together and names every fault by its path.
// A value of the wrong form (type, length, range, unknown field) makes the answer VALIDATION; a
// rule that joins several values makes it BROWSER_SKILL_INVALID. The Definition that Parse returns
// has its defaults filled in, and its JSON is what is stored and shown. Load reads it again and
// judges nothing: a rule of a later version stops no skill of an earlier one.
//
// # Calls
//
// Tools are the generated tools with their JSON Schemas. Bind reads the arguments of a call: it
// cleans, coerces and checks them, and expands each address that depends on them, before anything
// runs. The same values always give the same JSON, from which Key derives the idempotency key.
//
// The template language has one form, {{name}}, in the path or the query of a navigate step. It is
// not the language of workflows (schemas/flow): a value is percent-encoded completely, so that it
// never becomes a part of the structure around it, and a segment of a path that would become . or ..
// is refused, because browsers resolve these although they are encoded.
//
// # Runs
//
// State, Begin and Next are the sequence of a run as a table. The actor of a run commits the state
// first and performs the work that Next returns afterwards:
//
//	            dry run: ended
//	                ▲
//	┌───────────┐   │    ┌─────────┐ approved ┌─────────────┐  receipt  ┌────────────┐ clicked ┌───────────┐
//	│ preparing ├───┴───►│ waiting ├─────────►│ repreparing ├──────────►│ committing ├────────►│ committed ├──► ended
//	└───────────┘ landed └────┬────┘          └─────────────┘   ready   └────────────┘         └─────┬─────┘
//	                          │ approved, no commit step                                check failed │
//	                          ▼                                                               ┌──────▼───────┐
//	                     ┌─────────┐                                                          │ compensating ├──► ended
//	                     │ reading ├──► ended                                                 └──────────────┘
//	                     └─────────┘
//
// The state committing is the receipt: it is durable before the click. Until then a run that is
// interrupted begins its phase again; from then on it is never driven again, and an interruption
// ends it with unknown_outcome.
package skill
