package edge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// planOf returns the plan of a route with the body T.
func planOf[T any]() *plan {
	return newPlan(newRegistry(), reflect.TypeFor[struct{ Body T }](), "test")
}

// planOfNothing returns the plan of a route without a body.
func planOfNothing() *plan { return newPlan(newRegistry(), reflect.TypeFor[nothing](), "test") }

// A body that gets everything wrong costs a small multiple of its size: neither the value nor
// more than a few complaints are kept, whatever its members are called and however many they are.
func TestWrongBodiesAreCheap(t *testing.T) {
	const size = 256 << 10
	numbered := func(before, format, after string) string {
		var b strings.Builder
		b.Grow(size + 64)
		b.WriteString(before)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			if strings.Contains(format, "%") {
				fmt.Fprintf(&b, format, i)
			} else {
				b.WriteString(format)
			}
		}
		return b.String() + after
	}
	long := strings.Repeat("n", size/2)
	prices := planOf[api.ModelProviderCreate]()
	lists := planOf[api.ListenerPull]()
	free := planOf[struct {
		Meta json.RawMessage `json:"meta"`
	}]()
	none := planOfNothing()
	for _, c := range []struct {
		name string
		plan *plan
		body string
		most int // allocated, in sizes of the body
	}{
		{"unknown members with a dot", prices, numbered(`{`, `"a%06d.":0`, `}`), 16},
		{"unknown members with a dot, of a route without a body", none, numbered(`{`, `"a%06d.":0`, `}`), 16},
		{"members of a member with a long name", prices, numbered(`{"prices":{"`+long+`":{`, `"a%d":1`, `}}}`), 16},
		{"many members of a map", prices, numbered(`{"prices":{`, `"m.%d":1`, `}}`), 16},
		{"items that are no objects", lists, numbered(`{"results":[`, `0`, `]}`), 3},
		{"too many items", lists, numbered(`{"results":[`, `{}`, `]}`), 3},
		{"small objects", none, numbered(`[`, `{"":0}`, `]`), 3},
		{"small objects where anything goes", free, numbered(`{"meta":[`, `{"":0}`, `]}`), 6},
		{"small lists where anything goes", free, numbered(`{"meta":[`, `[[]]`, `]}`), 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := []byte(c.body)
			var in unsafe.Pointer
			if c.plan.hasBody {
				in = reflect.New(c.plan.bodyType).UnsafePointer()
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			bad := c.plan.decode(body, in)
			runtime.ReadMemStats(&after)
			if got := int(after.TotalAlloc-before.TotalAlloc) / len(body); got >= c.most {
				t.Errorf("allocates %d times the size of the body", got)
			}
			if wrong := c.plan != free; (bad != nil) != wrong {
				t.Fatalf("%v", bad)
			}
			if bad != nil {
				if n := strings.Count(bad.Detail, "; ") + 1; n > maxComplaints || len(bad.Detail) > maxComplaints*600 {
					t.Errorf("%d complaints, %d bytes", n, len(bad.Detail))
				}
			}
		})
	}
}

// A complaint names its own member, whatever the members beside it are called.
func TestAComplaintNamesItsMember(t *testing.T) {
	none, prices := planOfNothing(), planOf[struct {
		Prices map[string]api.Price `json:"prices" maxProperties:"3"`
	}]()
	long := strings.Repeat("é", 130)
	for _, c := range []struct {
		plan         *plan
		body, detail string
	}{
		{none, `{"a.b":1,"c":1}`, "a.b: unexpected property; c: unexpected property"},
		{none, `{"a[1]":1,"c":1}`, "a[1]: unexpected property; c: unexpected property"},
		{prices, `{"prices":{"gpt-4.1":{"input_per_mtok":1,"output_per_mtok":1},"o3":{"input_per_mtok":-1,"output_per_mtok":1}}}`, "prices.o3.input_per_mtok: expected number >= 0"},
		{prices, `{"prices":{"gpt-4.1":{"input_per_mtok":1},"o3":{"input_per_mtok":1}}}`, "prices.gpt-4.1.output_per_mtok: is required; prices.o3.output_per_mtok: is required"},
		{prices, `{"prices":{"a":1,"b":1,"c":1,"d":1}}`, "prices: expected object with at most 3 properties"},
		{prices, `{"prices":{"` + long + `":{"input_per_mtok":1,"output_per_mtok":1}}}`, "prices." + long[:64] + "…: expected a name of at most 256 bytes"},
		{none, `{"` + long + `":1}`, long[:64] + "…: unexpected property"},
	} {
		got := c.plan.reg.check(c.plan.shape, []byte(c.body))
		if got == nil || got.Code != problem.CodeValidation || got.Detail != c.detail {
			t.Errorf("%s: %v", c.body, got)
		}
	}
}

