package stream

import "github.com/prometheus/client_golang/prometheus"

var (
	hubsOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_stream_hubs", Help: "Runs of this node that somebody publishes or reads."})
	readersOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_stream_readers", Help: "Event streams of this node."})
	framesSent = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_frames_total", Help: "Live frames given to readers, once for each reader."})
	refills = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_refills_total", Help: "Live readers that had to catch up from the facts."})
)

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{hubsOpen, readersOpen, framesSent, refills}
}
