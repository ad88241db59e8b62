package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentsvc/schemas/check/checktest"
	"agentsvc/schemas/id"
	"agentsvc/schemas/turn"
)

// doubling is a schema of n levels, each of which refers to the next one twice.
func doubling(n int, wrap, keyword, leaf string) string {
	var b strings.Builder
	b.WriteString(`{"properties":{"a":{"$ref":"#/$defs/d0"}},"$defs":{`)
	for i := range n {
		next := fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i+1)
		fmt.Fprintf(&b, `"d%d":`+wrap+`,`, i, fmt.Sprintf(`{%q:[%s,%s]}`, keyword, next, next))
	}
	fmt.Fprintf(&b, `"d%d":%s}}`, n, leaf)
	return b.String()
}

func compileOne(t *testing.T, doc string) (*Schema, error) {
	t.Helper()
	var s *Schema
	var err error
	if n := checktest.Grows(func() { s, err = Compile(t.Context(), json.RawMessage(doc), Options{Formats: true, Dynamic: true}) }); n > checktest.Most {
		t.Errorf("compiling takes %d MB", n>>20)
	}
	return s, err
}

// TestExpensiveSchemasAreRefused: one row, one way to ask for more than there is.
func TestExpensiveSchemasAreRefused(t *testing.T) {
	list := func(n int, of string) string { return strings.TrimSuffix(strings.Repeat(of+",", n), ",") }
	chain := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"$ref":"#/$defs/c0","$defs":{`)
		for i := range n {
			fmt.Fprintf(&b, `"c%d":{"$ref":"#/$defs/c%d"},`, i, i+1)
		}
		fmt.Fprintf(&b, `"c%d":{}}}`, n)
		return b.String()
	}
	ids := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"d%d":{"$id":"d%d"}`, i, i)
		}
		return `{"$defs":{` + b.String()[1:] + `}}`
	}
	stray := func(n int) string { // each reference reads all that lies below it again
		var refs strings.Builder
		at := "#/x"
		for range n {
			fmt.Fprintf(&refs, `,{"$ref":%q}`, at)
			at += "/y"
		}
		return `{"allOf":[` + refs.String()[1:] + `],"x":` + strings.Repeat(`{"y":`, n) + `{"allOf":[` + list(1500, `{"type":"string"}`) + `]}` + strings.Repeat(`}`, n) + `}`
	}
	for says, c := range map[string]struct {
		doc  string
		want error
		at   string
	}{
		"23 levels of allOf":            {doubling(23, "%s", "allOf", `{"type":"integer"}`), ErrDouble, ""},
		"40 levels of allOf":            {doubling(40, "%s", "allOf", `{"type":"integer"}`), ErrDouble, ""},
		"40 levels of anyOf":            {doubling(40, "%s", "anyOf", `{"type":"string"}`), ErrDouble, ""},
		"40 levels of oneOf":            {doubling(40, "%s", "oneOf", `true`), ErrDouble, ""},
		"40 levels of not":              {doubling(40, `{"not":%s}`, "anyOf", `{"type":"string"}`), ErrDouble, ""},
		"40 levels of if":               {doubling(40, `{"if":%s}`, "allOf", `true`), ErrDouble, ""},
		"40 levels of then":             {doubling(40, `{"if":true,"then":%s}`, "allOf", `true`), ErrDouble, ""},
		"40 levels of dependentSchemas": {doubling(40, `{"dependentSchemas":{"a":%s}}`, "allOf", `true`), ErrDouble, ""},
		"40 levels of unevaluated":      {doubling(40, `{"unevaluatedProperties":false,"anyOf":[%s]}`, "allOf", `true`), ErrDouble, ""},
		"40 levels in draft 7": {strings.Replace(doubling(40, `%s`, "allOf", `true`), `{`, `{"$schema":"http://json-schema.org/draft-07/schema#",`, 1),
			ErrDouble, ""},
		"40 levels by $dynamicRef":         {strings.ReplaceAll(doubling(40, `%s`, "allOf", `true`), `$ref`, `$dynamicRef`), ErrDouble, ""},
		"40 levels by anchors":             {`{"$ref":"#a0","$defs":{` + anchors(40) + `}}`, ErrDouble, ""},
		"a schema that is its own":         {`{"$ref":"#"}`, ErrCycle, ""},
		"two that are each other's":        {`{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}}}`, ErrCycle, ""},
		"a long chain":                     {chain(1000), ErrChain, ""},
		"a number, by its exponent":        {`{"properties":{"a":{"minimum":1e999999}}}`, ErrNumber, ""},
		"a small one":                      {`{"multipleOf":1e-999999}`, ErrNumber, ""},
		"one in an enum":                   {`{"enum":[1,1e999999]}`, ErrNumber, ""},
		"one of many digits":               {`{"maximum":` + strings.Repeat("9", 5000) + `}`, ErrNumber, ""},
		"a pattern of many repeats":        {`{"properties":{"a":{"pattern":"` + strings.Repeat(".{0,1000}", 400) + `"}}}`, ErrRegexp, ".properties.a.pattern"},
		"the same of 1,500 repeats":        {`{"pattern":"` + strings.Repeat(".{0,1000}", 1500) + `"}`, ErrInvalid, ""},
		"nested repeats":                   {`{"pattern":"((a{0,30}){0,30}){0,1}(((b{0,10}){0,10}){0,10}){1,1}"}`, ErrRegexp, ".pattern"},
		"a pattern of classes":             {`{"pattern":"` + strings.Repeat(`\\pL`, 1000) + `"}`, ErrRegexp, ".pattern"},
		"a pattern of a property":          {`{"patternProperties":{".{0,1000}.{0,1000}.{0,1000}.{0,1000}":{}}}`, ErrRegexp, ".patternProperties"},
		"many patterns":                    {`{"allOf":[` + many(200, func(i int) string { return fmt.Sprintf(`{"pattern":"x{%d}"}`, i+700) }) + `]}`, ErrRegexp, ""},
		"a pattern in draft 7":             {`{"$schema":"http://json-schema.org/draft-07/schema#","pattern":".{0,1000}.{0,1000}.{0,1000}.{0,1000}"}`, ErrRegexp, ".pattern"},
		"many subschemas":                  {`{"allOf":[` + list(40_000, `{}`) + `]}`, ErrLarge, ""},
		"what is no subschema, many times": {`{"allOf":[` + list(60_000, `1`) + `]}`, ErrLarge, ""},
		"a property named default":         {`{"properties":{"default":{"allOf":[` + list(60_000, `1`) + `]}}}`, ErrLarge, ""},
		"objects in an enum":               {`{"enum":[` + list(40_000, `{}`) + `]}`, ErrLarge, ""},
		"values in an enum":                {`{"enum":[` + list(60_000, `1`) + `]}`, ErrLarge, ""},
		"many ids":                         {ids(3_000), ErrIDs, ""},
		"references to what is no schema":  {stray(100), ErrRefs, ""},
		"deep nesting":                     {strings.Repeat(`{"not":`, 9_000) + `{}` + strings.Repeat(`}`, 9_000), ErrTooDeep, ""},
		"deep nesting of lists":            {`{"default":` + strings.Repeat(`[`, 9_000) + strings.Repeat(`]`, 9_000) + `}`, ErrTooDeep, ""},
		"too many bytes":                   {`{"description":"` + strings.Repeat("x", MaxBytes) + `"}`, ErrLong, ""},
		"a file":                           {`{"$ref":"file:///etc/passwd"}`, ErrOutside, ""},
		"an address":                       {`{"items":{"$ref":"http://127.0.0.1:1/x"}}`, ErrOutside, ""},
		"an address as the draft":          {`{"$schema":"https://127.0.0.1:1/x"}`, ErrOutside, ""},
		"an address as the draft inside":   {`{"$defs":{"a":{"$id":"a","$schema":"https://127.0.0.1:1/x"}}}`, ErrOutside, ""},
		"an address by the id":             {`{"$id":"http://127.0.0.1:1/x","$ref":"other.json"}`, ErrOutside, ""},
		"dynamic references of two places": {`{"$defs":{"a":{"$id":"a","$dynamicAnchor":"x"}},"$dynamicRef":"a#x"}`, ErrDynamic, ""},
		"no object":                        {`[]`, ErrObject, ""},
		"no JSON":                          {`{`, ErrSyntax, ""},
		"an unknown type":                  {`{"properties":{"a":{"type":"strin"}}}`, ErrInvalid, ".properties.a.type"},
	} {
		t.Run(says, func(t *testing.T) {
			_, err := compileOne(t, c.doc)
			var r *Refusal
			if !errors.As(err, &r) || !errors.Is(err, c.want) {
				t.Fatalf("got %.200v, want %v", err, c.want)
			}
			if c.at != "" && !strings.HasPrefix(r.Path(), c.at) {
				t.Errorf("at %q, want %q", r.Path(), c.at)
			}
			if strings.Contains(err.Error(), "127.0.0.1") || strings.Contains(err.Error(), "passwd") || len(err.Error()) > 200 {
				t.Errorf("the reason tells too much: %s", err)
			}
		})
	}
}

