package workflow

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/tool"
)

// The plans that a node keeps are bounded in number and in the memory that they take, and one that
// was dropped is made again.
func TestTheKeptPlansAreBounded(t *testing.T) {
	reads := map[int]int{}
	large := strings.Repeat("x", 200<<10)
	p := &plans{log: zerolog.Nop(), kept: map[version]keptPlan{}, read: func(_ context.Context, _ id.TenantID, _ id.WorkflowID, v int) (json.RawMessage, error) {
		reads[v]++
		doc := `{"nodes": [{"id": "s", "type": "set", "values": {"x": 1}}]`
		if v < 100 {
			doc += `, "variables": {"v": "` + large + `"}`
		}
		return json.RawMessage(doc + `}`), nil
	}}
	get := func(v int) {
		t.Helper()
		if plan, err := p.get(t.Context(), version{version: v}); plan == nil || err != nil {
			t.Fatal(plan, err)
		}
	}
	size := func() (n int) {
		for _, k := range p.kept {
			n += k.bytes
		}
		return n
	}
	for v := range 100 {
		get(v)
		if size() > maxPlanBytes || size() != p.bytes {
			t.Fatalf("%d bytes of %d are kept, %d counted", size(), maxPlanBytes, p.bytes)
		}
	}
	if len(p.kept) < maxPlanBytes/(8*len(large))/2 {
		t.Errorf("only %d plans are kept", len(p.kept))
	}
	for v := range 100 {
		get(v)
	}
	again := 0
	for _, n := range reads {
		if n > 1 {
			again++
		}
	}
	if again == 0 || again == 100 {
		t.Errorf("%d of 100 definitions were read again", again)
	}
	for v := range maxPlans + 10 {
		get(100 + v)
	}
	if len(p.kept) > maxPlans || size() != p.bytes {
		t.Errorf("%d plans are kept", len(p.kept))
	}
}

// Short documents whose plans are large, because of their expressions, count with their plans.
func TestTheKeptExpressionsAreBounded(t *testing.T) {
	nodes := make([]string, 100)
	for i := range nodes {
		nodes[i] = fmt.Sprintf(`{"id": "c%d", "type": "condition", "expression": "true"}`, i)
	}
	doc := json.RawMessage(`{"nodes": [` + strings.Join(nodes, ",") + `]}`)
	p := &plans{log: zerolog.Nop(), kept: map[version]keptPlan{}, read: func(context.Context, id.TenantID, id.WorkflowID, int) (json.RawMessage, error) {
		return doc, nil
	}}
	for v := range 100 {
		if plan, err := p.get(t.Context(), version{version: v}); plan == nil || err != nil {
			t.Fatal(plan, err)
		}
	}
	weight := 0
	for _, k := range p.kept {
		weight += k.Weight(len(doc))
	}
	if weight > 64<<20 || len(p.kept) < 25 {
		t.Errorf("%d plans of %d bytes are kept", len(p.kept), weight)
	}
}

// A run whose definition cannot be read ends with an answer that a node kept when the run left it.
// The node has no name any more, so no frame tells of its end.
func TestAKeptAnswerOfARunWithoutADefinition(t *testing.T) {
	answer := &tool.Outcome{Content: `{"refund": 7}`, Shown: json.RawMessage(`{"refund": 7}`)}
	s := State{ID: id.RunID{UUID: id.NewAnywhere()}, Status: lifecycle.RunRunning, Steps: 1, Open: []*Step{{Idx: 0, Node: starts, Call: &Call{Called: true, Answer: answer}}}}
	d, err := Machine{}.Decide(s, durable.Activated{}, time.Now())
	if err != nil || d.Next.Status != lifecycle.RunFailed || d.Next.Error.Code != lifecycle.FailInternal {
		t.Fatalf("%+v, %v", d.Next, err)
	}
	var frames []string
	for _, f := range d.Facts {
		if seq, kind, data := d.Next.mark(f); seq > 0 {
			frames = append(frames, string(kind)+" "+string(data))
		}
	}
	if got, want := strings.Join(frames, "; "), `tool.result {"idx":0,"ok":true,"output_preview":"{\"refund\": 7}"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