// The one pass accepts what checking the parsed value as a whole accepts, and says the same.
func TestTheShapeSaysWhatTheSchemaSays(t *testing.T) {
	type branch struct {
		Name  string              `json:"name" minLength:"1" maxLength:"4" pattern:"^[a-z.]+$"`
		Many  []nested            `json:"many,omitempty" minItems:"1" maxItems:"3"`
		Under *nested             `json:"under"`
		Never *nested             `json:"never" null:"false"`
		Map   map[string]float64  `json:"map,omitempty" minProperties:"1" maxProperties:"2"`
		Free  any                 `json:"free,omitempty"`
		Opt   api.Opt[nested]     `json:"opt,omitzero"`
		Text  api.Opt[string]     `json:"text,omitzero" minLength:"1"`
		Deep  map[string][]nested `json:"deep,omitempty"`
	}
	type tree struct {
		A branch      `json:"a"`
		B *branch     `json:"b,omitempty"`
		C []branch    `json:"c" maxItems:"2"`
		T *time.Time  `json:"t"`
		I []id.NodeID `json:"i,omitempty"`
	}
	for name, p := range map[string]*plan{
		"a thread":           newPlan(newRegistry(), reflect.TypeFor[createThread](), "test"),
		"no body":            planOfNothing(),
		"a tree":             planOf[tree](),
		"a provider":         planOf[api.ModelProviderCreate](),
		"a provider's patch": planOf[api.ModelProviderPatch](),
		"a policy":           planOf[api.ApprovalPolicyCreate](),
		"a policy's patch":   planOf[api.ApprovalPolicyPatch](),
		"a webhook":          planOf[api.WebhookCreate](),
		"a pull":             planOf[api.ListenerPull](),
		"a server":           planOf[api.MCPServerCreate](),
		"a server's patch":   planOf[api.MCPServerPatch](),
		"a source":           planOf[api.SourceCreate](),
		"a skill":            planOf[api.SkillCreate](),
		"a list":             planOf[[]nested](),
		"a number":           planOf[float64](),
	} {
		t.Run(name, func(t *testing.T) {
			schema := p.schema
			if !p.hasBody {
				schema = &huma.Schema{Type: huma.TypeObject, AdditionalProperties: false}
				schema.PrecomputeMessages()
			}
			accepted := 0
			for seed := range uint64(400) {
				g := &bodies{Rand: rand.New(rand.NewPCG(seed, 1)), reg: p.reg, wrong: 0.3 * float64(seed%3) / 2}
				body, err := json.Marshal(g.value(schema, 0))
				if err != nil {
					t.Fatal(err)
				}
				want := whole(p.reg, schema, body)
				got := ""
				if bad := p.reg.check(p.shape, body); bad != nil {
					got = bad.Detail
				} else {
					accepted++
				}
				if (got == "") != (want == "") || !g.many && got != want {
					t.Fatalf("%s:\ngot  %s\nwant %s", body, got, want)
				}
			}
			if accepted < 20 {
				t.Errorf("only %d bodies were right", accepted)
			}
		})
	}
}

// bodies makes bodies that are nearly what a schema asks for.
type bodies struct {
	*rand.Rand
	reg   *registry
	wrong float64 // how often a value is a wrong one
	many  bool    // the complaints may differ: something is too long, or there are too many
}

