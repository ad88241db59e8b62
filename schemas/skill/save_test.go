package skill

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"agentsvc/schemas/problem"
)

// full uses every field of a definition.
const full = `{
	"start_url": "https://portal.example.com/login",
	"target_hosts": ["portal.example.com", "files.example.com:8443"],
	"steps": [
		{"id": "user", "phase": "auth", "kind": "type", "target": {"selector": "#user"}, "value": "robot"},
		{"id": "pass", "phase": "auth", "kind": "type", "target": {"selector": "#pass"}, "value": null, "secret": true, "secret_ref": "password"},
		{"id": "in", "phase": "auth", "kind": "click", "target": {"text": "Sign in"}},
		{"id": "open", "kind": "navigate", "value": "https://portal.example.com/orders/{{order}}?lang={{ lang }}"},
		{"id": "name", "kind": "type", "target": {"selector": "#name", "candidates": ["input[name=\"name\"]", "form > input:first-child"], "text": "Name"}, "param": "customer"},
		{"id": "ship", "kind": "select", "target": {"selector": "#ship"}, "param": "speed"},
		{"id": "gift", "kind": "check", "target": {"selector": "#gift"}, "param": "gift"},
		{"id": "down", "kind": "scroll", "value": 300},
		{"id": "rest", "kind": "wait", "value": "250"},
		{"id": "go", "kind": "click", "target": {"selector": "#go"}},
		{"id": "done", "kind": "wait", "target": {"selector": "#ok"}, "value": ""}
	],
	"params": [
		{"name": "order", "type": "integer", "required": true, "min": 1, "max": 99999, "allow_in_url": true, "label": "Number of the order", "example": 4711},
		{"name": "lang", "type": "enum", "enum": ["en", "de"], "allow_in_url": true},
		{"name": "customer", "type": "string", "required": true, "max_length": 40, "pattern": "^[^<>]*$"},
		{"name": "speed", "type": "string"},
		{"name": "gift", "type": "boolean"},
		{"name": "unbound", "type": "date"}
	],
	"commit_step_id": "go",
	"assertions": [
		{"kind": "url_contains", "value": "/done"},
		{"kind": "text_present", "value": "Thank you"},
		{"kind": "element_present", "selector": "#ok"},
		{"kind": "element_text", "selector": "#ok", "value": "Order placed", "match": "equals"}
	],
	"result_fields": [{"name": "receipt", "selector": "#receipt", "candidates": [".receipt"], "attr": "text", "type": "integer"}],
	"compensation": [
		{"id": "back", "kind": "navigate", "value": "https://portal.example.com/orders"},
		{"id": "undo", "kind": "click", "target": {"selector": "#cancel"}}
	],
	"auth": {"kind": "credentials", "secret_refs": ["password"]}
}`

const fullAuth = `{"mode": "credentials", "secrets": {"password": "hunter2"}}`

// at is a change of the document: a path as faults write it, and the new value; "-" removes it.
type at struct{ path, value string }

