package skill

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

func parsed(t testing.TB, changes ...at) *Definition {
	t.Helper()
	s, err := Parse(input(t, changes...))
	if err != nil {
		t.Fatal(err)
	}
	return s.Definition
}

func faultsOf(fields []problem.Field) string {
	var out []string
	for _, f := range fields {
		out = append(out, f.Path+": "+f.Message)
	}
	return strings.Join(out, "; ")
}

// one is a definition with one parameter, which a step types.
func one(p string) *Definition {
	var param Param
	if err := json.Unmarshal([]byte(p), &param); err != nil {
		panic(err)
	}
	return &Definition{Params: []Param{param}, Steps: []Step{{ID: "s", Kind: Type, Param: param.Name}}}
}

// service.md, Execution rules: values are capped, stripped, coerced and checked before anything
// runs.
func TestValues(t *testing.T) {
	t.Parallel()
	const str, num, integer, boolean = `{"name": "x", "type": "string"}`, `{"name": "x", "type": "number"}`, `{"name": "x", "type": "integer"}`, `{"name": "x", "type": "boolean"}`
	const date, enum = `{"name": "x", "type": "date"}`, `{"name": "x", "type": "enum", "enum": ["a b", "2", "true"]}`
	for _, row := range []struct{ param, value, json, text, fault string }{
		{str, `"Ada"`, `"Ada"`, "Ada", ""},
		{str, `""`, `""`, "", ""},
		{str, `12.50`, `"12.50"`, "12.50", ""},
		{str, `true`, `"true"`, "true", ""},
		{str, `null`, "", "", "x: must be a string"},
		{str, `["a"]`, "", "", "x: must be a string"},
		{str, `{}`, "", "", "x: must be a string"},
		{str, `"a\u0000b\u202ec\u2066d\u007f\u0085"`, `"abcd"`, "abcd", ""},
		{str, `"\ta\r\nb\n"`, `"a b"`, "a b", ""},
		{str, `"\u200ea\u200d\u061c"`, "\"\u200ea\u200d\u061c\"", "\u200ea\u200d\u061c", ""}, // marks and joiners stay
		{str, `"<&>"`, `"<&>"`, "<&>", ""},
		{str, long(2000), long(2000), strings.Repeat("x", 2000), ""},
		{str, long(2001), "", "", "x: must have at most 2000 characters"},
		{str, `"` + strings.Repeat("ü", 2000) + `\u0007"`, `"` + strings.Repeat("ü", 2000) + `"`, strings.Repeat("ü", 2000), ""},
		{`{"name": "x", "type": "string", "max_length": 3}`, `"abc"`, `"abc"`, "abc", ""},
		{`{"name": "x", "type": "string", "max_length": 3}`, `"abcd"`, "", "", "x: must have at most 3 characters"},
		{`{"name": "x", "type": "string", "pattern": "^[A-Z]{2}$"}`, `"AB"`, `"AB"`, "AB", ""},
		{`{"name": "x", "type": "string", "pattern": "^[A-Z]{2}$"}`, `"ABC"`, "", "", "x: must match the pattern ^[A-Z]{2}$"},
		{`{"name": "x", "type": "string", "pattern": "^[A-Z]{2}$"}`, `"A\u202eB\n"`, `"AB"`, "AB", ""},
		{num, `1.50`, `1.5`, "1.5", ""},
		{num, `"1.50"`, `1.5`, "1.5", ""},
		{num, `" -1e2 "`, `-100`, "-100", ""},
		{num, `1E-3`, `0.001`, "0.001", ""},
		{num, `-0.0`, `0`, "0", ""},
		{num, `0e999999999999`, `0`, "0", ""},
		{num, `1e999999999999`, "", "", "x: has too many digits"},
		{num, `1e41`, "", "", "x: has too many digits"},
		{num, `1e39`, `1` + strings.Repeat("0", 39), "1" + strings.Repeat("0", 39), ""},
		{num, `0.1000000000000000055`, `0.1000000000000000055`, "0.1000000000000000055", ""},
		{num, `"1,5"`, "", "", "x: must be a number"},
		{num, `"0x10"`, "", "", "x: must be a number"},
		{num, `"+1"`, "", "", "x: must be a number"},
		{num, `"01"`, "", "", "x: must be a number"},
		{num, `"Infinity"`, "", "", "x: must be a number"},
		{num, `""`, "", "", "x: must be a number"},
		{num, `true`, "", "", "x: must be a number"},
		{`{"name": "x", "type": "number", "min": 0.1, "max": 1}`, `0.1`, `0.1`, "0.1", ""},
		{`{"name": "x", "type": "number", "min": 0.1, "max": 1}`, `0.09999`, "", "", "x: must be at least 0.1"},
		{`{"name": "x", "type": "number", "min": 0.1, "max": 1}`, `"1.0000000000000001"`, "", "", "x: must be at most 1"},
		{integer, `7`, `7`, "7", ""},
		{integer, `7.0`, `7`, "7", ""},
		{integer, `"7e1"`, `70`, "70", ""},
		{integer, `7.5`, "", "", "x: must be an integer"},
		{integer, `9007199254740991`, `9007199254740991`, "9007199254740991", ""},
		{integer, `9007199254740992`, "", "", "x: must be from -9007199254740991 to 9007199254740991"},
		{integer, `-9007199254740992`, "", "", "x: must be from -9007199254740991 to 9007199254740991"},
		{integer, `false`, "", "", "x: must be an integer"},
		{boolean, `true`, `true`, "true", ""},
		{boolean, `" False"`, `false`, "false", ""},
		{boolean, `1`, "", "", "x: must be true or false"},
		{boolean, `"yes"`, "", "", "x: must be true or false"},
		{enum, `"a b"`, `"a b"`, "a b", ""},
		{enum, `" a b\n"`, `"a b"`, "a b", ""},
		{enum, `2`, `"2"`, "2", ""},
		{enum, `true`, `"true"`, "true", ""},
		{enum, `"A B"`, "", "", "x: must be one of the values of the parameter"},
		{enum, `[]`, "", "", "x: must be one of the values of the parameter"},
		{date, `"2024-02-29"`, `"2024-02-29"`, "2024-02-29", ""},
		{date, `" 2024-02-29 "`, `"2024-02-29"`, "2024-02-29", ""},
		{date, `"2023-02-29"`, "", "", "x: must be a date: YYYY-MM-DD"},
		{date, `"1900-02-29"`, "", "", "x: must be a date: YYYY-MM-DD"},
		{date, `"2000-02-29"`, `"2000-02-29"`, "2000-02-29", ""},
		{date, `"2024-00-10"`, "", "", "x: must be a date: YYYY-MM-DD"},
		{date, `"2024-04-31"`, "", "", "x: must be a date: YYYY-MM-DD"},
		{date, `"24-4-1"`, "", "", "x: must be a date: YYYY-MM-DD"},
		{date, `20240401`, "", "", "x: must be a date: YYYY-MM-DD"},
	} {
		d := one(row.param)
		b, faults, err := d.Bind(t.Context(), ForDryRun, json.RawMessage(`{"x": `+row.value+`}`))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := b.Values.Text("x")
		if got := faultsOf(faults); got != row.fault || text != row.text {
			t.Errorf("%s of %.80s: %q, fault %q", row.value, row.param, text, got)
		}
		if want := `{"x":` + row.json + `}`; row.fault == "" && string(b.Values.JSON()) != want {
			t.Errorf("%s of %.80s: %s, want %s", row.value, row.param, b.Values.JSON(), want)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	d := parsed(t)
	for _, row := range []struct {
		form        Form
		args, fault string
	}{
		{ForRun, `{"order": 1, "customer": "Ada", "reason": "asked"}`, ""},
		{ForRun, `{"order": 1, "customer": "Ada"}`, "reason: is required"},
		{ForRun, `{"order": 1, "customer": "Ada", "reason": ""}`, "reason: must have 1 to 1000 characters"},
		{ForRun, `{"order": 1, "customer": "Ada", "reason": ` + long(1000) + `}`, ""},
		{ForRun, `{"order": 1, "customer": "Ada", "reason": ` + long(1001) + `}`, "reason: must have 1 to 1000 characters"},
		{ForRun, `{"order": 1, "customer": "Ada", "reason": 5}`, "reason: must be a string"},
		{ForEdit, `{"order": 1, "customer": "Ada"}`, ""}, // an edit need not repeat reason
		{ForDryRun, `{"order": 1, "customer": "Ada"}`, ""},
		{ForDryRun, `{"order": 1, "customer": "Ada", "reason": "x"}`, "reason: is not a parameter of this skill"},
		{ForDryRun, `{"order": 1}`, "customer: is required"},
		{ForDryRun, `{}`, "order: is required; customer: is required"},
		{ForDryRun, `{"order": 1, "customer": "Ada", "unbound": "2024-01-01"}`, "unbound: is not a parameter of this skill"},
		{ForDryRun, `{"order": 1, "customer": "Ada", "Customer": "x"}`, "args.Customer: is not a parameter of this skill"},
		{ForDryRun, `{"order": 1, "customer": "Ada", "a b": "x"}`, `args["a b"]: is not a parameter of this skill`},
		{ForDryRun, `{"order": 1, "order": 2, "customer": "Ada"}`, "args.order: is there twice"},
		{ForDryRun, `{"order": 0, "customer": "<"}`, "order: must be at least 1; customer: must match the pattern ^[^<>]*$"},
		{ForDryRun, `[]`, "args: must be an object"},
		{ForDryRun, ``, "args: must be an object"},
		{ForDryRun, `{`, "args: must be an object"},
		{ForDryRun, "{\"customer\": \"\xff\"}", "args: must be an object"},
		{ForDryRun, `{"customer": "` + strings.Repeat("x", 1<<20) + `"}`, "args: must have at most 1048576 bytes"},
	} {
		_, faults, err := d.Bind(t.Context(), row.form, json.RawMessage(row.args))
		if got := faultsOf(faults); err != nil || got != row.fault {
			t.Errorf("%.80s: got %q, want %q, %v", row.args, got, row.fault, err)
		}
	}
	if p := InvalidArgs([]problem.Field{{Path: "order", Message: "is required"}}); p.Code != problem.CodeInvalidArgs || p.Status() != 422 || p.Detail != "order: is required" {
		t.Errorf("%v", p)
	}
}

// Values land in addresses percent-encoded, and never change their structure.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ template, value, want, fault string }{
		{"https://h.example/o/{{x}}", "A-1", "https://h.example/o/A-1", ""},
		{"https://h.example/o/{{ x }}/e", "a/b?c#d", "https://h.example/o/a%2Fb%3Fc%23d/e", ""},
		{"https://h.example/?q={{x}}&r=1", "a&r=2 +%", "https://h.example/?q=a%26r%3D2%20%2B%25&r=1", ""},
		{"https://h.example/{{x}}", "ü", "https://h.example/%C3%BC", ""},
		{"https://h.example/a/{{x}}/b", "..", "", "x: must not make . or .. a segment of an address"},
		{"https://h.example/a/{{x}}", ".", "", "x: must not make . or .. a segment of an address"},
		{"https://h.example/a/.{{x}}/b", ".", "", "x: must not make . or .. a segment of an address"},
		{"https://h.example/a/%2e{{x}}?b", ".", "", "x: must not make . or .. a segment of an address"},
		{"https://h.example/a/{{x}}{{x}}", ".", "", "x: must not make . or .. a segment of an address"},
		{"https://h.example/a/{{x}}", "...", "https://h.example/a/...", ""},
		{"https://h.example/a/{{x}}", "%2e%2e", "https://h.example/a/%252e%252e", ""},
		{"https://h.example/?p={{x}}", "..", "https://h.example/?p=..", ""},
		{"https://h.example/a/{{x}}", "", "", "x: must not be empty: it is a part of an address"},
		{"https://h.example/?p={{x}}", "", "https://h.example/?p=", ""},
		{"https://h.example/?p={{x}}", strings.Repeat("x", 2000), "https://h.example/?p=" + strings.Repeat("x", 2000), ""},
		{"https://h.example/?p={{x}}", strings.Repeat("ü", 500), "", "x: makes an address longer than 2048 bytes"},
		{"https://h.example/?p={{x}}{{x}}", strings.Repeat("x", 1100), "", "x: makes an address longer than 2048 bytes"},
	} {
		text := Text(row.template)
		d := &Definition{Params: []Param{{Name: "x", Type: String, AllowInURL: true}}, Steps: []Step{{ID: "s", Kind: Navigate, Value: &text}}}
		args, _ := json.Marshal(map[string]string{"x": row.value})
		b, faults, err := d.Bind(t.Context(), ForDryRun, args)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := d.Steps[0].ValueOf(b.Values)
		if f := faultsOf(faults); f != row.fault || got != row.want || ok != (row.fault == "") {
			t.Errorf("%s with %.40q: %q, fault %q", row.template, row.value, got, f)
		}
	}
}

