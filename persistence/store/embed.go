package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/embed"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

const embedKeyWord = "embed key"

// EmbedKeyFilter narrows a list of embed keys.
type EmbedKeyFilter struct {
	Agent   *id.AgentID // nil: all agents
	Revoked bool        // include revoked keys
}

// EmbedKeys returns embed keys, newest first, after at; there may be one more than limit.
func (v View) EmbedKeys(ctx context.Context, f EmbedKeyFilter, at id.EmbedKeyID, limit int) ([]api.EmbedKey, error) {
	from, n := before(at.UUID, limit)
	rows, err := listed[api.EmbedKey](ctx, v, "embed_keys", v.tenant, from, f.Agent, f.Revoked, n)
	for i := range rows {
		shownKey(&rows[i])
	}
	return rows, err
}

// EmbedKey returns one embed key, revoked ones too.
func (v View) EmbedKey(ctx context.Context, k id.EmbedKeyID) (*api.EmbedKey, error) {
	return v.embedKey(ctx, "embed_key", v.tenant, k)
}

// embedKey runs a query for one embed key; no row is NOT_FOUND.
func (v View) embedKey(ctx context.Context, query string, args ...any) (*api.EmbedKey, error) {
	row, err := found[api.EmbedKey](embedKeyWord)(one[api.EmbedKey](ctx, v, query, args...))
	if err != nil {
		return nil, err
	}
	shownKey(row)
	return row, nil
}

// shownKey replaces the nil lists of a key by empty ones.
func shownKey(k *api.EmbedKey) {
	if k.Config.StarterPrompts == nil {
		k.Config.StarterPrompts = []string{}
	}
}

// EmbedKeys looks up embed keys by id alone, across tenants: a browser's call does not name
// the tenant.
type EmbedKeys struct {
	view  View
	vault *vault.Vault
}

// NewEmbedKeys returns an EmbedKeys over a pool of the role svc_system.
func NewEmbedKeys(pool *pgxpool.Pool, v *vault.Vault) *EmbedKeys {
	return &EmbedKeys{View{q: single{pool: pool}}, v}
}

// EmbedAccess holds the fields of an embed key that decide on a visitor's call.
type EmbedAccess struct {
	Tenant           id.TenantID
	ID               id.EmbedKeyID
	Agent            id.AgentID
	AgentName        string
	AgentEmoji       string
	Hash             apikey.Hash // hash of the current value
	Origins          []string    // see embed.Allowed
	Enabled          bool
	Revoked          bool  // the key was revoked, or its agent is archived
	Generation       int64 // sessions with another generation have ended
	RateLimitPerMin  int
	IdentityRequired bool
	IdentitySecret   vault.Sealed // empty without a secret; see EmbedKeys.Open
	Theme            api.EmbedTheme
	Config           api.EmbedDisplayConfig
}

// Find returns an embed key, paused and revoked ones too; nil if the id is unknown.
func (e *EmbedKeys) Find(ctx context.Context, k id.EmbedKeyID) (*EmbedAccess, error) {
	row, err := one[struct {
		Tenant           id.TenantID
		ID               id.EmbedKeyID
		Agent            id.AgentID
		AgentName        string
		AgentEmoji       string
		Hash             []byte
		Origins          []string
		Enabled          bool
		Revoked          bool
		Generation       int64
		RateLimitPerMin  int
		IdentityRequired bool
		IdentitySecret   vault.Sealed
		Theme            api.EmbedTheme
		Config           api.EmbedDisplayConfig
	}](ctx, e.view, "embed_access", k)
	if err != nil || row == nil {
		return nil, err
	}
	a := &EmbedAccess{Tenant: row.Tenant, ID: row.ID, Agent: row.Agent, AgentName: row.AgentName, AgentEmoji: row.AgentEmoji, Origins: row.Origins,
		Enabled: row.Enabled, Revoked: row.Revoked, Generation: row.Generation, RateLimitPerMin: row.RateLimitPerMin, IdentityRequired: row.IdentityRequired,
		Theme: row.Theme, Config: row.Config}
	copy(a.Hash[:], row.Hash)
	a.IdentitySecret = row.IdentitySecret
	return a, nil
}

// Open opens the identity secret of a key, zero if it has none. Only calls with an identity
// token need it, so that a secret that fails to open breaks no other call.
func (e *EmbedKeys) Open(a *EmbedAccess) (vault.Secret, error) {
	if len(a.IdentitySecret) == 0 {
		return vault.Secret{}, nil
	}
	secret, err := e.vault.Open(identityAt(a.Tenant, a.ID), a.IdentitySecret)
	if err != nil {
		return vault.Secret{}, fmt.Errorf("open the identity secret of embed key %s: %w", a.ID, err)
	}
	return vault.NewSecret(secret), nil
}

