package blackbox

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"agentsvc/cmd/svc/client"
)

// Triggers over the real server (open-parts.md, Workflows, triggers, hooks).

// trigger creates a trigger and returns it with what is shown once.
func (c *caller) trigger(t *testing.T, ctx context.Context, body object) client.TriggerView {
	t.Helper()
	var made client.TriggerView
	a := c.ask(t, ctx, 201, "POST", "/v1/triggers", body, nil)
	if err := json.Unmarshal(a.body, &made); err != nil || !isFullID(made.ID) || (made.Secret != "") != (made.Kind == "hook") {
		t.Fatalf("%v: %s", err, a)
	}
	return made
}

// shown returns a trigger as a read shows it.
func (c *caller) shown(t *testing.T, ctx context.Context, trigger string) client.TriggerView {
	t.Helper()
	var got client.TriggerView
	c.ask(t, ctx, 200, "GET", "/v1/triggers/"+trigger, nil, &got)
	return got
}

// The life of a trigger, with its responses and audit rows.
func TestTriggers(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c := n.tenant("triggers")
	agent, second := c.publish(t, "Helper", simulatedModel), c.publish(t, "Second", simulatedModel)
	target := object{"agent_id": agent}

	// The fields of a trigger; the secret is shown once.
	a := c.ask(t, ctx, 201, "POST", "/v1/triggers", object{"name": "On push", "kind": "hook", "target": target, "input": object{"text": "/say hooked"}}, nil)
	var hook client.TriggerView
	var fields map[string]json.RawMessage
	for _, into := range []any{&hook, &fields} {
		if err := json.Unmarshal(a.body, into); err != nil {
			t.Fatal(err)
		}
	}
	if len(fields["secret"]) < 20 || hook.HookURL == nil || *hook.HookURL != n.base+"/hooks/"+hook.ID || !hook.Enabled || hook.NextFireAt != nil || hook.LastFiredAt != nil || hook.Target.AgentID != agent {
		t.Errorf("created: %s", a.body)
	}
	made := string(fields["secret"])
	delete(fields, "secret")
	var again map[string]json.RawMessage
	c.ask(t, ctx, 200, "GET", "/v1/triggers/"+hook.ID, nil, &again)
	for _, name := range []string{"id", "name", "kind", "target", "enabled", "schedule", "input", "hook_url", "last_fired_at", "next_fire_at", "created_at", "updated_at"} {
		if string(again[name]) != string(fields[name]) || again[name] == nil {
			t.Errorf("%s is %s, was created as %s", name, again[name], fields[name])
		}
	}
	if len(again) != 12 {
		t.Errorf("a trigger has %d fields: %s", len(again), a.body)
	}
	var twice client.TriggerView
	for range 2 { // every replay shows the same secret again
		first := twice.Secret
		c.ask(t, ctx, 201, "POST", "/v1/triggers", object{"name": "Twice", "kind": "hook", "target": target}, &twice, "Idempotency-Key", "made")
		if first != "" && twice.Secret != first {
			t.Error("a repeat created another hook")
		}
	}

	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	morning := c.trigger(t, ctx, object{"name": "Every morning", "kind": "schedule", "target": target, "schedule": object{"cron": "30 9 * * *", "timezone": "Europe/Berlin"}, "input": "/say good morning"})
	if at := morning.NextFireAt; at == nil || !at.After(time.Now()) || at.After(time.Now().Add(26*time.Hour)) || at.In(zone).Format("15:04:05") != "09:30:00" || morning.HookURL != nil {
		t.Errorf("the next morning: %+v", morning)
	}
	var listed struct{ Items []client.TriggerView }
	a = c.ask(t, ctx, 200, "GET", "/v1/triggers", nil, &listed)
	if len(listed.Items) != 3 || listed.Items[0].ID != morning.ID || listed.Items[2].ID != hook.ID || strings.Contains(string(a.body), "secret") {
		t.Errorf("newest first, without secrets: %s", a.body)
	}
	var page struct {
		Items      []client.TriggerView
		NextCursor *string `json:"next_cursor"`
	}
	c.ask(t, ctx, 200, "GET", "/v1/triggers?limit=2", nil, &page)
	if len(page.Items) != 2 || page.NextCursor == nil {
		t.Errorf("a page: %+v", page)
	} else if c.ask(t, ctx, 200, "GET", "/v1/triggers?limit=2&cursor="+url.QueryEscape(*page.NextCursor), nil, &page); len(page.Items) != 1 || page.Items[0].ID != hook.ID {
		t.Errorf("the next page: %+v", page)
	}

	for name, body := range map[string]object{
		"no target":                   {"name": "x", "kind": "hook"},
		"two targets":                 {"name": "x", "kind": "hook", "target": object{"agent_id": agent, "workflow_id": agent}},
		"a workflow":                  {"name": "x", "kind": "hook", "target": object{"workflow_id": agent}},
		"an agent that is none":       {"name": "x", "kind": "hook", "target": object{"agent_id": hook.ID}},
		"another tenant's agent":      {"name": "x", "kind": "hook", "target": object{"agent_id": n.tenant("triggers, another").publish(t, "Theirs", simulatedModel)}},
		"a hook with a schedule":      {"name": "x", "kind": "hook", "target": target, "schedule": object{"cron": "* * * * *"}},
		"a schedule without one":      {"name": "x", "kind": "schedule", "target": target},
		"a cron of four":              {"name": "x", "kind": "schedule", "target": target, "schedule": object{"cron": "* * * *"}},
		"a minute that is none":       {"name": "x", "kind": "schedule", "target": target, "schedule": object{"cron": "60 * * * *"}},
		"a day that never comes":      {"name": "x", "kind": "schedule", "target": target, "schedule": object{"cron": "0 0 30 2 *"}},
		"a zone that is none":         {"name": "x", "kind": "schedule", "target": target, "schedule": object{"cron": "* * * * *", "timezone": "Mars/Olympus"}},
		"another kind":                {"name": "x", "kind": "timer", "target": target},
		"no name":                     {"name": "", "kind": "hook", "target": target},
		"a name of 121 characters":    {"name": strings.Repeat("é", 121), "kind": "hook", "target": target},
		"a hook's input is no object": {"name": "x", "kind": "hook", "target": target, "input": "text"},
		"an input past 64 KiB":        {"name": "x", "kind": "schedule", "target": target, "schedule": object{"cron": "* * * * *"}, "input": strings.Repeat("a", 64<<10-1)},
		"a field that is none":        {"name": "x", "kind": "hook", "target": target, "secret": "mine"},
	} {
		a, err := c.do(ctx, "POST", "/v1/triggers", body)
		if err != nil || a.status != 400 || a.code() != "VALIDATION" {
			t.Errorf("%s: %v %s", name, err, a)
		}
	}
	c.trigger(t, ctx, object{"name": strings.Repeat("é", 120), "kind": "schedule", "target": target, "schedule": object{"cron": "0 0 29 2 *"}, "input": strings.Repeat("a", 64<<10-2)})

	// Fired by hand with a key, whatever its kind.
	fire := func(body any, trigger, text string) string {
		t.Helper()
		run := c.ask(t, ctx, 202, "POST", "/v1/triggers/"+trigger+"/fire", body, nil).run(t)
		r := c.poll(t, ctx, run, "succeeded")
		if r.text() != text || r.Run.Origin.Kind != "trigger" || r.Run.Origin.ID != trigger || r.Run.AgentID != agent || r.Run.ThreadID != nil {
			t.Errorf("fired: %+v, %q, want %q", r.Run, r.text(), text)
		}
		return run
	}
	byHand := []string{fire(nil, hook.ID, "hooked"), fire(object{"input": object{"text": "/say by hand"}}, hook.ID, "by hand"), fire(object{"input": object{"more": 1}}, hook.ID, "hooked"), fire(object{"input": "/say text"}, hook.ID, "text")}
	fire(object{}, morning.ID, "good morning")
	fire(object{"input": "/say good evening"}, morning.ID, "good evening")
	if at := c.shown(t, ctx, morning.ID); !at.NextFireAt.Equal(*morning.NextFireAt) {
		t.Errorf("firing by hand moved the schedule to %s", at.NextFireAt)
	}
	once := []string{}
	for range 2 {
		once = append(once, c.ask(t, ctx, 202, "POST", "/v1/triggers/"+hook.ID+"/fire", object{}, nil, "Idempotency-Key", "fired").run(t))
	}
	if once[0] != once[1] {
		t.Errorf("a repeat fired twice: %v", once)
	}
	byHook := n.stranger().fires(t, ctx, hook, `{"pushed":true}`)
	if r := c.poll(t, ctx, byHook, "succeeded"); r.text() != "hooked" || r.Run.Origin.Kind != "trigger" || r.Run.Origin.ID != hook.ID {
		t.Errorf("called: %+v", r.Run)
	}
	eventually(t, ctx, "the last firings are noted", func() bool {
		return c.shown(t, ctx, hook.ID).LastFiredAt != nil && c.shown(t, ctx, morning.ID).LastFiredAt != nil
	})

	// Changed, paused, and enabled again.
	var patched client.TriggerView
	c.ask(t, ctx, 200, "PATCH", "/v1/triggers/"+morning.ID, object{"enabled": false, "name": "Mornings"}, &patched)
	if patched.Enabled || patched.NextFireAt != nil || patched.Name != "Mornings" || patched.Schedule == nil || patched.Schedule.Cron != "30 9 * * *" {
		t.Errorf("paused: %+v", patched)
	}
	c.ask(t, ctx, 200, "PATCH", "/v1/triggers/"+hook.ID, object{"enabled": false}, nil)
	for _, trigger := range []string{morning.ID, hook.ID} {
		if a := c.ask(t, ctx, 409, "POST", "/v1/triggers/"+trigger+"/fire", object{}, nil); a.code() != "TRIGGER_DISABLED" {
			t.Errorf("fired while paused: %s", a)
		}
	}
	c.ask(t, ctx, 200, "PATCH", "/v1/triggers/"+morning.ID, object{"enabled": true, "schedule": object{"timezone": "UTC"}}, &patched)
	if at := patched.NextFireAt; at == nil || at.UTC().Format("15:04:05") != "09:30:00" || !at.After(time.Now()) {
		t.Errorf("enabled again: %+v", patched)
	}
	c.ask(t, ctx, 200, "PATCH", "/v1/triggers/"+hook.ID, object{"enabled": true, "target": object{"agent_id": second}, "input": nil}, nil)
	if r := c.poll(t, ctx, n.stranger().fires(t, ctx, hook, `{"text":"/say second"}`), "succeeded"); r.Run.AgentID != second || r.text() != "second" {
		t.Errorf("after the change: %+v", r.Run)
	}
	for name, body := range map[string]object{"its kind": {"kind": "schedule"}, "a schedule of a hook": {"schedule": object{"cron": "* * * * *"}}, "a workflow": {"target": object{"workflow_id": agent}}, "nobody's agent": {"target": object{"agent_id": hook.ID}}} {
		if a, err := c.do(ctx, "PATCH", "/v1/triggers/"+hook.ID, body); err != nil || a.status != 400 || a.code() != "VALIDATION" {
			t.Errorf("%s changed: %v %s", name, err, a)
		}
	}

	// The old secret is refused after the response with the new one.
	var rotated client.TriggerView
	c.ask(t, ctx, 200, "POST", "/v1/triggers/"+hook.ID+"/rotate-secret", nil, &rotated)
	if rotated.Secret == "" || `"`+rotated.Secret+`"` == made || rotated.ID != hook.ID || *rotated.HookURL != *hook.HookURL {
		t.Errorf("rotated: %+v", rotated)
	}
	if a, err := n.stranger().hooked(ctx, hook.ID, hook.Secret, `{}`); err != nil || a.status != 401 {
		t.Errorf("the old secret: %v %s", err, a)
	}
	n.stranger().fires(t, ctx, rotated, `{"text":"/say rotated"}`)
	if a := c.ask(t, ctx, 400, "POST", "/v1/triggers/"+morning.ID+"/rotate-secret", nil, nil); a.code() != "VALIDATION" {
		t.Errorf("a schedule's secret: %s", a)
	}

	// Without a published version; with an archived agent, which pauses the trigger.
	draft := c.makesAgent(t, ctx, object{"name": "Draft", "manifest": simulatedModel})
	early := c.trigger(t, ctx, object{"name": "early", "kind": "hook", "target": object{"agent_id": draft}})
	if a := c.ask(t, ctx, 409, "POST", "/v1/triggers/"+early.ID+"/fire", object{}, nil); a.code() != "AGENT_NOT_PUBLISHED" {
		t.Errorf("fired before it is published: %s", a)
	}
	// A delivery id is kept only if the call started a run.
	delivery := []string{"Svc-Delivery-Id", "1"}
	if a, err := n.stranger().hooked(ctx, early.ID, early.Secret, `{"text":"/say early"}`, delivery...); err != nil || a.status != 409 {
		t.Errorf("called before it is published: %v %s", err, a)
	}
	c.ask(t, ctx, 200, "POST", "/v1/agents/"+draft+"/versions/1/publish", nil, nil)
	c.poll(t, ctx, n.stranger().fires(t, ctx, early, `{"text":"/say early"}`, delivery...), "succeeded")
	c.ask(t, ctx, 204, "DELETE", "/v1/agents/"+agent, nil, nil)
	if at := c.shown(t, ctx, morning.ID); at.Enabled || at.NextFireAt != nil {
		t.Errorf("its agent is archived: %+v", at)
	}
	if !c.shown(t, ctx, hook.ID).Enabled {
		t.Error("a trigger of another agent was paused")
	}
	if a := c.ask(t, ctx, 409, "POST", "/v1/triggers/"+morning.ID+"/fire", object{}, nil); a.code() != "TRIGGER_DISABLED" {
		t.Errorf("fired while its agent is archived: %s", a)
	}
	if a := c.ask(t, ctx, 400, "PATCH", "/v1/triggers/"+morning.ID, object{"enabled": true}, nil); a.code() != "VALIDATION" {
		t.Errorf("enabled again while its agent is archived: %s", a)
	}

	// The audit rows of the changes, with their actors.
	c.ask(t, ctx, 204, "DELETE", "/v1/triggers/"+hook.ID, nil, nil)
	for _, method := range []string{"GET", "DELETE"} {
		c.ask(t, ctx, 404, method, "/v1/triggers/"+hook.ID, nil, nil)
	}
	var got []string
	for _, line := range c.audited(t, ctx, hook.ID) {
		actor, rest, _ := strings.Cut(line, " ")
		kind, _, _ := strings.Cut(actor, ":")
		action, _, _ := strings.Cut(rest, " ")
		got = append(got, kind+" "+action)
		if kind == "trigger" && actor != "trigger:"+hook.ID {
			t.Errorf("audited: %s", line)
		}
		if strings.Contains(line, strings.Trim(made, `"`)) || strings.Contains(line, rotated.Secret) {
			t.Errorf("a secret was audited: %s", line)
		}
	}
	want := []string{"apikey trigger.create", "apikey trigger.fire", "apikey trigger.fire", "apikey trigger.fire", "apikey trigger.fire", "apikey trigger.fire", "trigger trigger.fire",
		"apikey trigger.update", "apikey trigger.update", "trigger trigger.fire", "apikey trigger.rotate", "trigger trigger.fire", "apikey trigger.delete"}
	if !slices.Equal(got, want) {
		t.Errorf("audited\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, run := range append(byHand, byHook) { // a trigger's runs stay
		c.read(t, ctx, run)
	}
}

// Triggers are for admins of their own tenant.
func TestTriggersAreForAdmins(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c, other := n.tenant("who may"), n.tenant("who may not")
	agent := c.publish(t, "Helper", simulatedModel)
	hook := c.trigger(t, ctx, object{"name": "hook", "kind": "hook", "target": object{"agent_id": agent}})
	for email, role := range map[string]string{"member@example.com": "member", "admin@example.com": "admin"} {
		if out, code := n.svc("user", "create", "--tenant", c.Tenant, "--email", email, "--role", role, "--password", passphrase); code != 0 {
			t.Fatal(out)
		}
	}
	member, admin := c.person(t, ctx, "member@example.com"), c.person(t, ctx, "admin@example.com")
	at := "/v1/triggers/" + hook.ID
	for _, row := range []struct {
		method, path string
		body         any
		status       int // for an admin
		foreign      int // for another tenant's key
	}{
		{"GET", "/v1/triggers", nil, 200, 200},
		{"POST", "/v1/triggers", object{"name": "x", "kind": "hook", "target": object{"agent_id": agent}}, 201, 400},
		{"GET", at, nil, 200, 404},
		{"PATCH", at, object{"name": "y"}, 200, 404},
		{"POST", at + "/fire", object{"input": object{"text": "/say x"}}, 202, 404},
		{"POST", at + "/rotate-secret", nil, 200, 404},
		{"DELETE", at, nil, 204, 404},
	} {
		what := row.method + " " + row.path
		if a := member.ask(t, ctx, 403, row.method, row.path, row.body, nil); a.code() != "FORBIDDEN" {
			t.Errorf("%s by a member: %s", what, a)
		}
		n.stranger().ask(t, ctx, 401, row.method, row.path, row.body, nil, "Authorization", "", "X-Tenant-Id", "")
		a := other.ask(t, ctx, row.foreign, row.method, row.path, row.body, nil)
		if strings.Contains(string(a.body), hook.ID) || row.foreign == 200 && !strings.Contains(string(a.body), `"items":[]`) {
			t.Errorf("%s by another tenant: %s", what, a)
		}
		admin.ask(t, ctx, row.status, row.method, row.path, row.body, nil)
	}
}

// svc triggers against the running service.
func TestTriggerCommands(t *testing.T) {
	t.Parallel()
	ctx := within(t, 60*time.Second)
	n := sharedNode(t)
	c := n.tenant("trigger commands")
	c.publish(t, "Helper", simulatedModel)
	cli := func(code int, args ...string) string {
		t.Helper()
		out, stderr, got := n.run(c.environment(), `{"text":"/say from the input"}`, append([]string{"triggers"}, args...)...)
		if got != code {
			t.Errorf("svc triggers %s: code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, stderr)
		}
		return out
	}
	runOf := func(out, text string) {
		t.Helper()
		if r := c.poll(t, ctx, strings.TrimSpace(out), "succeeded"); r.text() != text || r.Run.Origin.Kind != "trigger" {
			t.Errorf("%+v %q, want %q", r.Run, r.text(), text)
		}
	}
	var hook, daily client.TriggerView
	if err := json.Unmarshal([]byte(cli(0, "create", "helper", "--name", "Hook", "--json")), &hook); err != nil || hook.Secret == "" {
		t.Fatal(err, hook)
	}
	shownOnce := cli(0, "create", "helper", "--name", "Shown", "--input", `{"text":"/say as input"}`)
	_, paste, ok := strings.Cut(shownOnce, "try it:\n")
	if !ok {
		t.Fatal(shownOnce)
	}
	// The printed call works as it is.
	out, err := exec.CommandContext(ctx, "sh", "-c", paste).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, out, paste)
	}
	c.poll(t, ctx, answer{status: 202, body: out}.run(t), "succeeded")
	if err := json.Unmarshal([]byte(cli(0, "create", "helper", "--name", "Daily", "--cron", "0 9 * * *", "--timezone", "Asia/Tokyo", "--input", `{"text":"/say daily"}`, "--json")), &daily); err != nil || daily.NextFireAt == nil {
		t.Fatal(err, daily)
	}
	if out := cli(0, "ls"); strings.Count(out, "\n") != 4 || !strings.Contains(out, daily.NextFireAt.Format(time.RFC3339)) || !strings.Contains(out, *hook.HookURL) || strings.Contains(out, "hksec") {
		t.Errorf("ls: %s", out)
	}
	if out, stderr, code := n.run(c.environment(), "", "triggers", "ls", "--limit", "2"); code != 0 || strings.Count(out, "\n") != 3 || !strings.Contains(stderr, "there are more") {
		t.Errorf("ls --limit 2: code %d %s%s", code, out, stderr)
	}
	if out := cli(0, "get", hook.ID[len(hook.ID)-8:]); !strings.Contains(out, hook.ID) || strings.Contains(out, "secret") {
		t.Errorf("get: %s", out)
	}
	runOf(cli(0, "fire", daily.ID), "daily")
	runOf(cli(0, "fire", hook.ID, "--input", "-"), "from the input")
	if out := cli(0, "disable", daily.ID); !strings.Contains(out, "paused") {
		t.Errorf("disable: %s", out)
	}
	cli(1, "fire", daily.ID)
	if out := cli(0, "enable", daily.ID); !strings.Contains(out, "enabled, next ") {
		t.Errorf("enable: %s", out)
	}
	var rotated client.TriggerView
	if err := json.Unmarshal([]byte(cli(0, "rotate", hook.ID, "--json")), &rotated); err != nil {
		t.Fatal(err)
	}
	if a, err := n.stranger().hooked(ctx, hook.ID, hook.Secret, "{}"); err != nil || a.status != 401 {
		t.Errorf("the old secret: %v %s", err, a)
	}
	c.poll(t, ctx, n.stranger().fires(t, ctx, rotated, `{"text":"/say new"}`), "succeeded")
	cli(0, "rm", hook.ID)
	cli(1, "get", hook.ID)
	cli(1, "rm", "ffff")
	cli(1, "create", "nobody", "--name", "x")
	cli(1, "create", "helper", "--name", "x", "--cron", "every day")
	cli(2, "create", "helper")
	cli(2, "create", "helper", "--name", "x", "--timezone", "UTC")
	cli(2, "ls", "--limit", "0")
}

