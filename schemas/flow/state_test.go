package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/check/checktest"
	"agentsvc/schemas/lifecycle"
)

func plan(t testing.TB, doc string) *Plan {
	t.Helper()
	p, _, err := Parse(t.Context(), "definition", json.RawMessage(doc))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// told writes facts as "+a" for started, "a=text" for ended, "-a" for skipped.
func told(p *Plan, facts []Fact) string {
	var out []string
	for _, f := range facts {
		id := p.Node(f.Node).ID
		switch f.Status {
		case Active:
			out = append(out, "+"+id)
		case Ended:
			out = append(out, id+"="+f.Output.Text)
		case Skipped:
			out = append(out, "-"+id)
		}
	}
	return strings.Join(out, " ")
}

// The sample of docs: what each thing that happens leads to.
func TestARunOfTheFullDefinition(t *testing.T) {
	p := plan(t, string(full(t)))
	s, facts, err := p.Start(t.Context(), json.RawMessage(`{"message": "It broke", "order": "o-7"}`), map[string]json.RawMessage{"limit": json.RawMessage(`10`)})
	end := func(id string, out Output) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := p.Index(id)
		if !ok {
			t.Fatal(id)
		}
		s, facts, err = p.End(t.Context(), s, n, out)
	}
	expect := func(want string, inputs ...string) {
		t.Helper()
		if err != nil || told(p, facts) != want {
			t.Fatalf("got %s, %v\nwant %s", told(p, facts), err, want)
		}
		for _, f := range facts {
			if f.Status == Active && len(inputs) > 0 {
				if string(f.Input) != inputs[0] {
					t.Errorf("%s works with %s, want %s", p.Node(f.Node).ID, f.Input, inputs[0])
				}
				inputs = inputs[1:]
			}
		}
	}
	expect("+classify", `{"text":"Classify this complaint: It broke"}`)
	end("classify", Output{Text: "a refund", JSON: json.RawMessage(`{"kind": "refund", "amount": 50}`)})
	expect("classify=a refund +remember remember= +route route=ask +approve -check",
		`{"values":{"kind":"refund","amount":50}}`, `{"expression":"variables.kind == 'refund' && variables.amount <= variables.limit ? 'refund' : variables.kind == 'refund' ? 'ask' : 'answer'"}`,
		`{"title":"Refund 50 EUR for order o-7?"}`)
	if facts[len(facts)-2].Text != "Refund 50 EUR for order o-7?" {
		t.Error(facts[len(facts)-2].Text)
	}
	end("approve", Output{})
	expect("approve= +refund", `{"order":"o-7","amount":50,"note":["kind refund"]}`)
	end("refund", ToolOutput(`{"id": 1}`))
	expect(`refund={"id": 1} +settled`, `{"event":"settled-o-7"}`)
	end("settled", EventOutput(json.RawMessage(`{"at": "now"}`)))
	expect("settled= +rest", `{"seconds":1.5}`)
	end("rest", Output{})
	expect("rest= +answer", `"Write the answer. The refund: {\"id\": 1}"`)
	if s.Done() || len(s.Active()) != 1 {
		t.Error("the run is done too early")
	}
	end("answer", Output{Text: "Done"})
	expect("answer=Done")
	if !s.Done() || len(s.Active()) != 0 {
		t.Error("the run is not done")
	}
	out, err := p.Output(s)
	want := `{"outputs":{"answer":{"text":"Done","child_run_id":null},"approve":{"text":"","child_run_id":null},"classify":{"text":"a refund","child_run_id":null,"json":{"kind":"refund","amount":50}},` +
		`"refund":{"text":"{\"id\": 1}","child_run_id":null,"json":{"id":1}},"remember":{"text":"","child_run_id":null},"rest":{"text":"","child_run_id":null},` +
		`"route":{"text":"ask","child_run_id":null,"json":"ask"},"settled":{"text":"","child_run_id":null,"json":{"at":"now"}}},"variables":{"amount":50,"currency":"EUR","kind":"refund","limit":10}}`
	if err != nil || string(out) != want {
		t.Errorf("got  %s, %v\nwant %s", out, err, want)
	}
}

