package platform

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"agentsvc/schemas/id"
	"agentsvc/transport/edge"
)

// document is the OpenAPI document of the service.
type document struct {
	tree     map[string]any
	compiled map[string]interface{ Validate(any) error } // by the schema's JSON
}

func newDocument(t testing.TB) document {
	t.Helper()
	table := edge.NewTable()
	New(Config{}).Register(table)
	raw, err := table.OpenAPI(edge.Info{Title: "Test", Version: "1", Tags: Tags})
	if err != nil {
		t.Fatal(err)
	}
	d := document{compiled: map[string]interface{ Validate(any) error }{}}
	if err := json.Unmarshal(raw, &d.tree); err != nil {
		t.Fatal(err)
	}
	return d
}

// A member of a response that may be null says when it is: the others never are.
func TestTheDocumentSaysWhenAMemberIsNull(t *testing.T) {
	d := newDocument(t)
	schemas := at(d.tree, "components", "schemas").(map[string]any)
	may := 0
	for name, s := range schemas {
		required, _ := at(s, "required").([]any)
		for _, member := range required {
			p := at(s, "properties", member.(string))
			for _, one := range asList(at(p, "anyOf")) {
				if at(one, "type") != "null" {
					continue
				}
				may++
				if text, _ := at(p, "description").(string); !strings.Contains(text, "null: ") {
					t.Errorf("%s.%s may be null, and its description %q does not say when", name, member, text)
				}
			}
		}
	}
	if may == 0 {
		t.Error("no member may be null: the test reads the wrong place")
	}
	for _, name := range []string{"User", "Me"} {
		if roles := asList(at(schemas[name], "properties", "role", "enum")); !slices.Equal(roles, []any{"member", "admin", "owner"}) {
			t.Errorf("%s.role is one of %v", name, roles)
		}
	}
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

// at returns a member by its path.
func at(v any, path ...string) any {
	for _, name := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[name]
	}
	return v
}

// check returns an error if v breaks a schema of the document.
func (d document) check(schema, v any) error {
	key, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	s := d.compiled[string(key)]
	if s == nil {
		raw, err := json.Marshal(map[string]any{"components": d.tree["components"], "allOf": []any{schema}})
		if err != nil {
			return err
		}
		if s, err = compileSchema(raw); err != nil {
			return err
		}
		d.compiled[string(key)] = s
	}
	return s.Validate(v)
}

func compileSchema(raw []byte) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("svc:document", doc); err != nil {
		return nil, err
	}
	return c.Compile("svc:document")
}

// operations returns all operations by "METHOD path".
func (d document) operations() map[string]map[string]any {
	all := map[string]map[string]any{}
	paths, _ := d.tree["paths"].(map[string]any)
	for path, item := range paths {
		for method, op := range item.(map[string]any) {
			all[strings.ToUpper(method)+" "+path] = op.(map[string]any)
		}
	}
	return all
}

// examples returns the examples of a media type, by name.
func examples(media map[string]any) map[string]any {
	all := map[string]any{}
	if v, ok := media["example"]; ok {
		all["example"] = v
	}
	named, _ := media["examples"].(map[string]any)
	for name, v := range named {
		all[name] = at(v, "value")
	}
	return all
}

// conforms returns an error if an answer breaks what the document says of its route.
func (d document) conforms(method, path string, got answer) error {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	all := d.operations()
	_, literal := all[method+" "+path] // a literal path wins over one with a parameter
	for name, op := range all {
		m, template, _ := strings.Cut(name, " ")
		if literal && template != path {
			continue
		}
		want := strings.Split(template, "/")
		same := m == method && len(want) == len(parts)
		for i := 0; same && i < len(want); i++ {
			same = want[i] == parts[i] || strings.HasPrefix(want[i], "{")
		}
		if !same {
			continue
		}
		response := at(op, "responses", strconv.Itoa(got.status))
		if response == nil {
			return errors.New("the status " + strconv.Itoa(got.status) + " is not described")
		}
		mediaType, _, _ := strings.Cut(got.header.Get("Content-Type"), ";")
		media := at(response, "content", mediaType)
		if got.body == "" || at(response, "content", "application/octet-stream") != nil || mediaType == "text/event-stream" && media != nil {
			return nil
		}
		if media == nil {
			return errors.New("the type " + mediaType + " is not described")
		}
		var v any
		if err := json.Unmarshal([]byte(got.body), &v); err != nil {
			return err
		}
		if code, _ := at(v, "code").(string); mediaType == "application/problem+json" && at(media, "examples", code) == nil {
			return errors.New("the code " + code + " is not described")
		}
		return d.check(at(media, "schema"), v)
	}
	return errors.New("the route is not described")
}

