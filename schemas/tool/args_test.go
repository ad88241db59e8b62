package tool

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentsvc/schemas/id"
	"agentsvc/schemas/redact"
)

func TestKey(t *testing.T) {
	run, err := id.Parse("0199a6b0-7c1e-7abc-8def-0123456789ab")
	if err != nil {
		t.Fatal(err)
	}
	// Any library makes the same: uuid5(run, "7").
	if got := Key(id.RunID{UUID: run}, 7); got != "466f52f1-4717-58f2-8fdf-745705bc5c6f" {
		t.Errorf("key %s", got)
	}
	seen := map[string]bool{}
	for r := range 10 {
		for idx := range 200 {
			k := Key(id.RunID{UUID: uid('r', r)}, idx)
			if seen[k] || k != Key(id.RunID{UUID: uid('r', r)}, idx) {
				t.Fatalf("%s of step %d is not its own", k, idx)
			}
			seen[k] = true
		}
	}
}

func TestTakesKey(t *testing.T) {
	for doc, want := range map[string]bool{
		`{"type":"object","properties":{"idempotency_key":{"type":"string"}}}`:                     true,
		`{"properties":{"idempotency_key":{}}}`:                                                    true,
		`{"properties":{"idempotency_key":true}}`:                                                  true,
		`{"properties":{"idempotency_key":{"type":["null","string"]}}}`:                            true,
		`{"properties":{"idempotency\u005fkey":{}}}`:                                               true,
		`{"properties":{"idempotency_key":false}}`:                                                 false,
		`{"properties":{"idempotency_key":{"type":"integer"}}}`:                                    false,
		`{"properties":{"idempotency_key":{"type":["integer","null"]}}}`:                           false,
		`{"properties":{"order":{"properties":{"idempotency_key":{}}}}}`:                           false,
		`{"Properties":{"idempotency_key":{}}}`:                                                    false,
		`{"properties":{"Idempotency_Key":{}}}`:                                                    false,
		`{"properties":{"note":{"description":"idempotency_key"}},"required":["idempotency_key"]}`: false,
		`{"properties":[]}`: false, `{"properties":null}`: false, `{}`: false, `true`: false, `null`: false, ``: false, `{`: false,
	} {
		if got := TakesKey(schema(doc)); got != want {
			t.Errorf("TakesKey(%s) = %v", doc, got)
		}
	}
}

var takesKey = schema(`{"type":"object","properties":{"idempotency_key":{"type":"string"}}}`)

func TestWithKey(t *testing.T) {
	for _, c := range []struct{ says, schema, args, want string }{
		{"it is filled in", "", `{"amount":1.50}`, `{"amount":1.50,"idempotency_key":"k"}`},
		{"into an empty object", "", `{}`, `{"idempotency_key":"k"}`},
		{"other bytes are kept", "", "{ \"b\" : 1.0,\n\t\"a\":\"\\u00e9\" }\n", "{ \"b\" : 1.0,\n\t\"a\":\"\\u00e9\",\"idempotency_key\":\"k\" }\n"},
		{"the model's own stays", "", `{"idempotency_key":"mine"}`, `{"idempotency_key":"mine"}`},
		{"null is left out", "", `{"idempotency_key":null,"a":1}`, `{"idempotency_key":"k","a":1}`},
		{"nothing written is left out", "", `{"a":1,"idempotency_key":""}`, `{"a":1,"idempotency_key":"k"}`},
		{"deeper down it is another argument", "", `{"a":{"idempotency_key":"x"}}`, `{"a":{"idempotency_key":"x"},"idempotency_key":"k"}`},
		{"a schema that has none gets none", `{"properties":{}}`, `{"a":1}`, `{"a":1}`},
		{"no schema, no key", `null`, `{"a":1}`, `{"a":1}`},
		{"what is no object stays", "", `[1]`, `[1]`},
		{"what is no JSON stays", "", `{"a":`, `{"a":`},
	} {
		t.Run(c.says, func(t *testing.T) {
			s := takesKey
			if c.schema != "" {
				s = schema(c.schema)
			}
			in := schema(c.args)
			if got := WithKey(s, in, "k"); string(got) != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if string(in) != c.args {
				t.Errorf("the arguments were changed in place: %s", in)
			}
		})
	}
}

