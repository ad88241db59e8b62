package platform

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/api"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
)

// What the route of the feed does; the frames are tested in actors/notice.
func TestFeedRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		query string
		want  []string // nil: VALIDATION
	}{
		{"", event.Topics},
		{"?topics=", event.Topics},
		{"?topics=runs", []string{"runs"}},
		{"?topics=resources,runs", []string{"resources", "runs"}},
		{"?topics=runs,runs", []string{"runs", "runs"}},
		{"?topics=runs,", nil},
		{"?topics=Runs", nil},
		{"?topics=runs%20", nil},
		{"?topics=steps", nil},
		{"?topics=" + strings.Repeat("runs,", 50) + "runs", nil},
	} {
		got := w.call(w.a, "GET", "/v1/feed"+c.query, "", "Accept", "text/event-stream")
		if c.want == nil {
			if got.status != 400 || got.code() != "VALIDATION" || !strings.Contains(got.detail(), "topics") {
				t.Errorf("%q: %d %s", c.query, got.status, got.body)
			}
			continue
		}
		if got.status != 200 || !strings.Contains(got.body, `data: {"type":"feed.ready"}`) || strings.Contains(got.body, "id:") {
			t.Errorf("%q: %d %s", c.query, got.status, got.body)
		}
		if v := w.feeds.last(); !slices.Equal(v.Topics, c.want) || v.Tenant != w.a.tenant || v.Role != lifecycle.RoleAdmin {
			t.Errorf("%q: %+v", c.query, v)
		}
	}
	if got := w.call(w.a, "GET", "/v1/feed", "", "Accept", "application/json"); got.status != 400 {
		t.Errorf("JSON of a feed: %d", got.status)
	}
	// A manager decides for the nodes below the managed one.
	node := id.NodeID{UUID: w.a.node.UUID}
	human := w.newHuman(w.a, "manager@example.com", lifecycle.RoleMember)
	if got := w.call(w.a, "PUT", "/v1/org-nodes/"+node.String()+"/managers/"+human.id.String(), ""); got.status != 204 {
		t.Fatal(got.body)
	}
	w.person("member/"+human.id.String(), "GET", "/v1/feed", "")
	v := w.feeds.last()
	decides, err := v.Decides(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.User != human.id || !decides(lifecycle.RoleManager, &node) || decides(lifecycle.RoleManager, nil) || decides(lifecycle.RoleAdmin, nil) || !decides(lifecycle.RoleMember, nil) {
		t.Errorf("the manager's feed: %+v", v)
	}
	// Rights are read anew when the feed hears of changes, so that none is missed in between.
	if got := w.call(w.a, "DELETE", "/v1/org-nodes/"+node.String()+"/managers/"+human.id.String(), ""); got.status != 204 {
		t.Fatal(got.body)
	}
	if decides, err = v.Decides(t.Context()); err != nil || decides(lifecycle.RoleManager, &node) {
		t.Errorf("the feed of a former manager: %v", err)
	}
	// A change of a role ends the streams of the user.
	w.ended.take()
	if got := w.call(w.a, "PATCH", "/v1/users/"+human.id.String(), `{"role": "admin"}`); got.status != 200 {
		t.Fatal(got.body)
	}
	if ended := w.ended.take(); ended != "all of "+human.id.String() {
		t.Errorf("a changed role ends %q", ended)
	}
}

// overview reads an overview.
func (w *world) overview(cookie string) *api.Overview {
	w.t.Helper()
	got := w.call(w.a, "GET", "/v1/overview", "")
	if cookie != "" {
		got = w.person(cookie, "GET", "/v1/overview", "")
	}
	if got.status != 200 {
		w.t.Fatal(got.body)
	}
	if err := newDocument(w.t).conforms("GET", "/v1/overview", got); err != nil {
		w.t.Error(err)
	}
	out := &api.Overview{}
	w.must(json.Unmarshal([]byte(got.body), out))
	return out
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.admin.Exec(w.t.Context(), sql, args...)
	w.must(err)
}

