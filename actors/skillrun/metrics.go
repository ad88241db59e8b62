package skillrun

import "github.com/prometheus/client_golang/prometheus"

var (
	ended = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_skillrun_ended_total",
		Help: "Runs of browser skills that ended, by mode (run, dry_run) and outcome: their status, or unknown_outcome.",
	}, []string{"mode", "outcome"})
	seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "svc_skillrun_seconds",
		Help:    "Time from the start of a run of a browser skill to its end, with the wait for people, by mode.",
		Buckets: []float64{1, 3, 10, 30, 100, 300, 1000, 10_000, 100_000},
	}, []string{"mode"})
	sessions = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_skillrun_sessions",
		Help: "Browser sessions of skills that have a place on this node.",
	})
	waiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_skillrun_waiting",
		Help: "Browser sessions of skills that wait for a place on this node.",
	})
)