// Edges and the join, sentence by sentence (open-parts.md, Workflows).
func TestEdges(t *testing.T) {
	cond := func(e string, edges ...string) string {
		var out []string
		for _, w := range edges {
			id, when, _ := strings.Cut(w, " ")
			if when != "" {
				when = `, "when": ` + when
			}
			out = append(out, fmt.Sprintf(`{"from": "c", "to": %q%s}`, id, when))
		}
		return `{"nodes": [{"id": "c", "type": "condition", "expression": "` + e + `"},` + delays("a b d") + `], "edges": [` + strings.Join(append(out, `{"from": "a", "to": "d"}`, `{"from": "b", "to": "d"}`), ",") + `]}`
	}
	after := func(when string) string {
		return `{"nodes": [{"id": "s", "type": "set", "values": {"x": 1}},` + delays("a") + `], "edges": [{"from": "s", "to": "a", "when": "` + when + `"}]}`
	}
	for _, c := range []struct{ name, doc, want string }{
		{"the edges whose when equals the result", cond("input.x > 1", `a "true"`, `b "false"`), "+c c=true +a -b"},
		{"the other one", cond("input.x > 5", `a "true"`, `b "false"`), "+c c=false -a +b"},
		{"a boolean as when", cond("input.x > 5", `a true`, `b false`), "+c c=false -a +b"},
		{"texts", cond("input.t", `a "'yes'"`, `b "'no'"`), "+c c=yes +a -b"},
		{"numbers of two types", cond("input.x", `a "2"`, `b "2.5"`), "+c c=2 +a -b"},
		{"when can be computed", cond("input.x", `a "input.y - 1"`, `b "input.y"`), "+c c=2 +a -b"},
		{"several edges are taken", cond("input.x", `a "2"`, `b "1 + 1"`), "+c c=2 +a +b"},
		{"no edge is taken", cond("input.x", `a "7"`, `b "8"`), "+c c=2 -a -b -d"},
		{"another type never equals", cond("input.x", `a "'2'"`, `b "true"`), "+c c=2 -a -b -d"},
		{"lists", cond("input.l", `a "[1, 2]"`, `b "[]"`), "+c c=[1,2] +a -b"},
		{"null", cond("input.n", `a "null"`, `b "false"`), "+c c=null +a -b"},
		{"without when always", cond("input.x", `a`, `b "7"`), "+c c=2 +a -b"},
		{"when sees the condition's output", cond("input.t", `a "nodes.c.text"`, `b "'no'"`), "+c c=yes +a -b"},
		{"behind other nodes a boolean", after("variables.x == 1"), "+s s= +a"},
		{"that is false", after("variables.x == 2"), "+s s= -a"},
	} {
		p := plan(t, c.doc)
		_, facts, err := p.Start(t.Context(), json.RawMessage(`{"x": 2, "y": 3, "t": "yes", "l": [1, 2.0], "n": null}`), nil)
		if c.name == "lists" {
			c.want = "+c c=[1, 2.0] +a -b"
		}
		if got := told(p, facts); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v; want %s", c.name, got, err, c.want)
		}
	}
}

func TestTheJoin(t *testing.T) {
	// d waits for both branches; it starts although b's branch was skipped.
	p := plan(t, `{"nodes": [`+delays("a b c d e")+`], "edges": [{"from": "a", "to": "b", "when": "nodes.a.text == 'b'"}, {"from": "a", "to": "c"}, {"from": "b", "to": "d"}, {"from": "c", "to": "d"}, {"from": "b", "to": "e"}]}`)
	s, facts, err := p.Start(t.Context(), nil, nil)
	if err != nil || told(p, facts) != "+a" {
		t.Fatal(told(p, facts), err)
	}
	skip, facts, err := p.End(t.Context(), s, 0, Output{Text: "x"})
	if err != nil || told(p, facts) != "a=x -b +c -e" {
		t.Fatal(told(p, facts), err)
	}
	skip, facts, err = p.End(t.Context(), skip, 2, Output{})
	if err != nil || told(p, facts) != "c= +d" || skip.Status(1) != Skipped || skip.Status(3) != Active {
		t.Fatal(told(p, facts), err)
	}
	// the old state is as it was: the same decision again, and another one
	both, facts, err := p.End(t.Context(), s, 0, Output{Text: "b"})
	if err != nil || told(p, facts) != "a=b +b +c" {
		t.Fatal(told(p, facts), err)
	}
	both, facts, err = p.End(t.Context(), both, 1, Output{})
	if err != nil || told(p, facts) != "b= +e" || both.Status(3) != Pending {
		t.Fatal(told(p, facts), err)
	}
	if _, _, err := p.End(t.Context(), both, 1, Output{}); !errors.Is(err, ErrNotActive) {
		t.Error("a node ends twice:", err)
	}
	if _, _, err := p.End(t.Context(), both, 3, Output{}); !errors.Is(err, ErrNotActive) {
		t.Error("a pending node ends:", err)
	}
	if _, _, err := p.End(t.Context(), both, 99, Output{}); !errors.Is(err, ErrNotActive) {
		t.Error("an unknown node ends:", err)
	}
}

// A decision that is made and not committed leaves the variables as they were.
func TestVariablesOfAnOldStateStay(t *testing.T) {
	p := plan(t, `{"variables": {"x": 1}, "nodes": [`+delays("a")+`, {"id": "s", "type": "set", "values": {"x": "{{nodes.a.text}}", "y": 2}}], "edges": [{"from": "a", "to": "s"}]}`)
	old, _, err := p.Start(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		s, _, err := p.End(t.Context(), old, 0, Output{Text: text})
		if err != nil || string(s.Variables()["x"]) != `"`+text+`"` || len(s.Variables()) != 2 {
			t.Error(s.Variables(), err)
		}
		if len(old.Variables()) != 1 || string(old.Variables()["x"]) != "1" || len(p.Outputs(old)) != 0 || old.Status(0) != Active {
			t.Errorf("the old state is changed: %s, %v", old.Variables(), p.Outputs(old))
		}
	}
	if string(p.Definition().Variables["x"]) != "1" {
		t.Error("the definition is changed")
	}
}