// triggerBed is the service of TestTriggersOverThreeNodes, and the state that one part of it leaves to the next.
type triggerBed struct {
	*bed
	c      *caller // its requests go to any node
	agent  string
	fired  map[string]int                    // runs that each schedule has started so far
	mine   []string                          // schedules that are never paused
	repeat func(*testing.T, context.Context) // repeats the earlier deliveries
}

// One service of three nodes: what holds for a trigger on one node holds on all of them, and over their deaths.
func TestTriggersOverThreeNodes(t *testing.T) {
	b := newBed(t, 3, 3*time.Second) // so that a thousand simultaneous calls cost no node its lease
	ctx := within(t, 120*time.Second)
	b.start()
	x := &triggerBed{bed: b, fired: map[string]int{}, repeat: func(*testing.T, context.Context) {}}
	x.c = b.client(b.desk.tenant("three nodes"), newBook())
	x.agent = x.c.publish(t, "Helper", simulatedModel)
	x.mine = x.schedules(t, ctx, x.agent, 60)
	for _, part := range []struct {
		name string
		run  func(*triggerBed, *testing.T, context.Context)
	}{
		{"a rotated secret", (*triggerBed).rotation},
		{"a thousand calls of one delivery", (*triggerBed).oneDelivery},
		{"due on all nodes", (*triggerBed).dueAtOnce},
		{"passed over and paused", (*triggerBed).passedOver},
		{"kill -9 while it fires", (*triggerBed).killed},
		{"missed while all were down", (*triggerBed).missed},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(x, t, ctx) }) {
			return
		}
	}
}

