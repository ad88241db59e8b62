package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
)

// contents are the contents of documents in the store of files.
type contents struct{ blobs *blob.Store }

// Put stores a content.
func (c contents) Put(ctx context.Context, t id.TenantID, f id.FileID, r io.Reader, most int64) (int64, [sha256.Size]byte, error) {
	return c.blobs.Put(ctx, store.DocumentFile(t, f), r, most)
}

// Settle ends a Put.
func (c contents) Settle(t id.TenantID, f id.FileID, known bool) {
	c.blobs.Settle(store.DocumentFile(t, f), known)
}

// Delete removes a content.
func (c contents) Delete(ctx context.Context, t id.TenantID, f id.FileID) error {
	return c.blobs.Delete(ctx, store.DocumentFile(t, f))
}

// TooLarge reports whether a content was too large.
func (contents) TooLarge(err error) bool { return errors.Is(err, blob.ErrTooLarge) }

// Away reports whether the store of files cannot serve now.
func (contents) Away(err error) bool { return errors.Is(err, blob.ErrUnavailable) }

// Open opens a content.
func (c contents) Open(ctx context.Context, t id.TenantID, f id.FileID) (io.ReadCloser, error) {
	r, _, err := c.blobs.Open(ctx, store.DocumentFile(t, f))
	return r, err
}
