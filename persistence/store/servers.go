package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// Servers returns tool servers, newest first.
func (v View) Servers(ctx context.Context, at id.ServerID, limit int) ([]api.MCPServer, error) {
	from, n := before(at.UUID, limit)
	return listed[api.MCPServer](ctx, v, "servers", v.tenant, from, n)
}

// Server returns one tool server.
func (v View) Server(ctx context.Context, s id.ServerID) (*api.MCPServer, error) {
	return found[api.MCPServer](serverWord)(one[api.MCPServer](ctx, v, "server", v.tenant, s))
}

const serverWord = "tool server"

// ServerTools are the tools that a server last listed.
type ServerTools struct {
	ID    id.ServerID
	Slug  string
	At    time.Time // when it listed them
	Specs []tool.Spec
}

type serverTools struct {
	ID    id.ServerID
	Slug  string
	At    time.Time
	Tools []byte
}

func (r *serverTools) read() (*ServerTools, error) {
	s := &ServerTools{ID: r.ID, Slug: r.Slug, At: r.At}
	if err := json.Unmarshal(r.Tools, &s.Specs); err != nil {
		return nil, fmt.Errorf("read the tools of server %s: %w", r.Slug, err)
	}
	for i := range s.Specs {
		s.Specs[i].Owner = r.Slug // the server may have been renamed since
	}
	return s, nil
}

// LastTools returns the tools that an enabled server last listed; nil if it was never reached.
func (v View) LastTools(ctx context.Context, s id.ServerID) (*ServerTools, error) {
	row, err := one[serverTools](ctx, v, "server_tools", v.tenant, s)
	if err != nil || row == nil {
		return nil, err
	}
	return row.read()
}

