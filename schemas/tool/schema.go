package tool

import (
	"context"
	"encoding/json"

	"agentsvc/schemas/check"
)

// CheckSchema reports why no call of a tool with this schema can be checked, and nil
// where calls can. The error holds nothing of the schema: it may name files and
// hosts.
func CheckSchema(ctx context.Context, schema json.RawMessage) error {
	_, err := compile(ctx, schema)
	return err
}

// compile makes a schema ready to check values. What was compiled lately is kept.
func compile(ctx context.Context, schema json.RawMessage) (*check.Schema, error) {
	return check.Cached(ctx, schema, check.Options{Formats: true})
}