// change returns the document with changes.
func change(t testing.TB, doc string, changes ...at) json.RawMessage {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		keys := strings.FieldsFunc(strings.ReplaceAll(c.path, "[", "."), func(r rune) bool { return r == '.' || r == ']' })
		v = put(t, v, keys, c.value)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func put(t testing.TB, v any, keys []string, value string) any {
	t.Helper()
	if len(keys) == 0 {
		var to any
		if err := json.Unmarshal([]byte(value), &to); err != nil {
			t.Fatalf("%s: %v", value, err)
		}
		return to
	}
	switch v := v.(type) {
	case map[string]any:
		if len(keys) == 1 && value == "-" {
			delete(v, keys[0])
		} else {
			v[keys[0]] = put(t, v[keys[0]], keys[1:], value)
		}
		return v
	case []any:
		i, err := strconv.Atoi(keys[0])
		if err != nil || i > len(v) {
			t.Fatalf("no place %s", keys[0])
		}
		if i == len(v) {
			v = append(v, nil)
		}
		v[i] = put(t, v[i], keys[1:], value)
		return v
	}
	return put(t, map[string]any{}, keys, value)
}

func input(t testing.TB, changes ...at) Input {
	t.Helper()
	in := map[string]string{"definition": full, "policy": `{}`, "auth": fullAuth}
	doc := map[string]json.RawMessage{}
	for name, text := range in {
		var mine []at
		for _, c := range changes {
			if rest, ok := strings.CutPrefix(c.path, name); ok {
				mine = append(mine, at{strings.TrimPrefix(rest, "."), c.value})
			}
		}
		doc[name] = change(t, text, mine...)
	}
	return Input{Definition: doc["definition"], Policy: doc["policy"], Auth: doc["auth"], OwnerAttested: true}
}

// list is a list of n values of a form with one %d.
func list(n int, form string) string {
	var out []string
	for i := range n {
		out = append(out, strings.ReplaceAll(form, "%d", strconv.Itoa(i)))
	}
	return "[" + strings.Join(out, ",") + "]"
}

// read makes the definition one that only reads.
var read = []at{
	{"definition.steps", `[{"id": "look", "kind": "wait", "target": {"selector": "#ok"}}]`}, {"definition.params", "[]"}, {"definition.commit_step_id", "-"},
	{"definition.compensation", "[]"},
}

func with(base []at, more ...at) []at { return append(append([]at{}, base...), more...) }

func long(n int) string { return `"` + strings.Repeat("x", n) + `"` }

// Each rule that is checked when a skill is saved: valid at the edge, and what one past it is told.
func TestWhatIsRefusedWhenSaved(t *testing.T) {
	t.Parallel()
	const invalid, rule = problem.CodeValidation, problem.CodeBrowserSkillInvalid
	ok := problem.Code("")
	wait := `{"id": "s%d", "kind": "wait", "value": "1"}`
	for _, row := range []struct {
		name    string
		changes []at
		code    problem.Code
		want    string
	}{
		{"everything", nil, ok, ""},
		// The document.
		{"no definition", []at{{"definition", "null"}}, invalid, "definition: required"},
		{"null for a list", []at{{"definition.compensation", "null"}}, invalid, "definition.compensation: must not be null"},
		{"null for what is required", []at{{"definition.steps[0].id", "null"}, {"definition.start_url", "null"}}, invalid, "definition.start_url: must not be null; definition.steps[0].id: must not be null"},
		{"null for a value", []at{{"definition.assertions[0].value", "null"}}, invalid, "definition.assertions[0].value: must not be null"},
		{"null in the policy", []at{{"policy.sla_minutes", "null"}}, invalid, "policy.sla_minutes: must not be null"},
		{"null for a target", []at{{"definition.steps[3].target", "null"}}, ok, ""},
		{"no object", []at{{"definition", "[]"}}, invalid, "definition: must be an object"},
		{"an unknown field", []at{{"definition.extra", "1"}}, invalid, "definition.extra: unknown field"},
		{"a strange field", []at{{"definition.a b", "1"}}, invalid, `definition["a b"]: unknown field`},
		{"nesting", []at{{"definition.auth.kind", strings.Repeat("[", 17) + strings.Repeat("]", 17)}}, invalid, "definition: nests deeper than 16"},
		// start_url, target_hosts.
		{"no start_url", []at{{"definition.start_url", "-"}}, invalid, "definition.start_url: required"},
		{"start_url no text", []at{{"definition.start_url", "1"}}, invalid, "definition.start_url: must be a string"},
		{"start_url http is for the guard", []at{{"definition.start_url", `"http://portal.example.com:8080/"`}, {"definition.target_hosts[1]", `"portal.example.com:8080"`}}, ok, ""},
		{"start_url ftp", []at{{"definition.start_url", `"ftp://portal.example.com/"`}}, rule, "definition.start_url: must be an http or https URL"},
		{"start_url with a template", []at{{"definition.start_url", `"https://portal.example.com/{{order}}"`}}, rule, "definition.start_url: must not hold a template"},
		{"start_url with user info", []at{{"definition.start_url", `"https://a:b@portal.example.com/"`}}, rule, "definition.start_url: must not contain user info"},
		{"start_url elsewhere", []at{{"definition.start_url", `"https://evil.example.com/"`}}, rule, "definition.start_url: leads to evil.example.com, which is not in target_hosts"},
		{"start_url at another port", []at{{"definition.start_url", `"https://portal.example.com:444/"`}}, rule, "definition.start_url: leads to portal.example.com:444, which is not in target_hosts"},
		{"start_url at its port", []at{{"definition.start_url", `"https://PORTAL.example.com:443/"`}}, ok, ""},
		{"start_url with a backslash", []at{{"definition.start_url", `"https://evil.example.com\\@portal.example.com/"`}}, rule, "definition.start_url: must not hold spaces, backslashes and control characters"},
		{"start_url of 2048 bytes", []at{{"definition.start_url", `"https://portal.example.com/` + strings.Repeat("x", 2048-27) + `"`}}, ok, ""},
		{"start_url of 2049 bytes", []at{{"definition.start_url", `"https://portal.example.com/` + strings.Repeat("x", 2049-27) + `"`}}, invalid, "definition.start_url: must have 1 to 2048 characters"},
		{"no hosts", []at{{"definition.target_hosts", "[]"}}, invalid, "definition.target_hosts: must have at least 1 entry"},
		{"hosts left out", []at{{"definition.target_hosts", "-"}}, invalid, "definition.target_hosts: required"},
		{"51 hosts", []at{{"definition.target_hosts", list(51, `"h%d.example.com"`)}}, invalid, "definition.target_hosts: must have at most 50 entries"},
		{"a pattern of hosts", []at{{"definition.target_hosts[1]", `"*.example.com"`}}, invalid, "definition.target_hosts[1]: must be a host, with a port where it is not 443: www.example.com or www.example.com:8443"},
		{"a host with a path", []at{{"definition.target_hosts[1]", `"files.example.com/x"`}}, invalid, "definition.target_hosts[1]: must be a host, with a port where it is not 443: www.example.com or www.example.com:8443"},
		{"a host twice", []at{{"definition.target_hosts[1]", `"Portal.example.com:443"`}}, invalid, "definition.target_hosts[1]: is listed twice"},
		// steps.
		{"no steps", []at{{"definition.steps", "-"}}, invalid, "definition.steps: required"},
		{"an empty list of steps", []at{{"definition.steps", "[]"}}, invalid, "definition.steps: must have at least 1 entry"},
		{"60 steps", with(read, at{"definition.steps", list(60, wait)}, at{"policy.approval", `"always_before_run"`}), ok, ""},
		{"61 steps", with(read, at{"definition.steps", list(61, wait)}), invalid, "definition.steps: must have at most 60 entries"},
		{"a step without id", []at{{"definition.steps[9].id", "-"}}, invalid, "definition.steps[9].id: required"},
		{"an id of 64", []at{{"definition.steps[8].id", long(64)}}, ok, ""},
		{"an id of 65", []at{{"definition.steps[8].id", long(65)}}, invalid, "definition.steps[8].id: must be 1 to 64 letters, digits, - and _"},
		{"an id that is a path", []at{{"definition.steps[8].id", `"../x"`}}, invalid, "definition.steps[8].id: must be 1 to 64 letters, digits, - and _"},
		{"an id twice", []at{{"definition.steps[8].id", `"down"`}}, rule, "definition.steps[8].id: is the id of two steps"},
		{"an id of a step and of compensation", []at{{"definition.compensation[0].id", `"down"`}}, rule, "definition.compensation[0].id: is the id of two steps"},
		{"an unknown phase", []at{{"definition.steps[8].phase", `"pre"`}}, invalid, "definition.steps[8].phase: must be one of auth, main"},
		{"phase main", []at{{"definition.steps[8].phase", `"main"`}}, ok, ""},
		{"an unknown kind", []at{{"definition.steps[8].kind", `"drag"`}}, invalid, "definition.steps[8].kind: must be one of navigate, click, type, select, check, press, wait, scroll"},
		{"a click without target", []at{{"definition.steps[9].target", "-"}}, rule, "definition.steps[9].target: required for click"},
		{"an empty target", []at{{"definition.steps[9].target", "{}"}}, rule, "definition.steps[9].target: must have a selector, candidates or a text"},
		{"a text as target", []at{{"definition.steps[9].target", `{"text": "Order"}`}}, ok, ""},
		{"an unknown field of a target", []at{{"definition.steps[9].target.xpath", `"//a"`}}, invalid, "definition.steps[9].target.xpath: unknown field"},
		{"a selector of 1000", []at{{"definition.steps[9].target.selector", `"#` + strings.Repeat("x", 999) + `"`}}, ok, ""},
		{"a selector of 1001", []at{{"definition.steps[9].target.selector", long(1001)}}, invalid, "definition.steps[9].target.selector: must have at most 1000 characters"},
		{"a selector with a template", []at{{"definition.steps[9].target.selector", `"#row-{{order}}"`}}, rule, "definition.steps[9].target.selector: must not hold {{: selectors are no templates"},
		{"a candidate with a template", []at{{"definition.steps[4].target.candidates[1]", `"a[title='{{']"`}}, rule, "definition.steps[4].target.candidates[1]: must not hold {{: selectors are no templates"},
		{"a text with a template", []at{{"definition.steps[9].target.text", `"Order {{order}}"`}}, rule, "definition.steps[9].target.text: must not hold {{: selectors are no templates"},
		{"10 candidates", []at{{"definition.steps[9].target.candidates", list(10, `"#c%d"`)}}, ok, ""},
		{"11 candidates", []at{{"definition.steps[9].target.candidates", list(11, `"#c%d"`)}}, invalid, "definition.steps[9].target.candidates: must have at most 10 entries"},
		{"an empty candidate", []at{{"definition.steps[9].target.candidates", `[""]`}}, invalid, "definition.steps[9].target.candidates[0]: must have 1 to 1000 characters"},
		{"another engine", []at{{"definition.steps[9].target.selector", `"text=Order"`}}, rule, "definition.steps[9].target.selector: must be a CSS selector"},
		{"a chain into a frame", []at{{"definition.steps[9].target.selector", `"iframe >> internal:control=enter-frame >> #go"`}}, rule, "definition.steps[9].target.selector: must be a CSS selector"},
		{"a value of 2000", []at{{"definition.steps[0].value", long(2000)}}, ok, ""},
		{"a value of 2001", []at{{"definition.steps[0].value", long(2001)}}, invalid, "definition.steps[0].value: must have at most 2000 characters"},
		{"a value that is a number", []at{{"definition.steps[0].value", "12"}}, ok, ""},
		{"a value that is a list", []at{{"definition.steps[0].value", "[]"}}, invalid, "definition.steps[0].value: must be a string, a number or a boolean"},
		{"a value that looks like a template", []at{{"definition.steps[0].value", `"{{customer}}"`}}, rule, "definition.steps[0].value: must not hold {{: values bind by param"},
		{"a click with a value", []at{{"definition.steps[9].value", `"x"`}}, rule, "definition.steps[9].value: does not belong to click"},
		{"a type without anything", []at{{"definition.steps[0].value", "-"}}, rule, "definition.steps[0].value: required, or a param"},
		{"a type of nothing", []at{{"definition.steps[0].value", `""`}}, ok, ""},
		{"a select without anything", []at{{"definition.steps[5].param", "-"}}, rule, "definition.steps[5].value: required, or a param"},
		{"a check of true", []at{{"definition.steps[6].param", "-"}, {"definition.steps[6].value", "true"}}, ok, ""},
		{"a check of yes", []at{{"definition.steps[6].param", "-"}, {"definition.steps[6].value", `"yes"`}}, rule, "definition.steps[6].value: must be true or false"},
		{"a check of nothing", []at{{"definition.steps[6].param", "-"}}, rule, "definition.steps[6].value: required, or a param"},
		{"a press", []at{{"definition.steps[9]", `{"id": "go", "kind": "press", "value": "Enter"}`}}, ok, ""},
		{"a press of nothing", []at{{"definition.steps[9]", `{"id": "go", "kind": "press"}`}}, rule, "definition.steps[9].value: must be a key of at most 64 characters, such as Enter"},
		{"a press of 65", []at{{"definition.steps[9]", `{"id": "go", "kind": "press", "value": ` + long(65) + `}`}}, rule, "definition.steps[9].value: must be a key of at most 64 characters, such as Enter"},
		{"a wait of 60000", []at{{"definition.steps[8].value", "60000"}}, ok, ""},
		{"a wait of 60001", []at{{"definition.steps[8].value", "60001"}}, rule, "definition.steps[8].value: must be milliseconds from 0 to 60000, or empty"},
		{"a wait of -1", []at{{"definition.steps[8].value", "-1"}}, rule, "definition.steps[8].value: must be milliseconds from 0 to 60000, or empty"},
		{"a wait for nothing", []at{{"definition.steps[8].value", "-"}}, rule, "definition.steps[8].value: required, or a target to wait for"},
		{"a scroll up", []at{{"definition.steps[7].value", "-100000"}}, ok, ""},
		{"a scroll too far", []at{{"definition.steps[7].value", "100001"}}, rule, "definition.steps[7].value: must be pixels from -100000 to 100000"},
		{"a scroll of a half", []at{{"definition.steps[7].value", "0.5"}}, rule, "definition.steps[7].value: must be pixels from -100000 to 100000"},
		{"a scroll of nothing", []at{{"definition.steps[7].value", "-"}}, rule, "definition.steps[7].value: required: pixels"},
		// Bindings.
		{"a param that is not declared", []at{{"definition.steps[4].param", `"nobody"`}}, rule, `definition.steps[4].param: names no parameter of the definition: "nobody"`},
		{"a param with capitals", []at{{"definition.steps[4].param", `"Name"`}}, invalid, "definition.steps[4].param: must be the name of a parameter"},
		{"a click with a param", []at{{"definition.steps[9].param", `"customer"`}}, rule, "definition.steps[9].param: does not belong to click: type, select and check bind parameters"},
		{"a check of a string", []at{{"definition.steps[6].param", `"speed"`}}, rule, "definition.steps[6].param: must name a parameter of type boolean: the step is a check"},
		{"a value beside a param is an example", []at{{"definition.steps[4].value", `"Ada"`}}, ok, ""},
		// Secrets.
		{"a secret with a value", []at{{"definition.steps[1].value", `"hunter2"`}}, rule, "definition.steps[1].value: must be null: a secret is never stored in a definition"},
		{"a secret without its name", []at{{"definition.steps[1].secret_ref", "-"}}, rule, "definition.steps[1].secret_ref: required for a secret"},
		{"a secret that is no flag", []at{{"definition.steps[1].secret", `"yes"`}}, invalid, "definition.steps[1].secret: must be true or false"},
		{"a secret_ref alone", []at{{"definition.steps[1].secret", "false"}, {"definition.steps[1].value", `"x"`}}, rule, "definition.steps[1].secret_ref: belongs to a step with secret: true"},
		{"a secret_ref with a capital", []at{{"definition.steps[1].secret_ref", `"Password"`}}, invalid, "definition.steps[1].secret_ref: must be a lower-case letter, then up to 63 of a-z, 0-9 and _"},
		{"a secret that binds", []at{{"definition.steps[1].param", `"customer"`}}, rule, "definition.steps[1].param: must not be given: a secret binds to no parameter"},
		{"a secret that is selected", []at{{"definition.steps[1].kind", `"select"`}}, rule, "definition.steps[1].secret: belongs to type only"},
		{"a secret in the main phase", []at{{"definition.steps[1].phase", "-"}}, rule, "definition.steps[1].phase: must be auth: secrets are opened for the sign-in phase only"},
		{"a secret that secret_refs lacks", []at{{"definition.steps[1].secret_ref", `"pin"`}}, rule, `definition.steps[1].secret_ref: is not in auth.secret_refs: "pin"`},
		// Addresses.
		{"navigate without a URL", []at{{"definition.steps[3].value", "-"}}, rule, "definition.steps[3].value: required: the URL"},
		{"navigate with a target", []at{{"definition.steps[3].target", `{"selector": "a"}`}}, rule, "definition.steps[3].target: does not belong to navigate"},
		{"navigate with a param", []at{{"definition.steps[3].param", `"order"`}}, rule, "definition.steps[3].param: does not belong to navigate: type, select and check bind parameters"},
		{"navigate to a path", []at{{"definition.steps[3].value", `"/orders"`}}, rule, "definition.steps[3].value: must be an http or https URL"},
		{"navigate elsewhere", []at{{"definition.steps[3].value", `"https://evil.example.com/{{order}}"`}}, rule, "definition.steps[3].value: leads to evil.example.com, which is not in target_hosts"},
		{"navigate to the other host", []at{{"definition.steps[3].value", `"https://files.example.com:8443/?q={{order}}"`}}, ok, ""},
		{"a host that is a parameter", []at{{"definition.steps[3].value", `"https://{{lang}}/"`}}, rule, "definition.steps[3].value: must hold parameters in its path or query only, after a literal host"},
		{"a host that ends in a parameter", []at{{"definition.steps[3].value", `"https://portal.example.com{{lang}}/"`}}, rule, "definition.steps[3].value: must hold parameters in its path or query only, after a literal host"},
		{"a scheme that is a parameter", []at{{"definition.steps[3].value", `"{{lang}}://portal.example.com/"`}}, rule, "definition.steps[3].value: must hold parameters in its path or query only, after a literal host"},
		{"a parameter behind #", []at{{"definition.steps[3].value", `"https://portal.example.com/#{{lang}}"`}}, rule, "definition.steps[3].value: must hold parameters in its path or query only, not behind #"},
		{"an unknown parameter", []at{{"definition.steps[3].value", `"https://portal.example.com/{{nobody}}"`}}, rule, `definition.steps[3].value: names no parameter of the definition: "nobody"`},
		{"a parameter without allow_in_url", []at{{"definition.steps[3].value", `"https://portal.example.com/{{speed}}"`}}, rule, "definition.steps[3].value: must not hold the parameter speed, which is not allow_in_url"},
		{"{{ without }}", []at{{"definition.steps[3].value", `"https://portal.example.com/{{order"`}}, rule, "definition.steps[3].value: has {{ without }}"},
		{"{{ }} of something else", []at{{"definition.steps[3].value", `"https://portal.example.com/{{input.x}}"`}}, rule, `definition.steps[3].value: has {{ without the name of a parameter: "input.x"`},
		{"broken escapes", []at{{"definition.steps[3].value", `"https://portal.example.com/%zz"`}}, rule, "definition.steps[3].value: must be a URL: its percent-encoding is broken"},
		// params.
		{"20 parameters", []at{{"definition.params", "null"}, {"definition.params", list(20, `{"name": "p%d", "type": "string"}`)}, {"definition.steps[3].value", `"https://portal.example.com/"`}, {"definition.steps[4].param", `"p0"`}, {"definition.steps[5].param", `"p1"`}, {"definition.steps[6]", `{"id": "x", "kind": "wait", "value": 1}`}}, ok, ""},
		{"21 parameters", []at{{"definition.params", list(21, `{"name": "p%d", "type": "string"}`)}}, invalid, "definition.params: must have at most 20 entries"},
		{"a parameter named reason", []at{{"definition.params[5].name", `"reason"`}}, rule, "definition.params[5].name: must not be reason: the tool has this argument already"},
		{"a name twice", []at{{"definition.params[5].name", `"gift"`}}, rule, "definition.params[5].name: is the name of two parameters"},
		{"a name with a dash", []at{{"definition.params[5].name", `"a-b"`}}, invalid, "definition.params[5].name: must be a lower-case letter, then up to 63 of a-z, 0-9 and _"},
		{"an unknown type", []at{{"definition.params[5].type", `"time"`}}, invalid, "definition.params[5].type: must be one of string, number, integer, boolean, enum, date"},
		{"min equal to max", []at{{"definition.params[0].min", "99999"}}, ok, ""},
		{"min above max", []at{{"definition.params[0].min", "99999.5"}}, rule, "definition.params[0].min: must not be above max"},
		{"min of a string", []at{{"definition.params[2].min", "1"}}, rule, "definition.params[2].min: does not belong to type string"},
		{"max of a date", []at{{"definition.params[5].max", "1"}}, rule, "definition.params[5].max: does not belong to type date"},
		{"min that is a text", []at{{"definition.params[0].min", `"1"`}}, invalid, "definition.params[0].min: must be a number"},
		{"max_length 2000", []at{{"definition.params[2].max_length", "2000"}}, ok, ""},
		{"max_length 2001", []at{{"definition.params[2].max_length", "2001"}}, invalid, "definition.params[2].max_length: must be from 1 to 2000"},
		{"max_length 0", []at{{"definition.params[2].max_length", "0"}}, invalid, "definition.params[2].max_length: must be from 1 to 2000"},
		{"max_length of a number", []at{{"definition.params[0].max_length", "5"}}, rule, "definition.params[0].max_length: does not belong to type integer"},
		{"a pattern of an enum", []at{{"definition.params[1].pattern", `"e"`}}, rule, "definition.params[1].pattern: does not belong to type enum"},
		{"no pattern", []at{{"definition.params[2].pattern", `"("`}}, invalid, "definition.params[2].pattern: must be a regular expression (RE2): error parsing regexp: missing closing ): `(`"},
		{"a pattern that expands", []at{{"definition.params[2].pattern", `"((a{1,90}){1,90}){1,90}"`}}, invalid, "definition.params[2].pattern: must be a regular expression (RE2): error parsing regexp: invalid repeat count: `{1,90}`"},
		{"a pattern that is too large", []at{{"definition.params[2].pattern", `"(a{1,50}){1,20}[a-z]{1,900}(b{1,90}){1,11}(b{1,90}){1,11}"`}}, invalid, "definition.params[2].pattern: is too expensive: its repeats and classes expand to more than this service compiles"},
		{"an enum without values", []at{{"definition.params[1].enum", "[]"}}, rule, "definition.params[1].enum: must have at least one value for type enum"},
		{"an enum left out", []at{{"definition.params[1].enum", "-"}}, rule, "definition.params[1].enum: must have at least one value for type enum"},
		{"100 values", []at{{"definition.params[1].enum", list(100, `"v%d"`)}}, ok, ""},
		{"101 values", []at{{"definition.params[1].enum", list(101, `"v%d"`)}}, invalid, "definition.params[1].enum: must have at most 100 entries"},
		{"a value twice", []at{{"definition.params[1].enum", `["en", "en"]`}}, invalid, "definition.params[1].enum[1]: is listed twice"},
		{"values of a boolean", []at{{"definition.params[4].enum", `["yes"]`}}, rule, "definition.params[4].enum: does not belong to type boolean"},
		{"an example is not checked", []at{{"definition.params[0].example", `"many"`}}, ok, ""},
		// commit_step_id.
		{"a commit that is no step", []at{{"definition.commit_step_id", `"gone"`}}, rule, `definition.commit_step_id: names no step: "gone"`},
		{"a commit that is a type", []at{{"definition.commit_step_id", `"name"`}}, rule, "definition.commit_step_id: must name a click or press of the main phase"},
		{"a commit of the sign-in", []at{{"definition.commit_step_id", `"in"`}}, rule, "definition.commit_step_id: must name a click or press of the main phase"},
		{"a commit of the compensation", []at{{"definition.commit_step_id", `"undo"`}}, rule, `definition.commit_step_id: names no step: "undo"`},
		// assertions.
		{"10 assertions", []at{{"definition.assertions", list(10, `{"kind": "text_present", "value": "t%d"}`)}}, ok, ""},
		{"11 assertions", []at{{"definition.assertions", list(11, `{"kind": "text_present", "value": "t%d"}`)}}, invalid, "definition.assertions: must have at most 10 entries"},
		{"an unknown assertion", []at{{"definition.assertions[0].kind", `"title_is"`}}, invalid, "definition.assertions[0].kind: must be one of url_contains, text_present, element_present, element_text"},
		{"an assertion without value", []at{{"definition.assertions[0].value", "-"}}, rule, "definition.assertions[0].value: required for url_contains"},
		{"an assertion with a selector too many", []at{{"definition.assertions[1].selector", `"p"`}}, rule, "definition.assertions[1].selector: does not belong to text_present"},
		{"an assertion without its selector", []at{{"definition.assertions[2].selector", "-"}}, rule, "definition.assertions[2].selector: required for element_present"},
		{"an assertion with a value too many", []at{{"definition.assertions[2].value", `"x"`}}, rule, "definition.assertions[2].value: does not belong to element_present"},
		{"a match of another kind", []at{{"definition.assertions[1].match", `"equals"`}}, rule, "definition.assertions[1].match: does not belong to text_present"},
		{"an unknown match", []at{{"definition.assertions[3].match", `"regex"`}}, invalid, "definition.assertions[3].match: must be one of contains, equals"},
		{"an assertion with a template", []at{{"definition.assertions[3].value", `"{{order}}"`}}, rule, "definition.assertions[3].value: must not hold {{: assertions are no templates"},
		// result_fields.
		{"20 result fields", []at{{"definition.result_fields", list(20, `{"name": "f%d", "selector": "#f"}`)}}, ok, ""},
		{"21 result fields", []at{{"definition.result_fields", list(21, `{"name": "f%d", "selector": "#f"}`)}}, invalid, "definition.result_fields: must have at most 20 entries"},
		{"a field twice", []at{{"definition.result_fields", `[{"name": "a", "selector": "p"}, {"name": "a", "selector": "b"}]`}}, rule, "definition.result_fields[1].name: is the name of two result fields"},
		{"a field without selector", []at{{"definition.result_fields[0].selector", "-"}}, invalid, "definition.result_fields[0].selector: required"},
		{"an unknown attr", []at{{"definition.result_fields[0].attr", `"src"`}}, invalid, "definition.result_fields[0].attr: must be one of text, href, value"},
		{"an unknown type of a field", []at{{"definition.result_fields[0].type", `"boolean"`}}, invalid, "definition.result_fields[0].type: must be one of string, number, integer"},
		// compensation.
		{"10 compensation steps", []at{{"definition.compensation", list(10, `{"id": "c%d", "kind": "wait", "value": 1}`)}}, ok, ""},
		{"11 compensation steps", []at{{"definition.compensation", list(11, `{"id": "c%d", "kind": "wait", "value": 1}`)}}, invalid, "definition.compensation: must have at most 10 entries"},
		{"compensation that binds", []at{{"definition.compensation[1]", `{"id": "undo", "kind": "type", "target": {"selector": "a"}, "param": "customer"}`}}, rule, "definition.compensation[1].param: must not be given: compensation binds no parameters"},
		{"compensation with a template", []at{{"definition.compensation[0].value", `"https://portal.example.com/{{order}}"`}}, rule, "definition.compensation[0].value: must not hold parameters: compensation binds none"},
		{"compensation with a secret", []at{{"definition.compensation[1]", `{"id": "undo", "phase": "auth", "kind": "type", "target": {"selector": "a"}, "secret": true, "secret_ref": "password"}`}}, rule, "definition.compensation[1].secret: must not be given: compensation types no secrets"},
		{"compensation elsewhere", []at{{"definition.compensation[0].value", `"https://evil.example.com/"`}}, rule, "definition.compensation[0].value: leads to evil.example.com, which is not in target_hosts"},
		{"compensation without commit", with(read, at{"definition.compensation", `[{"id": "c", "kind": "wait", "value": 1}]`}, at{"policy", `{"approval": "always_before_run"}`}), rule, "definition.compensation: needs a commit step: it runs after a commit whose checks failed"},
		// auth.
		{"an unknown kind of auth", []at{{"definition.auth.kind", `"oauth"`}}, invalid, "definition.auth.kind: must be one of none, credentials, cookies"},
		{"a name of a secret twice", []at{{"definition.auth.secret_refs", `["password", "password"]`}}, invalid, "definition.auth.secret_refs[1]: is listed twice"},
		{"secrets of none", with(read, at{"definition.auth.kind", `"none"`}, at{"auth", "null"}, at{"policy.approval", `"always_before_run"`}), rule, "definition.auth.secret_refs: must be empty for kind none; auth.secrets.password: required: definition.auth.secret_refs names it"},
		{"no auth at all", with(read, at{"definition.auth", "-"}, at{"auth", "null"}, at{"policy.approval", `"always_before_run"`}), ok, ""},
		{"two secrets of cookies", with(read, at{"definition.auth", `{"kind": "cookies", "secret_refs": []}`}, at{"auth", `{"mode": "cookies", "secrets": {}}`}, at{"policy.approval", `"always_before_run"`}), rule, "definition.auth.secret_refs: must name exactly one secret for kind cookies"},
		{"cookies", with(read, at{"definition.auth", `{"kind": "cookies", "secret_refs": ["jar"]}`}, at{"auth", `{"mode": "cookies", "secrets": {"jar": "[{\"name\":\"a\",\"value\":\"b\",\"domain\":\".example.com\",\"path\":\"/\"}]"}}`}, at{"policy.approval", `"always_before_run"`}), ok, ""},
		{"cookies that are none", with(read, at{"definition.auth", `{"kind": "cookies", "secret_refs": ["jar"]}`}, at{"auth", `{"mode": "cookies", "secrets": {"jar": "a=b"}}`}, at{"policy.approval", `"always_before_run"`}), invalid, "auth.secrets.jar: must be a JSON array of 1 to 100 cookies: { name, value, domain, path }"},
		{"a typed secret of cookies", []at{{"definition.auth.kind", `"cookies"`}, {"auth.mode", `"cookies"`}, {"auth.secrets.password", `"[{\"name\":\"a\",\"value\":\"b\",\"domain\":\"example.com\"}]"`}}, rule, "definition.steps[1].secret_ref: does not belong to auth.kind cookies: its secret is never typed"},
		{"auth.mode of another kind", []at{{"auth.mode", `"none"`}}, rule, "auth.mode: must be credentials, as definition.auth.kind"},
		{"no auth", []at{{"auth", "null"}}, rule, "auth.mode: must be credentials, as definition.auth.kind"},
		{"a secret too many", []at{{"auth.secrets.pin", `"1"`}}, rule, "auth.secrets.pin: is not in definition.auth.secret_refs"},
		{"a secret missing", []at{{"auth.secrets", "{}"}}, rule, "auth.secrets.password: required: definition.auth.secret_refs names it"},
		{"an empty secret", []at{{"auth.secrets.password", `""`}}, invalid, "auth.secrets.password: must have 1 to 8192 bytes and no control characters"},
		{"a secret of 8192", []at{{"auth.secrets.password", long(8192)}}, ok, ""},
		{"a secret of 8193", []at{{"auth.secrets.password", long(8193)}}, invalid, "auth.secrets.password: must have 1 to 8192 bytes and no control characters"},
		{"a secret that is a number", []at{{"auth.secrets.password", "1"}}, invalid, "auth.secrets.password: must be a string"},
		// policy.
		{"no policy", []at{{"policy", "null"}}, ok, ""},
		{"an unknown field of the policy", []at{{"policy.mode", "1"}}, invalid, "policy.mode: unknown field"},
		{"an unknown approval", []at{{"policy.approval", `"never"`}}, invalid, "policy.approval: must be one of always_before_run, at_commit_point, dry_run_only, none_for_idempotent_reads"},
		{"an unknown risk", []at{{"policy.risk_level", `"none"`}}, invalid, "policy.risk_level: must be one of low, medium, high, critical"},
		{"an unknown role", []at{{"policy.approver_role", `"guest"`}}, invalid, "policy.approver_role: must be one of owner, admin, manager, member"},
		{"an SLA of 5", []at{{"policy.sla_minutes", "5"}}, ok, ""},
		{"an SLA of 4.9", []at{{"policy.sla_minutes", "4.9"}}, invalid, "policy.sla_minutes: must be from 5 to 10080"},
		{"an SLA of a week", []at{{"policy.sla_minutes", "10080"}}, ok, ""},
		{"an SLA above a week", []at{{"policy.sla_minutes", "10080.5"}}, invalid, "policy.sla_minutes: must be from 5 to 10080"},
		{"3 approvals", []at{{"policy.required_approvals", "3"}}, ok, ""},
		{"4 approvals", []at{{"policy.required_approvals", "4"}}, invalid, "policy.required_approvals: must be from 1 to 3"},
		{"0 approvals", []at{{"policy.required_approvals", "0"}}, invalid, "policy.required_approvals: must be from 1 to 3"},
		{"1.5 approvals", []at{{"policy.required_approvals", "1.5"}}, invalid, "policy.required_approvals: must be an integer"},
		{"allow_edit_params", []at{{"policy.allow_edit_params", "true"}}, ok, ""},
		// Save-time rules.
		{"at_commit_point without commit", read, rule, "policy.approval: must not be at_commit_point: the skill has no commit step"},
		{"dry_run_only without commit", with(read, at{"policy.approval", `"dry_run_only"`}), rule, "policy.approval: must not be dry_run_only: the skill has no commit step"},
		{"dry_run_only with a commit", []at{{"policy.approval", `"dry_run_only"`}}, ok, ""},
		{"always_before_run with a commit", []at{{"policy.approval", `"always_before_run"`}}, ok, ""},
		{"always_before_run without commit", with(read, at{"policy.approval", `"always_before_run"`}), ok, ""},
		{"clicks without commit", with(read, at{"policy.approval", `"always_before_run"`}, at{"definition.steps[1]", `{"id": "c", "kind": "click", "target": {"selector": "a"}}`}), rule, "policy.approval: must be none_for_idempotent_reads: the skill acts on pages and has no commit step"},
		{"clicks without commit, as reads", with(read, at{"policy", `{"approval": "none_for_idempotent_reads", "risk_level": "low"}`}, at{"definition.steps[1]", `{"id": "c", "kind": "click", "target": {"selector": "a"}}`}), ok, ""},
		{"a sign-in changes nothing", with(read, at{"policy.approval", `"always_before_run"`}, at{"definition.steps[1]", `{"id": "c", "phase": "auth", "kind": "click", "target": {"selector": "a"}}`}), ok, ""},
		{"reads", with(read, at{"policy", `{"approval": "none_for_idempotent_reads", "risk_level": "low"}`}), ok, ""},
		{"reads with a commit", []at{{"policy", `{"approval": "none_for_idempotent_reads", "risk_level": "low"}`}}, rule, "policy.approval: must not be none_for_idempotent_reads: the skill has a commit step"},
		{"reads of medium risk", with(read, at{"policy.approval", `"none_for_idempotent_reads"`}), rule, "policy.risk_level: must be low for none_for_idempotent_reads"},
		// Several at once.
		{"forms before rules", []at{{"policy.sla_minutes", "1"}, {"definition.commit_step_id", `"gone"`}}, invalid, "policy.sla_minutes: must be from 5 to 10080"},
		{"two rules", []at{{"definition.commit_step_id", `"gone"`}, {"auth.secrets.pin", `"1"`}}, rule, `definition.commit_step_id: names no step: "gone"; auth.secrets.pin: is not in definition.auth.secret_refs`},
	} {
		t.Run(row.name, func(t *testing.T) {
			s, err := Parse(input(t, row.changes...))
			var p *problem.Error
			if errors.As(err, &p); row.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				if s.Definition == nil || s.Policy == nil || s.Secrets == nil {
					t.Fatalf("%+v", s)
				}
				return
			}
			if p == nil || p.Code != row.code || p.Detail != row.want {
				t.Fatalf("got  %v\nwant %s: %s", err, row.code, row.want)
			}
		})
	}
}

