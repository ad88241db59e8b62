package tool

import (
	"context"
	"encoding/json"

	"agentsvc/schemas/check"
)

// CheckSchema returns why calls of a tool with this schema cannot be checked, nil if they
// can. The error quotes nothing of the schema: that may name files and hosts.
func CheckSchema(ctx context.Context, schema json.RawMessage) error {
	_, err := compile(ctx, schema)
	return err
}

// compile compiles a schema; recent results are cached.
func compile(ctx context.Context, schema json.RawMessage) (*check.Schema, error) {
	return check.Cached(ctx, schema, check.Options{Formats: true})
}