func TestKeepKey(t *testing.T) {
	for _, c := range []struct{ says, edited, frozen, want string }{
		{"an edit cannot change it", `{"idempotency_key":"new","a":2}`, `{"a":1,"idempotency_key":"old"}`, `{"idempotency_key":"old","a":2}`},
		{"an edit cannot drop it", `{"a":2}`, `{"a":1,"idempotency_key":"old"}`, `{"a":2,"idempotency_key":"old"}`},
		{"an edit cannot hide it behind a second one", `{"idempotency_key":"x","idempotency_key":"y"}`, `{"idempotency_key":"old"}`, `{"idempotency_key":"old","idempotency_key":"old"}`},
		{"nor behind an escape", `{"idempotency\u005fkey":"new"}`, `{"idempotency_key":"old"}`, `{"idempotency\u005fkey":"old"}`},
		{"its bytes are the frozen ones", `{}`, `{"idempotency_key" : "\u0061"}`, `{"idempotency_key":"\u0061"}`},
		{"without a frozen key nothing is done", `{"idempotency_key":"x"}`, `{"a":1}`, `{"idempotency_key":"x"}`},
		{"what is no object stays", `[]`, `{"idempotency_key":"old"}`, `[]`},
		{"what is no JSON stays", `{`, `{"idempotency_key":"old"}`, `{`},
		{"nor is anything kept of what is none", `{}`, `{`, `{}`},
	} {
		t.Run(c.says, func(t *testing.T) {
			if got := KeepKey(schema(c.edited), schema(c.frozen)); string(got) != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// open-parts.md, Redaction: in edited_args the value [redacted] means to keep the
// frozen value at this path; anywhere else it is INVALID_ARGS.
func TestUnmask(t *testing.T) {
	frozen := `{"amount": 10, "password": "p\u0061ss", "card":{"pin":1234,"name":"[redacted]"}, "credentials":{"token":"t","user":"u"}, "items":[{"api_key":"a"},{"api_key":"b","n":1.0}]}`
	for _, c := range []struct{ says, edited, want, path string }{
		{"without marks nothing changes", `{"amount": 20}`, `{"amount": 20}`, ""},
		{"a mark keeps the frozen value, byte for byte", `{"amount":20,"password":"[redacted]"}`, `{"amount":20,"password":"p\u0061ss"}`, ""},
		{"at any depth", `{"card":{"pin":"[redacted]"}}`, `{"card":{"pin":1234}}`, ""},
		{"in a list", `{"items":[{"api_key":"[redacted]"},{"n":2,"api_key":"[redacted]"}]}`, `{"items":[{"api_key":"a"},{"n":2,"api_key":"b"}]}`, ""},
		{"a whole object that was masked", `{"credentials":"[redacted]"}`, `{"credentials":{"token":"t","user":"u"}}`, ""},
		{"a secret may be replaced", `{"password":"new"}`, `{"password":"new"}`, ""},
		{"a mark that was the value all along", `{"card":{"name":"[redacted]"}}`, `{"card":{"name":"[redacted]"}}`, ""},
		{"an escaped mark is a mark", `{"password":"\u005bredacted]"}`, `{"password":"p\u0061ss"}`, ""},
		{"more than a mark is a text", `{"amount":"[redacted] 5"}`, `{"amount":"[redacted] 5"}`, ""},
		{"a key is no value", `{"[redacted]":1}`, `{"[redacted]":1}`, ""},
		{"where nothing was frozen", `{"token":"[redacted]"}`, "", "token"},
		{"where the value was shown", `{"amount":"[redacted]"}`, "", "amount"},
		{"where the object was shown", `{"card":"[redacted]"}`, "", "card"},
		{"inside of what was masked as a whole", `{"credentials":{"token":"[redacted]"}}`, "", "credentials.token"},
		{"at another item", `{"items":[{"n":1},{"n":"[redacted]"}]}`, "", "items[1].n"},
		{"behind the last item", `{"items":[1,2,{"api_key":"[redacted]"}]}`, "", "items[2].api_key"},
		{"a list for an object", `{"items":{"0":"[redacted]"}}`, "", "items.0"},
		{"as a whole", `"[redacted]"`, "", "arguments"},
	} {
		t.Run(c.says, func(t *testing.T) {
			got, err := Unmask(schema(c.edited), schema(frozen), redact.JSON(schema(frozen)))
			if c.path == "" {
				if err != nil || string(got) != c.want {
					t.Errorf("%s (%v), want %s", got, err, c.want)
				}
				return
			}
			if !errors.Is(err, ErrMasked) || !strings.HasPrefix(err.Error(), c.path+": ") {
				t.Errorf("%s (%v), want an error about %s", got, err, c.path)
			}
			if err != nil && strings.Contains(err.Error(), "pass") {
				t.Errorf("the error tells a secret: %s", err)
			}
		})
	}
	for _, c := range [][2]string{{`{`, `{}`}, {`{}`, `{`}, {strings.Repeat("[", 200) + strings.Repeat("]", 200), `{}`}} {
		if got, err := Unmask(schema(c[0]), schema(c[1]), redact.JSON(schema(c[1]))); err == nil {
			t.Errorf("%s of %s: %s", c[0], c[1], got)
		}
	}
}

// Values that the gateway removed beyond the keys are restored too: whole values, and parts
// of texts that were left unchanged.
func TestUnmaskWhatTheGatewayMasked(t *testing.T) {
	frozen := schema(`{"note":"sk-123","text":"key sk-123, twice","n":1,"sk-123":"v"}`)
	shown := schema(`{"note":"[redacted]","text":"key [redacted], twice","n":1,"[redacted]":"v"}`)
	for _, c := range []struct{ says, edited, want, path string }{
		{"a whole value", `{"note":"[redacted]","n":2}`, `{"note":"sk-123","n":2}`, ""},
		{"a text that was masked in part", `{"text":"key [redacted], twice","n":2}`, `{"text":"key sk-123, twice","n":2}`, ""},
		{"the mark alone for it", `{"text":"[redacted]"}`, `{"text":"key sk-123, twice"}`, ""},
		{"another text for it", `{"text":"no key"}`, `{"text":"no key"}`, ""},
		{"a changed text with the mark left in", `{"text":"key [redacted], once"}`, "", "text"},
		{"where nothing was masked", `{"n":"[redacted]"}`, "", "n"},
		{"a key that was masked", `{"[redacted]":"w"}`, "", `["[redacted]"]`},
	} {
		t.Run(c.says, func(t *testing.T) {
			got, err := Unmask(schema(c.edited), frozen, shown)
			if c.path == "" && (err != nil || string(got) != c.want) {
				t.Errorf("%s (%v), want %s", got, err, c.want)
			}
			if c.path != "" && (!errors.Is(err, ErrMasked) || !strings.HasPrefix(err.Error(), c.path+": ")) {
				t.Errorf("%s (%v), want an error about %s", got, err, c.path)
			}
		})
	}
	if _, err := Unmask(schema(`{}`), frozen, schema(`{`)); err == nil {
		t.Error("a shown copy that is no JSON")
	}
}

func TestDigest(t *testing.T) {
	if Digest(schema(`{"a":1}`)) != sha256.Sum256([]byte(`{"a":1}`)) || Digest(schema(`{"a": 1}`)) == Digest(schema(`{"a":1}`)) {
		t.Error("a digest is of the exact bytes")
	}
}

func TestFailedResult(t *testing.T) {
	got := FailedResult(ErrNotGranted, `"shop.<x>" & more`)
	want := `{"error":"TOOL_NOT_GRANTED","message":"\"shop.<x>\" & more"}`
	if got.Content != want || string(got.Shown) != want || !got.IsError {
		t.Errorf("%+v", got)
	}
}

// genJSON draws a JSON text, with keys that matter.
func genJSON(t *rapid.T, depth int) string {
	space := func() string { return rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(t, "space") }
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	if depth == 0 {
		kind = 2 + kind%4
	}
	switch kind {
	case 0:
		out := "{" + space()
		for i := range rapid.IntRange(0, 3).Draw(t, "members") {
			if i > 0 {
				out += ","
			}
			key := rapid.SampledFrom([]string{`"a"`, `"b"`, `"password"`, `"idempotency_key"`, `"api\u005fkey"`, `"é"`}).Draw(t, "key")
			out += space() + key + space() + ":" + space() + genJSON(t, depth-1)
		}
		return out + space() + "}"
	case 1:
		out := "["
		for i := range rapid.IntRange(0, 3).Draw(t, "items") {
			if i > 0 {
				out += ","
			}
			out += space() + genJSON(t, depth-1)
		}
		return out + space() + "]"
	}
	return rapid.SampledFrom([]string{`1`, `-0.10e+5`, `true`, `null`, `"x"`, `"[redacted]"`, `"\u005bredacted]"`, `""`, `"a\"},{\\"`}).Draw(t, "leaf")
}

// Whatever an approver leaves unchanged in redacted arguments is exactly what runs: masking
// and unmasking are inverse.
func TestUnmaskUndoesRedaction(t *testing.T) {
	masked := 0
	rapid.Check(t, func(t *rapid.T) {
		frozen := schema(genJSON(t, 4))
		top, err := parse(frozen)
		if err != nil {
			t.Fatal(err)
		}
		if twice(top) {
			return // such arguments are never frozen: see Check
		}
		shown := redact.JSON(frozen)
		if !bytes.Equal(shown, frozen) {
			masked++
		}
		got, err := Unmask(shown, frozen, shown)
		if err != nil || !bytes.Equal(got, frozen) {
			t.Fatalf("%s was shown as %s and runs as %s (%v)", frozen, shown, got, err)
		}
	})
	if masked < 50 {
		t.Errorf("void: %d arguments were redacted", masked)
	}
}

func twice(v *value) bool { return sound("", v) != nil }

func FuzzUnmask(f *testing.F) {
	f.Add(`{"password":"[redacted]","a":[1,"[redacted]"]}`, `{"password":"x","a":[1,{"token":"y"}]}`)
	f.Add(`{"a":{"b":"\u005bredacted]"}}`, `{"a":{"b":"[redacted]"}}`)
	f.Add(`"[redacted]"`, `{`)
	f.Add(`{"":{"":"[redacted]"}}`, `{"":{"":"[redacted]"}}`)
	f.Fuzz(func(t *testing.T, edited, frozen string) {
		got, err := Unmask(schema(edited), schema(frozen), redact.JSON(schema(frozen)))
		if err != nil {
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%q of %q: %q is no JSON", edited, frozen, got)
		}
		if !strings.Contains(edited, "redacted]") && !strings.Contains(edited, `\`) && string(got) != edited {
			t.Fatalf("%q has no mark and became %q", edited, got)
		}
		// The rest of the mark was in the frozen arguments.
		if !strings.Contains(frozen, "redacted") && !strings.Contains(frozen, `\`) {
			if v, err := parse(got); err != nil || marked(v, got) {
				t.Fatalf("%q of %q: %q still has a mark (%v)", edited, frozen, got, err)
			}
		}
	})
}

func marked(v *value, in []byte) bool {
	if v.kind == '"' && v.text(in) == redact.Mark {
		return true
	}
	for i := range v.members {
		if marked(&v.members[i].value, in) {
			return true
		}
	}
	return false
}

func FuzzWithKey(f *testing.F) {
	f.Add(`{"a":1}`, "k")
	f.Add(` { } `, "k\"\\\x00")
	f.Add(`{"idempotency_key":null,"a":{"idempotency_key":1}}`, "k")
	f.Add(`{"idempotency\u005fkey":"","idempotency_key":null}`, "k")
	f.Add(`[{}]`, "")
	f.Fuzz(func(t *testing.T, args, key string) {
		got := WithKey(takesKey, schema(args), key)
		if !json.Valid([]byte(args)) {
			if string(got) != args {
				t.Fatalf("%q is no JSON and became %q", args, got)
			}
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%q became %q", args, got)
		}
		var was, is map[string]any
		if json.Unmarshal([]byte(args), &was) != nil || was == nil {
			if string(got) != args {
				t.Fatalf("%q is no object and became %q", args, got)
			}
			return
		}
		if err := json.Unmarshal(got, &is); err != nil {
			t.Fatal(err)
		}
		if is["idempotency_key"] == nil && len(got) < 100_000 && strings.Count(args, "{")+strings.Count(args, "[") < maxDepth {
			t.Fatalf("%q became %q, without a key", args, got)
		}
		delete(was, "idempotency_key")
		delete(is, "idempotency_key")
		a, _ := json.Marshal(was)
		b, _ := json.Marshal(is)
		if !bytes.Equal(a, b) {
			t.Fatalf("%q became %q", args, got)
		}
		// The key's own value aside, the text is the same.
		if n := len(got) - len(args); n > 0 && !strings.Contains(args, "idempotency") {
			at := bytes.Index(got, append([]byte(`"idempotency_key":`), quoteJSON(key)...))
			rest := append(bytes.TrimSuffix(bytes.Clone(got[:max(at, 0)]), []byte(",")), got[at+len(`"idempotency_key":`)+len(quoteJSON(key)):]...)
			if at < 0 || string(rest) != args {
				t.Fatalf("%q became %q", args, got)
			}
		}
	})
}
