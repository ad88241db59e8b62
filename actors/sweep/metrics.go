package sweep

import "github.com/prometheus/client_golang/prometheus"

var (
	timersTold = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_timers_total", Help: "Due timers that this node claimed and told."})
	runsWoken = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_woken_total", Help: "Open runs without an activation that this node woke."})
	endpointsTold = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_endpoints_total", Help: "Webhook endpoints that this node told that a delivery is due."})
	runsQueued = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_sweep_queued_runs", Help: "Open runs that were found without an activation and wait to be woken."})
	takeovers = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "svc_sweep_takeover_seconds", Help: "Time from gaining shards to the last of their open runs being woken.",
		Buckets: []float64{.05, .1, .25, .5, 1, 2, 4, 8, 16}})
	rowsDropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_dropped_rows_total", Help: "Rows that retention deleted."})
	rowsErased = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_erased_total", Help: "Runs, threads and rows of deleted end users that this node erased."})
	filesRemoved = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_files_total", Help: "Unfinished files, and files that no row names, that this node removed."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_failures_total", Help: "Ticks, passes of retention, and looks at what deleted end users left behind that failed."})
)

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{timersTold, runsWoken, endpointsTold, runsQueued, takeovers, rowsDropped, rowsErased, filesRemoved, failures}
}
