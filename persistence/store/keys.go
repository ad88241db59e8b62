package store

import (
	"context"
	"unicode/utf8"

	"agentsvc/schemas/api"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
)

func checkName(field, name string) error {
	if n := utf8.RuneCountInString(name); n < 1 || n > 120 {
		return problem.Invalid(field, "must have 1 to 120 characters")
	}
	return nil
}

// Keys returns API keys, revoked ones too, newest first, after at; there may be one more than
// limit.
func (v View) Keys(ctx context.Context, at id.KeyID, limit int) ([]api.APIKey, error) {
	from, n := before(at.UUID, limit)
	return listed[api.APIKey](ctx, v, "keys", v.tenant, from, n)
}

// KeyHash returns the hash of a live key's secret; ok is false for a key that is unknown or
// revoked.
func (v View) KeyHash(ctx context.Context, key id.KeyID) (h apikey.Hash, ok bool, err error) {
	rows, err := scalars[[]byte](ctx, v, "key_hash", v.tenant, key)
	if err != nil || len(rows) == 0 || len(rows[0]) != len(h) {
		return h, false, err
	}
	copy(h[:], rows[0])
	return h, true, nil
}

// KeyRef identifies a key.
type KeyRef struct {
	Tenant id.TenantID
	Key    id.KeyID
}

type keyHashRow struct {
	KeyRef
	SecretHash []byte
}

// KeyHashes returns the hashes of live keys of any tenants, in one query. Unknown and revoked
// keys are missing from the result.
func (d *Directory) KeyHashes(ctx context.Context, keys []KeyRef) (map[KeyRef]apikey.Hash, error) {
	tenants, ids := make([]id.TenantID, len(keys)), make([]id.KeyID, len(keys))
	for i, k := range keys {
		tenants[i], ids[i] = k.Tenant, k.Key
	}
	rows, err := all[keyHashRow](ctx, d.view, "key_hashes", tenants, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[KeyRef]apikey.Hash, len(rows))
	for _, r := range rows {
		if h := (apikey.Hash{}); len(r.SecretHash) == len(h) {
			copy(h[:], r.SecretHash)
			found[r.KeyRef] = h
		}
	}
	return found, nil
}

// CreateKey creates an API key, with its secret.
func (t *Tx) CreateKey(ctx context.Context, name string) (*api.APIKeyCreated, error) {
	return t.addKey(ctx, name, apikey.Mint(id.KeyID{UUID: id.NewAnywhere()}))
}

// addKey creates the API key for a secret that was minted before.
func (t *Tx) addKey(ctx context.Context, name, secret string) (*api.APIKeyCreated, error) {
	if err := checkName("name", name); err != nil {
		return nil, err
	}
	key, hash, err := apikey.Parse(secret)
	if err != nil {
		return nil, err
	}
	row, err := one[api.APIKey](ctx, t.View, "key_insert", t.tenant, key, name, apikey.Prefix(secret), hash[:])
	if err != nil {
		return nil, err
	}
	return &api.APIKeyCreated{APIKey: *row, Secret: secret}, t.Audit(ctx, "api_key.create", "api_key", key.UUID, nil)
}

// RenameKey renames a live key; a revoked one is NOT_FOUND.
func (t *Tx) RenameKey(ctx context.Context, key id.KeyID, name string) (*api.APIKey, error) {
	row, err := found[api.APIKey]("API key")(one[api.APIKey](ctx, t.View, "key_rename", t.tenant, key, name))
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "api_key.rename", "api_key", key.UUID, nil)
}

// RevokeKey revokes a key. Idempotent.
func (t *Tx) RevokeKey(ctx context.Context, key id.KeyID) error {
	if live, err := t.revoke(ctx, "key_revoke", "API key", key.UUID); err != nil || !live {
		return err
	}
	return t.Audit(ctx, "api_key.revoke", "api_key", key.UUID, nil)
}

// revoke revokes a key by a query, and reports whether it was live.
func (t *Tx) revoke(ctx context.Context, query, word string, key id.UUID) (live bool, err error) {
	changed, err := scalars[bool](ctx, t.View, query, t.tenant, key)
	if err == nil && len(changed) == 0 {
		err = problem.NotFound(word)
	}
	return err == nil && changed[0], err
}