// open-parts.md, Errors: null for a field that is not nullable is VALIDATION and changes nothing. The
// document says for every member of every body whether it may be null.
func TestNullForAMember(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newDocument(t)
	parameter := regexp.MustCompile(`{[^}]*}`)
	refusals := map[bool]int{}
	for name, op := range d.operations() {
		body := at(op, "requestBody", "content", "application/json", "schema")
		method, path, _ := strings.Cut(name, " ")
		path = parameter.ReplaceAllLiteralString(path, id.NewAnywhere().String()) // bodies are checked first
		members, _ := at(d.followed(body), "properties").(map[string]any)
		for member, schema := range members {
			got := w.person("owner", method, path, `{"`+member+`":null}`)
			refused := got.status == 400 && got.code() == "VALIDATION" && slices.Contains(strings.Split(strings.TrimSuffix(got.detail(), "."), "; "), member+": must not be null")
			if refusals[refused]++; refused == d.nullable(schema) {
				t.Errorf("%s: %s, which may be null: %v: %d %s", name, member, d.nullable(schema), got.status, got.body)
			}
		}
	}
	if refusals[true] < 100 || refusals[false] < 20 {
		t.Errorf("%v: the test reads the wrong place", refusals)
	}
}

// open-parts.md, Conventions: PATCH answers the wrapper that GET has, and may say besides what it did.
func TestAPatchAnswersAsTheRead(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	answer := func(op map[string]any) (required []string) {
		for _, name := range asList(at(d.followed(at(op, "responses", "200", "content", "application/json", "schema")), "required")) {
			required = append(required, name.(string))
		}
		slices.Sort(required)
		return required
	}
	both := 0
	all := d.operations()
	for name, patch := range all {
		path, ok := strings.CutPrefix(name, "PATCH ")
		get := all["GET "+path]
		if !ok || get == nil {
			continue
		}
		both++
		if got, want := answer(patch), answer(get); len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s answers %v, the read %v", name, got, want)
		}
	}
	if both < 10 {
		t.Errorf("only %d routes have both", both)
	}
}

// The document does not fill in what a client left out where that means something else: all of a list,
// or what is stored.
func TestDefaultsOfTheDocument(t *testing.T) {
	t.Parallel()
	d := newDocument(t)
	// Of these the whole value is replaced: what is left out of it has its default.
	replaced := []string{"theme", "config", "definition"}
	wholes, patches := 0, 0
	for name, op := range d.operations() {
		next := at(d.followed(at(op, "responses", "200", "content", "application/json", "schema")), "properties", "next_cursor")
		required := asList(at(d.followed(at(op, "responses", "200", "content", "application/json", "schema")), "required"))
		for _, p := range asList(op["parameters"]) {
			if at(p, "name") != "limit" {
				continue
			}
			if next == nil {
				t.Errorf("%s has a limit and no next_cursor", name)
			}
			whole := !slices.Contains(required, any("next_cursor"))
			if whole {
				wholes++
			}
			if of := at(p, "schema", "default"); (of == nil) != whole {
				t.Errorf("%s: the default of limit is %v; next_cursor may be absent: %v", name, of, whole)
			}
		}
		if !strings.HasPrefix(name, "PATCH ") {
			continue
		}
		patches++
		members, _ := at(d.followed(at(op, "requestBody", "content", "application/json", "schema")), "properties").(map[string]any)
		for member, schema := range members {
			if !slices.Contains(replaced, member) && d.defaults(schema) {
				t.Errorf("%s: %s has a default, though what is left out stays", name, member)
			}
		}
	}
	if wholes < 8 || patches < 10 {
		t.Errorf("%d lists, %d patches: the test reads the wrong place", wholes, patches)
	}
	if at(d.operations()["GET /v1/tools"], "responses", "404") == nil {
		t.Error("GET /v1/tools with an unknown agent_id is not described")
	}
}

// defaults reports whether a schema or one below it has a default.
func (d document) defaults(schema any) bool {
	switch of := d.followed(schema).(type) {
	case map[string]any:
		for name, v := range of {
			if name == "default" || name != "example" && name != "examples" && d.defaults(v) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(of, d.defaults)
	}
	return false
}

// followed returns the schema itself, or the one that it refers to.
func (d document) followed(schema any) any {
	ref, _ := at(schema, "$ref").(string)
	if name, ok := strings.CutPrefix(ref, "#/components/schemas/"); ok {
		return at(d.tree, "components", "schemas", name)
	}
	return schema
}

// nullable reports whether a schema accepts null: it says so, or says nothing of the type.
func (d document) nullable(schema any) bool {
	switch of := at(d.followed(schema), "type").(type) {
	case string:
		return of == "null"
	case []any:
		return slices.Contains(of, any("null"))
	}
	all := asList(at(schema, "anyOf"))
	return len(all) == 0 && at(schema, "$ref") == nil || slices.ContainsFunc(all, d.nullable)
}
