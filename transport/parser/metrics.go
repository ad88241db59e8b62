package parser

import (
	"github.com/prometheus/client_golang/prometheus"
)

var (
	parses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_parser_parses_total", Help: "Documents that were read, by outcome: ok, fault of the file, error of the service, cancelled.",
	}, []string{"outcome"})
	running = prometheus.NewGauge(prometheus.GaugeOpts{Name: "svc_parser_children", Help: "Child processes that read documents."})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{parses, running} }