// Catalog returns up to limit enabled servers that listed tools, in the order of the qualified
// names of these tools, beginning at from: "", a qualified name, or what After returned.
func (v View) Catalog(ctx context.Context, from string, limit int) ([]*ServerTools, error) {
	owner, _, dotted := strings.Cut(from, ".")
	if dotted {
		owner += "." // all tools of the server of from
	}
	rows, err := listed[serverTools](ctx, v, "server_catalog", v.tenant, owner, limit)
	if err != nil {
		return nil, err
	}
	out := make([]*ServerTools, len(rows))
	for i := range rows {
		if out[i], err = rows[i].read(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// After returns where a catalog continues after this server: behind every name that begins with
// its slug and a dot.
func (s *ServerTools) After() string { return s.Slug + "/" }

// AskedServer is an enabled server as it is asked for the tenant as a whole.
type AskedServer struct {
	ID         id.ServerID
	Slug       string
	Transport  tool.Transport
	Endpoint   string
	AuthKind   tool.AuthKind
	UpdatedAt  time.Time
	Connection *id.ConnectionID // as TenantWide returns it; nil if the server takes no credentials
}

// AskedServers returns up to limit enabled servers, those with one of the slugs first.
func (v View) AskedServers(ctx context.Context, slugs []string, limit int) ([]AskedServer, error) {
	return all[AskedServer](ctx, v, "servers_asked", v.tenant, slugs, limit)
}

// SaveTools stores the tools that a server listed, for LastTools. For a deleted server it
// stores nothing.
func (s *Store) SaveTools(ctx context.Context, t id.TenantID, server id.ServerID, specs []tool.Spec) error {
	if specs == nil {
		specs = []tool.Spec{}
	}
	doc, err := json.Marshal(specs)
	if err != nil {
		return fmt.Errorf("encode tools: %w", err)
	}
	_, err = scalars[id.ServerID](ctx, s.View(t), "server_tools_save", t, server, jsonArg(doc))
	return err
}

// CreateServer creates a tool server.
func (t *Tx) CreateServer(ctx context.Context, in *api.MCPServerCreate) (*api.MCPServer, error) {
	row, err := one[api.MCPServer](ctx, t.View, "server_insert", t.tenant, id.ServerID{UUID: id.NewAnywhere()}, in.Slug, in.Name,
		string(in.Transport), in.Endpoint, string(in.AuthKind), in.Enabled == nil || *in.Enabled, in.Meta.Text())
	if pg.IsUnique(err, "mcp_servers_slug_key") {
		return nil, slugTaken()
	}
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "mcp_server.create", "mcp_server", row.ID.UUID, nil)
}

// UpdateServer changes the fields set in the patch. If the server moves to another origin,
// its connections stay but lose their credentials.
func (t *Tx) UpdateServer(ctx context.Context, s id.ServerID, in *api.MCPServerPatch) (*api.MCPServerUpdated, error) {
	// The lock makes a concurrent creation of a connection wait: either the connection exists
	// before the credentials are dropped, or it is created for the new origin.
	row, err := t.LockServer(ctx, s)
	if err != nil {
		return nil, err
	}
	old := api.ServerOrigin(row.Transport, row.Endpoint)
	set(&row.Slug, in.Slug)
	set(&row.Name, in.Name)
	set(&row.Transport, in.Transport)
	set(&row.Endpoint, in.Endpoint)
	set(&row.AuthKind, in.AuthKind)
	set(&row.Enabled, in.Enabled)
	row, err = one[api.MCPServer](ctx, t.View, "server_update", t.tenant, s, row.Slug, row.Name,
		string(row.Transport), row.Endpoint, string(row.AuthKind), row.Enabled, in.Meta.Or(row.Meta).Text())
	if pg.IsUnique(err, "mcp_servers_slug_key") {
		return nil, slugTaken()
	}
	if err != nil {
		return nil, err
	}
	out := &api.MCPServerUpdated{MCPServer: *row}
	var detail any
	if now := api.ServerOrigin(row.Transport, row.Endpoint); now != old {
		n, err := t.exec(ctx, "connections_empty", t.tenant, s)
		if err != nil {
			return nil, err
		}
		out.CredentialsDropped = n > 0
		detail = moved{OldOrigin: old, NewOrigin: now, CredentialsDropped: out.CredentialsDropped}
	}
	return out, t.Audit(ctx, "mcp_server.update", "mcp_server", s.UUID, detail)
}

// moved is the audit detail of a change to another origin.
type moved struct {
	OldOrigin          string `json:"old_origin"`
	NewOrigin          string `json:"new_origin"`
	CredentialsDropped bool   `json:"credentials_dropped"`
}

// set applies a patch to one field.
func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

// LockServer returns a tool server, locked until the end of the change.
func (t *Tx) LockServer(ctx context.Context, s id.ServerID) (*api.MCPServer, error) {
	return found[api.MCPServer](serverWord)(one[api.MCPServer](ctx, t.View, "server_lock", t.tenant, s))
}

// DeleteServer deletes a tool server with its connections and grants.
func (t *Tx) DeleteServer(ctx context.Context, s id.ServerID) error {
	// Creating one of them locks the server: none can appear in between.
	if _, err := t.LockServer(ctx, s); err != nil {
		return err
	}
	gone := map[string]int64{}
	for _, q := range []struct{ what, query string }{
		{"grants", "server_delete_grants"}, {"connections", "server_delete_connections"}, {"servers", "server_delete"},
	} {
		n, err := t.exec(ctx, q.query, t.tenant, s)
		if err != nil {
			return err
		}
		gone[q.what] = n
	}
	delete(gone, "servers")
	return t.Audit(ctx, "mcp_server.delete", "mcp_server", s.UUID, gone)
}

// references looks up what a body refers to and locks it until the change is committed. Each
// reference that the tenant does not have is a complaint.
type references struct {
	t   *Tx
	bad []problem.Field
	err error
}

// require locks the row that query finds; if there is none, message becomes a complaint about field.
func (r *references) require(ctx context.Context, field, message, query string, args ...any) {
	if r.err != nil {
		return
	}
	rows, err := scalars[id.UUID](ctx, r.t.View, query, append([]any{r.t.tenant}, args...)...)
	if r.err = err; err == nil && len(rows) == 0 {
		r.bad = append(r.bad, problem.Field{Path: field, Message: message})
	}
}

func (r *references) agent(ctx context.Context, a *id.AgentID) {
	if a != nil {
		r.require(ctx, "agent_id", "there is no such agent", "refer_agent", a)
	}
}

func (r *references) node(ctx context.Context, n *id.NodeID) {
	if n != nil {
		r.require(ctx, "node_id", "there is no such org node", "refer_node", n)
	}
}

func (r *references) server(ctx context.Context, s *id.ServerID) {
	if s != nil {
		r.require(ctx, "mcp_server_id", "there is no such tool server", "refer_server", s)
	}
}

func (r *references) connection(ctx context.Context, s *id.ServerID, c *id.ConnectionID) {
	if c != nil {
		r.require(ctx, "connection_id", "the tool server has no such connection", "refer_connection", s, c)
	}
}

func (r *references) problem() error {
	if r.err == nil && len(r.bad) > 0 {
		return problem.Validation(r.bad...)
	}
	return r.err
}
