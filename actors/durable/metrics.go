package durable

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

var (
	activations = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Name: "svc_durable_activations",
		Help: "Activations in memory.",
	}, []string{"kind"})
	decisions = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_durable_decisions_total",
		Help: "Messages by kind and outcome.",
	}, []string{"kind", "outcome"})
	conflicts = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_durable_conflicts_total",
		Help: "Commits lost to another activation.",
	}, []string{"kind"})
	effectSeconds = promauto.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "svc_durable_effect_seconds",
		Help:    "Duration of effects.",
		Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 60, 300},
	}, []string{"kind"})
)

// kindMetrics are the metrics of one kind, looked up once.
type kindMetrics struct {
	activations   prometheus.Gauge
	conflicts     prometheus.Counter
	effectSeconds prometheus.Observer
	outcomes      map[string]prometheus.Counter
}

func metricsOf(kind string) kindMetrics {
	m := kindMetrics{
		activations:   activations.WithLabelValues(kind),
		conflicts:     conflicts.WithLabelValues(kind),
		effectSeconds: effectSeconds.WithLabelValues(kind),
		outcomes:      map[string]prometheus.Counter{},
	}
	for _, o := range []string{"committed", "remembered", "unchanged", "asked", "repeated", "refused", "replayed", "withdrawn", "conflict", "unavailable", "absent", "refused_by_storage", "elsewhere", "other"} {
		m.outcomes[o] = decisions.WithLabelValues(kind, o)
	}
	return m
}

func (m kindMetrics) decided(outcome string) { m.outcomes[outcome].Inc() }
