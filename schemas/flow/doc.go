// Package flow is what a workflow means: its definition, the rules that a definition must
// meet, and the decisions of a run that need no I/O. It is pure. The actor of a workflow run
// holds one State and asks this package what follows from what happened.
//
// # The graph
//
// A definition is a directed acyclic graph of nodes, edges and first values of variables. A run
// starts the nodes without incoming edges. From then on two rules decide everything:
//
//   - An edge is settled when its source has ended or was skipped. It is taken if the source
//     ended and the edge's when allows; an edge without when always is. Behind a condition,
//     when is compared with the condition's result; behind any other node it is a boolean
//     expression. An edge of a skipped node is not taken.
//   - The join: a node is decided when all of its incoming edges are settled. It starts if at
//     least one is taken, and is skipped otherwise.
//
// So every node of a run ends or is skipped, in any order of the things outside, and a run is
// done when no node is active. There is no other way to wait, to repeat or to jump. A node that
// fails fails its run; that is the actor's decision, and this package is not asked again.
//
//	          when 'refund'  ┌────────┐
//	┌────────┐    ┌─────────►│ refund ├───┐ taken        refund ends, say is skipped:
//	│ decide ├────┤          └────────┘   ├────►┌──────┐ both edges are settled, one is
//	└────────┘    │          ┌────────┐   │     │ tell │ taken, and tell starts
//	 a condition  └─────────►│  say   ├───┘     └──────┘
//	          when 'answer'  └────────┘ not taken
//
// # Nodes
//
// The nodes set and condition need no I/O: they end in the decision that started them, so a
// chain of them is one decision. All others wait for something outside: the actor acts on the
// Fact that they became active, and calls Plan.End with what came of it.
//
//	agent       a child run. Output: its text, its id, its json
//	tool        one call. Output: ToolOutput
//	gate        an approval. Output: empty
//	human_task  an approval. Output: HumanOutput
//	condition   Output: its result as json, and as text
//	set         writes variables. Output: empty
//	wait_event  an event of the name Fact.Text. Output: EventOutput
//	delay       a timer. Output: empty
//
// # Data
//
// Templates and expressions see the input of the run, its variables, and the outputs of nodes
// that have ended. Variables are those of the definition, over them those of the run, over them
// what set nodes wrote, in the order in which they were decided.
//
// A template is a string of a definition that holds {{input.x}}, {{variables.x}},
// {{nodes.<id>.text}} or {{nodes.<id>.json.x}}; a number in a path is a position in a list
// where it meets one. A string that is one placeholder alone becomes the value itself, of any
// type, null if it is missing. In a longer string a missing value or null is the empty text, an
// object or a list its JSON. What is inserted is never read as a template, and never changes
// the structure around it. Names of members and variables are no templates. For the text {{
// itself, insert a variable that holds it.
//
// Everything that a node works with is rendered once, when the node starts. Package expr
// describes expressions.
//
// # Bounds
//
// A definition and its data are written by strangers. Validate reads the text without decoding
// it, and refuses what is too large, too deep or too expensive. Start and End have a budget of
// work; what a node renders, and all that is stored of a run, are bounded in size, and values in depth. A run that exceeds a
// bound fails: LIMIT_EXCEEDED for a template or the data, EXPRESSION_FAILED for an expression.
//
// # Documents that were stored
//
// Validate judges what is saved now. Load does not judge again, so that a rule of a later
// version stops no workflow of an earlier one. Progress and Data of a state are what is stored
// of a run; Resume makes the state of them.
package flow
