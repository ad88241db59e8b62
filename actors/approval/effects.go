package approval

import (
	"context"
	"encoding/json"

	"agentsvc/cluster"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/vault"
	"agentsvc/schemas/id"
	"agentsvc/schemas/tool"
)

// An approval has no effects: it waits for people. These are the interfaces that the
// kind uses.

// Store reads an approval's row.
type Store interface {
	// Approval returns the row with the status of its run; nil if the tenant has none.
	Approval(ctx context.Context, tenant id.TenantID, approval id.ApprovalID) (*engine.Approval, error)
}

// Vault opens the frozen arguments and seals the edited ones.
type Vault interface {
	Open(place vault.AAD, sealed vault.Sealed) ([]byte, error)
	Seal(place vault.AAD, plain []byte) (vault.Sealed, error)
}

// Skills checks edited arguments of browser skills (toolbox.Toolbox).
type Skills interface {
	// CheckSkillEdit returns why a run does not accept edited arguments, empty if it does. The
	// error is the storage's.
	CheckSkillEdit(ctx context.Context, tenant id.TenantID, run id.SkillRunID, args json.RawMessage) (reason string, err error)
}

// Secrets takes credentials out of what is shown (toolbox.Toolbox).
type Secrets interface {
	// ShowEdit returns edited arguments as they are shown: without the values of secret keys, and
	// without the credentials of the connections that the agent or the workflow may use. The
	// error is the storage's.
	ShowEdit(ctx context.Context, by tool.Caller, args json.RawMessage) (json.RawMessage, error)
}

// Teller tells an actor something (cluster.Node). It does not block.
type Teller interface {
	Tell(a cluster.Address, message any)
}
