package embed_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"agentsvc/schemas/id"
)

// service.md, Limits: embed message content, 1 to 8000 chars.
func TestAMessageHas1To8000Characters(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, `, "rate_limit_per_min": 1000`)
	for _, c := range []struct {
		name, body string
		status     int
	}{
		{"1 character", message("a", ""), 202},
		{"8000 characters", message(strings.Repeat("a", 8000), ""), 202},
		{"8001 characters", message(strings.Repeat("a", 8001), ""), 400},
		{"8000 characters of 4 bytes", message(strings.Repeat("😀", 8000), ""), 202},
		{"8001 characters of 4 bytes", message(strings.Repeat("😀", 8001), ""), 400},
		{"8000 characters, escaped", `{"content": "` + strings.Repeat(`\u00e4`, 8000) + `"}`, 202},
		{"0 characters", message("", ""), 400},
		{"no content", `{}`, 400},
		{"null", `{"content": null}`, 400},
		{"a number", `{"content": 1}`, 400},
		{"a NUL", `{"content": "a\u0000b"}`, 400},
		{"half a character", `{"content": "\ud800"}`, 400},
		{"bytes that are no UTF-8", "{\"content\": \"\xff\"}", 400},
		{"an unknown field", `{"content": "a", "attachment_ids": []}`, 400},
		{"a per-turn option", `{"content": "a", "tools": []}`, 400},
		{"an _origin of its own", `{"content": "a", "_origin": {}}`, 400},
		{"a thread_id that is none", `{"content": "a", "thread_id": "nonsense"}`, 400},
		{"an empty thread_id", `{"content": "a", "thread_id": ""}`, 400},
		{"no body", "", 400},
	} {
		got := w.visit(k, "").send("POST", "/v1/embed/messages", c.body)
		if got.status != c.status || c.status == 400 && got.code() != "VALIDATION" {
			t.Errorf("%s: %d %.200s, want %d", c.name, got.status, got.body, c.status)
			continue
		}
		if c.status == 202 {
			var sent struct{ Content string }
			w.must(json.Unmarshal([]byte(c.body), &sent))
			w.is(sent.Content, `SELECT content FROM messages WHERE id = $1`, got.get("message_id"))
		}
	}
}

// service.md, Embed: 202 { thread_id, run_id, message_id }; Thread, run, step:
// created_by, input._origin; Embed rules: a normal chat run attributed to the embed key.
func TestAMessageBeginsARunThatSaysWhereItCameFrom(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret)
	for name, g := range map[string]*guest{"anonymous": w.visit(k, ""), "identified": w.visit(k, w.identified(k, `{"sub": "c-1"}`))} {
		by, user, endUser := "embed:vid:"+g.VisitorID, "", "NULL"
		if g.EndUserID != "" {
			by, user, endUser = "embed:eu:"+g.EndUserID, fmt.Sprintf(`, "end_user_id": %q`, g.EndUserID), g.EndUserID
		}
		got := w.ok(g.send("POST", "/v1/embed/messages", message("Where is\nmy order?", "")), 202)
		var members map[string]string
		w.must(json.Unmarshal([]byte(got.body), &members))
		if len(members) != 3 {
			t.Errorf("%s: %s", name, got.body)
		}
		first := said{members["thread_id"], members["run_id"], members["message_id"]}
		w.end(first.Run)
		for text, s := range map[string]said{"Where is\nmy order?": first, "and now?": g.say("and now?", first.Thread)} {
			w.end(s.Run)
			text, err := json.Marshal(text)
			w.must(err)
			want := fmt.Sprintf(`{"text": %s, "_origin": {"embed_key_id": %q, "visitor_id": %q%s}}`, text, k.ID, g.VisitorID, user)
			if input := w.text(`SELECT input::text FROM runs WHERE id = $1`, s.Run); !sameJSON(input, want) {
				t.Errorf("%s: input %s, want %s", name, input, want)
			}
			run := w.ok(w.call(w.a, "GET", "/v1/runs/"+s.Run, ""), 200)
			for path, want := range map[string]string{"run.origin.kind": "embed_key", "run.origin.id": k.ID.String(), "run.agent_id": w.a.agent.String(), "run.thread_id": first.Thread, "run.status": "succeeded"} {
				if run.get(path) != want {
					t.Errorf("%s: %s is %s, want %s", name, path, run.get(path), want)
				}
			}
			w.is(endUser, `SELECT end_user_id::text FROM runs WHERE id = $1`, s.Run)
			w.is(first.Thread, `SELECT thread_id::text FROM runs WHERE id = $1`, s.Run)
		}
		thread := w.ok(w.call(w.a, "GET", "/v1/threads/"+first.Thread, ""), 200)
		if thread.get("created_by") != by || thread.get("agent_id") != w.a.agent.String() {
			t.Errorf("%s: %s", name, thread.body)
		}
		w.is(endUser, `SELECT end_user_id::text FROM threads WHERE id = $1`, first.Thread)
		w.is("2", `SELECT count(*)::text FROM runs WHERE thread_id = $1 AND origin_kind = 'embed_key' AND origin_id = $2`, first.Thread, k.ID)
	}
	// A thread begins with its message or not at all.
	w.is("0", `SELECT count(*)::text FROM threads t WHERE NOT EXISTS (SELECT FROM messages m WHERE m.tenant_id = t.tenant_id AND m.thread_id = t.id)`)
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return string(p) == string(q)
}

