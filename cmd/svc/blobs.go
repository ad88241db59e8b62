package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"agentsvc/persistence/blob"
	"agentsvc/persistence/pg"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// attachments reads the beginning of attached files for models.
type attachments struct{ blobs *blob.Store }

// Start waits for a store that is away as the turn waits for the database: its error is
// UNAVAILABLE.
func (a attachments) Start(ctx context.Context, tenant id.TenantID, attachment id.AttachmentID, max int) ([]byte, error) {
	f, _, err := a.blobs.Open(ctx, store.AttachmentFile(tenant, attachment))
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(f, int64(max)))
		err = errors.Join(err, f.Close())
	}
	if errors.Is(err, blob.ErrUnavailable) {
		err = errors.Join(problem.Unavailable("Storage is not available now.", time.Second), err)
	}
	return b, err
}

// artifacts stores the files that runs make.
type artifacts struct{ blobs *blob.Store }

// Store leaves the file in doubt: a later sweep removes it if its row has not been committed. Every
// error of the store is worth another try, while the run's time lasts.
func (a artifacts) Store(ctx context.Context, tenant id.TenantID, artifact id.ArtifactID, content []byte) (sum [32]byte, err error) {
	key := store.ArtifactFile(tenant, artifact)
	if _, sum, err = a.blobs.Put(ctx, key, bytes.NewReader(content), int64(len(content))); err != nil {
		return sum, errors.Join(problem.Unavailable("Storage is not available now.", time.Second), err)
	}
	a.blobs.Settle(key, false)
	return sum, nil
}

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

// maxShot bounds one screenshot of a browser skill.
const maxShot = 8 << 20

// screenshots stores the screenshots of browser skills.
type screenshots struct{ blobs *blob.Store }

// Keep stores a screenshot. The row of its run, which names all of them, exists.
func (f screenshots) Keep(ctx context.Context, t id.TenantID, run id.SkillRunID, step string, jpeg []byte) (string, error) {
	key := store.SkillShot(t, run, step)
	if _, _, err := f.blobs.PutNamed(ctx, key, bytes.NewReader(jpeg), maxShot); err != nil {
		return "", err
	}
	return key, nil
}

// files joins the directory of files with the rows that name them.
type files struct {
	blobs *blob.Store
	rows  *store.Files
}

func (f files) Sweep(ctx context.Context) (int, error) { return f.blobs.Sweep(ctx, f.rows) }
func (f files) Walk(ctx context.Context) (int, error)  { return f.blobs.Walk(ctx, f.rows) }

// openFiles opens the store of files at a location, and checks that it can be used. Uploads to a bucket pass through a
// directory of the data directory. A directory on a full disk passes: its node serves all else, and files again when
// there is space.
func openFiles(ctx context.Context, at blob.Location, spool, owner string) (*blob.Store, error) {
	s, err := blob.Open(ctx, at, spool, owner)
	if err != nil || at.Dir == "" { // a bucket was checked when it was opened
		return s, err
	}
	if err := s.Check(ctx); err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return nil, errors.Join(fmt.Errorf("%s cannot be used by this user (uid %d): %w", at, os.Getuid(), err), s.Close())
	}
	return s, nil
}

// spool is the directory of uploads in flight to a bucket.
func (c *Config) spool() string { return filepath.Join(c.DataDir, "uploads") }

// errEmptyStore is the error of a store that is empty and new while the database names files.
type errEmptyStore struct{ at blob.Location }

func (e errEmptyStore) Error() string {
	return fmt.Sprintf("the store of files is empty, and the database names files: %s: mount it, or set SVC_FILES_URL or SVC_DATA_DIR to where the files are; if they are lost for good, run svc files accept-loss", e.at)
}

// filesThere returns errEmptyStore if the database names files and the store is empty and new: its directory is not
// mounted, or SVC_FILES_URL or SVC_DATA_DIR names another place. A node that served from it would refuse the nodes
// that have the files, and lose uploads when the right place comes back. blobs is nil if there is no directory.
func filesThere(ctx context.Context, at blob.Location, blobs *blob.Store, pool *pg.Pool) error {
	if blobs != nil {
		if unused, err := blobs.Unused(ctx); err != nil || !unused {
			return err
		}
	}
	if named, err := store.NewFiles(pool).Named(ctx); err != nil || !named {
		return err
	}
	return errEmptyStore{at}
}
