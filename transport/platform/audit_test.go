package platform

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/schemas/id"
)

// The routes of the audit log and of usage.
func TestAuditAndUsage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := id.At(time.Date(2026, 1, 1, 23, 0, 0, 0, time.UTC)) // erased: it has no row
	insert := func(p party, at, kind string, run *id.UUID, agent *id.AgentID, model string, in, out int, cost float64, detail *string) {
		t.Helper()
		when, err := time.Parse(time.RFC3339, at)
		w.must(err)
		_, err = w.admin.Exec(t.Context(), `INSERT INTO usage_records (tenant_id, id, at, kind, run_id, agent_id, model, tokens_in, tokens_out, cost_usd, detail)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, p.tenant, id.At(when), at, kind, run, agent, model, in, out, cost, detail)
		w.must(err)
	}
	skill := `{"mode": "run", "status": "committed", "steps": 4, "screenshots": 2}`
	insert(w.a, "2026-01-01T23:59:59Z", "llm", &run, &w.a.agent, "large", 100, 10, 0.5, nil)
	insert(w.a, "2026-01-02T00:00:00Z", "llm", &run, &w.a.agent, "large", 200, 20, 0.25, nil)
	insert(w.a, "2026-01-02T12:00:00+02:00", "llm", ptr(id.NewAnywhere()), &w.a.draft, "small", 1, 2, 2, nil)
	insert(w.a, "2026-01-02T13:00:00Z", "browser_skill_run", &run, &w.a.agent, "", 0, 0, 0, &skill)
	insert(w.a, "2026-01-03T00:00:00Z", "embedding", nil, nil, "embed", 7, 0, 0.125, nil)
	insert(w.b, "2026-01-02T00:00:00Z", "llm", ptr(id.NewAnywhere()), &w.b.agent, "theirs", 9000, 9000, 90, nil)
	described := newDocument(t)
	for _, c := range []struct{ query, want string }{
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z", `{"items":[` +
			`{"day":"2026-01-03","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"day":"2026-01-02","runs":2,"tokens_in":201,"tokens_out":22,"cost_usd":2.25,"browser_skill_runs":1},` +
			`{"day":"2026-01-01","runs":1,"tokens_in":100,"tokens_out":10,"cost_usd":0.5,"browser_skill_runs":0}]}`},
		{"?from=2026-01-02T00:00:00Z&to=2026-01-03T00:00:00Z&group_by=day", `{"items":[{"day":"2026-01-02","runs":2,"tokens_in":201,"tokens_out":22,"cost_usd":2.25,"browser_skill_runs":1}]}`},
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&group_by=agent", `{"items":[` +
			`{"agent_id":"{draft}","runs":1,"tokens_in":1,"tokens_out":2,"cost_usd":2,"browser_skill_runs":0},` +
			`{"agent_id":"{agent}","runs":1,"tokens_in":300,"tokens_out":30,"cost_usd":0.75,"browser_skill_runs":1},` +
			`{"agent_id":null,"runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0}]}`},
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&group_by=model", `{"items":[` +
			`{"model":"small","runs":1,"tokens_in":1,"tokens_out":2,"cost_usd":2,"browser_skill_runs":0},` +
			`{"model":"large","runs":1,"tokens_in":300,"tokens_out":30,"cost_usd":0.75,"browser_skill_runs":0},` +
			`{"model":"embed","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"model":"","runs":1,"tokens_in":0,"tokens_out":0,"cost_usd":0,"browser_skill_runs":1}]}`},
		{"?from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z&group_by=kind", `{"items":[` +
			`{"kind":"llm","runs":2,"tokens_in":301,"tokens_out":32,"cost_usd":2.75,"browser_skill_runs":0},` +
			`{"kind":"embedding","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"kind":"browser_skill_run","runs":1,"tokens_in":0,"tokens_out":0,"cost_usd":0,"browser_skill_runs":1}]}`},
		{"?to=2026-01-31T23:59:59Z", `{"items":[` + // 30 days back from to
			`{"day":"2026-01-03","runs":0,"tokens_in":7,"tokens_out":0,"cost_usd":0.125,"browser_skill_runs":0},` +
			`{"day":"2026-01-02","runs":2,"tokens_in":201,"tokens_out":22,"cost_usd":2.25,"browser_skill_runs":1},` +
			`{"day":"2026-01-01","runs":1,"tokens_in":100,"tokens_out":10,"cost_usd":0.5,"browser_skill_runs":0}]}`},
		{"?to=2026-02-02T00:00:01Z", `{"items":[]}`},
	} {
		want := strings.NewReplacer("{agent}", w.a.agent.String(), "{draft}", w.a.draft.String()).Replace(c.want)
		got := w.call(w.a, "GET", "/v1/usage"+c.query, "")
		if got.status != 200 || got.body != want {
			t.Errorf("%s: %d %s\nwant %s", c.query, got.status, got.body, want)
		}
		if err := described.conforms("GET", "/v1/usage", got); err != nil {
			t.Errorf("%s: the response breaks the document: %v", c.query, err)
		}
	}
	for query, want := range map[string][]string{
		"":                                     {"embedding", "browser_skill_run", "llm", "llm", "llm"},
		"?kind=llm":                            {"llm", "llm", "llm"},
		"?run_id=" + run.String():              {"browser_skill_run", "llm", "llm"},
		"?kind=llm&run_id=" + run.String():     {"llm", "llm"},
		"?run_id=" + id.NewAnywhere().String(): nil,
	} {
		var kinds []string
		cursor := ""
		for range 9 {
			sep := "?"
			if query != "" {
				sep = "&"
			}
			got := w.call(w.a, "GET", "/v1/usage/records"+query+sep+"limit=2&cursor="+cursor, "")
			if err := described.conforms("GET", "/v1/usage/records", got); err != nil {
				t.Errorf("%s: the response breaks the document: %v\n%s", query, err, got.body)
			}
			items, _ := got.get("items").([]any)
			for _, it := range items {
				kinds = append(kinds, it.(map[string]any)["kind"].(string))
			}
			next, more := got.get("next_cursor").(string)
			if !more {
				break
			}
			cursor = next
		}
		if !slices.Equal(kinds, want) {
			t.Errorf("%s: %v, want %v", query, kinds, want)
		}
	}
	got := w.call(w.a, "GET", "/v1/usage/records?kind=browser_skill_run", "")
	if fmt.Sprint(got.get("items.0.detail.screenshots")) != "2" || got.get("items.0.run_id") != run.String() || got.get("items.0.at") != "2026-01-02T13:00:00Z" {
		t.Errorf("%s", got.body)
	}

	// The audit log by time: since is inclusive, until is not.
	for i := range 4 {
		at := time.Date(2026, 1, 1, i, 0, 0, 0, time.UTC)
		_, err := w.admin.Exec(t.Context(), `INSERT INTO audit_log (tenant_id, id, at, actor, action, target_kind, target_id) VALUES ($1, $2, $3, 'system', $4, 'thing', $5)`,
			w.a.tenant, id.At(at), at, fmt.Sprint("thing.", i), id.NewAnywhere())
		w.must(err)
	}
	for query, want := range map[string]string{
		"since=2026-01-01T01:00:00Z&until=2026-01-01T03:00:00Z":        "thing.2 thing.1",
		"until=2026-01-01T01:00:00Z":                                   "thing.0",
		"actor=system&action=thing.3":                                  "thing.3",
		"actor=nobody&action=thing.3":                                  "",
		"since=2026-01-01T05:00:00%2B02:00&until=2026-02-01T00:00:00Z": "thing.3",
	} {
		got := w.call(w.a, "GET", "/v1/audit?"+query, "")
		items, _ := got.get("items").([]any)
		var actions []string
		for _, it := range items {
			actions = append(actions, it.(map[string]any)["action"].(string))
		}
		if strings.Join(actions, " ") != want {
			t.Errorf("%s: %v, want %s", query, actions, want)
		}
	}
	if got := w.call(w.b, "GET", "/v1/audit?action=thing.1", ""); got.get("next_cursor") != nil || len(got.get("items").([]any)) != 0 {
		t.Errorf("another tenant's log is shown: %s", got.body)
	}
}
