package knowledge

import "github.com/prometheus/client_golang/prometheus"

var (
	searches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_knowledge_searches_total",
		Help: "Searches of knowledge bases: lexical (no vectors to compare with), hybrid, or fallback (lexical because the provider of embeddings failed, or too many of the tenant's searches compare vectors), and those that were refused because too many of the tenant were under way.",
	}, []string{"kind"})
	cachedBytes = prometheus.NewGauge(prometheus.GaugeOpts{Name: "svc_knowledge_vectors_bytes", Help: "Vectors of chunks that are kept in memory."})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{searches, cachedBytes} }
