package api

import (
	"encoding/base64"
	"encoding/json"

	"agentsvc/schemas/problem"
)

// Limits of service.md, Limits, Page size.
const (
	DefaultLimit = 25
	MaxLimit     = 100
)

// Page is the query of every list: embed it in the input of a route.
type Page struct {
	Cursor string `query:"cursor" maxLength:"512" doc:"next_cursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"25" doc:"how many items at most"`
}

// Given says whether the client asked for a page at all. Lists that service.md
// shows without next_cursor answer everything when it did not.
func (p Page) Given() bool { return p.Cursor != "" || p.Limit != 0 }

// Size is the limit to use.
func (p Page) Size() int {
	if p.Limit <= 0 {
		return DefaultLimit
	}
	return min(p.Limit, MaxLimit)
}

// From reads the position that the cursor holds into pos. It says false on the
// first page. A cursor of another list, or one that was never ours, is
// VALIDATION (open-parts.md).
func (p Page) From(kind string, pos any) (bool, error) {
	if p.Cursor == "" {
		return false, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err == nil {
		var c cursor
		if err = json.Unmarshal(raw, &c); err == nil && c.Kind == kind && len(c.Pos) > 0 && string(c.Pos) != "null" {
			if err = json.Unmarshal(c.Pos, pos); err == nil {
				return true, nil
			}
		}
	}
	return false, problem.Invalid("cursor", "is not a cursor of this list")
}

type cursor struct {
	Kind string          `json:"k"`
	Pos  json.RawMessage `json:"p"`
}

// Cursor is the opaque text for position pos of the list called kind. It panics
// when pos has no JSON, which is a programmer's error.
func Cursor(kind string, pos any) string {
	p, err := json.Marshal(pos)
	if err != nil {
		panic(err)
	}
	raw, err := json.Marshal(cursor{Kind: kind, Pos: p})
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// List is the answer of every list. NextCursor is null at the end.
type List[T any] struct {
	Items      []T     `json:"items" doc:"Newest first."`
	NextCursor *string `json:"next_cursor" doc:"null: the last page."`
}

// MarshalJSON writes items as an array, never as null.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l.Items == nil {
		l.Items = []T{}
	}
	type plain List[T]
	return json.Marshal(plain(l))
}

// Paged makes a List of items, of which one more than size may have been read:
// if so it is dropped and the cursor points behind the last one kept.
func Paged[T any](items []T, size int, kind string, pos func(T) any) List[T] {
	if len(items) <= size {
		return List[T]{Items: items}
	}
	items = items[:size]
	next := Cursor(kind, pos(items[size-1]))
	return List[T]{Items: items, NextCursor: &next}
}

// Items is the answer of a list that is always whole.
type Items[T any] struct {
	Items []T `json:"items" doc:"In the order of the list."`
}

// MarshalJSON writes items as an array, never as null.
func (l Items[T]) MarshalJSON() ([]byte, error) {
	if l.Items == nil {
		l.Items = []T{}
	}
	type plain Items[T]
	return json.Marshal(plain(l))
}
