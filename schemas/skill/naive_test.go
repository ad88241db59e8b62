package skill

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// forms is a second statement of the forms of a create: a JSON Schema, written from the
// specification's tables.
const forms = `{
	"$defs": {
		"selector": {"type": "string", "maxLength": 1000},
		"some": {"type": "string", "minLength": 1, "maxLength": 1000},
		"name": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,63}$"},
		"id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
		"candidates": {"type": "array", "maxItems": 10, "items": {"$ref": "#/$defs/some"}},
		"host": {"type": "string", "pattern": "^[A-Za-z0-9_.-]+(:[0-9]+)?$", "minLength": 1, "maxLength": 260},
		"step": {"type": "object", "additionalProperties": false, "required": ["id", "kind"], "properties": {
			"id": {"$ref": "#/$defs/id"}, "phase": {"enum": ["auth", "main"]}, "kind": {"enum": ["navigate", "click", "type", "select", "check", "press", "wait", "scroll"]},
			"target": {"type": ["object", "null"], "additionalProperties": false, "properties": {"selector": {"$ref": "#/$defs/selector"}, "candidates": {"$ref": "#/$defs/candidates"}, "text": {"type": "string", "maxLength": 500}}},
			"value": {"type": ["string", "number", "boolean", "null"], "maxLength": 2048}, "param": {"$ref": "#/$defs/name"}, "secret": {"type": "boolean"}, "secret_ref": {"$ref": "#/$defs/name"}},
			"if": {"not": {"properties": {"kind": {"const": "navigate"}}}}, "then": {"properties": {"value": {"maxLength": 2000}}}},
		"param": {"type": "object", "additionalProperties": false, "required": ["name", "type"], "properties": {
			"name": {"$ref": "#/$defs/name"}, "type": {"enum": ["string", "number", "integer", "boolean", "enum", "date"]}, "label": {"type": "string", "maxLength": 120}, "required": {"type": "boolean"},
			"min": {"type": "number"}, "max": {"type": "number"}, "max_length": {"type": "integer", "minimum": 1, "maximum": 2000}, "pattern": {"type": "string", "maxLength": 1000},
			"enum": {"type": "array", "maxItems": 100, "uniqueItems": true, "items": {"type": "string", "minLength": 1, "maxLength": 2000}}, "example": {"type": ["string", "number", "boolean"], "maxLength": 2000}, "allow_in_url": {"type": "boolean"}}},
		"definition": {"type": "object", "additionalProperties": false, "required": ["start_url", "target_hosts", "steps"], "properties": {
			"start_url": {"type": "string", "minLength": 1, "maxLength": 2048}, "target_hosts": {"type": "array", "minItems": 1, "maxItems": 50, "uniqueItems": true, "items": {"$ref": "#/$defs/host"}},
			"steps": {"type": "array", "minItems": 1, "maxItems": 60, "items": {"$ref": "#/$defs/step"}}, "params": {"type": "array", "maxItems": 20, "items": {"$ref": "#/$defs/param"}},
			"commit_step_id": {"$ref": "#/$defs/id"},
			"assertions": {"type": "array", "maxItems": 10, "items": {"type": "object", "additionalProperties": false, "required": ["kind"], "properties": {
				"kind": {"enum": ["url_contains", "text_present", "element_present", "element_text"]}, "selector": {"$ref": "#/$defs/selector"}, "value": {"type": "string", "maxLength": 2000}, "match": {"enum": ["equals", "contains"]}}}},
			"result_fields": {"type": "array", "maxItems": 20, "items": {"type": "object", "additionalProperties": false, "required": ["name", "selector"], "properties": {
				"name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"}, "selector": {"$ref": "#/$defs/some"}, "candidates": {"$ref": "#/$defs/candidates"}, "attr": {"enum": ["text", "href", "value"]}, "type": {"enum": ["string", "number", "integer"]}}}},
			"compensation": {"type": "array", "maxItems": 10, "items": {"$ref": "#/$defs/step"}},
			"auth": {"type": "object", "additionalProperties": false, "required": ["kind"], "properties": {"kind": {"enum": ["none", "credentials", "cookies"]}, "secret_refs": {"type": "array", "maxItems": 20, "uniqueItems": true, "items": {"$ref": "#/$defs/name"}}}}}},
		"policy": {"type": "object", "additionalProperties": false, "properties": {
			"approval": {"enum": ["always_before_run", "at_commit_point", "dry_run_only", "none_for_idempotent_reads"]}, "risk_level": {"enum": ["low", "medium", "high", "critical"]},
			"approver_role": {"enum": ["owner", "admin", "manager", "member"]}, "sla_minutes": {"type": "number", "minimum": 5, "maximum": 10080}, "required_approvals": {"type": "integer", "minimum": 1, "maximum": 3}, "allow_edit_params": {"type": "boolean"}}}
	},
	"type": "object", "required": ["definition"], "properties": {"definition": {"$ref": "#/$defs/definition"}, "policy": {"$ref": "#/$defs/policy"}}
}`

