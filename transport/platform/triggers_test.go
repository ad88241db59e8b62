package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// giveTriggers creates a hook and a schedule of the published agent.
func (w *world) giveTriggers(p *party) error {
	return w.Store.Change(w.t.Context(), store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		target := api.TriggerTarget{AgentID: &p.agent}
		h, err := tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "Hook", Kind: lifecycle.TriggerHook, Target: target, Input: api.Value(`{"text":"hi","a":1}`)})
		if err != nil {
			return nil, err
		}
		s, err := tx.CreateTrigger(ctx, &api.TriggerCreate{Name: "Schedule", Kind: lifecycle.TriggerSchedule, Target: target,
			Schedule: &api.Schedule{Cron: "0 9 * * *", Timezone: "Europe/Berlin"}, Input: api.Value(`"text"`)})
		if err != nil {
			return nil, err
		}
		p.hook, p.hookSecret, p.schedule = h.ID, h.Secret, s.ID
		return nil, nil
	})
}

// service.md, Agents and workflows; open-parts.md, triggers: each row is one case, and the cases
// run in order on one tenant.
func TestTriggerRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	agent := `"target": {"agent_id": "{agent}"}`
	hook := func(more string) string { return `{"name": "N", "kind": "hook", ` + agent + more + `}` }
	times := func(fields string) string {
		return `{"name": "N", "kind": "schedule", ` + agent + `, "schedule": {` + fields + `}}`
	}
	w.routes(w.a.fill(), []route{
		{"list triggers, newest first", "GET", "/v1/triggers", "", 200, "", `{"items":[{"id":"{schedule}","name":"Schedule","kind":"schedule","target":{"agent_id":"{agent}"},"enabled":true,"schedule":{"cron":"0 9 * * *","timezone":"Europe/Berlin"},"input":"text","hook_url":null,"last_fired_at":null,"next_fire_at":"`, ""},
		{"a page of triggers", "GET", "/v1/triggers?limit=1", "", 200, "", `"next_cursor":"`, ""},
		{"a cursor that is not ours", "GET", "/v1/triggers?cursor=x", "", 400, "VALIDATION", "cursor", ""},
		{"read a hook", "GET", "/v1/triggers/{hook}", "", 200, "", `{"id":"{hook}","name":"Hook","kind":"hook","target":{"agent_id":"{agent}"},"enabled":true,"schedule":null,"input":{"text":"hi","a":1},"hook_url":"` + console + `/hooks/{hook}","last_fired_at":null,"next_fire_at":null,"created_at":"`, ""},
		{"read an unknown one", "GET", "/v1/triggers/{unknown}", "", 404, "NOT_FOUND", "trigger", ""},
		{"make a hook", "POST", "/v1/triggers", hook(""), 201, "", `"secret":"hksec_`, "trigger.create"},
		{"its URL is shown", "POST", "/v1/triggers", hook(""), 201, "", `"hook_url":"` + console + `/hooks/`, "trigger.create"},
		{"make a paused one", "POST", "/v1/triggers", hook(`, "enabled": false`), 201, "", `"enabled":false`, "trigger.create"},
		{"make a schedule", "POST", "/v1/triggers", times(`"cron": "*/5 * * * *"`), 201, "", `"schedule":{"cron":"*/5 * * * *","timezone":"UTC"},"input":null,"hook_url":null,"last_fired_at":null,"next_fire_at":"`, "trigger.create"},
		{"of a draft", "POST", "/v1/triggers", `{"name": "N", "kind": "hook", "target": {"agent_id": "{draft}"}}`, 201, "", "", "trigger.create"},
		{"a name of 120", "POST", "/v1/triggers", strings.Replace(hook(""), `"N"`, `"`+x(120)+`"`, 1), 201, "", "", "trigger.create"},
		{"a name of 121", "POST", "/v1/triggers", strings.Replace(hook(""), `"N"`, `"`+x(121)+`"`, 1), 400, "VALIDATION", "name", ""},
		{"no name", "POST", "/v1/triggers", `{"kind": "hook", ` + agent + `}`, 400, "VALIDATION", "name: is required", ""},
		{"no kind", "POST", "/v1/triggers", `{"name": "N", ` + agent + `}`, 400, "VALIDATION", "kind: is required", ""},
		{"another kind", "POST", "/v1/triggers", `{"name": "N", "kind": "mail", ` + agent + `}`, 400, "VALIDATION", "kind", ""},
		{"no target", "POST", "/v1/triggers", `{"name": "N", "kind": "hook"}`, 400, "VALIDATION", "target: is required", ""},
		{"an empty target", "POST", "/v1/triggers", `{"name": "N", "kind": "hook", "target": {}}`, 400, "VALIDATION", "target.agent_id: is required", ""},
		{"a workflow", "POST", "/v1/triggers", `{"name": "N", "kind": "hook", "target": {"workflow_id": "{unknown}"}}`, 400, "VALIDATION", "target.workflow_id: there is no such workflow", ""},
		{"an unknown agent", "POST", "/v1/triggers", `{"name": "N", "kind": "hook", "target": {"agent_id": "{unknown}"}}`, 400, "VALIDATION", "target.agent_id: there is no such agent", ""},
		{"a schedule without times", "POST", "/v1/triggers", `{"name": "N", "kind": "schedule", ` + agent + `}`, 400, "VALIDATION", "schedule: is required", ""},
		{"times without an expression", "POST", "/v1/triggers", times(`"timezone": "UTC"`), 400, "VALIDATION", "schedule.cron: is required", ""},
		{"an expression that is none", "POST", "/v1/triggers", times(`"cron": "61 * * * *"`), 400, "VALIDATION", "schedule.cron: minute: 61 is not between 0 and 59", ""},
		{"a zone that is none", "POST", "/v1/triggers", times(`"cron": "* * * * *", "timezone": "Mars/Base"`), 400, "VALIDATION", `schedule.timezone: unknown time zone`, ""},
		{"a hook with times", "POST", "/v1/triggers", hook(`, "schedule": {"cron": "* * * * *"}`), 400, "VALIDATION", "schedule: belongs to the kind schedule only", ""},
		{"a hook's input that is no object", "POST", "/v1/triggers", hook(`, "input": "x"`), 400, "VALIDATION", "input: must be a JSON object", ""},
		{"an unknown field", "POST", "/v1/triggers", hook(`, "secret": "mine"`), 400, "VALIDATION", "secret", ""},
		{"rename a trigger", "PATCH", "/v1/triggers/{hook}", `{"name": "Other"}`, 200, "", `"name":"Other","kind":"hook","target":{"agent_id":"{agent}"},"enabled":true,"schedule":null,"input":{"text":"hi","a":1},"hook_url":"` + console, "trigger.update"},
		{"its kind stays", "PATCH", "/v1/triggers/{hook}", `{"kind": "schedule"}`, 400, "VALIDATION", "kind: cannot be changed", ""},
		{"an unknown workflow", "PATCH", "/v1/triggers/{hook}", `{"target": {"workflow_id": "{unknown}"}}`, 400, "VALIDATION", "target.workflow_id: there is no such workflow", ""},
		{"a workflow that exists", "POST", "/v1/triggers", `{"name": "N", "kind": "hook", "target": {"workflow_id": "{workflow}"}}`, 201, "", `"target":{"workflow_id":"{workflow}"}`, "trigger.create"},
		{"another agent", "PATCH", "/v1/triggers/{hook}", `{"target": {"agent_id": "{draft}"}}`, 200, "", `"target":{"agent_id":"{draft}"}`, "trigger.update"},
		{"whose version is not published", "POST", "/v1/triggers/{hook}/fire", "", 409, "AGENT_NOT_PUBLISHED", "", ""},
		{"and back", "PATCH", "/v1/triggers/{hook}", `{"target": {"agent_id": "{agent}"}, "input": null}`, 200, "", `"input":null`, "trigger.update"},
		{"other times", "PATCH", "/v1/triggers/{schedule}", `{"schedule": {"cron": "0 10 * * *"}}`, 200, "", `"schedule":{"cron":"0 10 * * *","timezone":"Europe/Berlin"}`, "trigger.update"},
		{"pause a schedule", "PATCH", "/v1/triggers/{schedule}", `{"enabled": false}`, 200, "", `"enabled":false`, "trigger.update"},
		{"fire a paused one", "POST", "/v1/triggers/{schedule}/fire", "", 409, "TRIGGER_DISABLED", "", ""},
		{"it goes on", "PATCH", "/v1/triggers/{schedule}", `{"enabled": true}`, 200, "", `"enabled":true`, "trigger.update"},
		{"fire a schedule", "POST", "/v1/triggers/{schedule}/fire", "", 202, "", `{"run_id":"`, ""},
		{"fire a hook", "POST", "/v1/triggers/{hook}/fire", `{"input": {"b": 2}}`, 202, "", `{"run_id":"`, ""},
		{"fire with null", "POST", "/v1/triggers/{hook}/fire", `{"input": null}`, 202, "", `{"run_id":"`, ""},
		{"fire an unknown one", "POST", "/v1/triggers/{unknown}/fire", "", 404, "NOT_FOUND", "trigger", ""},
		{"another secret", "POST", "/v1/triggers/{hook}/rotate-secret", "", 200, "", `"secret":"hksec_`, "trigger.rotate"},
		{"a schedule has none", "POST", "/v1/triggers/{schedule}/rotate-secret", "", 400, "VALIDATION", "a schedule has no secret", ""},
		{"that of an unknown one", "POST", "/v1/triggers/{unknown}/rotate-secret", "", 404, "NOT_FOUND", "trigger", ""},
		{"change an unknown one", "PATCH", "/v1/triggers/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "trigger", ""},
		{"archive the agent", "DELETE", "/v1/agents/{agent}", "", 204, "", "", "agent.delete embed_key.revoke" + strings.Repeat(" trigger.update", 6)},
		{"its schedule is paused", "GET", "/v1/triggers/{schedule}", "", 200, "", `"enabled":false`, ""},
		{"and stays so", "PATCH", "/v1/triggers/{schedule}", `{"enabled": true}`, 400, "VALIDATION", "target.agent_id: there is no such agent", ""},
		{"remove a trigger", "DELETE", "/v1/triggers/{hook}", "", 204, "", "", "trigger.delete"},
		{"it is gone", "GET", "/v1/triggers/{hook}", "", 404, "NOT_FOUND", "", ""},
		{"remove it again", "DELETE", "/v1/triggers/{hook}", "", 404, "NOT_FOUND", "trigger", ""},
	}, w.a.hookSecret)
}

func TestTriggersAreForAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range [][2]string{{"GET", ""}, {"POST", ""}, {"GET", "/{hook}"}, {"PATCH", "/{hook}"}, {"DELETE", "/{hook}"}, {"POST", "/{hook}/fire"}, {"POST", "/{hook}/rotate-secret"}} {
		if got := w.person("member", c[0], "/v1/triggers"+w.a.fill().Replace(c[1]), ""); got.status != 403 || got.code() != "FORBIDDEN" {
			t.Errorf("%s %s: %d %s", c[0], c[1], got.status, got.body)
		}
	}
}

// Firing a trigger starts a run with its input and origin.
func TestTheRunOfAFire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var fired []string
	w.Fired = func(tenant id.TenantID, g id.TriggerID, by string) {
		fired = append(fired, fmt.Sprint(tenant == w.a.tenant, g, by))
	}
	for _, row := range []struct{ to, body, input string }{
		{"{hook}", "", `{"text":"hi","a":1}`},
		{"{hook}", `{"input": {"a": 2, "b": "<&>"}}`, `{"a":2,"b":"<&>","text":"hi"}`},
		{"{hook}", `{"input": "instead"}`, `"instead"`},
		{"{schedule}", "", `"text"`},
		{"{schedule}", `{"input": {"b": 1}}`, `{"b": 1}`},
	} {
		path := w.a.fill().Replace("/v1/triggers/" + row.to + "/fire")
		got := w.call(w.a, "POST", path, row.body)
		orders := w.actors.orders()
		order, is := orders[len(orders)-1].(msg.StartOne)
		if !is || got.status != 202 || got.get("run_id") != order.Run.String() {
			t.Fatalf("%d %s", got.status, got.body)
		}
		var want, have any
		w.must(json.Unmarshal([]byte(row.input), &want))
		w.must(json.Unmarshal(order.Input, &have))
		if fmt.Sprint(want) != fmt.Sprint(have) || strings.Contains(string(order.Input), `\u`) {
			t.Errorf("%s %s: the input is %s", row.to, row.body, order.Input)
		}
		g := strings.Split(path, "/")[3]
		if order.Origin.Kind != lifecycle.OriginTrigger || order.Origin.ID.String() != g || order.By.Actor != "apikey:"+w.a.key.String() || order.AgentID != w.a.agent || order.AgentVersion != 1 {
			t.Errorf("%+v", order)
		}
	}
	if len(fired) != 5 || fired[0] != fmt.Sprint(true, w.a.hook, FiredByPerson) {
		t.Errorf("told %v", fired)
	}
	first := w.call(w.a, "POST", w.a.fill().Replace("/v1/triggers/{hook}/fire"), "", "Idempotency-Key", "k")
	if again := w.call(w.a, "POST", w.a.fill().Replace("/v1/triggers/{hook}/fire"), "", "Idempotency-Key", "k"); first.status != 202 || again.body != first.body {
		t.Errorf("%s, then %s", first.body, again.body)
	}
	// A repeat gets the same secret again.
	rotate := w.a.fill().Replace("/v1/triggers/{hook}/rotate-secret")
	one := w.call(w.a, "POST", rotate, "", "Idempotency-Key", "r")
	if two := w.call(w.a, "POST", rotate, "", "Idempotency-Key", "r"); one.get("secret") == nil || two.body != one.body {
		t.Errorf("%s, then %s", one.body, two.body)
	}
}

