package egress

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

var verdicts = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "svc_egress_verdicts_total",
	Help: "Addresses judged by the outbound guard just before they were dialled.",
}, []string{"verdict"})

var allowedCount, refusedCount = verdicts.WithLabelValues("allowed"), verdicts.WithLabelValues("refused")

// Collectors returns the metrics of this package.
func Collectors() []prometheus.Collector { return []prometheus.Collector{verdicts} }

func countVerdict(err error) {
	if errors.Is(err, ErrRefused) {
		refusedCount.Inc()
		return
	}
	allowedCount.Inc()
}
