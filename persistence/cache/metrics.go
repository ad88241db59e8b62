package cache

import "github.com/prometheus/client_golang/prometheus"

var (
	up = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_cache_feed_up", Help: "1 while messages between nodes pass through Redis."})
	entries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_cache_feed_entries_total", Help: "Entries written to and read from streams of Redis."}, []string{"way"})
	bytesMoved = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_cache_feed_bytes_total", Help: "Bytes of the entries."}, []string{"way"})
	dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_cache_feed_dropped_total", Help: "Messages not sent, by reason: full, down, long or failed."}, []string{"why"})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{up, entries, bytesMoved, dropped}
}
