package api

import (
	"net/url"
	"path"
	"strings"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// UserCreate is the body of POST /v1/users.
type UserCreate struct {
	Email    string         `json:"email" minLength:"3" maxLength:"254" doc:"Unique in the tenant, whatever the case."`
	Name     string         `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	Role     lifecycle.Role `json:"role" enum:"member,admin,owner"`
	Password *string        `json:"password,omitempty" minLength:"12" maxLength:"200" doc:"Without one the user cannot log in by a password."`
}

// UserPatch is the body of PATCH /v1/users/{id}.
type UserPatch struct {
	Email    *string         `json:"email,omitempty" minLength:"3" maxLength:"254" doc:"Unique in the tenant, whatever the case."`
	Name     *string         `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	Role     *lifecycle.Role `json:"role,omitempty" enum:"member,admin,owner"`
	Password *string         `json:"password,omitempty" minLength:"12" maxLength:"200" doc:"Ends the user's sessions."`
}

// LoginLinkCreate is the body of POST /v1/users/{id}/login-link.
type LoginLinkCreate struct {
	Next string `json:"next,omitempty" maxLength:"2000" doc:"Where the link leads: a path of the console, /console or below. Omitted: its first page."`
}

// LoginLink is the response to it: a link that signs the user in, once.
type LoginLink struct {
	URL       string    `json:"url" doc:"Secret: whoever opens it first is signed in as the user. Never shown again."`
	ExpiresAt time.Time `json:"expires_at" doc:"UTC."`
}

// Home is the console's first page.
const Home = "/console/"

// CheckNext returns why a browser that was signed in must not be led to next; nil for a path of
// the console: /console or below.
func CheckNext(next string) error {
	u, err := url.Parse(next)
	switch {
	case err != nil, len(next) > 2000, !strings.HasPrefix(next, "/console"), u.IsAbs(), u.Host != "", u.User != nil,
		u.Path != "/console" && !strings.HasPrefix(u.Path, "/console/"),
		strings.ContainsFunc(next, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }),
		// Browsers resolve dots before they ask, escaped ones too.
		path.Clean(u.Path) != strings.TrimSuffix(u.Path, "/"), strings.ContainsAny(u.Path, "\\\x00"):
		return problem.Invalid("next", "must be a path of the console: /console or below")
	}
	return nil
}

// OrgNode is a node of the tenant's organisation.
type OrgNode struct {
	ID         id.NodeID   `json:"id" doc:"The id, a version 7 UUID."`
	Name       string      `json:"name" doc:"For people."`
	ParentID   *id.NodeID  `json:"parent_id" doc:"The node above; null: none."`
	ManagerIDs []id.UserID `json:"manager_ids" doc:"Users with the role manager on this node and all below it."`
	CreatedAt  time.Time   `json:"created_at" doc:"UTC."`
	UpdatedAt  time.Time   `json:"updated_at" doc:"UTC."`
}

// OrgNodeCreate is the body of POST /v1/org-nodes.
type OrgNodeCreate struct {
	Name     string     `json:"name" minLength:"1" maxLength:"120" doc:"For people."`
	ParentID *id.NodeID `json:"parent_id,omitempty" nullable:"true" doc:"The node above."`
}

// OrgNodePatch is the body of PATCH /v1/org-nodes/{id}.
type OrgNodePatch struct {
	Name     *string        `json:"name,omitempty" minLength:"1" maxLength:"120" doc:"For people."`
	ParentID Opt[id.NodeID] `json:"parent_id,omitzero" doc:"The node above; null: none."`
}

// Login is the body of POST /v1/auth/login.
type Login struct {
	Email    string       `json:"email" minLength:"1" maxLength:"254" doc:"In any case."`
	Password string       `json:"password" minLength:"1" maxLength:"1000" doc:"The user's password."`
	TenantID *id.TenantID `json:"tenant_id,omitempty" doc:"Needed only where e-mail and password fit users of several tenants."`
}

// LoggedIn is the response of POST /v1/auth/login; the session is in the cookie.
type LoggedIn struct {
	User   *User   `json:"user" null:"false"`
	Tenant *Tenant `json:"tenant" null:"false"`
}

// PasswordChange is the body of POST /v1/auth/password.
type PasswordChange struct {
	Current string `json:"current" minLength:"1" maxLength:"1000" doc:"The password so far."`
	New     string `json:"new" minLength:"12" maxLength:"200" doc:"The password from now on."`
}
