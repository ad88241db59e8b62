package mcp

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_mcp_calls_total",
		Help: "Tool calls by outcome: ok, tool_error (reported by the tool) or the kind of failure.",
	}, []string{"outcome"})
	callSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "svc_mcp_call_seconds",
		Help:    "Time from a tool call to its result or failure.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	})
	lists = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_mcp_lists_total",
		Help: "Lists of tools by outcome: cached, asked (fetched) or failed.",
	}, []string{"outcome"})
	listsCached   = lists.WithLabelValues("cached")
	callsOK       = calls.WithLabelValues("ok")
	unusableTools = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_mcp_unusable_tools_total",
		Help: "Listed tools that cannot be called, because their inputSchema is invalid or too expensive to check.",
	})
	sessions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_mcp_sessions_total",
		Help: "Sessions begun with tool servers, by transport and outcome.",
	}, []string{"transport", "outcome"})
	clients = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_mcp_clients",
		Help: "Pooled clients, one per tenant, server and connection.",
	})
	listBytes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_mcp_list_bytes",
		Help: "Size of all cached lists of tools.",
	})
	processes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_mcp_processes",
		Help: "Running stdio tool servers.",
	})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{calls, callSeconds, lists, unusableTools, sessions, clients, listBytes, processes}
}

func countCall(took time.Duration, a Answer, err error) {
	callSeconds.Observe(took.Seconds())
	var e *Error
	switch {
	case errors.As(err, &e):
		calls.WithLabelValues(string(e.Kind)).Inc()
	case a.IsError:
		calls.WithLabelValues("tool_error").Inc()
	default:
		callsOK.Inc()
	}
}
