package platform

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/skill"
	"agentsvc/transport/edge"
)

// recorder is a Recorder with one session of each principal, which records without a page.
type recorder struct {
	opened func() // is called when a session has been begun

	mu    sync.Mutex // guards the fields below
	asked []msg.Record
	live  map[string]*skill.RecorderSession
	taken map[id.RecorderSessionID]string // by which call
	key   string                          // of the calls that began the last session
	calls int
}

func (r *recorder) Record(_ context.Context, q *msg.Record) (*msg.Recorded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, *q)
	s := r.live[q.Principal]
	if q.Do == msg.RecordStart {
		if s != nil && s.Status == skill.RecorderLive {
			if q.Key == "" || q.Key != r.key {
				return nil, problem.New(problem.CodeInUse, "live")
			}
			r.calls++
			doc, err := json.Marshal(s)
			return &msg.Recorded{Session: doc}, err
		}
		r.key, r.calls = q.Key, 1
		s = &skill.RecorderSession{ID: id.RecorderSessionID{UUID: id.NewAnywhere()}, Status: skill.RecorderLive, StartURL: q.URL, URL: q.URL, Steps: []skill.Step{}, Params: []skill.Param{},
			ResultFields: []skill.Field{}, Assertions: []skill.Check{}, TargetHosts: []string{}, Auth: skill.Auth{Kind: skill.AuthNone, SecretRefs: []string{}}, Shot: "p1", Width: 1024, Height: 720, ExpiresAt: time.Now().UTC()}
		r.live[q.Principal] = s
		if r.opened != nil {
			r.mu.Unlock()
			r.opened()
			r.mu.Lock()
		}
	} else if s == nil || s.ID != q.Session {
		return nil, store.NoSkill("recorder session")
	}
	switch q.Do {
	case msg.RecordAct:
		var a skill.Action
		if err := json.Unmarshal(q.Action, &a); err != nil {
			return nil, err
		}
		s.Steps = append(s.Steps, skill.Step{ID: "send", Phase: skill.Main, Kind: a.Kind.Step(), Target: a.Target})
	case msg.RecordFinish:
		s.Status, s.DryRun = skill.RecorderEnded, &skill.Replay{Status: skill.ReplayLanded}
	case msg.RecordEnd, msg.RecordUsed:
		if r.calls--; q.Key == "" || r.calls == 0 {
			delete(r.live, q.Principal)
		}
	case msg.RecordSpared:
		if r.taken[s.ID] == q.Holder {
			delete(r.taken, s.ID)
		}
	case msg.RecordPicture:
		return &msg.Recorded{JPEG: []byte("jpeg of " + q.After)}, nil
	case msg.RecordTaken:
		if s.Status != skill.RecorderEnded {
			return nil, store.NoSkill("recorder session")
		}
		if by, held := r.taken[s.ID]; held && by != q.Holder {
			return nil, problem.New(problem.CodeBrowserSkillInvalid, "a skill is being made")
		}
		r.taken[s.ID] = q.Holder
		steps, err := json.Marshal(s.Steps)
		return &msg.Recorded{Steps: steps}, err
	}
	doc, err := json.Marshal(s)
	return &msg.Recorded{Session: doc}, err
}

