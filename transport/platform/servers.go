package platform

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
	"agentsvc/transport/edge"
)

type createServer struct{ Body api.MCPServerCreate }

type oneServer struct {
	ID id.ServerID `path:"id"`
}

type patchServer struct {
	ID   id.ServerID `path:"id"`
	Body api.MCPServerPatch
}

type testServer struct {
	ID   id.ServerID       `path:"id"`
	Body api.MCPServerTest `required:"false"`
}

type createConnection struct{ Body api.ConnectionCreate }

type oneConnection struct {
	ID id.ConnectionID `path:"id"`
}

type patchConnection struct {
	ID   id.ConnectionID `path:"id"`
	Body api.ConnectionPatch
}

const toolServers = "Tool servers"

func (p *Platform) serverRoutes(t *edge.Table) {
	describeTools(t)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/mcp-servers", ID: "listMcpServers", Answer: listed(sampleServer),
		Summary: "List tool servers", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.listServers)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/mcp-servers", ID: "createMcpServer", Answer: sampleServer,
		Summary:     "Add a tool server",
		Description: "An MCP server. Its tools cannot be called until they are granted.", Tag: toolServers, Role: lifecycle.RoleAdmin,
		Status: 201, Idempotent: true, Codes: []problem.Code{problem.CodeSlugTaken},
		Example: map[string]any{"slug": "orders", "name": "Orders", "transport": "http", "endpoint": "https://tools.example.com/mcp", "auth_kind": "bearer",
			"meta": map[string]any{"team": "logistics"}}}, p.createServer)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/mcp-servers/{id}", ID: "getMcpServer", Answer: sampleServer,
		Summary: "Read a tool server", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.getServer)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/mcp-servers/{id}", ID: "updateMcpServer", Answer: api.MCPServerUpdated{MCPServer: sampleServer},
		Summary:     "Change a tool server",
		Description: "Calls in flight continue unchanged. An endpoint at another origin (scheme, host, port) drops the credentials of the server's connections: the connections stay, calls fail with NO_CONNECTION until they have credentials again, and the response has credentials_dropped.", Tag: toolServers, Role: lifecycle.RoleAdmin, Codes: []problem.Code{problem.CodeSlugTaken},
		Example: map[string]any{"enabled": false}}, p.updateServer)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/mcp-servers/{id}", ID: "deleteMcpServer", Summary: "Remove a tool server",
		Description: "Also removes its connections and grants.", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.deleteServer)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/mcp-servers/{id}/test", ID: "testMcpServer", Answer: sampleTested,
		Summary:     "Test a tool server",
		Description: "Lists its tools now, without caches, with the named connection or else the newest tenant-wide one. MCP_UNREACHABLE lists what went wrong in errors.",
		Tag:         toolServers, Role: lifecycle.RoleAdmin, Idempotent: true, Codes: []problem.Code{problem.CodeMCPUnreachable},
		Example: map[string]any{"connection_id": sampleConnection.ID}}, p.testServer)
}

func (p *Platform) connectionRoutes(t *edge.Table) {
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/connections", ID: "listConnections", Answer: listed(sampleConnection),
		Summary: "List connections", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.listConnections)
	edge.Handle(t, edge.Route{Method: "POST", Path: "/v1/connections", ID: "createConnection", Answer: sampleConnection,
		Summary:     "Add a connection",
		Description: "A credential of a tool server: token if its auth_kind is bearer or oauth, api_key if it is api_key. It is stored encrypted and never returned.",
		Tag:         toolServers, Role: lifecycle.RoleAdmin, Status: 201, Idempotent: true,
		Again: again(p, func(c *edge.Caller, in *createConnection) msg.Revoked { return changed(c, in.Body.MCPServerID) }),
		Example: map[string]any{"mcp_server_id": sampleServer.ID, "name": "Warehouse account", "credentials": map[string]any{"token": "…"},
			"credential_meta": map[string]any{"account": "warehouse@example.com"}}}, p.createConnection)
	edge.Handle(t, edge.Route{Method: "GET", Path: "/v1/connections/{id}", ID: "getConnection", Answer: sampleConnection,
		Summary: "Read a connection", Tag: toolServers, Role: lifecycle.RoleAdmin}, p.getConnection)
	edge.Handle(t, edge.Route{Method: "PATCH", Path: "/v1/connections/{id}", ID: "updateConnection", Answer: sampleConnection,
		Summary:     "Change a connection",
		Description: "With credentials it rotates the secret in place: grants that pin the connection keep working.", Tag: toolServers, Role: lifecycle.RoleAdmin,
		Example: map[string]any{"credentials": map[string]any{"token": "…"}}}, p.updateConnection)
	edge.Handle(t, edge.Route{Method: "DELETE", Path: "/v1/connections/{id}", ID: "deleteConnection", Summary: "Remove a connection",
		Description: "IN_USE while a grant pins it.", Tag: toolServers, Role: lifecycle.RoleAdmin, Codes: []problem.Code{problem.CodeInUse}}, p.deleteConnection)
}

