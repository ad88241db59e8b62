package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	fileOwnersSQL  = queries.Get("file_owners")
	fileOrphansSQL = queries.Get("file_orphans")
	fileSumsSQL    = queries.Get("file_sums")
	fileNamedSQL   = queries.Get("file_named")

	filesAttachmentsSQL = queries.Get("files_attachments")
	filesArtifactsSQL   = queries.Get("files_artifacts")
	filesDocumentsSQL   = queries.Get("files_documents")
)

// The first part of a file's key.
const (
	attachmentFiles = "attachments"
	documentFiles   = "documents"
	artifactFiles   = "artifacts"
)

// AttachmentFile returns the key of an attachment's file.
func AttachmentFile(t id.TenantID, a id.AttachmentID) string {
	return fileKey(attachmentFiles, t, a.UUID)
}

// DocumentFile returns the key of one content of a document of a knowledge base.
func DocumentFile(t id.TenantID, f id.FileID) string { return fileKey(documentFiles, t, f.UUID) }

// ArtifactFile returns the key of the file of a run's artifact.
func ArtifactFile(t id.TenantID, a id.ArtifactID) string { return fileKey(artifactFiles, t, a.UUID) }

func fileKey(of string, t id.TenantID, u id.UUID) string {
	return of + "/" + t.String() + "/" + u.String()
}

// readFileKey parses such a key, or that of a screenshot (SkillShot), which is of its run.
func readFileKey(key string) (of string, t, u id.UUID, ok bool) {
	parts := strings.Split(key, "/")
	want := 3
	switch parts[0] {
	case attachmentFiles, documentFiles, artifactFiles:
	case SkillShots:
		want = 4
	default:
		return "", t, u, false
	}
	if len(parts) != want {
		return "", t, u, false
	}
	t, err := id.Parse(parts[1])
	if err != nil {
		return "", t, u, false
	}
	u, err = id.Parse(parts[2])
	return parts[0], t, u, err == nil
}

// Files knows which stored files are still needed, across tenants.
type Files struct{ pool *pgxpool.Pool }

// NewFiles returns a Files over a pool of the role svc_system.
func NewFiles(pool *pgxpool.Pool) *Files { return &Files{pool} }

// Dead returns those of the owners, which are member ids, that are dead, with all that they
// wrote: marked so in their rows ten minutes ago, or without a row. A member that lost its
// lease but is not marked is not dead.
func (f *Files) Dead(ctx context.Context, owners []string) ([]string, error) {
	if len(owners) == 0 {
		return nil, nil
	}
	rows, err := f.pool.Query(ctx, fileOwnersSQL, owners)
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Orphans returns the keys that no row refers to; screenshots are of the run of their skill. A deleted document's row refers to its file until
// its actor has removed both. Keys of tenants unknown to this database are left out: the directory
// may belong to another database.
func (f *Files) Orphans(ctx context.Context, keys []string) ([]string, error) {
	k := readKeys(keys)
	if len(k.of) == 0 {
		return nil, nil
	}
	rows, err := f.pool.Query(ctx, fileOrphansSQL, k.of, k.tenants, k.files)
	if err != nil {
		return nil, fmt.Errorf("read the rows of files: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var at int
		err := row.Scan(&at)
		if err != nil {
			return "", err
		}
		return k.keys[at-1], nil
	})
}

// Named reports whether the database names any file.
func (f *Files) Named(ctx context.Context) (named bool, err error) {
	if err := f.pool.QueryRow(ctx, fileNamedSQL).Scan(&named); err != nil {
		return false, fmt.Errorf("look for rows of files: %w", err)
	}
	return named, nil
}

// StoredFile is a file that a row names.
type StoredFile struct {
	Key  string
	Size int64
	Sum  [sha256.Size]byte
}

// filesPage is how many files Each reads at a time.
const filesPage = 1000

// Each calls page with the files that rows name, in batches: all but screenshots, which are no loss of a person's, and
// the files of deleted documents. A file can be deleted meanwhile; its key is then not among Sums.
func (f *Files) Each(ctx context.Context, page func([]StoredFile) error) error {
	for _, table := range []struct{ of, sql string }{{attachmentFiles, filesAttachmentsSQL}, {artifactFiles, filesArtifactsSQL}, {documentFiles, filesDocumentsSQL}} {
		var t id.TenantID // where the last page ended
		var u id.UUID
		for read := filesPage; read == filesPage; {
			rows, err := f.pool.Query(ctx, table.sql, t, u, filesPage)
			if err != nil {
				return fmt.Errorf("read the rows of %s: %w", table.of, err)
			}
			found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s StoredFile, err error) {
				var sum []byte
				err = row.Scan(&t, &u, &s.Size, &sum)
				s.Key = fileKey(table.of, t, u)
				copy(s.Sum[:], sum)
				return s, err
			})
			if err != nil {
				return fmt.Errorf("read the rows of %s: %w", table.of, err)
			}
			if read = len(found); read > 0 {
				if err := page(found); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Sums returns the SHA-256 of those keys whose rows have one: all but screenshots, and deleted documents.
func (f *Files) Sums(ctx context.Context, keys []string) (map[string][sha256.Size]byte, error) {
	k := readKeys(keys)
	sums := map[string][sha256.Size]byte{}
	if len(k.of) == 0 {
		return sums, nil
	}
	rows, err := f.pool.Query(ctx, fileSumsSQL, k.of, k.tenants, k.files)
	if err != nil {
		return nil, fmt.Errorf("read the rows of files: %w", err)
	}
	var (
		of  string
		t   id.TenantID
		u   id.UUID
		sum []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&of, &t, &u, &sum}, func() error {
		if len(sum) != sha256.Size {
			return fmt.Errorf("%s has no checksum", fileKey(of, t, u))
		}
		sums[fileKey(of, t, u)] = [sha256.Size]byte(sum)
		return nil
	})
	return sums, err
}

// fileKeys are keys in columns.
type fileKeys struct {
	keys, of       []string
	tenants, files []id.UUID
}

// readKeys parses keys; those of no known form are left out.
func readKeys(keys []string) (k fileKeys) {
	for _, key := range keys {
		if of, t, u, ok := readFileKey(key); ok {
			k.keys, k.of, k.tenants, k.files = append(k.keys, key), append(k.of, of), append(k.tenants, t), append(k.files, u)
		}
	}
	return k
}
