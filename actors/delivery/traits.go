package delivery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/durable"
	"agentsvc/persistence/feed"
	"agentsvc/schemas/msg"
)

// Traits describe the kind delivery.
var Traits = durable.Traits{
	Name: msg.KindDelivery,
	// The actor is the endpoint. A pass looks at all endpoints with something pending, so it
	// costs by the endpoint, however many deliveries there are.
	Work:       &feed.Work{Find: feed.DueEndpoints, Every: time.Second, Page: 1000, Pages: 4, Wakes: 4000},
	Keep:       feed.OldDeliveries,
	Collectors: []prometheus.Collector{endpoints, turnFailures, unsettled, loadFailures},
}
