package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/source"
)

// ErrLost: the walk has nothing to do any more, or another activation owns the source's row. Nothing
// was written.
var ErrLost = errors.New("store: the walk does not own the source's row any more")

// Syncs gives the actors of knowledge sources access to the tables.
type Syncs struct {
	pool  *pgxpool.Pool
	vault *vault.Vault
	store *Store // of its transactions
}

// NewSyncs returns a Syncs over a pool of the role svc_system.
func NewSyncs(pool *pgxpool.Pool, v *vault.Vault) *Syncs { return &Syncs{pool, v, New(pool, v)} }

// OnChange is Store.OnChange for what the actors change here.
func (s *Syncs) OnChange(f func(id.TenantID, []msg.Change)) { s.store.OnChange(f) }

// OnlyWhile is Store.OnlyWhile for the steps of walks.
func (s *Syncs) OnlyWhile(live func() bool) { s.store.OnlyWhile(live) }

func (s *Syncs) view(t id.TenantID) View { return View{q: single{pool: s.pool, tenant: t}, tenant: t} }

// Sync holds the columns of a source that its actor needs.
type Sync struct {
	Base           id.KnowledgeBaseID
	Enabled        bool
	Status         lifecycle.SourceStatus
	Number         int64 // of the last sync
	Cron           *string
	Timezone       string
	Due            *time.Time
	Version, Epoch int64
}

// Sync returns a source; nil if there is none.
func (s *Syncs) Sync(ctx context.Context, t id.TenantID, src id.SourceID) (*Sync, error) {
	return one[Sync](ctx, s.view(t), "sync_load", t, src)
}

// Walk is a walk over a source on its way. It may write while the source's row has its epoch and
// its mark.
type Walk struct {
	Tenant id.TenantID
	Source id.SourceID
	Base   id.KnowledgeBaseID
	Epoch  int64
	Mark   int64 // the number of the sync: documents that it has met carry it
}

// BegunWalk is a walk with what it needs.
type BegunWalk struct {
	Walk
	Kind          lifecycle.SourceKind
	Config        source.Config
	Credentials   map[string]string // nil: there are none
	Resume, Delta string
}

// BeginWalk marks a queued source as syncing and returns its walk, or that of a source that is
// syncing already. Credentials are opened here. The error is ErrLost if the activation of that
// epoch does not own the row, or there is nothing to do.
func (s *Syncs) BeginWalk(ctx context.Context, t id.TenantID, src id.SourceID, epoch int64) (*BegunWalk, error) {
	row, err := one[struct {
		Base          id.KnowledgeBaseID
		Kind          lifecycle.SourceKind
		Name          string
		Config        []byte
		Credentials   []byte
		Sync          int64
		Resume, Delta string
	}](ctx, s.view(t), "sync_begin", t, src, epoch)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, ErrLost
	}
	s.store.changed(t, []msg.Change{{Kind: changedSource, ID: src.UUID}})
	b := &BegunWalk{Walk: Walk{t, src, row.Base, epoch, row.Sync}, Kind: row.Kind, Resume: row.Resume, Delta: row.Delta}
	b.Config, _ = source.ParseConfig(row.Kind, json.RawMessage(row.Config)) // it was valid when it was stored
	if len(row.Credentials) > 0 {
		doc, err := s.vault.Open(SourceAt(t, src), row.Credentials)
		if err != nil {
			return nil, fmt.Errorf("open the credentials of source %s: %w", src, err)
		}
		if err := json.Unmarshal(doc, &b.Credentials); err != nil {
			return nil, fmt.Errorf("read the credentials of source %s: %w", src, errors.New("not an object of texts"))
		}
	}
	return b, nil
}

// KnownDocument is a document of a source as the last walk left it.
type KnownDocument struct {
	Item    string
	ID      id.DocumentID
	Version *string
	Name    string
	URI     *string
	Sum     []byte
	Failed  bool
	Again   bool // its content could not be indexed, and the file is not the reason
}

// KnownDocuments returns the documents of these items, by item.
func (s *Syncs) KnownDocuments(ctx context.Context, w *Walk, items []string) (map[string]KnownDocument, error) {
	rows, err := all[KnownDocument](ctx, s.view(w.Tenant), "sync_known", w.Tenant, w.Source, items)
	if err != nil {
		return nil, err
	}
	known := make(map[string]KnownDocument, len(rows))
	for _, r := range rows {
		known[r.Item] = r
	}
	return known, nil
}

// FailedBefore is a document that failed in an earlier sync.
type FailedBefore struct {
	KnownDocument
	MediaType string
}

// FailedBefore returns up to limit documents that failed for a reason that may end without a change of the file,
// and that the walk has not met: the source refused the file, or its content could not be indexed.
func (s *Syncs) FailedBefore(ctx context.Context, w *Walk, limit int) ([]FailedBefore, error) {
	return all[FailedBefore](ctx, s.view(w.Tenant), "sync_again", w.Tenant, w.Base, w.Source, w.Mark, limit)
}

// MetDocument is a document that a walk met.
type MetDocument struct {
	Item    string
	Version *string // of the content; nil: unknown
	Name    string
	URI     *string
}

// PutDocument is a document with new contents, which are in the store of files.
type PutDocument struct {
	MetDocument
	MediaType string
	SizeBytes int64
	File      id.FileID
	Sum       [32]byte
}

