package store

import (
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// LoginUser is a user of some tenant as a login needs it.
type LoginUser struct {
	Tenant       id.TenantID
	ID           id.UserID
	Role         lifecycle.Role
	PasswordHash string
}
