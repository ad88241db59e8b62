package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/vault"
	"agentsvc/schemas/api"
	"agentsvc/schemas/apikey"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// SystemStore is a Store that sees every tenant. Only management commands may use it.
type SystemStore struct{ Store }

// System returns a SystemStore over a pool of the role svc_system.
func System(pool *pgxpool.Pool, v *vault.Vault) *SystemStore { return &SystemStore{*New(pool, v)} }

// NewTenant describes a tenant to create.
type NewTenant struct {
	ID           id.TenantID // zero: a new id
	Secret       string      // of the first API key, as apikey.Mint makes it; empty: a new one
	Name         string
	OwnerEmail   string
	OwnerName    string
	PasswordHash *string // of the owner, argon2id; nil: the owner cannot sign in
	KeyName      string
}

// Created is the result of CreateTenant. Secret is shown once.
type Created struct {
	Tenant id.TenantID
	Owner  id.UserID
	Key    id.KeyID
	Secret string
}

// CreateTenant creates a tenant with its owner and a first API key, all or nothing.
func (s *SystemStore) CreateTenant(ctx context.Context, n NewTenant) (*Created, error) {
	c := &Created{Tenant: n.ID}
	if c.Tenant.IsZero() {
		c.Tenant = id.TenantID{UUID: id.NewAnywhere()}
	}
	if n.Secret == "" {
		n.Secret = apikey.Mint(id.KeyID{UUID: id.NewAnywhere()})
	}
	by := By{Tenant: c.Tenant, Actor: msg.System}
	err := s.Change(ctx, by, func(ctx context.Context, tx *Tx) ([]byte, error) {
		if err := checkName("name", n.Name); err != nil {
			return nil, err
		}
		if _, err := tx.exec(ctx, "tenant_insert", c.Tenant, n.Name); err != nil {
			return nil, err
		}
		if err := tx.Audit(ctx, "tenant.create", "tenant", c.Tenant.UUID, nil); err != nil {
			return nil, err
		}
		u, err := tx.CreateUser(ctx, NewUser{n.OwnerEmail, n.OwnerName, lifecycle.RoleOwner, n.PasswordHash})
		if err != nil {
			return nil, err
		}
		key, err := tx.addKey(ctx, n.KeyName, n.Secret)
		if err != nil {
			return nil, err
		}
		c.Owner, c.Key, c.Secret = u.ID, key.ID, key.Secret
		return nil, nil
	})
	return c, err
}

// EnsureTenant creates what is missing of a tenant with the given ID and Secret, and reports
// whether it created the tenant. It is idempotent: a caller that stores both before the call
// ends up with one tenant and one key, whatever happens. A revoked key stays revoked.
func (s *SystemStore) EnsureTenant(ctx context.Context, n NewTenant) (made bool, err error) {
	key, _, err := apikey.Parse(n.Secret)
	if err != nil {
		return false, err
	}
	switch _, err := s.View(n.ID).Tenant(ctx); {
	case errors.Is(err, problem.New(problem.CodeNotFound, "")):
		_, err := s.CreateTenant(ctx, n)
		return err == nil, err
	case err != nil:
		return false, err
	}
	keys, err := s.View(n.ID).Keys(ctx, id.KeyID{}, All)
	if err != nil || slices.ContainsFunc(keys, func(k api.APIKey) bool { return k.ID == key }) {
		return false, err
	}
	return false, s.Change(ctx, By{Tenant: n.ID, Actor: msg.System}, func(ctx context.Context, tx *Tx) ([]byte, error) {
		_, err := tx.addKey(ctx, n.KeyName, n.Secret)
		return nil, err
	})
}

// Tenants returns every tenant, oldest first.
func (s *SystemStore) Tenants(ctx context.Context) ([]api.Tenant, error) {
	return all[api.Tenant](ctx, s.View(id.TenantID{}), "tenants")
}

// Tenant returns the tenant of the view.
func (v View) Tenant(ctx context.Context) (*api.Tenant, error) {
	return found[api.Tenant]("tenant")(one[api.Tenant](ctx, v, "tenant", v.tenant))
}

// UpdateTenant changes the fields set in the patch.
func (t *Tx) UpdateTenant(ctx context.Context, p *api.TenantPatch) (*api.Tenant, error) {
	old, err := found[api.Tenant]("tenant")(one[api.Tenant](ctx, t.View, "tenant_lock", t.tenant))
	if err != nil {
		return nil, err
	}
	name := old.Name
	set(&name, p.Name)
	var residency any
	if r := p.Residency.OrPtr(old.Residency); r != nil {
		doc, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		residency = string(doc)
	}
	row, err := found[api.Tenant]("tenant")(one[api.Tenant](ctx, t.View, "tenant_update", t.tenant, name, residency))
	if err != nil {
		return nil, err
	}
	return row, t.Audit(ctx, "tenant.update", "tenant", t.tenant.UUID, nil)
}