// sentences is a second implementation of the rules between values: each line is a sentence of the
// specification about the decoded document. It returns the first that is broken.
func sentences(doc map[string]any) string {
	get := func(v any, name string) any { m, _ := v.(map[string]any); return m[name] }
	str := func(v any, name string) string {
		switch s := get(v, name).(type) {
		case string:
			return s
		case json.Number:
			return s.String()
		case bool:
			if s {
				return "true"
			}
			return "false"
		}
		return ""
	}
	list := func(v any, name string) []any { l, _ := get(v, name).([]any); return l }
	d, policy, auth := doc["definition"], doc["policy"], doc["auth"]

	placeholder := regexp.MustCompile(`\{\{ *([a-z][a-z0-9_]*) *\}\}`)
	hosts := map[string]bool{}
	for _, h := range list(d, "target_hosts") {
		hosts[strings.TrimSuffix(strings.ToLower(h.(string)), ":443")] = true
	}
	reaches := func(address string) bool {
		address = placeholder.ReplaceAllString(address, "x")
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || strings.ContainsAny(address, " \\") {
			return false
		}
		host := strings.ToLower(u.Host)
		if u.Scheme == "http" && u.Port() == "" {
			host += ":80"
		}
		return hosts[strings.TrimSuffix(host, ":443")]
	}
	params := map[string]any{}
	for _, p := range list(d, "params") {
		name, kind := str(p, "name"), str(p, "type")
		numeric := kind == "number" || kind == "integer"
		low, lowErr := json.Number(str(p, "min")).Float64()
		high, highErr := json.Number(str(p, "max")).Float64()
		switch {
		case name == "reason":
			return "a parameter named reason"
		case params[name] != nil:
			return "a name twice"
		case !numeric && (get(p, "min") != nil || get(p, "max") != nil):
			return "min and max belong to numbers"
		case lowErr == nil && highErr == nil && low > high:
			return "min above max"
		case kind != "string" && (get(p, "max_length") != nil || str(p, "pattern") != ""):
			return "max_length and pattern belong to strings"
		case (kind == "enum") != (len(list(p, "enum")) > 0):
			return "an enum parameter has enum: string[]"
		}
		params[name] = p
	}
	refs := []string{}
	for _, r := range list(get(d, "auth"), "secret_refs") {
		refs = append(refs, r.(string))
	}
	kind := str(get(d, "auth"), "kind")
	if kind == "" {
		kind = "none"
	}
	mode := "none"
	if auth != nil {
		mode = str(auth, "mode")
	}
	given := []string{}
	if m, ok := get(auth, "secrets").(map[string]any); ok {
		for name := range m {
			given = append(given, name)
		}
	}
	slices.Sort(given)
	sorted := slices.Clone(refs)
	slices.Sort(sorted)
	switch {
	case kind != mode:
		return "auth.kind against mode"
	case !slices.Equal(sorted, given):
		return "surplus or missing secrets"
	case kind == "none" && len(refs) > 0, kind == "cookies" && len(refs) != 1:
		return "secrets of a kind"
	case strings.Contains(str(d, "start_url"), "{{"):
		return "a template in start_url"
	case !reaches(str(d, "start_url")):
		return "start_url outside target_hosts"
	}
	ids := map[string]bool{}
	acts, commit := false, false
	for i, s := range append(slices.Clone(list(d, "steps")), list(d, "compensation")...) {
		undoes := i >= len(list(d, "steps"))
		kind, value, param, target := str(s, "kind"), str(s, "value"), str(s, "param"), get(s, "target")
		signs := str(s, "phase") == "auth"
		if ids[str(s, "id")] {
			return "an id twice"
		}
		ids[str(s, "id")] = true
		needsTarget := slices.Contains([]string{"click", "type", "select", "check"}, kind)
		empty := str(target, "selector") == "" && str(target, "text") == "" && len(list(target, "candidates")) == 0
		if needsTarget && empty || target != nil && (empty || kind == "navigate") {
			return "the target"
		}
		if text, err := json.Marshal(target); err != nil || strings.Contains(string(text), "{{") {
			return "no selector may contain {{"
		}
		for _, one := range append(list(target, "candidates"), str(target, "selector")) {
			if strings.ContainsAny(one.(string), otherThanCSS) {
				return "selectors are CSS selectors"
			}
		}
		secret, _ := get(s, "secret").(bool)
		if secret && (kind != "type" || get(s, "value") != nil || param != "" || !signs || undoes || !slices.Contains(refs, str(s, "secret_ref"))) {
			return "a secret type step"
		}
		if secret && str(get(d, "auth"), "kind") == "cookies" || !secret && str(s, "secret_ref") != "" {
			return "a secret_ref"
		}
		if param != "" {
			p := params[param]
			if p == nil || undoes || kind != "type" && kind != "select" && kind != "check" || kind == "check" && str(p, "type") != "boolean" {
				return "a binding"
			}
		}
		if kind == "navigate" {
			_, rest, _ := strings.Cut(value, "://")
			literal, _, templated := strings.Cut(rest, "{{")
			if templated && (!strings.ContainsAny(literal, "/?") || strings.Contains(literal, "#")) || !reaches(value) {
				return "a navigate address"
			}
			for _, m := range placeholder.FindAllStringSubmatch(value, -1) {
				if in, _ := get(params[m[1]], "allow_in_url").(bool); undoes || !in {
					return "a parameter in an address"
				}
			}
			if strings.Contains(placeholder.ReplaceAllString(value, ""), "{{") {
				return "a broken template"
			}
			continue
		}
		if strings.Contains(value, "{{") {
			return "values bind by param only"
		}
		whole := regexp.MustCompile(`^-?[0-9]{1,6}$`)
		switch kind {
		case "click":
			if value != "" {
				return "a click takes no value"
			}
		case "type", "select":
			if get(s, "value") == nil && param == "" && !secret {
				return "nothing to type"
			}
		case "check":
			if value != "true" && value != "false" && (value != "" || param == "") {
				return "true or false"
			}
		case "press":
			if value == "" || len(value) > 64 {
				return "the key"
			}
		case "wait":
			n, err := json.Number(value).Int64()
			if value == "" && target == nil || value != "" && (!whole.MatchString(value) || err != nil || n < 0 || n > 60_000) {
				return "milliseconds, or empty for the target"
			}
		case "scroll":
			n, err := json.Number(value).Int64()
			if !whole.MatchString(value) || err != nil || n < -100_000 || n > 100_000 {
				return "pixels"
			}
		}
		if !undoes && !signs {
			acts = acts || kind != "wait" && kind != "scroll"
			commit = commit || str(s, "id") == str(d, "commit_step_id") && (kind == "click" || kind == "press")
		}
	}
	if named := str(d, "commit_step_id"); (named != "") != commit {
		return "the commit step is a click or press of the main phase"
	}
	if !commit && len(list(d, "compensation")) > 0 {
		return "compensation runs after a commit"
	}
	for _, c := range list(d, "assertions") {
		kind, element := str(c, "kind"), strings.HasPrefix(str(c, "kind"), "element_")
		if element != (str(c, "selector") != "") || (kind != "element_present") != (str(c, "value") != "") || kind != "element_text" && str(c, "match") != "" || strings.Contains(str(c, "selector")+str(c, "value"), "{{") ||
			strings.ContainsAny(str(c, "selector"), otherThanCSS) {
			return "an assertion"
		}
	}
	fields := map[string]bool{}
	for _, f := range list(d, "result_fields") {
		if fields[str(f, "name")] || strings.Contains(str(f, "selector"), "{{") || strings.ContainsAny(str(f, "selector"), otherThanCSS) {
			return "a result field"
		}
		fields[str(f, "name")] = true
	}
	approval := str(policy, "approval")
	if approval == "" {
		approval = "at_commit_point"
	}
	switch {
	case approval == "none_for_idempotent_reads" && (commit || str(policy, "risk_level") != "low"):
		return "none_for_idempotent_reads only without a commit step and of low risk"
	case (approval == "at_commit_point" || approval == "dry_run_only") && !commit:
		return "require a commit step"
	case acts && !commit && approval != "none_for_idempotent_reads":
		return "state-changing steps and no commit marker"
	}
	return ""
}

