package membership

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// held is the lease that the metrics show: a process has one.
var held atomic.Pointer[Membership]

var (
	membersAlive = promauto.NewGauge(prometheus.GaugeOpts{
		Name: "svc_membership_members_count",
		Help: "Members not marked dead, including this one.",
	})
	_ = promauto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "svc_membership_lease_left_seconds",
		Help: "Time until this node's lease expires; 0 or less: the node is suspended.",
	}, func() float64 {
		if m := held.Load(); m != nil && !m.Fenced() {
			return time.Until(m.Deadline()).Seconds()
		}
		return 0
	})
	deathsMarked = promauto.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_membership_deaths_marked_total",
		Help: "Members that this node has marked dead, by reason.",
	}, []string{"why"})
	suspensions = promauto.NewCounter(prometheus.CounterOpts{
		Name: "svc_membership_suspensions_total",
		Help: "Times this node's lease expired.",
	})
	beatsFailed = promauto.NewCounter(prometheus.CounterOpts{
		Name: "svc_membership_beats_failed_total",
		Help: "Beats that did not extend this node's lease.",
	})
)