// tally writes one tally of a's tenant.
func (w *world) tally(what lifecycle.Tally, at time.Time, agent *id.AgentID, ms int64) {
	w.exec(`INSERT INTO tallies (tenant_id, what, at, agent_id, ms, tokens_in, tokens_out, cost_usd) VALUES ($1, $2, $3, $4, $5, 10, 1, 0.5)`, w.a.tenant, string(what), at, agent, ms)
}

func kindsOf(o *api.Overview) (out []string) {
	for _, a := range o.Attention {
		out = append(out, fmt.Sprintf("%s %d", a.Kind, a.Count))
	}
	return out
}

func TestOverview(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	o := w.overview("")
	if o.Runs.Queued+o.Runs.Running+o.Runs.WaitingApproval < 1 || o.Approvals.Pending != 1 || o.Approvals.Mine != 1 || o.Approvals.NextExpiresAt == nil || o.Deliveries == nil {
		t.Errorf("%+v", o)
	}
	if r := o.Approvals.ByRisk; r.Low+r.Medium+r.High+r.Critical != 1 {
		t.Errorf("by risk: %+v", r)
	}
	// failing_agent: at least 5 runs and half of them failed in 24 h.
	failing := func() int64 {
		for _, a := range w.overview("").Attention {
			if a.Kind == api.AttentionFailingAgent {
				if a.ID == nil || *a.ID != w.a.agent.UUID || a.Title != "Agent" {
					t.Errorf("%+v", a)
				}
				return a.Count
			}
		}
		return 0
	}
	for i, c := range []struct {
		what lifecycle.Tally
		at   time.Time
		want int64
	}{
		{lifecycle.TallyFailed, now.Add(-25 * time.Hour), 0}, // too old
		{lifecycle.TallyFailed, now.Add(-time.Hour), 0},
		{lifecycle.TallyFailed, now, 0},
		{lifecycle.TallySucceeded, now, 0},
		{lifecycle.TallyCancelled, now, 0},
		{lifecycle.TallyFailed, now, 3},    // 3 of 5
		{lifecycle.TallySucceeded, now, 3}, // 3 of 6
		{lifecycle.TallySucceeded, now, 0}, // 3 of 7
	} {
		w.tally(c.what, c.at, &w.a.agent, 1000)
		w.tally(c.what, c.at, nil, 1000)
		if got := failing(); got != c.want {
			t.Errorf("%d: %d failed runs are shown, want %d", i, got, c.want)
		}
	}
	o = w.overview("")
	if o.Runs.Failed24h != 6 || o.Runs.Succeeded24h != 6 || o.Runs.Cancelled24h != 2 {
		t.Errorf("%+v", o.Runs)
	}
	// What fails besides.
	w.exec(`UPDATE knowledge_sources SET status = 'failed' WHERE tenant_id = $1`, w.a.tenant)
	w.exec(`INSERT INTO runs (tenant_id, id, status, error_code, agent_id, agent_version, input, origin_kind, origin_id, created_at, finished_at)
		VALUES ($1, $2, 'failed', 'INTERNAL', $3, 1, '"hi"', 'trigger', $4, now(), now())`, w.a.tenant, id.NewAnywhere(), w.a.agent, w.a.hook)
	w.tally(lifecycle.TallyUndelivered, now, nil, 0)
	w.exec(`UPDATE mcp_servers SET health_ok = false, health_at = now() WHERE tenant_id = $1`, w.a.tenant)
	o = w.overview("")
	got := kindsOf(o)
	for _, want := range []string{"approvals 1", "failing_endpoint 1", "unreachable_server 1", "failed_source 1", "failed_trigger 1"} {
		if !slices.Contains(got, want) {
			t.Errorf("%v lack %s", got, want)
		}
	}
	for _, a := range o.Attention {
		var base string
		if a.Kind == api.AttentionFailedSource {
			w.must(w.admin.QueryRow(t.Context(), `SELECT base_id::text FROM knowledge_sources WHERE id = $1`, a.ID).Scan(&base))
		}
		if got := a.ParentID; (got != nil) != (base != "") || got != nil && got.String() != base {
			t.Errorf("%s: the parent is %v, the base %q", a.Kind, got, base)
		}
	}
	if o.Deliveries.Failed24h != 1 {
		t.Errorf("%+v", o.Deliveries)
	}
	// A member: no deliveries, and nothing that only admins manage.
	o = w.overview("member")
	if got := kindsOf(o); o.Deliveries != nil || slices.Contains(got, "failing_endpoint 1") || slices.Contains(got, "failed_trigger 1") || !slices.Contains(got, "failed_source 1") {
		t.Errorf("a member sees %v and %v", got, o.Deliveries)
	}
}