// otherThanCSS is what addresses have and no selector of these tests: outside of brackets it is no CSS.
const otherThanCSS = "/"

// places and values are what random changes of a create are made of.
var (
	places = strings.Fields(`start_url target_hosts target_hosts[1] steps params commit_step_id assertions result_fields compensation auth auth.kind auth.secret_refs
		steps[0].phase steps[0].value steps[0].id steps[1].secret steps[1].secret_ref steps[1].phase steps[1].value steps[1].param steps[1].kind steps[2].target steps[2].kind
		steps[3].value steps[3].target steps[4].target.selector steps[4].target.candidates steps[4].param steps[4].kind steps[5].value steps[5].param steps[6].param steps[6].value steps[6].kind
		steps[7].value steps[7].kind steps[8].value steps[8].target steps[8].kind steps[9].kind steps[9].phase steps[9].id steps[9].value steps[10].value steps[10].target
		params[0].min params[0].max params[0].type params[0].name params[0].allow_in_url params[1].enum params[1].type params[2].max_length params[2].type params[3].name params[4].type params[4].name
		assertions[0].kind assertions[0].value assertions[1].selector assertions[2].kind assertions[3].match result_fields[0].name result_fields[0].selector result_fields[1]
		compensation[0].value compensation[1].kind compensation[1].param compensation[1].target`)
	values = []string{"null", "1", "0", "-1", "2001", "1.5", "true", "false", "[]", "{}", `""`, `"x"`, `"go"`, `"in"`, `"name"`, `"auth"`, `"main"`, `"navigate"`, `"click"`, `"type"`, `"select"`, `"check"`, `"press"`,
		`"wait"`, `"scroll"`, `"order"`, `"customer"`, `"gift"`, `"lang"`, `"reason"`, `"unbound"`, `"password"`, `"pin"`, `"none"`, `"cookies"`, `"credentials"`, `"string"`, `"integer"`, `"boolean"`, `"enum"`, `"date"`,
		`"{{order}}"`, `"#a"`, `{"selector": "#a"}`, `{"text": "A"}`, `["a"]`, `["a", "a"]`, `["password"]`, `"portal.example.com"`, `"a.example.com:8443"`, `"https://portal.example.com/{{order}}"`, `"https://portal.example.com/{{speed}}"`,
		`"https://{{order}}/"`, `"https://portal.example.com/#{{order}}"`, `"https://portal.example.com/"`, `"http://portal.example.com/"`, `"https://evil.example.com/"`, `"element_text"`, `"url_contains"`, `"equals"`, `{"name": "receipt", "selector": "p"}`, `{"name": "other", "selector": "p"}`}
	policies = []string{`null`, `{}`, `{"approval": "always_before_run"}`, `{"approval": "dry_run_only"}`, `{"approval": "none_for_idempotent_reads"}`, `{"approval": "none_for_idempotent_reads", "risk_level": "low"}`, `{"required_approvals": 4}`, `{"sla_minutes": 5}`}
	auths    = []string{fullAuth, fullAuth, fullAuth, `null`, `{"mode": "none"}`, `{"mode": "credentials", "secrets": {}}`, `{"mode": "credentials", "secrets": {"password": "x", "pin": "y"}}`}
)

