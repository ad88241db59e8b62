package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// The process ends at each commit of a run in turn, before the rows are written and after. Whatever
// it was doing, another one finishes the run as if nothing had happened: each node is one step,
// each child one run, each event counts once, and the frames of the rows are those of a run
// that was not interrupted.
func TestAProcessIsKilledAtEachCommit(t *testing.T) {
	const definition = `{"nodes": [
		{"id": "a", "type": "set", "values": {"who": "{{input.who}}"}},
		{"id": "d", "type": "delay", "seconds": 0.005},
		{"id": "e", "type": "wait_event", "event": "go", "timeout_minutes": 60},
		{"id": "g", "type": "agent", "agent_id": "AGENT", "input": "/say hello {{variables.who}}"},
		{"id": "c", "type": "condition", "expression": "nodes.e.json.n"},
		{"id": "p", "type": "gate", "title": "{{nodes.e.json.n}}"},
		{"id": "t", "type": "tool", "tool": "shop.again", "args": {"n": "{{nodes.e.json.n}}"}},
		{"id": "q", "type": "human_task", "title": "?"},
		{"id": "k", "type": "tool", "tool": "skill.fills", "args": {"n": "{{nodes.e.json.n}}"}},
		{"id": "l", "type": "tool", "tool": "skill.fills", "args": {"n": "{{nodes.e.json.n}}"}},
		{"id": "x", "type": "set", "values": {"never": 1}},
		{"id": "h", "type": "agent", "agent_id": "AGENT", "input": "/say {{nodes.g.text}} again"},
		{"id": "z", "type": "set", "values": {"all": "{{nodes.h.text}} {{nodes.e.json.n}} {{nodes.q.text}}"}}],
		"edges": [{"from": "a", "to": "d"}, {"from": "a", "to": "e"}, {"from": "a", "to": "g"}, {"from": "e", "to": "c"}, {"from": "c", "to": "x", "when": "8"},
			{"from": "g", "to": "h"}, {"from": "d", "to": "z"}, {"from": "c", "to": "p", "when": "7"}, {"from": "a", "to": "q"}, {"from": "p", "to": "t"}, {"from": "t", "to": "z"}, {"from": "e", "to": "k"}, {"from": "k", "to": "z"}, {"from": "e", "to": "l"}, {"from": "l", "to": "z"}, {"from": "q", "to": "z"}, {"from": "h", "to": "z"}, {"from": "x", "to": "z"}]}`
	w := newWorld(t)
	kills := 0
	for at := 1; ; at++ {
		hit := false
		for _, after := range []bool{false, true} {
			w.restart(at, after)
			who := fmt.Sprintf("%d-%t", at, after)
			r, start := w.started(strings.ReplaceAll(definition, "AGENT", w.agent.String()), `{"who": "`+who+`"}`, ``)
			w.order(r, start)
			w.order(r, msg.InjectEvent{Op: id.OpID{UUID: id.NewAnywhere()}, Name: "go", ID: "1", Payload: json.RawMessage(`{"n": 7}`)})
			for node, action := range map[string]lifecycle.Action{"p": lifecycle.ActionApprove, "q": lifecycle.ActionRespond, "k|l": lifecycle.ActionApprove} {
				w.insist(r, node, action)
			}
			w.eventually("it ends or is killed", func() bool {
				return w.killed() || w.text(`SELECT finished_at IS NOT NULL FROM runs WHERE id = $1`, r) == "true" && !w.node.Active(w.address(r))
			})
			if w.killed() {
				hit = true
				w.restart(0, false)
			}
			if w.tags.at == 0 {
				hit = true
			}
			if got := w.ended(r); got != "succeeded" {
				t.Fatalf("%s: %s", who, got)
			}
			if got := w.text(`SELECT output -> 'variables' FROM runs WHERE id = $1`, r); got != `{"all":"hello `+who+` again 7 yes","who":"`+who+`"}` {
				t.Errorf("%s: variables %s", who, got)
			}
			if got := w.text(`SELECT count(*) FROM runs WHERE parent_run_id = $1`, r); got != "2" {
				t.Errorf("%s: %s children", who, got)
			}
			for name, steps := range map[string]int{"shop.again": 1, "skill.fills": 2, "preview": 1} {
				if n := w.calls(name, r); len(n) != steps {
					t.Errorf("%s: calls %v of %s", who, n, name)
				}
			}
			if got := w.text(`SELECT count(*) = 1 AND bool_and(schema IS NOT NULL) FROM approvals WHERE run_id = $1 AND browser_skill_run_id IS NOT NULL`, r); got != "true" {
				t.Errorf("%s: the approval of the skill is not as it is", who)
			}
			if got := w.text(`SELECT string_agg(n, ' ') FROM (SELECT data ->> 'node_id' || (data ->> 'status') AS n FROM run_marks WHERE run_id = $1 GROUP BY 1 HAVING count(*) > 1) x`, r); got != "" {
				t.Errorf("%s: more than once: %s", who, got)
			}
			if got := w.text(`SELECT count(*) = max(seq) - 1 FROM (SELECT seq FROM run_marks WHERE run_id = $1 UNION SELECT began_seq FROM run_steps WHERE run_id = $1
				UNION SELECT seq FROM runs WHERE id = $1) x`, r); got != "true" {
				t.Errorf("%s: a fact is missing", who)
			}
		}
		if !hit {
			break
		}
		kills++
	}
	if kills < 18 {
		t.Errorf("only %d commits were cut", kills)
	}
	t.Logf("%d commits were cut", kills)
}

// insist decides the approval of a node, or of one of several, through the death of the node.
func (w *world) insist(r id.RunID, node string, action lifecycle.Action) {
	w.t.Helper()
	var a id.ApprovalID
	op := id.OpID{UUID: id.NewAnywhere()}
	w.eventually("the approval of "+node+" is decided", func() bool {
		if w.killed() {
			w.restart(0, false)
		}
		found, err := id.Parse(w.text(`SELECT a.id FROM approvals a JOIN run_steps s ON s.run_id = a.run_id AND s.idx = a.step_idx WHERE a.run_id = $1 AND s.name = ANY(string_to_array($2, '|'))`, r, node))
		if err != nil {
			return false
		}
		a.UUID = found
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err = w.node.Ask(ctx, cluster.Address{Kind: msg.KindApproval, Tenant: w.tenant, ID: a.UUID},
			msg.Decide{Op: op, Principal: "user:x", Role: lifecycle.RoleOwner, Action: action, Feedback: "yes"})
		return err == nil
	})
}
