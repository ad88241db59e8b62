package blackbox

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentsvc/transport/browser/site"
	"agentsvc/transport/mcp/leak"
)

// undone is cancelsOrder with a check that fails and steps that take the commit back: of order 1001, because they have no parameters.
var undone = strings.NewReplacer(`"value":"cancelled"`, `"value":"gone"`, `"compensation": []`,
	`"compensation": [{"id":"c1","kind":"navigate","value":"URL/orders/1001"},{"id":"c2","kind":"click","target":{"selector":"#restore"}}]`).Replace(cancelsOrder)

// readsOrder is the part of cancelsOrder that only reads.
var readsOrder = cancelsOrder[:strings.Index(cancelsOrder, `,{"name":"cause"`)] + "],\n \"steps\": [\n" +
	cancelsOrder[strings.Index(cancelsOrder, `  {"id":"user"`):strings.Index(cancelsOrder, `,
  {"id":"begin"`)] + `], "result_fields": [{"name":"order","selector":"#number","type":"integer"},{"name":"status","selector":"#status"}]}`

// skillEnd is one row of service.md, Browser skill run outcomes, or of Approval modes.
type skillEnd struct {
	name       string
	definition string // cancelsOrder if empty
	policy     object
	knobs      site.Knobs
	input      string            // SKILL is the name of the skill's tools; the one call of .run if empty
	decision   object            // nil: people are not asked
	expires    bool              // there is no decision
	meanwhile  func(*backOffice) // changes the site while people decide
	unseen     bool              // the site has no visit before the decision

	office *backOffice
	run    string // of the agent
	asked  string // the run of the skill that people decided on

	rows              []string // status and code of the runs of the skill
	hears             []string // parts of what the model hears, of all its calls in turn
	effects, restores int
}

const cancelsOne = `/call SKILL.run {"order":"1001","cause":"stock","note":"late","reason":"r"}`

var (
	agreed    = object{"action": "approve"}
	readsOnly = object{"approval": "none_for_idempotent_reads", "risk_level": "low"}
)

