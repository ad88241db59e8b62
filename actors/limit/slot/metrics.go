package slot

import "github.com/prometheus/client_golang/prometheus"

var runsWaiting = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "svc_limit_runs_waiting", Help: "Runs that wait for one of their tenant's slots, where this node has these."})

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{runsWaiting} }
