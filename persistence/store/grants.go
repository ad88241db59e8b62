package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/schemas/agent"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// Grants returns tool grants, newest first.
func (v View) Grants(ctx context.Context, at id.GrantID, limit int) ([]api.ToolGrant, error) {
	from, n := before(at.UUID, limit)
	return listed[api.ToolGrant](ctx, v, "grants", v.tenant, from, n)
}

// Grant returns one tool grant.
func (v View) Grant(ctx context.Context, g id.GrantID) (*api.ToolGrant, error) {
	return found[api.ToolGrant](grantWord)(one[api.ToolGrant](ctx, v, "grant", v.tenant, g))
}

const grantWord = "tool grant"

// patternField returns the complaint about a pattern, if it is invalid.
func patternField(pattern string) []problem.Field {
	if agent.ValidPattern(pattern) {
		return nil
	}
	return []problem.Field{{Path: "tool_pattern", Message: "must be a tool pattern: a name, or one * at the end, alone or after . or :"}}
}

// refer validates a grant and locks what its body, named, refers to. The grant's previous
// references are not checked: their agent may have been archived.
func (t *Tx) refer(ctx context.Context, g, named *api.ToolGrant) error {
	r := &references{t: t, bad: patternField(g.ToolPattern)}
	if g.AgentID != nil && g.NodeID != nil {
		r.bad = append(r.bad, problem.Field{Path: "node_id", Message: "cannot be given together with agent_id"})
	}
	switch mcp := g.Source == tool.MCP; {
	case mcp && g.MCPServerID == nil:
		r.bad = append(r.bad, problem.Field{Path: "mcp_server_id", Message: "is required with source mcp"})
	case !mcp && g.MCPServerID != nil:
		r.bad = append(r.bad, problem.Field{Path: "mcp_server_id", Message: "belongs to source mcp only"})
	case !mcp && g.ConnectionID != nil:
		r.bad = append(r.bad, problem.Field{Path: "connection_id", Message: "belongs to source mcp only"})
	}
	if len(r.bad) > 0 {
		return r.problem()
	}
	r.server(ctx, named.MCPServerID)
	r.connection(ctx, g.MCPServerID, named.ConnectionID)
	r.agent(ctx, named.AgentID)
	r.node(ctx, named.NodeID)
	return r.problem()
}

// CreateGrant creates a tool grant.
func (t *Tx) CreateGrant(ctx context.Context, in *api.ToolGrantCreate) (*api.ToolGrant, error) {
	row := &api.ToolGrant{ID: id.GrantID{UUID: id.NewAnywhere()}, Source: tool.Source(in.Source), MCPServerID: in.MCPServerID, ToolPattern: in.ToolPattern,
		Effect: in.Effect, AgentID: in.AgentID, NodeID: in.NodeID, ConnectionID: in.ConnectionID}
	if err := t.refer(ctx, row, row); err != nil {
		return nil, err
	}
	row, err := one[api.ToolGrant](ctx, t.View, "grant_insert", t.tenant, row.ID, string(row.Source), row.MCPServerID, row.ToolPattern,
		string(row.Effect), row.AgentID, row.NodeID, row.ConnectionID)
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "tool_grant.create", "tool_grant", row.ID.UUID, nil)
}

// UpdateGrant changes the fields set in the patch. A grant of a browser skill is changed with
// the skill.
func (t *Tx) UpdateGrant(ctx context.Context, g id.GrantID, in *api.ToolGrantPatch) (*api.ToolGrant, error) {
	row, err := found[api.ToolGrant](grantWord)(one[api.ToolGrant](ctx, t.View, "grant_lock", t.tenant, g))
	if err != nil {
		return nil, err
	}
	if row.Source == tool.BrowserSkill {
		return nil, problem.Invalid("source", "grants of browser skills are changed with the skill")
	}
	set(&row.ToolPattern, in.ToolPattern)
	set(&row.Effect, in.Effect)
	row.AgentID, row.NodeID, row.ConnectionID = in.AgentID.OrPtr(row.AgentID), in.NodeID.OrPtr(row.NodeID), in.ConnectionID.OrPtr(row.ConnectionID)
	named := &api.ToolGrant{AgentID: in.AgentID.OrPtr(nil), NodeID: in.NodeID.OrPtr(nil), ConnectionID: in.ConnectionID.OrPtr(nil)}
	if err := t.refer(ctx, row, named); err != nil {
		return nil, err
	}
	row, err = one[api.ToolGrant](ctx, t.View, "grant_update", t.tenant, g, row.ToolPattern, string(row.Effect), row.AgentID, row.NodeID, row.ConnectionID)
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "tool_grant.update", "tool_grant", g.UUID, nil)
}