func anchors(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"d%d":{"$anchor":"a%d","allOf":[{"$ref":"#a%d"},{"$ref":"#a%d"}]},`, i, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{"$anchor":"a%d"}`, n, n)
	return b.String()
}

func many(n int, f func(int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("," + f(i))
	}
	return b.String()[1:]
}

// TestWorkIsBounded: schemas that may be good for something, and values that make
// the most of them. The steps end at the budget, the memory far below.
func TestWorkIsBounded(t *testing.T) {
	long := `"` + strings.Repeat("a", 1<<20) + `"`
	trees := func(n int) string { // all different, all of the same bytes when hashed
		return many(n, func(i int) string {
			var b strings.Builder
			for bit := range 16 {
				if i>>bit&1 == 1 {
					b.WriteString(`,["a"],"b"`)
				} else {
					b.WriteString(`,["a","b"]`)
				}
			}
			return "[" + b.String()[1:] + "]"
		})
	}
	deep := strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)
	for says, c := range map[string]struct {
		schema, value string
		budget        bool // it runs out
	}{
		"twice down the value":            {`{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`, deep, true},
		"twice down, any of":              {`{"anyOf":[{"properties":{"a":{"$ref":"#"}},"required":["b"]},{"properties":{"a":{"$ref":"#"}},"required":["c"]}]}`, deep, true},
		"twice down, dynamic":             {`{"$dynamicAnchor":"n","allOf":[{"properties":{"a":{"$dynamicRef":"#n"}}},{"properties":{"a":{"$dynamicRef":"#n"}}}]}`, deep, true},
		"twice down, by patterns":         {`{"patternProperties":{"a":{"$ref":"#"},"^a":{"$ref":"#"}}}`, deep, true},
		"twice down, unevaluated":         {`{"properties":{"a":{"$ref":"#"}},"anyOf":[{"properties":{"a":{"$ref":"#"}}}],"unevaluatedProperties":false}`, deep, true},
		"unique items that hash alike":    {`{"uniqueItems":true}`, `[` + trees(5_000) + `]`, false},
		"unique numbers":                  {`{"uniqueItems":true}`, `[` + many(50_000, func(i int) string { return fmt.Sprintf("%de300", i+1) }) + `]`, false},
		"a long enum, many times":         {`{"items":{"enum":[` + many(20_000, func(i int) string { return fmt.Sprint(i) }) + `]}}`, `[` + many(50_000, func(i int) string { return fmt.Sprint(-i - 1) }) + `]`, true},
		"many required names, many times": {`{"items":{"required":[` + many(10_000, func(i int) string { return fmt.Sprintf(`"r%d"`, i) }) + `]}}`, `[` + many(20_000, func(int) string { return `{}` }) + `]`, true},
		"many faults":                     {`{"items":{"type":"string"}}`, `[` + many(100_000, func(int) string { return `1` }) + `]`, false},
		"many faults, deep":               {strings.Repeat(`{"items":`, 60) + `{"type":"string"}` + strings.Repeat(`}`, 60), strings.Repeat(`[`, 60) + many(100_000, func(int) string { return `1` }) + strings.Repeat(`]`, 60), false},
		"many surplus names":              {`{"additionalProperties":false}`, `{` + many(30_000, func(i int) string { return fmt.Sprintf(`"k%d":1`, i) }) + `}`, false},
		"a large pattern on a long text":  {`{"pattern":"(x|y|a){1,500}b"}`, long, true},
		"a pattern of names":              {`{"patternProperties":{"(x|y|a){1,300}b":true}}`, `{` + many(20_000, func(i int) string { return fmt.Sprintf(`"%s%d":1`, strings.Repeat("a", 20), i) }) + `}`, true},
		"numbers":                         {`{"items":{"multipleOf":1e-400,"minimum":-1e400}}`, `[` + many(100_000, func(i int) string { return fmt.Sprintf("%de399", i%9+1) }) + `]`, true},
		"contains":                        {`{"contains":{"contains":{"const":1}}}`, `[` + many(300, func(int) string { return `[` + many(300, func(int) string { return `0` }) + `]` }) + `]`, false},
		"unevaluated names":               {`{"anyOf":[` + many(400, func(i int) string { return fmt.Sprintf(`{"properties":{"p%d":true}}`, i) }) + `],"unevaluatedProperties":false}`, `{` + many(30_000, func(i int) string { return fmt.Sprintf(`"k%d":1`, i) }) + `}`, true},
		"a chain down the value":          {`{"$ref":"#/$defs/c0","$defs":{` + many(190, func(i int) string { return fmt.Sprintf(`"c%d":{"$ref":"#/$defs/c%d"}`, i, i+1) }) + `,"c190":{"properties":{"a":{"$ref":"#"}}}}}`, deep, true},
		"a format regex":                  {`{"format":"regex"}`, `"` + strings.Repeat(".{0,1000}", 400) + `"`, false},
		"many texts that are a regex":     {`{"items":{"format":"regex"}}`, `[` + many(20_000, func(int) string { return `"(x{9}){99}.{999}"` }) + `]`, true},
		"classes of Unicode in a regex":   {`{"items":{"format":"regex"}}`, `[` + many(50, func(int) string { return `"` + strings.Repeat(`\\pL`, 1_000) + `("` }) + `]`, true},
		"wide ranges, folded, in a regex": {`{"items":{"format":"regex"}}`, `["(?i)[` + strings.Repeat("B-\U0001e942", 600) + `]"]`, true},
		"a long name, many times":         {`{"allOf":[` + many(450, func(int) string { return `{"additionalProperties":false}` }) + `]}`, `{` + long + `:1}`, false},
		"under a long name, many times":   {`{"additionalProperties":{"items":{"type":"string"}}}`, `{` + long + `:[` + many(900, func(int) string { return `1` }) + `]}`, false},
		"a deep error":                    {strings.Repeat(`{"allOf":[`, 25) + `{"items":` + strings.Repeat(`{"allOf":[`, 25) + `{"type":"string"}` + strings.Repeat(`]}`, 25) + `}` + strings.Repeat(`]}`, 25), `[` + many(2_000, func(int) string { return `1` }) + `]`, false},
		"a format on a long text":         {`{"items":{"format":"uri"}}`, `[` + long + `]`, false},
		"the draft as a schema":           {`{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, `{"allOf":[` + many(20_000, func(int) string { return `{"type":1}` }) + `]}`, false},
	} {
		t.Run(says, func(t *testing.T) {
			s, err := compileOne(t, c.schema)
			if err != nil {
				t.Fatal(err)
			}
			v, err := Decode([]byte(c.value))
			if err != nil {
				t.Fatal(err)
			}
			budget := maxSteps
			if c.budget {
				budget /= 10 // it runs out here too, in a tenth of the time
			}
			var steps int
			if n := checktest.Grows(func() { steps, err = s.check(t.Context(), v, budget) }); n > checktest.Most {
				t.Errorf("checking allocates %d MB", n>>20)
			}
			if errors.Is(err, ErrBudget) != c.budget {
				t.Errorf("%d steps: %.200v", steps, err)
			}
			if steps > budget {
				t.Errorf("%d steps", steps)
			}
			if err != nil {
				if n := checktest.Grows(func() { _ = err.Error() }); n > 50<<20 {
					t.Errorf("the error takes %d MB", n>>20)
				}
			}
		})
	}
}

// TestValuesAreBounded: texts that take much more memory than their length.
func TestValuesAreBounded(t *testing.T) {
	for says, c := range map[string]struct {
		doc  string
		want error
	}{
		"small objects":      {`[` + strings.TrimSuffix(strings.Repeat(`{"":0},`, 500_000), ",") + `]`, ErrMany},
		"empty lists":        {`[` + strings.TrimSuffix(strings.Repeat(`[],`, 1_000_000), ",") + `]`, ErrMany},
		"digits":             {`[` + strings.TrimSuffix(strings.Repeat(`0,`, 2_000_000), ",") + `]`, ErrMany},
		"names":              {`{` + strings.TrimSuffix(strings.Repeat(`"":0,`, 800_000), ",") + `}`, ErrMany},
		"deep nesting":       {strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999), ErrDeep},
		"deeper":             {strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), ErrNoJSON},
		"a number":           {`1e999999`, ErrHuge},
		"a negative one":     {`[-1e-999999]`, ErrHuge},
		"of many digits":     {`{"a":0.` + strings.Repeat("1", 500) + `}`, ErrHuge},
		"a sane one":         {`{"a":-1.5e300,"b":"1e999999","c":[true,false,null,"\"[[[["]}`, nil},
		"a long honest text": {`"` + strings.Repeat("x", 4<<20) + `"`, nil},
	} {
		t.Run(says, func(t *testing.T) {
			var err error
			if n := checktest.Grows(func() { _, err = Decode([]byte(c.doc)) }); n > checktest.Most {
				t.Errorf("%d MB", n>>20)
			}
			if !errors.Is(err, c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

// ends is a context that ends after it was looked at a few times.
type ends struct {
	context.Context
	looks int
}

func (e *ends) Err() error {
	if e.looks--; e.looks < 0 {
		return context.Canceled
	}
	return nil
}

// TestACheckEndsWithItsContext: the steps after the end are counted.
func TestACheckEndsWithItsContext(t *testing.T) {
	s, err := compileOne(t, `{"allOf":[{"properties":{"a":{"$ref":"#"}}},{"properties":{"a":{"$ref":"#"}}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Decode([]byte(strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100)))
	if err != nil {
		t.Fatal(err)
	}
	steps, err := s.check(&ends{t.Context(), 4}, v, maxSteps)
	if !errors.Is(err, context.Canceled) || steps > 6*lookAfter {
		t.Fatalf("%d steps, %v", steps, err)
	}
}

// TestCompilingIsBounded: only a few schemas are compiled at a time, and a waiting caller
// leaves with its context.
func TestCompilingIsBounded(t *testing.T) {
	a, b := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	if !compiling.Try(a) || !compiling.Try(b) {
		t.Fatal("two tenants cannot compile")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compile(ctx, json.RawMessage(`{}`), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := newCache().schema(ctx, json.RawMessage(`{}`), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := newCache().patterns(ctx, []string{"x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	compiling.Give(b)
	// A tenant that compiles holds up its own next one only.
	for _, compile := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := Compile(ctx, json.RawMessage(`{}`), Options{}); return err },
		func(ctx context.Context) error {
			_, err := newCache().schema(ctx, json.RawMessage(`{}`), Options{})
			return err
		},
		func(ctx context.Context) error { _, err := newCache().patterns(ctx, []string{"x"}); return err },
	} {
		soon, end := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := compile(turn.With(soon, a)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the tenant's second: %v", err)
		}
		end()
		if err := compile(turn.With(t.Context(), b)); err != nil {
			t.Errorf("another tenant's: %v", err)
		}
	}
	compiling.Give(a)
	if _, err := Compile(turn.With(t.Context(), a), json.RawMessage(`{}`), Options{}); err != nil {
		t.Error(err)
	}
}

// A tenant with many large schemas pushes out its own compiled ones, not those of others.
func TestATenantFillsItsOwnPartOfTheCache(t *testing.T) {
	c := newCache()
	ctx := turn.With(t.Context(), id.TenantID{UUID: id.NewAnywhere()})
	small := json.RawMessage(`{"title":"small"}`)
	kept, err := c.schema(ctx, small, Options{})
	if err != nil {
		t.Fatal(err)
	}
	hostile := id.TenantID{UUID: id.NewAnywhere()}
	for i := range maxCached + 10 {
		c.keep(&cached{key: cacheKey{sum: [32]byte{byte(i), byte(i >> 8)}}, weight: 1 << 20, tenant: hostile})
	}
	if c.bytes > maxCachedBytes || c.of[hostile] != c.bytes-c.of[turn.Tenant(ctx)] || len(c.kept) != c.order.Len() || len(c.kept) < 40 {
		t.Errorf("%d bytes in %d results, %v", c.bytes, len(c.kept), c.of)
	}
	if again, err := c.schema(ctx, small, Options{}); err != nil || again != kept {
		t.Error("the other tenant's schema was compiled again", err)
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	c := newCache()
	first := json.RawMessage(`{"title":"first"}`)
	a, err := c.schema(t.Context(), first, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := c.schema(t.Context(), first, Options{}); err != nil || a != b {
		t.Fatal("compiled twice", err)
	}
	if b, err := c.schema(t.Context(), first, Options{Formats: true}); err != nil || a == b {
		t.Fatal("one schema for two ways to read it", err)
	}
	bad := json.RawMessage(`{"type":"x"}`)
	_, err1 := c.schema(t.Context(), bad, Options{})
	if _, err2 := c.schema(t.Context(), bad, Options{}); !errors.Is(err1, ErrInvalid) || !errors.Is(err2, ErrInvalid) {
		t.Fatal(err1, err2)
	}
	fill := strings.Repeat("x", 100<<10)
	for i := range 300 {
		if _, err := c.schema(t.Context(), json.RawMessage(fmt.Sprintf(`{"title":"%d %s"}`, i, fill)), Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if c.bytes > maxCachedBytes || len(c.kept) != c.order.Len() || len(c.kept) < 50 {
		t.Fatalf("%d schemas, %d bytes", len(c.kept), c.bytes)
	}
	if b, err := c.schema(t.Context(), first, Options{}); err != nil || a == b {
		t.Fatal("the schema that was used last was not dropped", err)
	}
}

// TestPatterns: the compiled size, counted before anything is compiled.
func TestPatterns(t *testing.T) {
	for _, expr := range []string{
		strings.Repeat(`.{0,1000}`, 400), `((a{0,10}){0,10}){0,10}(b{0,900}){0,1}c{0,900}d{0,900}`, `(a{0,500}){2}(b{0,900}){1}(c{0,900}){1}(d{0,900}){1}(e{0,900}){1}(f{0,900}){1}`,
		strings.Repeat(`\p{L}`, 600), `[\pL\pN]{0,1000}`, "(?i)[" + strings.Repeat("B-\U0001e942", 600) + "]", "(?i:[" + strings.Repeat(`B-\x{1e942}`, 300) + "])",
	} {
		var err error
		if n := checktest.Grows(func() { _, err = new(Patterns).Compile(expr) }); n > checktest.Most/4 || !errors.Is(err, ErrPattern) {
			t.Errorf("%.40s: %d MB, %v", expr, n>>20, err)
		}
	}
	for _, expr := range []string{strings.Repeat(".{0,1000}", 1500), `((a{0,100}){0,100}){0,10}`} {
		var err error
		if n := checktest.Grows(func() { _, err = new(Patterns).Compile(expr) }); n > 1<<20 || err == nil {
			t.Errorf("%.40s: %d bytes, %v", expr, n, err)
		}
	}
	p := &Patterns{}
	for _, expr := range []string{
		`^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}\.[A-Za-z]{2,63}$`, `\b\d{4}[ -]?\d{4}[ -]?\d{4}[ -]?\d{4}\b`, `^.{1,1000}$`,
		`^\p{L}[\p{L}\p{M}' -]{0,10}$`, `(?i)^(iban|bic):\s*[a-z]{2}\d{2}[a-z0-9]{11,30}$`,
		`^(?:[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})$`,
	} {
		if _, err := p.Compile(expr); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
	}
	if _, err := p.Compile("("); err == nil || errors.Is(err, ErrPattern) {
		t.Error(err)
	}
}

// reference compiles with the library alone.
func reference(doc string) (*jsonschema.Schema, error) {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(doc))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.UseLoader(closed{})
	if err := c.AddResource(address, v); err != nil {
		return nil, err
	}
	return c.Compile(address)
}

// TestChecksAsTheLibraryDoes draws schemas and values of a small world, in which
// keywords meet often, and compares with the library's own validator.
func TestChecksAsTheLibraryDoes(t *testing.T) {
	accepted, refused := 0, 0
	for seed := range uint64(500) {
		d := &draw{rand.New(rand.NewPCG(seed, 19)), ""}
		doc := d.document()
		s, err := Compile(t.Context(), json.RawMessage(doc), Options{Formats: true, Dynamic: true})
		if errors.Is(err, ErrCycle) {
			continue
		}
		theirs, refErr := reference(doc)
		if (refErr != nil) != (err != nil) {
			t.Fatalf("seed %d: %s\nours: %v\nreference: %v", seed, doc, err, refErr)
		}
		if err != nil {
			continue
		}
		for range 30 {
			value := d.value(3)
			v, err := Decode([]byte(value))
			if err != nil {
				t.Fatal(err)
			}
			got, want := s.Check(t.Context(), v), theirs.Validate(v)
			if (got == nil) != (want == nil) {
				t.Fatalf("seed %d: %s\nvalue %s\nours: %v\nreference: %v", seed, doc, value, got, want)
			}
			if got == nil {
				accepted++
				continue
			}
			refused++
			var e *jsonschema.ValidationError
			if !errors.As(got, &e) || e.Error() == "" {
				t.Fatalf("seed %d: %v", seed, got)
			}
		}
	}
	if accepted < 2_000 || refused < 2_000 {
		t.Fatalf("%d values were accepted, %d refused: too few to say anything", accepted, refused)
	}
}

// draw makes up schemas and values.
type draw struct {
	*rand.Rand
	draft string
}

func (d *draw) pick(list ...string) string { return list[d.IntN(len(list))] }

func (d *draw) document() string {
	d.draft = d.pick("", "", "", "https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema", "http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#")
	body := d.schema(4)
	if body == "true" || body == "false" {
		body = "{}"
	}
	head := ""
	if d.draft != "" {
		head = fmt.Sprintf(`"$schema":%q,`, d.draft)
	}
	defs := fmt.Sprintf(`"$defs":{"x":%s,"y":%s}`, d.schema(2), d.schema(2))
	if body == "{}" {
		return "{" + head + defs + "}"
	}
	return "{" + head + defs + "," + body[1:]
}

func (d *draw) list(n, depth int) string {
	return "[" + many(n, func(int) string { return d.schema(depth) }) + "]"
}

func (d *draw) schema(depth int) string {
	old := strings.Contains(d.draft, "draft-04")
	if depth == 0 || d.IntN(8) == 0 {
		if old {
			return d.pick(`{}`, `{"type":"integer"}`, `{"type":"string"}`)
		}
		return d.pick(`true`, `false`, `{}`, `{"type":"integer"}`, `{"type":"string"}`, `{"$ref":"#/$defs/x"}`, `{"$ref":"#/$defs/y"}`, `{"type":["object","array"]}`)
	}
	words := map[string]string{}
	for range 1 + d.IntN(3) {
		switch d.IntN(32) {
		case 0:
			words["type"] = d.pick(`"object"`, `"array"`, `"string"`, `"number"`, `"integer"`, `"null"`, `["object","null"]`, `["array","integer"]`)
		case 1:
			words["enum"] = d.pick(`[1,"a"]`, `[[1],{"a":1},null]`, `[1.0,2,"b"]`, `[{"a":{"b":1e0}},[]]`)
		case 2:
			words["const"] = d.value(1)
		case 3, 4, 5:
			words["properties"] = fmt.Sprintf(`{"a":%s,"b":%s}`, d.schema(depth-1), d.schema(depth-1))
		case 6:
			words["patternProperties"] = fmt.Sprintf(`{"^[ac]":%s}`, d.schema(depth-1))
		case 7:
			words["additionalProperties"] = d.schema(depth - 1)
		case 8:
			words["required"] = d.pick(`["a"]`, `["a","b"]`, `["c"]`)
		case 9:
			words[d.pick("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength")] = d.pick("0", "1", "2")
		case 10:
			words["propertyNames"] = d.pick(`{"maxLength":1}`, `{"pattern":"^[ab]"}`, `{"enum":["a","b"]}`)
		case 11:
			words["dependentRequired"] = `{"a":["b"]}`
		case 12:
			words["dependentSchemas"] = fmt.Sprintf(`{"a":%s}`, d.schema(depth-1))
		case 13:
			words["unevaluatedProperties"] = d.schema(depth - 1)
		case 14:
			words["unevaluatedItems"] = d.schema(depth - 1)
		case 15, 16:
			words["items"] = d.schema(depth - 1)
		case 17:
			words["prefixItems"] = d.list(2, depth-1)
		case 18:
			words["contains"] = d.schema(depth - 1)
			if d.IntN(2) == 0 {
				words[d.pick("minContains", "maxContains")] = d.pick("0", "1", "2")
			}
		case 19:
			words["uniqueItems"] = "true"
		case 20:
			words["pattern"] = d.pick(`"^a"`, `"b$"`, `"[a-c]{2,3}"`)
		case 21:
			words["format"] = d.pick(`"email"`, `"date"`, `"uuid"`, `"regex"`, `"uri"`, `"unknown"`)
		case 22:
			words[d.pick("minimum", "maximum", "multipleOf")] = d.pick("1", "2", "1.5", "1e2", "0.1")
		case 23:
			words["not"] = d.schema(depth - 1)
		case 24:
			words["allOf"] = d.list(2, depth-1)
		case 25:
			words["anyOf"] = d.list(2, depth-1)
		case 26:
			words["oneOf"] = d.list(2, depth-1)
		case 27:
			words["if"], words["then"] = d.schema(depth-1), d.schema(depth-1)
			if d.IntN(2) == 0 {
				words["else"] = d.schema(depth - 1)
			}
		case 28:
			words["$ref"] = d.pick(`"#/$defs/x"`, `"#/$defs/y"`, `"#"`)
		case 29:
			words["dependencies"] = d.pick(`{"a":["b"]}`, fmt.Sprintf(`{"a":%s}`, d.schema(depth-1)))
		case 30:
			if strings.Contains(d.draft, "draft-0") || strings.Contains(d.draft, "2019") {
				words["items"], words["additionalItems"] = d.list(2, depth-1), d.schema(depth-1)
			}
		case 31:
			if !old {
				words[d.pick("exclusiveMinimum", "exclusiveMaximum")] = d.pick("1", "2", "1.5")
			}
		}
	}
	var b strings.Builder
	for k, v := range words {
		fmt.Fprintf(&b, ",%q:%s", k, v)
	}
	if b.Len() == 0 {
		return "{}"
	}
	return "{" + b.String()[1:] + "}"
}

func (d *draw) value(depth int) string {
	n := 8
	if depth > 0 {
		n = 14
	}
	switch d.IntN(n) {
	case 0:
		return "null"
	case 1:
		return d.pick("true", "false")
	case 2, 3, 4:
		return d.pick("1", "2", "1.0", "1.5", "-3", "100", "1e2", "0.3", "10e-1", "0", "-0.0", "3")
	case 5, 6, 7:
		return d.pick(`"a"`, `"b"`, `"ab"`, `"abc"`, `"x@example.com"`, `"2026-11-23"`, `""`, `"é"`, `"1"`)
	case 8, 9, 10:
		if d.IntN(5) == 0 {
			return "{}"
		}
		return "{" + many(1+d.IntN(3), func(i int) string {
			return fmt.Sprintf(`%q:%s`, []string{"a", "b", "c"}[(i+d.IntN(2))%3], d.value(depth-1))
		}) + "}"
	default:
		if d.IntN(5) == 0 {
			return "[]"
		}
		return "[" + many(1+d.IntN(4), func(int) string { return d.value(depth - 1) }) + "]"
	}
}

// TestTheDraftIsASchemaToo: references to the metaschemas, whose own references
// are dynamic.
func TestTheDraftIsASchemaToo(t *testing.T) {
	for _, draft := range []string{"https://json-schema.org/draft/2020-12/schema", "https://json-schema.org/draft/2019-09/schema", "http://json-schema.org/draft-07/schema"} {
		doc := fmt.Sprintf(`{"properties":{"s":{"$ref":%q}}}`, draft)
		s, err := compileOne(t, doc)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := reference(doc)
		if err != nil {
			t.Fatal(err)
		}
		for value, ok := range map[string]bool{
			`{"s":{"properties":{"a":{"type":"string"}}}}`:                      true,
			`{"s":{"properties":{"a":{"type":"strin"}}}}`:                       false,
			`{"s":{"allOf":[{"items":{"not":{"minLength":1}}}]}}`:               true,
			`{"s":{"allOf":[{"items":{"not":{"minLength":-1}}}]}}`:              false,
			`{"s":{"allOf":[{"properties":{"x":{"not":{"required":1}}}}]}}`:     false,
			`{"s":{"allOf":[{"properties":{"x":{"not":{"required":["a"]}}}}]}}`: true,
		} {
			v, err := Decode([]byte(value))
			if err != nil {
				t.Fatal(err)
			}
			want := theirs.Validate(v)
			if err := s.Check(t.Context(), v); (err == nil) != ok || (want == nil) != ok {
				t.Errorf("%s: %s: %v, reference %v", draft, value, err, want)
			}
		}
	}
}

func FuzzCompile(f *testing.F) {
	f.Add(`{"properties":{"a":{"type":"integer"}}}`, `{"a":"x"}`)
	f.Add(`{"$ref":"file:///etc/passwd"}`, `{}`)
	f.Add(`{"propertyNames":{"pattern":"^a"},"unevaluatedProperties":false}`, `{"b":{"c":1e5}}`)
	f.Add(`{"$id":"x","$defs":{"a":{"$id":"b","$anchor":"c"}},"$ref":"b#c"}`, `1`)
	f.Fuzz(func(t *testing.T, doc, value string) {
		s, err := Compile(t.Context(), json.RawMessage(doc), Options{Formats: true, Dynamic: true})
		var r *Refusal
		if err != nil {
			if !errors.As(err, &r) {
				t.Fatal(err)
			}
			_ = r.Path()
			return
		}
		v, err := Decode([]byte(value))
		if err != nil {
			return
		}
		if got := s.Check(t.Context(), v); got != nil && errors.Is(got, ErrCycle) {
			t.Fatalf("%s refers to itself and was accepted", doc)
		}
	})
}

// TestTheLargestSchemas: what is just within the bounds compiles, and takes what
// one request may take.
func TestTheLargestSchemas(t *testing.T) {
	for says, doc := range map[string]string{
		"subschemas":   `{"allOf":[` + many(2_900, func(i int) string { return `{"type":"string"}` }) + `]}`,
		"properties":   `{"properties":{` + many(2_900, func(i int) string { return fmt.Sprintf(`"p%d":{"type":["string","null"]}`, i) }) + `}}`,
		"not schemas":  `{"allOf":[` + many(2_900, func(i int) string { return `1` }) + `]}`,
		"deep":         `{"allOf":[` + many(44, func(int) string { return strings.Repeat(`{"items":`, 60) + `1` + strings.Repeat(`}`, 60) }) + `]}`,
		"an enum":      `{"enum":[` + many(19_000, func(i int) string { return fmt.Sprint(i) }) + `]}`,
		"an enum of 7": `{"$schema":"http://json-schema.org/draft-07/schema#","enum":[` + many(19_000, func(i int) string { return fmt.Sprint(i) }) + `]}`,
		"patterns":     `{"allOf":[` + many(9, func(i int) string { return fmt.Sprintf(`{"pattern":"(x|yz|%d){1,140}"}`, i) }) + `]}`,
		"references":   `{"allOf":[` + many(1_400, func(i int) string { return fmt.Sprintf(`{"$ref":"#/$defs/d%d"}`, i) }) + `],"$defs":{` + many(1_400, func(i int) string { return fmt.Sprintf(`"d%d":{}`, i) }) + `}}`,
		"strays":       `{"allOf":[` + many(95, func(i int) string { return fmt.Sprintf(`{"$ref":"#/x/d%d"}`, i) }) + `],"$defs":{` + many(1_800, func(i int) string { return fmt.Sprintf(`"d%d":{}`, i) }) + `},"x":{` + many(190, func(i int) string { return fmt.Sprintf(`"d%d":{"type":"string"}`, i) }) + `}}`,
		"ids":          `{"$defs":{` + many(99, func(i int) string { return fmt.Sprintf(`"d%d":{"$id":"d%d","items":[1]}`, i, i) }) + `}}`,
		"required":     `{"required":[` + many(10_000, func(i int) string { return fmt.Sprintf(`"r%d"`, i) }) + `]}`,
		"alike when hashed": `{"required":[` + many(1_000, func(i int) string {
			s := ""
			for bit := range 10 {
				s += []string{`,["a","b"]`, `,["a"],"b"`}[i>>bit&1]
			}
			return "[" + s[1:] + "]"
		}) + `]}`,
	} {
		t.Run(says, func(t *testing.T) {
			if len(doc) > MaxBytes {
				t.Fatalf("%d bytes", len(doc))
			}
			began := time.Now()
			var err error
			n := checktest.Grows(func() { _, err = Compile(t.Context(), json.RawMessage(doc), Options{}) })
			t.Logf("%d MB, %v, %.100v", n>>20, time.Since(began), err)
			if n > checktest.Most {
				t.Errorf("%d MB", n>>20)
			}
		})
	}
}
