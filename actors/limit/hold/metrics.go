package hold

import "github.com/prometheus/client_golang/prometheus"

var healed = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "svc_limit_healed_total", Help: "Holders whose release was lost and that were removed by a check."})

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{healed} }
