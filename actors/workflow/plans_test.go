package workflow

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/schemas/id"
)

// The definitions that a node keeps are bounded in number and in size, and one that was dropped is
// read again.
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
	if len(p.kept) < maxPlanBytes/len(large)/2 {
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