// A chain of 50 set and condition nodes is one decision.
func TestAChainWithoutIOIsOneDecision(t *testing.T) {
	p := plan(t, chain(50))
	s, facts, err := p.Start(t.Context(), json.RawMessage(`{"n": 1}`), nil)
	if err != nil || !s.Done() || len(facts) != 100 {
		t.Fatalf("%d facts, done %v, %v", len(facts), s.Done(), err)
	}
	if got := string(s.Variables()["v48"]); got != `"1........................"` {
		t.Error(got)
	}
}

// chain alternates set and condition nodes.
func chain(n int) string {
	var nodes, edges []string
	for i := range n {
		if i%2 == 0 {
			v := "{{input.n}}"
			if i > 0 {
				v = fmt.Sprintf("{{variables.v%d}}.", i-2)
			}
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "set", "values": {"v%d": %q}}`, i, i, v))
		} else {
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "condition", "expression": "has(variables.v%d)"}`, i, i-1))
		}
		if i > 0 {
			when := ""
			if i%2 == 0 {
				when = `, "when": "true"`
			}
			edges = append(edges, fmt.Sprintf(`{"from": "n%d", "to": "n%d"%s}`, i-1, i, when))
		}
	}
	return `{"nodes": [` + strings.Join(nodes, ",") + `], "edges": [` + strings.Join(edges, ",") + `]}`
}

