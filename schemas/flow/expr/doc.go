// Package expr compiles and evaluates the expressions of workflows. It is the one door to
// cel-go: expressions are CEL (https://cel.dev) with its standard functions and macros.
//
// An expression sees
//
//	input                      any JSON value
//	variables                  an object
//	nodes.<id>.text            a string; nodes['<id>'].text for ids with a hyphen
//	nodes.<id>.json            any JSON value, null if the node's output has none
//
// A member that does not exist is an error; has(input.x) asks for one. A node that has not run,
// or was skipped, is not in nodes: has(nodes.x) asks.
//
// JSON numbers are doubles. They compare with integers and mix with them in arithmetic, whose
// result is then a double. Only an integer that a double cannot hold exactly is an int.
//
// An expression and its data are written by strangers:
//
//   - Compile refuses long and deeply nested texts, patterns that are not literals or expand
//     too far, comprehensions nested deeper than three, and an expression whose cheapest
//     evaluation exceeds the limit. Nothing that an expression can call reads a clock, a file
//     or a time zone.
//   - Eval stops at a cost limit. The unit is CEL's; reading and comparing JSON costs one unit
//     for 16 bytes. It looks at its context in loops.
//   - JSON is read where an expression looks at it, never decoded as a whole.
//
// JSON objects iterate in the order of their text.
package expr