// open-parts.md: every POST takes Idempotency-Key, kept per tenant, principal (end user or
// visitor), method and full path.
func TestAMessageIsSentOnce(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret)
	g, other := w.visit(k, ""), w.visit(k, "")
	post := func(g *guest, body, key string) answer {
		t.Helper()
		return g.send("POST", "/v1/embed/messages", body, "Idempotency-Key", key)
	}
	first := w.ok(post(g, message("hello", ""), "a"), 202)
	w.end(first.get("run_id"))
	if again := post(g, message("hello", ""), "a"); again.status != 202 || again.body != first.body {
		t.Errorf("a repeat: %d %s, was %s", again.status, again.body, first.body)
	}
	if again := post(w.visit(k, comesBack(g.Visitor)), message("hello", ""), "a"); again.body != first.body {
		t.Errorf("a repeat in the visitor's next session: %d %s, was %s", again.status, again.body, first.body)
	}
	w.refused("another body", post(g, message("other", ""), "a"), 409, "IDEMPOTENCY_CONFLICT")
	if another := w.ok(post(other, message("hello", ""), "a"), 202); another.get("thread_id") == first.get("thread_id") {
		t.Error("another visitor was answered with this one's thread")
	}
	if another := w.ok(post(g, message("hello", ""), "b"), 202); another.get("thread_id") == first.get("thread_id") {
		t.Error("another key was answered with the first one's thread")
	}
	// An identified visitor is the end user, in each browser.
	ann := w.ok(post(w.visit(k, w.identified(k, `{"sub": "c-1"}`)), message("hello", ""), "a"), 202)
	if again := post(w.visit(k, w.identified(k, `{"sub": "c-1"}`)), message("hello", ""), "a"); again.body != ann.body {
		t.Errorf("an end user's repeat from another browser: %d %s, was %s", again.status, again.body, ann.body)
	}
	for name, key := range map[string]string{"empty": " ", "256 characters": strings.Repeat("x", 256)} {
		if got := post(g, message("hello", ""), key); got.status != 400 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	// A refusal is not kept, and a repeat is answered while its own run is in the way.
	w.models.Hold()
	thread := first.get("thread_id")
	running := w.ok(post(g, message("more", thread), "c"), 202)
	w.refused("in flight", post(g, message("and more", thread), "d"), 409, "EMBED_RUN_IN_FLIGHT")
	if again := post(g, message("more", thread), "c"); again.body != running.body {
		t.Errorf("a repeat while its run is in flight: %d %s", again.status, again.body)
	}
	w.models.Release()
	w.end(running.get("run_id"))
	w.ok(post(g, message("and more", thread), "d"), 202)
	w.is("3", `SELECT count(*)::text FROM runs WHERE thread_id = $1`, thread)
}

