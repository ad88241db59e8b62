package trigger

import (
	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/journal"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/msg"
)

// Traits describe the kind trigger. It needs no Work: due times are timers, which the sweep
// finds.
var Traits = durable.Traits{
	Name:       msg.KindTrigger,
	Tables:     []*journal.Table{triggers},
	Sealed:     []reseal.Column{{Table: "triggers", Name: "secret", By: reseal.ByID}},
	Collectors: []prometheus.Collector{firings, skipped, failures},
}
