package ingest

import (
	"context"
	"encoding/json"
	"io"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/knowledge"
	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/model"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/turn"
)

// Store reads documents and writes their chunks (persistence/knowledge.Chunks).
type Store interface {
	// Document returns a document; nil if there is none.
	Document(ctx context.Context, t id.TenantID, d id.DocumentID) (*knowledge.Document, error)
	// Write adds chunks and their vectors (nil: none) to a generation; false: the row has moved on.
	Write(ctx context.Context, to knowledge.Target, chunks []document.Chunk, vectors [][]float32) (bool, error)
	// Vectors returns the vectors that another generation has of the same chunks; nil for a chunk that it has not.
	Vectors(ctx context.Context, to knowledge.Target, generation int, chunks []document.Chunk) ([][]float32, error)
	// TakeBack takes back that a generation was begun, unless the row has moved on: it is no attempt.
	TakeBack(ctx context.Context, to knowledge.Target) error
	// Drop deletes the chunks of other generations than keep, up to last.
	Drop(ctx context.Context, t id.TenantID, d id.DocumentID, keep, last int) error
}

// Files is the store of files, with the contents of documents.
type Files interface {
	Open(ctx context.Context, t id.TenantID, f id.FileID) (io.ReadCloser, error)
	Delete(ctx context.Context, t id.TenantID, f id.FileID) error
	// Away reports whether an error of Open, or of reading what it returned, means that the store cannot serve now.
	Away(err error) bool
}

// Parser reads files (transport/parser). A file that cannot be read is a *document.Fault.
type Parser interface {
	Parse(ctx context.Context, in document.Input, c document.Chunking, emit func(document.Chunk) error) (document.Info, error)
}

// Embedder makes vectors of texts (transport/model/provider). An error that says that the provider
// refuses, or sends what is no vectors, is a *model.Error of the kinds Refused and Broken.
type Embedder interface {
	Embed(ctx context.Context, t id.TenantID, m model.EmbeddingModel, texts []string) (model.Embedded, error)
}

// Config configures the indexing of documents. Store, Files and Parser are required; documents of
// bases with a model need Embedder.
type Config struct {
	Store    Store
	Files    Files
	Parser   Parser
	Embedder Embedder
	Dir      string // of what is read of documents that wait for vectors; empty: the system's for temporary files
	Most     int    // documents of a tenant that are read at a time, and one more of another; 0: one for each CPU
	Waiting  int    // documents of a tenant that wait in memory; 0: 300
	Log      zerolog.Logger
}

// Documents that get vectors wait for their provider most of the time. They have places of their
// own for all of their time, and one for reading only while their file is read, so that a slow provider
// holds up only documents that need it. One that has had its place for a minute gives it to another tenant that waits for one.
const (
	embedPlaces       = 8
	embedPlacesTenant = 2
)

const timerAgain = "again"

type kind struct {
	cfg       Config
	places    *turn.Places
	embedding *turn.Places
	cleaning  *turn.Places
	entered   entered
	yielded   atomic.Int32 // documents that wait for their place again
}

// Register makes n the host of documents that write through w. It is called before n starts.
func Register(n *cluster.Node, w durable.Writer, cfg Config, host durable.Config) {
	if cfg.Most <= 0 {
		cfg.Most = runtime.NumCPU()
	}
	if cfg.Waiting <= 0 {
		cfg.Waiting = mostWaiting
	}
	k := &kind{cfg: cfg, places: turn.New(cfg.Most+1, cfg.Most), embedding: turn.New(embedPlaces, embedPlacesTenant), cleaning: turn.New(cleaningPlaces, cleaningPlaces),
		entered: entered{at: map[cluster.Address]*turn.Places{}}}
	durable.Register(n, w, durable.Kind[State]{
		Name: msg.KindIngest, Machine: Machine{}, Load: k.load, Rows: rows, After: k.after, Perform: k.perform, Forget: k.forget,
		Idle: 0, // the API writes this row too
	}, host)
}

