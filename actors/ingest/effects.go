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
	"agentsvc/schemas/model"
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

// errNoVectors: the provider of embeddings cannot serve now.
var errNoVectors = errors.New("the provider of embeddings does not answer")

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
	places := k.places
	var embeds *model.EmbeddingModel
	if r.EmbedProvider != nil && r.EmbedModel != nil {
		places, embeds = k.embedding, &model.EmbeddingModel{Provider: *r.EmbedProvider, Name: *r.EmbedModel}
	}
	if err := places.Take(ctx, a.Tenant); err != nil {
		return nil
	}
	defer places.Give(a.Tenant)
	building.Inc()
	defer building.Dec()
	w := &writer{kind: k, ctx: ctx, model: embeds, to: knowledge.Target{Tenant: a.Tenant, Document: id.DocumentID{UUID: a.ID}, Base: r.Base, Number: r.Number,
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
		built := Built{r.Generation, w.written, info.MediaType, nil, w.used}
		if embeds != nil {
			by := embeds.String()
			built.EmbeddedBy = &by
		}
		return built
	case ctx.Err() != nil: // the activation has ended; its result would be dropped
		return nil
	case errors.Is(err, errOvertaken):
		return Overtaken{r.Generation}
	case errors.As(err, &fault):
		return Unreadable{r.Generation, fault.Reason, w.used}
	}
	k.log(k.cfg.Log.Warn(), a).Err(err).Int("attempt", r.Attempts).Msg("indexing a document was interrupted")
	return Interrupted{r.Generation, errors.Is(err, errNoVectors), w.used}
}

// writer writes the chunks of a generation.
type writer struct {
	*kind
	ctx     context.Context
	to      knowledge.Target
	model   *model.EmbeddingModel // nil: chunks get no vectors
	used    Used
	width   int // dimensions of the generation's vectors
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
	vectors, err := w.embed()
	if err != nil {
		return err
	}
	ok, err := w.cfg.Store.Write(w.ctx, w.to, w.waiting, vectors)
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

// embed makes the vectors of the chunks that wait. A failure that stays is a fault of the document.
func (w *writer) embed() ([][]float32, error) {
	if w.model == nil {
		return nil, nil
	}
	if w.cfg.Embedder == nil {
		return nil, errors.New("this node makes no vectors")
	}
	texts := make([]string, len(w.waiting))
	for i, c := range w.waiting {
		if texts[i] = c.Text; c.Heading != "" {
			texts[i] = c.Heading + "\n" + c.Text
		}
	}
	out, err := w.cfg.Embedder.Embed(w.ctx, w.to.Tenant, *w.model, texts)
	w.used = Used{w.model.Name, w.used.TokensIn + out.TokensIn, w.used.CostUSD + out.CostUSD, w.used.Estimated || out.Estimated}
	refused := new(model.Error)
	switch {
	case err == nil && (len(out.Vectors) != len(texts) || w.width != 0 && len(out.Vectors[0]) != w.width):
		return nil, &document.Fault{Reason: "the model of embeddings changed the number of its dimensions while it read the document"}
	case err == nil:
		w.width = len(out.Vectors[0])
		return out.Vectors, nil
	case !errors.As(err, &refused): // of the service: its database, its keys
		return nil, err
	case refused.Kind == model.Refused || refused.Kind == model.Broken:
		return nil, &document.Fault{Reason: "no vectors could be made: " + refused.Message}
	}
	return nil, errors.Join(errNoVectors, err)
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
