package remote

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

func counter(name, help string) prometheus.Counter {
	return promauto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

var (
	asksTotal    = counter("svc_cluster_remote_asks_total", "Messages that actors of other members were asked.")
	tellsTotal   = counter("svc_cluster_remote_tells_total", "Messages that actors of other members were told.")
	callsTotal   = counter("svc_cluster_remote_calls_total", "Calls of services of other members.")
	lostTotal    = counter("svc_cluster_remote_lost_total", "Messages whose answer was lost with their stream.")
	refusedTotal = counter("svc_cluster_remote_refused_total", "Connections that a member's address refused.")
	droppedTotal = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_cluster_remote_dropped_total",
		Help: "Messages dropped, by reason.",
	}, []string{"why"})
	inflight = promauto.NewGauge(prometheus.GaugeOpts{
		Name: "svc_cluster_remote_inflight",
		Help: "Messages sent to other members that wait for an answer.",
	})
	batchSizes = promauto.NewHistogram(prometheus.HistogramOpts{
		Name:    "svc_cluster_remote_batch_messages",
		Help:    "Messages in one batch.",
		Buckets: []float64{1, 2, 4, 8, 16, 32, 64},
	})
	connected = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Name: "svc_cluster_remote_connected",
		Help: "1 while a stream to the member at the address is open.",
	}, []string{"addr"})

	droppedFull     = droppedTotal.WithLabelValues("full")      // too much is queued for the member
	droppedGone     = droppedTotal.WithLabelValues("gone")      // the member left the list
	droppedSent     = droppedTotal.WithLabelValues("broken")    // a Tell in a batch on which the stream broke
	droppedNotTaken = droppedTotal.WithLabelValues("not_taken") // a Tell to a member that does not own the shard, or is stopping
	droppedUnread   = droppedTotal.WithLabelValues("unread")    // a Tell of a type that is unknown here
	droppedLate     = droppedTotal.WithLabelValues("late")      // a reply without a waiting caller
)

// streams are the peers in the metric connected. A node that was started again at its address is
// a second peer there, until the former process has left the list.
var streams = shown{at: map[string]map[*peer]bool{}}

type shown struct {
	mu sync.Mutex                // guards at; taken under a peer's lock
	at map[string]map[*peer]bool // by address; true: its stream is open
}

func (s *shown) set(p *peer, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at[p.addr] == nil {
		s.at[p.addr] = map[*peer]bool{}
	}
	s.at[p.addr][p] = open
	s.show(p.addr)
}

func (s *shown) drop(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.at[p.addr], p)
	if len(s.at[p.addr]) > 0 {
		s.show(p.addr)
		return
	}
	delete(s.at, p.addr)
	connected.DeleteLabelValues(p.addr)
}

func (s *shown) show(addr string) {
	up := 0.0
	for _, open := range s.at[addr] {
		if open {
			up = 1
		}
	}
	connected.WithLabelValues(addr).Set(up)
}
