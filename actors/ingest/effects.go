package ingest

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/failpoint"
	"agentsvc/persistence/knowledge"
	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/pause"
)

const (
	batch = 200 // chunks that get their vectors together
	// batchBytes bounds the text of a batch.
	batchBytes = 1 << 20
	// slice is the number of chunks that one transaction writes: Postgres computes for some milliseconds to index their words.
	slice = 8
	// rest is how much longer than such a transaction took the writer rests after it. A document is then a fourth of the
	// work of one of the database's processors, and the runs beside it do not wait.
	rest = 3
	// mostRest bounds a rest: a transaction that waited for a database that hung was not work.
	mostRest = time.Second
	// turnTime is how long a document that gets vectors keeps its place while others wait for one.
	turnTime = time.Minute
	// mostYielded bounds the documents that wait for their place again, in the middle: each has a spool of up to 256 MiB.
	mostYielded = 24
	// patienceTakeBack bounds how long a reading that its node ends holds up the node's stop.
	patienceTakeBack = 2 * time.Second
	// mostChunks bounds a document.
	mostChunks = 200_000
	// pauseClean is the pause before what could not be removed is tried again.
	pauseClean = 2 * time.Second
)

// Where a crash test kills the process.
var (
	pointBeforeWrite = failpoint.Declare("ingest.before_write")
	pointAfterWrite  = failpoint.Declare("ingest.after_write")
	pointBeforeBuilt = failpoint.Declare("ingest.before_built")
	pointBeforeDrop  = failpoint.Declare("ingest.before_drop")
	pointAfterDrop   = failpoint.Declare("ingest.after_drop")
)

// errNoVectors: the provider of embeddings cannot serve now.
var errNoVectors = errors.New("the provider of embeddings does not answer")

// noVectors: the provider of embeddings refuses. The fault is not the file's.
type noVectors struct{ reason string }

func (e *noVectors) Error() string { return e.reason }

// errOvertaken: the row has moved on.
var errOvertaken = errors.New("the document has another generation, another content, or is gone")

func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	switch e := e.(type) {
	case Enter:
		return k.enter(ctx, a, e.Row)
	case Build:
		return k.build(ctx, a.Address, e.Row)
	case Clean:
		return k.clean(ctx, a.Address, e.Row)
	}
	return nil
}

// build writes a generation. It removes what earlier attempts left first, however many there were, and takes the vectors that the one
// before has of the same texts, so that a provider that gives some at a time is asked, and paid, once for each.
func (k *kind) build(ctx context.Context, a cluster.Address, r Row) any {
	w := &writer{kind: k, ctx: ctx, to: knowledge.Target{Tenant: a.Tenant, Document: id.DocumentID{UUID: a.ID}, Base: r.Base, Number: r.Number,
		Generation: r.Generation, Content: r.Content}}
	place := k.entered.take(a)
	if place == nil { // the activation has ended
		k.takeBack(ctx, w.to)
		return nil
	}
	w.since = time.Now()
	defer func() {
		if !w.lost {
			place.Give(a.Tenant)
		}
	}()
	if r.embeds() {
		w.model = &model.EmbeddingModel{Provider: *r.EmbedProvider, Name: *r.EmbedModel}
	}
	building.Inc()
	defer building.Dec()
	last := r.Generation - 1
	if w.model != nil && r.Attempts > 1 { // the attempt before had the same content and the same model
		w.before, last = last, last-1
	}
	var err error
	if last > 0 {
		err = k.drop(ctx, a, r.Shown, last)
	}
	var info document.Info
	if err == nil {
		info, err = k.read(ctx, a, r, w)
	}
	fault, refused := new(document.Fault), new(noVectors)
	switch {
	case ctx.Err() != nil: // the activation has ended; its result would be dropped
		k.takeBack(ctx, w.to)
		return nil
	case err == nil:
		failpoint.Hit(pointBeforeBuilt)
		built := Built{r.Generation, w.written, info.MediaType, nil, w.used}
		if w.model != nil {
			by := w.model.String()
			built.EmbeddedBy = &by
		}
		return built
	case errors.Is(err, errOvertaken):
		return Overtaken{r.Generation}
	case errors.As(err, &fault):
		return Unreadable{r.Generation, fault.Reason, false, w.used}
	case errors.As(err, &refused):
		return Unreadable{r.Generation, refused.reason, true, w.used}
	}
	k.log(k.cfg.Log.Warn(), a).Err(err).Int("attempt", r.Attempts).Msg("indexing a document was interrupted")
	return Interrupted{r.Generation, errors.Is(err, errNoVectors) || k.cfg.Files.Away(err), w.used}
}

