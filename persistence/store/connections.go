package store

import (
	"context"
	"fmt"
	"time"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// Connections returns the connections of tool servers, newest first.
func (v View) Connections(ctx context.Context, at id.ConnectionID, limit int) ([]api.Connection, error) {
	from, n := before(at.UUID, limit)
	return listed[api.Connection](ctx, v, "connections", v.tenant, from, n)
}

// Connection returns one connection, without its credential.
func (v View) Connection(ctx context.Context, c id.ConnectionID) (*api.Connection, error) {
	return found[api.Connection]("connection")(one[api.Connection](ctx, v, "connection", v.tenant, c))
}

// TenantWide returns the newest tenant-wide connection of a server, nil if there is none or
// it has no credential.
func (v View) TenantWide(ctx context.Context, s id.ServerID) (*id.ConnectionID, error) {
	rows, err := scalars[id.ConnectionID](ctx, v, "connection_tenant_wide", v.tenant, s)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// SealedConnection is a connection with its sealed credential.
type SealedConnection struct {
	ID          id.ConnectionID
	Server      id.ServerID
	Transport   tool.Transport // of the server, from the same read as the credential
	Endpoint    string
	Credentials vault.Sealed // sealed at ConnectionAt: exactly the text to present; empty if there is none
	UpdatedAt   time.Time
}

// SealedConnection returns a connection, nil if there is none.
func (v View) SealedConnection(ctx context.Context, c id.ConnectionID) (*SealedConnection, error) {
	return one[SealedConnection](ctx, v, "connections_sealed", v.tenant, []id.ConnectionID{c})
}

// SealedConnections returns those of the connections that exist.
func (v View) SealedConnections(ctx context.Context, c []id.ConnectionID) ([]SealedConnection, error) {
	return all[SealedConnection](ctx, v, "connections_sealed", v.tenant, c)
}

// ConnectionAt returns the AAD of a connection's credential.
func ConnectionAt(t id.TenantID, c id.ConnectionID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "connections", Row: c.String(), Column: "credentials"}
}

// credential returns the text to present to a server of this kind. Its complaints never quote
// the text.
func credential(kind tool.AuthKind, c *api.ConnectionCredentials) (string, error) {
	given := []struct {
		name  string
		value *string
	}{{"token", c.Token}, {"api_key", c.APIKey}, {"value", c.Value}}
	var bad []problem.Field
	text, from, n := "", "", 0
	for _, g := range given {
		if g.value == nil {
			continue
		}
		ofToken := g.name == "token"
		switch {
		case kind == tool.AuthAPIKey && ofToken, (kind == tool.AuthBearer || kind == tool.AuthOAuth) && !ofToken:
			bad = append(bad, problem.Field{Path: "credentials." + g.name, Message: "does not belong to auth_kind " + string(kind)})
		default:
			text, from, n = *g.value, g.name, n+1
		}
	}
	switch {
	case n > 1:
		bad = append(bad, problem.Field{Path: "credentials", Message: "hold more than one credential"})
	case n == 1:
		if !presentable(text) {
			bad = append(bad, problem.Field{Path: "credentials." + from, Message: "must be visible ASCII characters, with spaces only between them"})
		}
	case kind == tool.AuthAPIKey:
		bad = append(bad, problem.Field{Path: "credentials.api_key", Message: "is required"})
	case kind == tool.AuthNone: // the server may require credentials later: accept every kind
		bad = append(bad, problem.Field{Path: "credentials", Message: "token or api_key is required"})
	default:
		bad = append(bad, problem.Field{Path: "credentials.token", Message: "is required"})
	}
	if len(bad) > 0 {
		return "", problem.Validation(bad...)
	}
	return text, nil
}

// presentable reports whether text can be sent unchanged as a header field.
func presentable(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == ' ' && (i == 0 || i == len(text)-1) {
			return false
		}
	}
	return text != ""
}

func (t *Tx) sealConnection(c id.ConnectionID, kind tool.AuthKind, in *api.ConnectionCredentials) ([]byte, error) {
	text, err := credential(kind, in)
	if err != nil {
		return nil, err
	}
	sealed, err := t.vault.Seal(ConnectionAt(t.tenant, c), []byte(text))
	if err != nil {
		return nil, fmt.Errorf("seal a connection: %w", err)
	}
	return sealed, nil
}

// CreateConnection creates a connection and seals its credential.
func (t *Tx) CreateConnection(ctx context.Context, in *api.ConnectionCreate) (*api.Connection, error) {
	refer := &references{t: t}
	refer.server(ctx, &in.MCPServerID)
	refer.node(ctx, in.NodeID)
	if err := refer.problem(); err != nil {
		return nil, err
	}
	server, err := t.Server(ctx, in.MCPServerID)
	if err != nil {
		return nil, err
	}
	c := id.ConnectionID{UUID: id.NewAnywhere()}
	sealed, err := t.sealConnection(c, server.AuthKind, &in.Credentials)
	if err != nil {
		return nil, err
	}
	row, err := one[api.Connection](ctx, t.View, "connection_insert", t.tenant, c, in.MCPServerID, in.Name, sealed, in.CredentialMeta.Text(), in.NodeID)
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "connection.create", "connection", c.UUID, nil)
}

// UpdateConnection changes the fields set in the patch; a new credential replaces the old
// one.
func (t *Tx) UpdateConnection(ctx context.Context, c id.ConnectionID, in *api.ConnectionPatch) (*api.Connection, error) {
	row, err := found[api.Connection]("connection")(one[api.Connection](ctx, t.View, "connection_lock", t.tenant, c))
	if err != nil {
		return nil, err
	}
	set(&row.Name, in.Name)
	refer := &references{t: t}
	refer.node(ctx, in.NodeID.OrPtr(nil))
	if err := refer.problem(); err != nil {
		return nil, err
	}
	var sealed []byte
	if in.Credentials != nil {
		server, err := t.Server(ctx, row.MCPServerID)
		if err != nil {
			return nil, err
		}
		if sealed, err = t.sealConnection(c, server.AuthKind, in.Credentials); err != nil {
			return nil, err
		}
	}
	row, err = one[api.Connection](ctx, t.View, "connection_update", t.tenant, c, row.Name, sealed, in.CredentialMeta.Or(row.CredentialMeta).Text(), in.NodeID.OrPtr(row.NodeID))
	if err != nil {
		return nil, err
	}
	if in.Credentials != nil {
		if err := t.Audit(ctx, "connection.rotate", "connection", c.UUID, nil); err != nil {
			return nil, err
		}
	}
	return row, t.Audit(ctx, "connection.update", "connection", c.UUID, nil)
}

// DeleteConnection deletes a connection with its credential; IN_USE while a grant pins it.
func (t *Tx) DeleteConnection(ctx context.Context, c id.ConnectionID) error {
	row, err := t.Connection(ctx, c)
	if err != nil {
		return err
	}
	// Lock the server first, as the deletion of a server does, so that the two cannot
	// deadlock.
	if _, err := scalars[id.ServerID](ctx, t.View, "refer_server", t.tenant, row.MCPServerID); err != nil {
		return err
	}
	err = t.execFound(ctx, problem.NotFound("connection"), "connection_delete", t.tenant, c)
	if pg.IsForeignKey(err) {
		return problem.New(problem.CodeInUse, "A tool grant pins this connection.")
	}
	if err != nil {
		return err
	}
	return t.Audit(ctx, "connection.delete", "connection", c.UUID, map[string]id.ServerID{"mcp_server_id": row.MCPServerID})
}
