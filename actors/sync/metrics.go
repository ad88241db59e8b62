package sync

import "github.com/prometheus/client_golang/prometheus"

var (
	syncs = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_sync_ended_total",
		Help: "Syncs of knowledge sources that ended, by outcome: ok or failed.",
	}, []string{"outcome"})
	documents = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_sync_documents_total",
		Help: "Documents that syncs of knowledge sources met, by result: unchanged, fetched, failed (for good), unread (tried again by the next sync) or deleted.",
	}, []string{"result"})
	running = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_sync_running",
		Help: "Syncs of knowledge sources that have a place on this node.",
	})
	waiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_sync_waiting",
		Help: "Syncs of knowledge sources that wait for a place on this node.",
	})
)
