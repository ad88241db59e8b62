package rollup

import "github.com/prometheus/client_golang/prometheus"

var (
	folded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_rollup_tallies_total", Help: "Ends of runs, approvals and deliveries added to the figures."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_rollup_failures_total", Help: "Failed passes over new figures; they are repeated."})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{folded, failures} }
