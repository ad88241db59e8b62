package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// Lifetimes of sessions and login links (open-parts.md, Org nodes, users, sessions).
const (
	SessionIdle = 12 * time.Hour
	SessionLife = 7 * 24 * time.Hour
	LinkLife    = 15 * time.Minute
)

// Token is the content of a session's cookie or a login link. Only the hash of its secret is
// stored.
type Token struct {
	Tenant id.TenantID
	ID     id.UUID
	secret [32]byte
}

// tokenText is the length of a token's text.
const tokenText = (16 + 16 + 32) * 8 / 6 // two bits remain

func mintToken(t id.TenantID) Token {
	k := Token{Tenant: t, ID: id.NewAnywhere()}
	rand.Read(k.secret[:])
	return k
}

// Text returns the token as it stands in a cookie or a path.
func (k Token) Text() string {
	var b [64]byte
	copy(b[:], k.Tenant.UUID[:])
	copy(b[16:], k.ID[:])
	copy(b[32:], k.secret[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// String keeps the secret out of logs.
func (k Token) String() string { return "[redacted]" }

// ParseToken parses exactly the output of Text.
func ParseToken(text string) (k Token, ok bool) {
	if len(text) != tokenText+1 {
		return Token{}, false
	}
	var b [64]byte
	if n, err := base64.RawURLEncoding.Strict().Decode(b[:], []byte(text)); err != nil || n != len(b) {
		return Token{}, false
	}
	copy(k.Tenant.UUID[:], b[:16])
	copy(k.ID[:], b[16:32])
	copy(k.secret[:], b[32:])
	return k, true
}

// Hash returns the stored hash of the token's secret.
func (k Token) Hash() [32]byte { return sha256.Sum256(k.secret[:]) }

// Fits compares hash with the hash of the token's secret, in constant time.
func (k Token) Fits(hash []byte) bool {
	own := k.Hash()
	return subtle.ConstantTimeCompare(own[:], hash) == 1
}

// Session is a console session, with its user's current role.
type Session struct {
	User       id.UserID
	Role       lifecycle.Role
	SecretHash []byte
	CreatedAt  time.Time
	UsedAt     time.Time
}

// Until returns when the session ends unless it is used again.
func (s *Session) Until() time.Time {
	idle, old := s.UsedAt.Add(SessionIdle), s.CreatedAt.Add(SessionLife)
	if old.Before(idle) {
		return old
	}
	return idle
}

// Session returns a session, also one that expired; nil if there is none.
func (v View) Session(ctx context.Context, s id.SessionID) (*Session, error) {
	return one[Session](ctx, v, "session", v.tenant, s)
}

// SessionRef identifies a session.
type SessionRef struct {
	Tenant id.TenantID
	ID     id.SessionID
}

type sessionRow struct {
	SessionRef
	Session
}

// Sessions returns sessions of any tenants, in one query. Sessions that do not exist are
// missing from the result.
func (d *Directory) Sessions(ctx context.Context, sessions []SessionRef) (map[SessionRef]*Session, error) {
	tenants, ids := make([]id.TenantID, len(sessions)), make([]id.SessionID, len(sessions))
	for i, s := range sessions {
		tenants[i], ids[i] = s.Tenant, s.ID
	}
	rows, err := all[sessionRow](ctx, d.view, "sessions", tenants, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[SessionRef]*Session, len(rows))
	for i := range rows {
		found[rows[i].SessionRef] = &rows[i].Session
	}
	return found, nil
}

// UseSession records that a session was used.
func (s *Store) UseSession(ctx context.Context, t id.TenantID, session id.SessionID, at time.Time) error {
	return s.Change(ctx, By{Tenant: t}, func(ctx context.Context, tx *Tx) ([]byte, error) {
		_, err := tx.exec(ctx, "session_use", t, session, at)
		return nil, err
	})
}

// CreateSession begins a session of a user. If hash is given, the user's password must still
// have that hash; ok is false if it has not, or if the user no longer exists. how is the
// login method.
func (t *Tx) CreateSession(ctx context.Context, u id.UserID, hash *string, how string, now time.Time) (k Token, ok bool, err error) {
	k = mintToken(t.tenant)
	own := k.Hash()
	n, err := t.exec(ctx, "session_insert", t.tenant, u, k.ID, own[:], now, hash)
	if err != nil {
		return Token{}, false, fmt.Errorf("insert session: %w", err)
	}
	if n == 0 {
		return Token{}, false, nil
	}
	return k, true, t.Audit(ctx, "auth.login", "user", u.UUID, map[string]string{"method": how})
}

// EndSession ends one session of a user.
func (t *Tx) EndSession(ctx context.Context, s id.SessionID, u id.UserID) error {
	n, err := t.exec(ctx, "session_delete", t.tenant, s)
	if err != nil || n == 0 {
		return err
	}
	return t.Audit(ctx, "auth.logout", "user", u.UUID, nil)
}

func (t *Tx) endSessions(ctx context.Context, u id.UserID) error {
	if _, err := t.exec(ctx, "sessions_delete", t.tenant, u); err != nil {
		return fmt.Errorf("delete sessions: %w", err)
	}
	if _, err := t.exec(ctx, "links_delete", t.tenant, u); err != nil {
		return fmt.Errorf("delete login links: %w", err)
	}
	return nil
}

// CreateLink creates a one-time login link for the user with that e-mail.
func (t *Tx) CreateLink(ctx context.Context, email string) (k Token, expires time.Time, err error) {
	u, err := found[api.User]("user")(one[api.User](ctx, t.View, "user_by_email", t.tenant, email))
	if err != nil {
		return Token{}, time.Time{}, err
	}
	if k, expires, err = t.newLink(ctx, u.ID); err != nil {
		return Token{}, time.Time{}, err
	}
	return k, expires, t.Audit(ctx, "login_link.create", "user", u.ID.UUID, nil)
}

func (t *Tx) newLink(ctx context.Context, u id.UserID) (k Token, expires time.Time, err error) {
	k = mintToken(t.tenant)
	hash := k.Hash()
	rows, err := scalars[time.Time](ctx, t.View, "link_insert", t.tenant, k.ID, u, hash[:], LinkLife)
	if err != nil {
		return Token{}, time.Time{}, fmt.Errorf("insert login link: %w", err)
	}
	return k, rows[0], nil
}

// CreateLinkFor creates a one-time login link of another person: for members an admin may, for
// everybody an owner (open-parts.md, Console).
func (t *Tx) CreateLinkFor(ctx context.Context, u id.UserID, caller lifecycle.Role) (k Token, expires time.Time, err error) {
	// The lock makes a change of the user's role wait; it deletes the link then.
	user, err := t.lockUser(ctx, u, caller, func(role lifecycle.Role) lifecycle.Role { return role })
	if err == nil && user.Role != lifecycle.RoleMember && caller != lifecycle.RoleOwner {
		err = problem.New(problem.CodeForbidden, "An admin makes login links for members; for admins and owners an owner does.")
	}
	if err != nil {
		return Token{}, time.Time{}, err
	}
	if k, expires, err = t.newLink(ctx, u); err != nil {
		return Token{}, time.Time{}, err
	}
	return k, expires, t.Audit(ctx, "user.login_link", "user", u.UUID, nil)
}

// LinkURL returns the address of a one-time login link that leads to next; "" means the console's
// first page.
func LinkURL(public string, k Token, next string) string {
	link := strings.TrimSuffix(public, "/") + "/login/" + k.Text()
	if next != "" {
		link += "?next=" + url.QueryEscape(next)
	}
	return link
}

type link struct {
	User       id.UserID
	SecretHash []byte
	ExpiresAt  time.Time
}

func (l *link) usable(k Token, now time.Time) bool {
	return l != nil && k.Fits(l.SecretHash) && now.Before(l.ExpiresAt)
}

// LinkUsable reports whether a login link can still be used.
func (v View) LinkUsable(ctx context.Context, k Token, now time.Time) (bool, error) {
	l, err := one[link](ctx, v, "link", v.tenant, k.ID)
	return l.usable(k, now), err
}

// UseLink uses a login link and begins a session of its user; ok is false for a link that was
// used, has expired or never existed.
func (t *Tx) UseLink(ctx context.Context, k Token, now time.Time) (session Token, ok bool, err error) {
	l, err := one[link](ctx, t.View, "link_lock", t.tenant, k.ID)
	if err != nil || !l.usable(k, now) {
		return Token{}, false, err
	}
	if _, err := t.exec(ctx, "link_delete", t.tenant, k.ID); err != nil {
		return Token{}, false, fmt.Errorf("delete login link: %w", err)
	}
	t.by.Actor = "user:" + l.User.String()
	return t.CreateSession(ctx, l.User, nil, "link", now)
}

// LoginFailed records a failed login of the user u of by.Tenant.
func (s *Store) LoginFailed(ctx context.Context, by By, u id.UserID) error {
	by.Actor = msg.System
	return s.Change(ctx, by, func(ctx context.Context, tx *Tx) ([]byte, error) {
		return nil, tx.Audit(ctx, "auth.login_failed", "user", u.UUID, nil)
	})
}