// takeBack takes the attempt back of a generation that this node ends, because it stops or its shard moves: only a
// process that dies counts.
func (k *kind) takeBack(ctx context.Context, to knowledge.Target) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patienceTakeBack)
	defer cancel()
	if err := k.cfg.Store.TakeBack(ctx, to); err != nil {
		k.log(k.cfg.Log.Warn(), cluster.Address{Tenant: to.Tenant, ID: to.Document.UUID}).Err(err).Msg("an attempt to index a document could not be taken back")
	}
}

// read reads the document and writes its chunks. A document that gets vectors has a place for reading until its
// file is read.
func (k *kind) read(ctx context.Context, a cluster.Address, r Row, w *writer) (document.Info, error) {
	in := document.Input{Name: r.Name, MediaTypeHint: r.MediaType, Size: r.Size, Open: func(ctx context.Context) (io.ReadCloser, error) {
		return k.cfg.Files.Open(ctx, a.Tenant, r.File)
	}}
	chunking := document.Chunking{MaxTokens: r.MaxTokens, OverlapTokens: r.OverlapTokens}
	if w.model == nil {
		info, err := k.cfg.Parser.Parse(ctx, in, chunking, w.add)
		if err == nil {
			err = w.flush()
		}
		return info, err
	}
	kept, err := newSpool(k.cfg.Dir)
	if err != nil {
		return document.Info{}, err
	}
	defer kept.close()
	info, err := k.parse(ctx, a, in, chunking, kept)
	if err == nil {
		err = kept.each(w.add)
	}
	if err == nil {
		err = w.flush()
	}
	return info, err
}

// parse reads the document into a spool, with a place for reading.
func (k *kind) parse(ctx context.Context, a cluster.Address, in document.Input, c document.Chunking, into *spool) (document.Info, error) {
	if err := k.places.Take(ctx, a.Tenant); err != nil {
		return document.Info{}, err
	}
	defer k.places.Give(a.Tenant)
	return k.cfg.Parser.Parse(ctx, in, c, into.add)
}

// errTooMuch is the fault of a document with too many chunks.
var errTooMuch = &document.Fault{Reason: "the file holds too much text"}

// writer writes the chunks of a generation.
type writer struct {
	*kind
	ctx     context.Context
	to      knowledge.Target
	model   *model.EmbeddingModel // nil: chunks get no vectors
	before  int                   // the generation of the attempt before, whose vectors are taken; 0: none
	since   time.Time             // when it got its place
	lost    bool                  // it has its place no longer
	used    Used
	width   int // dimensions of the generation's vectors
	waiting []document.Chunk
	bytes   int
	written int
}

