package journal

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the counters of a Writer.
type Metrics struct {
	flushSize  prometheus.Histogram
	flushTime  prometheus.Histogram
	rests      prometheus.Counter
	queue      *prometheus.GaugeVec
	commits    *prometheus.CounterVec
	redone     *prometheus.CounterVec
	reconnects prometheus.Counter
	down       prometheus.Gauge
	tickets    prometheus.Gauge
	turnedAway *prometheus.CounterVec
	touches    *prometheus.CounterVec
}

// NewMetrics registers the writer's metrics with reg; with nil they are counted
// and shown nowhere.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		flushSize: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svc_journal_flush_size",
			Help: "Commits per flush.", Buckets: []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}}),
		flushTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "svc_journal_flush_seconds",
			Help: "Time of one flush's transaction.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		rests: prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_journal_rest_seconds_total",
			Help: "Time that lanes let commits gather between flushes that are neither small nor full."}),
		queue: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "svc_journal_queue_depth",
			Help: "Commits that wait for a flush."}, []string{"work"}),
		commits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svc_journal_commits_total",
			Help: "Commits by how they ended."}, []string{"outcome"}),
		redone: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svc_journal_flushes_redone_total",
			Help: "Flushes that did not commit at once, by why."}, []string{"why"}),
		reconnects: prometheus.NewCounter(prometheus.CounterOpts{Name: "svc_journal_reconnects_total",
			Help: "Connections made anew after a loss."}),
		down: prometheus.NewGauge(prometheus.GaugeOpts{Name: "svc_journal_lanes_down_count",
			Help: "Lanes that cannot write now."}),
		tickets: prometheus.NewGauge(prometheus.GaugeOpts{Name: "svc_journal_tickets_count",
			Help: "New work that was admitted and has not ended."}),
		turnedAway: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svc_journal_turned_away_total",
			Help: "New work that was not admitted, by why."}, []string{"why"}),
		touches: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "svc_journal_touches_total",
			Help: "Lazy rows by how they ended."}, []string{"outcome"}),
	}
	if reg != nil {
		reg.MustRegister(m.flushSize, m.flushTime, m.rests, m.queue, m.commits, m.redone, m.reconnects, m.down, m.tickets, m.turnedAway, m.touches)
	}
	return m
}

func (m *Metrics) flushed(n int, took time.Duration) {
	m.flushSize.Observe(float64(n))
	m.flushTime.Observe(took.Seconds())
}

func outcomeLabel(err error) string {
	switch {
	case err == nil:
		return "written"
	case errors.Is(err, ErrConflict):
		return "conflict"
	case errors.Is(err, ErrReplay):
		return "replay"
	case errors.Is(err, ErrRefused):
		return "refused"
	case errors.Is(err, ErrOutdated):
		return "outdated"
	case errors.Is(err, ErrFenced):
		return "fenced"
	case errors.Is(err, ErrUnsettled):
		return "unsettled"
	case errors.Is(err, ErrWithdrawn):
		return "withdrawn"
	}
	return "unavailable"
}
