package workflow

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/engine"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/msg"
)

// Traits describe the kind workflow. The sealed values of its steps are those of the kind run:
// they share the column.
var Traits = durable.Traits{
	Name:   msg.KindWorkflow,
	Tables: slices.Concat(engine.Tables, engine.WorkflowTables),
	Checks: feed.WorkflowChecks,
	Work:   &feed.Work{Find: feed.Where("workflow_runs", "owes")},
	Messages: []msg.Type{
		msg.Of[msg.StartWorkflow]("start_workflow"), msg.Of[msg.InjectEvent]("inject_event"), msg.Of[msg.ChildChanged]("child_changed"),
	},
	Collectors: []prometheus.Collector{nodesEnded, slowWalks},
}
