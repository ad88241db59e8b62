package store

import (
	"context"

	"agentsvc/schemas/id"
)

// Manages says whether the user is a manager of the node or of one above it.
func (v View) Manages(ctx context.Context, user id.UserID, node id.NodeID) (bool, error) {
	rows, err := scalars[bool](ctx, v, "node_manages", v.tenant, node, user)
	return err == nil && rows[0], err
}

// ManagedNodes are the nodes that the user manages, with everything below them.
func (v View) ManagedNodes(ctx context.Context, user id.UserID) ([]id.NodeID, error) {
	return scalars[id.NodeID](ctx, v, "nodes_managed", v.tenant, user)
}