// hook returns a new hook of the agent.
func (x *triggerBed) hook(t *testing.T, ctx context.Context) client.TriggerView {
	t.Helper()
	return x.c.trigger(t, ctx, object{"name": "hook", "kind": "hook", "target": object{"agent_id": x.agent}})
}

// rotation: after the response no node accepts a call signed with the old secret, though each of them used it a
// moment before.
func (x *triggerBed) rotation(t *testing.T, ctx context.Context) {
	hook := x.hook(t, ctx)
	for _, m := range append(x.nodes, x.nodes...) {
		hook = x.rotate(t, ctx, m, hook)
	}

	// The same holds for a pause.
	const body = `{"text":"/say ok"}`
	x.c.ask(t, x.nodes[0].on(ctx), 200, "PATCH", "/v1/triggers/"+hook.ID, object{"enabled": false}, nil)
	for _, m := range x.nodes {
		if a, err := x.c.hooked(m.on(ctx), hook.ID, hook.Secret, body); err != nil || a.status != 404 {
			t.Errorf("node %s, paused: %v %s", m.name, err, a)
		}
	}
	x.c.ask(t, x.nodes[1].on(ctx), 200, "PATCH", "/v1/triggers/"+hook.ID, object{"enabled": true}, nil)
	for _, m := range x.nodes {
		x.c.fires(t, m.on(ctx), hook, body)
	}
}