// hooks records what is dropped from the cache.
type hooks struct{ forgot []string }

func (h *hooks) Forget(g id.TriggerID) { h.forgot = append(h.forgot, g.String()) }
func (h *hooks) ForgetAll()            { h.forgot = append(h.forgot, "all") }

func TestChangedHooksAreForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := &hooks{}
	w.Hooks = h
	w.must(w.Forget(t.Context(), msg.Revoked{What: msg.ChangedTrigger, Tenant: w.a.tenant, Trigger: w.a.hook}))
	w.ForgetAll()
	if fmt.Sprint(h.forgot) != fmt.Sprint([]string{w.a.hook.String(), "all"}) {
		t.Errorf("%v", h.forgot)
	}
}

// The input of a trigger's run: null counts as missing.
func TestOver(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{`{"a":1}`, "", `{"a":1}`}, {`{"a":1}`, "null", `{"a":1}`}, {`{"a":1}`, " null\n", `{"a":1}`}, {`"text"`, "null", `"text"`}, {"", "null", ""},
		{`{"a":1}`, `{"b":null}`, `{"a":1,"b":null}`}, {`{"a":1}`, `{"a":2}`, `{"a":2}`}, {`{"a":1}`, `"text"`, `"text"`}, {`"text"`, `{"a":2}`, `{"a":2}`}, {"", "7", "7"},
	} {
		if got, err := over(json.RawMessage(c[0]), json.RawMessage(c[1])); err != nil || string(got) != c[2] {
			t.Errorf("%s over %s: %s, %v", c[1], c[0], got, err)
		}
	}
}
