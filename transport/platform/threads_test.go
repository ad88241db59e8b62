package platform

import (
	"fmt"
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
)

// service.md, Embed rules apply to every caller that posts in a visitor's thread. The thread
// refuses (package actors/thread tests the rules), and the back end gets the error.
func TestABackEndPostsInAnEmbedThread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	th, r := id.ThreadID{UUID: id.New(5)}, id.RunID{UUID: id.New(5)}
	_, err := w.admin.Exec(t.Context(), `INSERT INTO threads (tenant_id, id, agent_id, created_by, next_seq) VALUES ($1, $2, $3, 'embed:vid:1', 1001)`, w.a.tenant, th, w.a.agent)
	w.must(err)
	for _, row := range []struct {
		name   string
		says   error
		status int
		code   string
	}{
		{"it is accepted", nil, 202, ""},
		{"a run is in the way", &problem.Error{Code: problem.CodeEmbedRunInFlight, Extensions: map[string]any{"run_id": r.String()}}, 409, "EMBED_RUN_IN_FLIGHT"},
		{"there is no place", problem.New(problem.CodeEmbedThreadFull, ""), 409, "EMBED_THREAD_FULL"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w.actors.failWith(row.says)
			for i := range 2 { // the second time with an Idempotency-Key
				before := len(w.actors.orders())
				got := w.call(w.a, "POST", "/v1/threads/"+th.String()+"/messages", `{"content": "hi"}`, []string{"Idempotency-Key", fmt.Sprint("k", row.status)}[:2*i]...)
				if got.status != row.status || got.code() != row.code {
					t.Fatalf("%d %s", got.status, got.body)
				}
				if row.code == "EMBED_RUN_IN_FLIGHT" && got.get("run_id") != any(r.String()) {
					t.Error(got.body)
				}
				orders := w.actors.orders()[before:]
				if len(orders) != 1 {
					t.Fatalf("asked %+v", orders)
				}
				if post := orders[0].(msg.Post); post.Visitor != nil || post.New || post.EndUserID != nil {
					t.Errorf("asked %+v", post)
				}
			}
		})
	}
	w.actors.failWith(nil)
	// A thread of the platform has no such limit.
	for range 3 {
		before := len(w.actors.orders())
		if got := w.call(w.a, "POST", "/v1/threads/"+w.a.thread.String()+"/messages", `{"content": "hi"}`); got.status != 202 {
			t.Fatal(got.body)
		}
		if post := w.actors.orders()[before].(msg.Post); post.Visitor != nil || post.New {
			t.Errorf("asked %+v", post)
		}
	}
}