func TestFailures(t *testing.T) {
	double := func(n int) string {
		var nodes, edges []string
		for i := range n {
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "set", "values": {"x": "{{variables.x}}{{variables.x}}"}}`, i))
			if i > 0 {
				edges = append(edges, fmt.Sprintf(`{"from": "n%d", "to": "n%d"}`, i-1, i))
			}
		}
		return `{"nodes": [` + strings.Join(nodes, ",") + `], "edges": [` + strings.Join(edges, ",") + `], "variables": {"x": "xx"}}`
	}
	for _, c := range []struct {
		name, doc string
		code      lifecycle.Failure
		message   string
		facts     string
	}{
		{"an expression fails", `{"nodes": [{"id": "s", "type": "set", "values": {}}, {"id": "c", "type": "condition", "expression": "input.x.y > 1"}], "edges": [{"from": "s", "to": "c"}]}`,
			lifecycle.FailExpression, "node c: input.x.y > 1: no such key: x", "+s s= +c"},
		{"a when fails", `{"nodes": [{"id": "s", "type": "set", "values": {}},` + delays("a") + `], "edges": [{"from": "s", "to": "a", "when": "input.x"}]}`,
			lifecycle.FailExpression, "node s: input.x: no such key: x", "+s"},
		{"a when is no boolean", `{"nodes": [{"id": "s", "type": "set", "values": {}},` + delays("a") + `], "edges": [{"from": "s", "to": "a", "when": "input.one"}]}`,
			lifecycle.FailExpression, "node s: when input.one: the result is not a boolean", "+s"},
		{"a result is no JSON", one(`{"id": "c", "type": "condition", "expression": "input.one / 0.0"}`), lifecycle.FailExpression, "node c: expression has a result that is no JSON value", "+c"},
		{"an expression costs too much", one(`{"id": "c", "type": "condition", "expression": "input.l.all(a, input.l.all(b, input.l.all(c, a == b)))"}`),
			lifecycle.FailExpression, "costs too much", "+c"},
		{"the name of an event grows", one(`{"id": "w", "type": "wait_event", "event": "{{input}}"}`), lifecycle.FailLimitExceeded, "node w: renders to a name of an event that is too long", "+w"},
		{"a template doubles", double(200), lifecycle.FailLimitExceeded, "renders to more than the limit of one node", ""},
	} {
		p := plan(t, c.doc)
		var s State
		var facts []Fact
		var err error
		input := json.RawMessage(`{"one": 1, "l": [` + strings.TrimSuffix(strings.Repeat("1,", 500), ",") + `]}`)
		if grew := checktest.Grows(func() { s, facts, err = p.Start(t.Context(), input, nil) }); grew > checktest.Most {
			t.Errorf("%s: takes %d MB", c.name, grew>>20)
		}
		var f *Failure
		if !errors.As(err, &f) || f.Code != c.code || !strings.Contains(f.Message, c.message) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if s.Status(f.Node) != Active {
			t.Errorf("%s: the failed node has the status %c", c.name, s.Status(f.Node))
		}
		if c.facts != "" && told(p, facts) != c.facts {
			t.Errorf("%s: %s", c.name, told(p, facts))
		}
	}
	p := plan(t, one(`{"id": "g", "type": "gate", "title": "{{input}}"}`))
	if _, facts, err := p.Start(t.Context(), json.RawMessage(`"`+strings.Repeat("é", 5_000)+`"`), nil); err != nil || facts[0].Text != strings.Repeat("é", 4_000)+"…" {
		t.Errorf("a long title is not cut: %d bytes, %v", len(facts[0].Text), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := plan(t, one(`{"id": "c", "type": "condition", "expression": "true"}`)).Start(ctx, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

// mostOfDecision bounds the work of one decision, several times what its budget takes.
const mostOfDecision = 250

// TestARunIsBounded: definitions and data that are made to be expensive.
func TestARunIsBounded(t *testing.T) {
	const long = 1 << 20
	fan := func(node string, n int) string {
		var nodes []string
		for i := range n {
			nodes = append(nodes, strings.ReplaceAll(node, "#", fmt.Sprint(i)))
		}
		return one(strings.Join(nodes, ","))
	}
	var refs []string
	for i := range 15_000 {
		refs = append(refs, fmt.Sprintf("{{input.k%d}}", i))
	}
	members := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"k%d":0`, i)
		}
		return `{` + b.String()[1:] + `}`
	}
	for name, c := range map[string]struct{ doc, input, fails string }{
		"a long text many times":       {one(`{"id": "s", "type": "set", "values": {"x": "` + strings.Repeat("{{input}}", 20_000) + `"}}`), `"` + strings.Repeat("x", long) + `"`, "renders to more than the limit of one node"},
		"a long text in every node":    {fan(`{"id": "s#", "type": "set", "values": {"x#": "{{input}}"}}`, 200), `"` + strings.Repeat("x", long) + `"`, "leaves more data than a run can hold"},
		"one variable over and over":   {fan(`{"id": "s#", "type": "set", "values": {"x": "{{input}}"}}`, 200), `"` + strings.Repeat("x", long) + `"`, "leaves more data than a run can hold"},
		"calls that work with much":    {fan(`{"id": "t#", "type": "tool", "tool": "a.b", "args": {"x": "{{input}}"}}`, 200), `"` + strings.Repeat("x", long) + `"`, "leaves more data than a run can hold"},
		"people who see much":          {fan(`{"id": "g#", "type": "gate", "title": "x"}`, 200), `"` + strings.Repeat("x", long) + `"`, "leaves more data than a run can hold"},
		"many paths into an object":    {one(`{"id": "s", "type": "set", "values": {"x": "` + strings.Join(refs, "") + `"}}`), members(100_000), ""},
		"one path in every node":       {fan(`{"id": "s#", "type": "set", "values": {"x": "{{input.k#}}"}}`, 200), members(100_000), ""},
		"all variables in every node":  {fan(`{"id": "s#", "type": "set", "values": {"x#": "{{variables}}"}}`, 200), `1`, "renders to more than the limit of one node"},
		"expensive expressions":        {fan(`{"id": "c#", "type": "condition", "expression": "input.all(a, input.all(b, input.all(c, a == b)))"}`, 200), `[` + strings.Repeat("1,", 90) + `1]`, "costs too much"},
		"a deep value":                 {one(`{"id": "s", "type": "set", "values": {"x": "{{input` + strings.Repeat(".0", 30) + `}} {{input}}"}}`), strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000), ""},
		"a list of many":               {one(`{"id": "s", "type": "set", "values": {"x": "{{input.1000000}}"}}`), `[` + strings.Repeat("1,", 1<<20) + `1]`, "takes too much work together with the nodes before it"},
		"a text that grows by escapes": {one(`{"id": "s", "type": "set", "values": {"x": "a{{variables.y}}"}}`), `1`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(t, c.doc)
			var s State
			var err error
			var work float64
			grew := checktest.Grows(func() {
				work = checktest.Work(func() {
					s, _, err = p.Start(t.Context(), json.RawMessage(c.input), map[string]json.RawMessage{"y": json.RawMessage(`["` + strings.Repeat(`\\`, long/4) + `"]`)})
				})
			})
			t.Logf("work %.1f, %d MB, %v", work, grew>>20, err)
			if grew > checktest.Most || work > mostOfDecision {
				t.Errorf("takes %d MB and the work %.1f", grew>>20, work)
			}
			var f *Failure
			if err != nil && (!errors.As(err, &f) || c.fails == "" || !strings.Contains(f.Message, c.fails)) || err == nil && c.fails != "" {
				t.Errorf("ends with %v, want %q", err, c.fails)
			}
			if n := s.bytes; n > MaxData+MaxRendered {
				t.Errorf("%d bytes of data", n)
			}
		})
	}
}

