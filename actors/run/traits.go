package run

import (
	"agentsvc/actors/durable"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/msg"
)

// Traits describe the kind run.
var Traits = durable.Traits{
	Name:   msg.KindRun,
	Tables: engine.Tables,
	Work:   &feed.Work{Find: feed.OpenRuns, Through: msg.KindThread},
	Erase:  feed.PersonalRuns,
	Checks: feed.RunChecks,
	Messages: []msg.Type{
		msg.Of[msg.StartOne]("start_one"), msg.Of[msg.Started]("started"), msg.Of[msg.Proceed]("proceed"),
		msg.Of[msg.CancelRun]("cancel_run"), msg.Of[msg.Status]("status"), msg.Of[msg.ApprovalsDecided]("approvals_decided"),
	},
	Sealed: []reseal.Column{{Table: "run_steps", Name: "sealed", By: reseal.Key{reseal.UUIDPart("run_id"), reseal.IntPart("idx")}}},
}
