package edge

import (
	"context"
	"encoding/json"
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
	for _, name := range []string{"run_id", "reason"} {
		if slices.Contains(problem.Required, name) {
			t.Errorf("%s is of some problems only, and required", name)
		}
	}
}

type describedTable struct {
	Paths map[string]map[string]struct {
		Responses map[string]struct {
			Content map[string]struct{ Examples map[string]any }
		}
	}
	Components struct {
		Schemas map[string]struct {
			Required   []string
			Properties map[string]struct {
				Type   string
				Format string
				Enum   []string
			}
		}
	}
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