// changed is the revocation for a change of a tool server or of one of its connections.
func changed(c *edge.Caller, s id.ServerID) msg.Revoked {
	return msg.Revoked{What: msg.ChangedServer, Tenant: c.Tenant, Server: s}
}

// small refuses a free-form object that is too large.
func small(field string, o api.Object) error {
	if len(o) > api.MaxObject {
		return problem.Invalid(field, fmt.Sprintf("must have at most %d bytes", api.MaxObject))
	}
	return nil
}

func (p *Platform) checkEndpoint(ctx context.Context, transport tool.Transport, auth tool.AuthKind, endpoint string) error {
	if err := p.Tools.CheckEndpoint(ctx, transport, auth, endpoint); err != nil {
		return problem.Invalid("endpoint", err.Error())
	}
	return nil
}

func (p *Platform) listServers(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.MCPServer], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "mcp-servers", store.View.Servers, func(s api.MCPServer) id.ServerID { return s.ID })
}

func (p *Platform) createServer(ctx context.Context, c *edge.Caller, in *createServer) (*api.MCPServer, error) {
	if err := small("meta", in.Body.Meta); err != nil {
		return nil, err
	}
	if err := p.checkEndpoint(ctx, in.Body.Transport, in.Body.AuthKind, in.Body.Endpoint); err != nil {
		return nil, err
	}
	return change(ctx, p, c, with1((*store.Tx).CreateServer, &in.Body))
}

func (p *Platform) getServer(ctx context.Context, c *edge.Caller, in *oneServer) (*api.MCPServer, error) {
	return p.Store.View(c.Tenant).Server(ctx, in.ID)
}

// errMoved says that the address of a tool server changed after it was checked.
var errMoved = errors.New("the address of the tool server changed")

// checks is how often a change of an address is checked before it is given up.
const checks = 3

// updateServer checks transport, kind and endpoint together: a value that the patch does not
// name is the stored one. The check may ask a name server, so it comes before the change,
// which is made only if the stored values are still those of the check.
func (p *Platform) updateServer(ctx context.Context, c *edge.Caller, in *patchServer) (*api.MCPServerUpdated, error) {
	b := &in.Body
	if err := small("meta", b.Meta.Value); err != nil {
		return nil, err
	}
	for range checks {
		was, err := p.checkAddress(ctx, c.Tenant, in)
		if err != nil {
			return nil, err
		}
		out, err := change(ctx, p, c, func(ctx context.Context, tx *store.Tx) (*api.MCPServerUpdated, error) {
			if was != nil {
				now, err := tx.LockServer(ctx, in.ID)
				if err != nil {
					return nil, err
				}
				if now.Transport != was.Transport || now.Endpoint != was.Endpoint || now.AuthKind != was.AuthKind {
					return nil, errMoved
				}
			}
			return tx.UpdateServer(ctx, in.ID, b)
		})
		if !errors.Is(err, errMoved) {
			return told(ctx, p, changed(c, in.ID), out, err)
		}
	}
	return nil, &problem.Error{Code: problem.CodeUnavailable, RetryAfter: time.Second,
		Detail: "Other requests keep changing the address of this tool server. Nothing was changed: repeat the request."}
}

