package cluster

import (
	"errors"

	"agentsvc/schemas/id"
)

// Address names an actor: its kind, the tenant it belongs to, and its id there.
type Address struct {
	Kind   string
	Tenant id.TenantID
	ID     id.UUID
}

// String is kind/tenant/id, for logs.
func (a Address) String() string {
	return a.Kind + "/" + a.Tenant.String() + "/" + a.ID.String()
}

// Shard is the shard of the actor.
func (a Address) Shard() id.Shard { return a.ID.Shard() }

// Replies that make Ask send again.
var (
	// ErrMoved says that another activation owns the address; nothing was done.
	ErrMoved = errors.New("cluster: another activation owns the address")
	// ErrNotOwner says that the node that got the message does not own its shard.
	ErrNotOwner = errors.New("cluster: the node does not own the shard")
	// ErrUnknownMember says that the owner cannot be reached from here.
	ErrUnknownMember = errors.New("cluster: the owner is not known here")
	// ErrLost says that the connection to the owner broke while the message was in flight.
	// It may have been received; only a Repeatable message is sent again.
	ErrLost = errors.New("cluster: the connection to the owner was lost")
)

// Failures that are final.
var (
	// ErrUnknownKind says that the address's kind, or a service, is not registered.
	ErrUnknownKind = errors.New("cluster: unknown kind")
	// ErrPanicked says that the actor panicked on the message and was stopped.
	ErrPanicked = errors.New("cluster: the actor panicked")
)

// retried reports whether an Ask of msg that failed with err is sent again.
func retried(err error, msg any) bool {
	if errors.Is(err, ErrLost) {
		_, ok := msg.(Repeatable)
		return ok
	}
	return errors.Is(err, ErrMoved) || errors.Is(err, ErrNotOwner) || errors.Is(err, ErrUnknownMember)
}
