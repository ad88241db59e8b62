package trigger

import (
	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/reseal"
	"agentsvc/schemas/msg"
)

// Traits describe the kind trigger. Due times of schedules are timers, so the sweep needs
// no other way to find them.
var Traits = durable.Traits{
	Name:       msg.KindTrigger,
	Sealed:     []reseal.Column{{Table: "triggers", Name: "secret", By: reseal.ByID}},
	Collectors: []prometheus.Collector{firings, skipped, failures},
}
