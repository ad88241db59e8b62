package stream

import "github.com/prometheus/client_golang/prometheus"

var (
	hubsOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_stream_hubs", Help: "Runs of this node with a publisher or readers."})
	readersOpen = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_stream_readers", Help: "Event streams of this node."})
	framesSent = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_frames_total", Help: "Live frames given to readers, once for each reader."})
	refills = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_refills_total", Help: "Live readers that had to catch up from the facts."})
	watchesIn = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_stream_watches_in", Help: "Runs of this node that other nodes read, once for each node."})
	watchesOut = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_stream_watches_out", Help: "Runs of other nodes that are mirrored here."})
	rewatches = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_rewatches_total", Help: "Mirrors that were asked for again."})
	gaps = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_gaps_total", Help: "Mirrors that were given up because messages were missing or their node was silent."})
	lostPublishers = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_lost_publishers_total", Help: "Runs that had gone on or ended while their publisher was silent."})
	strays = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_strays_total", Help: "Messages of other nodes without a mirror here."})
	feedMessages = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_feed_messages_total", Help: "Messages to nodes that watch runs of this one."})
	feedBytes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_stream_feed_bytes_total", Help: "Bytes of the messages to nodes that watch."})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{hubsOpen, readersOpen, framesSent, refills,
		watchesIn, watchesOut, rewatches, gaps, lostPublishers, strays, feedMessages, feedBytes}
}
