package delivery

import "github.com/prometheus/client_golang/prometheus"

var (
	endpoints = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_delivery_endpoints",
		Help: "Endpoints of this node with deliveries pending or in flight.",
	})
	turnFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_delivery_turn_failures_total",
		Help: "Turns that failed and were retried: storage was not available, or the endpoint could not be read.",
	})
	unsettled = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_delivery_results_lost_total",
		Help: "Results of attempts that could not be made durable before their node or shard was given up; the deliveries come due again.",
	})
	loadFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_delivery_hearers_failures_total",
		Help: "Reads of a tenant's subscribers that failed, or had no room; the sweep wakes the endpoints instead.",
	})
)
