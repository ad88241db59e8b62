package cluster

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

var (
	retries = promauto.NewCounter(prometheus.CounterOpts{
		Name: "svc_cluster_ask_retries_total",
		Help: "Asks sent again because the address was on the move.",
	})
	placementMoves = promauto.NewCounter(prometheus.CounterOpts{
		Name: "svc_cluster_shards_gained_total",
		Help: "Shards that this node came to own by a change of the member list.",
	})
	panics = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_cluster_actor_panics_total",
		Help: "Messages on which an actor panicked.",
	}, []string{"kind"})
)
