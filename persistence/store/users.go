package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/persistence/pg"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// NewUser describes a user to create.
type NewUser struct {
	Email, Name  string
	Role         lifecycle.Role
	PasswordHash *string
}

// UserChange is a change of a user; nil leaves a field as it is.
type UserChange struct {
	Email, Name  *string
	Role         *lifecycle.Role
	PasswordHash *string
}

func checkEmail(email string) error {
	if at := strings.IndexByte(email, '@'); at < 1 || at == len(email)-1 || len(email) > 254 || strings.ContainsAny(email, " \t\r\n\x00") {
		return problem.Invalid("email", "must be an e-mail address")
	}
	return nil
}

func emailTaken() error {
	return problem.New(problem.CodeEmailTaken, "A user of this tenant has this e-mail address.")
}

// CreateUser creates a user; a taken e-mail is EMAIL_TAKEN.
func (t *Tx) CreateUser(ctx context.Context, n NewUser) (*api.User, error) {
	if err := checkEmail(n.Email); err != nil {
		return nil, err
	}
	row, err := one[api.User](ctx, t.View, "user_insert", t.tenant, id.UserID{UUID: id.NewAnywhere()}, n.Email, n.Name, string(n.Role), n.PasswordHash)
	if pg.IsUnique(err, "users_email_key") {
		return nil, emailTaken()
	}
	if err != nil {
		return nil, fmt.Errorf("insert user: %w", err)
	}
	return row, t.Audit(ctx, "user.create", "user", row.ID.UUID, map[string]any{"role": n.Role})
}

// User returns one user of the tenant.
func (v View) User(ctx context.Context, u id.UserID) (*api.User, error) {
	return found[api.User]("user")(one[api.User](ctx, v, "user", v.tenant, u))
}

// Users returns the users of the tenant, newest first, after at; there may be one more than
// limit.
func (v View) Users(ctx context.Context, at id.UserID, limit int) ([]api.User, error) {
	from, n := before(at.UUID, limit)
	return listed[api.User](ctx, v, "users", v.tenant, from, n)
}

// onlyOwners is the error for a caller that may not change an owner.
func onlyOwners() error {
	return problem.New(problem.CodeForbidden, "Only an owner makes, changes or removes an owner.")
}

// MayMake returns FORBIDDEN if a caller with the first role may not create a user with the
// second.
func MayMake(caller, role lifecycle.Role) error {
	if role == lifecycle.RoleOwner && caller != lifecycle.RoleOwner {
		return onlyOwners()
	}
	return nil
}

// lockUser reads and locks a user for a change by a caller of that role. next returns the
// user's new role, none for a removal. Other changes of owners wait.
func (t *Tx) lockUser(ctx context.Context, u id.UserID, caller lifecycle.Role, next func(lifecycle.Role) lifecycle.Role) (*api.User, error) {
	rows, err := all[api.User](ctx, t.View, "users_lock", t.tenant, u)
	if err != nil {
		return nil, err
	}
	var user *api.User
	owners := 0
	for i := range rows {
		if rows[i].ID == u {
			user = &rows[i]
		}
		if rows[i].Role == lifecycle.RoleOwner {
			owners++
		}
	}
	if user == nil {
		return nil, problem.NotFound("user")
	}
	to := next(user.Role)
	if (user.Role == lifecycle.RoleOwner || to == lifecycle.RoleOwner) && caller != lifecycle.RoleOwner {
		return nil, onlyOwners()
	}
	if user.Role == lifecycle.RoleOwner && to != lifecycle.RoleOwner && owners == 1 {
		return nil, problem.New(problem.CodeLastOwner, "A tenant keeps at least one owner.")
	}
	return user, nil
}

// UpdateUser changes a user on behalf of a caller of that role. A new password ends the
// user's sessions and login links, a new role the login links.
func (t *Tx) UpdateUser(ctx context.Context, u id.UserID, caller lifecycle.Role, c UserChange) (*api.User, error) {
	if c.Email != nil {
		if err := checkEmail(*c.Email); err != nil {
			return nil, err
		}
	}
	old, err := t.lockUser(ctx, u, caller, func(role lifecycle.Role) lifecycle.Role {
		if c.Role != nil {
			return *c.Role
		}
		return role
	})
	if err != nil {
		return nil, err
	}
	var changed []string
	email, name, role := old.Email, old.Name, old.Role
	if c.Email != nil {
		email, changed = *c.Email, append(changed, "email")
	}
	if c.Name != nil {
		name, changed = *c.Name, append(changed, "name")
	}
	if c.Role != nil {
		role, changed = *c.Role, append(changed, "role")
		if role != old.Role { // a link that was made for the old role must not open the new one
			if _, err := t.exec(ctx, "links_delete", t.tenant, u); err != nil {
				return nil, fmt.Errorf("delete login links: %w", err)
			}
		}
	}
	if c.PasswordHash != nil {
		changed = append(changed, "password")
		if err := t.endSessions(ctx, u); err != nil {
			return nil, err
		}
	}
	row, err := one[api.User](ctx, t.View, "user_update", t.tenant, u, email, name, string(role), c.PasswordHash)
	if pg.IsUnique(err, "users_email_key") {
		return nil, emailTaken()
	}
	if err != nil {
		return nil, fmt.Errorf("update user: %w", err)
	}
	return row, t.Audit(ctx, "user.update", "user", u.UUID, map[string]any{"changed": changed, "role": role})
}

// DeleteUser deletes a user on behalf of a caller of that role, with all sessions, login
// links and manager roles.
func (t *Tx) DeleteUser(ctx context.Context, u id.UserID, caller lifecycle.Role) error {
	if _, err := t.lockUser(ctx, u, caller, func(lifecycle.Role) lifecycle.Role { return "" }); err != nil {
		return err
	}
	if _, err := t.exec(ctx, "user_delete", t.tenant, u); err != nil {
		return fmt.Errorf("delete user: %w", err)
	}
	return t.Audit(ctx, "user.delete", "user", u.UUID, nil)
}

// PasswordHash returns the hash of a user's password, nil if there is none.
func (v View) PasswordHash(ctx context.Context, u id.UserID) (*string, error) {
	rows, err := scalars[*string](ctx, v, "user_password", v.tenant, u)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return rows[0], nil
}

// SetPassword changes the password of a user whose hash is still old, and ends the user's
// sessions and login links; ok is false if it is not.
func (t *Tx) SetPassword(ctx context.Context, u id.UserID, old, hash string) (ok bool, err error) {
	n, err := t.exec(ctx, "user_password_set", t.tenant, u, hash, old)
	if err != nil || n == 0 {
		return false, err
	}
	if err := t.endSessions(ctx, u); err != nil {
		return false, err
	}
	return true, t.Audit(ctx, "user.update", "user", u.UUID, map[string]any{"changed": []string{"password"}})
}

// LoginUser holds the fields of a user that a login needs.
type LoginUser struct {
	Tenant       id.TenantID
	ID           id.UserID
	Role         lifecycle.Role
	PasswordHash string
}

// Directory reads across tenants, for callers that are not authenticated yet: users by
// e-mail, for a login without a tenant, and keys and sessions by id, in batches.
type Directory struct{ view View }

// NewDirectory returns a Directory over a pool of the role svc_system.
func NewDirectory(pool *pgxpool.Pool) *Directory {
	return &Directory{View{q: single{pool: pool}}}
}

// Find returns the users with this e-mail, in any case, that can log in with a password.
func (d *Directory) Find(ctx context.Context, email string) ([]LoginUser, error) {
	return all[LoginUser](ctx, d.view, "users_login", email)
}
