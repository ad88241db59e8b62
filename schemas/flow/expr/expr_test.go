package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"agentsvc/schemas/check/checktest"
)

var sample = Data{
	Input:     []byte(`{"amount": 120.5, "count": 3, "kind": "refund", "big": 9007199254740993, "items": [{"n": 1}, {"n": 2.5}], "none": null, "ok": true, "tags": ["a", "b"]}`),
	Variables: map[string]json.RawMessage{"limit": json.RawMessage(`100`), "name": json.RawMessage(`"Ann"`)},
	Node: func(id string) (string, []byte, bool) {
		switch id {
		case "a":
			return "hello", []byte(`{"x": 1, "list": [1, 2, 3]}`), true
		case "my-node":
			return "hyphen", nil, true
		}
		return "", nil, false
	},
}

func run(t *testing.T, source string, data Data) (string, error) {
	t.Helper()
	x, err := Compile(source)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	v, _, err := x.Eval(t.Context(), data)
	if err != nil {
		return "", err
	}
	out, err := v.JSON(1 << 20)
	return string(out), err
}

// open-parts.md, Workflows: CEL sees input, variables, nodes.<id>.text, nodes.<id>.json; JSON
// numbers compare with integers.
func TestEval(t *testing.T) {
	for _, c := range []struct{ source, want string }{
		{`input.amount > 100`, `true`},
		{`input.count == 3`, `true`},
		{`input.count >= 3 && input.count < 4`, `true`},
		{`3 == input.count`, `true`},
		{`input.count in [1, 2, 3]`, `true`},
		{`input.kind`, `"refund"`},
		{`input`, string(sample.Input)},
		{`input.amount * 2`, `241`},
		{`2 * input.count + 1`, `7`},
		{`input.count / 2`, `1.5`},
		{`7 / 2`, `3`},
		{`-input.count`, `-3`},
		{`input.big == 9007199254740993`, `true`},
		{`input.big`, `9007199254740993`},
		{`input.items[1].n`, `2.5`},
		{`input.items.map(i, i.n)`, `[1,2.5]`},
		{`input.items.filter(i, i.n > 1).size()`, `1`},
		{`input.tags == ['a', 'b']`, `true`},
		{`'a' in input.tags`, `true`},
		{`input.tags + ['c']`, `["a","b","c"]`},
		{`input.map(k, k)`, `["amount","count","kind","big","items","none","ok","tags"]`},
		{`has(input.kind) && !has(input.other)`, `true`},
		{`input.none == null`, `true`},
		{`input.ok ? 'yes' : 'no'`, `"yes"`},
		{`variables.limit < input.amount`, `true`},
		{`variables['name'] + '!'`, `"Ann!"`},
		{`size(variables)`, `2`},
		{`has(variables.other)`, `false`},
		{`nodes.a.text`, `"hello"`},
		{`nodes.a.text.size() == 5`, `true`},
		{`nodes.a.json.x == 1`, `true`},
		{`nodes['my-node'].text`, `"hyphen"`},
		{`nodes['my-node'].json == null`, `true`},
		{`has(nodes.a) && !has(nodes.b)`, `true`},
		{`has(nodes.a.json.x) && !has(nodes.a.json.y)`, `true`},
		{`input.kind.matches('^ref')`, `true`},
		{`matches(input.kind, 'x')`, `false`},
		{`input.kind.startsWith('re') || input.kind.contains('zz')`, `true`},
		{`{'b': 1, 'a': [input.ok]}`, `{"a":[true],"b":1}`},
		{`timestamp('2026-11-24T00:00:00Z') + duration('1h')`, `"2026-11-24T01:00:00Z"`},
		{`timestamp('2026-11-24T05:00:00Z').getHours()`, `5`},
		{`int(input.count) % 2`, `1`},
		{`string(input.count)`, `"3"`},
		{`1.0 / 3.0`, `0.3333333333333333`},
	} {
		got, err := run(t, c.source, sample)
		if err != nil || got != c.want {
			t.Errorf("%s is %s, %v; want %s", c.source, got, err, c.want)
		}
	}
}

