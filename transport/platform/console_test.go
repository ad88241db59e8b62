package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/tool"
)

// ids returns the ids of an answer's items, by name.
func idsOf(t *testing.T, a answer, names map[string]string) string {
	t.Helper()
	var list struct{ Items []struct{ ID string } }
	if a.status != 200 || json.Unmarshal([]byte(a.body), &list) != nil {
		return fmt.Sprint(a.status, " ", a.code(), " ", a.detail())
	}
	var out []string
	for _, i := range list.Items {
		if name, ok := names[i.ID]; ok {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

// console.md, API that this adds: the filters of GET /v1/runs, and view=summary.
func TestRunFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	names := map[string]string{}
	at := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	eu, trigger, parent := id.NewAnywhere(), id.NewAnywhere(), ""
	for i, r := range []struct{ name, set string }{
		{"failed", `"status": "failed", "error_code": "MODEL_ERROR", "finished_at": "2026-01-01T00:00:00Z"`},
		{"cancelled", `"status": "cancelled", "error_code": "CANCELLED", "finished_at": "2026-01-01T00:00:00Z"`},
		{"parent", `"status": "succeeded", "finished_at": "2026-01-01T00:00:00Z", "origin_kind": "trigger", "origin_id": "{trigger}"`},
		{"child", `"status": "running", "origin_kind": "workflow", "parent_run_id": "{parent}"`},
		{"eu", `"status": "queued", "origin_kind": "embed_key", "person_id": "{eu}", "end_user_id": "{eu}"`},
		{"thread", `"status": "queued", "thread_id": "{thread}", "thread_seq": 1, "input": {"text": "` + strings.Repeat("é", 250) + `"}`},
	} {
		run := id.New(5).String()
		names[run] = r.name
		if r.name == "parent" {
			parent = run
		}
		set := strings.NewReplacer("{parent}", parent, "{eu}", eu.String(), "{trigger}", trigger.String(), "{thread}", w.a.thread.String()).Replace(r.set)
		_, err := w.admin.Exec(t.Context(), `INSERT INTO runs SELECT r.* FROM runs x, jsonb_populate_record(x, $1::text::jsonb || jsonb_build_object('id', $2::text, 'created_at', $3::timestamptz)) r WHERE x.id = $4`,
			"{"+set+"}", run, at.Add(time.Duration(i)*time.Minute), w.a.run)
		w.must(err)
		if r.name == "thread" {
			_, err := w.admin.Exec(t.Context(), `INSERT INTO messages (tenant_id, thread_id, seq, id, role, content, run_id, created_at) VALUES ($1, $2, 1, gen_random_uuid(), 'user', 'x', $3, now())`, w.a.tenant, w.a.thread, run)
			w.must(err)
		}
	}
	since := func(minutes int) string {
		return url.QueryEscape(at.Add(time.Duration(minutes) * time.Minute).Format(time.RFC3339))
	}
	for query, want := range map[string]string{
		"":                                                    "thread eu child parent cancelled failed",
		"?status=failed":                                      "failed",
		"?status=failed&status=running":                       "child failed",
		"?status=cancelled&status=failed":                     "cancelled failed",
		"?status=succeeded&status=failed":                     "parent failed",
		"?status=queued":                                      "thread eu",
		"?status=expired":                                     "",
		"?status=failed&status=done":                          "400 VALIDATION status: expected value to be one of \"queued, running, waiting_approval, succeeded, failed, cancelled, expired\"",
		"?origin=trigger":                                     "parent",
		"?origin=embed_key&status=queued":                     "eu",
		"?origin=nobody":                                      "400 VALIDATION origin: expected value to be one of \"api_key, user, trigger, channel, embed_key, workflow\"",
		"?trigger_id=" + trigger.String():                     "parent",
		"?trigger_id=" + w.a.key.String():                     "", // runs of a key with this id
		"?trigger_id=x":                                       "400 VALIDATION trigger_id: expected a UUID",
		"?end_user_id=" + eu.String():                         "eu",
		"?end_user_id=" + id.NewAnywhere().String():           "",
		"?thread_id=" + w.a.thread.String():                   "thread",
		"?thread_id=" + w.b.thread.String():                   "",
		"?parent_run_id=" + parent:                            "child",
		"?parent_run_id=none":                                 "thread eu parent cancelled failed",
		"?parent_run_id=x":                                    "400 VALIDATION parent_run_id: expected a UUID or none",
		"?code=MODEL_ERROR":                                   "failed",
		"?code=NONE":                                          "",
		"?since=" + since(4):                                  "thread eu",
		"?until=" + since(1):                                  "failed",
		"?since=" + since(1) + "&until=" + since(3):           "parent cancelled",
		"?since=yesterday":                                    "400 VALIDATION since: expected string to be RFC 3339 date-time",
		"?view=full":                                          "400 VALIDATION view: expected value to be one of \"summary\"",
		"?agent_id=" + w.a.agent.String() + "&code=CANCELLED": "cancelled",
		"?" + strings.Repeat("status=failed&", 7):             "failed",
		"?" + strings.Repeat("status=failed&", 8):             "400 VALIDATION status: is given more than 7 times",
	} {
		if got := idsOf(t, w.call(w.a, "GET", "/v1/runs"+query, ""), names); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
		if got := idsOf(t, w.call(w.b, "GET", "/v1/runs"+query, ""), names); got != "" && !strings.HasPrefix(got, "400") {
			t.Errorf("%s: another tenant sees %s", query, got)
		}
	}
	// Pages keep the filter.
	first := w.call(w.a, "GET", "/v1/runs?status=queued&origin=api_key&limit=1", "")
	if next, _ := first.get("next_cursor").(string); idsOf(t, first, names) != "thread" || next == "" {
		t.Errorf("%s", first.body)
	}

	list := w.call(w.a, "GET", "/v1/runs?view=summary&thread_id="+w.a.thread.String(), "")
	if asked, _ := list.get("items.0.asked").(string); asked != strings.Repeat("é", 200) || strings.Contains(list.body, `"input"`) || strings.Contains(list.body, `"output"`) {
		t.Errorf("%s", list.body)
	}
	full := w.call(w.a, "GET", "/v1/runs?thread_id="+w.a.thread.String(), "")
	if !strings.Contains(full.body, `"output":null`) || strings.Contains(full.body, `"asked"`) {
		t.Errorf("%s", full.body)
	}
	_, err := w.admin.Exec(t.Context(), `INSERT INTO run_steps (tenant_id, run_id, idx, kind, name, status, output, began_seq, started_at) VALUES ($1, $2, 0, 'tool', 'x', 'succeeded', '{"big": 1}', 1, now())`, w.a.tenant, parent)
	w.must(err)
	one := w.call(w.a, "GET", "/v1/runs/"+parent+"?view=summary", "")
	if one.get("run.asked") != "hi" || one.get("steps.0.name") != "x" || strings.Contains(one.body, `"input"`) || strings.Contains(one.body, `"output"`) {
		t.Errorf("%s", one.body)
	}
	step := w.call(w.a, "GET", "/v1/runs/"+parent+"/steps/0", "")
	if step.status != 200 || !strings.Contains(step.body, `"output":{"big":1}`) && !strings.Contains(step.body, `"output":{"big": 1}`) || !strings.Contains(step.body, `"input":null`) {
		t.Errorf("%d %s", step.status, step.body)
	}
	for path, p := range map[string]party{"/steps/1": w.a, "/steps/-1": w.a, "/steps/x": w.a, "/steps/99999999999": w.a, "/steps/0": w.b} {
		if got := w.call(p, "GET", "/v1/runs/"+parent+path, ""); got.status != 404 || got.code() != "NOT_FOUND" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

// console.md, API that this adds: the orders and filters of GET /v1/approvals, url and effect.
func TestApprovalOrders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.admin.Exec(t.Context(), "DELETE FROM approvals WHERE id = $1", w.a.approval)
	w.must(err)
	names := map[string]string{}
	ids := map[string]id.ApprovalID{}
	runs := map[string]id.RunID{}
	now := time.Now()
	for i, r := range []struct {
		name string
		risk lifecycle.Risk
		left time.Duration
	}{{"low", lifecycle.RiskLow, time.Minute}, {"late", lifecycle.RiskCritical, time.Hour}, {"soon", lifecycle.RiskCritical, 2 * time.Minute}, {"high", lifecycle.RiskHigh, 3 * time.Minute}} {
		run := id.RunID{UUID: id.New(5)}
		a := w.newApproval(w.a, func(o *opened) { o.risk, o.expires, o.run, o.required = r.risk, now.Add(r.left), run, 1+i%2 })
		names[a.String()], ids[r.name], runs[r.name] = r.name, a, run
	}
	set := func(name, columns string) {
		t.Helper()
		_, err := w.admin.Exec(t.Context(), "UPDATE approvals SET "+columns+" WHERE id = $1", ids[name])
		w.must(err)
	}
	set("late", `approvals_so_far = 1, decisions = '[{"principal":"apikey:1","action":"approve","feedback":null,"edited_args":null,"at":"2026-01-02T03:04:05Z"}]'`)
	set("high", `tool = 'other.tool'`)
	for query, want := range map[string]string{
		"":                           "high soon late low",
		"?sort=created":              "high soon late low",
		"?sort=risk":                 "soon late high low",
		"?sort=expires":              "low soon high late",
		"?sort=age":                  "400 VALIDATION sort: expected value to be one of \"created, risk, expires\"",
		"?mine=true":                 "high soon low",
		"?mine=true&sort=risk":       "soon high low",
		"?mine=true&status=approved": "",
		"?mine=false":                "high soon late low",
		"?tool=other.tool":           "high",
		"?tool=none":                 "",
		"?status=approved&status=pending&risk=critical&sort=expires": "soon late",
	} {
		if got := idsOf(t, w.call(w.a, "GET", "/v1/approvals"+query, ""), names); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	for _, sort := range []string{"created", "risk", "expires"} { // one by one, in the same order
		var got []string
		path := "/v1/approvals?limit=1&sort=" + sort
		for next := ""; ; {
			a := w.call(w.a, "GET", path+next, "")
			got = append(got, idsOf(t, a, names))
			cursor, _ := a.get("next_cursor").(string)
			if cursor == "" {
				break
			}
			next = "&cursor=" + cursor
		}
		if all := idsOf(t, w.call(w.a, "GET", "/v1/approvals?sort="+sort, ""), names); strings.Join(got, " ") != all {
			t.Errorf("%s: %v, want %s", sort, got, all)
		}
	}
	a := w.call(w.a, "GET", "/v1/approvals?limit=1&sort=risk", "")
	cursor, _ := a.get("next_cursor").(string)
	if got := w.call(w.a, "GET", "/v1/approvals?sort=expires&cursor="+cursor, ""); got.code() != "VALIDATION" {
		t.Errorf("the cursor of another order: %d %s", got.status, got.body)
	}

	effect := func(name string) string {
		t.Helper()
		a := w.call(w.a, "GET", "/v1/approvals/"+ids[name].String(), "")
		if a.get("url") != console+"/console/approvals/"+ids[name].String() {
			t.Errorf("%v", a.get("url"))
		}
		if a.get("effect.at") == nil {
			t.Errorf("%s", a.body)
		}
		return fmt.Sprint(a.get("effect.state"), " ", a.get("effect.waiting_for"))
	}
	step := func(columns string) {
		t.Helper()
		_, err := w.admin.Exec(t.Context(), "UPDATE run_steps SET "+columns+" WHERE run_id = $1", runs["low"])
		w.must(err)
	}
	if got := effect("late"); got != "waiting 1" {
		t.Error(got)
	}
	decided := func(status string) string {
		return "status = '" + status + "', decision = 'approve', decided_at = now()"
	}
	set("low", decided("approved")+", approvals_so_far = 1")
	for _, c := range []struct{ step, want string }{
		{`status = 'waiting'`, "waiting 0"},
		{`status = 'running', called_seq = 3`, "running 0"},
		{`status = 'succeeded', output = '{"ok":true}', finished_at = now()`, "succeeded 0"},
		{`status = 'failed', output = '{"error":"TOOL_FAILED","message":"x"}'`, "failed 0"},
		{`status = 'failed', output = '{"error":"UNKNOWN_OUTCOME","message":"x"}'`, "unknown 0"},
		{`status = 'failed', output = NULL`, "none 0"},
	} {
		step(c.step)
		if got := effect("low"); got != c.want {
			t.Errorf("%s: %s, want %s", c.step, got, c.want)
		}
	}
	for _, status := range []string{"rejected", "responded", "expired", "cancelled"} {
		set("low", decided(status))
		if got := effect("low"); got != "none 0" {
			t.Errorf("%s: %s", status, got)
		}
	}
}

// console.md, Settled, Search: what it finds, and what members do not find.
func TestSearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.admin.Exec(t.Context(), `INSERT INTO end_users (tenant_id, id, external_id, name, email) VALUES ($1, $2, 'cust_42%', 'Zoë Zimmer', 'zoe@mail.example')`, w.a.tenant, id.NewAnywhere())
	w.must(err)
	_, err = w.admin.Exec(t.Context(), `UPDATE threads SET title = 'Broken parcel' WHERE id = $1`, w.a.thread)
	w.must(err)
	kinds := func(a answer) string {
		var list struct{ Items []api.Found }
		if a.status != 200 || json.Unmarshal([]byte(a.body), &list) != nil {
			return fmt.Sprint(a.status, " ", a.code())
		}
		var out []string
		for _, i := range list.Items {
			if k := string(i.Kind); !slices.Contains(out, k) {
				out = append(out, k)
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	short := func(u id.UUID) string { s := u.String(); return s[len(s)-8:] }
	for _, c := range []struct{ says, q, admin, member string }{
		{"an id", w.a.run.String(), "run", "run"},
		{"in capitals", strings.ToUpper(w.a.agent.String()), "agent", "agent"},
		{"the end of an id", short(w.a.run.UUID), "run", "run"},
		{"more of an id", w.a.thread.String()[20:], "thread", "thread"},
		{"another id with this end", "0" + short(w.a.run.UUID) + "00000000", "", ""},
		{"an approval above the role", w.a.approval.String(), "approval", ""},
		{"a server", w.a.server.String(), "mcp_server", ""},
		{"the beginning of a title", "broken P", "thread", "thread"},
		{"an external id", "CUST_4", "end_user", "end_user"},
		{"signs are no wildcards", "cust%", "", ""},
		{"a name", "zoë", "end_user", "end_user"},
		{"an e-mail", "zoe@", "end_user", ""},
		{"the e-mail of a user", "o@example", "user", ""},
		{"another tenant's id", w.b.run.String(), "", ""},
		{"nothing", "nothing at all", "", ""},
		{"two characters", "zo", "end_user", "end_user"},
		{"one", "z", "400 VALIDATION", "400 VALIDATION"},
		{"one, and a space", "z ", "400 VALIDATION", "400 VALIDATION"},
		{"200", strings.Repeat("é", 200), "", ""},
		{"201", strings.Repeat("é", 201), "400 VALIDATION", "400 VALIDATION"},
	} {
		path := "/v1/search?q=" + url.QueryEscape(c.q)
		if got := kinds(w.call(w.a, "GET", path, "")); got != c.admin {
			t.Errorf("%s: a key finds %q, want %q", c.says, got, c.admin)
		}
		if got := kinds(w.person("member", "GET", path, "")); got != c.member {
			t.Errorf("%s: a member finds %q, want %q", c.says, got, c.member)
		}
	}
	if got := w.person("member", "GET", "/v1/search?q=cust", ""); strings.Contains(got.body, "@") {
		t.Errorf("a member sees an e-mail: %s", got.body)
	}
	_, err = w.admin.Exec(t.Context(), `INSERT INTO org_nodes (tenant_id, id, name) SELECT $1, gen_random_uuid(), 'many ' || n FROM generate_series(1, 30) n`, w.a.tenant)
	w.must(err)
	var list struct{ Items []api.Found }
	if a := w.call(w.a, "GET", "/v1/search?q=many", ""); json.Unmarshal([]byte(a.body), &list) != nil || len(list.Items) != 20 {
		t.Errorf("%d of 30", len(list.Items))
	}
}

// console.md, API that this adds: POST /v1/users/:id/login-link, and next.
func TestLoginLinksOfPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user := map[string]string{"owner": w.a.owner.String()}
	for _, role := range []string{"member", "admin"} {
		a := w.call(w.a, "POST", "/v1/users", fmt.Sprintf(`{"email": "%[1]s@example.com", "name": "X", "role": %[1]q}`, role))
		user[role], _ = a.get("id").(string)
	}
	for _, c := range []struct {
		caller, of, body string
		status           int
		code             string
	}{
		{"key", "member", "", 403, "FORBIDDEN"},
		{"member/" + user["member"], "member", "", 403, "FORBIDDEN"},
		{"admin/" + user["admin"], "member", "", 201, ""},
		{"admin/" + user["admin"], "admin", "", 403, "FORBIDDEN"},
		{"admin/" + user["admin"], "owner", "", 403, "FORBIDDEN"},
		{"owner", "member", `{"next": "/console/approvals/1?tab=decided#x"}`, 201, ""},
		{"owner", "admin", `{}`, 201, ""},
		{"owner", "owner", "", 201, ""},
		{"owner", "nobody", "", 404, "NOT_FOUND"},
		{"owner", "member", `{"next": "https://evil.example/console/"}`, 400, "VALIDATION"},
		{"owner", "member", `{"next": "//evil.example/console/"}`, 400, "VALIDATION"},
		{"owner", "member", `{"next": "/console/../v1/runs"}`, 400, "VALIDATION"},
		{"owner", "member", `{"next": "/console/%2e%2e/v1"}`, 400, "VALIDATION"},
		{"owner", "member", `{"next": "/console\\evil"}`, 400, "VALIDATION"},
		{"owner", "member", `{"next": "/consoles"}`, 400, "VALIDATION"},
		{"owner", "member", `{"next": "javascript:alert(1)"}`, 400, "VALIDATION"},
		{"owner", "member", `{"next": "/console/\n"}`, 400, "VALIDATION"},
	} {
		of := user[c.of]
		if of == "" {
			of = id.NewAnywhere().String()
		}
		path := "/v1/users/" + of + "/login-link"
		got := answer{}
		if c.caller == "key" {
			got = w.call(w.a, "POST", path, c.body)
		} else {
			got = w.person(c.caller, "POST", path, c.body)
		}
		if got.status != c.status || got.code() != c.code {
			t.Errorf("%s for %s %s: %d %s", c.caller, c.of, c.body, got.status, got.body)
		}
	}
	if n := w.audited(w.a.tenant)["user.login_link"]; n != 4 {
		t.Errorf("%d audited", n)
	}
	link := func(next string) string {
		t.Helper()
		a := w.person("owner", "POST", "/v1/users/"+user["member"]+"/login-link", fmt.Sprintf(`{"next": %q}`, next))
		text, _ := a.get("url").(string)
		if !strings.HasPrefix(text, console+"/login/") || a.get("expires_at") == nil {
			t.Fatalf("%s", a.body)
		}
		return strings.TrimPrefix(text, console)
	}
	used := link("/console/approvals/1?tab=decided")
	if got := w.send("", "GET", used, ""); got.status != 200 || !strings.Contains(got.body, `<form method="post">`) {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := w.send("", "GET", used+"&next=https://evil.example", ""); got.status != 200 {
		t.Errorf("the first next counts: %d", got.status)
	}
	path, _, _ := strings.Cut(used, "?")
	if got := w.send("", "POST", path+"?next="+url.QueryEscape("https://evil.example/"), ""); got.status != 400 || got.code() != "VALIDATION" {
		t.Errorf("a hostile next: %d %s", got.status, got.body)
	}
	gone := link("/console/")
	if got := w.call(w.a, "PATCH", "/v1/users/"+user["member"], `{"role": "admin"}`); got.status != 200 {
		t.Fatalf("%s", got.body)
	}
	if got := w.send("", "GET", gone, ""); got.status != 401 {
		t.Errorf("the link of a former role: %d", got.status)
	}
}

// console.md, API that this adds: denied origins; counted in memory, written together, bounded.
func TestDeniedOrigins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := "/v1/embed-keys/" + w.a.embedKey.String() + "/denied-origins"
	noted := store.NewNoted(w.db.System(t), time.Now, zerolog.Nop())
	var hints []msg.Change
	noted.OnChange(func(of id.TenantID, c msg.Change) {
		if of != w.a.tenant {
			t.Errorf("a hint of tenant %s", of)
		}
		hints = append(hints, c)
	})
	flush := func() {
		t.Helper()
		hints = nil
		w.must(noted.Start(t.Context()))
		w.must(noted.Stop(context.Background()))
		if !slices.Equal(hints, []msg.Change{{Kind: "embed_key", ID: w.a.embedKey.UUID}}) {
			t.Errorf("hints %v", hints)
		}
	}
	noted.Denied(w.a.tenant, w.a.embedKey, "https://often.example")
	noted.Denied(w.a.tenant, w.a.embedKey, "https://often.example")
	noted.Denied(w.a.tenant, id.EmbedKeyID{UUID: id.NewAnywhere()}, "https://gone.example") // its key is gone
	flush()
	noted.Denied(w.a.tenant, w.a.embedKey, "https://often.example")
	flush()
	a := w.call(w.a, "GET", path, "")
	if a.status != 200 || fmt.Sprint(a.get("items.0.origin"), " ", a.get("items.0.count"), " ", a.get("items.1")) != "https://often.example 3 <nil>" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	for round := range 3 { // a flood of invented origins
		for i := range 300 {
			noted.Denied(w.a.tenant, w.a.embedKey, fmt.Sprintf("https://x%d-%d.example", round, i))
		}
		flush()
	}
	var list struct{ Items []api.DeniedOrigin }
	a = w.call(w.a, "GET", path, "")
	if json.Unmarshal([]byte(a.body), &list) != nil || len(list.Items) > 100 || !slices.ContainsFunc(list.Items, func(d api.DeniedOrigin) bool { return d.Origin == "https://often.example" && d.Count == 3 }) {
		t.Errorf("%d %s", len(list.Items), a.body)
	}
	_, err := w.admin.Exec(t.Context(), "UPDATE embed_denied_origins SET last_at = now() - interval '31 days'")
	w.must(err)
	if a := w.call(w.a, "GET", path, ""); a.body != `{"items":[]}` {
		t.Errorf("after 30 days: %s", a.body)
	}
	if got := w.person("member", "GET", path, ""); got.code() != "FORBIDDEN" {
		t.Errorf("a member: %d", got.status)
	}
	if got := w.call(w.b, "GET", path, ""); got.code() != "NOT_FOUND" {
		t.Errorf("another tenant: %d", got.status)
	}
}

// console.md, API that this adds: the health of tool servers and the use of connections.
func TestHealth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	noted := store.NewNoted(w.db.System(t), time.Now, zerolog.Nop())
	hints := map[msg.Change]int{}
	noted.OnChange(func(of id.TenantID, c msg.Change) {
		if of == w.a.tenant {
			hints[c]++
		}
	})
	server, connection := "/v1/mcp-servers/"+w.a.server.String(), "/v1/connections/"+w.a.connection.String()
	if got := w.call(w.a, "GET", server, ""); got.get("health.state") != "unknown" || got.get("health.at") != nil {
		t.Errorf("%s", got.body)
	}
	note := func(e string) {
		t.Helper()
		clear(hints)
		noted.Exchange(store.Exchange{Tenant: w.a.tenant, Server: w.a.server, Connection: &w.a.connection, Error: e})
		w.must(noted.Start(t.Context()))
		w.must(noted.Stop(context.Background()))
	}
	changed := func(n int) {
		t.Helper()
		if want := map[msg.Change]int{{Kind: "mcp_server", ID: w.a.server.UUID}: 1, {Kind: "connection", ID: w.a.connection.UUID}: 1}; len(hints) != 2*n || n == 1 && !maps.Equal(hints, want) {
			t.Errorf("hints %v", hints)
		}
	}
	note("Connection refused.")
	changed(1)
	note("Connection refused.")
	changed(0)
	// Another node notes the same a moment later.
	other := store.NewNoted(w.db.System(t), time.Now, zerolog.Nop())
	other.OnChange(func(_ id.TenantID, c msg.Change) { hints[c]++ })
	other.Exchange(store.Exchange{Tenant: w.a.tenant, Server: w.a.server, Connection: &w.a.connection, Error: "Connection refused."})
	w.must(other.Start(t.Context()))
	w.must(other.Stop(context.Background()))
	changed(0)
	if got := w.call(w.a, "GET", server, ""); got.get("health.state") != "failing" || got.get("health.error") != "Connection refused." || got.get("health.at") == nil {
		t.Errorf("%s", got.body)
	}
	if got := w.call(w.a, "GET", connection, ""); got.get("last_error") != "Connection refused." || got.get("last_used_at") == nil {
		t.Errorf("%s", got.body)
	}
	note("")
	changed(1)
	if got := w.call(w.a, "GET", "/v1/mcp-servers", ""); got.get("items.0.health.state") != "ok" || got.get("items.0.health.error") != nil {
		t.Errorf("%s", got.body)
	}
	if got := w.call(w.a, "PATCH", server, `{"endpoint": "https://elsewhere.example/mcp"}`); got.get("health.state") != "unknown" {
		t.Errorf("%s", got.body)
	}
}

// open-parts.md: only a cursor that is not ours is VALIDATION. The tools of an agent go on behind the
// tool of the cursor also when it is not in the list any more.
func TestAPageOfToolsGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	offer := func(names ...string) {
		w.tools.with(func(f *tools) {
			f.offers = nil
			for _, name := range names {
				f.offers = append(f.offers, tool.Offer{Spec: tool.Spec{Source: tool.MCP, Owner: "s", Name: name}, Resolution: tool.Resolution{Verdict: tool.Callable}})
			}
		})
	}
	offer("a", "b", "c")
	path := "/v1/agents/" + w.a.agent.String() + "/tools?limit=1"
	first := w.call(w.a, "GET", path, "")
	next, _ := first.get("next_cursor").(string)
	if first.get("items.0.tool") != "s.a" || next == "" {
		t.Fatal(first.body)
	}
	for _, left := range [][]string{{"a", "b", "c"}, {"b", "c"}, {"aa", "b"}, {"c"}, {}} {
		offer(left...)
		want := any(nil)
		for _, name := range left {
			if name > "a" {
				want = "s." + name
				break
			}
		}
		if got := w.call(w.a, "GET", path+"&cursor="+next, ""); got.status != 200 || got.get("items.0.tool") != want || !strings.Contains(got.body, `"next_cursor":`) {
			t.Errorf("of %v: %d %s, want %v", left, got.status, got.body, want)
		}
	}
}

// console.md, API that this adds: GET /v1/tools.
func TestTenantsTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w.tools.with(func(f *tools) {
		f.agents = []id.AgentID{w.a.agent}
		for _, name := range []string{"c", "a", "b"} {
			f.listed = append(f.listed, tool.Listed{Spec: tool.Spec{Source: tool.MCP, Owner: "s", Name: name, Description: "d", Schema: json.RawMessage(`{"type":"object"}`)}, Server: &w.a.server, At: &at})
		}
	})
	a := w.call(w.a, "GET", "/v1/tools?agent_id="+w.a.agent.String(), "")
	for i, want := range []string{"s.a allow", "s.b gate", "s.c deny"} {
		n := fmt.Sprint("items.", i, ".")
		if got := fmt.Sprint(a.get(n+"tool"), " ", a.get(n+"access."+w.a.agent.String())); got != want || a.get(n+"mcp_server_id") != w.a.server.String() || a.get(n+"listed_at") != "2026-01-02T03:04:05Z" {
			t.Errorf("%d: %s %s", i, got, a.body)
		}
	}
	if got := w.call(w.a, "GET", "/v1/tools", ""); !strings.Contains(got.body, `"access":{}`) {
		t.Errorf("%s", got.body)
	}
	page := w.call(w.a, "GET", "/v1/tools?limit=2", "")
	next, _ := page.get("next_cursor").(string)
	if got := w.call(w.a, "GET", "/v1/tools?limit=2&cursor="+next, ""); got.get("items.0.tool") != "s.c" || got.get("next_cursor") != nil {
		t.Errorf("%s", got.body)
	}
	many := func(n int) answer {
		return w.call(w.a, "GET", "/v1/tools?"+strings.Repeat("agent_id="+w.a.agent.String()+"&", n), "")
	}
	if a, b := many(50), many(51); a.status != 200 || b.code() != string(problem.CodeValidation) {
		t.Errorf("50: %d, 51: %d %s", a.status, b.status, b.body)
	}
	if got := w.call(w.a, "GET", "/v1/tools?agent_id="+w.b.agent.String(), ""); got.code() != "NOT_FOUND" {
		t.Errorf("a foreign agent: %d", got.status)
	}
	if got := w.person("member", "GET", "/v1/tools", ""); got.code() != "FORBIDDEN" {
		t.Errorf("a member: %d", got.status)
	}
}
