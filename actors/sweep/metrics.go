package sweep

import "github.com/prometheus/client_golang/prometheus"

var (
	timersTold = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_timers_total", Help: "Due timers that this node claimed and told."})
	woken = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_sweep_woken_total", Help: "Entities with open work that this node woke, by kind."}, []string{"kind"})
	queued = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "svc_sweep_queued", Help: "Entities with open work that this node has found and not woken yet, by kind."}, []string{"kind"})
	takeovers = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "svc_sweep_takeover_seconds", Help: "Time from gaining shards until all entities of a kind with open work in them are woken.",
		Buckets: []float64{.05, .1, .25, .5, 1, 2, 4, 8, 16}})
	rowsDropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_dropped_rows_total", Help: "Rows that retention deleted."})
	rowsErased = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_erased_total", Help: "Entities of deleted end users that this node erased, and deleted end users."})
	filesRemoved = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_files_total", Help: "Unfinished files and files without a row that this node removed."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_failures_total", Help: "Failed ticks, passes of retention and passes of the erasure of deleted end users."})
)

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{timersTold, woken, queued, takeovers, rowsDropped, rowsErased, filesRemoved, failures}
}
