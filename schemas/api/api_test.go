package api

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"agentsvc/schemas/flow"
)

// Lists that service.md shows as { items }: next_cursor is there only when a
// page was asked for.
func TestWholeListsHaveNoCursor(t *testing.T) {
	next := "abc"
	for name, c := range map[string]struct {
		in   any
		want string
	}{
		"the whole list":       {All([]int{1, 2}), `{"items":[1,2]}`},
		"an empty list":        {All[int](nil), `{"items":[]}`},
		"a page in the middle": {PageOf(List[int]{Items: []int{1}, NextCursor: &next}), `{"items":[1],"next_cursor":"abc"}`},
		"the last page":        {PageOf(List[int]{Items: []int{1}}), `{"items":[1],"next_cursor":null}`},
	} {
		got, err := json.Marshal(c.in)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, c.want)
		}
	}
}

// A manifest is returned byte for byte; what a column has as NULL is null.
func TestDocumentsAreKept(t *testing.T) {
	var v struct {
		Manifest   Manifest   `json:"manifest"`
		Value      Value      `json:"value"`
		Definition Definition `json:"definition"`
	}
	const doc = `{"manifest":{"b":1.0,"a":{"z":null}},"value":"x","definition":{"nodes":[1.0]}}`
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		t.Fatal(err)
	}
	if got, err := json.Marshal(v); err != nil || string(got) != doc {
		t.Errorf("%s, %v", got, err)
	}
	v.Manifest, v.Value, v.Definition = nil, nil, nil
	if got, err := json.Marshal(v); err != nil || string(got) != `{"manifest":null,"value":null,"definition":null}` {
		t.Errorf("%s, %v", got, err)
	}
}

// The document shows the schema of a definition as schemas/flow has it.
func TestTheDocumentShowsADefinition(t *testing.T) {
	r := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	r.Schema(reflect.TypeFor[struct {
		Definition Definition `json:"definition"`
	}](), true, "Body")
	got, err := json.Marshal(r.Map()["Definition"])
	if err != nil {
		t.Fatal(err)
	}
	var shown, want any
	if err := json.Unmarshal(got, &shown); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(flow.Schema(), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(shown, want) {
		t.Errorf("%s", got)
	}
}
