package edge

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"agentsvc/schemas/problem"
	"agentsvc/transport/edge/sse"
)

// metrics are the metrics of the edge, svc_edge_*. The only labels are routes and status
// codes.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	stray    counts // requests without a route
}

// counts holds the counters of one route, looked up once for each status.
type counts struct {
	took     prometheus.Observer
	mu       sync.RWMutex // guards byStatus
	byStatus map[int]prometheus.Counter
}

const strayRoute = "none"

func newMetrics(reg prometheus.Registerer, t *Table, streams *sse.Streams) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "svc_edge_requests_total", Help: "Requests answered, by route and status code.",
		}, []string{"route", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "svc_edge_request_seconds", Help: "Time from a request's head to its answer, by route; streams are not in it.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
	}
	m.stray.took = m.duration.WithLabelValues(strayRoute)
	for _, e := range t.endpoints {
		e.counts.took = m.duration.WithLabelValues(e.ID)
	}
	if reg == nil {
		return m
	}
	count := func(name, help string, labels prometheus.Labels, f func(sse.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(f(streams.Stats())) })
	}
	reg.MustRegister(m.requests, m.duration,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "svc_edge_streams_open", Help: "Open event streams."},
			func() float64 { return float64(streams.Count()) }),
		count("svc_edge_frames_total", "Frames given to event streams.", nil, func(s sse.Stats) int64 { return s.Frames }),
		count("svc_edge_frame_bytes_total", "Bytes of these frames.", nil, func(s sse.Stats) int64 { return s.Bytes }),
		count("svc_edge_streams_full_total", "How often a reader's socket was full.", nil, func(s sse.Stats) int64 { return s.Full }),
	)
	for _, r := range sse.Reasons() {
		reg.MustRegister(count("svc_edge_streams_ended_total", "Event streams ended, by reason.",
			prometheus.Labels{"reason": r.String()}, func(s sse.Stats) int64 { return s.Ends[r] }))
	}
	return m
}

func (m *metrics) counter(c *counts, route string, status int) prometheus.Counter {
	c.mu.RLock()
	n := c.byStatus[status]
	c.mu.RUnlock()
	if n != nil {
		return n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byStatus == nil {
		c.byStatus = map[int]prometheus.Counter{}
	}
	if n = c.byStatus[status]; n == nil {
		n = m.requests.WithLabelValues(route, strconv.Itoa(status))
		c.byStatus[status] = n
	}
	return n
}

func (m *metrics) observe(e *endpoint, status int, took time.Duration, stream bool) {
	c, route := &m.stray, strayRoute
	if e != nil {
		c, route = &e.counts, e.ID
	}
	m.counter(c, route, status).Inc()
	if !stream {
		c.took.Observe(took.Seconds())
	}
}

func (m *metrics) refused(status int) { m.counter(&m.stray, strayRoute, status).Inc() }

// TagService is the section of the document about the service itself.
const TagService = "Service"

// HandleMetrics adds GET path, which answers the metrics of g in the text format of
// Prometheus.
func HandleMetrics(t *Table, path string, g prometheus.Gatherer) {
	HandleRaw(t, Route{Method: http.MethodGet, Path: path, ID: "metrics", Summary: "Counters for Prometheus", Tag: TagService,
		Bucket: BucketNone, Always: true, MediaType: "text/plain", Description: "In the text format of Prometheus. Needs no key; the deployment may serve it on another address only.",
		Answer: "# TYPE svc_edge_requests_total counter\nsvc_edge_requests_total{code=\"200\",route=\"getRun\"} 7\n"},
		func(context.Context, *Caller, *Raw) (*RawAnswer, error) {
			families, err := g.Gather()
			if err != nil && len(families) == 0 {
				return nil, err
			}
			format := expfmt.NewFormat(expfmt.TypeTextPlain)
			var b bytes.Buffer
			enc := expfmt.NewEncoder(&b, format)
			for _, f := range families {
				if err := enc.Encode(f); err != nil {
					return nil, err
				}
			}
			return &RawAnswer{ContentType: string(format), Body: b.Bytes()}, nil
		})
}

// Health is the response of a healthy node.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// HandleHealth adds GET path, which answers { "status": "ok" }, or UNAVAILABLE with the
// reason that check returns.
func HandleHealth(t *Table, path, id, summary string, check func(context.Context) error) {
	HandleRaw(t, Route{Method: http.MethodGet, Path: path, ID: id, Summary: summary, Tag: TagService, Bucket: BucketNone, Always: true,
		MediaType: "application/json", Codes: []problem.Code{problem.CodeUnavailable}, Answer: Health{"ok"}, Description: "Needs no key and is never limited."},
		func(ctx context.Context, _ *Caller, _ *Raw) (*RawAnswer, error) {
			if err := check(ctx); err != nil {
				return nil, problem.Unavailable(err.Error(), time.Second)
			}
			return &RawAnswer{ContentType: "application/json", Body: []byte(`{"status":"ok"}`)}, nil
		})
}