// open-parts.md, Browser skills, Recorder: the routes, in the names of their callers.
func TestRecorderRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := &recorder{live: map[string]*skill.RecorderSession{}, taken: map[id.RecorderSessionID]string{}}
	const sessions = "/v1/browser-skills/recorder-sessions"
	start := `{"start_url": "https://portal.example.com/claims"}`
	if got := w.call(w.a, "POST", sessions, start); got.status != 503 || got.code() != string(problem.CodeBrowserSkillUnavailable) {
		t.Errorf("without a browser: %d %s", got.status, got.body)
	}
	w.Platform.Recorder = r
	w.routes(w.a.fill(), []route{
		{"no address", "POST", sessions, `{}`, 400, problem.CodeValidation, "start_url", ""},
		{"not the web", "POST", sessions, `{"start_url": "file:///etc/passwd"}`, 400, problem.CodeValidation, "start_url", ""},
		{"with user info", "POST", sessions, `{"start_url": "https://a:b@portal.example.com/"}`, 400, problem.CodeValidation, "start_url", ""},
		{"an unknown session", "GET", sessions + "/{unknown}", "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"an id that is none", "GET", sessions + "/x", "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		{"start", "POST", sessions, start, 201, "", `"status":"live"`, "browser_skill.recorder_session.create"},
		{"a second one", "POST", sessions, start, 409, problem.CodeInUse, "", ""},
	})
	var at, shot string
	for _, s := range r.live {
		at = sessions + "/" + s.ID.String()
		shot = "browser-skills/" + w.a.tenant.String() + "/" + s.ID.String() + "/p1.jpg"
	}
	if got := w.call(w.a, "GET", at+"?after="+shot, ""); got.status != 200 || !strings.Contains(got.body, shot) || r.asked[len(r.asked)-1].After != "p1" {
		t.Errorf("read: %d %s %+v", got.status, got.body, r.asked[len(r.asked)-1])
	}
	if got := w.call(w.a, "GET", "/v1/browser-skills/artifacts/"+shot, ""); got.status != 200 || got.body != "jpeg of p1" || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the picture: %d %s %v", got.status, got.body, got.header)
	}
	if got := w.person("owner", "GET", "/v1/browser-skills/artifacts/"+shot, ""); got.status != 404 {
		t.Errorf("another person's picture: %d", got.status)
	}
	if got := w.person("owner", "GET", at, ""); got.status != 404 || got.code() != string(problem.CodeBrowserSkillNotFound) {
		t.Errorf("another person's session: %d %s", got.status, got.body)
	}
	var rows []route
	for _, c := range []struct{ name, body, fault string }{
		{"x alone", `{"kind":"click","x":1}`, "x: belongs to y"},
		{"a point and a target", `{"kind":"click","x":1,"y":1,"target":{"selector":"a"}}`, "target"},
		{"no element", `{"kind":"click"}`, "target: required"},
		{"another engine", `{"kind":"click","target":{"selector":"text=Send"}}`, "target.selector: must be a CSS selector"},
		{"an unknown kind", `{"kind":"shout"}`, "kind"},
		{"no text", `{"kind":"type","target":{"selector":"a"}}`, "value: required"},
		{"a value that is none", `{"kind":"type","value":[1]}`, "value"},
		{"a secret parameter", `{"kind":"type","value":"x","secret_ref":"pw","param":"p"}`, "param"},
		{"a parameter named reason", `{"kind":"type","value":"x","param":"reason"}`, "param"},
		{"a long text", `{"kind":"type","value":"` + strings.Repeat("x", skill.MaxValue+1) + `"}`, "value: must have at most 2000"},
		{"no key", `{"kind":"press","value":""}`, "value"},
		{"a commit that types", `{"kind":"type","value":"x","commit":true}`, "commit"},
		{"an address that is none", `{"kind":"navigate","value":"javascript:alert(1)"}`, "value"},
		{"a long scroll", `{"kind":"scroll","value":100001}`, "value"},
		{"a field without a name", `{"kind":"pick","target":{"selector":"a"}}`, "name"},
		{"a binding of nothing", `{"kind":"bind","param":"p"}`, "step_id"},
	} {
		rows = append(rows, route{c.name, "POST", at + "/actions", c.body, 400, problem.CodeValidation, c.fault, ""})
	}
	create := `{"name": "Taught", "owner_attested": true, "recorder_session_id": "` + strings.TrimPrefix(at, sessions+"/") + `", "policy": {"approval": "always_before_run"},
		"definition": {"start_url": "https://portal.example.com/claims", "target_hosts": ["portal.example.com"], "steps": [], "commit_step_id": "send"}}`
	w.routes(w.a.fill(), append(rows,
		route{"click", "POST", at + "/actions", `{"kind":"click","target":{"selector":"#send"}}`, 200, "", `"id":"send"`, ""},
		route{"a live session", "POST", "/v1/browser-skills", create, 400, problem.CodeBrowserSkillInvalid, "recorder_session_id: unknown session", ""},
		route{"finish without a body", "POST", at + "/finish", "", 200, "", `"status":"succeeded"`, "browser_skill.recorder_session.finish"},
		route{"a start that the guard refuses", "PATCH", "/v1/browser-skills/{skill}", `{"owner_attested": true, "recorder_session_id": "` + strings.TrimPrefix(at, sessions+"/") + `",
			"definition": {"start_url": "http://localhost/claims", "target_hosts": ["localhost:80"], "steps": [], "commit_step_id": "send"}}`, 400, problem.CodeBrowserSkillInvalid, "definition.start_url: refused by the outbound guard", ""},
		route{"its steps become a skill's", "POST", "/v1/browser-skills", create, 201, "", `"selector":"#send"`, "browser_skill.create"},
		route{"a used session", "POST", "/v1/browser-skills", create, 400, problem.CodeBrowserSkillInvalid, "recorder_session_id: unknown session", ""},
		route{"throw away what is used", "DELETE", at, "", 404, problem.CodeBrowserSkillNotFound, "", ""},
		route{"start again", "POST", sessions, start, 201, "", `"status":"live"`, "browser_skill.recorder_session.create"},
	))
	for _, s := range r.live {
		at = sessions + "/" + s.ID.String()
	}
	w.routes(w.a.fill(), []route{{"throw away", "DELETE", at, "", 204, "", "", "browser_skill.recorder_session.delete"}})
	for _, q := range r.asked {
		if q.Tenant != w.a.tenant || q.Principal == "" || q.Home.IsZero() {
			t.Errorf("asked in nobody's name: %+v", q)
		}
	}
	_, err := w.admin.Exec(t.Context(), `UPDATE tenants SET residency = '{"allowed_hosts": ["other.example"]}' WHERE id = $1`, w.a.tenant)
	w.must(err)
	w.routes(w.a.fill(), []route{{"outside the residency", "POST", sessions, start, 400, problem.CodeBrowserSkillInvalid, "residency", ""}})
}