// mine: pending, the caller's to decide, not voted on by the caller.
func TestMine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := func(cookie string, want, pending int64) {
		t.Helper()
		if o := w.overview(cookie); o.Approvals.Mine != want || o.Approvals.Pending != pending || slices.Contains(kindsOf(o), fmt.Sprintf("approvals %d", want)) != (want > 0) {
			t.Errorf("%q: mine %d of %d, want %d of %d", cookie, o.Approvals.Mine, o.Approvals.Pending, want, pending)
		}
	}
	set := func(role, decisions string, soFar int) {
		w.exec(`UPDATE approvals SET assignee_role = $2, decisions = $3, approvals_so_far = $4, required_approvals = 2 WHERE tenant_id = $1`, w.a.tenant, role, decisions, soFar)
	}
	owner := "user:" + w.a.owner.String()
	set("member", "[]", 0)
	mine("", 1, 1)
	mine("member", 1, 1)
	set("admin", "[]", 0)
	mine("", 1, 1)
	mine("member", 0, 1)
	set("owner", "[]", 0)
	mine("", 0, 1)
	mine("owner", 1, 1)
	set("admin", `[{"principal": "`+owner+`", "action": "approve"}]`, 1)
	mine("owner", 0, 1)
	mine("", 1, 1)
	set("admin", `[{"principal": "apikey:`+id.NewAnywhere().String()+`", "action": "approve"}]`, 1)
	mine("owner", 1, 1)
	mine("", 0, 1) // all keys are one person
	w.exec(`UPDATE approvals SET status = 'cancelled', decision = 'cancel', decided_at = now() WHERE tenant_id = $1`, w.a.tenant)
	mine("owner", 0, 0)
}

