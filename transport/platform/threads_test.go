package platform

import (
	"testing"

	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// service.md, Embed rules: they hold whoever posts in the thread of a visitor.
func TestABackEndPostsInAnEmbedThread(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	embedded := func(status string, messages int) (th id.ThreadID, r id.RunID) {
		th, r = id.ThreadID{UUID: id.New(5)}, id.RunID{UUID: id.New(5)}
		_, err := w.admin.Exec(t.Context(), `INSERT INTO threads (tenant_id, id, agent_id, created_by, next_seq) VALUES ($1, $2, $3, 'embed:vid:1', 1001)`, w.a.tenant, th, w.a.agent)
		w.must(err)
		_, err = w.admin.Exec(t.Context(), `INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, input, origin_kind, origin_id, created_at, finished_at)
			VALUES ($1, $2, $3::text, $4, 1, $5, 1000, '{}', 'embed_key', $1, now(), CASE $3::text WHEN 'succeeded' THEN now() END)`, w.a.tenant, r, status, w.a.agent, th)
		w.must(err)
		_, err = w.admin.Exec(t.Context(), `INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at)
			SELECT $1, $2, 1001 - n, gen_random_uuid(), 'user', 'x', CASE n WHEN 1 THEN $3::uuid END, now() FROM generate_series(1, $4) n`, w.a.tenant, th, r, messages)
		w.must(err)
		return th, r
	}
	for _, row := range []struct {
		name     string
		run      string
		messages int
		status   int
		code     string
	}{
		{"the run before has ended", "succeeded", 2, 202, ""},
		{"the run before waits for an approval", "waiting_approval", 2, 202, ""},
		{"the run before is running", "running", 2, 409, "EMBED_RUN_IN_FLIGHT"},
		{"the run before is queued", "queued", 2, 409, "EMBED_RUN_IN_FLIGHT"},
		{"there is place", "succeeded", 198, 202, ""},
		{"there is none", "succeeded", 199, 409, "EMBED_THREAD_FULL"},
	} {
		t.Run(row.name, func(t *testing.T) {
			th, r := embedded(row.run, row.messages)
			for range 2 { // the second time the thread is remembered
				before := len(w.actors.orders())
				got := w.call(w.a, "POST", "/v1/threads/"+th.String()+"/messages", `{"content": "hi"}`)
				if got.status != row.status || got.code() != row.code {
					t.Fatalf("%d %s", got.status, got.body)
				}
				if row.code == "EMBED_RUN_IN_FLIGHT" && got.get("run_id") != any(r.String()) {
					t.Error(got.body)
				}
				orders := w.actors.orders()[before:]
				if (len(orders) == 1) != (row.code == "") {
					t.Fatalf("asked %+v", orders)
				}
				if len(orders) == 1 {
					if post := orders[0].(msg.Post); post.Behind != r || post.New != nil || post.EndUserID != nil {
						t.Errorf("asked %+v", post)
					}
				}
			}
		})
	}
	// A thread of the platform takes as many as come.
	for range 3 {
		before := len(w.actors.orders())
		if got := w.call(w.a, "POST", "/v1/threads/"+w.a.thread.String()+"/messages", `{"content": "hi"}`); got.status != 202 {
			t.Fatal(got.body)
		}
		if post := w.actors.orders()[before].(msg.Post); !post.Behind.IsZero() || post.New != nil {
			t.Errorf("asked %+v", post)
		}
	}
}
