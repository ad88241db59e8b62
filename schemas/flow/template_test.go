package flow

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var shown = Data{
	Input:     json.RawMessage(`{"name": "Ann \"A\"", "n": 1.50, "ok": true, "none": null, "list": [1, "two", {"x": 3}], "o": {"a": {"b": "c"}}, "evil": "{{variables.secret}}", "": 1, "quote": "\"},{\""}`),
	Variables: map[string]json.RawMessage{"x": json.RawMessage(`"v"`), "o": json.RawMessage(`{"k": [ 1 ]}`), "secret": json.RawMessage(`"s3"`)},
	Outputs:   map[string]Output{"a": {Text: "line\nbreak", JSON: json.RawMessage(`{"x": 1}`)}, "b-1": {Text: "{{input.name}}"}},
}

func (d *Data) given() (json.RawMessage, map[string]json.RawMessage) { return d.Input, d.Variables }

func (d *Data) output(id string) *Output {
	if o, ok := d.Outputs[id]; ok {
		return &o
	}
	return nil
}

func renderJSON(t testing.TB, doc string, d *Data) (string, error) {
	t.Helper()
	tmpl := jsonTemplate([]byte(doc), &path{}, func(_ *path, err error) { t.Fatal(doc, err) })
	out, err := tmpl.render(&reader{from: d, ctx: t.Context(), left: maxWork, over: errWork})
	return string(out), err
}

// open-parts.md, Changes, Workflows: spaces, missing values, types, no second expansion.
func TestTemplates(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"no placeholder", ` { "a" : [ 1 , "b" ] } `, `{"a":[1,"b"]}`},
		{"in a text", `"Hi {{input.name}}!"`, `"Hi Ann \"A\"!"`},
		{"with spaces", `"{{ input.o.a.b }}{{	variables.x }}"`, `"cv"`},
		{"alone keeps a number", `"{{input.n}}"`, `1.50`},
		{"alone keeps a boolean", `{"x": "{{input.ok}}"}`, `{"x":true}`},
		{"alone keeps an object", `["{{input.o}}"]`, `[{"a": {"b": "c"}}]`},
		{"alone keeps a text", `"{{input.name}}"`, `"Ann \"A\""`},
		{"alone keeps null", `"{{input.none}}"`, `null`},
		{"the whole input", `"{{input}}"`, string(shown.Input)},
		{"all variables", `"{{variables}}"`, `{"o":{"k": [ 1 ]},"secret":"s3","x":"v"}`},
		{"not alone with a space", `" {{input.n}}"`, `" 1.50"`},
		{"two are a text", `"{{input.n}}{{input.n}}"`, `"1.501.50"`},
		{"an object in a text", `"o: {{input.o}}"`, `"o: {\"a\":{\"b\":\"c\"}}"`},
		{"a list in a text", `"l: {{variables.o.k}}"`, `"l: [1]"`},
		{"null in a text", `"<{{input.none}}>"`, `"<>"`},
		{"a missing value in a text", `"<{{input.missing}}{{variables.missing.x}}{{nodes.zz.text}}{{nodes.zz.json.x}}>"`, `"<>"`},
		{"a missing value alone", `["{{input.missing}}", "{{variables.missing}}", "{{nodes.zz.text}}", "{{nodes.a.json.y}}", "{{nodes.b-1.json}}"]`, `[null,null,null,null,null]`},
		{"a path through what is no object", `"{{input.name.x}}"`, `null`},
		{"a position in a list", `["{{input.list.1}}", "{{input.list.2.x}}", "{{input.list.9}}", "{{input.list.x}}", "{{input.list.-1}}"]`, `["two",3,null,null,null]`},
		{"a node's text", `["{{nodes.a.text}}", "> {{nodes.a.text}}"]`, `["line\nbreak","> line\nbreak"]`},
		{"a node's json", `["{{nodes.a.json}}", "{{nodes.a.json.x}}"]`, `[{"x": 1},1]`},
		{"what is inserted is not expanded again", `["{{input.evil}}", "a{{input.evil}}", "{{nodes.b-1.text}}"]`, `["{{variables.secret}}","a{{variables.secret}}","{{input.name}}"]`},
		{"what is inserted is no structure", `{"a": "x{{input.quote}}"}`, `{"a":"x\"},{\""}`},
		{"names are no templates", `{"{{input.n}}": 1}`, `{"{{input.n}}":1}`},
		{"braces of other kinds", `"{ {input} } }} {"`, `"{ {input} } }} {"`},
		{"characters that need escapes", `"\u0001\" {{input.n}} \\ é"`, `"\u0001\" 1.50 \\ é"`},
	} {
		got, err := renderJSON(t, c.doc, &shown)
		if err != nil || got != c.want || !json.Valid([]byte(got)) {
			t.Errorf("%s: got %s, %v; want %s", c.name, got, err, c.want)
		}
	}
}

