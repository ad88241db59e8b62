package sweep

import "github.com/prometheus/client_golang/prometheus"

var (
	timersTold = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_timers_total", Help: "Due timers that this node claimed and told."})
	woken = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_sweep_woken_total", Help: "Entities with something to do and no activation that this node woke, by kind."}, []string{"kind"})
	queued = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "svc_sweep_queued", Help: "Entities that were found with something to do and wait to be woken, by kind."}, []string{"kind"})
	takeovers = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "svc_sweep_takeover_seconds", Help: "Time from gaining shards to the last of a kind's entities in them being woken.",
		Buckets: []float64{.05, .1, .25, .5, 1, 2, 4, 8, 16}})
	rowsDropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_dropped_rows_total", Help: "Rows that retention deleted."})
	rowsErased = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_erased_total", Help: "Entities of deleted end users, and their own rows, that this node erased."})
	filesRemoved = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_files_total", Help: "Unfinished files, and files that no row names, that this node removed."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_failures_total", Help: "Ticks, passes of retention, and looks at what deleted end users left behind that failed."})
)

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{timersTold, woken, queued, takeovers, rowsDropped, rowsErased, filesRemoved, failures}
}
