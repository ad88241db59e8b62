package platform

import (
	"context"
	"errors"
	"io"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
	"agentsvc/transport/edge"
)

type oneAttachment struct {
	ID id.AttachmentID `path:"id"`
}

func (p *Platform) attachmentRoutes(t *edge.Table) {
	const tag = "Attachments"
	edge.HandleUpload(t, edge.Route{Method: "POST", Path: "/v1/attachments", ID: "createAttachment", Answer: sampleAttachment,
		Summary:     "Store a file",
		Description: "One field `file`, up to 20 MiB. Messages name it by its id.", Tag: tag, Role: lifecycle.RoleMember, Status: 201, Idempotent: true,
		Example: map[string]any{"file": "(the bytes of the file)"}}, p.createAttachment)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/attachments/{id}", ID: "getAttachment", Answer: sampleAttachment,
		Summary: "Read a file's metadata", Tag: tag, Role: lifecycle.RoleMember}, p.getAttachment)
	edge.HandleDownload(t, edge.Route{Method: "GET", Path: "/v1/attachments/{id}/content", ID: "downloadAttachment", Summary: "Download a file", Tag: tag, Role: lifecycle.RoleMember}, p.download)
}

// createAttachment stores the file before its row: a row without its file would break a
// promise, a file without its row only wastes space.
func (p *Platform) createAttachment(ctx context.Context, c *edge.Caller, _ *nothing, up *edge.Upload) (_ *api.Attachment, err error) {
	f, err := up.Next()
	if err != nil {
		return nil, err
	}
	a := store.NewAttachment{ID: id.AttachmentID{UUID: id.NewAnywhere()}, Name: f.Name, MediaType: f.MediaType}
	key := store.AttachmentFile(c.Tenant, a.ID)
	if a.SizeBytes, a.SHA256, err = p.Files.Put(ctx, key, f, edge.MaxAttachment); err != nil {
		return nil, err
	}
	defer func() {
		// After a commit with unknown outcome the row may exist.
		known := !errors.Is(err, store.ErrUnavailable)
		if err != nil && known {
			known = p.Files.Delete(context.WithoutCancel(ctx), key) == nil // otherwise a sweep removes it
		}
		p.Files.Settle(key, known)
	}()
	if _, err := up.Next(); !errors.Is(err, io.EOF) {
		return nil, err
	}
	return change(ctx, p, c, with1((*store.Tx).CreateAttachment, a))
}

func (p *Platform) getAttachment(ctx context.Context, c *edge.Caller, in *oneAttachment) (*api.Attachment, error) {
	return p.Store.View(c.Tenant).Attachment(ctx, in.ID)
}

func (p *Platform) download(ctx context.Context, c *edge.Caller, in *oneAttachment) (*edge.Download, error) {
	a, err := p.Store.View(c.Tenant).Attachment(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	body, size, err := p.stored(ctx, store.AttachmentFile(c.Tenant, in.ID), "content of the file")
	if err != nil {
		return nil, err
	}
	return &edge.Download{Name: a.Name, MediaType: a.MediaType, Size: size, Body: body}, nil
}

// stored opens a stored file. One that is not there, whatever its row says, is NOT_FOUND, with this name for it.
func (p *Platform) stored(ctx context.Context, key, what string) (io.ReadCloser, int64, error) {
	body, size, err := p.Files.Open(ctx, key)
	if errors.Is(err, blob.ErrNotFound) {
		err = problem.NotFound(what)
	}
	return body, size, err
}