func TestTextThatIsNoDocument(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`{`:      "definition: is not JSON",
		"\"\xff": "definition: is not UTF-8",
		`{"start_url": "https://a.example/", "start_url": "https://a.example/", "target_hosts": ["a.example"], "steps": [{"id": "a", "kind": "wait", "value": 1}]}`: "definition.start_url: stands twice in one object",
		strings.Repeat(" ", MaxBytes+1): fmt.Sprintf("definition: must have at most %d bytes", MaxBytes),
		"":                              "definition: required",
	} {
		_, err := Parse(Input{Definition: json.RawMessage(doc), OwnerAttested: true})
		if want = "VALIDATION: " + want; fmt.Sprint(err) != want {
			t.Errorf("%.60q: got %v, want %s", doc, err, want)
		}
	}
}

func TestTheOwnerAttests(t *testing.T) {
	t.Parallel()
	in := input(t)
	in.OwnerAttested = false
	_, err := Parse(in)
	if p := new(problem.Error); !errors.As(err, &p) || p.Code != problem.CodeBrowserSkillAttestationRequired {
		t.Errorf("%v", err)
	}
	in = input(t, at{"definition.steps", "[]"})
	in.OwnerAttested = false
	if _, err := Parse(in); !errors.Is(err, &problem.Error{Code: problem.CodeValidation}) {
		t.Errorf("a fault of form comes first, got %v", err)
	}
}

