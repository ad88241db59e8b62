package notice

import (
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// Service is the name under which boards call each other.
const Service = "notice"

type (
	// Watch asks a board for the changes of tenants, until it is repeated or watchLife has
	// passed. It replaces the sender's last Watch. The answer is msg.Done.
	Watch struct {
		// Number orders the sender's Watches: one whose answer was late may arrive after the next
		// one. 0: of an older build, taken as it comes.
		Number  uint64        `json:"number,omitempty"`
		Tenants []id.TenantID `json:"tenants"`
	}
	// Hints are the changes of tenants that the receiver watches. The answer is msg.Done.
	Hints struct {
		Tenants []Hint `json:"tenants"`
	}
	// Hint is the changes of one tenant.
	Hint struct {
		Tenant  id.TenantID  `json:"tenant"`
		Changes []msg.Change `json:"changes,omitempty"`
		Lost    Topics       `json:"lost,omitempty"` // topics with changes that were left out
		// Managers means that the managers of org nodes may have changed.
		Managers bool `json:"managers,omitempty"`
	}
)

// AddTo lets the messages cross nodes.
func AddTo(c *msg.Codec) {
	c.Add("notice_watch", Watch{})
	c.Add("notice_hints", Hints{})
}