func (g *bodies) value(s *huma.Schema, depth int) any {
	for s.Ref != "" {
		s = g.reg.SchemaFromRef(s.Ref)
	}
	if g.Float64() < g.wrong/float64(1+depth) {
		return []any{nil, nil, "", "x", 0, 1.5, -1, true, []any{}, []any{nil}, map[string]any{}, map[string]any{"x": nil}}[g.IntN(12)]
	}
	switch s.Type {
	case huma.TypeBoolean:
		return g.IntN(2) == 0
	case huma.TypeInteger, huma.TypeNumber:
		least := 0.0
		if s.Minimum != nil {
			least = *s.Minimum
		}
		return least + float64(g.IntN(3)) + []float64{0, 0, 0, g.wrong}[g.IntN(4)]
	case huma.TypeString:
		switch {
		case len(s.Enum) > 0:
			return s.Enum[g.IntN(len(s.Enum))]
		case s.Format == "uuid":
			return "0198c0de-0000-7000-8000-000000000000"
		case s.Format == "date-time":
			return "2026-01-02T03:04:05Z"
		case s.MaxLength != nil && *s.MaxLength < 300 && g.Float64() < g.wrong/4:
			return strings.Repeat("a", *s.MaxLength+1)
		}
		return []string{"a", "ab", "a.b", "https"}[g.IntN(4)]
	case huma.TypeArray:
		list := []any{}
		n := 1 + g.IntN(2)
		if s.MaxItems != nil && g.Float64() < g.wrong/4 {
			n, g.many = *s.MaxItems+1, true
		}
		for range n {
			list = append(list, g.value(s.Items, depth+1))
		}
		return list
	case huma.TypeObject:
		m := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			member := s.Properties[name]
			if slices.Contains(s.Required, name) && g.Float64() >= g.wrong/4 || g.IntN(3) == 0 {
				m[name] = g.value(member, depth+1)
			}
		}
		other, _ := s.AdditionalProperties.(*huma.Schema)
		for range g.IntN(3) {
			switch name := "m" + strconv.Itoa(g.IntN(9)); {
			case other != nil:
				m[name] = g.value(other, depth+1)
			case g.Float64() < g.wrong/4:
				m[name] = 1
			}
		}
		if s.MaxProperties != nil && *s.MaxProperties < 9 && g.Float64() < g.wrong/4 {
			g.many = true
			for i := range *s.MaxProperties + 1 {
				m["n"+strconv.Itoa(i)] = 1
			}
		}
		return m
	}
	return []any{1, "a", []any{nil}, map[string]any{"a": nil}}[g.IntN(4)]
}

// whole checks a body as a value: huma's complaints, and those about null.
func whole(reg *registry, s *huma.Schema, b []byte) string {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err.Error()
	}
	var path huma.PathBuffer
	var result huma.ValidateResult
	huma.Validate(reg, s, &path, huma.ModeWriteToServer, v, &result)
	said := map[string]string{} // of several complaints about one member the last one counts
	for _, err := range result.Errors {
		d := err.(*huma.ErrorDetail)
		at, message := d.Location, d.Message
		if name, missing := strings.CutPrefix(message, "expected required property "); missing {
			at, message = strings.TrimPrefix(at+"."+strings.TrimSuffix(name, " to be present"), "."), "is required"
		}
		if at == "" {
			at = "body"
		}
		said[at] = message
	}
	if v != nil {
		nulls(reg, s, v, "", said)
	}
	var all []problem.Field
	for _, at := range slices.Sorted(maps.Keys(said)) {
		all = append(all, problem.Field{Path: at, Message: said[at]})
	}
	if all == nil {
		return ""
	}
	return problem.Validation(all...).Detail
}

// nulls adds a complaint for each null in v that the schema does not allow.
func nulls(r *registry, s *huma.Schema, v any, path string, said map[string]string) {
	if v == nil {
		if !free(s) && !s.Nullable && s.Extensions[nullableRef] != true {
			said[path] = "must not be null"
		}
		return
	}
	if s.Ref != "" {
		s = r.SchemaFromRef(s.Ref)
	}
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			of := s.Properties[name]
			if of == nil {
				of, _ = s.AdditionalProperties.(*huma.Schema)
			}
			if of != nil {
				nulls(r, of, member, strings.TrimPrefix(path+"."+name, "."), said)
			}
		}
	case []any:
		if s.Items == nil {
			return
		}
		for i, item := range v {
			nulls(r, s.Items, item, path+"["+strconv.Itoa(i)+"]", said)
		}
	}
}

// A name that is given twice is found among few members and among many.
func TestManyNames(t *testing.T) {
	p := planOfNothing()
	var b bytes.Buffer
	for i := range 3 * fewNames {
		fmt.Fprintf(&b, `"n%d":{"a":1,"b":[{"a":1}]},`, i)
	}
	for last, detail := range map[string]string{
		`"x":{}`:              "",
		`"n1":{}`:             "n1: is given twice",
		`"n40":{}`:            "n40: is given twice",
		`"x":{"a":1,"a":1}`:   "x.a: is given twice",
		`"x":{"n1":{"n2":1}}`: "",
	} {
		got := ""
		if bad := p.reg.check(nil, []byte("{"+b.String()+last+"}")); bad != nil {
			got = bad.Detail
		}
		if got != detail {
			t.Errorf("%s: %s", last, got)
		}
	}
}