// service.md, Embed rules: one reply at a time per thread (409 EMBED_RUN_IN_FLIGHT with
// run_id), a thread holds at most 200 messages (409 EMBED_THREAD_FULL); open-parts.md,
// Embed: a post while the previous run waits for an approval is accepted and queued
// behind it.
func TestOneReplyAtATime(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	g := w.visit(k, "")
	post := func(thread string) answer {
		t.Helper()
		return g.send("POST", "/v1/embed/messages", message("hi", thread))
	}
	w.models.Hold()
	first := g.say("hello", "")
	e, _ := g.open(first.Run, "")
	defer e.close()
	e.until("run.started")
	got := post(first.Thread)
	w.refused("while it runs", got, 409, "EMBED_RUN_IN_FLIGHT")
	var p map[string]any
	w.must(json.Unmarshal([]byte(got.body), &p))
	if p["run_id"] != first.Run || p["type"] != "about:blank" || p["detail"] == "" {
		t.Errorf("%s, want run_id %s", got.body, first.Run)
	}
	if got := g.send("POST", "/v1/embed/messages", message("hi", "")); got.status != 202 {
		t.Errorf("in another thread: %d %s", got.status, got.body)
	}

	w.exec(`UPDATE runs SET status = 'waiting_approval' WHERE id = $1`, first.Run)
	second := w.ok(post(first.Thread), 202)
	if got := post(first.Thread); got.code() != "EMBED_RUN_IN_FLIGHT" || got.get("run_id") != second.get("run_id") {
		t.Errorf("one more while one is queued: %d %s", got.status, got.body)
	}

	// A cancelled run ends, and one that has ended reports its status.
	if got := w.ok(g.send("POST", "/v1/embed/runs/"+second.get("run_id")+"/cancel", ""), 200); got.get("run_id") != second.get("run_id") || got.get("status") != "cancelled" {
		t.Errorf("cancel: %s", got.body)
	}
	w.models.Release()
	w.end(first.Run)
	third := w.ok(post(first.Thread), 202)
	w.end(third.get("run_id"))
	if got := w.ok(g.send("POST", "/v1/embed/runs/"+third.get("run_id")+"/cancel", ""), 200); got.get("status") != "succeeded" {
		t.Errorf("cancel of a run that has ended: %s", got.body)
	}
	w.is("embed:vid:"+g.VisitorID, `SELECT actor FROM audit_log WHERE action = 'run.cancel' AND target_id = $1`, second.get("run_id"))
}

func TestAThreadHolds200Messages(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.a.agent, ""), "")
	for _, c := range []struct {
		messages, status int
	}{{197, 202}, {198, 202}, {199, 409}, {200, 409}} {
		s := w.filled(g, c.messages)
		got := g.send("POST", "/v1/embed/messages", message("hi", s.Thread))
		if got.status != c.status || c.status == 409 && got.code() != "EMBED_THREAD_FULL" {
			t.Errorf("with %d messages: %d %s", c.messages, got.status, got.body)
		}
		if c.status == 202 {
			w.end(got.get("run_id"))
			w.is(fmt.Sprint(c.messages+2), `SELECT count(*)::text FROM messages WHERE thread_id = $1`, s.Thread)
			w.refused(fmt.Sprintf("one more with %d", c.messages+2), g.send("POST", "/v1/embed/messages", message("hi", s.Thread)), 409, "EMBED_THREAD_FULL")
		}
	}
	// A run that ends without a reply gives its place back.
	s := w.filled(g, 197)
	failed := g.say("/fail no", s.Thread)
	if status := w.end(failed.Run); status != "failed" {
		t.Fatalf("the run is %s", status)
	}
	w.is("198", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, s.Thread)
	w.end(g.say("hi", s.Thread).Run)
	w.is("200", `SELECT count(*)::text FROM messages WHERE thread_id = $1`, s.Thread)
}