// A value that nodes wrap again and again stays so shallow that every document can hold it, and so does
// what a tool answers.
func TestNestingIsBounded(t *testing.T) {
	wrapped := func(n int) string {
		nodes, edges := []string{`{"id": "s0", "type": "set", "values": {"v": 1}}`}, []string{}
		for i := 1; i <= n; i++ {
			nodes = append(nodes, fmt.Sprintf(`{"id": "s%d", "type": "set", "values": {"v": %s"{{variables.v}}"%s}}`, i, strings.Repeat("[", 59), strings.Repeat("]", 59)))
			edges = append(edges, fmt.Sprintf(`{"from": "s%d", "to": "s%d"}`, i-1, i))
		}
		return `{"nodes": [` + strings.Join(nodes, ",") + `], "edges": [` + strings.Join(edges, ",") + `]}`
	}
	tooDeep := func(err error) bool {
		var f *Failure
		return errors.As(err, &f) && f.Code == lifecycle.FailLimitExceeded && strings.Contains(f.Message, "nests deeper than 500 levels")
	}
	if s, _, err := plan(t, wrapped(8)).Start(t.Context(), nil, nil); err != nil || !s.Done() {
		t.Errorf("eight times: %v", err)
	}
	s, facts, err := plan(t, wrapped(170)).Start(t.Context(), nil, nil)
	if !tooDeep(err) || len(s.Active()) != 1 || facts[len(facts)-1].Node != s.Active()[0] {
		t.Errorf("170 times: %v", err)
	}
	p := plan(t, one(`{"id": "t", "type": "tool", "tool": "x"}`))
	for depth, fails := range map[int]bool{500: false, 501: true, 9_999: true} {
		s, _, err := p.Start(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = p.End(t.Context(), s, 0, ToolOutput(strings.Repeat("[", depth)+strings.Repeat("]", depth))); (err != nil) != fails || fails && !tooDeep(err) {
			t.Errorf("an answer of %d levels: %v", depth, err)
		}
	}
}

// The output of a run is as large as what it holds, whatever that means in HTML.
func TestTheOutputIsNotEscaped(t *testing.T) {
	p := plan(t, one(`{"id": "t", "type": "tool", "tool": "x"}`))
	s, _, err := p.Start(t.Context(), nil, map[string]json.RawMessage{"v": json.RawMessage(`"<&>"`)})
	if err != nil {
		t.Fatal(err)
	}
	if s, _, err = p.End(t.Context(), s, 0, ToolOutput(`["<&>"]`)); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Output(s); err != nil || string(got) != `{"outputs":{"t":{"text":"[\"<&>\"]","child_run_id":null,"json":["<&>"]}},"variables":{"v":"<&>"}}` {
		t.Errorf("%s, %v", got, err)
	}
}

// Arguments that a stored definition leaves out, or gives as null, are none.
func TestNoArguments(t *testing.T) {
	for _, args := range []string{``, `, "args": null`, `, "args": {}`} {
		p, err := Load(json.RawMessage(one(`{"id": "t", "type": "tool", "tool": "x"` + args + `}`)))
		if err != nil {
			t.Fatal(err)
		}
		if _, facts, err := p.Start(t.Context(), nil, nil); err != nil || string(facts[0].Input) != `{}` {
			t.Errorf("%q: %s, %v", args, facts[0].Input, err)
		}
	}
}

// TestTheSizeOfARun: everything that is stored of a run counts, also after it is overwritten, and a
// run that was stored without its size goes on.
func TestTheSizeOfARun(t *testing.T) {
	p := plan(t, `{"nodes": [{"id": "a", "type": "set", "values": {"x": "abc"}}, {"id": "b", "type": "set", "values": {"x": "d"}}, {"id": "g", "type": "gate", "title": "hi"},
		{"id": "d", "type": "delay", "seconds": 1}], "edges": [{"from": "a", "to": "b"}], "variables": {"x": 1}}`)
	s, _, err := p.Start(t.Context(), json.RawMessage(`"in"`), map[string]json.RawMessage{"y": json.RawMessage("22")})
	want := len(`"in"`) + len(`x1`) + len(`y22`) + len(`{"values":{"x":"abc"}}`) + len(`{"values":{"x":"d"}}`) + len(`{"title":"hi"}`) + len(`"in"`) + len(`{"seconds":1}`)
	if err != nil || s.bytes != want {
		t.Fatalf("%d bytes instead of %d, %v", s.bytes, want, err)
	}
	data := Data{s.Input(), s.Variables(), p.Outputs(s)}
	if again, err := p.Resume(s.Progress(), data); err != nil || again.bytes != want {
		t.Errorf("resumed with %d bytes, %v", again.bytes, err)
	}
	if again, err := p.Resume("eeaa/t", data); err != nil || again.bytes == 0 || again.Status(3) != Active {
		t.Errorf("resumed without a size: %+v, %v", again, err)
	}
	for _, bad := range []string{"eeaa/t/x", "eeaa/tt/1", "eeaa//1", ""} {
		if _, err := p.Resume(bad, data); err == nil {
			t.Errorf("%q is resumed", bad)
		}
	}
	if s, _, err = p.End(t.Context(), s, 2, Output{Text: "four"}); err != nil || s.bytes != want+4 {
		t.Errorf("%d bytes after an output, %v", s.bytes, err)
	}
}

// TestAQuickPlan: it decides as the plan does, or not at all.
func TestAQuickPlan(t *testing.T) {
	simple := plan(t, chain(50))
	s, facts, err := simple.Start(t.Context(), json.RawMessage(`{"n": 1}`), nil)
	quick, told, failed := simple.Quick().Start(t.Context(), json.RawMessage(`{"n": 1}`), nil)
	if err != nil || failed != nil || !reflect.DeepEqual(s, quick) || !reflect.DeepEqual(facts, told) {
		t.Errorf("%v and %v", err, failed)
	}
	for name, node := range map[string]string{
		"an expression": `{"id": "c", "type": "condition", "expression": "input.all(a, input.all(b, a == b))"}`,
		"a template":    `{"id": "s", "type": "set", "values": {"x": "` + strings.Repeat("{{input.200}}", 400) + `"}}`,
	} {
		p, input := plan(t, one(node)), json.RawMessage(`[`+strings.Repeat("1,", 200)+`1]`)
		if name == "a template" {
			input = json.RawMessage(`["` + strings.Repeat("x", 1<<20) + `",` + strings.Repeat("1,", 200) + `1]`)
		}
		if _, _, err := p.Start(t.Context(), input, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := p.Quick().Start(t.Context(), input, nil); !errors.Is(err, ErrSlow) {
			t.Errorf("%s is quick: %v", name, err)
		}
	}
}

// random makes a definition of delay, set and condition nodes. Its edges have conditions on what their source leaves,
// so that every subset of edges can be taken. left says what node i leaves: the text of a delay when it ends, the
// value of the variable v<i>, or the result of a condition. The latter two read it from the input.
func random(r *rand.Rand) (doc string, left []string, input json.RawMessage) {
	n := 1 + r.IntN(20)
	results := []string{"1", "2", "'one'", "true", "false"}
	var nodes, edges []string
	order := r.Perm(n)
	values := map[string]string{}
	types := make([]NodeType, n)
	for i := range n {
		types[i] = []NodeType{Delay, Set, Condition}[r.IntN(3)]
		text := ""
		for j := range n {
			if r.IntN(2) == 0 {
				text += fmt.Sprintf("<%d>", j)
			}
		}
		key := fmt.Sprintf("k%d", i)
		switch types[i] {
		case Set:
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "set", "values": {"v%d": "{{input.%s}}"}}`, i, i, key))
			values[key] = fmt.Sprintf("%q", text)
		case Condition:
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "condition", "expression": "input.%s"}`, i, key))
			text = results[r.IntN(len(results))]
			values[key] = strings.ReplaceAll(text, "'", `"`)
		default:
			nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "delay", "seconds": 1}`, i))
		}
		left = append(left, text)
	}
	for i := range n {
		for j := i + 1; j < n && len(edges) < MaxEdges; j++ {
			if r.IntN(n) > 3 {
				continue
			}
			when := ""
			if r.IntN(3) > 0 {
				when = map[NodeType]string{
					Delay:     fmt.Sprintf("nodes.n%d.text.contains('<%d>')", order[i], order[j]),
					Set:       fmt.Sprintf("variables.v%d.contains('<%d>')", order[i], order[j]),
					Condition: results[r.IntN(len(results))],
				}[types[order[i]]]
				when = fmt.Sprintf(`, "when": %q`, when)
			}
			edges = append(edges, fmt.Sprintf(`{"from": "n%d", "to": "n%d"%s}`, order[i], order[j], when))
		}
	}
	for key, v := range values {
		input = fmt.Appendf(input, `,%q:%s`, key, v)
	}
	if len(values) > 0 {
		input = input[1:]
	}
	return `{"nodes": [` + strings.Join(nodes, ",") + `], "edges": [` + strings.Join(edges, ",") + `]}`, left, json.RawMessage("{" + string(input) + "}")
}

// naive is the second implementation: it derives the status of every node from the sentences,
// again and again until nothing changes. It knows no order and keeps nothing. ended are the
// delays that have ended.
func naive(p *Plan, left []string, ended map[int]bool) []Status {
	d := p.Definition()
	status := make([]Status, len(d.Nodes))
	for i := range status {
		status[i] = Pending
	}
	for changed := true; changed; {
		changed = false
		for i, n := range d.Nodes {
			all, any, incoming := true, false, 0
			for _, e := range d.Edges {
				if e.To != n.ID {
					continue
				}
				incoming++
				from := slices.IndexFunc(d.Nodes, func(f Node) bool { return f.ID == e.From })
				settled := status[from] == Ended || status[from] == Skipped
				all = all && settled
				takes := e.When == "" || strings.Contains(left[from], fmt.Sprintf("<%d>", i))
				if d.Nodes[from].Type == Condition {
					takes = e.When == "" || string(e.When) == left[from]
				}
				any = any || takes && status[from] == Ended
			}
			now := Pending
			switch {
			case !all:
			case incoming > 0 && !any:
				now = Skipped
			default:
				now = Ended
				if n.Type == Delay && !ended[i] {
					now = Active
				}
			}
			if now != status[i] {
				status[i], changed = now, true
			}
		}
	}
	return status
}

// TestTheWalkAgreesWithTheSentences: over random graphs, outcomes and orders. Each node is
// told at most once as started, ended and skipped, and only after all before it have ended or are skipped; a state
// that is stored and resumed goes on alike; whatever the order, the run ends with the same statuses, and with the
// variables of the set nodes that have run.
func TestTheWalkAgreesWithTheSentences(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	skipped, joins := map[NodeType]int{}, map[NodeType]int{}
	for range 200 {
		doc, left, input := random(r)
		p := plan(t, doc)
		var final []Status
		for range 3 {
			s, facts, err := p.Start(t.Context(), input, nil)
			ended := map[int]bool{}
			seen := map[string]bool{}
			for {
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range facts {
					key := fmt.Sprintf("%c%d", f.Status, f.Node)
					if seen[key] || f.Status == Ended && !seen[fmt.Sprintf("a%d", f.Node)] || f.Status == Skipped && seen[fmt.Sprintf("a%d", f.Node)] {
						t.Fatalf("%s is told out of turn\n%s", key, doc)
					}
					for _, e := range p.nodes[f.Node].in {
						if from := p.edges[e].from; !seen[fmt.Sprintf("e%d", from)] && !seen[fmt.Sprintf("s%d", from)] {
							t.Fatalf("%s is told before node %d is settled\n%s", key, from, doc)
						}
					}
					seen[key] = true
				}
				if want := naive(p, left, ended); !slices.Equal(s.nodes, want) {
					t.Fatalf("the nodes are %c, should be %c\n%s", s.nodes, want, doc)
				}
				if s.Done() != (len(s.Active()) == 0) {
					t.Fatal("Done and Active differ")
				}
				if s.Done() {
					break
				}
				if r.IntN(2) == 0 {
					again, err := p.Resume(s.Progress(), Data{s.Input(), s.Variables(), p.Outputs(s)})
					if err != nil || !reflect.DeepEqual(again, s) {
						t.Fatalf("resumed as %+v, %v\nwas %+v", again, err, s)
					}
					s = again
				}
				active := s.Active()
				n := active[r.IntN(len(active))]
				ended[n] = true
				s, facts, err = p.End(t.Context(), s, n, Output{Text: left[n]})
			}
			for i, st := range s.nodes {
				kind := p.Node(i).Type
				if v, ok := s.Variables()[fmt.Sprintf("v%d", i)]; ok != (st == Ended && kind == Set) || ok && string(v) != fmt.Sprintf("%q", left[i]) {
					t.Fatalf("node %d is %c and has the variable %s\n%s", i, st, v, doc)
				}
				if st != Ended && st != Skipped {
					t.Fatalf("node %d is left %c\n%s", i, st, doc)
				}
				if st == Skipped {
					skipped[kind]++
				}
				if len(p.nodes[i].in) > 1 && st == Ended {
					joins[kind]++
				}
			}
			if final != nil && !slices.Equal(final, s.nodes) {
				t.Fatalf("another order leads to %c instead of %c\n%s", s.nodes, final, doc)
			}
			final = s.nodes
		}
	}
	for _, kind := range []NodeType{Delay, Set, Condition} {
		if skipped[kind] < 100 || joins[kind] < 100 {
			t.Errorf("only %d skipped nodes and %d joins are of the type %s: the law is void", skipped[kind], joins[kind], kind)
		}
	}
}

// TestOneCycleForEachRandomGraph: Validate finds a cycle exactly where a depth-first search
// does, and the way that it tells is one.
func TestCyclesOfRandomGraphs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	found := 0
	for range 500 {
		n := 1 + r.IntN(12)
		var ids, edges []string
		next := map[string][]string{}
		for i := range n {
			ids = append(ids, fmt.Sprintf("n%d", i))
		}
		for range r.IntN(2 * n) {
			from, to := ids[r.IntN(n)], ids[r.IntN(n)]
			edges = append(edges, from+">"+to)
			next[from] = append(next[from], to)
		}
		var reaches func(from, to string, seen map[string]bool) bool
		reaches = func(from, to string, seen map[string]bool) bool {
			for _, x := range next[from] {
				if x == to || !seen[x] && func() bool { seen[x] = true; return reaches(x, to, seen) }() {
					return true
				}
			}
			return false
		}
		cyclic := slices.ContainsFunc(ids, func(id string) bool { return reaches(id, id, map[string]bool{}) })
		told := 0
		for _, f := range validate(t, def(strings.Join(ids, " "), strings.Join(edges, " "))).Faults {
			way, ok := strings.CutPrefix(f.Message, "closes a cycle: ")
			if !ok {
				continue
			}
			told++
			steps := strings.Split(way, " → ")
			for i := range len(steps) - 1 {
				if !slices.Contains(next[steps[i]], steps[i+1]) {
					t.Fatalf("%s: there is no edge %s > %s", edges, steps[i], steps[i+1])
				}
			}
			if steps[0] != steps[len(steps)-1] {
				t.Fatalf("%s is no cycle", way)
			}
		}
		if cyclic != (told > 0) {
			t.Fatalf("%s: cyclic %v, %d told", edges, cyclic, told)
		}
		if cyclic {
			found++
		}
	}
	if found < 50 {
		t.Errorf("only %d graphs have a cycle: the law is void", found)
	}
}

func TestResumeRefusesWhatDoesNotFit(t *testing.T) {
	p := plan(t, def("a b", "a>b"))
	for _, bad := range []string{"", "ap/", "ap/-t", "apx-", "xp/-", "ap/x", "ap"} {
		if _, err := p.Resume(bad, Data{}); err == nil {
			t.Errorf("%q is resumed", bad)
		}
	}
}

// A definition that a rule of today refuses goes on, if it was stored.
func TestStoredDefinitionsAreNotJudgedAgain(t *testing.T) {
	var nodes []string
	for i := range MaxNodes + 50 {
		nodes = append(nodes, fmt.Sprintf(`{"id": "n%d", "type": "delay", "seconds": -1, "later": true}`, i))
	}
	p, err := Load(json.RawMessage(one(strings.Join(nodes, ","))))
	if err != nil {
		t.Fatal(err)
	}
	if s, _, err := p.Start(t.Context(), nil, nil); err != nil || len(s.Active()) != MaxNodes+50 {
		t.Error(err)
	}
	for _, bad := range []string{`[]`, def("a a", ""), def("a", "a>b"), one(`{"id": "a", "type": "loop"}`), one(`{"id": "a", "type": "wait_event", "event": "{{"}`)} {
		if _, err := Load(json.RawMessage(bad)); err == nil {
			t.Errorf("%s is loaded", bad)
		}
	}
}

// open-parts.md, Workflows, and Gate and human task.
func TestOutputs(t *testing.T) {
	for _, c := range []struct {
		name string
		got  Output
		want Output
	}{
		{"a tool's text", ToolOutput("hello"), Output{Text: "hello"}},
		{"a tool's JSON", ToolOutput(` {"a": 1} `), Output{Text: ` {"a": 1} `, JSON: json.RawMessage(`{"a":1}`)}},
		{"a tool's number", ToolOutput("42"), Output{Text: "42", JSON: json.RawMessage("42")}},
		{"a tool's silence", ToolOutput(""), Output{}},
		{"an object as payload", EventOutput(json.RawMessage(`{"a": 1}`)), Output{JSON: json.RawMessage(`{"a": 1}`)}},
		{"a text as payload", EventOutput(json.RawMessage(`"a\n"`)), Output{Text: "a\n"}},
		{"a number as payload", EventOutput(json.RawMessage(`1.50`)), Output{Text: "1.50"}},
		{"a list as payload", EventOutput(json.RawMessage(`[1, 2]`)), Output{Text: "[1,2]"}},
		{"no payload", EventOutput(nil), Output{}},
		{"null as payload", EventOutput(json.RawMessage(`null`)), Output{}},
		{"a person's feedback", HumanOutput("fine", nil), Output{Text: "fine"}},
		{"a person's answer", HumanOutput("", json.RawMessage(`{"ok":true}`)), Output{JSON: json.RawMessage(`{"ok":true}`)}},
	} {
		if !reflect.DeepEqual(c.got, c.want) {
			t.Errorf("%s: %+v", c.name, c.got)
		}
	}
}

// joins is 200 nodes: the first 199 lead to the last, and 200 more edges among them.
func joins() string {
	var ids, edges []string
	for i := range 200 {
		ids = append(ids, fmt.Sprintf("n%d", i))
		if i < 199 {
			edges = append(edges, fmt.Sprintf("n%d>n199", i))
		}
		if i > 0 && i < 199 {
			edges = append(edges, fmt.Sprintf("n%d>n%d", i/2, i))
		}
	}
	return def(strings.Join(ids, " "), strings.Join(edges, " "))
}

// The estimate of a plan's weight is no less than what it takes.
func TestThePlansAreWeighed(t *testing.T) {
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for name, doc := range map[string]func(i int) string{
		"expressions": func(i int) string { return fmt.Sprintf(`{"variables": {"i": %d}, %s`, i, chain(100)[1:]) },
		"nodes":       func(i int) string { return fmt.Sprintf(`{"variables": {"i": %d}, %s`, i, joins()[1:]) },
	} {
		before, kept, weight := heap(), []*Plan{}, 0
		for i := range 20 {
			d := doc(i)
			p, err := Load(json.RawMessage(d))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Start(t.Context(), json.RawMessage(`{"n": 1}`), nil); err != nil {
				t.Fatal(err)
			}
			kept, weight = append(kept, p), weight+p.Weight(len(d))
		}
		grew := heap() - before
		runtime.KeepAlive(kept)
		if grew > weight {
			t.Errorf("%s: plans take %d KB, the estimate is %d KB", name, grew>>10, weight>>10)
		}
		t.Logf("%s: plans take %d KB, the estimate is %d KB", name, grew>>10, weight>>10)
	}
}

func BenchmarkLoad(b *testing.B) {
	for name, doc := range map[string]string{"9 nodes": string(full(b)), "200 nodes": joins()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Load(json.RawMessage(doc)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// One run of 200 nodes that all join: the time of all its decisions.
func BenchmarkRunOf200(b *testing.B) {
	p := plan(b, joins())
	b.ReportAllocs()
	for b.Loop() {
		s, _, err := p.Start(b.Context(), nil, nil)
		for err == nil && !s.Done() {
			s, _, err = p.End(b.Context(), s, s.Active()[0], Output{})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkChainOf50(b *testing.B) {
	p := plan(b, chain(50))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := p.Start(b.Context(), json.RawMessage(`{"n": 1}`), nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkResume200(b *testing.B) {
	p := plan(b, joins())
	s, _, err := p.Start(b.Context(), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	progress := s.Progress()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Resume(progress, Data{}); err != nil {
			b.Fatal(err)
		}
	}
}
