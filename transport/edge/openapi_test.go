package edge

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"agentsvc/transport/embed/identity"
)

// A route that reads storage or a bucket lists UNAVAILABLE; a route that uses neither does
// not.
func TestOpenAPINamesUnavailable(t *testing.T) {
	h := func(context.Context, *Caller, *nothing) (*Empty, error) { return nil, nil }
	for _, c := range []struct {
		name  string
		route Route
		want  bool
	}{
		{"neither key nor bucket", Route{Bucket: BucketNone}, false},
		{"an authenticator of its own", Route{Bucket: BucketNone, Auth: &stubAuth{}}, true},
		{"buckets of its own", Route{Bucket: BucketNone, Charge: func(context.Context, *Caller) error { return nil }}, true},
		{"the tenant's bucket", Route{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.route.Method, c.route.Path, c.route.ID = "GET", "/a", "a"
			table := NewTable()
			Handle(table, c.route, h)
			responses := described(t, table).Paths["/a"]["get"].Responses
			for status, code := range map[string]string{"503": "UNAVAILABLE", "500": "INTERNAL"} {
				_, got := responses[status].Content[problemType].Examples[code]
				if got != c.want {
					t.Errorf("%s %s is described: %t, want %t", status, code, got, c.want)
				}
			}
		})
	}
}

// service.md, Errors: what some problems carry besides.
func TestOpenAPINamesTheMembersOfProblems(t *testing.T) {
	problem := described(t, NewTable()).Components.Schemas[problemSchema]
	if p := problem.Properties["run_id"]; p.Type != "string" || p.Format != "uuid" {
		t.Errorf("run_id: %+v", p)
	}
	reasons := []string{string(identity.Malformed), string(identity.WrongAlg), string(identity.Signature), string(identity.Expired),
		string(identity.BadClaims), string(identity.ExpTooFar), string(identity.IatInFuture), string(identity.NotYetValid)}
	if p := problem.Properties["reason"]; p.Type != "string" || !slices.Equal(p.Enum, reasons) {
		t.Errorf("reason: %+v, want %v", p, reasons)
	}
	if p := problem.Properties["errors"]; p.Type != "array" || p.Items.Type != "string" {
		t.Errorf("errors: %+v", p)
	}
	p := problem.Properties["extensions"]
	if got := slices.Sorted(maps.Keys(p.Properties)); p.Type != "object" || !slices.Equal(got, []string{"code", "field", "run_id", "selectors", "step_id", "url"}) || !slices.Equal(p.Required, []string{"code", "run_id"}) {
		t.Errorf("extensions: %+v", p)
	}
	for _, name := range []string{"run_id", "reason", "errors", "extensions"} {
		if slices.Contains(problem.Required, name) {
			t.Errorf("%s is of some problems only, and required", name)
		}
	}
}

// A row names the header fields that only its handler reads or sets.
func TestOpenAPINamesHeaderFields(t *testing.T) {
	table := NewTable()
	HandleRaw(table, Route{Method: "GET", Path: "/a", ID: "a", Bucket: BucketNone, Tagged: true,
		Params: []HeaderField{{Name: "X-Signature", Description: "Signs the body."}}, Headers: []HeaderField{{Name: "Set-Cookie", Description: "The session."}}},
		func(context.Context, *Caller, *Raw) (*RawAnswer, error) { return &RawAnswer{}, nil })
	HandleOpenAPI(table, "/openapi.json", Info{Title: "Test", Version: "1"})
	paths := described(t, table).Paths
	a := paths["/a"]["get"]
	var taken []string
	for _, p := range a.Parameters {
		if p.In != "header" || p.Required || p.Description == "" {
			t.Errorf("%+v", p)
		}
		taken = append(taken, p.Name)
	}
	if want := []string{"X-Signature", "If-None-Match"}; !slices.Equal(taken, want) {
		t.Errorf("parameters %q, want %q", taken, want)
	}
	for status, want := range map[string][]string{"200": {"ETag", "Set-Cookie", "X-Request-Id"}, "304": {"ETag", "X-Request-Id"}} {
		if got := slices.Sorted(maps.Keys(a.Responses[status].Headers)); !slices.Equal(got, want) {
			t.Errorf("%s has the header fields %q, want %q", status, got, want)
		}
	}
	for status := range paths["/openapi.json"]["get"].Responses {
		if _, sent := paths["/openapi.json"]["get"].Responses[status].Headers["ETag"]; sent != (status == "200" || status == "304") {
			t.Errorf("the document: %s with an ETag: %t", status, sent)
		}
	}
}

// A required pointer to a struct may be null, unless its tag says that it never is.
func TestOpenAPINamesWhatMayBeNull(t *testing.T) {
	type part struct {
		N int `json:"n"`
	}
	type answer struct {
		Always *part `json:"always" null:"false"`
		Maybe  *part `json:"maybe"`
		Left   *part `json:"left,omitempty"`
		Reset  *part `json:"reset,omitempty" null:"true"`
	}
	table := NewTable()
	Handle(table, Route{Method: "GET", Path: "/a", ID: "a"}, func(context.Context, *Caller, *nothing) (*answer, error) { return nil, nil })
	schemas := described(t, table).Components.Schemas
	for name, nullable := range map[string]bool{"always": false, "maybe": true, "left": false, "reset": true} {
		if p := schemas["Answer"].Properties[name]; (len(p.AnyOf) == 2) != nullable || (p.Ref != "") == nullable {
			t.Errorf("%s: %+v, may be null: %t", name, p, nullable)
		}
	}
}

type describedTable struct {
	Paths map[string]map[string]struct {
		Parameters []struct {
			Name, In, Description string
			Required              bool
		}
		Responses map[string]struct {
			Content map[string]struct{ Examples map[string]any }
			Headers map[string]any
		}
	}
	Components struct {
		Schemas map[string]describedSchema
	}
}

type describedSchema struct {
	Ref        string `json:"$ref"`
	Type       string
	Format     string
	Enum       []string
	Required   []string
	AnyOf      []any
	Items      *describedSchema
	Properties map[string]describedSchema
}

func described(t *testing.T, table *Table) (d describedTable) {
	t.Helper()
	raw, err := table.OpenAPI(Info{Title: "Test", Version: "1"})
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}
