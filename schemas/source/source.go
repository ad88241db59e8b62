// Package source says what a source of a knowledge base is (service.md, Knowledge base, knowledge
// source, ACL): its kinds, their configuration and credentials, and what a connector answers
// about the files of a source: items, pages of a listing, positions in it, and faults. Pure.
package source

import (
	"context"
	"io"
	"time"
)

// Item is one file or page at a source.
type Item struct {
	// ID is the identity of the document: the vendor's id, the key or the URL. It never changes
	// over edits, renames and moves.
	ID string
	// Name is the document's name, URI the address where people open it; "" if there is none.
	Name, URI string
	// MediaType is what the source says; "" if it says nothing.
	MediaType string
	// Version changes whenever the content changes, and should not change otherwise. "" means
	// that only the content shows whether it changed.
	Version string
	// Size in bytes; negative if unknown.
	Size int64
	// Deleted: the item is gone. Only ID is set.
	Deleted bool
	// Fault, if set: the item exists and cannot be read. If the fault may pass, what the item leads
	// to is unknown too, and perhaps under which ID its document is: this walk does not show what is
	// gone.
	Fault *Fault
	// Leads: the item leads to others, which a walk finds in its content only. If it had a document,
	// a fault that does not pass hides them too.
	Leads bool
	// Linked: only a link leads to the item. A fault that does not pass makes no document of it.
	Linked bool
	// Content, if set, came with the listing and is valid until the callback returns. The caller
	// closes its body, read or not.
	Content *Content
	// Link is a short-lived address of the content that came with the listing, for Fetch.
	Link string
}

// Content is the content of an item. The caller closes the body. A read that fails returns a
// *Fault.
type Content struct {
	Body      io.ReadCloser
	MediaType string // "" if unknown
	Name      string // if not "", better than the item's
}

// Page is a part of a listing.
type Page struct {
	Items []Item
	// Resume is the position behind this page; "" keeps the position before it.
	Resume string
	// Restart: the walk begins anew with this page. What it named before does not count.
	Restart bool
	// Last: the walk is complete. Full: since its beginning, or its last restart, it has named
	// everything, so what it did not name is gone. Delta is where the next walk begins; "" means
	// at the beginning. Full and Delta are read on the last page only.
	Last, Full bool
	Delta      string
}

// Position is where a walk begins: behind the last page of an interrupted walk, else at the
// delta that the last complete walk returned, else at the beginning.
type Position struct{ Resume, Delta string }

// Source reads one source of a knowledge base. All errors are *Fault, except those of the
// context, of the callback, and of a node that lost its lease.
type Source interface {
	// Walk lists the source, and calls each with one page after the other. It holds at most one
	// page in memory.
	Walk(ctx context.Context, from Position, each func(context.Context, Page) error) error
	// Fetch returns the content of a listed item.
	Fetch(ctx context.Context, item Item) (Content, error)
}

// Fault is a failure that a tenant may read.
type Fault struct {
	// Reason says in plain words what is wrong. It holds no secret and no words of the vendor.
	Reason string
	// Lasting: nothing changes until a person changes something, at the source or here.
	Lasting bool
	// Content: the reason is the content itself, so nothing changes before it changes.
	Content bool
	// Item: only this item is affected. Otherwise the whole source is.
	Item bool
	// Login: the credentials were refused.
	Login bool
	// Status is the HTTP status that the vendor answered with; 0 if there was none.
	Status int
	// Gone: there is no such item any more.
	Gone bool
	// Again: the same request may succeed if it is repeated at once.
	Again bool
	// RetryAfter is how long the vendor asked to wait, if it asked for more than a call waits.
	RetryAfter time.Duration
}

// Error implements error.
func (f *Fault) Error() string { return f.Reason }
