package hold

import "github.com/prometheus/client_golang/prometheus"

var healed = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "svc_limit_healed_total", Help: "Holders that nobody released and that hold no more."})

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{healed} }
