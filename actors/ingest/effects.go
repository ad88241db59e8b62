package ingest

import (
	"context"
	"errors"
	"io"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/knowledge"
	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
)

const (
	batch = 200 // chunks that one transaction writes
	// batchBytes bounds the text of one transaction.
	batchBytes = 1 << 20
	// mostChunks bounds a document.
	mostChunks = 200_000
	// pauseClean is the pause before what could not be removed is tried again.
	pauseClean = 2 * time.Second
)

// errOvertaken: the row has moved on.
var errOvertaken = errors.New("the document has another generation, another content, or is gone")

func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	switch e := e.(type) {
	case Build:
		return k.build(ctx, a.Address, e.Row)
	case Clean:
		return k.clean(ctx, a.Address, e.Row)
	}
	return nil
}

// build writes a generation.
func (k *kind) build(ctx context.Context, a cluster.Address, r Row) any {
	if err := k.places.Take(ctx, a.Tenant); err != nil {
		return nil
	}
	defer k.places.Give(a.Tenant)
	building.Inc()
	defer building.Dec()
	w := &writer{kind: k, ctx: ctx, to: knowledge.Target{Tenant: a.Tenant, Document: id.DocumentID{UUID: a.ID}, Base: r.Base, Number: r.Number,
		Generation: r.Generation, Content: r.Content}}
	in := document.Input{Name: r.Name, MediaTypeHint: r.MediaType, Size: r.Size, Open: func(ctx context.Context) (io.ReadCloser, error) {
		return k.cfg.Files.Open(ctx, a.Tenant, r.File)
	}}
	info, err := k.cfg.Parser.Parse(ctx, in, document.Chunking{MaxTokens: r.MaxTokens, OverlapTokens: r.OverlapTokens}, w.add)
	if err == nil {
		err = w.flush()
	}
	fault := new(document.Fault)
	switch {
	case err == nil:
		return Built{r.Generation, w.written, info.MediaType}
	case ctx.Err() != nil: // the activation has ended; its result would be dropped
		return nil
	case errors.Is(err, errOvertaken):
		return Overtaken{r.Generation}
	case errors.As(err, &fault):
		return Unreadable{r.Generation, fault.Reason}
	}
	k.log(k.cfg.Log.Warn(), a).Err(err).Int("attempt", r.Attempts).Msg("indexing a document was interrupted")
	return Interrupted{r.Generation}
}

// writer writes the chunks of a generation.
type writer struct {
	*kind
	ctx     context.Context
	to      knowledge.Target
	waiting []document.Chunk
	bytes   int
	written int
}

func (w *writer) add(c document.Chunk) error {
	if w.written+len(w.waiting) >= mostChunks {
		return &document.Fault{Reason: "the file holds too much text"}
	}
	w.waiting, w.bytes = append(w.waiting, c), w.bytes+len(c.Text)
	if len(w.waiting) < batch && w.bytes < batchBytes {
		return nil
	}
	return w.flush()
}

func (w *writer) flush() error {
	if len(w.waiting) == 0 {
		return nil
	}
	ok, err := w.cfg.Store.Write(w.ctx, w.to, w.waiting)
	if err == nil && !ok {
		err = errOvertaken
	}
	if err != nil {
		return err
	}
	w.written += len(w.waiting)
	w.waiting, w.bytes = w.waiting[:0], 0
	return nil
}

// clean removes the chunks that nothing shows, and of a deleted document its file.
func (k *kind) clean(ctx context.Context, a cluster.Address, r Row) any {
	keep := r.Shown
	if r.Deleted {
		keep = -1
	}
	err := k.cfg.Store.Drop(ctx, a.Tenant, id.DocumentID{UUID: a.ID}, keep)
	if err == nil && r.Deleted {
		err = k.cfg.Files.Delete(ctx, a.Tenant, r.File)
	}
	if err == nil {
		return Cleaned{}
	}
	if ctx.Err() == nil {
		k.log(k.cfg.Log.Warn(), a).Err(err).Msg("chunks of a document could not be removed")
	}
	timer := time.NewTimer(pauseClean)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return Dirty{}
}