// rotate gives a hook another secret through one node while all nodes take calls.
func (x *triggerBed) rotate(t *testing.T, ctx context.Context, through *member, before client.TriggerView) (after client.TriggerView) {
	t.Helper()
	const body, callers = `{"text":"/say ok"}`, 2 // callers per node
	delivery := []string{"Svc-Delivery-Id", before.Secret}
	var answered, over atomic.Bool // the change is answered; the test is over
	var accepted [3]atomic.Int64
	var refused atomic.Int64 // calls sent after the response that were refused, one of each caller
	var calling sync.WaitGroup
	defer func() {
		over.Store(true)
		calling.Wait()
	}()
	for i, m := range x.nodes {
		for range callers {
			calling.Go(func() {
				for !over.Load() {
					late := answered.Load()
					a, err := x.c.hooked(m.on(ctx), before.ID, before.Secret, body, delivery...)
					switch {
					case err == nil && a.status == 401 && late:
						refused.Add(1)
						return
					case err == nil && a.status == 401: // the change is in progress
					case err == nil && a.status == 202 && !late:
						accepted[i].Add(1)
					default:
						t.Errorf("node %s answered the old secret, after the change: %t, with %v %s", m.name, late, err, a)
						return
					}
				}
			})
		}
	}
	eventually(t, ctx, "each node knows the secret", func() bool {
		return t.Failed() || accepted[0].Load() > 1 && accepted[1].Load() > 1 && accepted[2].Load() > 1
	})
	x.c.ask(t, through.on(ctx), 200, "POST", "/v1/triggers/"+before.ID+"/rotate-secret", nil, &after)
	answered.Store(true)
	for _, m := range x.nodes {
		x.c.fires(t, m.on(ctx), after, body, delivery...)
	}
	eventually(t, ctx, "each caller has heard of the change", func() bool { return t.Failed() || refused.Load() == callers*int64(len(x.nodes)) })
	return after
}