// load reads the document. It also succeeds without a row, so that a decision deletes the timer.
func (k *kind) load(ctx context.Context, a cluster.Address) (durable.Loaded[State], error) {
	r, err := k.cfg.Store.Document(ctx, a.Tenant, id.DocumentID{UUID: a.ID})
	if err != nil {
		return durable.Loaded[State]{}, err
	}
	if r == nil {
		return durable.Loaded[State]{State: State{Missing: true}}, nil
	}
	return durable.Loaded[State]{State: State{Row: Row(*r)}, Guard: journal.Guard{Version: r.Version, Epoch: r.Epoch}}, nil
}

// The table of documents. The API and syncs hold its rows too.
var (
	documents   = journal.Actors("kb_documents", "id uuid")
	documentSet = documents.SwapUnlessHeld("true", "status text, error text, attempts int, generation int, shown int, chunks int, media_type text, read_content int, read_settings int, embedded_by text, owes boolean, updated_at timestamptz")
)

// Update is what a decision changes in a document's row.
type Update struct {
	ID id.DocumentID
	journal.Guard
	Row Row
	At  time.Time
}

// Write returns the swap of a document's row.
func (*Update) Write() *journal.Write { return documentSet }

// Changed names the document.
func (u *Update) Changed() msg.Change { return msg.Change{Kind: "kb.document", ID: u.ID.UUID} }

// Put puts the values of the swap.
func (u *Update) Put(v *journal.Values) {
	r := &u.Row
	v.UUID(u.ID.UUID).Guard(u.Guard).Text(string(r.Status)).TextOrNull(r.Error).Int(r.Attempts).Int(r.Generation).Int(r.Shown).
		Int(r.Chunks).Text(r.MediaType).Int(r.ReadContent).Int(r.ReadSettings).TextOrNull(r.EmbeddedBy).Bool(r.Owes).Time(u.At)
}

// rows returns the commit of a decision: the document's row, its timer, and what the embedding of a
// generation used, once for each generation. A decision without facts
// has none.
func rows(a cluster.Address, prev durable.Loaded[State], d durable.Decision[State], _ any, _ id.OpID, now time.Time) *journal.Commit {
	if len(d.Facts) == 0 {
		return nil
	}
	c := &journal.Commit{}
	timer := journal.TimerKey{Kind: msg.KindIngest, Entity: a.ID, Name: timerAgain}
	var used Used
	switch f := d.Facts[0].(type) {
	case Postponed:
		c.Timers, used = []journal.Timer{{TimerKey: timer, DueAt: f.At}}, f.Used
	case Ended:
		c.TimersDone, used = []journal.TimerKey{timer}, f.Used
	default:
		c.TimersDone = []journal.TimerKey{timer}
	}
	if used.TokensIn > 0 {
		u := journal.Usage{ID: id.UsageID{UUID: id.New(a.ID.Shard())}, At: now, Kind: lifecycle.UsageEmbedding, Model: used.Model, TokensIn: used.TokensIn, CostUSD: used.CostUSD}
		if used.Estimated {
			u.Detail = json.RawMessage(`{"estimated":true}`)
		}
		c.Usage = []journal.Usage{u}
	}
	if !prev.State.Missing {
		c.Rows = []journal.Row{&Update{ID: id.DocumentID{UUID: a.ID}, Guard: prev.Guard, Row: d.Next.Row, At: now}}
	}
	return c
}

// after counts the documents whose reading has ended.
func (k *kind) after(a cluster.Address, _, next State, d durable.Decision[State]) {
	for _, f := range d.Facts {
		if f, ended := f.(Ended); ended {
			indexed.WithLabelValues(string(f.Status)).Inc()
			if next.Row.Error != nil {
				k.log(k.cfg.Log.Info(), a).Str("why", *next.Row.Error).Msg("a document of a knowledge base cannot be indexed")
			}
		}
	}
}

func (k *kind) log(e *zerolog.Event, a cluster.Address) *zerolog.Event {
	return e.Stringer("tenant", a.Tenant).Stringer("document", a.ID)
}
