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

// Connections lists the credentials of tool servers, newest first.
func (v View) Connections(ctx context.Context, at id.ConnectionID, limit int) ([]api.Connection, error) {
	from, n := before(at.UUID, limit)
	return listed[api.Connection](ctx, v, "connections", v.tenant, from, n)
}

// Connection is one credential of a tool server, without the credential.
func (v View) Connection(ctx context.Context, c id.ConnectionID) (*api.Connection, error) {
	return found[api.Connection]("connection")(one[api.Connection](ctx, v, "connection", v.tenant, c))
}

// TenantWide is the newest tenant-wide connection of a server, nil when there is
// none or it has no credential.
func (v View) TenantWide(ctx context.Context, s id.ServerID) (*id.ConnectionID, error) {
	rows, err := scalars[id.ConnectionID](ctx, v, "connection_tenant_wide", v.tenant, s)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

// SealedConnection is a connection with its credential as it is stored.
type SealedConnection struct {
	ID          id.ConnectionID
	Server      id.ServerID
	Transport   tool.Transport // of the server, read together with the credential
	Endpoint    string
	Credentials vault.Sealed // ConnectionAt: exactly the text that is presented; empty: none
	UpdatedAt   time.Time
}

// SealedConnection finds a connection, nil when there is none.
func (v View) SealedConnection(ctx context.Context, c id.ConnectionID) (*SealedConnection, error) {
	return one[SealedConnection](ctx, v, "connection_sealed", v.tenant, c)
}

// ConnectionAt is the place that a connection's credential is sealed to.
func ConnectionAt(t id.TenantID, c id.ConnectionID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "connections", Row: c.String(), Column: "credentials"}
}

// credential is the text that a server of this kind is shown. The complaints
// never repeat it.
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
	case kind == tool.AuthNone: // it may take credentials one day: every kind of them is kept
		bad = append(bad, problem.Field{Path: "credentials", Message: "token or api_key is required"})
	default:
		bad = append(bad, problem.Field{Path: "credentials.token", Message: "is required"})
	}
	if len(bad) > 0 {
		return "", problem.Validation(bad...)
	}
	return text, nil
}

// presentable says that text can be sent as a header field, and arrives as it is.
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

// CreateConnection makes a connection and seals its credential.
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

// UpdateConnection changes what the patch names; a new credential takes the
// place of the old one.
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

// DeleteConnection removes a connection with its credential; one that a grant
// pins is IN_USE.
func (t *Tx) DeleteConnection(ctx context.Context, c id.ConnectionID) error {
	row, err := t.Connection(ctx, c)
	if err != nil {
		return err
	}
	// The server first, as who deletes it does: the two never wait for each other.
	if _, err := scalars[id.ServerID](ctx, t.View, "refer_server", t.tenant, row.MCPServerID); err != nil {
		return err
	}
	n, err := t.exec(ctx, "connection_delete", t.tenant, c)
	if pg.IsForeignKey(err) {
		return problem.New(problem.CodeInUse, "A tool grant pins this connection.")
	}
	if err == nil && n == 0 {
		err = problem.NotFound("connection")
	}
	if err != nil {
		return err
	}
	return t.Audit(ctx, "connection.delete", "connection", c.UUID, map[string]id.ServerID{"mcp_server_id": row.MCPServerID})
}
