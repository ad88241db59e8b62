package revocation

import "github.com/prometheus/client_golang/prometheus"

var (
	revocationSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "svc_revocation_seconds", Help: "From the commit of a revocation until every other node had confirmed it.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	})
	revocationsUnconfirmed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_revocations_unconfirmed_total", Help: "Revocations that were committed and answered UNAVAILABLE, because not every node had confirmed.",
	})
	forgetsAll = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_revocation_forgets_all_total", Help: "How often this node forgot everything because of a revocation that it was not told of.",
	})
)

// Collectors returns the metrics of revocations.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{revocationSeconds, revocationsUnconfirmed, forgetsAll}
}
