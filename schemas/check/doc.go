// Package check compiles JSON Schemas and regular expressions that tenants and
// tool servers supply, and checks values against them, within fixed bounds.
//
// A schema of a few lines can ask for more work than a machine can do in a
// year, and a pattern of twenty characters can compile to gigabytes. So:
//
//   - Compile judges the text of a schema before anything is made of it: bytes,
//     depth, number of subschemas, size of numbers, size of its patterns, cost of
//     its references. What it accepts compiles in a moment and takes a few
//     megabytes at most. A Refusal names the place and the reason.
//   - Schema.Check counts every step that it takes, stops at a fixed budget, and
//     looks at its context as it goes. Errors are bounded in number.
//   - Patterns bounds the compiled size of all patterns of one document together.
//
// The compiler is santhosh-tekuri/jsonschema; it resolves references and checks
// the schema against its draft. Its validator has no bounds, so the validator is
// our own. It walks the library's compiled schema and gives the library's errors.
//
// Nothing that a schema refers to is ever loaded.
package check