func TestStatsRoute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		w.must(err)
		return v
	}
	described := newDocument(t)
	for _, c := range []struct {
		query string
		want  int    // items; 0: VALIDATION
		field string // named by the error
	}{
		{"", 25, ""}, // the hour that began 24 h ago, and the current one
		{"?from=2026-03-01T00:00:00Z&to=2026-03-02T00:00:00Z", 24, ""},
		{"?from=2026-03-01T00:00:00Z&to=2026-03-01T06:40:00Z&step=minute", 400, ""},
		{"?from=2026-03-01T00:00:00Z&to=2026-03-01T06:40:01Z&step=minute", 0, "from"},
		{"?from=2025-01-01T00:00:00Z&to=2026-02-05T00:00:00Z&step=day", 400, ""},
		{"?from=2025-01-01T00:00:00Z&to=2026-02-05T00:00:01Z&step=day", 0, "from"},
		{"?from=0001-01-01T00:00:00Z&to=9999-12-31T00:00:00Z&step=minute", 0, "from"},
		{"?from=2026-03-28T00:00:00Z&to=2026-03-31T00:00:00Z&step=day&tz=Europe/Berlin", 4, ""},
		{"?from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z", 0, "from"},
		{"?step=week", 0, "step"},
		{"?tz=Mars/Olympus", 0, "tz"},
		{"?tz=../../etc/passwd", 0, "tz"},
		{"?tz=" + strings.Repeat("x", 65), 0, "tz"},
		{"?agent_id=x", 0, "agent_id"},
		{"?from=yesterday", 0, "from"},
	} {
		got := w.call(w.a, "GET", "/v1/stats"+c.query, "")
		if c.want == 0 {
			if got.status != 400 || got.code() != "VALIDATION" || !strings.Contains(got.detail(), c.field) {
				t.Errorf("%q: %d %s", c.query, got.status, got.body)
			}
			continue
		}
		var out api.Items[api.Stat]
		if err := json.Unmarshal([]byte(got.body), &out); err != nil || got.status != 200 || len(out.Items) != c.want {
			t.Errorf("%q: %d, %d items: %v", c.query, got.status, len(out.Items), err)
		}
		if err := described.conforms("GET", "/v1/stats", got); err != nil {
			t.Errorf("%q: %v", c.query, err)
		}
	}
	if got := w.call(w.a, "GET", "/v1/stats?from=2026-03-01T00:00:00Z&to=2026-03-01T00:00:00Z", ""); got.body != `{"items":[]}` {
		t.Error(got.body)
	}
	// Days of a zone, with empty ones; from whichever side of the fold the figures come.
	w.tally(lifecycle.TallySucceeded, at("2026-03-28T22:59:59Z"), &w.a.agent, 1000)
	w.tally(lifecycle.TallyFailed, at("2026-03-28T23:00:00Z"), &w.a.agent, 1000)
	w.tally(lifecycle.TallyDecided, at("2026-03-29T21:59:59Z"), &w.a.agent, 84_000)
	w.tally(lifecycle.TallyDelivered, at("2026-03-29T22:00:00Z"), nil, 0)
	w.tally(lifecycle.TallyExpired, at("2026-03-31T12:00:00Z"), &w.a.draft, 0)
	w.exec(`INSERT INTO tallies (tenant_id, what, at, agent_id, ms) VALUES ($1, 'failed', '2026-03-29T00:00:00Z', $2, 7)`, w.b.tenant, w.b.agent)
	days := func(query string) (out []string) {
		t.Helper()
		got := w.call(w.a, "GET", "/v1/stats?from=2026-03-28T12:00:00Z&to=2026-04-01T12:00:00Z&step=day&"+query, "")
		var items api.Items[api.Stat]
		if err := json.Unmarshal([]byte(got.body), &items); err != nil || got.status != 200 {
			t.Fatal(err, got.body)
		}
		for _, s := range items.Items {
			line := fmt.Sprintf("%s %d %d %d+%d %d %d", s.At.Format("01-02T15"), s.Runs.Succeeded, s.Runs.Failed, s.Approvals.Decided, s.Approvals.Expired, s.Deliveries.Succeeded, s.TokensIn)
			if s.DecisionS != nil {
				line += fmt.Sprintf(" %.0f", s.DecisionS.P50/10)
			}
			out = append(out, line)
		}
		return out
	}
	berlin := []string{"03-27T23 1 0 0+0 0 10", "03-28T23 0 1 1+0 0 10 8", "03-29T22 0 0 0+0 1 10", "03-30T22 0 0 0+1 0 10", "03-31T22 0 0 0+0 0 0"}
	utc := []string{"03-28T00 1 1 0+0 0 20", "03-29T00 0 0 1+0 1 10 8", "03-30T00 0 0 0+0 0 0", "03-31T00 0 0 0+1 0 10", "04-01T00 0 0 0+0 0 0"}
	mine := []string{"03-27T23 1 0 0+0 0 10", "03-28T23 0 1 1+0 0 10 8", "03-29T22 0 0 0+0 0 0", "03-30T22 0 0 0+0 0 0", "03-31T22 0 0 0+0 0 0"}
	for range 2 {
		for query, want := range map[string][]string{"tz=Europe/Berlin": berlin, "tz=UTC": utc, "tz=Europe/Berlin&agent_id=" + w.a.agent.String(): mine} {
			if got := days(query); !slices.Equal(got, want) {
				t.Errorf("%s:\n%s\nwant\n%s", query, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		w.fold()
	}
}