// FailedDocument is a document whose contents cannot be had.
type FailedDocument struct {
	MetDocument
	MediaType string
	Reason    string
}

// WalkPage is what one step of a walk makes durable.
type WalkPage struct {
	Met    []KnownDocument // contents as they were, with the name, the address and the version of now
	Put    []PutDocument
	Failed []FailedDocument
	Gone   []id.DocumentID
	Listed int     // documents that count as progress
	Resume *string // nil: the position stays
	// Restart: the walk begins anew, under a number of its own.
	Restart bool
}

// WriteWalk commits a step of a walk in one transaction, and returns the documents whose actors
// have work. After a restart w has its new number. The error is ErrLost if the walk no longer owns
// the source.
func (s *Syncs) WriteWalk(ctx context.Context, w *Walk, p *WalkPage) (wake []id.DocumentID, err error) {
	mark := w.Mark
	if p.Restart {
		mark++
	}
	err = s.own(ctx, w, func(ctx context.Context, tx *Tx) error {
		if n := len(p.Met); n > 0 {
			ids, names, uris, versions := make([]id.DocumentID, n), make([]string, n), make([]*string, n), make([]*string, n)
			for i, m := range p.Met {
				ids[i], names[i], uris[i], versions[i] = m.ID, m.Name, m.URI, m.Version
			}
			renamed, err := scalars[id.DocumentID](ctx, tx.View, "sync_meet", w.Tenant, w.Source, ids, names, uris, versions, mark)
			if err != nil {
				return fmt.Errorf("note documents: %w", err)
			}
			tx.noteDocuments(renamed)
		}
		if n := len(p.Put) + len(p.Failed); n > 0 {
			items := make([]string, 0, n)
			for _, d := range p.Put {
				items = append(items, d.Item)
			}
			for _, d := range p.Failed {
				items = append(items, d.Item)
			}
			if _, err := tx.exec(ctx, "sync_items", w.Tenant, w.Source, items); err != nil {
				return fmt.Errorf("lock documents: %w", err)
			}
		}
		for _, d := range p.Put {
			ids, err := scalars[id.DocumentID](ctx, tx.View, "sync_put", w.Tenant, id.NewAnywhere(), w.Base, w.Source, d.Item, d.Version, mark, d.Name, d.URI, d.MediaType,
				d.SizeBytes, d.File, d.Sum[:])
			if err != nil {
				return fmt.Errorf("write a document: %w", err)
			}
			wake = append(wake, ids...)
		}
		for _, d := range p.Failed {
			failed, err := scalars[id.DocumentID](ctx, tx.View, "sync_fail", w.Tenant, id.NewAnywhere(), w.Base, w.Source, d.Item, d.Version, mark, d.Name, d.URI, d.MediaType,
				id.NewAnywhere(), make([]byte, 32), d.Reason)
			if err != nil {
				return fmt.Errorf("write a failed document: %w", err)
			}
			tx.noteDocuments(failed)
		}
		if len(p.Gone) > 0 {
			ids, err := scalars[id.DocumentID](ctx, tx.View, "sync_delete", w.Tenant, w.Source, p.Gone)
			if err != nil {
				return fmt.Errorf("delete documents: %w", err)
			}
			wake = append(wake, ids...)
		}
		tx.noteDocuments(wake)
		tx.note(changedSource, w.Source.UUID) // how far it is
		_, err := tx.exec(ctx, "sync_progress", w.Tenant, w.Source, mark, p.Resume, p.Listed, p.Restart)
		return err
	})
	if err != nil {
		return nil, err
	}
	w.Mark = mark
	return wake, nil
}

// DropUnmet deletes up to limit documents that the walk, which is complete, has not met.
func (s *Syncs) DropUnmet(ctx context.Context, w *Walk, limit int) (gone []id.DocumentID, err error) {
	err = s.own(ctx, w, func(ctx context.Context, tx *Tx) error {
		gone, err = scalars[id.DocumentID](ctx, tx.View, "sync_gone", w.Tenant, w.Source, w.Mark, limit)
		tx.noteDocuments(gone)
		return err
	})
	return gone, err
}

// CountDocuments returns how many documents a source has.
func (s *Syncs) CountDocuments(ctx context.Context, t id.TenantID, src id.SourceID) (int, error) {
	n, err := scalars[int](ctx, s.view(t), "sync_count", t, src)
	if err != nil {
		return 0, err
	}
	return n[0], nil
}

// own runs a transaction that holds the source's row, while the walk owns it.
func (s *Syncs) own(ctx context.Context, w *Walk, do func(ctx context.Context, tx *Tx) error) error {
	return s.store.Change(ctx, By{Tenant: w.Tenant}, func(ctx context.Context, tx *Tx) ([]byte, error) {
		held, err := scalars[id.SourceID](ctx, tx.View, "sync_hold", w.Tenant, w.Source, w.Mark, w.Epoch)
		if err == nil && len(held) == 0 {
			err = ErrLost
		}
		if err != nil {
			return nil, err
		}
		return nil, do(ctx, tx)
	})
}

// changedSource and changedDocument are the kinds of a source's and a document's changes.
const (
	changedSource   = "kb.source"
	changedDocument = "kb.document"
)

func (t *Tx) noteDocuments(all []id.DocumentID) {
	for _, d := range all {
		t.note(changedDocument, d.UUID)
	}
}
