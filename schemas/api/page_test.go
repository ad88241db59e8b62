package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"testing"

	"agentsvc/schemas/problem"
)

func TestCursor(t *testing.T) {
	type pos struct {
		At int    `json:"at"`
		ID string `json:"id"`
	}
	var got pos
	if ok, err := (Page{}).From("runs", &got); ok || err != nil {
		t.Fatal(ok, err)
	}
	want := pos{7, "x"}
	if ok, err := (Page{Cursor: Cursor("runs", want)}).From("runs", &got); !ok || err != nil || got != want {
		t.Fatal(ok, err, got)
	}
	enc := base64.RawURLEncoding.EncodeToString
	for name, cursor := range map[string]string{
		"of another list":    Cursor("threads", want),
		"no base64":          "%%%",
		"no JSON":            enc([]byte("x")),
		"no position":        enc([]byte(`{"k":"runs"}`)),
		"null position":      enc([]byte(`{"k":"runs","p":null}`)),
		"other position":     enc([]byte(`{"k":"runs","p":[1]}`)),
		"with something on":  Cursor("runs", want) + "A",
		"with padding added": Cursor("runs", want) + "=",
	} {
		var p *problem.Error
		if _, err := (Page{Cursor: cursor}).From("runs", &got); !errors.As(err, &p) || p.Code != problem.CodeValidation {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPaged(t *testing.T) {
	at := func(i int) any { return i }
	for name, c := range map[string]struct {
		items []int
		want  string
	}{
		"nothing":       {nil, `{"items":[],"next_cursor":null}`},
		"the last page": {[]int{1, 2}, `{"items":[1,2],"next_cursor":null}`},
		"one more":      {[]int{1, 2, 3}, `{"items":[1,2],"next_cursor":"` + Cursor("k", 2) + `"}`},
	} {
		if got, err := json.Marshal(Paged(c.items, 2, false, "k", at)); err != nil || string(got) != c.want {
			t.Errorf("%s: %s %v", name, got, err)
		}
	}
	if (Page{}).Size() != 25 || (Page{Limit: 3}).Size() != 3 || (Page{Limit: 1000}).Size() != 100 {
		t.Error("service.md, Page size: default 25, max 100")
	}
}

func TestOptTellsAbsentNullAndValueApart(t *testing.T) {
	var body struct {
		Absent Opt[string] `json:"absent,omitzero"`
		Null   Opt[string] `json:"null,omitzero"`
		Value  Opt[string] `json:"value,omitzero"`
	}
	if err := json.Unmarshal([]byte(`{"null":null,"value":"v"}`), &body); err != nil {
		t.Fatal(err)
	}
	if body.Absent.Set || !body.Null.Set || !body.Null.Null || body.Value != Some("v") {
		t.Fatalf("%+v", body)
	}
	old := "old"
	if body.Absent.Or(old) != "old" || body.Null.Or(old) != "" || body.Value.Or(old) != "v" {
		t.Fatal("Or")
	}
	if body.Absent.OrPtr(&old) != &old || body.Null.OrPtr(&old) != nil || *body.Value.OrPtr(&old) != "v" {
		t.Fatal("OrPtr")
	}
	if b, err := json.Marshal(body); err != nil || string(b) != `{"null":null,"value":"v"}` {
		t.Fatal(string(b), err)
	}
}
