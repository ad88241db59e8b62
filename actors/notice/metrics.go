package notice

import "github.com/prometheus/client_golang/prometheus"

var (
	readers = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_notice_readers", Help: "Open feeds of tenants on this node."})
	changes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_notice_changes_total", Help: "Changes committed on this node of tenants whose feed is open somewhere."})
	frames = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_notice_frames_total", Help: "Frames sent to feeds."})
	lost = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_notice_lost_total", Help: "Times that readers with the same rights were told to read again."})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{readers, changes, frames, lost}
}