// What a recorder did is not lost with the commit behind it: a session whose start was not noted is ended, and an action has the key
// of its call, so that a repetition is known.
func TestARecorderWhoseAnswerIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := &recorder{live: map[string]*skill.RecorderSession{}, taken: map[id.RecorderSessionID]string{}}
	w.Platform.Recorder = r
	const sessions = "/v1/browser-skills/recorder-sessions"
	const start = `{"start_url": "https://portal.example.com/claims"}`
	alter := func(sql string) {
		_, err := w.db.Admin(t).Exec(t.Context(), sql)
		w.must(err)
	}
	fails := func(table string, call func() answer) {
		t.Helper()
		alter(`ALTER TABLE ` + table + ` ADD CONSTRAINT no CHECK (false) NOT VALID`)
		if got := call(); got.status != 500 {
			t.Errorf("the commit succeeded: %d %s", got.status, got.body)
		}
		alter(`ALTER TABLE ` + table + ` DROP CONSTRAINT no`)
	}
	fails("audit_log", func() answer { return w.call(w.a, "POST", sessions, start) })
	if got := w.call(w.a, "POST", sessions, start); got.status != 201 {
		t.Fatalf("the session that was not noted is in the way: %d %s", got.status, got.body)
	}
	for _, s := range r.live {
		w.call(w.a, "DELETE", sessions+"/"+s.ID.String(), "")
	}
	fails("idempotency", func() answer { return w.call(w.a, "POST", sessions, start, "Idempotency-Key", "k") })
	if got := w.call(w.a, "POST", sessions, start, "Idempotency-Key", "k"); got.status != 201 {
		t.Fatalf("the repetition: %d %s", got.status, got.body)
	}
	at := ""
	for _, s := range r.live {
		at = sessions + "/" + s.ID.String() + "/actions"
	}
	const click, other = `{"kind":"click","target":{"selector":"#send"}}`, `{"kind":"click","target":{"selector":"#other"}}`
	fails("idempotency", func() answer { return w.call(w.a, "POST", at, click, "Idempotency-Key", "k") })
	w.call(w.a, "POST", at, click, "Idempotency-Key", "k")
	w.call(w.a, "POST", at, click, "Idempotency-Key", "l")
	w.call(w.a, "POST", at, other)
	var keys []string
	for _, q := range r.asked {
		if q.Do == msg.RecordAct {
			keys = append(keys, q.Key)
		}
	}
	if len(keys) != 4 || keys[0] == "" || keys[0] != keys[1] || keys[2] == keys[0] || keys[2] == "" || keys[3] != "" {
		t.Errorf("keys %q", keys)
	}
}

