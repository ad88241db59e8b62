package tool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/check"
	"agentsvc/schemas/check/checktest"
)

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		says, schema, args string
		want               string // what is complained about; empty: nothing
	}{
		{"no schema takes any object", ``, `{"a":1}`, ""},
		{"a null schema takes any object", ` null `, `{"a":1}`, ""},
		{"an empty schema takes any object", `{}`, `{"a":1}`, ""},
		{"arguments are an object", `{}`, `[]`, "arguments: must be an object"},
		{"without a schema, too", ``, `"x"`, "arguments: must be an object"},
		{"arguments are JSON", `{}`, `{"a"`, "arguments: is not JSON"},
		{"no arguments are none", `{}`, ``, "arguments: is not JSON"},
		{"a type", `{"properties":{"a":{"type":"integer"}}}`, `{"a":"s3cret"}`, "a: must be integer, not string"},
		{"several types", `{"properties":{"a":{"type":["integer","null"]}}}`, `{"a":true}`, "a: must be null or integer, not boolean"},
		{"1.0 is an integer", `{"properties":{"a":{"type":"integer"}}}`, `{"a":1.0}`, ""},
		{"a missing argument", `{"required":["a","b"]}`, `{"b":1}`, "a: is required"},
		{"an unknown argument", `{"properties":{"a":true},"additionalProperties":false}`, `{"a":1,"z":"s3cret"}`, "z: is not an argument of this tool"},
		{"an enum", `{"properties":{"a":{"enum":["x","y",1]}}}`, `{"a":"s3cret"}`, `a: must be one of "x", "y", 1`},
		{"a const", `{"properties":{"a":{"const":"x"}}}`, `{"a":"s3cret"}`, `a: must be "x"`},
		{"a format is asserted", `{"properties":{"a":{"format":"email"}}}`, `{"a":"s3cret"}`, `a: must be of the format "email"`},
		{"a format that fits", `{"properties":{"a":{"format":"email"}}}`, `{"a":"a@example.com"}`, ""},
		{"the key is a UUID", `{"properties":{"idempotency_key":{"format":"uuid"}}}`, `{"idempotency_key":"466f52f1-4717-58f2-8fdf-745705bc5c6f"}`, ""},
		{"a pattern", `{"properties":{"a":{"pattern":"^[0-9]+$"}}}`, `{"a":"s3cret"}`, `a: must match the pattern "^[0-9]+$"`},
		{"a length", `{"properties":{"a":{"minLength":20}}}`, `{"a":"s3cret"}`, "a: must have at least 20 characters"},
		{"the other length", `{"properties":{"a":{"maxLength":2}}}`, `{"a":"s3cret"}`, "a: must have at most 2 characters"},
		{"minimum", `{"properties":{"a":{"minimum":1.5}}}`, `{"a":-424242}`, "a: must be at least 1.5"},
		{"maximum", `{"properties":{"a":{"maximum":100}}}`, `{"a":424242}`, "a: must be at most 100"},
		{"exclusive bounds", `{"properties":{"a":{"exclusiveMinimum":0,"exclusiveMaximum":9}}}`, `{"a":424242}`, "a: must be less than 9"},
		{"more than", `{"properties":{"a":{"exclusiveMinimum":0}}}`, `{"a":0}`, "a: must be more than 0"},
		{"a multiple", `{"properties":{"a":{"multipleOf":0.01}}}`, `{"a":1.005}`, "a: must be a multiple of 0.01"},
		{"items", `{"properties":{"a":{"items":{"type":"string"},"minItems":1}}}`, `{"a":["x",7]}`, "a[1]: must be string, not number"},
		{"too few items", `{"properties":{"a":{"minItems":1}}}`, `{"a":[]}`, "a: must have at least 1 items"},
		{"too many items", `{"properties":{"a":{"maxItems":1}}}`, `{"a":[1,2]}`, "a: must have at most 1 items"},
		{"equal items", `{"properties":{"a":{"uniqueItems":true}}}`, `{"a":["s3cret",1,"s3cret"]}`, "a: must not have equal items: 0 and 2"},
		{"contains", `{"properties":{"a":{"contains":{"const":1}}}}`, `{"a":[2]}`, "a: has no item of the kind that it must have"},
		{"minContains", `{"properties":{"a":{"contains":{"const":1},"minContains":2}}}`, `{"a":[1]}`, "a: must have at least 2 items of a kind"},
		{"maxContains", `{"properties":{"a":{"contains":{"const":1},"maxContains":1}}}`, `{"a":[1,1]}`, "a: must have at most 1 items of a kind"},
		{"members", `{"minProperties":1}`, `{}`, "arguments: must have at least 1 members"},
		{"fewer members", `{"maxProperties":1}`, `{"a":1,"b":1}`, "arguments: must have at most 1 members"},
		{"names of members", `{"propertyNames":{"maxLength":3}}`, `{"long_name":1}`, "long_name: is no name that is allowed here"},
		{"what another argument needs", `{"dependentRequired":{"card":["name"]}}`, `{"card":1}`, `name: is required where "card" is there`},
		{"false", `{"properties":{"a":false}}`, `{"a":1}`, "a: is not allowed here"},
		{"not", `{"properties":{"a":{"not":{"type":"string"}}}}`, `{"a":"s3cret"}`, "a: is of a form that is excluded"},
		{"deep paths", `{"properties":{"a":{"items":{"properties":{"b c":{"type":"null"}}}}}}`, `{"a":[{},{"b c":1}]}`, `a[1]["b c"]: must be null, not number`},
		{"a number as a key", `{"properties":{"0":{"type":"null"}}}`, `{"0":1}`, "0: must be null, not number"},
		{"a reference inside", `{"properties":{"a":{"$ref":"#/$defs/id"}},"$defs":{"id":{"type":"integer"}}}`, `{"a":"x"}`, "a: must be integer, not string"},
		{"a recursive reference", `{"properties":{"next":{"$ref":"#"},"n":{"type":"integer"}}}`, `{"next":{"next":{"n":"x"}}}`, "next.next.n: must be integer, not string"},
		{"types of which one must do", `{"properties":{"a":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}`, `{"a":"x"}`, "a: must be integer or null, not string"},
		{"an object or nothing", `{"properties":{"a":{"anyOf":[{"type":"object","required":["id"]},{"type":"null"}]}}}`, `{"a":{}}`, "a.id: is required"},
		{"forms of which none fits", `{"properties":{"a":{"oneOf":[{"required":["x"]},{"required":["y"]}]}}}`, `{"a":{}}`, "a: fits none of the forms that are allowed here"},
		{"forms of which two fit", `{"properties":{"a":{"oneOf":[{"required":["x"]},{"required":["y"]}]}}}`, `{"a":{"x":1,"y":1}}`, "a: fits several forms of which it must fit exactly one"},
		{"all of", `{"allOf":[{"required":["a"]},{"required":["b"]}]}`, `{}`, "a: is required; b: is required"},
		{"if then", `{"if":{"required":["a"]},"then":{"required":["b"]}}`, `{"a":1}`, "b: is required"},
		{"unevaluated", `{"properties":{"a":true},"unevaluatedProperties":false}`, `{"b":1}`, "b: is not allowed here"},
		{"several complaints in order", `{"required":["z","b"],"properties":{"a":{"type":"null"}}}`, `{"a":1}`, "a: must be null, not number; b: is required; z: is required"},
		{"draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"type":"integer"}}}`, `{"a":"x"}`, "a: must be integer, not string"},
		{"draft 7, lists", `{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"items":[{"type":"null"}],"additionalItems":false}}}`, `{"a":[null,1]}`, "a: has 1 items too many"},
		{"draft 7, dependencies", `{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"]}}`, `{"a":1}`, `b: is required where "a" is there`},
		{"draft 2020-12 by name", `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object"}`, `{}`, ""},
		{"an argument that is there twice", ``, `{"amount":1,"amount":1000}`, "amount: is there twice"},
		{"twice by an escape", ``, `{"a":{"to":"x","t\u006f":"y"}}`, "a.to: is there twice"},
		{"twice in a list", ``, `{"a":[{},{"b":1,"b":2}]}`, "a[1].b: is there twice"},
		{"a number that is a weapon", `{"properties":{"a":{"type":"integer"}}}`, `{"a":1e999999999}`, "a: is a number of too many digits"},
		{"a small one, too", `{"properties":{"a":{"multipleOf":3}}}`, `{"a":1E-99999}`, "a: is a number of too many digits"},
		{"a long one, too", ``, `{"a":[` + strings.Repeat("9", 500) + `]}`, "a[0]: is a number of too many digits"},
		{"too deep", ``, strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200), "arguments: nests deeper than 128 levels"},
		{"too long", ``, `{"a":"` + strings.Repeat("x", MaxArgsBytes) + `"}`, "arguments: have more than 1048576 bytes"},
	} {
		t.Run(c.says, func(t *testing.T) {
			err := Check(t.Context(), schema(c.schema), schema(c.args))
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var args *ArgsError
			if !errors.As(err, &args) || errors.Is(err, ErrSchema) || err.Error() != c.want {
				t.Fatalf("%v\nwant %s", err, c.want)
			}
			for _, secret := range []string{"s3cret", "424242"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error tells a value: %s", err)
				}
			}
		})
	}
}

