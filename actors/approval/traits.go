package approval

import (
	"agentsvc/actors/durable"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/msg"
)

// Traits describe the kind approval.
var Traits = durable.Traits{
	Name:     msg.KindApproval,
	Tables:   engine.Tables,
	Checks:   feed.ApprovalChecks,
	Messages: []msg.Type{msg.Of[msg.Decide]("decide"), msg.Of[msg.Decided]("decided")},
	Sealed:   []reseal.Column{{Table: "approvals", Name: "frozen", By: reseal.ByID}, {Table: "approvals", Name: "edited", By: reseal.ByID}},
}
