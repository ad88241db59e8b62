package blob

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	seconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "svc_blob_operation_seconds", Help: "Duration of operations on stored files, by operation: put (with the time that the client takes to send), open, delete, sweep, walk.",
		Buckets: []float64{.001, .003, .01, .03, .1, .3, 1, 3, 10, 30, 100}}, []string{"op"})
	failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_blob_failures_total", Help: "Operations on stored files that failed because the store was not available, or a file was damaged."}, []string{"op"})
	stored = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_blob_stored_bytes_total", Help: "Bytes of stored files."})
)

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{seconds, failures, stored} }

// observe counts an operation at its end.
func observe(op string, begun time.Time, err *error) {
	seconds.WithLabelValues(op).Observe(time.Since(begun).Seconds())
	if errors.Is(*err, ErrUnavailable) || errors.Is(*err, ErrCorrupt) {
		failures.WithLabelValues(op).Inc()
	}
}
