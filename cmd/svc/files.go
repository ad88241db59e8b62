package main

import (
	"context"
	"errors"
	"io"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
)

// attachments reads the beginning of attached files for models.
type attachments struct{ blobs *blob.Dir }

func (a attachments) Start(_ context.Context, tenant id.TenantID, attachment id.AttachmentID, max int) ([]byte, error) {
	f, _, err := a.blobs.Open(store.AttachmentFile(tenant, attachment))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(max)))
	return b, errors.Join(err, f.Close())
}

// files joins the directory of files with the rows that name them.
type files struct {
	blobs *blob.Dir
	rows  *store.Files
}

func (f files) Sweep(ctx context.Context) (int, error) { return f.blobs.Sweep(ctx, f.rows) }
func (f files) Walk(ctx context.Context) (int, error)  { return f.blobs.Walk(ctx, f.rows) }
