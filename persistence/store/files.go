package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/id"
)

var (
	fileOwnersSQL  = queries.Get("file_owners")
	fileOrphansSQL = queries.Get("file_orphans")
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
	var tenants, attachments []id.UUID
	for _, key := range keys {
		if t, a, ok := readAttachmentFile(key); ok {
			tenants, attachments = append(tenants, t), append(attachments, a)
		}
	}
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
