package engine

import (
	"time"

	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
)

var artifactInsert = artifacts.Insert("run_id uuid, kind text, name text, media_type text, size_bytes bigint, sha256 bytea, created_at timestamptz")

// ArtifactInsert adds a file that a run made. Its content is stored already.
type ArtifactInsert struct {
	ID        id.ArtifactID
	Run       id.RunID
	Kind      string
	Name      string
	MediaType string
	SizeBytes int64
	SHA256    [32]byte
	CreatedAt time.Time
}

func (*ArtifactInsert) Write() *journal.Write { return artifactInsert }

func (a *ArtifactInsert) Put(v *journal.Values) {
	v.UUID(a.ID.UUID).UUID(a.Run.UUID).Text(a.Kind).Text(a.Name).Text(a.MediaType).Int8(a.SizeBytes).Bytes(a.SHA256[:]).Time(a.CreatedAt)
}