// identityAt returns the AAD of an identity secret.
func identityAt(t id.TenantID, k id.EmbedKeyID) vault.AAD {
	return vault.AAD{Tenant: t, Table: "embed_keys", Row: k.String(), Column: "identity_secret"}
}

// newIdentitySecret returns a new identity secret and its sealed form.
func (t *Tx) newIdentitySecret(k id.EmbedKeyID) (secret string, sealed []byte, err error) {
	secret = embed.NewIdentitySecret()
	sealed, err = t.vault.Seal(identityAt(t.tenant, k), []byte(secret))
	if err != nil {
		return "", nil, fmt.Errorf("seal the identity secret of embed key %s: %w", k, err)
	}
	return secret, sealed, nil
}

// newPublishable returns a new publishable key and its hash.
func newPublishable(k id.EmbedKeyID) (key string, hash apikey.Hash, err error) {
	key = apikey.MintPublishable(k)
	_, hash, err = apikey.ParsePublishable(key)
	return key, hash, err
}

func embedNameTaken() error {
	return problem.New(problem.CodeNameTaken, "A live embed key of the agent has this name: choose another one, or revoke that key first.")
}

var noIdentitySecret = problem.Field{Path: "identity_required", Message: "needs an identity secret"}

// CreateEmbedKey creates an embed key with its publishable key and, if requested, its
// identity secret. Both are shown only now. The caller must have checked origins, theme and
// config.
func (t *Tx) CreateEmbedKey(ctx context.Context, in *api.EmbedKeyCreate) (*api.EmbedKeyCreated, error) {
	refer := &references{t: t}
	refer.require(ctx, "agent_id", "there is no such agent", "embed_key_agent", in.AgentID)
	if in.IdentityRequired && !in.WithIdentitySecret {
		refer.bad = append(refer.bad, problem.Field{Path: noIdentitySecret.Path, Message: noIdentitySecret.Message + ": set with_identity_secret as well"})
	}
	if err := refer.problem(); err != nil {
		return nil, err
	}
	enabled, rate := true, 60
	set(&enabled, in.Enabled)
	set(&rate, in.RateLimitPerMin)
	var theme api.EmbedTheme
	var config api.EmbedDisplayConfig
	set(&theme, in.Theme)
	set(&config, in.Config)
	look, says, err := displayArgs(&theme, &config)
	if err != nil {
		return nil, err
	}
	k := id.EmbedKeyID{UUID: id.NewAnywhere()}
	key, hash, err := newPublishable(k)
	if err != nil {
		return nil, err
	}
	var secret string
	var sealed []byte
	if in.WithIdentitySecret {
		if secret, sealed, err = t.newIdentitySecret(k); err != nil {
			return nil, err
		}
	}
	row, err := t.embedKey(ctx, "embed_key_insert", t.tenant, k, in.AgentID, in.Name, hash[:], apikey.PublishablePrefix(key), in.AllowedOrigins,
		enabled, rate, in.IdentityRequired, sealed, look, says)
	if pg.IsUnique(err, "embed_keys_name") {
		return nil, embedNameTaken()
	}
	if err != nil {
		return nil, fmt.Errorf("insert embed key: %w", err)
	}
	return &api.EmbedKeyCreated{EmbedKey: *row, Key: key, IdentitySecret: secret}, t.Audit(ctx, "embed_key.create", "embed_key", k.UUID, nil)
}

// displayArgs returns a theme and a config in stored form.
func displayArgs(theme *api.EmbedTheme, config *api.EmbedDisplayConfig) (look, says any, err error) {
	a, err := json.Marshal(theme)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a theme: %w", err)
	}
	b, err := json.Marshal(config)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a config: %w", err)
	}
	return jsonArg(a), jsonArg(b), nil
}