func TestCheckSaysLittle(t *testing.T) {
	var required, wrong []string
	for i := range 50 {
		required = append(required, fmt.Sprintf("%q", fmt.Sprintf("f%02d", i)))
		wrong = append(wrong, fmt.Sprintf(`"%s%d":1`, strings.Repeat("k", 5000), i))
	}
	err := Check(t.Context(), schema(`{"required":[`+strings.Join(required, ",")+`]}`), schema(`{}`))
	var args *ArgsError
	if !errors.As(err, &args) || len(args.Complaints) != 8 || args.More != 42 || !strings.HasSuffix(err.Error(), "f07: is required; and 42 more") {
		t.Errorf("%v", err)
	}
	err = Check(t.Context(), schema(`{"additionalProperties":false}`), schema(`{`+strings.Join(wrong, ",")+`}`))
	if err == nil || len(err.Error()) > 2000 {
		t.Errorf("%d bytes of complaints: %v", len(err.Error()), err)
	}
	long := `{"enum":["` + strings.Repeat("x", 5000) + `"` + strings.Repeat(`,"yyyyyyyyyyyyyyyyyyyy"`, 1) + `],"pattern":"` + strings.Repeat("a", 5000) + `"}`
	if err := Check(t.Context(), schema(`{"properties":{"a":`+long+`}}`), schema(`{"a":"b"}`)); err == nil || len(err.Error()) > 1000 {
		t.Errorf("%v", err)
	}
}

