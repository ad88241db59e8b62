package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"

	"agentsvc/schemas/problem"
)

// Limits from service.md, Limits, Page size.
const (
	DefaultLimit = 25
	MaxLimit     = 100
)

// Page is the query of every list: embed it in a route's input.
type Page struct {
	Cursor string `query:"cursor" maxLength:"512" doc:"next_cursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" default:"25" doc:"how many items at most"`
}

// PageOrAll is the query of the lists that are whole unless a page is requested (Whole): its limit
// has no default.
type PageOrAll struct {
	Cursor string `query:"cursor" maxLength:"512" doc:"next_cursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"100" doc:"how many items at most; without limit and cursor: the whole list. With a cursor alone: 25"`
}

// Page returns the query as that of other lists.
func (p PageOrAll) Page() Page { return Page(p) }

// Given reports whether the client requested a page. Lists with PageOrAll are whole otherwise.
func (p Page) Given() bool { return p.Cursor != "" || p.Limit != 0 }

// Size returns the limit to use.
func (p Page) Size() int {
	if p.Limit <= 0 {
		return DefaultLimit
	}
	return min(p.Limit, MaxLimit)
}

// From decodes the position in the cursor into pos. It returns false on the first page. A
// cursor of another list, or an invalid one, is VALIDATION (open-parts.md). A client can make a
// cursor with any position that pos can hold, so pos holds only what a query accepts: a number
// that is compared with a Postgres int is an int32. U+0000, which no text of Postgres holds, is
// refused here.
func (p Page) From(kind string, pos any) (bool, error) {
	if p.Cursor == "" {
		return false, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err == nil && !bytes.Contains(raw, []byte(`\u0000`)) {
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

// Cursor returns the opaque text for position pos of the list called kind. It panics if pos
// cannot be encoded, which is a programmer's error.
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

// MaxListBytes limits the JSON of a list's items. A longer list ends early, after at least
// one item, and has a cursor.
const MaxListBytes = 4 << 20

// List is the response of every list. NextCursor is null at the end.
type List[T any] struct {
	Items      []T     `json:"items" doc:"Newest first. A page ends early at 4 MiB of JSON, after at least one item."`
	NextCursor *string `json:"next_cursor" doc:"null: the last page."`

	at func(i int) string // returns the cursor after item i
}

// MarshalJSON writes items as an array, never as null, and ends the page at
// MaxListBytes.
func (l List[T]) MarshalJSON() ([]byte, error) {
	next := None[string]()
	if l.NextCursor != nil {
		next = Some(*l.NextCursor)
	}
	return encodeList(`{"items":[`, l.Items, &next, l.at)
}

// encodeList encodes an object: head, which ends where the items begin, as many items as fit,
// and next_cursor if next is set or items were left out. at returns the cursor after an item;
// nil means that no items may be left out.
func encodeList[T any](head string, items []T, next *Opt[string], at func(i int) string) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString(head)
	for i := range items {
		item, err := json.Marshal(&items[i])
		if err != nil {
			return nil, err
		}
		if at != nil && i > 0 && out.Len()+len(item) > MaxListBytes {
			*next = Some(at(i - 1))
			break
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(item)
	}
	out.WriteByte(']')
	if next.Set {
		cursor, err := json.Marshal(*next)
		if err != nil {
			return nil, err
		}
		out.WriteString(`,"next_cursor":`)
		out.Write(cursor)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// Paged makes a List of items. If one more than size was read, it is dropped and the cursor
// points after the last one kept. more means that there are further items although none was
// read.
func Paged[T any](items []T, size int, more bool, kind string, pos func(T) any) List[T] {
	if len(items) > size {
		items, more = items[:size], true
	}
	l := List[T]{Items: items, at: func(i int) string { return Cursor(kind, pos(items[i])) }}
	if more && len(items) > 0 {
		next := l.at(len(items) - 1)
		l.NextCursor = &next
	}
	return l
}

// Items is the response of a list that is never paged.
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