// endsOfSkills is what becomes of runs of browser skills. The site changes while people decide, or answers the commit in its own way.
func endsOfSkills(elsewhere string) []*skillEnd {
	return []*skillEnd{
		// The first ones take longest: a check that does not hold is waited for.
		{name: "committed, a check failed, and it is taken back", definition: undone, decision: agreed, effects: 1, restores: 1,
			rows: []string{"verification_failed verification_failed"}, hears: []string{`"error":"verification_failed"`, `"committed":true`, `"screenshot_key":"`, `"compensation":{"ran":true}`}},
		{name: "committed, a check failed", definition: strings.Replace(cancelsOrder, `"value":"cancelled"`, `"value":"gone"`, 1), decision: agreed, effects: 1,
			rows: []string{"verification_failed verification_failed"}, hears: []string{`"error":"verification_failed"`, `"committed":true`, `"compensation":{"ran":false}`}},
		{name: "nobody decides", expires: true, rows: []string{"rejected"}, hears: []string{`"rejected":true,"feedback":"expired"`}},
		{name: "a bound field does not hold the approved value any more", decision: agreed, meanwhile: func(b *backOffice) { b.Set(site.Knobs{ResetReason: true}) },
			rows: []string{"failed precommit_mismatch"}, hears: []string{`"error":"precommit_mismatch"`, `"committed":false`, `"field":"cause"`}},
		{name: "the form is on another page by now", decision: agreed, meanwhile: func(b *backOffice) { b.Set(site.Knobs{ElsewherePath: true}) },
			rows: []string{"failed precommit_mismatch"}, hears: []string{`"error":"precommit_mismatch"`, `"committed":false`, `"url":"`}},
		{name: "somebody else cancels the order meanwhile", decision: agreed, meanwhile: func(b *backOffice) {
			b.Add(site.Order{ID: "1001", Customer: "Ada Lovelace", Item: "Desk lamp", Total: 49.9, Status: "cancelled"})
		}, rows: []string{"failed not_found"}, hears: []string{`"error":"not_found"`, `"committed":false`, `"step_id":"begin"`, `"selectors":["#cancel"]`}},
		{name: "the password is another one by now", decision: agreed, meanwhile: func(b *backOffice) { b.Set(site.Knobs{SignInFails: true}) },
			rows: []string{"failed session_expired"}, hears: []string{`"error":"session_expired"`, `"committed":false`}},
		{name: "the commit leads out of the skill's hosts", knobs: site.Knobs{Away: elsewhere + "/path?query"}, decision: agreed, effects: 1,
			rows: []string{"out_of_scope out_of_scope"}, hears: []string{`"error":"out_of_scope"`, `"url":"` + elsewhere + `"`}},
		{name: "the site cuts the connection, and the agent asks again", knobs: site.Knobs{Cut: true, Again: true}, input: cancelsOne + "\n/say again\n" + cancelsOne, decision: agreed, effects: 1,
			rows: []string{"committing unknown_outcome"}, hears: []string{`"error":"unknown_outcome"`, `"error":"unknown_outcome"`}},
		{name: "success, and the agent asks again", knobs: site.Knobs{Again: true}, input: cancelsOne + "\n/say again\n" + cancelsOne, decision: agreed, effects: 1,
			rows: []string{"succeeded"}, hears: []string{`"ok":true`, `"result":{"order":1001}`, `"ok":true`, `"duplicate":true`}},
		{name: "the same call twice in one turn", knobs: site.Knobs{Again: true}, input: cancelsOne + "\n" + cancelsOne, decision: agreed, effects: 1,
			rows: []string{"succeeded"}, hears: []string{`"ok":true`, `"ok":true`}},
		{name: "people answer in words", decision: object{"action": "respond", "feedback": "Ask the customer first."}, rows: []string{"rejected"}, hears: []string{`"rejected":true,"feedback":"Ask the customer first."`}},
		{name: "people reject it", decision: object{"action": "reject", "feedback": "Not this one."}, rows: []string{"rejected"}, hears: []string{`"rejected":true,"feedback":"Not this one."`}},
		{name: "the values are not what the skill takes", input: `/call SKILL.run {"order":"1001","cause":"whim","reason":"r"}`, hears: []string{`INVALID_ARGS`, `cause`}},
		{name: "people are asked before any step", policy: object{"approval": "always_before_run"}, unseen: true, decision: agreed, effects: 1,
			rows: []string{"succeeded"}, hears: []string{`"ok":true`, `"committed":true`}},
		{name: "people are asked before any step, and reject it", policy: object{"approval": "always_before_run"}, unseen: true, decision: object{"action": "reject", "feedback": "no"},
			rows: []string{"rejected"}, hears: []string{`"rejected":true`}},
		{name: "a read asks nobody", definition: readsOrder, policy: readsOnly, input: `/call SKILL.run {"order":"1001","reason":"r"}`,
			rows: []string{"succeeded"}, hears: []string{`"ok":true`, `"committed":false`, `"result":{"order":1001,"status":"open"}`}},
		{name: "a read that people are asked about", definition: readsOrder, policy: object{"approval": "always_before_run"}, input: `/call SKILL.run {"order":"1001","reason":"r"}`, unseen: true, decision: agreed,
			rows: []string{"succeeded"}, hears: []string{`"ok":true`, `"committed":false`, `"result":{"order":1001,"status":"open"}`}},
		{name: "dry runs only", policy: object{"approval": "dry_run_only"}, input: `/call SKILL.dry_run {"order":"1001","cause":"stock"}` + "\n/say and\n" + cancelsOne,
			rows: []string{"succeeded"}, hears: []string{`"ok":true`, `"committed":false`, `TOOL_NOT_GRANTED`}},
	}
}

// begin makes the back office of a row, and starts its agent.
func (e *skillEnd) begin(t *testing.T, c *caller, i int) {
	t.Helper()
	ctx := within(t, 30*time.Second)
	definition, policy := e.definition, e.policy
	if definition == "" {
		definition = cancelsOrder
	}
	if policy == nil {
		policy = object{}
	}
	e.office = c.backOfficeOf(t, fmt.Sprint("Row ", i), policy, definition, byPassword)
	e.office.Set(e.knobs)
	name := "browser_skill:" + e.office.slug
	if e.expires {
		c.ask(t, ctx, 201, "POST", "/v1/approval-policies", object{"name": "Soon", "tool_pattern": name + ".run", "risk": "high", "sla_minutes": 0.05}, nil)
	}
	input := e.input
	if input == "" {
		input = cancelsOne
	}
	e.run = c.runOnce(t, ctx, e.office.agent, strings.ReplaceAll(input, "SKILL", name))
}

