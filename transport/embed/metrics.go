package embed

import "github.com/prometheus/client_golang/prometheus"

var (
	sessionsMinted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_embed_sessions_total", Help: "Embed sessions minted, by identified and anonymous visitors.",
	}, []string{"identified"})
	identitiesRefused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_embed_identities_refused_total", Help: "Identity tokens refused, by reason.",
	}, []string{"reason"})
	originsDenied = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_embed_origins_denied_total", Help: "Calls from origins that their embed key does not allow.",
	})
)

// Collectors returns the metrics of the package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{sessionsMinted, identitiesRefused, originsDenied}
}