func TestEvalFails(t *testing.T) {
	for source, want := range map[string]string{
		`input.other`:           "no such key: other",
		`input.kind > 3`:        "no such overload",
		`nodes.b.text`:          "no such key: b",
		`nodes.a.json.y`:        "no such key: y",
		`input.items[7]`:        "index out of bounds: 7",
		`1 / 0`:                 "division by zero",
		`1.0 / 0.0`:             "no JSON value",
		`b'x'`:                  "no JSON value",
		`{1: 2}`:                "no JSON value",
		`input.kind + 1`:        "no such overload",
		`input.ok + input.ok`:   "no such overload",
		`timestamp(input.kind)`: "refund",
		`input.matches('a')`:    "no such overload",
	} {
		if _, err := run(t, source, sample); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", source, err, want)
		}
	}
}

// Syntax and type errors are found before anything runs.
func TestCompileRefuses(t *testing.T) {
	for source, want := range map[string]string{
		``:                            "must not be empty",
		`input.`:                      "Syntax error",
		`1 +`:                         "Syntax error",
		`1 + 'a'`:                     "found no matching overload",
		`nodes.a.text + 1`:            "found no matching overload",
		`!nodes.a.text`:               "found no matching overload",
		`nodes.a.txet`:                "undefined field 'txet'",
		`refund`:                      "names refund, which is not known",
		`nodes.my-node.text`:          "an id with a hyphen is written nodes['id']",
		`nodes`:                       "must have the id of one node",
		`nodes[input.kind].text`:      "must have the id of one node",
		`nodes.all(n, true)`:          "must have the id of one node",
		`[1].all(input, input > 0)`:   "must not use input, variables or nodes as the name",
		`input.matches(input)`:        "must have a literal as the pattern",
		`input.matches('(')`:          "has a pattern that cannot be used",
		`input.matches('(x|y){900}')`: "too expensive",
		`timestamp('x')`:              "invalid timestamp",
		`timestamp('2026-11-24T05:00:00Z').getHours('Europe/Paris')`: "found no matching overload",
		`now()`:           "names now, which is not known",
		`node{text: 'x'}`: "must not make a value",
		strings.Repeat("(", 60) + "1" + strings.Repeat(")", 60): "nests deeper",
		strings.Repeat("!", 60) + "true":                        "nests deeper",
		"'" + strings.Repeat("x", MaxBytes) + "'":               "at most 4096 bytes",
		"'\xff'": "is not UTF-8",
		`[1].all(a, [1].all(b, [1].all(c, [1].all(d, true))))`: "nesting",
		"1" + strings.Repeat(" + 1", 1020):                     "",
	} {
		_, err := Compile(source)
		var f *Fault
		if !errors.As(err, &f) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", source, err, want)
		}
	}
}

func TestWhatIsKnownBefore(t *testing.T) {
	for source, want := range map[string]Type{
		`input.x`: Any, `1`: Number, `1.5`: Number, `'a'`: Text, `nodes.a.text`: Text, `nodes.a.json`: Any, `input.x > 1`: Bool, `[1]`: List, `{'a': 1}`: Object,
		`null`: Null, `b''`: Other, `variables.x`: Any, `variables`: Object, `input.x ? 1 : 2`: Number,
	} {
		x, err := Compile(source)
		if err != nil || x.Type() != want {
			t.Errorf("%s is %v, %v; want %s", source, x, err, want)
		}
	}
	x, err := Compile(`nodes.a.text == 'x' && has(nodes.b) && nodes['c-d'].json.y == nodes.a.json`)
	if err != nil || fmt.Sprint(x.Nodes()) != "[a b c-d]" {
		t.Errorf("%v, %v", x.Nodes(), err)
	}
}

func TestFaultsHaveAPlace(t *testing.T) {
	_, err := Compile("input.x ==\n  refund")
	var f *Fault
	if !errors.As(err, &f) || f.Offset != 13 {
		t.Errorf("%+v", f)
	}
}

