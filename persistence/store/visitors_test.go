package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/problem"
)

// visitors is a tenant with two agents, and threads of several people.
type visitors struct {
	*world
	t            *testing.T
	agent, other id.AgentID
	anonymous    Visitor
	identified   Visitor
}

func newVisitors(t *testing.T) *visitors {
	t.Helper()
	w := &visitors{world: newWorld(t), t: t}
	w.change(t, w.a, func(ctx context.Context, tx *Tx) error {
		for _, into := range []*id.AgentID{&w.agent, &w.other} {
			a, err := tx.CreateAgent(ctx, &api.AgentCreate{Name: "Agent"})
			if err != nil {
				return err
			}
			*into = a.ID
		}
		return nil
	})
	w.anonymous = Visitor{Agent: w.agent, CreatedBy: "embed:vid:" + id.NewAnywhere().String()}
	w.identified = Visitor{Agent: w.agent, CreatedBy: "embed:eu:" + id.NewAnywhere().String()}
	return w
}

func (w *visitors) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Admin(w.t).Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *visitors) thread(who Visitor) id.ThreadID {
	w.t.Helper()
	th := id.ThreadID{UUID: id.New(3)}
	w.exec(`INSERT INTO threads (tenant_id, id, agent_id, created_by, title) VALUES ($1, $2, $3, $4, 'Title')`, w.a, th, who.Agent, who.CreatedBy)
	return th
}