// deliveryHeaders are the header fields that make a repeat return the same run.
var deliveryHeaders = []string{"Idempotency-Key", "Svc-Delivery-Id", "X-GitHub-Delivery"}

// oneDelivery: a thousand simultaneous calls with one delivery id make one run, whichever nodes they reach, and
// whichever header field carries the id.
func (x *triggerBed) oneDelivery(t *testing.T, ctx context.Context) {
	hook, twin := x.hook(t, ctx), x.hook(t, ctx)
	const calls, body = 1000, `{"text":"/say once"}`
	runs := map[string]string{}
	for _, header := range deliveryHeaders {
		var all sync.WaitGroup
		started := make([]string, calls)
		for i := range calls {
			all.Go(func() {
				a, err := x.c.hooked(x.nodes[rand.IntN(3)].on(ctx), hook.ID, hook.Secret, body, header, "delivery-1")
				if err != nil || a.status != 202 {
					t.Errorf("%s, call %d: %v %s", header, i, err, a)
					return
				}
				started[i] = string(a.body)
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		if different := slices.Compact(slices.Sorted(slices.Values(started))); len(different) != 1 {
			t.Fatalf("%s: %d runs: %v", header, len(different), different)
		}
		runs[header] = answer{status: 202, body: []byte(started[0])}.run(t)
		x.c.poll(t, ctx, runs[header], "succeeded")
		// A repeat may have another body than the first call, except under an Idempotency-Key.
		a, err := x.c.hooked(ctx, hook.ID, hook.Secret, `{"text":"/say more"}`, header, "delivery-1")
		if err != nil {
			t.Fatal(err)
		}
		if header == "Idempotency-Key" {
			if a.status != 409 || a.code() != "IDEMPOTENCY_CONFLICT" {
				t.Errorf("another body under the same key: %s", a)
			}
		} else if got := a.run(t); got != runs[header] {
			t.Errorf("%s with another body: run %s, want %s", header, got, runs[header])
		}
		if got := x.c.fires(t, ctx, client.TriggerView{ID: strings.ToUpper(hook.ID), Secret: hook.Secret}, body, header, "delivery-1"); got != runs[header] {
			t.Errorf("%s with the id in capitals: run %s, want %s", header, got, runs[header])
		}
		if got := x.c.fires(t, ctx, twin, body, header, "delivery-1"); got == runs[header] {
			t.Errorf("%s: two hooks have one run", header)
		}
		// A wrongly signed call learns nothing of earlier deliveries.
		if a, err := x.c.hooked(ctx, hook.ID, twin.Secret, body, header, "delivery-1"); err != nil || a.status != 401 {
			t.Errorf("%s, wrongly signed: %v %s", header, err, a)
		}
	}
	for h, want := range map[string]int{hook.ID: 3, twin.ID: 3} {
		if got := x.started(t, ctx, h); got != want {
			t.Errorf("%d deliveries are %d runs", want, got)
		}
	}
	x.repeat = func(t *testing.T, ctx context.Context) {
		for header, run := range runs {
			if got := x.c.fires(t, ctx, hook, body, header, "delivery-1"); got != run {
				t.Errorf("%s after a restart: run %s, want %s", header, got, run)
			}
		}
	}
}

// started returns how many runs a trigger has started.
func (x *triggerBed) started(t *testing.T, ctx context.Context, trigger string) (n int) {
	t.Helper()
	if err := x.admin.QueryRow(ctx, `SELECT count(*) FROM runs WHERE origin_kind = 'trigger' AND origin_id = $1`, trigger).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// newYear is a schedule that does not become due during a test unless the test sets its due time.
var newYear = object{"cron": "0 0 1 1 *", "timezone": "UTC"}

// schedules creates n schedules that are not due.
func (x *triggerBed) schedules(t *testing.T, ctx context.Context, agent string, n int) (all []string) {
	t.Helper()
	for i := range n {
		s := x.c.trigger(t, ctx, object{"name": fmt.Sprint("schedule ", i), "kind": "schedule", "target": object{"agent_id": agent}, "schedule": newYear, "input": object{"text": "/say due"}})
		all = append(all, s.ID)
	}
	return all
}

// due makes schedules due since a time, with their timers, in one transaction.
func due(ctx context.Context, db *pgxpool.Pool, since time.Time, schedules []string) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	for _, sql := range []string{
		`UPDATE triggers SET next_fire_at = $1 WHERE id = ANY ($2::uuid[])`,
		`UPDATE timers SET due_at = $1, claimed_until = NULL WHERE kind = 'trigger' AND entity_id = ANY ($2::uuid[])`,
	} {
		if tag, err := tx.Exec(ctx, sql, since, schedules); err != nil || tag.RowsAffected() != int64(len(schedules)) {
			return fmt.Errorf("%s: %d rows, %w", sql, tag.RowsAffected(), err)
		}
	}
	return tx.Commit(ctx)
}

// settled waits until each of the schedules has its next time.
func (x *triggerBed) settled(t *testing.T, ctx context.Context, schedules []string) {
	t.Helper()
	eventually(t, ctx, "all schedules wait for their next time", func() bool {
		waiting := 0
		err := x.admin.QueryRow(ctx, `SELECT count(*) FROM triggers g JOIN timers t ON t.kind = 'trigger' AND t.entity_id = g.id AND t.due_at = g.next_fire_at AND t.claimed_until IS NULL
			WHERE g.id = ANY ($1::uuid[]) AND g.next_fire_at > now()`, schedules).Scan(&waiting)
		return err == nil && waiting == len(schedules)
	})
}

// counted checks that each schedule has started more further runs.
func (x *triggerBed) counted(t *testing.T, ctx context.Context, schedules []string, more int) {
	t.Helper()
	for _, s := range schedules {
		x.fired[s] += more
		if got := x.started(t, ctx, s); got != x.fired[s] {
			t.Errorf("schedule %s has started %d runs, want %d", s, got, x.fired[s])
		}
	}
}

// dueAtOnce: one run for each due time in the whole cluster.
func (x *triggerBed) dueAtOnce(t *testing.T, ctx context.Context) {
	all := x.mine
	for round := range 3 {
		at := time.Now()
		if err := due(ctx, x.admin, at.Add(-time.Duration(round)*time.Hour), all); err != nil {
			t.Fatal(err)
		}
		x.settled(t, ctx, all)
		t.Logf("%d schedules fired within %s", len(all), time.Since(at).Round(time.Millisecond))
		x.counted(t, ctx, all, 1)
	}
	s := x.c.shown(t, ctx, all[0])
	if next := time.Date(time.Now().UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC); s.NextFireAt == nil || !s.NextFireAt.Equal(next) || s.LastFiredAt == nil || time.Since(*s.LastFiredAt) > time.Minute {
		t.Errorf("after it fired: %+v", s)
	}
	var runs struct{ Items []client.RunView }
	x.c.ask(t, ctx, 200, "GET", "/v1/runs?limit=1&agent_id="+x.agent, nil, &runs)
	if r := x.c.poll(t, ctx, runs.Items[0].ID, "succeeded"); r.text() != "due" || r.Run.Origin.Kind != "trigger" || !slices.Contains(all, r.Run.Origin.ID) {
		t.Errorf("a schedule's run: %+v", r.Run)
	}
	if got := x.c.audited(t, ctx, all[0]); len(got) != 4 || !strings.HasPrefix(got[3], "trigger:"+all[0]+" trigger.fire ") {
		t.Errorf("audited: %v", got)
	}
}

// passedOver: a schedule whose agent has no published version starts no run and continues; a pause drops due times,
// and a resumed schedule does not catch up on them.
func (x *triggerBed) passedOver(t *testing.T, ctx context.Context) {
	draft := x.c.makesAgent(t, ctx, object{"name": "Draft", "manifest": simulatedModel})
	unpublished := x.schedules(t, ctx, draft, 3)
	gone := x.c.publish(t, "Archived", simulatedModel)
	archived := x.schedules(t, ctx, gone, 3)
	x.c.ask(t, ctx, 204, "DELETE", "/v1/agents/"+gone, nil, nil)
	// As if the archiving had missed these schedules.
	for _, sql := range []string{
		`UPDATE triggers SET enabled = true, next_fire_at = now() + interval '1 hour' WHERE id = ANY ($1::uuid[])`,
		`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) SELECT tenant_id, 'trigger', id, 'due', next_fire_at FROM triggers WHERE id = ANY ($1::uuid[])`,
	} {
		if _, err := x.admin.Exec(ctx, sql, archived); err != nil {
			t.Fatal(err)
		}
	}
	both := append(unpublished, archived...)
	for range 2 {
		if err := due(ctx, x.admin, time.Now().Add(-time.Minute), both); err != nil {
			t.Fatal(err)
		}
		x.settled(t, ctx, both)
		x.counted(t, ctx, both, 0)
	}
	if s := x.c.shown(t, ctx, both[0]); s.LastFiredAt != nil || !s.Enabled {
		t.Errorf("after the due time: %+v", s)
	}
	x.c.ask(t, ctx, 200, "POST", "/v1/agents/"+draft+"/versions/1/publish", nil, nil)
	if err := due(ctx, x.admin, time.Now().Add(-time.Minute), unpublished); err != nil {
		t.Fatal(err)
	}
	x.settled(t, ctx, unpublished)
	x.counted(t, ctx, unpublished, 1)

	// Paused at the moment at which they are due: each fires now or never.
	racing := x.schedules(t, ctx, x.agent, 12)
	if err := due(ctx, x.admin, time.Now().Add(-72*time.Hour), racing); err != nil {
		t.Fatal(err)
	}
	var pausing sync.WaitGroup
	for _, s := range racing {
		pausing.Go(func() {
			if a, err := x.c.do(ctx, "PATCH", "/v1/triggers/"+s, object{"enabled": false}); err != nil || a.status != 200 || !strings.Contains(string(a.body), `"next_fire_at":null`) {
				t.Errorf("paused: %v %s", err, a)
			}
		})
	}
	pausing.Wait()
	// Timers that a node had claimed before the pause fire again.
	for _, sql := range []string{`DELETE FROM timers WHERE kind = 'trigger' AND entity_id = ANY ($1::uuid[])`,
		`INSERT INTO timers (tenant_id, kind, entity_id, name, due_at) SELECT tenant_id, 'trigger', id, 'due', now() FROM triggers WHERE id = ANY ($1::uuid[])`} {
		if _, err := x.admin.Exec(ctx, sql, racing); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, "the timers of what is paused have gone", func() bool {
		left := -1
		return x.admin.QueryRow(ctx, `SELECT count(*) FROM timers WHERE kind = 'trigger' AND entity_id = ANY ($1::uuid[])`, racing).Scan(&left) == nil && left == 0
	})
	before := 0
	for _, s := range racing {
		got := x.started(t, ctx, s)
		if got > 1 {
			t.Errorf("schedule %s has started %d runs", s, got)
		}
		before += got
		x.fired[s] = got
	}
	t.Logf("%d of %d fired before they were paused", before, len(racing))
	for _, s := range racing {
		x.c.ask(t, ctx, 200, "PATCH", "/v1/triggers/"+s, object{"enabled": true}, nil)
	}
	x.settled(t, ctx, racing)
	x.counted(t, ctx, racing, 0)
}

// killed: a node dies while some of its firings have started their run without moving the schedule, and others are
// in progress; in the end each due time has one run.
func (x *triggerBed) killed(t *testing.T, ctx context.Context) {
	all := x.mine
	for round, victim := range x.nodes {
		cutOff := round != 1 // the node starts runs but cannot move the schedules
		if cutOff {
			x.stopMoves(t, ctx, victim)
		}
		at := time.Now()
		if err := due(ctx, x.admin, at.Add(-time.Hour), all); err != nil {
			t.Fatal(err)
		}
		// halfway returns how many have started their run, and how many of these have not moved.
		halfway := func() (started, stuck int) {
			t.Helper()
			had := 0
			for _, s := range all {
				had += x.fired[s]
			}
			if err := x.admin.QueryRow(ctx, `SELECT (SELECT count(*) FROM runs WHERE origin_id = ANY ($1::uuid[])) - $2, count(*) FROM triggers WHERE id = ANY ($1::uuid[]) AND next_fire_at < now()`,
				all, had).Scan(&started, &stuck); err != nil {
				t.Fatal(err)
			}
			return started, stuck
		}
		enough := len(all)
		if !cutOff {
			enough = 1
		}
		eventually(t, ctx, "the runs have started", func() bool {
			started, _ := halfway()
			return started >= enough
		})
		victim.kill()
		started, stuck := halfway()
		if cutOff {
			if stuck == 0 {
				t.Error("no firing was halfway: the round is void")
			}
			x.stopMoves(t, ctx, nil)
		}
		x.settled(t, ctx, all)
		t.Logf("node %s was killed when %d of %d had started and %d had not moved; all had %s after they were due", victim.name, started, len(all), stuck, time.Since(at).Round(time.Millisecond))
		x.counted(t, ctx, all, 1)
		victim.back(ctx)
	}
}

// stopMoves makes the database refuse a node's moves of schedules; nil: of none.
func (x *triggerBed) stopMoves(t *testing.T, ctx context.Context, of *member) {
	t.Helper()
	sql := `DROP TRIGGER no_moves ON triggers`
	if of != nil {
		sql = fmt.Sprintf(`CREATE OR REPLACE FUNCTION no_moves() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN IF current_setting('bed.node', true) = '%s' THEN RAISE 'node %[1]s moves nothing'; END IF; RETURN NEW; END $$;
			CREATE TRIGGER no_moves BEFORE UPDATE OF next_fire_at ON triggers FOR EACH ROW EXECUTE FUNCTION no_moves()`, of.name)
	}
	if _, err := x.admin.Exec(ctx, sql); err != nil {
		t.Fatal(err)
	}
}

// missed: after all nodes were down, missed times start one run, then the next time is due; deliveries from before
// are still known.
func (x *triggerBed) missed(t *testing.T, ctx context.Context) {
	soon := time.Now().UTC().Add(12 * time.Hour)
	daily := object{"cron": fmt.Sprintf("%d %d * * *", soon.Minute(), soon.Hour()), "timezone": "UTC"}
	var all []string
	for i := range 12 {
		s := x.c.trigger(t, ctx, object{"name": fmt.Sprint("daily ", i), "kind": "schedule", "target": object{"agent_id": x.agent}, "schedule": daily, "input": "/say missed"})
		all = append(all, s.ID)
	}
	for _, m := range x.nodes {
		m.kill()
	}
	next := soon.Truncate(time.Minute)
	if err := due(ctx, x.admin, next.AddDate(0, 0, -10), all); err != nil {
		t.Fatal(err)
	}
	for _, m := range x.nodes {
		m.begin()
	}
	for _, m := range x.nodes {
		m.back(ctx)
	}
	x.settled(t, ctx, all)
	x.counted(t, ctx, all, 1)
	for _, s := range all {
		if at := x.c.shown(t, ctx, s).NextFireAt; at == nil || !at.Equal(next) {
			t.Errorf("the next time is %v, want %s", at, next)
		}
	}
	x.repeat(t, ctx)
	// No run came late: every schedule of the whole test has exactly its runs.
	for s, want := range x.fired {
		if got := x.started(t, ctx, s); got != want {
			t.Errorf("schedule %s has started %d runs, want %d", s, got, want)
		}
	}
}
