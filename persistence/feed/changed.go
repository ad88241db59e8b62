package feed

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

var (
	changedRunsSQL      = queries.Get("changed_runs")
	changedApprovalsSQL = queries.Get("changed_approvals")
	changedParentsSQL   = queries.Get("changed_parents")
)

// Named is a changed object of a tenant.
type Named struct {
	Tenant id.TenantID
	msg.Change
}

// Shown is what a feed shows of changed objects. Runs and approvals that are gone are left out.
type Shown struct {
	Runs      []ShownRun
	Approvals []ShownApproval
	Resources []ShownResource
}

// ShownRun is a changed run.
type ShownRun struct {
	Tenant id.TenantID
	api.RunChange
}

// ShownApproval is a changed approval, with the org node at which its chain of managers begins.
type ShownApproval struct {
	Tenant    id.TenantID
	Node      *id.NodeID
	Escalated bool // callers that might decide it before may not now
	api.ApprovalChange
}

// ShownResource is a changed resource.
type ShownResource struct {
	Tenant id.TenantID
	api.Change
}

// Changed reads changed objects of any tenants, as they are now, in one round trip.
func (s *Sweep) Changed(ctx context.Context, all []Named) (*Shown, error) {
	var tenants [3][]id.TenantID
	var ids [3][]id.UUID
	kinds := []string{}
	for _, n := range all {
		i := 2
		switch n.Kind {
		case msg.ChangedRun:
			i = 0
		case msg.ChangedApproval:
			i = 1
		default:
			kinds = append(kinds, n.Kind)
		}
		tenants[i], ids[i] = append(tenants[i], n.Tenant), append(ids[i], n.ID)
	}
	out := &Shown{}
	var b pgx.Batch
	if len(ids[0]) > 0 {
		b.Queue(changedRunsSQL, tenants[0], ids[0]).Query(func(rows pgx.Rows) error {
			var r ShownRun
			_, err := pgx.ForEachRow(rows, []any{&r.Tenant, &r.ID, &r.Status, &r.AgentID, &r.WorkflowID, &r.ThreadID, &r.ParentRunID}, func() error {
				out.Runs = append(out.Runs, r)
				r = ShownRun{}
				return nil
			})
			return err
		})
	}
	if len(ids[1]) > 0 {
		b.Queue(changedApprovalsSQL, tenants[1], ids[1]).Query(func(rows pgx.Rows) error {
			var a ShownApproval
			_, err := pgx.ForEachRow(rows, []any{&a.Tenant, &a.Node, &a.Escalated, &a.ID, &a.RunID, &a.Status, &a.Risk, &a.AssigneeRole, &a.ApprovalsSoFar, &a.ExpiresAt}, func() error {
				a.ExpiresAt = a.ExpiresAt.UTC()
				out.Approvals = append(out.Approvals, a)
				a = ShownApproval{}
				return nil
			})
			return err
		})
	}
	if len(ids[2]) > 0 {
		b.Queue(changedParentsSQL, tenants[2], kinds, ids[2]).Query(func(rows pgx.Rows) error {
			var r ShownResource
			_, err := pgx.ForEachRow(rows, []any{&r.Tenant, &r.Kind, &r.ID, &r.ParentID}, func() error {
				out.Resources = append(out.Resources, r)
				r = ShownResource{}
				return nil
			})
			return err
		})
	}
	if b.Len() == 0 {
		return out, nil
	}
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("read changed objects: %w", err)
	}
	return out, nil
}
