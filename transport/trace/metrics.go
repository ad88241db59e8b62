package trace

import "github.com/prometheus/client_golang/prometheus"

var spans = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "svc_trace_spans_total",
	Help: "Spans by outcome: sent, dropped (the queue was full) or lost (the collector did not take their batch).",
}, []string{"outcome"})

var (
	sent    = spans.WithLabelValues("sent")
	dropped = spans.WithLabelValues("dropped")
	lost    = spans.WithLabelValues("lost")
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{spans} }