func TestTemplatesOfTexts(t *testing.T) {
	for source, want := range map[string]string{
		"plain": "plain", "{{input.n}}": "1.50", "Hi {{input.name}}": `Hi Ann "A"`, "{{nodes.a.text}}": "line\nbreak", "{{input.missing}}": "", "{{input.none}}": "", "{{variables.o}}": `{"k":[1]}`,
	} {
		tmpl, err := textTemplate(source)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tmpl.render(&reader{from: &shown, ctx: t.Context(), left: maxWork, over: errWork}); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", source, got, err)
		}
	}
}

// A long value is read once and then by its index: the results are the same.
func TestLongValuesAreIndexed(t *testing.T) {
	var o, l []string
	for _, c := range strings.Split(strings.Repeat("abcdefghij", 30), "") {
		l = append(l, `"`+c+`"`)
	}
	o = append(o, `"first": 1`, `"first": 2`, `"list": [`+strings.Join(l, ",")+`]`)
	d := &Data{Input: json.RawMessage(`{` + strings.Join(o, ",") + `}`)}
	if len(d.Input) < indexed {
		t.Fatal("the value is short")
	}
	got, err := renderJSON(t, `["{{input.first}}", "{{input.list.0}}", "{{input.list.299}}", "{{input.list.300}}", "{{input.none}}", "{{input.list.0}}"]`, d)
	if err != nil || got != `[2,"a","j",null,null,"a"]` {
		t.Error(got, err)
	}
}

// FuzzTemplate: every template that compiles renders to valid JSON, or to a text, and what was
// inserted is there as it was.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"{{input.a}}", "x {{ nodes.n.text }} {{variables.v.0}}", "{{", "}}{{input}}", "{{nodes.n.json.a.b}}\x00", "\xff{{input.a}}"} {
		f.Add(s, `{"a": "b", "v": [1, {"c": "\"\\"}]}`, "text \" \n")
	}
	f.Fuzz(func(t *testing.T, source, data, text string) {
		if !json.Valid([]byte(data)) || !utf8.ValidString(data) {
			return
		}
		d := &Data{Input: json.RawMessage(data), Variables: map[string]json.RawMessage{"v": json.RawMessage(data)}, Outputs: map[string]Output{"n": {Text: text, JSON: json.RawMessage(data)}}}
		if tmpl, err := textTemplate(source); err == nil {
			if _, err := tmpl.render(&reader{from: d, ctx: t.Context(), left: maxWork, over: errWork}); err != nil {
				t.Fatal(err)
			}
		}
		doc, err := json.Marshal(map[string]any{"k": []string{source, "{{input}}", "t{{nodes.n.text}}"}})
		if err != nil {
			return
		}
		failed := false
		tmpl := jsonTemplate(doc, &path{}, func(*path, error) { failed = true })
		if failed {
			return
		}
		out, err := tmpl.render(&reader{from: d, ctx: t.Context(), left: maxWork, over: errWork})
		if err != nil {
			t.Fatal(err)
		}
		var back struct {
			K []json.RawMessage `json:"k"`
		}
		if err := json.Unmarshal(out, &back); err != nil || len(back.K) != 3 {
			t.Fatalf("%q renders to %s: %v", source, out, err)
		}
		var last string
		if err := json.Unmarshal(back.K[2], &last); err != nil || last != "t"+strings.ToValidUTF8(text, "\uFFFD") && utf8.ValidString(text) {
			t.Fatalf("%q became %q", text, last)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	tmpl := jsonTemplate([]byte(`{"order": "{{input.o.a.b}}", "amount": "{{input.n}}", "text": "Hi {{input.name}}, {{nodes.a.text}}"}`), &path{}, func(_ *path, err error) { b.Fatal(err) })
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tmpl.render(&reader{from: &shown, ctx: b.Context(), left: maxWork, over: errWork}); err != nil {
			b.Fatal(err)
		}
	}
}