// open-parts.md, Browser skills: recorder_session_id takes its steps where the definition has none.
func TestRecordedSteps(t *testing.T) {
	t.Parallel()
	value := Text("1")
	in := input(t, append(read, at{"definition.steps", "-"}, at{"policy.approval", `"always_before_run"`})...)
	in.Recorded = []Step{{ID: "r", Kind: Wait, Value: &value}}
	s, err := Parse(in)
	if err != nil || len(s.Definition.Steps) != 1 || s.Definition.Steps[0].ID != "r" {
		t.Fatalf("%+v %v", s, err)
	}
	in.Definition = change(t, full)
	if s, err = Parse(in); len(s.Definition.Steps) != 11 || err == nil && s.Definition.Steps[0].ID == "r" {
		t.Errorf("the definition's own steps stay: %v", err)
	}
}

func TestRecordedStepsAreJudgedToo(t *testing.T) {
	t.Parallel()
	in := input(t, append(read, at{"definition.steps", "[]"})...)
	in.Recorded = []Step{{ID: "r", Kind: Click}}
	_, err := Parse(in)
	if want := "definition.steps[0].target: required for click"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
}

// The residency of the tenant holds for what is saved (open-parts.md, Residency).
func TestResidencyWhenSaved(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		residency Residency
		want      string
	}{
		{nil, "<nil>"},
		{Residency{"*.example.com"}, "<nil>"},
		{Residency{"portal.example.com"}, "<nil>"},
		{Residency{"files.example.com"}, "BROWSER_SKILL_INVALID: definition.start_url: leads to portal.example.com, which the tenant's residency does not allow; definition.steps[3].value: leads to portal.example.com, which the tenant's residency does not allow; definition.compensation[0].value: leads to portal.example.com, which the tenant's residency does not allow"},
	} {
		in := input(t)
		in.Residency = row.residency
		if _, err := Parse(in); fmt.Sprint(err) != row.want {
			t.Errorf("%v: got %v, want %s", row.residency, err, row.want)
		}
	}
}