// run creates a run at that place of the thread, with its message.
func (w *visitors) run(th id.ThreadID, seq int, status lifecycle.RunStatus) id.RunID {
	w.t.Helper()
	r := id.RunID{UUID: id.New(3)}
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, thread_id, thread_seq, origin_kind, origin_id, created_at, finished_at, error_code)
		VALUES ($1, $2, $3::text, $4, 1, $5, $6, 'embed_key', $1, now(), CASE WHEN $3::text IN ('succeeded', 'failed', 'cancelled') THEN now() END,
		CASE WHEN $3::text IN ('failed', 'cancelled') THEN 'INTERNAL' END)`, w.a, r, status, w.agent, th, seq)
	w.message(th, seq, "user", &r)
	if status == lifecycle.RunSucceeded {
		w.message(th, seq+1, "assistant", &r)
	}
	return r
}

func (w *visitors) message(th id.ThreadID, seq int, role string, r *id.RunID) {
	w.t.Helper()
	w.exec(`INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, now())`,
		w.a, th, seq, id.NewAnywhere(), role, fmt.Sprint(role, " ", seq), r)
}

// security.md: another owner's thread or run is answered like an unknown one.
func TestVisitorsReadTheirOwn(t *testing.T) {
	t.Parallel()
	w := newVisitors(t)
	v := w.View(w.a)
	own, theirs := w.thread(w.anonymous), w.thread(w.identified)
	run := w.run(own, 1, lifecycle.RunSucceeded)
	w.run(theirs, 1, lifecycle.RunSucceeded)
	platform := w.thread(Visitor{Agent: w.agent, CreatedBy: "apikey:" + w.key.String()})
	ofPlatform := w.run(platform, 1, lifecycle.RunQueued)
	alone := id.RunID{UUID: id.New(3)}
	w.exec(`INSERT INTO runs (tenant_id, id, status, agent_id, agent_version, origin_kind, origin_id, created_at) VALUES ($1, $2, 'queued', $3, 1, 'api_key', $1, now())`, w.a, alone, w.agent)
	gone := w.thread(w.anonymous)
	ofGone := w.run(gone, 1, lifecycle.RunQueued)
	w.exec(`UPDATE threads SET deleted_at = now() WHERE id = $1`, gone)

	for _, row := range []struct {
		name   string
		view   View
		who    Visitor
		thread id.ThreadID
		run    id.RunID
		ok     bool
	}{
		{"the visitor's own", v, w.anonymous, own, run, true},
		{"another visitor's", v, Visitor{w.agent, "embed:vid:" + id.NewAnywhere().String()}, own, run, false},
		{"an anonymous visitor's, of an identified one", v, w.identified, own, run, false},
		{"an identified visitor's, of an anonymous one", v, w.anonymous, theirs, id.RunID{}, false},
		{"of another agent", v, Visitor{w.other, w.anonymous.CreatedBy}, own, run, false},
		{"of another tenant", w.View(w.b), w.anonymous, own, run, false},
		{"deleted", v, w.anonymous, gone, ofGone, false},
		{"of the platform", v, w.anonymous, platform, ofPlatform, false},
		{"of the platform, by who claims to be its maker", v, Visitor{w.agent, "apikey:" + w.key.String()}, platform, ofPlatform, false},
		{"a run without a thread", v, w.anonymous, id.ThreadID{UUID: id.New(3)}, alone, false},
		{"nothing", v, w.anonymous, id.ThreadID{UUID: id.New(3)}, id.RunID{UUID: id.New(3)}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, messages := row.view.VisitorMessages(t.Context(), row.who, row.thread)
			asked := row.view.VisitorRun(t.Context(), row.who, row.run)
			for what, err := range map[string]error{"messages": messages, "run": asked} {
				if row.ok && err != nil || !row.ok && !errors.Is(err, problem.NotFound("")) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	for who, want := range map[Visitor][]id.ThreadID{w.anonymous: {own}, w.identified: {theirs}, {w.other, w.anonymous.CreatedBy}: nil, {w.agent, "apikey:" + w.key.String()}: nil} {
		rows, err := v.VisitorThreads(t.Context(), who, id.ThreadID{}, 10)
		if err != nil || !slices.Equal(ids(rows), want) {
			t.Errorf("%+v: %v, %v", who, ids(rows), err)
		}
	}
	if rows, err := w.View(w.b).VisitorThreads(t.Context(), w.anonymous, id.ThreadID{}, 10); err != nil || len(rows) != 0 {
		t.Error(rows, err)
	}
}

func ids(rows []api.EmbedThread) (out []id.ThreadID) {
	for _, r := range rows {
		out = append(out, r.ID)
	}
	return out
}

// Threads are listed newest first; one more row shows whether there is a next page.
func TestVisitorsThreadsAreListed(t *testing.T) {
	t.Parallel()
	w := newVisitors(t)
	var all []id.ThreadID
	for range 5 {
		all = append([]id.ThreadID{w.thread(w.anonymous)}, all...)
		w.thread(w.identified)
	}
	first, err := w.View(w.a).VisitorThreads(t.Context(), w.anonymous, id.ThreadID{}, 2)
	if err != nil || !slices.Equal(ids(first), all[:3]) || first[0].Title == nil || *first[0].Title != "Title" {
		t.Errorf("%+v, %v", first, err)
	}
	if rest, err := w.View(w.a).VisitorThreads(t.Context(), w.anonymous, all[1], 10); err != nil || !slices.Equal(ids(rest), all[2:]) {
		t.Errorf("%+v, %v", rest, err)
	}
}

// service.md, Embed: the newest 100 messages, oldest first, of visitors and agents only.
func TestVisitorsHistory(t *testing.T) {
	t.Parallel()
	w := newVisitors(t)
	th := w.thread(w.anonymous)
	if items, err := w.View(w.a).VisitorMessages(t.Context(), w.anonymous, th); err != nil || items == nil || len(items) != 0 {
		t.Errorf("%v, %v", items, err)
	}
	r := w.run(th, 1, lifecycle.RunSucceeded)
	items, err := w.View(w.a).VisitorMessages(t.Context(), w.anonymous, th)
	if err != nil || len(items) != 2 || items[0].Role != "user" || items[1].Role != "assistant" || items[1].Content != "assistant 2" || *items[1].RunID != r || items[1].CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", items, err)
	}
	for seq := 3; seq <= 150; seq++ {
		w.message(th, seq, []string{"user", "assistant", "system"}[seq%3], nil)
	}
	items, err = w.View(w.a).VisitorMessages(t.Context(), w.anonymous, th)
	if err != nil || len(items) != EmbedHistory || items[99].Content != "assistant 148" && items[99].Content != "user 150" {
		t.Fatalf("%d, %+v, %v", len(items), items[len(items)-1], err)
	}
	last := 0
	for _, m := range items {
		var seq int
		if _, err := fmt.Sscanf(m.Content, m.Role+" %d", &seq); err != nil || seq <= last || m.Role == "system" {
			t.Errorf("%q after %d", m.Content, last)
		}
		last = seq
	}
}
