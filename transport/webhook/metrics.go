package webhook

import "github.com/prometheus/client_golang/prometheus"

var (
	attempts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_webhook_attempts_total",
		Help: "Attempts by outcome: succeeded, status, redirect, timeout, refused, unreachable, tls, malformed, broken, cut (sent, and the node ended) or unsent.",
	}, []string{"outcome"})
	seconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "svc_webhook_attempt_seconds",
		Help:    "Duration of an attempt, to the head of the response or the failure.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	})
	inFlight = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_webhook_attempts_in_flight",
		Help: "Attempts in flight.",
	})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{attempts, seconds, inFlight} }