// A start that is repeated at another node, while the first node has not kept its response, is answered with the one session that it
// began, and with one audit row. The node that comes second does not end it.
func TestAStartIsRepeatedAtAnotherNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := &recorder{live: map[string]*skill.RecorderSession{}, taken: map[id.RecorderSessionID]string{}}
	other := w.beside(func(r Replays) edge.Replays { return r })
	w.Platform.Recorder, other.Platform.Recorder = r, r
	const sessions = "/v1/browser-skills/recorder-sessions"
	begin := func(at *world, key string) answer {
		return at.call(w.a, "POST", sessions, `{"start_url": "https://portal.example.com/claims"}`, "Idempotency-Key", key)
	}
	var second, stranger answer
	r.opened = func() { second, stranger = begin(other, "k"), begin(other, "l") }
	first := begin(w, "k")
	if first.status != 201 || second.status != 201 || first.body != second.body {
		t.Errorf("answered with %d %s and %d %s", first.status, first.body, second.status, second.body)
	}
	if stranger.status != 409 || stranger.code() != string(problem.CodeInUse) {
		t.Errorf("another key: %d %s", stranger.status, stranger.body)
	}
	var live skill.RecorderSession
	w.must(json.Unmarshal([]byte(first.body), &live))
	if got := w.call(w.a, "GET", sessions+"/"+live.ID.String(), ""); got.status != 200 {
		t.Errorf("the session is gone: %d %s", got.status, got.body)
	}
	var rows int
	w.must(w.admin.QueryRow(t.Context(), "SELECT count(*) FROM audit_log WHERE tenant_id = $1 AND action = 'browser_skill.recorder_session.create'", w.a.tenant).Scan(&rows))
	if rows != 1 {
		t.Errorf("%d audit rows", rows)
	}
}

// A session makes one skill, however many calls ask for it at once; a call that fails leaves it to the next one, and a
// repetition of a call is that call.
func TestASessionMakesOneSkill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := &recorder{live: map[string]*skill.RecorderSession{}, taken: map[id.RecorderSessionID]string{}}
	w.Platform.Recorder = r
	const sessions = "/v1/browser-skills/recorder-sessions"
	w.call(w.a, "POST", sessions, `{"start_url": "https://portal.example.com/claims"}`)
	var session string
	for _, s := range r.live {
		session = s.ID.String()
	}
	w.call(w.a, "POST", sessions+"/"+session+"/actions", `{"kind":"click","target":{"selector":"#send"}}`)
	w.call(w.a, "POST", sessions+"/"+session+"/finish", "")
	body := func(start string) string {
		return `{"name": "Taught", "owner_attested": true, "recorder_session_id": "` + session + `", "policy": {"approval": "always_before_run"},
			"definition": {"start_url": "` + start + `", "target_hosts": ["portal.example.com", "localhost:80"], "steps": [], "commit_step_id": "send"}}`
	}
	skills := func() (n int) {
		w.must(w.admin.QueryRow(t.Context(), "SELECT count(*) FROM browser_skills WHERE tenant_id = $1 AND recorder_session_id = $2", w.a.tenant, session).Scan(&n))
		return n
	}
	for name, start := range map[string]string{"no address": "https://elsewhere.example/", "a refused one": "http://localhost/"} {
		if got := w.call(w.a, "POST", "/v1/browser-skills", body(start)); got.status != 400 || got.code() != string(problem.CodeBrowserSkillInvalid) || len(r.taken) != 0 {
			t.Errorf("%s: %d %s, taken %v", name, got.status, got.body, r.taken)
		}
	}
	const calls = 8
	statuses := make(chan int, calls)
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			statuses <- w.call(w.a, "POST", "/v1/browser-skills", body("https://portal.example.com/claims")).status
		})
	}
	all.Wait()
	close(statuses)
	made := 0
	for status := range statuses {
		switch status {
		case 201:
			made++
		case 400:
		default:
			t.Errorf("answered with %d", status)
		}
	}
	if made != 1 || skills() != 1 {
		t.Errorf("%d calls made %d skills", made, skills())
	}
}
