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
)

const attachmentFiles = "attachments"

// AttachmentFile returns the key of an attachment's file.
func AttachmentFile(t id.TenantID, a id.AttachmentID) string {
	return attachmentFiles + "/" + t.String() + "/" + a.String()
}

// readAttachmentFile parses such a key.
func readAttachmentFile(key string) (t, a id.UUID, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[0] != attachmentFiles {
		return t, a, false
	}
	t, err := id.Parse(parts[1])
	if err != nil {
		return t, a, false
	}
	a, err = id.Parse(parts[2])
	return t, a, err == nil
}

// Files knows which stored files are still needed, across tenants.
type Files struct{ pool *pgxpool.Pool }

// NewFiles returns a Files over a pool of the role svc_system.
func NewFiles(pool *pgxpool.Pool) *Files { return &Files{pool} }

// Dead returns those of the owners, which are member ids, that are dead: marked so in their
// rows, or without a row. A member that lost its lease but is not marked is not dead.
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

// Orphans returns the attachment keys that no row refers to. Keys of tenants unknown to this
// database are left out: the directory may belong to another database.
func (f *Files) Orphans(ctx context.Context, keys []string) ([]string, error) {
	tenants, attachments := readKeys(keys)
	if len(tenants) == 0 {
		return nil, nil
	}
	rows, err := f.pool.Query(ctx, fileOrphansSQL, tenants, attachments)
	if err != nil {
		return nil, fmt.Errorf("read attachments: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var t id.TenantID
		var a id.AttachmentID
		err := row.Scan(&t, &a)
		return AttachmentFile(t, a), err
	})
}

// Sums returns the SHA-256 of those keys that a row refers to.
func (f *Files) Sums(ctx context.Context, keys []string) (map[string][sha256.Size]byte, error) {
	tenants, attachments := readKeys(keys)
	sums := map[string][sha256.Size]byte{}
	if len(tenants) == 0 {
		return sums, nil
	}
	rows, err := f.pool.Query(ctx, fileSumsSQL, tenants, attachments)
	if err != nil {
		return nil, fmt.Errorf("read attachments: %w", err)
	}
	var (
		t   id.TenantID
		a   id.AttachmentID
		sum []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&t, &a, &sum}, func() error {
		if len(sum) != sha256.Size {
			return fmt.Errorf("attachment %s has no checksum", a)
		}
		sums[AttachmentFile(t, a)] = [sha256.Size]byte(sum)
		return nil
	})
	return sums, err
}

// readKeys parses the keys of attachments; other keys are left out.
func readKeys(keys []string) (tenants, attachments []id.UUID) {
	for _, key := range keys {
		if t, a, ok := readAttachmentFile(key); ok {
			tenants, attachments = append(tenants, t), append(attachments, a)
		}
	}
	return tenants, attachments
}
