package hooks

import (
	"context"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
)

// Find is what a call looks up.
func (h *Hooks) Find(ctx context.Context, g id.TriggerID) (*store.Hook, error) { return h.find(ctx, g) }
