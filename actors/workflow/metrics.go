package workflow

import "github.com/prometheus/client_golang/prometheus"

var (
	nodesEnded = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "svc_workflow_nodes_total", Help: "Nodes of workflow runs that ended on this node, by type and status.",
	}, []string{"type", "status"})
	slowWalks = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "svc_workflow_slow_walks_total", Help: "Walks through the graph of a run that took too much work to be quick.",
	})
)

// count counts the nodes that ended. A commit of a long chain counts many.
func (s *State) count(facts []any) {
	for _, f := range facts {
		switch f := f.(type) {
		case NodeEnded:
			if t := s.typeOf(f.Step); t != "" {
				nodesEnded.WithLabelValues(string(t), string(f.Status)).Inc()
			}
		case NodeSkipped:
			nodesEnded.WithLabelValues(string(s.Plan.Node(f.Node).Type), "skipped").Inc()
		}
	}
}
