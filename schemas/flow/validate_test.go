package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"agentsvc/schemas/check"
	"agentsvc/schemas/check/checktest"
	"agentsvc/schemas/problem"
)

const anAgent = "01890a5d-ac96-774b-bcce-b302099a8057"

// full has every type of node and every field.
func full(t testing.TB) json.RawMessage {
	t.Helper()
	doc, err := os.ReadFile("testdata/full.json")
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func validate(t testing.TB, doc string) Report {
	t.Helper()
	r, err := Validate(t.Context(), "definition", json.RawMessage(doc))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func lines(fields []problem.Field) string {
	var out []string
	for _, f := range fields {
		out = append(out, f.Path+": "+f.Message)
	}
	return strings.Join(out, "; ")
}

// nodes are delay nodes with these ids.
func delays(ids string) string {
	var out []string
	for _, id := range strings.Fields(ids) {
		out = append(out, fmt.Sprintf(`{"id": %q, "type": "delay", "seconds": 1}`, id))
	}
	return strings.Join(out, ",")
}

// def is a definition of delay nodes and edges "a>b".
func def(ids, edges string, more ...string) string {
	var es []string
	for _, e := range strings.Fields(edges) {
		from, to, _ := strings.Cut(e, ">")
		es = append(es, fmt.Sprintf(`{"from": %q, "to": %q}`, from, to))
	}
	nodes := append([]string{delays(ids)}, more...)
	if ids == "" {
		nodes = more
	}
	return `{"nodes": [` + strings.Join(nodes, ",") + `], "edges": [` + strings.Join(es, ",") + `]}`
}

func one(node string) string { return `{"nodes": [` + node + `]}` }

func TestAFullDefinitionIsAccepted(t *testing.T) {
	if r := validate(t, string(full(t))); len(r.Faults) > 0 || len(r.Warnings) > 0 {
		t.Fatalf("faults %v, warnings %v", r.Faults, r.Warnings)
	}
	p, warnings, err := Parse(t.Context(), "definition", full(t))
	if err != nil || len(warnings) > 0 || p.Len() != 9 {
		t.Fatal(p, warnings, err)
	}
}

// The tables of open-parts.md, Workflows, triggers, hooks, and Changes, Workflows: what is
// refused, and under which path.
func TestFaults(t *testing.T) {
	set := func(values string) string { return `{"id": "s", "type": "set", "values": {"x": ` + values + `}}` }
	cel := func(e string) string { return fmt.Sprintf(`{"id": "c", "type": "condition", "expression": %q}`, e) }
	for _, c := range []struct{ name, doc, want string }{
		{"null", `null`, "definition: required"},
		{"no object", `[]`, "definition: must be an object"},
		{"no JSON", `{"nodes": `, "definition: is not JSON"},
		{"two documents", def("a", "") + ` {}`, "definition: is not JSON"},
		{"no UTF-8", "{\"nodes\": \"\xff\"}", "definition: is not UTF-8"},
		{"at most 256 KiB", `{"x": "` + strings.Repeat("x", MaxBytes) + `"}`, "definition: must have at most 262144 bytes"},
		{"too deep", strings.Repeat("[", 100) + strings.Repeat("]", 100), "definition: nests deeper than 64"},
		{"no nodes", `{}`, "definition.nodes: required"},
		{"no node", `{"nodes": []}`, "definition.nodes: must have at least one node"},
		{"nodes are a list", `{"nodes": {}}`, "definition.nodes: must be a list"},
		{"at most 200 nodes", one(strings.Repeat(`{},`, 200) + `{}`), "definition.nodes: must have at most 200 entries, has 201"},
		{"at most 400 edges", `{"nodes": [` + delays("a") + `], "edges": [` + strings.Repeat(`{},`, 400) + `{}]}`, "definition.edges: must have at most 400 entries, has 401"},
		{"an unknown field", `{"nodes": [` + delays("a") + `], "node": 1}`, "definition.node: unknown field"},
		{"a field in other case", `{"Nodes": []}`, "definition.Nodes: unknown field; definition.nodes: required"},
		{"a field twice", `{"nodes": [` + delays("a") + `], "nodes": []}`, "definition.nodes: stands twice in one object"},
		{"an unknown field of a node", one(`{"id": "a", "type": "delay", "seconds": 1, "second": 2}`), "definition.nodes[0].second: unknown field"},
		{"a field of another type", one(`{"id": "a", "type": "delay", "seconds": 1, "expression": "true"}`), "definition.nodes[0].expression: unknown field"},
		{"a name with odd characters", `{"a b": 1}`, `definition["a b"]: unknown field`},
		{"a node is an object", one(`1`), "definition.nodes[0]: must be an object"},
		{"a node needs an id", one(`{"type": "delay", "seconds": 1}`), "definition.nodes[0].id: required"},
		{"ids are [A-Za-z0-9_-]{1,64}", one(`{"id": "a b", "type": "delay", "seconds": 1}`), "definition.nodes[0].id: must be 1 to 64 of"},
		{"an id of 65 characters", one(`{"id": "` + strings.Repeat("a", 65) + `", "type": "delay", "seconds": 1}`), "definition.nodes[0].id: must be 1 to 64 of"},
		{"an id is text", one(`{"id": 1, "type": "delay", "seconds": 1}`), "definition.nodes[0].id: must be 1 to 64 of"},
		{"an id twice", def("a b a", ""), "definition.nodes[2].id: is the id of nodes[0] already: a"},
		{"a node needs a type", one(`{"id": "a"}`), "definition.nodes[0].type: required"},
		{"an unknown type", one(`{"id": "a", "type": "loop"}`), "definition.nodes[0].type: must be one of agent, tool, gate, human_task, condition, set, wait_event, delay"},
		{"agent_id is required", one(`{"id": "a", "type": "agent", "input": "x"}`), "definition.nodes[0].agent_id: required"},
		{"agent_id is an id", one(`{"id": "a", "type": "agent", "agent_id": "bot", "input": "x"}`), "definition.nodes[0].agent_id: must be a UUID"},
		{"an agent's input is required", one(`{"id": "a", "type": "agent", "agent_id": "` + anAgent + `"}`), "definition.nodes[0].input: required"},
		{"tool is required", one(`{"id": "a", "type": "tool"}`), "definition.nodes[0].tool: required"},
		{"tool is a name", one(`{"id": "a", "type": "tool", "tool": "shop.*"}`), "definition.nodes[0].tool: must be a name"},
		{"tool has no placeholder", one(`{"id": "a", "type": "tool", "tool": "{{input.x}}"}`), "definition.nodes[0].tool: must be a name"},
		{"args are an object", one(`{"id": "a", "type": "tool", "tool": "x", "args": "{{input}}"}`), "definition.nodes[0].args: must be an object"},
		{"args name things once", one(`{"id": "a", "type": "tool", "tool": "x", "args": {"a": {"b": 1, "b": 2}}}`), "definition.nodes[0].args.a.b: stands twice in one object"},
		{"title is required", one(`{"id": "a", "type": "gate"}`), "definition.nodes[0].title: required"},
		{"title is text", one(`{"id": "a", "type": "gate", "title": {}}`), "definition.nodes[0].title: must be a string"},
		{"risk", one(`{"id": "a", "type": "gate", "title": "t", "risk": "huge"}`), "definition.nodes[0].risk: must be one of low, medium, high, critical"},
		{"approver_role", one(`{"id": "a", "type": "gate", "title": "t", "approver_role": "root"}`), "definition.nodes[0].approver_role: must be one of owner, admin, manager, member"},
		{"escalate_to_role", one(`{"id": "a", "type": "human_task", "title": "t", "escalate_to_role": "root"}`), "definition.nodes[0].escalate_to_role: must be one of"},
		{"required_approvals is 1 to 5", one(`{"id": "a", "type": "gate", "title": "t", "required_approvals": 6}`), "definition.nodes[0].required_approvals: must be from 1 to 5"},
		{"required_approvals is an integer", one(`{"id": "a", "type": "gate", "title": "t", "required_approvals": 1.5}`), "definition.nodes[0].required_approvals: must be an integer"},
		{"sla_minutes > 0", one(`{"id": "a", "type": "gate", "title": "t", "sla_minutes": 0}`), "definition.nodes[0].sla_minutes: must be above 0"},
		{"sla_minutes at most 525,600", one(`{"id": "a", "type": "gate", "title": "t", "sla_minutes": 525601}`), "definition.nodes[0].sla_minutes: must be above 0 and at most 525600"},
		{"a gate has no form", one(`{"id": "a", "type": "gate", "title": "t", "form": {}}`), "definition.nodes[0].form: unknown field"},
		{"a form is a schema", one(`{"id": "a", "type": "human_task", "title": "t", "form": {"type": "strin"}}`), "definition.nodes[0].form: must be a JSON Schema"},
		{"a form is an object", one(`{"id": "a", "type": "human_task", "title": "t", "form": "x"}`), "definition.nodes[0].form: must be an object"},
		{"a form stays inside", one(`{"id": "a", "type": "human_task", "title": "t", "form": {"$ref": "https://example.com/x"}}`), "definition.nodes[0].form: cannot be used as a schema: it cannot refer to anything outside itself"},
		{"expression is required", one(`{"id": "a", "type": "condition"}`), "definition.nodes[0].expression: required"},
		{"expression is text", one(`{"id": "a", "type": "condition", "expression": true}`), "definition.nodes[0].expression: must be a string"},
		{"a syntax error", one(cel(`input.x >`)), "definition.nodes[0].expression: Syntax error"},
		{"a type error", one(cel(`1 + 'a'`)), "definition.nodes[0].expression: found no matching overload for '_+_' applied to '(int, string)' (at character 3)"},
		{"an unknown name", one(cel(`amount > 1`)), "definition.nodes[0].expression: names amount, which is not known"},
		{"an expression names an unknown node", one(cel(`nodes.b.text == ''`)), `definition.nodes[0].expression: names no node of the definition: "b"`},
		{"an expression names its own node", one(cel(`nodes.c.text == ''`)), "definition.nodes[0].expression: names its own node, which cannot have run before"},
		{"a result that is no JSON", one(cel(`b'x'`)), "definition.nodes[0].expression: has a result that is no JSON value"},
		{"too much of expressions", one(strings.TrimSuffix(strings.Repeat(cel("'"+strings.Repeat("x", 4000)+"' == input.x")+",", 20), ",")), "definition.nodes[16].expression: makes all expressions together longer"},
		{"values are required", one(`{"id": "a", "type": "set"}`), "definition.nodes[0].values: required"},
		{"values are an object", one(`{"id": "a", "type": "set", "values": []}`), "definition.nodes[0].values: must be an object"},
		{"an open placeholder", one(set(`"a {{input.x"`)), "definition.nodes[0].values.x: has {{ without }}"},
		{"an unknown placeholder", one(set(`["{{customer}}"]`)), "definition.nodes[0].values.x[0]: {{customer}}: must be input.x, variables.x, nodes.<id>.text or nodes.<id>.json.x"},
		{"an empty placeholder", one(set(`"{{ }}"`)), "definition.nodes[0].values.x: {{ }}: must be input.x"},
		{"a placeholder of a whole node", one(set(`"{{nodes.a}}"`)), "must be input.x, variables.x, nodes.<id>.text or nodes.<id>.json.x"},
		{"a member of a text", one(set(`"{{nodes.a.text.x}}"`)), "must be input.x, variables.x, nodes.<id>.text or nodes.<id>.json.x"},
		{"a template names an unknown node", one(set(`{"y": "{{nodes.a.text}}"}`)), `definition.nodes[0].values.x.y: names no node of the definition: "a"`},
		{"a template names its own node", one(set(`"{{nodes.s.json.x}}"`)), "definition.nodes[0].values.x: names its own node"},
		{"a template names a later node", `{"nodes": [` + set(`"{{ nodes.b.text }}"`) + `,` + delays("a b") + `], "edges": [{"from": "s", "to": "a"}, {"from": "a", "to": "b"}]}`,
			"definition.nodes[0].values.x: names b, which cannot have run before: it comes after s"},
		{"event is required", one(`{"id": "a", "type": "wait_event"}`), "definition.nodes[0].event: required"},
		{"event is not empty", one(`{"id": "a", "type": "wait_event", "event": ""}`), "definition.nodes[0].event: must have 1 to 200 characters"},
		{"timeout_minutes > 0", one(`{"id": "a", "type": "wait_event", "event": "e", "timeout_minutes": 0}`), "definition.nodes[0].timeout_minutes: must be above 0"},
		{"seconds are required", one(`{"id": "a", "type": "delay"}`), "definition.nodes[0].seconds: required"},
		{"seconds are a number", one(`{"id": "a", "type": "delay", "seconds": "1"}`), "definition.nodes[0].seconds: must be a number"},
		{"seconds are not negative", one(`{"id": "a", "type": "delay", "seconds": -1}`), "definition.nodes[0].seconds: must be from 0"},
		{"a number beyond every number", one(`{"id": "a", "type": "delay", "seconds": 1e999}`), "definition.nodes[0].seconds: must be from 0"},
		{"null is no number", one(`{"id": "a", "type": "delay", "seconds": null}`), "definition.nodes[0].seconds: must not be null"},
		{"null is no id, type and text", `{"nodes": [{"id": null, "type": null}, {"id": "t", "type": "wait_event", "event": "e", "timeout_minutes": null}], "edges": [{"from": "t", "to": null, "when": null}], "variables": null}`,
			"definition.variables: must not be null; definition.nodes[0].id: must not be null; definition.nodes[0].type: must not be null; definition.nodes[1].timeout_minutes: must not be null; definition.edges[0].to: must not be null; definition.edges[0].when: must not be null"},
		{"null for the lists", `{"nodes": null, "edges": null}`, "definition.nodes: must not be null; definition.edges: must not be null"},
		{"edges are a list", `{"nodes": [` + delays("a") + `], "edges": {}}`, "definition.edges: must be a list"},
		{"an edge is an object", `{"nodes": [` + delays("a") + `], "edges": ["a"]}`, "definition.edges[0]: must be an object"},
		{"an edge needs its ends", `{"nodes": [` + delays("a") + `], "edges": [{}]}`, "definition.edges[0].from: required; definition.edges[0].to: required"},
		{"an edge from an unknown node", def("a", "b>a"), `definition.edges[0].from: names no node of the definition: "b"`},
		{"an edge to an unknown node", def("a", "a>b"), `definition.edges[0].to: names no node of the definition: "b"`},
		{"an unknown field of an edge", `{"nodes": [` + delays("a b") + `], "edges": [{"from": "a", "to": "b", "if": "true"}]}`, "definition.edges[0].if: unknown field"},
		{"when is an expression", `{"nodes": [` + delays("a b") + `], "edges": [{"from": "a", "to": "b", "when": {}}]}`, "definition.edges[0].when: must be an expression, a boolean or a number"},
		{"when parses", `{"nodes": [` + delays("a b") + `], "edges": [{"from": "a", "to": "b", "when": "1 +"}]}`, "definition.edges[0].when: Syntax error"},
		{"when is a boolean", `{"nodes": [` + delays("a b") + `], "edges": [{"from": "a", "to": "b", "when": "'x'"}]}`, "definition.edges[0].when: must be a boolean expression, is a string"},
		{"when names a later node", `{"nodes": [` + delays("a b") + `], "edges": [{"from": "a", "to": "b", "when": "nodes.b.text == ''"}]}`, "definition.edges[0].when: names b, which cannot have run before"},
		{"when is compared with the result", `{"nodes": [` + cel("input.x > 1") + `,` + delays("a") + `], "edges": [{"from": "c", "to": "a", "when": "'yes'"}]}`,
			"definition.edges[0].when: is a string and never equals the result of c, which is a boolean"},
		{"a cycle of one", def("a", "a>a"), "definition.edges[0]: closes a cycle: a → a"},
		{"a cycle of two", def("a b", "a>b b>a"), "definition.edges[1]: closes a cycle: a → b → a"},
		{"a cycle behind a start", def("s a b c t", "s>a a>b b>c c>a c>t"), "definition.edges[3]: closes a cycle: a → b → c → a"},
		{"two cycles", def("a b c d", "a>b b>a c>d d>c"), "definition.edges[1]: closes a cycle: a → b → a; definition.edges[3]: closes a cycle: c → d → c"},
		{"an unreachable node", def("a b c", "a>b b>a b>c"), "definition.nodes[2]: cannot be reached: every path to it begins in a cycle"},
		{"a long cycle is cut", longCycle(), "n0 → n1 → n2 → n3 → n4 → n5 → n6 → n7 → n8 → n9 → … → n29 → n0"},
		{"variables are an object", `{"nodes": [` + delays("a") + `], "variables": []}`, "definition.variables: must be an object"},
		{"a variable twice", `{"nodes": [` + delays("a") + `], "variables": {"x": 1, "x": 2}}`, "definition.variables.x: stands twice in one object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := lines(validate(t, c.doc).Faults); !strings.Contains(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func longCycle() string {
	var ids, edges []string
	for i := range 30 {
		ids = append(ids, fmt.Sprintf("n%d", i))
		edges = append(edges, fmt.Sprintf("n%d>n%d", i, (i+1)%30))
	}
	return def(strings.Join(ids, " "), strings.Join(edges, " "))
}

// Every fault is told at once.
func TestFaultsAreToldTogether(t *testing.T) {
	doc := `{"nodes": [{"id": "a", "type": "delay", "seconds": -1}, {"id": "a", "type": "tool", "tool": "x", "args": {"k": "{{nodes.zz.text}}"}}, {"id": "c", "type": "condition", "expression": "1 +"}],
		"edges": [{"from": "c", "to": "q"}, {"from": "c", "to": "c"}], "extra": 1}`
	got := lines(validate(t, doc).Faults)
	for _, want := range []string{"definition.extra:", "nodes[0].seconds:", "nodes[1].id:", "nodes[1].args.k:", "nodes[2].expression:", "edges[0].to:", "edges[1]: closes a cycle"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	_, _, err := Parse(t.Context(), "definition", json.RawMessage(doc))
	var p *problem.Error
	if !errors.As(err, &p) || p.Code != problem.CodeValidation || p.Detail != got {
		t.Errorf("Parse says %v", err)
	}
}

// Where the nodes cannot be read, nothing is said of nodes that edges name.
func TestNodesThatCannotBeReadAreOneFault(t *testing.T) {
	chain := strings.Repeat(`{"from": "n0", "to": "n1"},`, 199) + `{"from": "n0", "to": 1, "if": true}`
	for nodes, want := range map[string]string{
		`[` + strings.Repeat(`{},`, MaxNodes) + `{}]`: "definition.nodes: must have at most 200 entries, has 201",
		`{}`: "definition.nodes: must be a list",
	} {
		want += "; definition.edges[199].if: unknown field; definition.edges[199].to: must be a string"
		if got := lines(validate(t, `{"nodes": `+nodes+`, "edges": [`+chain+`]}`).Faults); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// The last of a hundred faults says whether there are more. So do warnings.
func TestMoreFaultsThanAreTold(t *testing.T) {
	list := func(n int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	const more = "(there are more than the 100 that are named)"
	for n, said := range map[int]int{99: 0, 100: 0, 101: 1, 150: 1} {
		r := validate(t, one(list(n, `1`)))
		if got := lines(r.Faults); len(r.Faults) != min(n, 100) || strings.Count(got, more) != said || said > 0 && !strings.HasSuffix(got, more) {
			t.Errorf("%d faults: it tells %d: %s", n, len(r.Faults), got)
		}
		r = validate(t, `{"nodes": [`+delays("a b")+`], "edges": [`+list(n+1, `{"from": "a", "to": "b"}`)+`]}`)
		if got := lines(r.Warnings); len(r.Faults) > 0 || len(r.Warnings) != min(n, 100) || strings.Count(got, more) != said || said > 0 && !strings.HasSuffix(got, more) {
			t.Errorf("%d warnings: it tells %d: %s", n, len(r.Warnings), got)
		}
	}
}

func TestWhatIsAccepted(t *testing.T) {
	for name, doc := range map[string]string{
		"one node":                       def("a", ""),
		"no edges":                       `{"nodes": [` + delays("a b") + `]}`,
		"null as a value":                `{"nodes": [{"id": "s", "type": "set", "values": {"x": null}}], "variables": {"y": null}}`,
		"a diamond":                      def("a b c d", "a>b a>c b>d c>d"),
		"the longest id":                 def(strings.Repeat("a", 64)+" _-", ""),
		"zero seconds":                   one(`{"id": "a", "type": "delay", "seconds": 0}`),
		"a tool without args":            one(`{"id": "a", "type": "tool", "tool": "builtin:kb.search"}`),
		"an input of any type":           one(`{"id": "a", "type": "agent", "agent_id": "` + anAgent + `", "input": ["{{ input }}", 1, null]}`),
		"spaces inside the braces":       one(`{"id": "a", "type": "set", "values": {"x": "{{  input.x  }}{{variables.y}}"}}`),
		"names in any script":            one(`{"id": "a", "type": "set", "values": {"x": "{{input.größe.0.日本}}"}}`),
		"ids with hyphens":               `{"nodes": [` + delays("a-b") + `,{"id": "s", "type": "set", "values": {"x": "{{nodes.a-b.json.k-1}}"}}], "edges": [{"from": "a-b", "to": "s", "when": "nodes['a-b'].text == ''"}]}`,
		"a boolean and a number as when": `{"nodes": [{"id": "c", "type": "condition", "expression": "input.x"},` + delays("a b") + `], "edges": [{"from": "c", "to": "a", "when": true}, {"from": "c", "to": "b", "when": 1.5}]}`,
		"when sees its source":           `{"nodes": [` + delays("a b") + `], "edges": [{"from": "a", "to": "b", "when": "nodes.a.text == 'x'"}]}`,
		"constant conditions":            `{"nodes": [{"id": "c", "type": "condition", "expression": "true"},` + delays("a b") + `], "edges": [{"from": "c", "to": "a", "when": "true"}, {"from": "c", "to": "b", "when": "false"}]}`,
		"numbers of different types":     `{"nodes": [{"id": "c", "type": "condition", "expression": "size(input)"},` + delays("a") + `], "edges": [{"from": "c", "to": "a", "when": "2.0"}]}`,
		"two edges to one node":          `{"nodes": [{"id": "c", "type": "condition", "expression": "input.x"},` + delays("a") + `], "edges": [{"from": "c", "to": "a", "when": "1"}, {"from": "c", "to": "a", "when": "2"}]}`,
	} {
		if r := validate(t, doc); len(r.Faults) > 0 {
			t.Errorf("%s: %s", name, lines(r.Faults))
		}
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"a parallel node", `{"nodes": [` + delays("a") + `,{"id": "s", "type": "set", "values": {"x": "{{nodes.a.text}}"}}]}`, "definition.nodes[1].values.x: names a, which may not have run before: no path leads from it to s"},
		{"a variable that looks like a template", `{"nodes": [` + delays("a") + `], "variables": {"x": "{{input.y}}"}}`, "definition.variables.x: is not a template"},
		{"an edge that stands twice", def("a b", "a>b a>b"), "definition.edges[1]: repeats edges[0]"},
		{"a form without an object", one(`{"id": "h", "type": "human_task", "title": "t", "form": {"type": ["string", "null"]}}`), "definition.nodes[0].form: accepts no object"},
		{"a condition without edges", one(`{"id": "c", "type": "condition", "expression": "true"}`), "definition.nodes[0]: decides nothing"},
		{"an edge that ignores its condition", `{"nodes": [{"id": "c", "type": "condition", "expression": "true"},` + delays("a") + `], "edges": [{"from": "c", "to": "a"}]}`, "definition.edges[0]: is always taken"},
		{"a node that never starts", `{"nodes": [` + delays("a b c") + `], "edges": [{"from": "a", "to": "b", "when": "false"}, {"from": "b", "to": "c"}]}`,
			"definition.nodes[1]: never starts: none of its incoming edges can be taken; definition.nodes[2]: never starts"},
	} {
		r := validate(t, c.doc)
		if got := lines(r.Warnings); len(r.Faults) > 0 || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s; %s\nwant %s", c.name, got, lines(r.Faults), c.want)
		}
	}
}

// The schema for editors and OpenAPI accepts what Validate accepts, and refuses every fault
// that is one of a single field.
func TestSchemaAgreesWithValidate(t *testing.T) {
	s, err := check.Compile(t.Context(), Schema(), check.Options{Formats: true})
	if err != nil {
		t.Fatal(err)
	}
	accepts := func(doc string) bool {
		v, err := check.Decode([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		return s.Check(t.Context(), v) == nil
	}
	if !accepts(string(full(t))) {
		t.Error("the schema refuses the full definition")
	}
	for _, doc := range []string{
		`{}`, `{"nodes": []}`, `[]`, one(`{"id": "a b", "type": "delay", "seconds": 1}`), one(`{"id": "a", "type": "loop"}`), one(`{"id": "a", "type": "delay"}`),
		one(`{"id": "a", "type": "delay", "seconds": 1, "x": 1}`), one(`{"id": "a", "type": "gate", "title": "t", "required_approvals": 6}`),
		one(`{"id": "a", "type": "gate", "title": "t", "sla_minutes": 0}`), one(`{"id": "a", "type": "agent", "agent_id": "x", "input": 1}`),
		`{"nodes": [` + delays("a") + `], "edges": [{"from": "a"}]}`, `{"nodes": [` + delays("a") + `], "other": 1}`,
	} {
		if accepts(doc) || len(validate(t, doc).Faults) == 0 {
			t.Errorf("%s is accepted", doc)
		}
	}
}

// hostile are definitions that are made to be expensive.
func hostile() map[string]string {
	pad := func(head, item, tail string) string {
		n := (MaxBytes - len(head) - len(tail)) / len(item)
		return head + strings.TrimSuffix(strings.Repeat(item, n), ",") + tail
	}
	var dense []string
	for i := range 20 {
		for j := i + 1; j < 200 && len(dense) < 400; j += 1 + i {
			dense = append(dense, fmt.Sprintf("n%d>n%d", i, j))
		}
	}
	var ids []string
	for i := range 200 {
		ids = append(ids, fmt.Sprintf("n%d", i))
	}
	all := strings.Join(ids, " ")
	conditions := func(e string) string {
		var out []string
		for i := range 200 {
			out = append(out, fmt.Sprintf(`{"id": "c%d", "type": "condition", "expression": %q}`, i, e))
		}
		return one(strings.Join(out, ","))
	}
	forms := strings.TrimSuffix(strings.Repeat(`{"id": "f", "type": "human_task", "title": "t", "form": {"properties": {"a": {"pattern": "`+strings.Repeat(`[a-z]{1,30}`, 20)+`"}}}},`, 180), ",")
	return map[string]string{
		"many placeholders":   pad(`{"nodes": [{"id": "s", "type": "set", "values": {"x": "`, `{{input.a}}`, `"}}]}`),
		"many strings":        pad(`{"nodes": [{"id": "s", "type": "set", "values": {"x": [`, `"{{nodes.s.text}}",`, `]}}]}`),
		"many faults":         pad(`{"nodes": [{"id": "s", "type": "set", "values": {"x": [`, `"{{",`, `]}}]}`),
		"many fields":         pad(`{"nodes": [{`, `"x":1,`, `}]}`),
		"many empty objects":  pad(`{"nodes": [{"id": "s", "type": "set", "values": {"x": [`, `{},`, `]}}]}`),
		"nodes that are none": pad(`{"nodes": [`, `1,`, `]}`),
		"long paths":          pad(`{"nodes": [{"id": "s", "type": "set", "values": {"`+strings.Repeat("k", 60_000)+`": [`, `"{{",`, `]}}]}`),
		"a dense graph":       def(all, strings.Join(dense, " ")),
		"a long cycle":        longCycle(),
		"all in one cycle":    def(all, strings.Join(dense[:200], " ")+" n199>n0"),
		"many conditions":     conditions(strings.Repeat("input.a==1||", 27) + "true"),
		"many sums":           conditions(strings.Repeat("1==", 108) + "1"),
		"many loops":          conditions("[1,2,3].all(a, [1,2,3].all(b, [1,2,3].all(c, a == b)))"),
		"many broken ones":    conditions(strings.Repeat("(", 300)),
		"forms with patterns": one(forms),
		"a form that doubles": one(`{"id": "f", "type": "human_task", "title": "t", "form": ` + doubling(40) + `}`),
		"values that nest":    one(`{"id": "s", "type": "set", "values": {"x": ` + strings.Repeat(`[`, 50) + strings.Repeat(`]`, 50) + `}}`),
	}
}

func doubling(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{}}}`, n)
	return b.String()
}

// mostOfValidation bounds the work of one validation, several times what the most expensive definition takes.
const mostOfValidation = 250

func TestValidationIsBounded(t *testing.T) {
	for name, doc := range hostile() {
		t.Run(name, func(t *testing.T) {
			var r Report
			var work float64
			grew := checktest.Grows(func() { work = checktest.Work(func() { r = validate(t, doc) }) })
			t.Logf("%d KB: work %.1f, %d MB, %d faults", len(doc)>>10, work, grew>>20, len(r.Faults))
			if grew > checktest.Most || work > mostOfValidation {
				t.Errorf("takes %d MB and the work %.1f", grew>>20, work)
			}
			if len(r.Faults) > maxFaults {
				t.Errorf("%d faults", len(r.Faults))
			}
			if n := len(lines(r.Faults)); n > 1<<20 {
				t.Errorf("faults of %d bytes", n)
			}
		})
	}
}

func TestAnEndedContextEndsValidation(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Parse(ctx, "definition", full(t)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full(f)))
	f.Add([]byte(def("a b", "a>b b>a")))
	f.Add([]byte(`{"nodes": [{"id": "s", "type": "set", "values": {"x": "{{nodes.s.json.x}} {{ input }}"}}, null, {"type": []}], "edges": [{"from": null, "when": 1}], "variables": {"": null}}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, _, err := Parse(t.Context(), "definition", doc)
		var problems *problem.Error
		if err != nil {
			if !errors.As(err, &problems) {
				t.Fatalf("%s\nis refused as a fault of ours: %v", doc, err)
			}
			return
		}
		_ = Mermaid(p.Definition())
		s, facts, err := p.Start(t.Context(), []byte(`{"a": 1}`), nil)
		for err == nil && !s.Done() {
			if len(facts) > 2*p.Len()+len(s.edges) {
				t.Fatal("more facts than nodes")
			}
			s, facts, err = p.End(t.Context(), s, s.Active()[0], ToolOutput(`{"x": 1}`))
		}
		var failure *Failure
		if err != nil && !errors.As(err, &failure) {
			t.Fatalf("%s\nruns into %v", doc, err)
		}
		if err == nil {
			if out, err := p.Output(s); err != nil || !json.Valid(out) {
				t.Fatalf("%s\nleaves %s, %v", doc, out, err)
			}
		}
	})
}

func ExampleValidate() {
	r, _ := Validate(context.Background(), "definition", json.RawMessage(`{
		"nodes": [{"id": "ask", "type": "gate"}, {"id": "wait", "type": "delay", "seconds": 60}],
		"edges": [{"from": "ask", "to": "wait"}, {"from": "wait", "to": "ask"}]
	}`))
	for _, f := range r.Faults {
		fmt.Println(f.Path + ": " + f.Message)
	}
	// Output:
	// definition.nodes[0].title: required
	// definition.edges[1]: closes a cycle: ask → wait → ask
}

func BenchmarkParse(b *testing.B) {
	doc := full(b)
	for b.Loop() {
		if _, _, err := Parse(b.Context(), "definition", doc); err != nil {
			b.Fatal(err)
		}
	}
}
