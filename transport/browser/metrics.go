package browser

import "github.com/prometheus/client_golang/prometheus"

var (
	parts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_browser_parts_total", Help: "Parts of browser skill runs that were performed, by part and what came of it.",
	}, []string{"part", "event"})
	open = prometheus.NewGauge(prometheus.GaugeOpts{Name: "svc_browser_sessions", Help: "Open sessions of browser skills."})
	ends = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_browser_ends_total", Help: "Browsers that ended, by reason: died, memory, closed, stuck.",
	}, []string{"reason"})
	refused = prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_browser_refused_total", Help: "Jobs that were refused because too many wait."})
	denied  = prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_browser_denied_total", Help: "Connections of pages that the outbound guard refused."})
)

var (
	started  = prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_browser_recorder_started_total", Help: "Recorder sessions that began."})
	finished = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_browser_recorder_ended_total", Help: "Recorder sessions that ended, by status: ended, expired.",
	}, []string{"status"})
	acted = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_browser_recorder_actions_total", Help: "Actions in recorder sessions, by kind and outcome: ok, refused.",
	}, []string{"kind", "outcome"})
	replays = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_browser_recorder_replays_total", Help: "Dry runs of recordings, by status: succeeded, failed, skipped.",
	}, []string{"status"})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{parts, open, ends, refused, denied, started, finished, acted, replays}
}