// security.md, invariant 7: one reply at a time, also for concurrent posts; each 409 names a
// run of that thread that had not finished when the post was sent.
func TestAHundredPostsAtOnce(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, withSecret+`, "rate_limit_per_min": 10000`)
	// One end user in many browsers, each with its own bucket.
	claims := `{"sub": "c-1"}`
	first := w.visit(k, w.identified(k, claims))
	thread := first.say("hello", "")
	w.end(thread.Run)
	var guests []*guest
	for range 20 {
		guests = append(guests, w.visit(k, w.identified(k, claims)))
	}
	var mu sync.Mutex // guards the fields below
	accepted, inFlight := []string{}, map[string]bool{}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			ended := map[string]bool{}
			rows, err := w.admin.Query(t.Context(), `SELECT id::text FROM runs WHERE thread_id = $1 AND finished_at IS NOT NULL`, thread.Thread)
			if err != nil {
				t.Error(err)
				return
			}
			for rows.Next() {
				var run string
				if err := rows.Scan(&run); err != nil {
					t.Error(err)
				}
				ended[run] = true
			}
			got := guests[i%len(guests)].send("POST", "/v1/embed/messages", message(fmt.Sprintf("/say no %d", i), thread.Thread))
			mu.Lock()
			defer mu.Unlock()
			switch run := got.get("run_id"); {
			case got.status == 202:
				accepted = append(accepted, run)
			case got.code() != "EMBED_RUN_IN_FLIGHT":
				t.Errorf("%d %s", got.status, got.body)
			case ended[run]:
				t.Errorf("a post was refused because of run %s, which had ended before", run)
			default:
				inFlight[run] = true
			}
		})
	}
	all.Wait()
	for _, run := range accepted {
		if status := w.end(run); status != "succeeded" {
			t.Errorf("run %s is %s", run, status)
		}
	}
	if len(accepted) == 0 || len(inFlight) == 0 {
		t.Fatalf("void: %d accepted, %d in the way", len(accepted), len(inFlight))
	}
	for run := range inFlight {
		if !slices.Contains(accepted, run) {
			t.Errorf("run %s was in the way, and nobody began it", run)
		}
	}
	// No message came between a message and its reply.
	w.is("0", `SELECT count(*)::text FROM messages a JOIN messages b ON b.thread_id = a.thread_id AND b.seq = (SELECT min(seq) FROM messages c WHERE c.thread_id = a.thread_id AND c.seq > a.seq)
		WHERE a.thread_id = $1 AND (a.role = b.role OR a.role = 'user' AND a.run_id <> b.run_id)`, thread.Thread)
	w.is(fmt.Sprint(2*len(accepted)+2), `SELECT count(*)::text FROM messages WHERE thread_id = $1`, thread.Thread)
}

// service.md, Errors: AGENT_NOT_PUBLISHED.
func TestAnAgentThatIsNotPublishedDoesNotAnswer(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.newAgent(w.a, ""), ""), "")
	w.refused("a first message", g.send("POST", "/v1/embed/messages", message("hi", "")), 409, "AGENT_NOT_PUBLISHED")
	w.is("0", `SELECT count(*)::text FROM threads`)
}

// service.md, Embed: newest 100 messages, oldest first; open-parts.md, Embed: history
// { items: [{ id, role: user|assistant, content, run_id, created_at }] }.
func TestAVisitorReadsTheNewest100Messages(t *testing.T) {
	w := newWorld(t)
	g := w.visit(w.newKey(w.a, w.a.agent, ""), "")
	read := func(thread string) (got answer, items []map[string]any) {
		t.Helper()
		got = w.ok(g.send("GET", "/v1/embed/threads/"+thread+"/messages", ""), 200)
		var all map[string][]map[string]any
		w.must(json.Unmarshal([]byte(got.body), &all))
		if len(all) != 1 {
			t.Errorf("%s", got.body)
		}
		return got, all["items"]
	}
	s := g.say("/say Here it is", "")
	w.end(s.Run)
	got, items := read(s.Thread)
	if len(items) != 2 {
		t.Fatalf("%s", got.body)
	}
	for i, want := range []map[string]any{{"role": "user", "content": "/say Here it is", "run_id": s.Run}, {"role": "assistant", "content": "Here it is", "run_id": s.Run}} {
		for name, v := range want {
			if items[i][name] != v {
				t.Errorf("item %d: %s is %v, want %v", i, name, items[i][name], v)
			}
		}
		if len(items[i]) != 5 || items[i]["id"] == "" || items[i]["created_at"] == "" {
			t.Errorf("item %d: %v", i, items[i])
		}
	}
	if items[0]["id"] != s.Message {
		t.Errorf("the message is %v, was %s", items[0]["id"], s.Message)
	}
	for _, n := range []int{99, 100, 101, 200} {
		_, items := read(w.filled(g, n).Thread)
		if len(items) != min(n, 100) || items[len(items)-1]["content"] != "no 1" || items[0]["content"] != fmt.Sprintf("no %d", min(n, 100)) {
			t.Errorf("of %d messages: %d, from %v to %v", n, len(items), items[0]["content"], items[len(items)-1]["content"])
		}
	}
	system := w.filled(g, 4)
	w.exec(`UPDATE messages SET role = 'system', content = 'CANARY' WHERE thread_id = $1 AND seq = 999`, system.Thread)
	if got, items := read(system.Thread); len(items) != 3 || strings.Contains(got.body, "CANARY") {
		t.Errorf("with a message of the system: %s", got.body)
	}
}

