package trigger

import "github.com/prometheus/client_golang/prometheus"

// bySchedule is how a schedule fires, as a label; the others are the platform's.
const bySchedule = "schedule"

var (
	firings = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_trigger_fired_total", Help: "Runs that triggers started on this node, by how: schedule, hook, manual."}, []string{"kind"})
	skipped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_trigger_skipped_total", Help: "Due times of schedules that started no run, because their target cannot be started."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_trigger_failures_total", Help: "Firings of schedules that could not be carried out and come again."})
)