// checkAddress checks the address that a server has after a patch, and returns the server as
// the check saw it; nil if the patch names no part of the address.
func (p *Platform) checkAddress(ctx context.Context, t id.TenantID, in *patchServer) (*api.MCPServer, error) {
	b := &in.Body
	if b.Transport == nil && b.Endpoint == nil && b.AuthKind == nil {
		return nil, nil
	}
	was, err := p.Store.View(t).Server(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	next := *was
	if b.Transport != nil {
		next.Transport = *b.Transport
	}
	if b.Endpoint != nil {
		next.Endpoint = *b.Endpoint
	}
	if b.AuthKind != nil {
		next.AuthKind = *b.AuthKind
	}
	return was, p.checkEndpoint(ctx, next.Transport, next.AuthKind, next.Endpoint)
}

func (p *Platform) deleteServer(ctx context.Context, c *edge.Caller, in *oneServer) (*edge.Empty, error) {
	out, err := change(ctx, p, c, none1((*store.Tx).DeleteServer, in.ID))
	return removed(ctx, p, changed(c, in.ID), out, err)
}

func (p *Platform) testServer(ctx context.Context, c *edge.Caller, in *testServer) (*api.MCPServerTested, error) {
	v := p.Store.View(c.Tenant)
	server, err := v.Server(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	with := in.Body.ConnectionID
	if with != nil {
		named, err := v.Connection(ctx, *with)
		if err != nil {
			return nil, err
		}
		if named.MCPServerID != in.ID {
			return nil, problem.NotFound("connection")
		}
		if server.AuthKind != tool.AuthNone && !named.HasCredential {
			return nil, noCredential("The connection has no credential.", "the connection lost its credential when the server's address changed: give it one")
		}
	} else if server.AuthKind != tool.AuthNone {
		if with, err = v.TenantWide(ctx, in.ID); err != nil {
			return nil, err
		}
		if with == nil {
			return nil, noCredential("The server takes a credential and has no tenant-wide connection with one.",
				fmt.Sprintf("auth_kind is %s and there is no tenant-wide connection with a credential: add one or name a connection_id", server.AuthKind))
		}
	}
	specs, err := p.Tools.Test(ctx, c.Tenant, in.ID, with)
	if err != nil {
		return nil, cmp.Or(ctx.Err(), err) // a node that is stopping reports nothing about the server
	}
	out := &api.MCPServerTested{OK: true, Tools: make([]api.MCPTool, len(specs))}
	for i, s := range specs {
		out.Tools[i] = api.MCPTool{Name: s.Name, Description: s.Description, Unusable: s.Unusable}
	}
	if c.Idem == nil {
		return out, nil
	}
	return change(ctx, p, c, func(context.Context, *store.Tx) (*api.MCPServerTested, error) { return out, nil })
}

// noCredential is the problem of a test without a credential to present.
func noCredential(detail, why string) *problem.Error {
	return &problem.Error{Code: problem.CodeMCPUnreachable, Detail: detail, Extensions: map[string]any{"errors": []string{why}}}
}

func (p *Platform) listConnections(ctx context.Context, c *edge.Caller, in *api.Page) (*api.List[api.Connection], error) {
	return list(ctx, p.Store.View(c.Tenant), *in, "connections", store.View.Connections, func(x api.Connection) id.ConnectionID { return x.ID })
}

func (p *Platform) createConnection(ctx context.Context, c *edge.Caller, in *createConnection) (*api.Connection, error) {
	if err := small("credential_meta", in.Body.CredentialMeta); err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, with1((*store.Tx).CreateConnection, &in.Body))
	return told(ctx, p, changed(c, in.Body.MCPServerID), out, err)
}

func (p *Platform) getConnection(ctx context.Context, c *edge.Caller, in *oneConnection) (*api.Connection, error) {
	return p.Store.View(c.Tenant).Connection(ctx, in.ID)
}

func (p *Platform) updateConnection(ctx context.Context, c *edge.Caller, in *patchConnection) (*api.Connection, error) {
	if err := small("credential_meta", in.Body.CredentialMeta.Value); err != nil {
		return nil, err
	}
	old, err := p.Store.View(c.Tenant).Connection(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, with2((*store.Tx).UpdateConnection, in.ID, &in.Body))
	return told(ctx, p, changed(c, old.MCPServerID), out, err)
}

func (p *Platform) deleteConnection(ctx context.Context, c *edge.Caller, in *oneConnection) (*edge.Empty, error) {
	old, err := p.Store.View(c.Tenant).Connection(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out, err := change(ctx, p, c, none1((*store.Tx).DeleteConnection, in.ID))
	return removed(ctx, p, changed(c, old.MCPServerID), out, err)
}