// UpdateEmbedKey changes the fields set in the patch; a revoked key is NOT_FOUND. Pausing a
// key ends its sessions. The caller must have checked origins, theme and config.
func (t *Tx) UpdateEmbedKey(ctx context.Context, k id.EmbedKeyID, in *api.EmbedKeyPatch) (*api.EmbedKey, error) {
	row, err := t.embedKey(ctx, "embed_key_lock", t.tenant, k)
	if err != nil {
		return nil, err
	}
	if in.IdentityRequired != nil && *in.IdentityRequired && !row.HasIdentitySecret {
		return nil, problem.Invalid(noIdentitySecret.Path, noIdentitySecret.Message+": make one first with POST /v1/embed-keys/{id}/identity-secret")
	}
	var detail any
	ended := 0
	if in.Enabled != nil && *in.Enabled != row.Enabled {
		detail = map[string]bool{"enabled": *in.Enabled}
		if row.Enabled {
			ended = 1
		}
	}
	set(&row.Name, in.Name)
	set(&row.AllowedOrigins, in.AllowedOrigins)
	set(&row.Enabled, in.Enabled)
	set(&row.RateLimitPerMin, in.RateLimitPerMin)
	set(&row.IdentityRequired, in.IdentityRequired)
	set(&row.Theme, in.Theme)
	set(&row.Config, in.Config)
	look, says, err := displayArgs(&row.Theme, &row.Config)
	if err != nil {
		return nil, err
	}
	row, err = t.embedKey(ctx, "embed_key_update", t.tenant, k, row.Name, row.AllowedOrigins, row.Enabled, row.RateLimitPerMin, row.IdentityRequired, look, says, ended)
	if pg.IsUnique(err, "embed_keys_name") {
		return nil, embedNameTaken()
	}
	if err != nil {
		return nil, fmt.Errorf("update embed key %s: %w", k, err)
	}
	return row, t.Audit(ctx, "embed_key.update", "embed_key", k.UUID, detail)
}

// RotateEmbedKey gives a key a new value, which ends its sessions; a revoked key is
// NOT_FOUND.
func (t *Tx) RotateEmbedKey(ctx context.Context, k id.EmbedKeyID) (*api.EmbedKeyRotated, error) {
	key, hash, err := newPublishable(k)
	if err != nil {
		return nil, err
	}
	row, err := t.embedKey(ctx, "embed_key_rotate", t.tenant, k, hash[:], apikey.PublishablePrefix(key))
	if err != nil {
		return nil, err
	}
	return &api.EmbedKeyRotated{EmbedKey: *row, Key: key}, t.Audit(ctx, "embed_key.rotate", "embed_key", k.UUID, nil)
}

// SetIdentitySecret creates or replaces a key's identity secret, which is shown only now; a
// revoked key is NOT_FOUND. Sessions continue.
func (t *Tx) SetIdentitySecret(ctx context.Context, k id.EmbedKeyID) (*api.EmbedIdentitySecret, error) {
	secret, sealed, err := t.newIdentitySecret(k)
	if err != nil {
		return nil, err
	}
	if err := t.execFound(ctx, problem.NotFound(embedKeyWord), "embed_key_identity_secret", t.tenant, k, sealed); err != nil {
		return nil, err
	}
	return &api.EmbedIdentitySecret{ID: k, IdentitySecret: secret}, t.Audit(ctx, "embed_key.identity_secret", "embed_key", k.UUID, nil)
}

// RevokeEmbedKey revokes a key. Idempotent.
func (t *Tx) RevokeEmbedKey(ctx context.Context, k id.EmbedKeyID) error {
	if live, err := t.revoke(ctx, "embed_key_revoke", embedKeyWord, k.UUID); err != nil || !live {
		return err
	}
	return t.Audit(ctx, "embed_key.revoke", "embed_key", k.UUID, nil)
}

// revokeEmbedKeys revokes the keys of an agent that is being archived, and returns them.
func (t *Tx) revokeEmbedKeys(ctx context.Context, a id.AgentID) ([]id.EmbedKeyID, error) {
	keys, err := scalars[id.EmbedKeyID](ctx, t.View, "embed_keys_revoke", t.tenant, a)
	if err != nil {
		return nil, fmt.Errorf("revoke the embed keys of agent %s: %w", a, err)
	}
	for _, k := range keys {
		if err := t.Audit(ctx, "embed_key.revoke", "embed_key", k.UUID, map[string]string{"because": "agent archived"}); err != nil {
			return nil, err
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return keys, nil
}

// ArchivedEmbedKeys returns the embed keys that ended with their agent, none if it is not
// archived.
func (v View) ArchivedEmbedKeys(ctx context.Context, a id.AgentID) ([]id.EmbedKeyID, error) {
	keys, err := scalars[id.EmbedKeyID](ctx, v, "embed_keys_archived", v.tenant, a)
	if len(keys) == 0 {
		return nil, err
	}
	return keys, err
}