// decide waits until people are asked, looks at what the site has seen by then, and decides.
func (e *skillEnd) decide(t *testing.T, c *caller) {
	t.Helper()
	ctx := within(t, time.Minute)
	c.poll(t, ctx, e.run, "waiting_approval")
	a := c.pendingOf(t, e.run)
	if a.SkillRun == nil {
		t.Fatalf("people decide on %+v", a)
	}
	e.asked = *a.SkillRun
	b, before := e.office, c.skillRun(t, e.asked)
	if seen := b.Hits("GET /login") > 0; before.Status != "prepared" || seen == e.unseen || (before.Precommit != nil) == e.unseen || b.Effects("1001") != 0 {
		t.Errorf("while people decide: %+v, the site was visited: %v, %d effects", before, seen, b.Effects("1001"))
	}
	if e.meanwhile != nil {
		e.meanwhile(b)
	}
	c.decides(t, ctx, a.ID, e.decision)
}

// look holds the row against what the site, the record and the model have.
func (e *skillEnd) look(t *testing.T, c *caller) {
	t.Helper()
	ctx := within(t, time.Minute)
	r := c.poll(t, ctx, e.run, "succeeded") // the agent's own run: the model was told, and answered
	var list struct{ Items []skillRun }
	var rows []string
	eventually(t, ctx, "the run of the skill ends", func() bool { // a rejected one after its agent's
		c.ask(t, ctx, 200, "GET", "/v1/browser-skills/runs?agent_run_id="+e.run, nil, &list)
		rows = nil
		for _, row := range list.Items {
			if rows = append(rows, row.Status); row.Code != nil {
				rows[len(rows)-1] += " " + *row.Code
			}
		}
		return !slices.Contains(rows, "prepared")
	})
	if !slices.Equal(rows, e.rows) {
		t.Errorf("the runs of the skill are %q, want %q", rows, e.rows)
	}
	var heard strings.Builder
	for _, s := range r.Steps {
		if s.Kind == "tool" {
			fmt.Fprintf(&heard, "%s\n", s.Output)
		}
	}
	rest := heard.String()
	for _, want := range e.hears {
		_, after, ok := strings.Cut(rest, want)
		if !ok {
			t.Errorf("the model heard\n%swant %s", heard.String(), want)
			break
		}
		rest = after
	}
	if got := e.office.Effects("1001") + e.office.Effects("1004"); got != e.effects {
		t.Errorf("%d effects, want %d", got, e.effects)
	}
	if got := e.office.Restores("1001"); got != e.restores {
		t.Errorf("it was taken back %d times, want %d", got, e.restores)
	}
	if visited := e.office.Hits("GET /login") > 0; e.unseen && len(rows) == 1 && rows[0] == "rejected" && visited {
		t.Error("the site was visited for nothing")
	}
}

