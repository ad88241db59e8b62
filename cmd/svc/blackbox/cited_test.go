package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// library is a knowledge base whose documents are ready, by name.
type library struct {
	id        string
	documents map[string]string
}

// mark is the mark by which the first chunk of a document is cited.
func (l *library) mark(name string) string { return "[kb:" + l.documents[name] + "#0]" }

// library makes a base; docs are names and contents in turn.
func (c *caller) library(t *testing.T, ctx context.Context, docs ...string) *library {
	t.Helper()
	l := &library{c.makes(t, ctx, "/v1/knowledge-bases", object{"name": "Handbook", "description": "what the shop promises"}), map[string]string{}}
	for i := 0; i < len(docs); i += 2 {
		form, body := multipartFile(t, docs[i], docs[i+1])
		var up struct{ Items []struct{ ID string } }
		c.ask(t, ctx, 202, "POST", "/v1/knowledge-bases/"+l.id+"/documents", body, &up, "Content-Type", form)
		l.documents[docs[i]] = up.Items[0].ID
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for name, d := range l.documents {
		for {
			var doc struct{ Status, Error string }
			c.ask(t, ctx, 200, "GET", "/v1/knowledge-bases/"+l.id+"/documents/"+d, nil, &doc)
			if doc.Status == "ready" {
				break
			}
			if doc.Status == "failed" {
				t.Fatalf("%s: %s", name, doc.Error)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("%s is still %s", name, doc.Status)
			}
		}
	}
	return l
}

// seenBy sets the ACL of a document.
func (c *caller) seenBy(t *testing.T, ctx context.Context, l *library, name string, acl ...object) {
	t.Helper()
	c.ask(t, ctx, 200, "PUT", "/v1/knowledge-bases/"+l.id+"/documents/"+l.documents[name]+"/acls", object{"items": append([]object{}, acl...)}, nil)
}

// reader publishes an agent with these bases, and kb.search if it is named.
func (c *caller) reader(t *testing.T, searches bool, bases ...*library) string {
	m := object{"model": simulatedModel["model"]}
	ids := []string{}
	for _, l := range bases {
		ids = append(ids, l.id)
	}
	m["knowledge_bases"] = ids
	if searches {
		m["tools"] = object{"builtin": []string{"kb.search"}}
	}
	return c.publish(t, fmt.Sprint("Reader ", ownProviders.Add(1)), m)
}

// proves posts a message with evidence and returns its run.
func (c *caller) proves(t *testing.T, ctx context.Context, thread, content string) string {
	t.Helper()
	var posted struct {
		RunID string `json:"run_id"`
	}
	c.ask(t, ctx, 202, "POST", "/v1/threads/"+thread+"/messages", object{"content": content, "evidence": true}, &posted)
	return posted.RunID
}

type citation struct {
	DocumentID   string `json:"document_id"`
	DocumentName string `json:"document_name"`
	URI          *string
	Position     int
	Cite         string
}

type citedMessage struct {
	Role, Content string
	Citations     []citation
}

func (c *caller) citedMessages(t *testing.T, ctx context.Context, thread string) []citedMessage {
	t.Helper()
	var list struct{ Items []citedMessage }
	c.ask(t, ctx, 200, "GET", "/v1/threads/"+thread+"/messages", nil, &list)
	return list.Items
}

// open-parts.md, Threads, runs: a kb.search call is a step of kind retrieval with its frames, and
// its answer's marks are citations of the message. The stream can be resumed at each frame.
func TestAnAgentSearchesAndCites(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	c := sharedNode(t).tenant("searches")
	l := c.library(t, ctx, "returns.md", "Shoes may be returned within 30 days.", "hats.md", "Hats are sold in three sizes.")
	other := c.library(t, ctx, "more.md", "Nothing about it.")
	agent := c.reader(t, true, l, other)
	thread := c.thread(t, ctx, agent)
	script := "/call kb.search {\"query\":\"return shoes\"}\n/cite You have 30 days"

	r := c.poll(t, ctx, c.say(t, ctx, thread, script), "succeeded")
	if r.shape() != "llm:succeeded tool:failed llm:succeeded" {
		t.Errorf("without a grant: %s", r.shape())
	}
	c.grant(t, ctx, object{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow"})
	run := c.say(t, ctx, thread, script)
	r = c.poll(t, ctx, run, "succeeded")
	if r.shape() != "llm:succeeded retrieval:succeeded llm:succeeded" || r.text() != "You have 30 days "+l.mark("returns.md") || r.Steps[1].Name != "builtin:kb.search" {
		t.Fatalf("%s %q", r.shape(), r.text())
	}
	frames := c.stream(t, ctx, run, "?replay=full", "", nil)
	if got := types(frames); got != "run.started step.started step.started tool.called retrieval.result retrieval.result tool.result step.started llm.delta run.completed" {
		t.Fatalf("frames: %s", got)
	}
	var found struct {
		Idx    int
		KB     string
		Chunks []struct {
			citation
			Text  string
			Score float64
		}
	}
	if err := json.Unmarshal(frames[4].Data, &found); err != nil || found.Idx != 1 || found.KB != l.id || len(found.Chunks) != 1 ||
		found.Chunks[0].DocumentID != l.documents["returns.md"] || found.Chunks[0].Text != "Shoes may be returned within 30 days." || found.Chunks[0].Score <= 0 {
		t.Errorf("%v %s", err, frames[4].Data)
	}
	if !strings.Contains(string(frames[5].Data), `"kb":"`+other.id+`","chunks":[]`) {
		t.Errorf("%s", frames[5].Data)
	}
	for i, f := range frames[:len(frames)-1] {
		rest := c.stream(t, ctx, run, "", f.ID, nil)
		if got, want := fmt.Sprint(rest), fmt.Sprint(frames[i+1:]); got != want {
			t.Errorf("resumed after %s: %s, want %s", f.ID, types(rest), types(frames[i+1:]))
		}
	}
	messages := c.citedMessages(t, ctx, thread)
	if m := messages[1]; m.Citations == nil || len(m.Citations) != 0 {
		t.Errorf("an answer without citations has %v", m.Citations)
	}
	want := citation{l.documents["returns.md"], "returns.md", nil, 0, strings.Trim(l.mark("returns.md"), "[]")}
	if m := messages[3]; len(m.Citations) != 1 || m.Citations[0] != want {
		t.Errorf("%+v, want %+v", m.Citations, want)
	}
	if a := c.ask(t, ctx, 200, "GET", "/v1/threads/"+thread+"/messages", nil, nil); strings.Count(string(a.body), `"knowledge_base_id":"`+l.id+`"`) != 1 {
		t.Errorf("the base of what is cited: %s", a.body)
	}
	// A mark of a chunk that this run did not retrieve is no citation.
	c.poll(t, ctx, c.say(t, ctx, thread, "/say Hats "+l.mark("hats.md")), "succeeded")
	if m := c.citedMessages(t, ctx, thread)[5]; len(m.Citations) != 0 {
		t.Errorf("%+v", m.Citations)
	}
}

// A gated kb.search is a step of kind retrieval while it waits.
func TestAGatedSearch(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	c := sharedNode(t).tenant("gated search")
	l := c.library(t, ctx, "returns.md", "Shoes may be returned within 30 days.")
	c.grant(t, ctx, object{"source": "builtin", "tool_pattern": "builtin:kb.search", "effect": "allow"})
	c.policy(t, ctx, object{"tool_pattern": "builtin:kb.search"})
	run := c.say(t, ctx, c.thread(t, ctx, c.reader(t, true, l)), "/call kb.search {\"query\":\"shoes\"}\n/cite yes")
	a := c.waits(t, ctx, run)
	if r := c.read(t, ctx, run); r.shape() != "llm:succeeded retrieval:waiting" {
		t.Errorf("%s", r.shape())
	}
	c.human(t, ctx).decides(t, ctx, a[0].ID, object{"action": "approve"})
	if r := c.poll(t, ctx, run, "succeeded"); r.shape() != "llm:succeeded retrieval:succeeded llm:succeeded" || r.text() != "yes "+l.mark("returns.md") {
		t.Errorf("%s %s", r.shape(), r.text())
	}
	if got := types(c.stream(t, ctx, run, "?replay=full", "", nil)); got != "run.started step.started step.started approval.required run.waiting run.resumed tool.called retrieval.result tool.result step.started llm.delta run.completed" {
		t.Errorf("frames: %s", got)
	}
}

// open-parts.md, Evidence.
func TestEvidence(t *testing.T) {
	t.Parallel()
	ctx := within(t, 90*time.Second)
	c := sharedNode(t).tenant("evidence")
	l := c.library(t, ctx, "returns.md", "Shoes may be returned within 30 days.", "hats.md", "Hats are sold in three sizes.")
	thread := c.thread(t, ctx, c.reader(t, false, l))
	strange := "[kb:01a1fe1a-f0b8-76f3-9442-f6225bb3af01#0]"
	for _, row := range []struct{ name, content, shape, code string }{
		{"the model cites", "How long may I return shoes?", "retrieval:succeeded llm:succeeded", ""},
		{"a valid and a false mark", "/say shoes " + strange + l.mark("returns.md"), "retrieval:succeeded llm:succeeded", ""},
		{"no mark", "/say shoes", "retrieval:succeeded llm:succeeded llm:succeeded", "OUTPUT_INVALID"},
		{"a false mark", "/say shoes " + strange, "retrieval:succeeded llm:succeeded llm:succeeded", "OUTPUT_INVALID"},
		{"a mark of what was not retrieved", "/say shoes " + l.mark("hats.md"), "retrieval:succeeded llm:succeeded llm:succeeded", "OUTPUT_INVALID"},
		{"nothing is found", "zebra", "retrieval:succeeded", "OUTPUT_INVALID"},
	} {
		run := c.proves(t, ctx, thread, row.content)
		r := c.poll(t, ctx, run, "")
		code := ""
		if r.Run.Error != nil {
			code = r.Run.Error.Code
		}
		if r.shape() != row.shape || code != row.code {
			t.Errorf("%s: %s %s %+v", row.name, r.shape(), r.text(), r.Run.Error)
		}
		frames := c.stream(t, ctx, run, "?replay=full", "", nil)
		if !strings.HasPrefix(types(frames), "run.started step.started tool.called retrieval.result tool.result") {
			t.Errorf("%s: frames %s", row.name, types(frames))
		}
		if row.code == "" {
			list := c.citedMessages(t, ctx, thread)
			if m := list[len(list)-1]; m.Role != "assistant" || len(m.Citations) != 1 || m.Citations[0].DocumentName != "returns.md" {
				t.Errorf("%s: %+v", row.name, m)
			}
		}
	}
	for name, agent := range map[string]string{"no base": c.reader(t, false), "a base that is gone": c.reader(t, false, &library{id: "01a1fe1a-f0b8-76f3-9442-f6225bb3af01"})} {
		if r := c.poll(t, ctx, c.proves(t, ctx, c.thread(t, ctx, agent), "shoes"), "failed"); r.Run.Error.Code != "OUTPUT_INVALID" {
			t.Errorf("%s: %+v", name, r.Run.Error)
		}
	}
}

// service.md, Knowledge: retrieval filters chunks by the end user of the run. What a visitor may not
// see is in no step, frame or message of the visitor's runs. open-parts.md, Embed: sources are shown
// if the key says so, without those that the visitor may not see now.
func TestAVisitorsSearchesAndSources(t *testing.T) {
	t.Parallel()
	ctx := within(t, 90*time.Second)
	c := sharedNode(t).tenant("sources")
	l := c.library(t, ctx, "secret.md", "canary shoes for the board only", "kim.md", "shoes of Kim", "all.md", "shoes for everybody")
	c.grant(t, ctx, object{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow"})
	agent := c.reader(t, true, l)
	shows, hides := embedKeyView{}, c.embedKey(t, ctx, agent, "hides")
	c.ask(t, ctx, 201, "POST", "/v1/embed-keys", object{"agent_id": agent, "name": "shows", "allowed_origins": []string{page}, "with_identity_secret": true,
		"config": object{"show_sources": true}}, &shows)
	kim := c.visit(t, ctx, shows.Key, shows.IdentitySecret, "kim")
	c.seenBy(t, ctx, l, "secret.md", object{"principal": "group", "name": "board"})
	c.seenBy(t, ctx, l, "kim.md", object{"principal": "end_user", "id": kim.EndUserID})

	says := func(v *visiting, content string) (thread, run string) {
		var posted struct {
			ThreadID string `json:"thread_id"`
			RunID    string `json:"run_id"`
		}
		a := v.call(t, ctx, "POST", "/v1/embed/messages", object{"content": content})
		if a.status != http.StatusAccepted || json.Unmarshal(a.body, &posted) != nil {
			t.Fatalf("%s", a)
		}
		c.poll(t, ctx, posted.RunID, "succeeded")
		return posted.ThreadID, posted.RunID
	}
	script := "/call kb.search {\"query\":\"canary shoes\",\"top_k\":50}\n/say " + l.mark("all.md") + l.mark("kim.md") + l.mark("secret.md")
	cited := func(v *visiting, thread string) string {
		var list struct{ Items []citedMessage }
		a := v.call(t, ctx, "GET", "/v1/embed/threads/"+thread+"/messages", nil)
		if err := json.Unmarshal(a.body, &list); err != nil || len(list.Items) != 2 {
			t.Fatalf("%v %s", err, a)
		}
		var names []string
		for _, x := range list.Items[1].Citations {
			names = append(names, x.DocumentName)
		}
		return strings.Join(names, " ")
	}
	thread, run := says(kim, script)
	if got := cited(kim, thread); got != "all.md kim.md" {
		t.Errorf("Kim sees %q", got)
	}
	all := string(c.ask(t, ctx, 200, "GET", "/v1/runs/"+run, nil, nil).body) + c.rawStream(t, ctx, run, "?replay=full")
	if !strings.Contains(all, "shoes of Kim") || strings.Contains(all, "for the board only") {
		t.Errorf("Kim's run has %s", all)
	}
	relay, err := kim.do(ctx, "GET", "/v1/embed/runs/"+run+"/events", nil, "Authorization", "Bearer "+kim.Token, "Origin", page, "Accept", "text/event-stream")
	if err != nil || strings.Contains(string(relay.body), "retrieval.result") || strings.Contains(string(relay.body), "shoes of Kim") || !strings.Contains(string(relay.body), "tool.result") {
		t.Errorf("relayed: %v %s", err, relay)
	}
	anonymous := c.visit(t, ctx, shows.Key, shows.IdentitySecret, "")
	unnamed, run := says(anonymous, script)
	if got := cited(anonymous, unnamed); got != "all.md" {
		t.Errorf("an anonymous visitor sees %q", got)
	}
	if r := c.read(t, ctx, run); strings.Contains(string(r.Steps[1].Output), "Kim") || strings.Contains(string(r.Steps[1].Output), "board") {
		t.Errorf("an anonymous visitor's search finds %s", r.Steps[1].Output)
	}
	// What is shown follows the ACL as it is now.
	c.seenBy(t, ctx, l, "all.md", object{"principal": "group", "name": "board"})
	if got := cited(kim, thread); got != "kim.md" {
		t.Errorf("after a change Kim sees %q", got)
	}
	c.ask(t, ctx, 204, "DELETE", "/v1/knowledge-bases/"+l.id+"/documents/"+l.documents["kim.md"], nil, nil)
	if got := cited(kim, thread); got != "" {
		t.Errorf("after a deletion Kim sees %q", got)
	}
	c.seenBy(t, ctx, l, "all.md")
	hidden := c.visit(t, ctx, hides.Key, hides.IdentitySecret, "kim")
	thread, _ = says(hidden, script)
	if a := hidden.call(t, ctx, "GET", "/v1/embed/threads/"+thread+"/messages", nil); strings.Contains(string(a.body), "citations") || strings.Contains(string(a.body), "all.md") {
		t.Errorf("a key that shows no sources: %s", a)
	}
}
