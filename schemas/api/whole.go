package api

// Whole is the answer of the lists that service.md shows as { items }: without
// limit and cursor it is the whole list and has no next_cursor, with one of them
// it is a page like any other.
type Whole[T any] struct {
	Items      []T         `json:"items" doc:"In the order of the list."`
	NextCursor Opt[string] `json:"next_cursor,omitzero" doc:"Only when limit or cursor is given; null: the last page."`
}

// All is a whole list.
func All[T any](items []T) *Whole[T] {
	if items == nil {
		items = []T{}
	}
	return &Whole[T]{Items: items}
}

// PageOf is a page in the form of Whole.
func PageOf[T any](l List[T]) *Whole[T] {
	w := All(l.Items)
	if w.NextCursor = None[string](); l.NextCursor != nil {
		w.NextCursor = Some(*l.NextCursor)
	}
	return w
}