// Each outcome of a run of a browser skill and each way to approve it: what the record says, what the model hears, and what the site
// has counted. All runs go on at once, on one node. Then the secrets that signed in are in no row and no file of the node,
// no answer, no frame, no webhook, no span and no line of its log.
func TestOutcomesOfBrowserSkills(t *testing.T) { // not parallel: a browser has a low priority
	var asked atomic.Int64
	elsewhere := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	elsewhere.Listener.Close()
	var err error
	if elsewhere.Listener, err = net.Listen("tcp", "127.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	elsewhere.Start()
	t.Cleanup(elsewhere.Close)
	traces := newSpanCollector(t)
	n := newNode(t, "SVC_OUTBOUND_ALLOW=127.0.0.0/8", "SVC_SKILL_STEP_TIMEOUT=20s", "SVC_LOG_LEVEL=trace", "OTEL_EXPORTER_OTLP_ENDPOINT="+traces.URL)
	n.start()
	ctx := within(t, 3*time.Minute)
	// Two tenants, because half of the pages are one tenant's: the checks that are waited for hold up nothing else.
	slow, c := n.tenant("waits for checks"), n.tenant("outcomes of skills")
	of := func(e *skillEnd) *caller {
		if strings.HasPrefix(e.name, "committed, a check failed") {
			return slow
		}
		return c
	}
	hears := c.subscribe(t, ctx, newSink(t, answers(204)), "*")
	rows := endsOfSkills(elsewhere.URL)
	for i, e := range rows {
		e.begin(t, of(e), i)
	}
	for _, e := range rows {
		if e.decision != nil {
			t.Run("asks/"+e.name, func(t *testing.T) { e.decide(t, of(e)) })
		}
	}
	var shown strings.Builder
	ended := 0
	for _, e := range rows {
		t.Run("ends/"+e.name, func(t *testing.T) { e.look(t, of(e)) })
		shown.WriteString(of(e).everything(t, ctx, e.run))
		shown.WriteString(of(e).rawStream(t, ctx, e.run, "?replay=full"))
		if e.asked != "" {
			shown.Write(of(e).ask(t, ctx, 200, "GET", "/v1/browser-skills/runs/"+e.asked, nil, nil).body)
		}
		shown.Write(of(e).ask(t, ctx, 200, "GET", "/v1/browser-skills/"+e.office.skill, nil, nil).body)
		if of(e) == c {
			ended += len(e.rows)
		}
	}
	if asked.Load() > 0 {
		t.Errorf("%d requests outside of the skill's hosts", asked.Load())
	}

	// A person teaches the same site: what is typed into the password field is kept in memory alone.
	const recorders = "/v1/browser-skills/recorder-sessions"
	var taught struct{ ID string }
	c.ask(t, ctx, 201, "POST", recorders, object{"start_url": rows[0].office.url + "/login"}, &taught, "Idempotency-Key", "teach")
	for i, typed := range [][2]string{{"#user", site.User}, {"#password", site.Password}} {
		action := object{"kind": "type", "target": object{"selector": typed[0]}, "value": typed[1], "secret_ref": typed[0][1:]}
		shown.Write(c.ask(t, ctx, 200, "POST", recorders+"/"+taught.ID+"/actions", action, nil, "Idempotency-Key", fmt.Sprint("types ", i)).body)
	}
	shown.Write(c.ask(t, ctx, 200, "POST", recorders+"/"+taught.ID+"/actions", object{"kind": "click", "target": object{"selector": "#sign-in"}}, nil).body)
	shown.Write(c.ask(t, ctx, 200, "GET", recorders+"/"+taught.ID, nil, nil).body)

	told := func() (events string, finished int) {
		var b strings.Builder
		for _, a := range hears.arrivals() {
			b.WriteString(a.body)
		}
		return b.String(), strings.Count(b.String(), `"type":"browser_skill.run.finished"`)
	}
	eventually(t, within(t, 5*time.Second), "each run of a skill is told of", func() bool { _, finished := told(); return finished == ended })
	secrets := []string{site.User, site.Password}
	for _, secret := range secrets {
		noLeakInStorage(t, ctx, n.process, secret)
	}
	if err := n.signal(syscall.SIGTERM, time.Minute); err != nil { // spans that are queued are sent
		t.Fatal(err)
	}
	events, _ := told()
	traces.mu.Lock()
	spans := traces.raw.String()
	traces.mu.Unlock()
	for where, x := range map[string]struct{ text, holds string }{
		"answers":  {shown.String(), `"secret_refs":["user","password"]`},
		"webhooks": {events, `"type":"browser_skill.run.finished"`},
		"spans":    {spans, "browser_skill:"},
		"the log":  {n.logged(), `"message":"browser started"`},
	} {
		if !strings.Contains(x.text, x.holds) {
			t.Errorf("%s hold no %s: the test is void", where, x.holds)
		}
		for _, secret := range secrets {
			if form := leak.Find(secret, x.text); form != "" {
				t.Errorf("%s hold %s", where, form)
			}
		}
	}
	noLeakInFiles(t, n.dataDir(), secrets...)
}

// noLeakInFiles looks for secrets in all files of a directory: those of Postgres hold what was deleted too.
func noLeakInFiles(t *testing.T, dir string, secrets ...string) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		seen++
		for _, secret := range secrets {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s holds %s", path, secret)
			}
		}
		return err
	})
	if err != nil || seen < 100 {
		t.Errorf("%d files, %v", seen, err)
	}
}
