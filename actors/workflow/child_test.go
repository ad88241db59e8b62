package workflow

import (
	"encoding/json"
	"testing"
	"time"

	"agentsvc/actors/durable"
	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// The sums of a run include what a child used, however it ended: also one that fails the run, or
// that would have waited for people.
func TestTheSumsIncludeEveryChildThatIsHeard(t *testing.T) {
	plan, err := flow.Load(json.RawMessage(`{"nodes": [{"id": "a", "type": "agent", "agent_id": "00000000-0000-7000-8000-000000000001", "input": "x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	begun, _, err := plan.Start(t.Context(), json.RawMessage("null"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for status, code := range map[lifecycle.RunStatus]lifecycle.Failure{
		lifecycle.RunWaitingApproval: lifecycle.FailChildWaitingApproval,
		lifecycle.RunFailed:          lifecycle.FailChildFailed,
		lifecycle.RunCancelled:       lifecycle.FailChildFailed,
	} {
		s := State{ID: id.RunID{UUID: id.NewAnywhere()}, Status: lifecycle.RunRunning, Plan: plan, Flow: begun, Seq: 4, Steps: 1, Open: []*Step{{Begun: true}}, TokensIn: 1, TokensOut: 2, CostUSD: 3}
		d, err := Machine{}.Decide(s, durable.Answered{Msg: msg.ChildChanged{Run: child(s.ID, 0)}, Answer: Child{Status: status, TokensIn: 10, TokensOut: 20, CostUSD: 30}}, time.Time{})
		if err != nil || d.Next.Error == nil || d.Next.Error.Code != code {
			t.Fatalf("%s: %+v, %v", status, d.Next.Error, err)
		}
		if in, out, cost := d.Next.TokensIn, d.Next.TokensOut, d.Next.CostUSD; in != 11 || out != 22 || cost != 33 {
			t.Errorf("%s: the sums are %d, %d and %v", status, in, out, cost)
		}
	}
}

// A run that has ended gets the sums of all its children, whichever answer comes first, and none of
// them twice.
func TestTheSumsOfARunThatHasEnded(t *testing.T) {
	s := State{ID: id.RunID{UUID: id.NewAnywhere()}, Status: lifecycle.RunFailed, TokensIn: 10, TokensOut: 5, CostUSD: 1, Steps: 2, Seq: 9}
	s.Children = []id.RunID{child(s.ID, 0), child(s.ID, 1)}
	if owed := (Machine{}).Owed(s); len(owed) != 2 || owed[0] != (CancelChild{Run: s.Children[0], Steps: 2}) {
		t.Errorf("owed %v", owed)
	}
	early, late := Used{TokensIn: 30, TokensOut: 6, CostUSD: 2}, Used{TokensIn: 40, TokensOut: 6, CostUSD: 3}
	for name, used := range map[string][]Used{"in order": {early, late}, "the last read comes first": {late, early}, "nothing was added": {{TokensIn: 10}, late}} {
		next := s
		for i, u := range used {
			d, err := Machine{}.Decide(next, ChildGone{Run: s.Children[i], Used: u}, time.Time{})
			if err != nil || !d.Changed {
				t.Fatal(name, err)
			}
			next = d.Next
		}
		if next.TokensIn != 40 || next.TokensOut != 6 || next.CostUSD != 3 || len(next.Children) > 0 || next.Owes {
			t.Errorf("%s: %d, %d and %v, %d children", name, next.TokensIn, next.TokensOut, next.CostUSD, len(next.Children))
		}
		if d, err := (Machine{}).Decide(next, ChildGone{Run: s.Children[0], Used: Used{TokensIn: 99}}, time.Time{}); err != nil || d.Changed {
			t.Errorf("%s: it is counted again", name)
		}
	}
}