// What is stored reads back as what was parsed, and parses again to the same.
func TestStored(t *testing.T) {
	t.Parallel()
	s, err := Parse(input(t))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := json.Marshal(s.Definition)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(doc)
	if err != nil || !reflect.DeepEqual(loaded, s.Definition) {
		t.Errorf("got %+v\nwant %+v\n%v", loaded, s.Definition, err)
	}
	in := input(t)
	in.Definition = doc
	again, err := Parse(in)
	if err != nil || !reflect.DeepEqual(again.Definition, s.Definition) {
		t.Errorf("%v", err)
	}
	policy, err := json.Marshal(s.Policy)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"approval":"at_commit_point","risk_level":"medium","approver_role":"admin","sla_minutes":1440,"required_approvals":1,"allow_edit_params":false}`; string(policy) != want {
		t.Errorf("the defaults are %s", policy)
	}
	if p, err := LoadPolicy(policy); err != nil || *p != *s.Policy {
		t.Errorf("%+v %v", p, err)
	}
	if !strings.Contains(string(doc), `"kind":"type","target":{"selector":"#pass"},"value":null,"secret":true,"secret_ref":"password"`) {
		t.Errorf("a secret step carries value null: %s", doc)
	}
	if strings.Contains(string(doc), "hunter2") {
		t.Error("the definition holds a secret")
	}
}

// PATCH changes a policy and an auth alone.
func TestParts(t *testing.T) {
	t.Parallel()
	s, err := Parse(input(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParsePolicy(json.RawMessage(`{"approval": "none_for_idempotent_reads", "risk_level": "low"}`), s.Definition); !errors.Is(err, &problem.Error{Code: problem.CodeBrowserSkillInvalid}) {
		t.Error(err)
	}
	if p, err := ParsePolicy(json.RawMessage(`{"approval": "dry_run_only"}`), s.Definition); err != nil || p.Approval != DryRunOnly {
		t.Error(p, err)
	}
	if _, err := ParseAuth(json.RawMessage(`{"mode": "cookies", "secrets": {}}`), s.Definition); !errors.Is(err, &problem.Error{Code: problem.CodeBrowserSkillInvalid}) {
		t.Error(err)
	}
	if secrets, err := ParseAuth(json.RawMessage(fullAuth), s.Definition); err != nil || secrets["password"] != "hunter2" {
		t.Error(err)
	}
}

// No fault quotes a secret.
func TestFaultsQuoteNoSecret(t *testing.T) {
	t.Parallel()
	for _, in := range []Input{
		input(t, at{"auth.secrets.password", `"canary\u0001"`}),
		input(t, at{"auth.secrets.pin", `"canary"`}),
		input(t, at{"definition.steps[1].value", `"canary"`}),
		input(t, with(read, at{"definition.auth", `{"kind": "cookies", "secret_refs": ["jar"]}`}, at{"auth", `{"mode": "cookies", "secrets": {"jar": "[{\"name\":\"canary\"}]"}}`})...),
	} {
		if _, err := Parse(in); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v", err)
		}
	}
}

// The limits in the OpenAPI tags are the limits that are checked.
func TestTagsAreTheLimits(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		of         any
		field, tag string
		want       int
	}{
		{Definition{}, "StartURL", "maxLength", MaxURL}, {Definition{}, "TargetHosts", "maxItems", MaxHosts}, {Definition{}, "Steps", "maxItems", MaxSteps},
		{Definition{}, "Params", "maxItems", MaxParams}, {Definition{}, "Assertions", "maxItems", MaxAssertions}, {Definition{}, "ResultFields", "maxItems", MaxResultFields},
		{Definition{}, "Compensation", "maxItems", MaxCompensation}, {Step{}, "Value", "maxLength", MaxURL}, {Locator{}, "Selector", "maxLength", MaxSelector},
		{Locator{}, "Candidates", "maxItems", MaxCandidates}, {Locator{}, "Text", "maxLength", maxText}, {Param{}, "Label", "maxLength", maxLabel},
		{Param{}, "MaxLength", "maximum", MaxValue}, {Param{}, "Pattern", "maxLength", maxPattern}, {Param{}, "Enum", "maxItems", MaxEnum},
		{Auth{}, "SecretRefs", "maxItems", MaxSecretRefs}, {Policy{}, "SLAMinutes", "minimum", MinSLAMinutes}, {Policy{}, "SLAMinutes", "maximum", MaxSLAMinutes},
		{Policy{}, "SLAMinutes", "default", DefaultSLAMinutes}, {Policy{}, "RequiredApprovals", "maximum", MaxRequiredApprovals},
	} {
		f, _ := reflect.TypeOf(row.of).FieldByName(row.field)
		if got := f.Tag.Get(row.tag); got != strconv.Itoa(row.want) {
			t.Errorf("%T.%s: %s %q, want %d", row.of, row.field, row.tag, got, row.want)
		}
	}
	for _, of := range []any{Definition{}, Step{}, Locator{}, Param{}, Check{}, Field{}, Auth{}, Policy{}} {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
			if f.Tag.Get("doc") == "" {
				t.Errorf("%T.%s has no doc", of, f.Name)
			}
		}
	}
}

func TestSelectors(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{
		"#a": true, "a.b > c + d ~ e, f": true, `a[href="/x?y=1"]`: true, `a[title='>>']`: true, `:has-text("Order {1}")`: true, `#a\:b`: true, "*": true, `input[value=a]`: true,
		"": false, "  ": false, "a >> b": false, ":is(a >> b)": false, "text=x": false, "//a": false, "(//a)": false, "..": false, "a/b": false, `"Order"`: false, "a[": false, "a]": false,
		"a)": false, "(a": false, `a["x]`: false, "a{}": false, "@a": false, "`a`": false, `a\`: false, "a\x00": false, "xpath=//a": false, "internal:role=button": false, "a!b": false,
	} {
		if got := isCSS(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}
