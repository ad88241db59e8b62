package source

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/check/checktest"
	"agentsvc/schemas/flow"
)

const asYAML = `# a refund
variables: {limit: 100}
nodes:
  - id: ask
    type: gate
    title: "Refund {{input.amount}}?"
    sla_minutes: 0
  - id: pay
    type: tool
    tool: orders.refund
    args:
      order: "{{nodes.nobody.text}}"
      odd name:
        - "{{"
edges:
  - {from: ask, to: pay, when: true}
  - from: pay
    to: ask
`

const asJSON = `{
  "variables": {"limit": 100},
  "nodes": [
    {"id": "ask", "type": "gate", "title": "é {{input.amount}}?", "sla_minutes": 0},
    {
      "id": "pay", "type": "tool", "tool": "orders.refund",
      "args": {"order": "{{nodes.nobody.text}}",
        "odd name": ["{{"]}
    }
  ],
  "edges": [{"from": "ask", "to": "pay", "when": true},
	{"from": "pay", "to": "ask"}]
}`

func places(t *testing.T, text string) string {
	t.Helper()
	d, err := Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := flow.Validate(t.Context(), "definition", d.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range r.Faults {
		out = append(out, d.At(f.Path, "definition").String()+" "+f.Path)
	}
	return strings.Join(out, "\n")
}

func TestFaultsHaveALineAndAColumn(t *testing.T) {
	want := `7:18 definition.nodes[0].sla_minutes
14:11 definition.nodes[1].args["odd name"][0]
17:5 definition.edges[1]
12:14 definition.nodes[1].args.order`
	if got := places(t, asYAML); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	want = `4:82 definition.nodes[0].sla_minutes
8:22 definition.nodes[1].args["odd name"][0]
12:2 definition.edges[1]
7:25 definition.nodes[1].args.order`
	if got := places(t, asJSON); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestWhatIsMissingIsShownAtItsHolder(t *testing.T) {
	d, err := Read([]byte("nodes:\n- id: a\n  type: delay\nedges: []\n"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Position{
		"definition": {1, 1}, "definition.nodes[0].seconds": {2, 3}, "definition.nodes": {1, 1}, "definition.edges": {4, 1}, "definition.nodes[0].type": {3, 9}, "definition.nodes[7]": {1, 1}, "definition.other.x": {1, 1}, "elsewhere": {1, 1},
		`definition.nodes[0]["no\"such"]`: {2, 3},
	} {
		if got := d.At(path, "definition"); got != want {
			t.Errorf("%s is at %v, want %v", path, got, want)
		}
	}
}

// The same definition in both forms is the same.
func TestYAMLIsTheSameAsJSON(t *testing.T) {
	d, err := Read([]byte("a: 1\nb: 1.50\nc: 1e3\nd: 0x10\ne: yes\nf: true\ng: ~\nh: 'x'\ni: |\n  two\n  lines\nj: [1, {k: v}]\n\"k\": 2026-11-24\nl: &x {m: 1}\nn: *x\n0: zero\nlong: 12345678901234567890\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"a":1,"b":1.50,"c":1e3,"d":16,"e":"yes","f":true,"g":null,"h":"x","i":"two\nlines\n","j":[1,{"k":"v"}],"k":"2026-11-24","l":{"m":1},"n":{"m":1},"0":"zero","long":12345678901234567890}`
	if string(d.JSON) != want {
		t.Errorf("got  %s\nwant %s", d.JSON, want)
	}
	text, err := os.ReadFile("../testdata/full.json")
	if err != nil {
		t.Fatal(err)
	}
	d, err = Read(append([]byte("\xef\xbb\xbf"), text...))
	var a, b any
	if err != nil || json.Unmarshal(d.JSON, &a) != nil || json.Unmarshal(text, &b) != nil || !reflect.DeepEqual(a, b) {
		t.Error("a JSON file is changed", err)
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"{\n  \"a\": 1,\n}":          "3:1: is not JSON: invalid character '}'",
		"{\"a\": ":                   "1:6: is not JSON: unexpected end",
		"{} {}":                      "1:4: is not JSON",
		"a: [1\nb: 2":                "is not YAML",
		"a: b: c":                    "1:1: is not YAML: mapping values are not allowed",
		"a: 1\nb: \x1b":              "2:4: is not YAML: control characters are not allowed",
		"":                           "1:1: is not YAML: EOF",
		"a: 1\n---\nb: 2\n":          "2:1: holds a second document",
		"a: .inf":                    "1:4: the number .inf has no form in JSON",
		"a: !!binary aGk=":           "1:4: the tag !!binary has no form in JSON",
		"? [1, 2]\n: x":              "1:3: a name must be text",
		"x: &x {a: 1}\ny:\n  <<: *x": "3:3: a name must be text",
		"a: \"\xff\"":                "1:5: is not UTF-8",
		strings.Repeat("[", 200) + strings.Repeat("]", 200): "nests deeper than 100",
		strings.Repeat("- ", 200) + "1":                     "nests deeper than 100",
	} {
		_, err := Read([]byte(text))
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
}

// Aliases that double, and other texts that grow, end at a limit.
func TestReadingIsBounded(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x]\n")
	for i := range 9 {
		bomb.WriteString(strings.ReplaceAll(strings.ReplaceAll("aN: &aN [*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP]\n", "N", string(rune('1'+i))), "P", string(rune('0'+i))))
	}
	for name, text := range map[string]string{
		"aliases that double": bomb.String(),
		"an alias to itself":  "a: &a [*a]",
		"many items":          "[" + strings.Repeat("1,", maxBytes/2-1) + "1]",
		"many lines":          strings.Repeat("- 1\n", maxBytes/4),
		"many names":          strings.Repeat("? a\n", 10_000),
		"open brackets":       "x: " + strings.Repeat("[", 5_000),
	} {
		began := time.Now()
		grew := checktest.Grows(func() { _, _ = Read([]byte(text)) })
		if took := time.Since(began); grew > 8*checktest.Most {
			t.Errorf("%s takes %v and %d MB", name, took, grew>>20)
		} else {
			t.Logf("%s takes %v and %d MB", name, took, grew>>20)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(asYAML))
	f.Add([]byte(asJSON))
	f.Add([]byte("a: &x [1, ~]\nb: *x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := Read(text)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.At.Line < 1 || e.At.Column < 1 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if !json.Valid(d.JSON) {
			t.Fatalf("%q becomes %s", text, d.JSON)
		}
		r, err := flow.Validate(t.Context(), "definition", d.JSON)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(r.Faults, r.Warnings...) {
			if p := d.At(f.Path, "definition"); p.Line < 1 || p.Column < 1 || p.Line > 1+strings.Count(string(text), "\n") {
				t.Fatalf("%q: %s is at %v", text, f.Path, p)
			}
		}
	})
}
