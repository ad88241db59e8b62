package bucket

import "github.com/prometheus/client_golang/prometheus"

var (
	asks = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_limit_leases_total", Help: "Leases that this node's edge asked for."})
	refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_limit_refusals_total", Help: "Requests of this node that found an empty bucket, by the bucket's scope."}, []string{"scope"})
	unavailable = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_limit_unavailable_total", Help: "Requests of this node whose bucket's owner could not be asked in time."})
	recalls = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_limit_recalls_total", Help: "Recalls that this node's buckets sent."})
	carried = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_limit_carried_total", Help: "Buckets that came from another node, because their shard moved."})
	emptied = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_limit_emptied_total", Help: "Shards whose buckets began empty, because a living node did not answer."})
	failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_limit_failures_total", Help: "Leases without an owner's answer in time."})
	sharing = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_limit_sharing_total", Help: "Requests of clients that shared a bucket because the node had too many clients."})
	accounts = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_limit_accounts", Help: "Buckets that this node's edge knows."})
	bucketsKept = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "svc_limit_buckets", Help: "Buckets on this node that are not full."})
)

// refusals are the counters of all scopes.
var refusals = func() (c [scopes]prometheus.Counter) {
	for s := range scopes {
		c[s] = refused.WithLabelValues(s.String())
	}
	return c
}()

// Collectors are the metrics of this package.
func Collectors() []prometheus.Collector {
	return []prometheus.Collector{asks, refused, unavailable, recalls, carried, emptied, failures, sharing, accounts, bucketsKept}
}
