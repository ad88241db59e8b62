package sweep

import "github.com/prometheus/client_golang/prometheus"

var (
	timersTold = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_timers_total", Help: "Due timers that this node claimed and told."})
	runsWoken = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_woken_total", Help: "Open runs without an activation that this node woke."})
	rowsDropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_dropped_rows_total", Help: "Rows that retention deleted."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_sweep_failures_total", Help: "Ticks of which a part failed."})
)

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{timersTold, runsWoken, rowsDropped, failures}
}
