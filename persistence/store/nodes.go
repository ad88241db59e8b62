package store

import (
	"context"
	"fmt"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

// Manages reports whether the user manages the node or one above it.
func (v View) Manages(ctx context.Context, user id.UserID, node id.NodeID) (bool, error) {
	rows, err := scalars[bool](ctx, v, "node_manages", v.tenant, node, user)
	return err == nil && rows[0], err
}

// ManagedNodes returns the nodes that the user manages, including all nodes below them.
func (v View) ManagedNodes(ctx context.Context, user id.UserID) ([]id.NodeID, error) {
	return scalars[id.NodeID](ctx, v, "nodes_managed", v.tenant, user)
}

// Nodes returns org nodes, newest first, after at; there may be one more than limit.
func (v View) Nodes(ctx context.Context, at id.NodeID, limit int) ([]api.OrgNode, error) {
	from, n := before(at.UUID, limit)
	return listed[api.OrgNode](ctx, v, "nodes", v.tenant, from, n)
}

// Node returns one org node.
func (v View) Node(ctx context.Context, n id.NodeID) (*api.OrgNode, error) {
	return found[api.OrgNode]("org node")(one[api.OrgNode](ctx, v, "node", v.tenant, n))
}

// CreateNode creates an org node.
func (t *Tx) CreateNode(ctx context.Context, in *api.OrgNodeCreate) (*api.OrgNode, error) {
	n := id.NodeID{UUID: id.NewAnywhere()}
	if in.ParentID != nil {
		if _, err := t.exec(ctx, "nodes_lock", t.tenant); err != nil {
			return nil, fmt.Errorf("lock org nodes: %w", err)
		}
		if err := t.checkLevels(ctx, n, *in.ParentID); err != nil {
			return nil, err
		}
	}
	_, err := t.exec(ctx, "node_insert", t.tenant, n, in.Name, in.ParentID)
	if pg.IsForeignKey(err, "org_nodes_tenant_id_parent_id_fkey") {
		return nil, noParent()
	}
	if err != nil {
		return nil, fmt.Errorf("insert org node: %w", err)
	}
	if err := t.Audit(ctx, "org_node.create", "org_node", n.UUID, nil); err != nil {
		return nil, err
	}
	return t.Node(ctx, n)
}

func noParent() error { return problem.Invalid("parent_id", "there is no such org node") }

// maxLevels is how many org nodes may be above one another. What decides on tool calls reads no more
// (grants.sql), so that a grant on the highest one counts for the lowest.
const maxLevels = 100

// checkLevels refuses a parent under which the node, with those below it, would be too deep.
func (t *Tx) checkLevels(ctx context.Context, n, parent id.NodeID) error {
	levels, err := scalars[int](ctx, t.View, "node_levels", t.tenant, n, parent)
	if err != nil {
		return fmt.Errorf("count the levels of org nodes: %w", err)
	}
	if levels[0] > maxLevels {
		return problem.Invalid("parent_id", fmt.Sprintf("is too deep: at most %d org nodes may be above one another", maxLevels))
	}
	return nil
}

// UpdateNode changes the fields set in the patch; a parent below the node itself is
// VALIDATION.
func (t *Tx) UpdateNode(ctx context.Context, n id.NodeID, in *api.OrgNodePatch) (*api.OrgNode, error) {
	if _, err := t.exec(ctx, "nodes_lock", t.tenant); err != nil {
		return nil, fmt.Errorf("lock org nodes: %w", err)
	}
	old, err := t.Node(ctx, n)
	if err != nil {
		return nil, err
	}
	name := old.Name
	set(&name, in.Name)
	if parent, ok := in.ParentID.Get(); ok {
		below, err := scalars[bool](ctx, t.View, "node_is_below", t.tenant, n, parent)
		if err != nil {
			return nil, err
		}
		if below[0] {
			return nil, problem.Invalid("parent_id", "is this org node or one below it")
		}
		if err := t.checkLevels(ctx, n, parent); err != nil {
			return nil, err
		}
	}
	_, err = t.exec(ctx, "node_update", t.tenant, n, name, in.ParentID.OrPtr(old.ParentID))
	if pg.IsForeignKey(err, "org_nodes_tenant_id_parent_id_fkey") {
		return nil, noParent()
	}
	if err != nil {
		return nil, fmt.Errorf("update org node: %w", err)
	}
	if err := t.Audit(ctx, "org_node.update", "org_node", n.UUID, nil); err != nil {
		return nil, err
	}
	return t.Node(ctx, n)
}

// DeleteNode deletes an org node with its managers; IN_USE while something refers to it that is
// not archived, or its managers may still have to decide.
func (t *Tx) DeleteNode(ctx context.Context, n id.NodeID) error {
	if _, err := t.exec(ctx, "nodes_lock", t.tenant); err != nil {
		return fmt.Errorf("lock org nodes: %w", err)
	}
	for _, move := range []string{"node_archived_agents", "node_archived_workflows"} {
		if _, err := t.exec(ctx, move, t.tenant, n); err != nil {
			return fmt.Errorf("move what is archived to the org node above: %w", err)
		}
	}
	switch decides, err := scalars[bool](ctx, t.View, "node_decides", t.tenant, n); {
	case err != nil:
		return err
	case decides[0]:
		return problem.New(problem.CodeInUse, "Its managers decide on approvals that are pending, or on runs of workflows that have not ended.")
	}
	gone, err := t.exec(ctx, "node_delete", t.tenant, n)
	switch {
	case pg.IsForeignKey(err):
		return problem.New(problem.CodeInUse, "Other org nodes, agents, workflows, connections or grants refer to this org node.")
	case err != nil:
		return fmt.Errorf("delete org node: %w", err)
	case gone == 0:
		return problem.NotFound("org node")
	}
	return t.Audit(ctx, "org_node.delete", "org_node", n.UUID, nil)
}

// AddManager makes a user a manager of an org node. Idempotent.
func (t *Tx) AddManager(ctx context.Context, n id.NodeID, u id.UserID) error {
	if _, err := t.Node(ctx, n); err != nil {
		return err
	}
	if _, err := t.User(ctx, u); err != nil {
		return err
	}
	added, err := t.exec(ctx, "node_manager_insert", t.tenant, n, u)
	switch {
	case pg.IsForeignKey(err, "org_node_managers_tenant_id_node_id_fkey"): // both existed a moment ago
		return problem.NotFound("org node")
	case pg.IsForeignKey(err):
		return problem.NotFound("user")
	case err != nil:
		return fmt.Errorf("insert manager: %w", err)
	case added == 0:
		return nil
	}
	return t.Audit(ctx, "org_node.manager.create", "org_node", n.UUID, map[string]id.UserID{"user_id": u})
}

// RemoveManager removes a user as a manager; it changes nothing if the user is not one.
func (t *Tx) RemoveManager(ctx context.Context, n id.NodeID, u id.UserID) error {
	if _, err := t.Node(ctx, n); err != nil {
		return err
	}
	gone, err := t.exec(ctx, "node_manager_delete", t.tenant, n, u)
	if err != nil || gone == 0 {
		return err
	}
	return t.Audit(ctx, "org_node.manager.delete", "org_node", n.UUID, map[string]id.UserID{"user_id": u})
}
