package trigger

import "github.com/prometheus/client_golang/prometheus"

// bySchedule is the label of runs that schedules start; package platform has the others.
const bySchedule = "schedule"

// CountFired counts a run that a hook or a person started by a trigger.
func CountFired(by string) { firings.WithLabelValues(by).Inc() }

var (
	firings = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_trigger_fired_total", Help: "Runs that triggers started on this node: schedule, hook, manual."}, []string{"kind"})
	skipped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_trigger_skipped_total", Help: "Due times of schedules without a run, because the target cannot be started."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_trigger_failures_total", Help: "Firings of schedules that failed and are retried."})
)