// The same by the library's parser, over random values: scheme, host, number of segments and names
// of the query stay, and every decoded value is the value.
func TestLawsOfAddresses(t *testing.T) {
	t.Parallel()
	templates := []string{"https://h.example/a/{{x}}/b", "https://h.example/{{x}}-{{y}}?q={{x}}", "https://h.example:8443/?a=1&{{y}}={{x}}&z={{y}}", "http://h.example:8080/p/{{x}}.html#top"}
	saw := 0
	one := func(t *rapid.T) {
		template := rapid.SampledFrom(templates).Draw(t, "template")
		value := rapid.OneOf(rapid.String(), rapid.StringMatching(`[./%\\?#&=@:;{} 2eE]{0,6}`))
		values := map[string]string{"x": Clean(value.Draw(t, "x")), "y": Clean(value.Draw(t, "y"))}
		if message := checkAddress(template, []string{"h.example", "h.example:8443", "h.example:8080"}, func(string) string { return "" }); message != "" {
			t.Fatal(message)
		}
		out, ok, bad := parseTemplate(template).expand(func(n string) (string, bool) { v, ok := values[n]; return v, ok })
		if bad != nil {
			return
		}
		saw++
		u, err := url.Parse(out)
		if err != nil || !ok {
			t.Fatalf("%q: %v", out, err)
		}
		plain, err := url.Parse(strings.NewReplacer("{{x}}", "X", "{{y}}", "Y").Replace(template))
		if err != nil {
			t.Fatal(err)
		}
		if u.Scheme != plain.Scheme || u.Host != plain.Host || u.User != nil || u.Fragment != plain.Fragment || strings.Count(u.EscapedPath(), "/") != strings.Count(plain.EscapedPath(), "/") {
			t.Fatalf("%q has another structure than %q", out, plain)
		}
		if clean := u.JoinPath().EscapedPath(); strings.TrimSuffix(clean, "/") != strings.TrimSuffix(u.EscapedPath(), "/") {
			t.Fatalf("%q is read as %q", out, clean)
		}
		if len(strings.Split(u.RawQuery, "&")) != len(strings.Split(plain.RawQuery, "&")) {
			t.Fatalf("%q has another query than %q", out, plain)
		}
		want := strings.NewReplacer("X", values["x"], "Y", values["y"]).Replace(plain.Path)
		if u.Path != want {
			t.Fatalf("the path is %q, want %q", u.Path, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 8 {
			one(t)
		}
	})
	if saw < 80 {
		t.Errorf("%d addresses: the check is void", saw)
	}
}

// A step whose optional parameter was left out is skipped (open-parts.md, Changes, Browser skills).
func TestSkippedSteps(t *testing.T) {
	t.Parallel()
	d := parsed(t)
	b, faults, err := d.Bind(t.Context(), ForDryRun, json.RawMessage(`{"order": "4711", "customer": "Ada", "gift": "true"}`))
	if err != nil || faults != nil {
		t.Fatal(faults, err)
	}
	var got []string
	for i := range d.Steps {
		v, ok := d.Steps[i].ValueOf(b.Values)
		got = append(got, fmt.Sprintf("%s=%s/%v", d.Steps[i].ID, v, ok))
	}
	want := "user=robot/true pass=/true in=/true open=/false name=Ada/true ship=/false gift=true/true down=300/true rest=250/true go=/true done=/true"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	b, _, err = d.Bind(t.Context(), ForDryRun, json.RawMessage(`{"order": "4711", "customer": "Ada", "lang": "de"}`))
	if v, ok := d.Steps[3].ValueOf(b.Values); err != nil || !ok || v != "https://portal.example.com/orders/4711?lang=de" {
		t.Errorf("%q %v %v", v, ok, err)
	}
	before, commit, after := d.Split()
	if len(before) != 6 || commit == nil || commit.ID != "go" || len(after) != 1 || len(d.SignInSteps()) != 3 {
		t.Errorf("%v %v %v", before, commit, after)
	}
	if tries := d.Steps[4].Target.Tries(); !slices.Equal(tries, []string{"#name", `input[name="name"]`, "form > input:first-child"}) {
		t.Errorf("%q", tries)
	}
}

// service.md, Browser skill run outcomes: page differs from approved preview.
func TestThePageIsStillTheOneThatWasApproved(t *testing.T) {
	t.Parallel()
	d := parsed(t)
	b, _, err := d.Bind(t.Context(), ForDryRun, json.RawMessage(`{"order": 1, "customer": "Ada", "gift": true}`))
	if err != nil {
		t.Fatal(err)
	}
	const seen = "https://portal.example.com/form?t=1"
	for _, row := range []struct {
		preview, now string
		read         map[string]string
		want         string
	}{
		{seen, "https://portal.example.com/form?t=2#x", map[string]string{"customer": "Ada", "gift": "true"}, ""},
		{seen, "https://PORTAL.example.com/form", map[string]string{"customer": "Ada", "gift": "true", "other": "x"}, ""},
		{seen, "https://portal.example.com/form/", map[string]string{"customer": "Ada", "gift": "true"}, "https://portal.example.com/form/"},
		{seen, "https://files.example.com/form", map[string]string{"customer": "Ada", "gift": "true"}, "https://files.example.com/form"},
		{seen, seen, map[string]string{"customer": "ada", "gift": "true"}, "customer"},
		{seen, seen, map[string]string{"customer": "Ada ", "gift": "true"}, "customer"},
		{seen, seen, map[string]string{"customer": "Ada", "gift": "false"}, "gift"},
		{seen, seen, map[string]string{"customer": "Ada"}, "gift"},
		{"", "https://elsewhere.example/", map[string]string{"customer": "Ada", "gift": "true"}, ""},
	} {
		got := ""
		if m := d.Compare(row.preview, row.now, b.Values, row.read); m != nil {
			got = m.Field + m.URL
		}
		if got != row.want {
			t.Errorf("%s with %v: %q, want %q", row.now, row.read, got, row.want)
		}
	}
}

// The commit sends what the fields of the sign-in hold too, where its page is that of the commit.
func TestAFieldOfTheSignInIsCompared(t *testing.T) {
	t.Parallel()
	d, err := Load(json.RawMessage(`{"start_url":"https://a.test/","target_hosts":["a.test"],"commit_step_id":"go","params":[{"name":"amount","type":"string"},{"name":"note","type":"string"}],"steps":[
		{"id":"sum","phase":"auth","kind":"type","target":{"selector":"#sum"},"param":"amount"},{"id":"go","kind":"click","target":{"selector":"#go"}},
		{"id":"later","kind":"type","target":{"selector":"#note"},"param":"note"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := d.Bind(t.Context(), ForDryRun, json.RawMessage(`{"amount": "7", "note": "x"}`))
	if err != nil {
		t.Fatal(err)
	}
	for held, want := range map[string]bool{"7": true, "70": false} {
		if m := d.Compare("", "https://a.test/", b.Values, map[string]string{"amount": held}); (m == nil) != want || m != nil && m.Field != "amount" {
			t.Errorf("a field that holds %s: %+v", held, m)
		}
	}
	if m := d.Compare("", "https://a.test/", b.Values, nil); m == nil {
		t.Error("a field that was never read is approved")
	}
}

// With other values the page of a preview is where a navigate step puts them: in its own place of the path, on its own host.
func TestAPageOfOtherValues(t *testing.T) {
	d, err := Load(json.RawMessage(`{"start_url":"https://a.test/","target_hosts":["a.test"],"commit_step_id":"go","params":[
		{"name":"order","type":"string","allow_in_url":true},{"name":"part","type":"string","allow_in_url":true},{"name":"q","type":"string","allow_in_url":true}],"steps":[
		{"id":"open","kind":"navigate","value":"https://a.test/v1/orders/{{order}}/x-{{ part }}.html?q={{q}}"},{"id":"go","kind":"click","target":{"selector":"#go"}},
		{"id":"later","kind":"navigate","value":"https://a.test/{{order}}"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ preview, before, after, want string }{
		{"https://a.test/v1/orders/7/x-p.html?q=1#f", `{"order":"7","part":"p"}`, `{"order":"8 /9","part":"p"}`, "https://a.test/v1/orders/8%20%2F9/x-p.html"},
		{"https://a.test/v1/orders/7/x-p.html/sure", `{"order":"7","part":"p"}`, `{"order":"8","part":"r"}`, "https://a.test/v1/orders/8/x-r.html/sure"},
		{"https://a.test/v1/orders/SEVEN/x-p.html", `{"order":"seven","part":"p"}`, `{"order":"seven","part":"r"}`, "https://a.test/v1/orders/SEVEN/x-r.html"},
		{"https://a.test/v1/orders/7/x-p.html", `{"order":"7","part":"p"}`, `{"order":"7","part":"p","q":"2"}`, "https://a.test/v1/orders/7/x-p.html"},
		{"https://a.test/v1/orders/7/x-p.html", `{"order":"7","part":"p"}`, `{"order":"8"}`, "https://a.test/v1/orders/7/x-p.html"}, // the step is skipped
		{"https://a.test/v2/orders/7/x-p.html", `{"order":"7","part":"p"}`, `{"order":"8","part":"p"}`, "https://a.test/v2/orders/7/x-p.html"},
		{"https://b.test/v1/orders/7/x-p.html", `{"order":"7","part":"p"}`, `{"order":"8","part":"p"}`, "https://b.test/v1/orders/7/x-p.html"},
		{"https://a.test/7", `{"order":"7"}`, `{"order":"8"}`, "https://a.test/7"},
		{"", `{"order":"7"}`, `{"order":"8"}`, ""},
		{"https://a.test/v1/orders/7/x-p.html", `{"order":"7","part":"p"}`, `{"order":"7","part":"p"}`, "https://a.test/v1/orders/7/x-p.html"},
	} {
		b, faults, err := d.Bind(t.Context(), ForEdit, json.RawMessage(c.after))
		if err != nil || len(faults) > 0 {
			t.Fatal(faults, err)
		}
		if got := d.At(c.preview, b.Values, Changed(json.RawMessage(c.before), b.Values.JSON())); got != c.want {
			t.Errorf("%s with %s for %s is at %s, want %s", c.preview, c.after, c.before, got, c.want)
		}
	}
}

func TestScope(t *testing.T) {
	t.Parallel()
	hosts := []string{"portal.example.com", "files.example.com:8443", "[2606:4700::1]", "127.0.0.1:8080", "plain.example.com:80"}
	for _, row := range []struct {
		url       string
		residency Residency
		want      Reason
	}{
		{"https://portal.example.com/a?b#c", nil, ""},
		{"https://PORTAL.example.com:443", nil, ""},
		{"HTTPS://portal.example.com/" + strings.Repeat("x", 9000), nil, ""}, // a landing may be long
		{"https://portal.example.com/a b\\c?d=\t", nil, ""},                  // and strange behind its host
		{"http://portal.example.com/", nil, OutsideHosts},                    // port 80 is named
		{"http://plain.example.com/", nil, ""},
		{"https://plain.example.com/", nil, OutsideHosts},
		{"https://portal.example.com:8443/", nil, OutsideHosts},
		{"https://files.example.com:8443/", nil, ""},
		{"https://files.example.com/", nil, OutsideHosts},
		{"https://x.portal.example.com/", nil, OutsideHosts},
		{"https://portal.example.com.evil.test/", nil, OutsideHosts},
		{"https://portal.example.com./", nil, OutsideHosts},
		{"https://portal.example.com@evil.test/", nil, NoWebAddress},
		{"https://evil.test\\@portal.example.com/", nil, NoWebAddress},
		{"https://evil.test\\.portal.example.com/", nil, NoWebAddress},
		{"https:portal.example.com", nil, NoWebAddress},
		{"https:/portal.example.com", nil, NoWebAddress},
		{"//portal.example.com/", nil, NoWebAddress},
		{"about:blank", nil, NoWebAddress},
		{"data:text/html,https://portal.example.com/", nil, NoWebAddress},
		{"javascript:'https://portal.example.com/'", nil, NoWebAddress},
		{"blob:https://portal.example.com/1", nil, NoWebAddress},
		{"ftp://portal.example.com/", nil, NoWebAddress},
		{"file:///etc/passwd", nil, NoWebAddress},
		{"", nil, NoWebAddress},
		{"https://", nil, NoWebAddress},
		{"https:///portal.example.com", nil, NoWebAddress},
		{"https://portal.ex\u0430mple.com/", nil, NoWebAddress}, // a Cyrillic a
		{"https://portal.example.com:0/", nil, NoWebAddress},
		{"https://portal.example.com:x/", nil, NoWebAddress},
		{"https://[2606:4700:0::1]/", nil, ""},
		{"http://127.0.0.1:8080/", nil, ""},
		{"http://0x7f.1:8080/", nil, NoWebAddress},
		{"http://2130706433:8080/", nil, NoWebAddress},
		{"https://portal.example.com/", Residency{}, OutsideResidency},
		{"https://portal.example.com/", Residency{"portal.example.com"}, ""},
		{"https://portal.example.com/", Residency{"PORTAL.Example.com"}, ""},
		{"https://portal.example.com/", Residency{"*.example.com"}, ""},
		{"https://portal.example.com/", Residency{"*.com"}, ""},
		{"https://portal.example.com/", Residency{"*.portal.example.com"}, OutsideResidency},
		{"https://portal.example.com/", Residency{"example.com"}, OutsideResidency},
		{"https://portal.example.com/", Residency{"*.ample.com"}, OutsideResidency},
		{"https://portal.example.com/", Residency{"*."}, OutsideResidency},
		{"https://files.example.com:8443/", Residency{"files.example.com"}, ""}, // residency hosts carry no port
		{"http://127.0.0.1:8080/", Residency{"*.0.0.1"}, OutsideResidency},
		{"http://127.0.0.1:8080/", Residency{"127.0.0.1"}, ""},
		{"https://[2606:4700::1]/", Residency{"2606:4700::1"}, ""},
		{"https://evil.test/", Residency{"*.example.com"}, OutsideHosts},
	} {
		if got := (Scope{Hosts: hosts, Residency: row.residency}).Allows(row.url); got != row.want {
			t.Errorf("%.60s in %v: %q, want %q", row.url, row.residency, got, row.want)
		}
	}
}

func TestMoved(t *testing.T) {
	t.Parallel()
	// of returns a definition that begins at the first address and opens the others.
	of := func(hosts string, addresses ...string) *Definition {
		d := &Definition{StartURL: addresses[0], TargetHosts: strings.Fields(hosts)}
		for i, a := range addresses[1:] {
			s := Step{Kind: Navigate, Value: (*Text)(&a)}
			if i == 0 {
				d.Steps = append(d.Steps, s)
			} else {
				d.Compensation = append(d.Compensation, s)
			}
		}
		return d
	}
	from := of("a.example b.example a.example:8443 c.example:80", "https://a.example/", "https://a.example:8443/x", "http://c.example/")
	for _, row := range []struct {
		to   *Definition
		want bool
	}{
		{from, false},
		{of("b.example a.example", "https://a.example/other", "https://b.example/{{x}}"), false},
		{of("a.example", "HTTPS://A.example:443/"), false},
		{of("a.example:8443 c.example:80", "https://a.example:8443/", "http://c.example/", "http://c.example:80/{{y}}"), false},
		{of("a.example d.example", "https://a.example/"), true},
		{of("a.example a.example:9443", "https://a.example/"), true},
		{of("a.example", "http://a.example:443/"), true},
		{of("a.example:8443", "http://a.example:8443/"), true},
		{of("a.example b.example", "https://a.example/", "http://b.example:443/"), true},
		{of("a.example a.example:8443", "https://a.example/", "https://a.example/", "http://a.example:8443/{{x}}"), true},
		{of("c.example:80", "https://c.example:80/"), true},
	} {
		if got := Moved(from, row.to); got != row.want {
			t.Errorf("to %s of %v: %v", row.to.StartURL, row.to.TargetHosts, got)
		}
	}
}

func TestToolSchemas(t *testing.T) {
	t.Parallel()
	s, err := Parse(input(t))
	if err != nil {
		t.Fatal(err)
	}
	tools := Tools(id.SkillID{UUID: id.UUID{15: 1}}, "order", "Places an order.", s.Definition, s.Policy)
	if len(tools) != 2 || tools[0].Qualified() != "browser_skill:order.run" || tools[1].Qualified() != "browser_skill:order.dry_run" || tools[0].ReadOnly || !tools[1].ReadOnly {
		t.Fatalf("%+v", tools)
	}
	want := `{"additionalProperties":false,"properties":{` +
		`"customer":{"maxLength":40,"pattern":"^[^\u003c\u003e]*$","type":"string"},` +
		`"gift":{"type":"boolean"},` +
		`"lang":{"enum":["en","de"],"type":"string"},` +
		`"order":{"description":"Number of the order","examples":[4711],"maximum":99999,"minimum":1,"type":"integer"},` +
		`"reason":{"description":"Why this is done, for the person who approves it.","maxLength":1000,"minLength":1,"type":"string"},` +
		`"speed":{"maxLength":2000,"type":"string"}},` +
		`"required":["order","customer","reason"],"type":"object"}`
	if string(tools[0].Schema) != want {
		t.Errorf("got  %s\nwant %s", tools[0].Schema, want)
	}
	s.Policy.Approval = DryRunOnly // the run tool is not exposed
	if tools = Tools(id.SkillID{}, "order", "", s.Definition, s.Policy); len(tools) != 1 || tools[0].Name != "dry_run" {
		t.Errorf("%+v", tools)
	}
	if got := Cite("order", "0199"); got != "browser_skill:order#0199" {
		t.Error(got)
	}
}

// The skill policy is a floor: what else matches only tightens it.
func TestTerms(t *testing.T) {
	t.Parallel()
	p := &Policy{Approval: AtCommitPoint, RiskLevel: "high", ApproverRole: "manager", SLAMinutes: 60, RequiredApprovals: 2}
	terms := p.Terms("order")
	loose := tool.Terms{Risk: "low", Required: 1, Role: "member", SLAMinutes: 9999, OnTimeout: "reject", Policy: tool.PolicyRef{Kind: tool.KindManifest}}
	strict := tool.Terms{Risk: "critical", Required: 3, Role: "owner", SLAMinutes: 5, OnTimeout: "cancel_run", Policy: tool.PolicyRef{Kind: tool.KindPolicy}}
	got := tool.Stricter(terms, loose)
	if got.Policy = terms.Policy; got != terms {
		t.Errorf("a looser rule changes the terms: %+v", got)
	}
	if got := tool.Stricter(terms, strict); got.Risk != lifecycle.RiskCritical || got.Required != 3 || got.Role != "owner" || got.SLAMinutes != 5 {
		t.Errorf("%+v", got)
	}
}

// The key is derived from tenant, agent run, tool and canonical arguments; the reason is no part.
func TestKey(t *testing.T) {
	t.Parallel()
	d := parsed(t)
	tenant, run := id.TenantID{UUID: id.UUID{15: 1}}, id.RunID{UUID: id.UUID{15: 2}}
	key := func(tenant id.TenantID, run id.RunID, slug string, op Op, args string) string {
		b, faults, err := d.Bind(t.Context(), ForEdit, json.RawMessage(args))
		if err != nil || faults != nil {
			t.Fatal(args, faults, err)
		}
		return Key(tenant, run, slug, op, b.Values)
	}
	want := key(tenant, run, "order", OpRun, `{"order": 12, "customer": "Ada", "gift": true, "reason": "a"}`)
	if len(want) != 64 {
		t.Errorf("%q", want)
	}
	for _, args := range []string{
		`{"gift": "TRUE", "customer": "A\u202eda", "order": "12.0", "reason": "b"}`, `{"customer": "Ada", "order": 1.2e1, "gift": true}`,
	} {
		if key(tenant, run, "order", OpRun, args) != want {
			t.Errorf("%s has another key", args)
		}
	}
	seen := map[string]bool{want: true}
	for _, other := range []string{
		key(id.TenantID{UUID: id.UUID{15: 2}}, run, "order", OpRun, `{"order": 12, "customer": "Ada", "gift": true}`),
		key(tenant, id.RunID{UUID: id.UUID{15: 1}}, "order", OpRun, `{"order": 12, "customer": "Ada", "gift": true}`),
		key(tenant, run, "orders", OpRun, `{"order": 12, "customer": "Ada", "gift": true}`),
		key(tenant, run, "order", OpDryRun, `{"order": 12, "customer": "Ada", "gift": true}`),
		key(tenant, run, "order", OpRun, `{"order": 13, "customer": "Ada", "gift": true}`),
		key(tenant, run, "order", OpRun, `{"order": 12, "customer": "ada", "gift": true}`),
		key(tenant, run, "order", OpRun, `{"order": 12, "customer": "Ada"}`),
		key(tenant, run, "order", OpRun, `{"order": 12, "customer": "Ada", "gift": true, "speed": ""}`),
	} {
		if seen[other] {
			t.Error("two calls have one key")
		}
		seen[other] = true
	}
	// The key of a call never changes: rows of earlier releases hold it.
	if want != "a54587af08be5fc101520ce5e7c262f8c7009f32bb60e9c91fa4a0625a72c9c7" {
		t.Errorf("the key is %s", want)
	}
}

// draw draws a value of a parameter that needs no coercion, at or past its limits now and then.
func draw(t *rapid.T, p *Param) any {
	switch p.Type {
	case Number:
		return json.Number(rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?`).Draw(t, p.Name))
	case Integer:
		return json.Number(rapid.StringMatching(`-?(0|[1-9][0-9]{0,5})`).Draw(t, p.Name))
	case Boolean:
		return rapid.Bool().Draw(t, p.Name)
	case Enum:
		return rapid.SampledFrom(append([]string{"none of them"}, p.Enum...)).Draw(t, p.Name)
	case Date:
		return rapid.StringMatching(`20[0-9]{2}-[01][0-9]-[0-3][0-9]`).Draw(t, p.Name)
	}
	return rapid.StringMatching(`[a-d<]{0,6}`).Draw(t, p.Name)
}

// Bind and the JSON Schema of the tool agree: on values that need no coercion they give the same
// verdict, and what Bind makes of any other value fits the schema and binds to itself.
func TestSchemasAndValuesAgree(t *testing.T) {
	t.Parallel()
	fits, refused := 0, 0
	one := func(t *rapid.T) {
		d := &Definition{}
		args := map[string]any{}
		for i := range rapid.IntRange(1, 4).Draw(t, "params") {
			p := Param{Name: fmt.Sprint("p", i), Type: rapid.SampledFrom(ParamTypes).Draw(t, "type"), Required: rapid.Bool().Draw(t, "required")}
			switch p.Type {
			case Number, Integer:
				low := float64(rapid.IntRange(-5000, 5000).Draw(t, "min")) / 8
				high := low + float64(rapid.IntRange(0, 9000).Draw(t, "max"))/8
				p.Min, p.Max = &low, &high
			case Enum:
				p.Enum = []string{"a", "b"}
			case String:
				p.MaxLength = rapid.IntRange(0, 6).Draw(t, "max_length")
				p.Pattern = rapid.SampledFrom([]string{"", "^[^<]*$", "a|b", "^c{2,3}"}).Draw(t, "pattern")
			}
			d.Params = append(d.Params, p)
			d.Steps = append(d.Steps, Step{ID: p.Name, Kind: Type, Param: p.Name})
			if rapid.IntRange(0, 3).Draw(t, "there") > 0 {
				args[p.Name] = draw(t, &p)
			}
		}
		if rapid.IntRange(0, 9).Draw(t, "stranger") == 0 {
			args["stranger"] = "x"
		}
		doc, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		schema := ToolSchema(d, ForDryRun)
		b, faults, err := d.Bind(context.Background(), ForDryRun, doc)
		if err != nil {
			t.Fatal(err)
		}
		told := tool.Check(context.Background(), schema, doc)
		if (told == nil) != (len(faults) == 0) {
			t.Fatalf("%s against %s\nthe schema says %v\nBind says %s", doc, schema, told, faultsOf(faults))
		}
		if len(faults) > 0 {
			refused++
			return
		}
		fits++
		again, faults, err := d.Bind(context.Background(), ForDryRun, b.Values.JSON())
		if err != nil || len(faults) > 0 || string(again.Values.JSON()) != string(b.Values.JSON()) {
			t.Fatalf("%s binds to %s, %s, %v", b.Values.JSON(), again.Values.JSON(), faultsOf(faults), err)
		}
		// The same values as texts, with characters that are removed.
		for name := range args {
			text, _ := b.Values.Text(name)
			args[name] = "\u202e" + text + "\u0007"
		}
		if doc, err = json.Marshal(args); err != nil {
			t.Fatal(err)
		}
		coerced, faults, err := d.Bind(context.Background(), ForDryRun, doc)
		if err != nil || len(faults) > 0 || string(coerced.Values.JSON()) != string(b.Values.JSON()) {
			t.Fatalf("%s binds to %s, not %s: %s", doc, coerced.Values.JSON(), b.Values.JSON(), faultsOf(faults))
		}
		if err := tool.Check(context.Background(), schema, coerced.Values.JSON()); err != nil {
			t.Fatalf("%s does not fit %s: %v", coerced.Values.JSON(), schema, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 4 {
			one(t)
		}
	})
	if fits < 20 || refused < 20 {
		t.Errorf("%d fit, %d are refused: the check is void", fits, refused)
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		check  Check
		actual string
		want   bool
	}{
		{Check{Kind: URLContains, Value: "/done"}, "https://a.example/done?x", true},
		{Check{Kind: TextPresent, Value: "Thank"}, "Sorry", false},
		{Check{Kind: ElementText, Value: "Order", Match: MatchContains}, "Order placed", true},
		{Check{Kind: ElementText, Value: "Order", Match: MatchEquals}, "Order placed", false},
		{Check{Kind: ElementText, Value: "Order", Match: MatchEquals}, "Order", true},
	} {
		if got := row.check.Holds(row.actual); got != row.want {
			t.Errorf("%+v of %q: %v", row.check, row.actual, got)
		}
	}
}

func TestCookies(t *testing.T) {
	t.Parallel()
	const form = "must be a JSON array of 1 to 100 cookies: { name, value, domain, path }"
	one := `{"name": "a", "value": "b", "domain": ".example.com"}`
	for s, want := range map[string]string{
		`[` + one + `]`:                 "",
		list(100, one):                  "",
		list(101, one):                  form,
		`[]`:                            form,
		one:                             form,
		`[1]`:                           form,
		`[{"name": "a", "value": "b"}]`: form,
		`[{"name": "", "value": "b", "domain": "x.y"}]`:                                form,
		`[{"name": "a", "value": 5, "domain": "x.y"}]`:                                 form,
		`[{"name": "a", "value": "b;c", "domain": "x.y"}]`:                             form,
		`[{"name": "a", "value": "b\u0000", "domain": "x.y"}]`:                         form,
		`[{"name": "a", "value": "b", "domain": "x.y", "path": "x"}]`:                  form,
		`[{"name": "a", "value": "b", "domain": "x.y", "expires": 1e999}]`:             form,
		`[{"name": "a", "value": "b", "domain": "x.y", "hostOnly": true, "id": [{}]}]`: "",
		`[` + strings.Repeat(" ", MaxCookieBytes) + one + `]`:                          form,
		`[`: form,
	} {
		if _, got := ParseCookies(s); got != want {
			t.Errorf("%.60s: %q", s, got)
		}
	}
	cookies, _ := ParseCookies(`[{"name": "a", "value": "b", "domain": ".Example.com", "path": "/x", "expires": 1800000000.5, "httpOnly": true, "secure": true, "sameSite": "lax"}]`)
	if want := (Cookie{Name: "a", Value: "b", Domain: ".Example.com", Path: "/x", Expires: 1800000000.5, HTTPOnly: true, Secure: true, SameSite: "Lax"}); len(cookies) != 1 || cookies[0] != want {
		t.Fatalf("%+v", cookies)
	}
	for host, want := range map[string]bool{"example.com": true, "www.example.com:8443": true, "badexample.com": false, "example.com.evil.test": false, "": false} {
		if got := cookies[0].Fits(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
	if c := (Cookie{Domain: "com"}); c.Fits("example.com") {
		t.Error("a cookie for all of com")
	}
}
