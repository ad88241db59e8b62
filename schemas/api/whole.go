package api

// Whole is the response of the lists that service.md shows as { items }. Without limit and
// cursor it is the whole list and has no next_cursor, unless it is cut at MaxListBytes; with
// either it is a page like any other.
type Whole[T any] struct {
	Items      []T         `json:"items" doc:"In the order of the list. It ends early at 4 MiB of JSON, after at least one item."`
	NextCursor Opt[string] `json:"next_cursor,omitzero" doc:"When limit or cursor is given, and when the list was cut; null: the last page."`

	at func(i int) string // returns the cursor after item i
}

// All returns a whole list that fits.
func All[T any](items []T) *Whole[T] {
	if items == nil {
		items = []T{}
	}
	return &Whole[T]{Items: items}
}

// WholeOf returns a whole list, cut if it is too long for one response.
func WholeOf[T any](l List[T]) *Whole[T] {
	w := All(l.Items)
	w.at = l.at
	if l.NextCursor != nil {
		w.NextCursor = Some(*l.NextCursor)
	}
	return w
}

// PageOf returns a page in the form of Whole.
func PageOf[T any](l List[T]) *Whole[T] {
	w := WholeOf(l)
	if l.NextCursor == nil {
		w.NextCursor = None[string]()
	}
	return w
}

// MapWhole returns a list with f applied to each item.
func MapWhole[T, U any](w *Whole[T], f func(T) U) *Whole[U] {
	out := &Whole[U]{Items: make([]U, len(w.Items)), NextCursor: w.NextCursor, at: w.at}
	for i, item := range w.Items {
		out.Items[i] = f(item)
	}
	return out
}

// MarshalJSON writes items as an array, never as null, and ends the list at
// MaxListBytes.
func (w Whole[T]) MarshalJSON() ([]byte, error) {
	return encodeList(`{"items":[`, w.Items, &w.NextCursor, w.at)
}