// open-parts.md, Embed: GET /v1/embed/threads lists the visitor's own threads; a page of
// { id, title, created_at, updated_at }, newest first.
func TestAVisitorListsItsThreads(t *testing.T) {
	w := newWorld(t)
	k := w.newKey(w.a, w.a.agent, "")
	g, other := w.visit(k, ""), w.visit(k, "")
	if got := w.ok(g.send("GET", "/v1/embed/threads", ""), 200); got.body != `{"items":[],"next_cursor":null}` {
		t.Errorf("none: %s", got.body)
	}
	var made []string
	for i := range 5 {
		made = append(made, g.say(fmt.Sprintf("no %d\nand more", i), "").Thread)
		other.say("not mine", "")
	}
	slices.SortFunc(made, func(a, b string) int { return strings.Compare(b, a) })
	var seen []string
	cursor := ""
	for pages := 0; ; pages++ {
		got := w.ok(g.send("GET", "/v1/embed/threads?limit=2"+cursor, ""), 200)
		var list struct {
			Items []map[string]any
			Next  string `json:"next_cursor"`
		}
		w.must(json.Unmarshal([]byte(got.body), &list))
		for _, item := range list.Items {
			seen = append(seen, item["id"].(string))
			title, _ := item["title"].(string)
			if len(item) != 4 || item["created_at"] == "" || item["updated_at"] == "" || !strings.HasPrefix(title, "no ") || strings.Contains(title, "\n") {
				t.Errorf("%v", item)
			}
		}
		if list.Next == "" {
			if pages != 2 {
				t.Errorf("%d pages", pages+1)
			}
			break
		}
		cursor = "&cursor=" + list.Next
		if pages == 0 {
			if got := other.send("GET", "/v1/embed/threads?limit=100"+cursor, ""); strings.Contains(got.body, made[4]) {
				t.Errorf("by the cursor of another visitor: %s", got.body)
			}
		}
	}
	if !slices.Equal(seen, made) {
		t.Errorf("listed %v, made %v", seen, made)
	}
	for _, query := range []string{"?limit=0", "?limit=101", "?limit=x", "?cursor=nonsense"} {
		if got := g.send("GET", "/v1/embed/threads"+query, ""); got.status != 400 || got.code() != "VALIDATION" {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
	long := w.visit(k, "")
	long.say(strings.Repeat("😀 ", 4000), "")
	if title := w.ok(long.send("GET", "/v1/embed/threads", ""), 200).get("items.0.title"); utf8.RuneCountInString(title) > 200 || title == "" || !utf8.ValidString(title) {
		t.Errorf("the title of a long message: %q", title)
	}
	w.ok(w.call(w.a, "DELETE", "/v1/threads/"+made[0], ""), 204)
	if got := g.send("GET", "/v1/embed/threads", ""); strings.Contains(got.body, made[0]) {
		t.Errorf("one that was deleted: %s", got.body)
	}
	if _, err := id.Parse(made[0]); err != nil {
		t.Error(err)
	}
}
