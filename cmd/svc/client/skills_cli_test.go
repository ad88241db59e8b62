package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsvc/schemas/skill"
)

const (
	skillID    = "01a1fe1b-401d-7000-8000-0000000000f1"
	skillRunID = "01a1fe1b-401d-7000-8000-0000000000f2"
	skillGrant = "01a1fe1b-401d-7000-8000-0000000000f3"
)

// fakeSkills is a service with one skill, one run and one grant.
type fakeSkills struct {
	mu    sync.Mutex // guards asked
	asked []string
}

func (f *fakeSkills) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func newFakeSkills(t *testing.T) *fakeSkills {
	t.Helper()
	f := &fakeSkills{}
	one := object{"id": skillID, "slug": "claim", "name": "Claim\x1b[2J", "enabled": true, "definition": object{"start_url": "https://portal.example.com/"},
		"policy": object{"approval": "at_commit_point", "risk_level": "high"}}
	shot := "browser-skills/t/" + skillRunID + "/order.jpg"
	run := object{"id": skillRunID, "skill_id": skillID, "agent_run_id": runID, "mode": "dry_run", "status": "failed", "code": "not_found", "created_at": "2030-01-02T03:04:05Z",
		"precommit": object{"url": "https://portal.example.com/<script>alert(1)</script>", "title": "<b>Claims</b>", "screenshot_key": shot, "values": object{"order": "1001"}},
		"steps":     []object{{"id": "order", "kind": "type", "label": "Type order", "status": "ok", "screenshot_key": shot}}, "verification": []object{}, "result": nil}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
		f.mu.Unlock()
		var said any
		switch at := r.Method + " " + r.URL.Path; at {
		case "GET /v1/agents":
			said = object{"items": []object{{"id": agentID, "slug": "helper"}}, "next_cursor": nil}
		case "GET /v1/browser-skills":
			said = object{"items": []object{one}, "next_cursor": nil}
		case "POST /v1/browser-skills":
			w.WriteHeader(http.StatusCreated)
			said = object{"skill": one}
		case "PATCH /v1/browser-skills/" + skillID:
			said = object{"skill": one, "credentials_dropped": strings.Contains(string(body), "auth")}
		case "POST /v1/browser-skills/" + skillID + "/dry-run", "GET /v1/browser-skills/runs/" + skillRunID:
			said = object{"run": run}
		case "GET /v1/browser-skills/" + skillID + "/runs", "GET /v1/browser-skills/runs":
			said = object{"items": []object{run}, "next_cursor": nil}
		case "POST /v1/browser-skills/" + skillID + "/grants":
			said = object{"items": []object{{"id": skillGrant, "op": "run"}}}
		case "GET /v1/browser-skills/" + skillID + "/grants":
			said = object{"items": []object{{"id": skillGrant, "op": "run"}}, "next_cursor": nil}
		case "DELETE /v1/browser-skills/" + skillID, "DELETE /v1/browser-skills/" + skillID + "/grants/" + skillGrant:
			w.WriteHeader(http.StatusNoContent)
			return
		case "GET /v1/browser-skills/artifacts/" + shot:
			w.Header().Set("Content-Type", "image/jpeg")
			_, _ = w.Write([]byte("jpeg"))
			return
		default:
			w.WriteHeader(http.StatusNotFound)
			said = object{"status": 404, "code": "BROWSER_SKILL_NOT_FOUND", "title": "Browser skill not found"}
		}
		if err := json.NewEncoder(w).Encode(said); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	t.Setenv("SVC_URL", srv.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	return f
}

func TestSkillsCommands(t *testing.T) {
	f := newFakeSkills(t)
	at, list := "/v1/browser-skills/"+skillID, "GET /v1/browser-skills"
	for _, row := range []struct {
		args  string // separated by |
		out   string // or what stderr holds
		code  int
		asked string // separated by newlines
	}{
		{"ls", "SKILL     SLUG   NAME            ENABLED  APPROVAL         RISK  START\n000000f1  claim  Claim\\u001b[2J  yes      at_commit_point  high  https://portal.example.com/\n", 0, list},
		{"ls|--limit|0", "--limit must be at least 1", 2, ""},
		{`create|{"name":"x"}`, skillID + "  claim  enabled\n", 0, `POST /v1/browser-skills {"name":"x"}`},
		{"create|no", "JSON", 2, ""},
		{"update|claim|--name|New|--disable", skillID + "  claim  enabled\n", 0, list + "\nPATCH " + at + ` {"enabled":false,"name":"New"}`},
		{`update|claim|--patch|{"auth":null}`, skillID + "  claim  enabled\nThe stored secrets were dropped: the skill visits another host now. Give them again.\n", 0, list + "\nPATCH " + at + ` {"auth":null}`},
		{"update|claim", "nothing to change", 2, list},
		{"update|claim|--enable|--disable", "one of --enable and --disable", 2, list},
		{"rm|f1000000", "no skill", 1, list},
		{"rm|" + skillID, "removed\n", 0, "DELETE " + at},
		{`dry-run|claim|--params|{"order":"1001"}`, skillRunID + "  dry_run  failed  not_found\n  ok       order  Type order\nscreenshots: svc skills show 000000f2\n", 0,
			list + "\nPOST " + at + `/dry-run {"params":{"order":"1001"}}`},
		{"runs|claim", "RUN       MODE     STATUS  CODE       AGENT RUN  CREATED\n000000f2  dry_run  failed  not_found  " + runID[len(runID)-8:] + "   2030-01-02T03:04:05Z\n", 0, list + "\nGET " + at + "/runs"},
		{"runs|claim|--agent-run|" + runID, "not both", 2, ""},
		{"grant|claim", "--agent or --node", 2, list},
		{"grant|claim|--agent|helper|--op|run", skillGrant + "  run\n", 0, list + "\nGET /v1/agents\nPOST " + at + `/grants {"agent_id":"` + agentID + `","ops":["run"]}`},
		{"revoke|claim|000000f3", "removed\n", 0, list + "\nGET " + at + "/grants\nDELETE " + at + "/grants/" + skillGrant},
	} {
		out, stderr, code := svc(t, nil, append([]string{"skills"}, strings.Split(row.args, "|")...)...)
		if code != row.code || code == 0 && out != row.out || code != 0 && !strings.Contains(stderr, row.out) {
			t.Errorf("%s: code %d\n%s%s\nwant %d\n%s", row.args, code, out, stderr, row.code, row.out)
		}
		if got := strings.Join(f.took(), "\n"); got != row.asked {
			t.Errorf("%s asked\n%s\nwant\n%s", row.args, got, row.asked)
		}
	}
}

// The page of a run holds its screenshots, loads nothing, and shows text of pages as text.
func TestSkillsShow(t *testing.T) {
	newFakeSkills(t)
	file := filepath.Join(t.TempDir(), "run.html")
	if out, stderr, code := svc(t, nil, "skills", "show", skillRunID, "--out", file); code != 0 {
		t.Fatal(out, stderr)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, want := range []string{"data:image/jpeg;base64,anBlZw==", "&lt;script&gt;", "&lt;b&gt;Claims", "1001", "not_found", "default-src &#39;none&#39;"} {
		if !strings.Contains(strings.ReplaceAll(page, "default-src 'none'", "default-src &#39;none&#39;"), want) {
			t.Errorf("%q is missing in\n%s", want, page)
		}
	}
	if strings.Contains(page, "<script>") || strings.Contains(page, "ZgotmplZ") || strings.Contains(page, `src="http`) {
		t.Errorf("the page loads or runs something:\n%s", page)
	}
	if _, stderr, code := svc(t, nil, "skills", "show", skillRunID, "--out", file); code != 1 || !strings.Contains(stderr, "exists") {
		t.Errorf("a file that exists: %d %s", code, stderr)
	}
}

// lesson is what showOnce shows: it signs in, types an order and sends it.
type lesson struct {
	rec    skill.Recording
	closed *bool
}

func (l *lesson) Recording() *skill.Recording { return &l.rec }
func (l *lesson) Secrets() map[string]string  { return map[string]string{"password": "hush-7"} }
func (l *lesson) Close() error                { *l.closed = true; return nil }

func (l *lesson) Replay(_ context.Context, values json.RawMessage) (*skill.Replay, error) {
	if strings.Contains(string(values), "gone") {
		return &skill.Replay{Status: skill.ReplayFailed, StepID: "s2", Message: "No element was found."}, nil
	}
	return &skill.Replay{Status: skill.ReplayLanded}, nil
}

var lessonClosed bool

// showOnce is the Teacher of tests.
func showOnce(_ context.Context, url string, said func(string), _ <-chan struct{}) (Lesson, error) {
	if url == "https://dark.example" {
		return nil, errors.New("this machine has no display")
	}
	l := &lesson{rec: skill.Recording{StartURL: url}, closed: &lessonClosed}
	l.rec.Visit(url)
	text := skill.Text("1001")
	for _, s := range []struct {
		a  skill.Action
		el skill.Element
	}{
		{skill.Action{Kind: "type", Value: &text}, skill.Element{Locator: skill.Locator{Selector: "#pw"}, Secret: true}},
		{skill.Action{Kind: "type", Value: &text}, skill.Element{Locator: skill.Locator{Selector: "#order"}}},
		{skill.Action{Kind: "click"}, skill.Element{Locator: skill.Locator{Selector: "#send"}}},
	} {
		st, err := l.rec.Plan(&s.a, &s.el, false)
		if err != nil {
			return nil, err
		}
		l.rec.Add(st, &s.el)
		said(st.ID)
	}
	return l, nil
}

func TestSkillsRecord(t *testing.T) {
	f := newFakeSkills(t)
	file := filepath.Join(t.TempDir(), "skill.json")
	ok := "record|https://portal.example.com/|--name|Claim|--own|"
	for _, row := range []struct {
		args, out string
		code      int
	}{
		{"record|https://portal.example.com/|--own", "--name", 2},
		{"record|https://portal.example.com/|--name|Claim", "--own", 2},
		{ok + "--commit|s3|--reads-only", "one of", 2},
		{"record|https://dark.example|--name|Claim|--own|--commit|s3", "no display", 1},
		{ok + "--commit|s3|--param|s2=order|--slug|claim", `a skill "claim" exists already`, 1},
		{ok + "--param|s2=order", "--commit or --reads-only", 2},
		{ok + "--commit|s3|--param|s2", "step=name", 2},
		{ok + "--commit|s9|--param|s2=order", "names no step", 1},
		{ok + "--commit|s3|--param|s1=order", "types a secret", 1},
		{ok + `--commit|s3|--param|s2=order|--params|{"order":"gone"}`, "did not land at step s2: No element was found. Nothing was saved", 1},
		{ok + "--commit|s3|--param|s2=order|--slug|claims|--out|" + file, skillID + "  claim  enabled\n", 0},
	} {
		lessonClosed = false
		out, stderr, code := svc(t, nil, append([]string{"skills"}, strings.Split(row.args, "|")...)...)
		if code != row.code || code == 0 && out != row.out || code != 0 && !strings.Contains(stderr, row.out) {
			t.Errorf("%s: code %d\n%s%s", row.args, code, out, stderr)
		}
		if strings.Contains(stderr, "s3") && strings.HasPrefix(row.args, ok) && code != 2 && !lessonClosed {
			t.Errorf("%s: the browser is open", row.args)
		}
		asked := slices.DeleteFunc(f.took(), func(line string) bool { return line == "GET /v1/browser-skills" })
		if code != 0 && len(asked) > 0 {
			t.Errorf("%s asked %v", row.args, asked)
		}
		if code == 0 && (len(asked) != 1 || !strings.Contains(asked[0], `"secrets":{"password":"hush-7"}`) || !strings.Contains(asked[0], `"param":"order"`) || !strings.Contains(asked[0], `"commit_step_id":"s3"`)) {
			t.Errorf("asked %v", asked)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(b), "hush-7") || !strings.Contains(string(b), `"secret_ref": "password"`) {
		t.Errorf("%v %s", err, b)
	}
}

// A step that is mistyped is asked for again, and what was shown outlives a refusal.
func TestWhatWasShownIsNotLost(t *testing.T) {
	f := newFakeSkills(t)
	t.Chdir(t.TempDir())
	tt := atTerminal(t, "skills", "record", "https://portal.example.com/", "--name", "Claim", "--own")
	for _, line := range []string{"\n", "9\n", "s1\n", "s3 \n", "\n"} {
		tt.Types(line)
	}
	tt.Leaves(0)
	if asked := f.took(); !strings.Contains(strings.Join(asked, "\n"), `"commit_step_id":"s3"`) || strings.Count(tt.Errs.String(), "Which step") != 3 {
		t.Errorf("asked %q, said %s", asked, tt.Errs.String())
	}
	recorded(t, map[string]any{"GET /v1/browser-skills": object{"items": []object{}}, "POST /v1/browser-skills": object{"status": 422, "code": "VALIDATION", "detail": "no"}})
	_, errs, code := svc(t, nil, "skills", "record", "https://portal.example.com/", "--name", "A Claim", "--own", "--commit", "s3", "--param", "s2=order")
	b, err := os.ReadFile("skill-a-claim.json")
	if code != 1 || !strings.Contains(errs, "VALIDATION: no\nWhat you showed is kept in skill-a-claim.json, without secrets") || err != nil || strings.Contains(string(b), "hush-7") || !strings.Contains(string(b), `"commit_step_id": "s3"`) {
		t.Errorf("exit %d, %v, %s\n%s", code, err, errs, b)
	}
}