// An unusable schema is its own error; nothing that it refers to is ever read,
// and nothing of it is told.
func TestUnusableSchema(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(secret, []byte(`{"type":"object","const":"s3cret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for says, doc := range map[string]string{
		"a file":                      `{"$ref":"file://` + secret + `"}`,
		"a file as its draft":         `{"$schema":"file://` + secret + `"}`,
		"a file by id":                `{"$id":"file://` + secret + `","properties":{"a":{"$ref":"other.json"}}}`,
		"a path":                      `{"$ref":"` + secret + `"}`,
		"an address":                  `{"$ref":"http://127.0.0.1:1/s3cret"}`,
		"an address as its draft":     `{"$schema":"https://127.0.0.1:1/s3cret"}`,
		"an address deep inside":      `{"properties":{"a":{"items":{"$ref":"https://127.0.0.1:1/s3cret#/a"}}}}`,
		"a pointer to nowhere":        `{"$ref":"#/s3cret"}`,
		"a reference to itself":       `{"$ref":"#"}`,
		"an unknown type":             `{"type":"s3cret"}`,
		"a pattern that is none":      `{"properties":{"a":{"pattern":"(s3cret"}}}`,
		"properties that are a list":  `{"properties":["s3cret"]}`,
		"a text":                      `"s3cret"`,
		"true":                        `true`,
		"a list":                      `[]`,
		"no JSON":                     `{"a":s3cret}`,
		"too long":                    `{"description":"` + strings.Repeat("s3cret", check.MaxBytes/6) + `"}`,
		"too deep":                    strings.Repeat(`{"not":`, 200) + `{}` + strings.Repeat(`}`, 200),
		"a number that is a weapon":   `{"properties":{"a":{"multipleOf":1e-999999999}}}`,
		"dynamic references":          `{"$dynamicRef":"#x","$defs":{"x":{"$dynamicAnchor":"x"}}}`,
		"a reference that never ends": `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`,
	} {
		t.Run(says, func(t *testing.T) {
			err := Check(t.Context(), schema(doc), schema(`{"a":1}`))
			var args *ArgsError
			if !errors.Is(err, ErrSchema) || errors.As(err, &args) {
				t.Fatalf("%v", err)
			}
			if s := err.Error(); strings.Contains(s, "s3cret") || strings.Contains(s, "secret.json") || strings.Contains(s, "127.0.0.1") || len(s) > 200 {
				t.Errorf("the error tells too much: %s", s)
			}
		})
	}
}

// A schema of a few lines must not cost more than a moment: each of these asks
// for more work than there is time.
func TestWorkIsBounded(t *testing.T) {
	doubling := func(keyword, wrap, leaf string) string {
		var b strings.Builder
		b.WriteString(`{"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{`)
		for i := range 40 {
			next := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)
			fmt.Fprintf(&b, `"d%d":`+wrap+`,`, i, fmt.Sprintf(`{%q:[%s,%s]}`, keyword, next, next))
		}
		fmt.Fprintf(&b, `"d40":%s}}`, leaf)
		return b.String()
	}
	deep := strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)
	for says, c := range map[string][2]string{
		"all of":             {doubling("allOf", "%s", `{"type":"integer"}`), `{"a":1}`},
		"all of that fail":   {doubling("allOf", "%s", `{"type":"string"}`), `{"a":1}`},
		"any of that fail":   {doubling("anyOf", "%s", `{"type":"string"}`), `{"a":1}`},
		"one of that fail":   {doubling("oneOf", "%s", `{"type":"string"}`), `{"a":1}`},
		"one of that fit":    {doubling("oneOf", "%s", `true`), `{"a":1}`},
		"none of":            {doubling("anyOf", `{"not":%s}`, `{"type":"string"}`), `{"a":1}`},
		"down the arguments": {`{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, deep},
	} {
		t.Run(says, func(t *testing.T) {
			start := time.Now()
			err := Check(t.Context(), schema(c[0]), schema(c[1]))
			took := time.Since(start)
			var args *ArgsError
			if err != nil && !errors.Is(err, ErrSchema) && !errors.As(err, &args) {
				t.Error(err)
			}
			if took > 20*time.Second {
				t.Errorf("took %s", took)
			}
			t.Logf("%s: %.100v", took, err)
		})
	}
}

// A large but honest call passes.
func TestWorkIsEnough(t *testing.T) {
	var items []string
	for i := range 20_000 {
		items = append(items, fmt.Sprintf(`{"id":%d,"name":"item %d","tags":["a","b"]}`, i, i))
	}
	doc := `{"type":"object","properties":{"items":{"type":"array","items":{"type":"object","properties":{"id":{"type":"integer"},"name":{"type":"string"},"tags":{"type":"array","items":{"type":"string"}}},"required":["id"]}}}}`
	if err := Check(t.Context(), schema(doc), schema(`{"items":[`+strings.Join(items, ",")+`]}`)); err != nil {
		t.Error(err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(`{"properties":{"a":{"type":"integer"}}}`, `{"a":"x"}`)
	f.Add(`{"$ref":"file:///etc/passwd"}`, `{}`)
	f.Add(`{"anyOf":[{"$ref":"#"},{"not":{"$ref":"#"}}]}`, `{"a":[1,2]}`)
	f.Add(`{"propertyNames":{"pattern":"^a"},"unevaluatedProperties":false}`, `{"b":{"c":1e5}}`)
	f.Fuzz(func(t *testing.T, doc, args string) {
		err := Check(t.Context(), schema(doc), schema(args))
		var wrong *ArgsError
		switch {
		case err == nil, errors.Is(err, ErrSchema):
		case errors.As(err, &wrong):
			if len(wrong.Complaints) == 0 || len(wrong.Complaints) > 8 {
				t.Fatalf("%d complaints: %v", len(wrong.Complaints), err)
			}
		default:
			t.Fatal(err)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	small := schema(`{"type":"object","properties":{"order_id":{"type":"string","minLength":1},"amount":{"type":"number","exclusiveMinimum":0},"reason":{"type":"string","maxLength":500},"idempotency_key":{"type":"string"}},"required":["order_id","amount"],"additionalProperties":false}`)
	args := schema(`{"order_id":"A-1","amount":12.50,"reason":"broken","idempotency_key":"466f52f1-4717-58f2-8fdf-745705bc5c6f"}`)
	var fields []string
	for i := range 200 {
		fields = append(fields, fmt.Sprintf(`"field_%d":{"type":["string","null"],"description":"the field number %d of a large form","maxLength":100}`, i, i))
	}
	large := schema(`{"type":"object","properties":{` + strings.Join(fields, ",") + `}}`)
	for name, doc := range map[string][]byte{"a refund": small, "a form of 200 fields": large} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_ = Check(b.Context(), doc, args)
			}
		})
	}
}

// TestOneCallTakesLittle: what arguments and schemas may cost, at the worst.
func TestOneCallTakesLittle(t *testing.T) {
	list := func(n int, of string) string { return strings.TrimSuffix(strings.Repeat(of+",", n), ",") }
	var doubling strings.Builder
	for i := range 40 {
		fmt.Fprintf(&doubling, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	for says, c := range map[string][2]string{
		"40 levels":     {`{"$ref":"#/$defs/d0","$defs":{` + doubling.String() + `"d40":{}}}`, `{"a":1}`},
		"digits":        {`{}`, `{"a":[` + list(500_000, `0`) + `]}`},
		"small objects": {`{}`, `{"a":[` + list(140_000, `{"":0}`) + `]}`},
		"empty lists":   {`{}`, `{"a":[` + list(300_000, `[]`) + `]}`},
		"just enough":   {`{"additionalProperties":{"items":{"type":"string"}}}`, `{"a":[` + list(140_000, `0`) + `]}`},
		"a number":      {`{"properties":{"a":{"minimum":1e999999}}}`, `{"a":1}`},
		"numbers":       {`{"additionalProperties":{"items":{"multipleOf":1e-300}}}`, `{"a":[` + list(100_000, `1.5e300`) + `]}`},
		"a pattern":     {`{"properties":{"a":{"pattern":"` + strings.Repeat(".{0,1000}", 1500) + `"}}}`, `{"a":"x"}`},
	} {
		t.Run(says, func(t *testing.T) {
			var err error
			n := checktest.Grows(func() { err = Check(t.Context(), schema(c[0]), schema(c[1])) })
			if n > checktest.Most {
				t.Errorf("%d MB: %.200v", n>>20, err)
			}
		})
	}
}

// TestComplaintsOfLongNamesTakeLittle: hundreds of complaints under long keys, all
// that is allocated counted.
func TestComplaintsOfLongNamesTakeLittle(t *testing.T) {
	key := strings.Repeat("k", 512<<10)
	of := func(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	short := strings.Repeat("k", 64) + "…"
	deep := strings.Repeat(`{"`+strings.Repeat("d", 64)+`":`, 100)
	for says, c := range map[string]struct{ schema, args, want string }{
		"items under a key":    {`{"additionalProperties":{"items":{"type":"string"}}}`, `{"` + key + `":[` + of(900, "1") + `]}`, `["` + short + `"][0]: must be string, not number`},
		"names under a key":    {`{"additionalProperties":{"additionalProperties":false}}`, `{"` + key + `":{"a":1}}`, `["` + short + `"].a: is not an argument of this tool`},
		"deep under keys":      {strings.Repeat(`{"additionalProperties":`, 101) + `{"items":{"type":"string"}}` + strings.Repeat(`}`, 101), deep + `{"a":[` + of(900, "1") + `]}` + strings.Repeat("}", 100), "must be string, not number"},
		"a key, many times":    {`{"allOf":[` + of(450, `{"additionalProperties":false}`) + `]}`, `{"` + key + `":1}`, `["` + short + `"]: is not an argument of this tool`},
		"a name, many times":   {`{"allOf":[` + of(450, `{"propertyNames":{"format":"uri"}}`) + `]}`, `{"` + key[:4096] + `":1}`, `["` + short + `"]: is no name that is allowed here`},
		"a format":             {`{"additionalProperties":{"allOf":[` + of(450, `{"format":"date"}`) + `]}}`, `{"a":"` + key[:16<<10] + `"}`, `a: must be of the format "date"`},
		"a constant":           {`{"$defs":{"c":{"const":"` + key[:100<<10] + `"}},"properties":{"a":{"allOf":[` + of(450, `{"$ref":"#/$defs/c"}`) + `]}}}`, `{"a":1}`, `a: must be "` + short[:64]},
		"a list as a constant": {`{"$defs":{"c":{"const":[[` + of(20_000, "1") + `]]}},"properties":{"a":{"allOf":[` + of(450, `{"$ref":"#/$defs/c"}`) + `]}}}`, `{"a":[]}`, `a: must be a given value`},
	} {
		t.Run(says, func(t *testing.T) {
			if err := Check(t.Context(), schema(c.schema), schema(`{}`)); err != nil { // compiles it
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := Check(t.Context(), schema(c.schema), schema(c.args))
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 50<<20 {
				t.Errorf("%d MB: %.200v", n>>20, err)
			}
			var wrong *ArgsError
			if !errors.As(err, &wrong) || !strings.Contains(wrong.Complaints[0], c.want) {
				t.Errorf("%.400v", err)
			}
		})
	}
}
