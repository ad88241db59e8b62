package blackbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// open-parts.md, Evidence and Handoff: a run that hands its conversation over still owes a citation of what
// the run has retrieved. A search of the agent that it was handed to counts.
func TestEvidenceThroughAHandoff(t *testing.T) {
	t.Parallel()
	ctx := within(t, 90*time.Second)
	c := sharedNode(t).tenant("evidence of handoffs")
	shoes, hats := c.library(t, ctx, "returns.md", "Shoes may be returned within 30 days."), c.library(t, ctx, "hats.md", "Hats are sold in three sizes.")
	c.grant(t, ctx, object{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow"})
	var back struct{ Agent struct{ Slug string } }
	c.ask(t, ctx, 200, "GET", "/v1/agents/"+c.reader(t, true, hats), nil, &back)
	front := c.publish(t, "Front of evidence", object{"model": simulatedModel["model"], "tools": object{"builtin": []string{"kb.search"}}, "knowledge_bases": []string{shoes.id}, "handoffs": []string{back.Agent.Slug}})
	over := fmt.Sprintf("shoes\n/call handoff {\"to\":%q}\n", back.Agent.Slug)
	search := "/think in a turn of its own\n/call kb.search {\"query\":\"hats\"}\n"
	for _, row := range []struct{ name, content, shape, cites string }{
		{"of the second agent's search", over + search + "/say hats " + hats.mark("hats.md"), "retrieval llm handoff llm retrieval llm", "hats.md"},
		{"of the first agent's search", "/think in a turn of its own\n/call kb.search {\"query\":\"shoes\"}\n/think in a turn of its own\n" + strings.TrimPrefix(over, "shoes\n") + "/say shoes " + shoes.mark("returns.md"), "retrieval llm retrieval llm handoff llm", "returns.md"},
		{"none", over + "/say shoes", "retrieval llm handoff llm llm", ""},
		{"of what was not retrieved", over + "/say hats " + hats.mark("hats.md"), "retrieval llm handoff llm llm", ""},
	} {
		thread := c.thread(t, ctx, front)
		r := c.poll(t, ctx, c.proves(t, ctx, thread, row.content), "")
		code := ""
		if r.Run.Error != nil {
			code = r.Run.Error.Code
		}
		var cited []string
		if list := c.citedMessages(t, ctx, thread); len(list) == 2 {
			for _, x := range list[1].Citations {
				cited = append(cited, x.DocumentName)
			}
		}
		if strings.ReplaceAll(r.shape(), ":succeeded", "") != row.shape || (code == "OUTPUT_INVALID") != (row.cites == "") || strings.Join(cited, " ") != row.cites {
			t.Errorf("%s: %s, cites %v, %s %+v", row.name, r.shape(), cited, r.text(), r.Run.Error)
		}
	}
}

// open-parts.md, End users, ACLs: handoffs inherit the end user of the run, with the groups that the person has when
// the search begins. A message of the tenant's own back end in the person's thread has no end user. (Child runs:
// actors/workflow, TestChildRunsInheritTheEndUser.)
func TestHandoffsSearchForTheEndUser(t *testing.T) {
	t.Parallel()
	ctx := within(t, 90*time.Second)
	c := sharedNode(t).tenant("handoffs of visitors")
	l := c.library(t, ctx, "board.md", "canary shoes of the board", "kim.md", "canary shoes of Kim", "all.md", "shoes for everybody")
	c.grant(t, ctx, object{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow"})
	var back struct{ Agent struct{ Slug string } }
	c.ask(t, ctx, 200, "GET", "/v1/agents/"+c.reader(t, true, l), nil, &back)
	front := c.publish(t, "Front of visitors", object{"model": simulatedModel["model"], "handoffs": []string{back.Agent.Slug}})
	k := c.embedKey(t, ctx, front, "shop")
	kim, lee, anonymous := c.visit(t, ctx, k.Key, k.IdentitySecret, "kim"), c.visit(t, ctx, k.Key, k.IdentitySecret, "lee"), c.visit(t, ctx, k.Key, k.IdentitySecret, "")
	c.seenBy(t, ctx, l, "board.md", object{"principal": "group", "name": "board"})
	c.seenBy(t, ctx, l, "kim.md", object{"principal": "end_user", "id": kim.EndUserID})
	script := fmt.Sprintf("/call handoff {\"to\":%q}\n/think in a turn of its own\n/call kb.search {\"query\":\"canary shoes\",\"top_k\":50}\n/say done", back.Agent.Slug)
	finds := func(run string) string {
		t.Helper()
		r := c.poll(t, ctx, run, "succeeded")
		if got := strings.ReplaceAll(r.shape(), ":succeeded", ""); got != "llm handoff llm retrieval llm" {
			t.Fatalf("the run is %s", got)
		}
		all := string(c.ask(t, ctx, 200, "GET", "/v1/runs/"+run, nil, nil).body) + c.rawStream(t, ctx, run, "?replay=full")
		var seen []string
		for _, text := range []string{"shoes of the board", "shoes of Kim", "shoes for everybody"} {
			if strings.Contains(all, text) {
				seen = append(seen, text[strings.LastIndex(text, " ")+1:])
			}
		}
		return strings.Join(seen, " ")
	}
	says := func(v *visiting) (thread, run string) {
		t.Helper()
		var posted struct {
			ThreadID string `json:"thread_id"`
			RunID    string `json:"run_id"`
		}
		if a := v.call(t, ctx, "POST", "/v1/embed/messages", object{"content": script}); a.status != 202 || a.decode(&posted) != nil {
			t.Fatal(a)
		}
		return posted.ThreadID, posted.RunID
	}
	group := func(v *visiting, names ...string) {
		t.Helper()
		c.ask(t, ctx, 200, "PATCH", "/v1/end-users/"+v.EndUserID, object{"attributes": object{"groups": append([]string{}, names...)}}, nil)
	}
	group(lee, "board")
	for _, row := range []struct {
		name string
		of   *visiting
		want string
	}{
		{"the person of an ACL", kim, "Kim everybody"}, {"a member of a group", lee, "board everybody"}, {"a visitor without identity", anonymous, "everybody"},
	} {
		if _, run := says(row.of); finds(run) != row.want {
			t.Errorf("%s: the second agent finds %q, want %q", row.name, finds(run), row.want)
		}
	}
	group(lee, "Board", "board ", "boards")
	if _, run := says(lee); finds(run) != "everybody" {
		t.Errorf("after the group is gone the second agent finds %q", finds(run))
	}
	thread, ended := says(kim)
	finds(ended)
	if got := finds(c.say(t, ctx, thread, script)); got != "everybody" {
		t.Errorf("a message of the back end in Kim's thread finds %q", got)
	}
}

// open-parts.md, End users, ACLs: a workflow run that the back end starts has no end user, and neither have its children: they find what everybody may see,
// in its agent's bases. What it is asked with evidence, it must cite; its marks are part of the node's text.
func TestEvidenceInAChildRun(t *testing.T) {
	t.Parallel()
	ctx := within(t, 90*time.Second)
	c := sharedNode(t).tenant("evidence of children")
	l := c.library(t, ctx, "returns.md", "Shoes may be returned within 30 days.", "board.md", "shoes: a canary of the board")
	c.seenBy(t, ctx, l, "board.md", object{"principal": "group", "name": "board"})
	agent := c.reader(t, false, l)
	for _, row := range []struct{ name, text, status, shape string }{
		{"a child that cites", "How long may I return shoes?", "succeeded", "retrieval:succeeded llm:succeeded"},
		{"a child that does not", "/say shoes", "failed", "retrieval:succeeded llm:succeeded llm:succeeded"},
	} {
		var made struct{ Workflow struct{ ID string } }
		c.ask(t, ctx, 201, "POST", "/v1/workflows", object{"name": row.name, "definition": object{"edges": []object{}, "nodes": []object{
			{"id": "asks", "type": "agent", "agent_id": agent, "input": object{"text": row.text, "options": object{"evidence": true}}}}}}, &made)
		var started struct {
			RunID string `json:"run_id"`
		}
		c.ask(t, ctx, 202, "POST", "/v1/workflows/"+made.Workflow.ID+"/test-run", object{}, &started)
		r := c.poll(t, ctx, started.RunID, row.status)
		var children struct{ Items []struct{ ID string } }
		c.ask(t, ctx, 200, "GET", "/v1/runs?parent_run_id="+started.RunID, nil, &children)
		if len(children.Items) != 1 {
			t.Fatalf("%s: %d children", row.name, len(children.Items))
		}
		child := c.poll(t, ctx, children.Items[0].ID, row.status)
		all := string(c.ask(t, ctx, 200, "GET", "/v1/runs/"+children.Items[0].ID, nil, nil).body)
		if child.shape() != row.shape || strings.Contains(all, "canary") || row.status == "failed" && (child.Run.Error.Code != "OUTPUT_INVALID" || r.Run.Error.Code != "CHILD_FAILED") {
			t.Errorf("%s: %s %+v %s", row.name, child.shape(), child.Run.Error, all)
		}
		if row.status == "succeeded" && (!strings.Contains(child.text(), l.mark("returns.md")) || !strings.Contains(string(c.ask(t, ctx, 200, "GET", "/v1/runs/"+started.RunID, nil, nil).body), l.mark("returns.md"))) {
			t.Errorf("%s: the child says %q", row.name, child.text())
		}
	}
}
