package workflow_test

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"agentsvc/actors/workflow"
)

// counted are the values of the kind's metrics, by their labels.
func counted(t *testing.T) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(workflow.Traits.Collectors...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = m.GetCounter().GetValue()
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	w := newWorld(t)
	before := counted(t)
	r := w.begin(`{"nodes": [{"id": "c", "type": "condition", "expression": "1"}, {"id": "no", "type": "delay", "seconds": 1}, {"id": "s", "type": "set", "values": {"x": 1}}, {"id": "g", "type": "gate", "title": "x"}],
		"edges": [{"from": "c", "to": "no", "when": "2"}, {"from": "c", "to": "s", "when": "1"}]}`, `null`, ``)
	if err := w.decide(w.approval(r, "g"), "reject", "", ""); err != nil {
		t.Fatal(err)
	}
	w.ended(r)
	definition, input := costly()
	w.ended(w.begin(definition, input, ``))
	got := counted(t)
	for name, n := range before {
		if got[name] -= n; got[name] == 0 {
			delete(got, name)
		}
	}
	const slow = "svc_workflow_slow_walks_total"
	if got[slow] < 1 { // a machine that is busy may add some
		t.Error("the costly run counts as quick")
	}
	delete(got, slow)
	// The labels are in the order of their names: status, type.
	want := map[string]float64{"svc_workflow_nodes_total succeeded condition": 191, "svc_workflow_nodes_total skipped delay": 1, "svc_workflow_nodes_total succeeded set": 1,
		"svc_workflow_nodes_total failed gate": 1}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
