package outbox

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the counters of an Outbox.
type Metrics struct {
	flushSize prometheus.Histogram
	flushTime prometheus.Histogram
	redone    *prometheus.CounterVec
	claimed   prometheus.Counter
	settled   *prometheus.CounterVec
	lost      prometheus.Counter
	down      prometheus.Gauge
}

// NewMetrics registers the outbox's metrics with reg; with nil they are counted but not
// exported.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		flushSize: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svc_webhook_flush_turns",
			Help: "Endpoints per flush of the outbox.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256}}),
		flushTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svc_webhook_flush_seconds",
			Help: "Time of one flush's transaction.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		redone: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svc_webhook_flushes_redone_total",
			Help: "Flushes that did not commit at once, by reason."}, []string{"why"}),
		claimed: prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_webhook_claimed_total",
			Help: "Attempts that were begun."}),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svc_webhook_settled_total",
			Help: "Results of attempts by the delivery's new status; unsent ones do not count as attempts, stale ones came too late."}, []string{"status"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_webhook_lost_attempts_total",
			Help: "Attempts without a result, mostly because their process died."}),
		down: prometheus.NewGauge(prometheus.GaugeOpts{Name: "svc_webhook_outbox_down_count",
			Help: "1 while the outbox has no database."}),
	}
	if reg != nil {
		reg.MustRegister(m.flushSize, m.flushTime, m.redone, m.claimed, m.settled, m.lost, m.down)
	}
	return m
}

func (m *Metrics) flushed(turns int, took time.Duration) {
	m.flushSize.Observe(float64(turns))
	m.flushTime.Observe(took.Seconds())
}