func eval(t testing.TB, ctx context.Context, source string, data Data) error {
	x, err := Compile(source)
	if err != nil {
		t.Fatalf("%s: %v", source, err)
	}
	v, _, err := x.Eval(ctx, data)
	if err == nil {
		_, err = v.JSON(1 << 20)
	}
	return err
}

// Bounds of the work of one expression, several times what the most expensive ones take.
const mostOfExpression, mostOfCompiling = 500, 50

// TestWorkIsBounded: expressions that would take seconds to years end at the limit, with
// little memory.
func TestWorkIsBounded(t *testing.T) {
	numbers := "[" + strings.TrimSuffix(strings.Repeat("0,", 1<<20), ",") + "]"
	text := strings.Repeat("a", 4<<20)
	deep := strings.Repeat(`[`, 9_000) + strings.Repeat(`]`, 9_000)
	data := Data{Input: []byte(`{"list": ` + numbers + `, "list2": ` + numbers + `, "text": "` + text + `", "short": [` + strings.Repeat("1,", 999) + `1], "deep": ` + deep +
		`, "objects": [` + strings.Repeat(`{"":0},`, 200_000) + `{}]}`)}
	for name, source := range map[string]string{
		"loops in loops":             `input.short.all(a, input.short.all(b, input.short.all(c, a == b)))`,
		"a product of lists":         `input.short.map(a, input.short.map(b, input.short))`,
		"a long list":                `input.list.all(x, x == 0)`,
		"long lists that are equal":  `input.list == input.list2`,
		"the same again and again":   `input.short.all(x, input.list == input.list2)`,
		"a list in a list":           `input.short.all(x, input.list in [input.list2])`,
		"long texts joined":          `input.short.all(x, size(input.text + input.text) > 0)`,
		"long texts measured":        `input.short.all(x, input.short.all(y, size(input.text) > 0))`,
		"a text as the item":         `[input.text].all(s, input.short.all(x, input.short.all(y, size(s) > 0)))`,
		"texts compared":             `input.short.all(x, input.short.all(y, input.text == input.text))`,
		"a pattern over a long text": `input.short.all(x, input.text.matches('(x|y|a){1,40}b'))`,
		"made lists compared":        `[[input.short.map(i, [i, [i]])]].all(l, input.short.all(x, input.short.all(y, l == l)))`,
		"many objects":               `input.objects.all(o, o == {})`,
		"joined literals":            strings.TrimSuffix(strings.Repeat("input.text+", 40), "+"),
		"errors that are absorbed":   `input.short.exists(a, input.short.exists(b, input.short.exists(c, input.x == 1)))`,
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			var work float64
			grew := uint64(math.MaxUint64)
			for i := 0; i < 3 && grew > checktest.Most; i++ { // garbage that a busy machine collects late counts too, so the least counts
				grew = checktest.Grows(func() { work = checktest.Work(func() { err = eval(t, t.Context(), source, data) }) })
			}
			t.Logf("work %.1f, %d MB, %v", work, grew>>20, err)
			if work > mostOfExpression {
				t.Errorf("takes the work %.1f", work)
			}
			if err == nil && name != "many objects" && name != "a long list" && name != "long lists that are equal" {
				t.Error("it is not stopped")
			}
			if grew > checktest.Most {
				t.Errorf("takes %d MB", grew>>20)
			}
		})
	}
	if err := eval(t, t.Context(), `input.deep == input.deep`, data); err != nil && !errors.Is(err, ErrCost) {
		t.Errorf("deep nesting: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := eval(t, ctx, `true`, data); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

// TestReadingIsCharged: data costs by its size, where CEL itself counts one.
func TestReadingIsCharged(t *testing.T) {
	const n = 160_000
	text := `"` + strings.Repeat("x", n) + `"`
	data := Data{Input: []byte(`{"a": [` + text + `], "b": [` + text + `], "t": ` + text + `}`), Node: func(string) (string, []byte, bool) { return text, nil, true }}
	for source, least := range map[string]int{
		`input.t == 'x'`:             4 * n / 16, // the object is read, and the text
		`input.a == input.b`:         7 * n / 16, // the object, and both lists twice
		`input.t.size() > 0`:         5 * n / 16,
		`nodes.a.text == 'x'`:        n / 16,
		`input.t in input.a`:         6 * n / 16,
		`input.t.matches('y')`:       5 * n / 16,
		`input.t + input.t == 'x'`:   6 * n / 16,
		`input == input`:             9 * n / 16,
		`has(input.c) || input.zz`:   3 * n / 16,
		`input.t.contains('y')`:      5 * n / 16,
		`variables.size() == 0`:      0,
		`[input.t] == [input.a[0]]`:  6 * n / 16,
		`{'a': input.t} == {'a': 1}`: 5 * n / 16,
	} {
		x, err := Compile(source)
		if err != nil {
			t.Fatal(source, err)
		}
		if _, cost, _ := x.Eval(t.Context(), data); cost < least {
			t.Errorf("%s costs %d, which is less than %d", source, cost, least)
		}
	}
}

// TestCompileIsBounded: texts that are made to be expensive.
func TestCompileIsBounded(t *testing.T) {
	many := func(s string) string { return strings.Repeat(s, MaxBytes/len(s)) }
	for name, source := range map[string]string{
		"open brackets":   many("("),
		"nested lists":    strings.Repeat("[", 49) + strings.Repeat("]", 49),
		"a long sum":      many("1+") + "1",
		"a long or":       strings.TrimSuffix(many("a.b||"), "||"),
		"ternaries":       many("true?1:") + "1",
		"indexes":         "input" + many("[0]"),
		"selections":      "input" + many(".a"),
		"macros":          strings.Repeat("[1].map(x,", 40) + "1" + strings.Repeat(")", 40),
		"a long list":     "[" + many("1,") + "1]",
		"mixed lists":     "[" + many("1,'a',[],{},") + "1]",
		"nested maps":     strings.Repeat("{1:", 45) + "1" + strings.Repeat("}", 45),
		"calls":           strings.Repeat("size(", 45) + "''" + strings.Repeat(")", 45),
		"methods":         "''" + many(".f()"),
		"negations":       strings.Repeat("!", 45) + "true",
		"equal of equal":  many("1==") + "1",
		"quotes":          many("'''"),
		"bytes":           many("\x00"),
		"unicode":         many("é"),
		"dyn":             strings.TrimSuffix(many("input<"), "<"),
		"nested dyn adds": strings.Repeat("(input+", 45) + "input" + strings.Repeat(")", 45),
	} {
		t.Run(name, func(t *testing.T) {
			if len(source) > MaxBytes {
				source = source[:MaxBytes]
			}
			var work float64
			grew := checktest.Grows(func() { work = checktest.Work(func() { _, _ = Compile(source) }) })
			t.Logf("work %.1f, %d KB", work, grew>>10)
			if grew > checktest.Most || work > mostOfCompiling {
				t.Errorf("takes %d MB and the work %.1f", grew>>20, work)
			}
		})
	}
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{`input.amount > 100`, `nodes.a.text == 'x'`, `input.items.filter(i, i.n > 1).size() == variables.n`, `nodes['a-b'].json.x.matches('^a+$')`, `has(input.x) ? [1] : {'a': -1.5}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, source string) {
		x, err := Compile(source)
		var fault *Fault
		if err != nil {
			if !errors.As(err, &fault) || fault.Message == "" {
				t.Fatalf("%q: %v", source, err)
			}
			return
		}
		v, cost, err := x.Eval(t.Context(), sample)
		if cost > 3*MaxCost {
			t.Fatalf("%q costs %d", source, cost)
		}
		if err == nil {
			if out, err := v.JSON(1 << 16); err == nil && !json.Valid(out) {
				t.Fatalf("%q gives %s", source, out)
			}
		} else if strings.Contains(err.Error(), "internal error") {
			t.Fatalf("%q: %v", source, err)
		}
	})
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := Compile(`input.amount > 100 && nodes.a.text == 'yes'`); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEval(b *testing.B) {
	x, err := Compile(`input.amount > 100 && nodes.a.text == 'hello'`)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := x.Eval(b.Context(), sample); err != nil {
			b.Fatal(err)
		}
	}
}