// DeleteGrant deletes a tool grant.
func (t *Tx) DeleteGrant(ctx context.Context, g id.GrantID) error {
	if err := t.execFound(ctx, problem.NotFound(grantWord), "grant_delete", t.tenant, g); err != nil {
		return err
	}
	return t.Audit(ctx, "tool_grant.delete", "tool_grant", g.UUID, nil)
}

// Access returns everything that decides what an agent may call, as of one moment, read in
// one round trip; nil if the agent does not exist. An archived agent still has its access:
// its runs continue.
func (v View) Access(ctx context.Context, a id.AgentID) (*tool.Access, error) {
	return v.access(ctx, &tool.Access{Agent: a}, a.UUID, "access_chain", "access_connections", "access_grants")
}

// WorkflowAccess returns the same for the tool nodes of a workflow: what the tenant and the
// workflow's org nodes have. An archived workflow still has its access.
func (v View) WorkflowAccess(ctx context.Context, w id.WorkflowID) (*tool.Access, error) {
	return v.access(ctx, &tool.Access{}, w.UUID, "workflow_chain", "workflow_connections", "workflow_grants")
}

// access reads the access of one agent or workflow with these queries; of is its id. It returns
// nil if there is none.
func (v View) access(ctx context.Context, access *tool.Access, of id.UUID, chains, connections, grants string) (*tool.Access, error) {
	var chain []*id.NodeID
	var skills []skillAccess
	err := v.q.together(ctx, func(b *pgx.Batch) {
		collect(b, chains, &chain, pgx.RowTo[*id.NodeID], v.tenant, of)
		collect(b, "access_servers", &access.Servers, pgx.RowToStructByPos[tool.Server], v.tenant)
		collect(b, "access_skills", &skills, pgx.RowToStructByName[skillAccess], v.tenant)
		collect(b, connections, &access.Connections, pgx.RowToStructByPos[tool.Connection], v.tenant, of)
		collect(b, grants, &access.Grants, pgx.RowToStructByPos[tool.Grant], v.tenant, of)
		collect(b, "access_policies", &access.Policies, pgx.RowToStructByPos[tool.Policy], v.tenant, of)
	})
	if err != nil || len(chain) == 0 {
		return nil, err
	}
	for i := range skills {
		k, err := skills[i].read()
		if err != nil {
			return nil, err
		}
		access.Skills = append(access.Skills, k)
	}
	for _, n := range chain {
		if n != nil { // an agent or workflow on no node has one row, NULL
			access.Chain = append(access.Chain, *n)
		}
	}
	return access, nil
}

func collect[T any](b *pgx.Batch, name string, into *[]T, read pgx.RowToFunc[T], args ...any) {
	b.Queue(queries.Get(name), args...).Query(func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, read)
		return err
	})
}

const oneMoment = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

func (s single) together(ctx context.Context, queue func(*pgx.Batch)) error {
	return s.acquire(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
		b := &pgx.Batch{}
		b.Queue(oneMoment)
		b.Queue(setTenant, s.tenant.String())
		if s.planned {
			b.Queue(setPlanned)
		}
		queue(b)
		b.Queue("COMMIT")
		// A transaction left open by a failure ends with its connection: the pool does not
		// keep one that is in a transaction.
		return c.SendBatch(ctx, b).Close()
	})
}

// together runs the queries within the change: each sees the change, at its own moment.
func (t *Tx) together(ctx context.Context, queue func(*pgx.Batch)) error {
	b := &pgx.Batch{}
	queue(b)
	return t.tx.SendBatch(ctx, b).Close()
}
