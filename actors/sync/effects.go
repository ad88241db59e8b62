package sync

import (
	"context"
	"errors"
	"io"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/pause"
	"agentsvc/schemas/source"
)

// Store reads and writes what syncs need (store.Syncs).
type Store interface {
	// Sync returns a source; nil if there is none.
	Sync(ctx context.Context, t id.TenantID, s id.SourceID) (*store.Sync, error)
	// BeginWalk returns the walk of a source that is queued or syncing, with its credentials.
	BeginWalk(ctx context.Context, t id.TenantID, s id.SourceID, epoch int64) (*store.BegunWalk, error)
	// KnownDocuments returns the documents of items.
	KnownDocuments(ctx context.Context, w *store.Walk, items []string) (map[string]store.KnownDocument, error)
	// FailedBefore returns documents that failed, for a reason that is not the file's, and that the walk has not met.
	FailedBefore(ctx context.Context, w *store.Walk, limit int) ([]store.FailedBefore, error)
	// WriteWalk commits a step, and returns the documents whose actors have work.
	WriteWalk(ctx context.Context, w *store.Walk, p *store.WalkPage) ([]id.DocumentID, error)
	// DropUnmet deletes documents that a complete walk has not met.
	DropUnmet(ctx context.Context, w *store.Walk, limit int) ([]id.DocumentID, error)
	// CountDocuments returns how many documents a source has.
	CountDocuments(ctx context.Context, t id.TenantID, s id.SourceID) (int, error)
}

// Files is the store of files, with the contents of documents.
type Files interface {
	// Put stores a content of at most so many bytes. It is not needed before Settle. Errors of
	// the reader are returned as they are, within others.
	Put(ctx context.Context, t id.TenantID, f id.FileID, r io.Reader, max int64) (size int64, sum [32]byte, err error)
	// Settle ends a Put: known, if it is certain whether a row names the file.
	Settle(t id.TenantID, f id.FileID, known bool)
	// Delete removes a content that no row names.
	Delete(ctx context.Context, t id.TenantID, f id.FileID) error
	// TooLarge reports whether an error of Put means that the content is too large.
	TooLarge(err error) bool
}

// Connect opens a source. Errors are *source.Fault.
type Connect func(kind lifecycle.SourceKind, c source.Config, credentials map[string]string) (source.Source, error)

// Teller tells actors.
type Teller interface {
	Tell(a cluster.Address, message any)
}

// Pauses before a walk goes on after storage failed. Where that was the store of files, the walk asks the vendor again for what could
// not be stored: the pauses double until a step brings the walk on.
const (
	pauseAgain = 2 * time.Second
	mostPause  = 5 * time.Minute
)

// mostAsked is the longest pause that a vendor may ask for; a walk that is asked for a longer one fails. mostWaits is how many such pauses,
// one after the other, may bring the walk on by no step.
const (
	mostAsked = 10 * time.Minute
	mostWaits = 3
)

// asked returns the pause that a vendor asks for with a fault, 0 if that is none that a walk makes.
func asked(err error) time.Duration {
	if f := new(source.Fault); errors.As(err, &f) && f.RetryAfter <= mostAsked {
		return f.RetryAfter
	}
	return 0
}

// pauseOf returns the pause after so many walks without a step.
func pauseOf(idle int) time.Duration { return min(pauseAgain<<min(max(0, idle-1), 10), mostPause) }

// noFiles: the store of files cannot serve now.
type noFiles struct{ err error }

// Error implements error.
func (e *noFiles) Error() string { return "the store of files is not available: " + e.err.Error() }

// Unwrap implements errors.Unwrap.
func (e *noFiles) Unwrap() error { return e.err }

func (k *kind) perform(ctx context.Context, a durable.Activation, e durable.Effect) any {
	t, src := a.Address.Tenant, id.SourceID{UUID: a.Address.ID}
	p := &place{places: k.places, tenant: t}
	if err := p.take(ctx); err != nil {
		return nil
	}
	defer p.give()
	out, steps, err := k.walk(ctx, a, p)
	fault, away := new(source.Fault), new(noFiles)
	idle := 0
	if steps == 0 {
		idle = e.(Walk).Idle + 1
	}
	switch {
	case err == nil:
		return out
	case ctx.Err() != nil: // the activation has ended; its result would be dropped
		return nil
	case errors.Is(err, store.ErrLost):
		return Lost{}
	case asked(err) > 0 && idle <= mostWaits:
		k.log(k.cfg.Log.Info(), a.Address).Err(err).Msg("a knowledge source asks to wait")
		p.give()
		pause.For(ctx, asked(err))
		return Again{Idle: idle}
	case errors.As(err, &fault):
		return k.failed(ctx, t, src, fault.Reason)
	case errors.As(err, &away), errors.Is(err, store.ErrUnavailable), errors.Is(err, context.Canceled):
		// Storage, or the node's lease. The walk goes on behind its last step.
		k.log(k.cfg.Log.Warn(), a.Address).Err(err).Msg("a sync of a knowledge source was interrupted")
		var again Again
		if away.err != nil {
			again.Idle = idle
		}
		p.give()
		pause.For(ctx, pauseOf(again.Idle))
		return again
	}
	k.log(k.cfg.Log.Error(), a.Address).Err(err).Msg("a sync of a knowledge source ended by an internal error")
	return k.failed(ctx, t, src, internal)
}

func (k *kind) failed(ctx context.Context, t id.TenantID, src id.SourceID, why string) any {
	n, err := k.cfg.Store.CountDocuments(ctx, t, src)
	if err != nil {
		return Again{}
	}
	return Ended{Error: why, Documents: n}
}
