package cluster

import (
	"sync"
	"sync/atomic"

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
		Help: "Messages on which an actor, or a service of the node, panicked.",
	}, []string{"kind"})
	drops = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_cluster_dropped_total",
		Help: "Told messages that neither this node nor another one could take.",
	}, []string{"kind"})
	depths = newKindCollector("svc_cluster_mailbox_messages", "Messages that wait in mailboxes of this node.")
	actors = newKindCollector("svc_cluster_actors", "Activations that live on this node.")
)

// kindCollector exports a number for each registered kind, also where it is 0. A change
// costs an atomic addition.
type kindCollector struct {
	desc  *prometheus.Desc
	kinds sync.Map // string -> *atomic.Int64
}

func newKindCollector(name, help string) *kindCollector {
	c := &kindCollector{desc: prometheus.NewDesc(name, help, []string{"kind"}, nil)}
	prometheus.MustRegister(c)
	return c
}

// of returns the number of a kind.
func (c *kindCollector) of(kind string) *atomic.Int64 {
	v, _ := c.kinds.LoadOrStore(kind, new(atomic.Int64))
	return v.(*atomic.Int64)
}

// Describe is called by the registry.
func (c *kindCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect is called by the registry.
func (c *kindCollector) Collect(out chan<- prometheus.Metric) {
	c.kinds.Range(func(kind, v any) bool {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(v.(*atomic.Int64).Load()), kind.(string))
		return true
	})
}