// Parse gives the verdict of the schema and of the sentences for random changes of a full skill.
func TestSavingAgreesWithTheSentences(t *testing.T) {
	t.Parallel()
	verdicts := map[problem.Code]int{}
	one := func(t *rapid.T, tb testing.TB) {
		var changes []at
		if rapid.IntRange(0, 3).Draw(t, "reads") == 0 {
			for _, c := range read {
				changes = append(changes, at{strings.TrimPrefix(c.path, "definition."), c.value})
			}
		}
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			place := rapid.SampledFrom(places).Draw(t, "place")
			if len(changes) > len(read)-1 && strings.ContainsAny(place, "[") {
				continue // the lists of a reading skill are short
			}
			changes = append(changes, at{place, rapid.SampledFrom(values).Draw(t, "value")})
		}
		depth := func(c at) int { return strings.Count(c.path, "[") + strings.Count(c.path, ".") }
		slices.SortStableFunc(changes, func(a, b at) int { return depth(b) - depth(a) }) // what is replaced as a whole comes last
		in := Input{Definition: change(tb, full, changes...), Policy: json.RawMessage(rapid.SampledFrom(policies).Draw(t, "policy")), Auth: json.RawMessage(rapid.SampledFrom(auths).Draw(t, "auth")), OwnerAttested: true}
		_, err := Parse(in)
		var p *problem.Error
		got := problem.Code("")
		if errors.As(err, &p) {
			got = p.Code
		}
		var doc map[string]any
		dec := json.NewDecoder(strings.NewReader(`{"definition": ` + string(in.Definition) + `, "policy": ` + string(in.Policy) + `, "auth": ` + string(in.Auth) + `}`))
		dec.UseNumber()
		if err := dec.Decode(&doc); err != nil {
			t.Fatal(err)
		}
		for _, whole := range []string{"policy", "auth"} { // null: the defaults
			if doc[whole] == nil {
				delete(doc, whole)
			}
		}
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		want, why := problem.Code(""), ""
		if told := tool.Check(context.Background(), json.RawMessage(forms), text); told != nil {
			want, why = problem.CodeValidation, told.Error()
		} else if why = sentences(doc); why != "" {
			want = problem.CodeBrowserSkillInvalid
		}
		if got != want {
			t.Fatalf("%v\npolicy %s auth %s\nParse says %v\nthe specification %s: %s", changes, in.Policy, in.Auth, p, want, why)
		}
		verdicts[want]++
	}
	rapid.Check(t, func(r *rapid.T) {
		for range 10 {
			one(r, t)
		}
	})
	for _, code := range []problem.Code{"", problem.CodeValidation, problem.CodeBrowserSkillInvalid} {
		if verdicts[code] < 20 {
			t.Errorf("%d verdicts %q: the check is void", verdicts[code], code)
		}
	}
}