func (w *writer) add(c document.Chunk) error {
	if w.written+len(w.waiting) >= mostChunks {
		return errTooMuch
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
	if err := w.yield(); err != nil {
		return err
	}
	vectors, err := w.embed()
	if err != nil {
		return err
	}
	for part := range slices.Chunk(w.waiting, slice) {
		began, some := time.Now(), min(len(part), len(vectors))
		failpoint.Hit(pointBeforeWrite)
		ok, err := w.cfg.Store.Write(w.ctx, w.to, part, vectors[:some])
		if err == nil && !ok {
			err = errOvertaken
		}
		if err != nil {
			return err
		}
		failpoint.Hit(pointAfterWrite)
		w.written, vectors = w.written+len(part), vectors[some:]
		pause.For(w.ctx, min(rest*time.Since(began), mostRest))
	}
	w.waiting, w.bytes = w.waiting[:0], 0
	return nil
}

// yield gives up the place of a document that gets vectors for a moment, if others have waited for it long enough.
func (w *writer) yield() error {
	if w.model == nil || time.Since(w.since) < turnTime || !w.embedding.Wanted() {
		return nil
	}
	defer w.yielded.Add(-1)
	if w.yielded.Add(1) > mostYielded {
		return nil
	}
	err := w.embedding.Yield(w.ctx, w.to.Tenant)
	w.since, w.lost = time.Now(), err != nil
	return err
}

// embed makes the vectors of the chunks that wait, except those that the attempt before has made. A failure that stays is noVectors.
func (w *writer) embed() ([][]float32, error) {
	if w.model == nil {
		return nil, nil
	}
	if w.cfg.Embedder == nil {
		return nil, errors.New("this node makes no vectors")
	}
	vectors := make([][]float32, len(w.waiting))
	if w.before > 0 {
		var err error
		if vectors, err = w.cfg.Store.Vectors(w.ctx, w.to, w.before, w.waiting); err != nil {
			return nil, err
		}
	}
	var texts []string
	for i, c := range w.waiting {
		if vectors[i] != nil {
			continue
		}
		if c.Heading != "" {
			c.Text = c.Heading + "\n" + c.Text
		}
		texts = append(texts, c.Text)
	}
	if len(texts) > 0 {
		made, err := w.make(texts)
		if err != nil {
			return nil, err
		}
		for i := range vectors {
			if vectors[i] == nil {
				vectors[i], made = made[0], made[1:]
			}
		}
	}
	for _, v := range vectors {
		if w.width == 0 {
			w.width = len(v)
		}
		if len(v) != w.width {
			return nil, errOtherWidth
		}
	}
	return vectors, nil
}

// errOtherWidth: the vectors of a document cannot be compared with each other.
var errOtherWidth = &noVectors{"the model of embeddings changed the number of its dimensions while it read the document"}

// make asks the provider for vectors.
func (w *writer) make(texts []string) ([][]float32, error) {
	out, err := w.cfg.Embedder.Embed(w.ctx, w.to.Tenant, *w.model, texts)
	w.used = Used{w.model.Name, w.used.TokensIn + out.TokensIn, w.used.CostUSD + out.CostUSD, w.used.Estimated || out.Estimated}
	refused := new(model.Error)
	switch {
	case err == nil && len(out.Vectors) != len(texts):
		return nil, errOtherWidth
	case err == nil:
		return out.Vectors, nil
	case !errors.As(err, &refused): // of the service: its database, its keys
		return nil, err
	case refused.Kind == model.Refused || refused.Kind == model.Broken:
		return nil, &noVectors{"no vectors could be made: " + refused.Message}
	}
	return nil, errors.Join(errNoVectors, err)
}

// clean removes the chunks that nothing shows, and of a deleted document its file.
func (k *kind) clean(ctx context.Context, a cluster.Address, r Row) any {
	if ok, err := k.cleaning.TakeIf(ctx, a.Tenant, k.room); !ok || err != nil {
		return fullUnless(ok)
	}
	err := k.remove(ctx, a, r)
	if err == nil {
		return Cleaned{}
	}
	if ctx.Err() == nil {
		k.log(k.cfg.Log.Warn(), a).Err(err).Msg("chunks of a document could not be removed")
	}
	pause.For(ctx, pauseClean)
	return Dirty{}
}

// remove gives the place for cleaning back.
func (k *kind) remove(ctx context.Context, a cluster.Address, r Row) error {
	defer k.cleaning.Give(a.Tenant)
	keep := r.Shown
	if r.Deleted {
		keep = -1
	}
	err := k.drop(ctx, a, keep, r.Generation)
	if err == nil && r.Deleted {
		err = k.cfg.Files.Delete(ctx, a.Tenant, r.File)
	}
	return err
}

// drop removes the chunks of other generations than keep, up to last.
func (k *kind) drop(ctx context.Context, a cluster.Address, keep, last int) error {
	failpoint.Hit(pointBeforeDrop)
	err := k.cfg.Store.Drop(ctx, a.Tenant, id.DocumentID{UUID: a.ID}, keep, last)
	failpoint.Hit(pointAfterDrop)
	return err
}
