package client

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
)

const (
	hookTrigger     = "0193e111-0000-7000-8000-0000000000e1"
	scheduleTrigger = "0193e122-0000-7000-8000-0000000000e2"
)

// fakeTriggers answers the routes of triggers as the service does, as far as the
// commands ask.
type fakeTriggers struct {
	mu    sync.Mutex // guards asked
	asked []string   // method, path, body
}

func newFakeTriggers(t *testing.T) *fakeTriggers {
	t.Helper()
	f := &fakeTriggers{}
	hook := object{"id": hookTrigger, "name": "Issues\x1b[2J", "kind": "hook", "target": object{"agent_id": agentID}, "enabled": true, "schedule": nil, "input": nil,
		"hook_url": "https://a.example/hooks/" + hookTrigger, "secret": "hksec_it's", "last_fired_at": "2030-01-02T03:04:05Z", "next_fire_at": nil}
	schedule := object{"id": scheduleTrigger, "name": "Mornings", "kind": "schedule", "target": object{"agent_id": agentID}, "enabled": true,
		"schedule": object{"cron": "0 9 * * *", "timezone": "Europe/Berlin"}, "hook_url": nil, "last_fired_at": nil, "next_fire_at": "2030-01-02T08:00:00Z"}
	paused := object{"id": scheduleTrigger, "enabled": false}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
		f.mu.Unlock()
		var said any
		switch at := r.Method + " " + r.URL.Path; {
		case at == "GET /v1/agents":
			said = object{"items": []object{{"id": agentID, "slug": "helper"}}, "next_cursor": nil}
		case at == "GET /v1/triggers":
			said = object{"items": []object{schedule, hook}, "next_cursor": nil}
		case at == "POST /v1/triggers" && strings.Contains(string(body), `"schedule"`):
			said = schedule
		case at == "POST /v1/triggers", at == "POST /v1/triggers/"+hookTrigger+"/rotate-secret", at == "GET /v1/triggers/"+hookTrigger:
			said = hook
		case at == "PATCH /v1/triggers/"+scheduleTrigger && strings.Contains(string(body), "true"):
			said = schedule
		case at == "PATCH /v1/triggers/"+scheduleTrigger:
			said = paused
		case at == "DELETE /v1/triggers/"+hookTrigger:
			w.WriteHeader(http.StatusNoContent)
			return
		case strings.HasSuffix(at, "/fire"):
			said = object{"run_id": runID}
		default:
			w.WriteHeader(http.StatusNotFound)
			said = object{"status": 404, "code": "NOT_FOUND", "title": "Not found", "detail": "There is no such trigger in this tenant."}
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

func (f *fakeTriggers) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func TestTriggersCommands(t *testing.T) {
	f := newFakeTriggers(t)
	shown := `trigger  ` + hookTrigger + `
url      https://a.example/hooks/` + hookTrigger + `
secret   hksec_it's

The secret is not shown again. To try it:

BODY='{"text":"Hello."}'
curl -sS -X POST 'https://a.example/hooks/` + hookTrigger + `' \
  -H "X-Svc-Signature-256: sha256=$(printf %s "$BODY" | openssl dgst -sha256 -hmac 'hksec_it'\''s' | sed 's/^.* //')" \
  --data-binary "$BODY"
`
	one := "/v1/triggers/" + hookTrigger
	for _, row := range []struct {
		args  string // separated by |
		out   string // or what stderr holds
		code  int
		asked []string
	}{
		{"ls", `TRIGGER   NAME             KIND      ENABLED  NEXT                  LAST                  WHEN
000000e2  Mornings         schedule  yes      2030-01-02T08:00:00Z  -                     0 9 * * * Europe/Berlin
000000e1  Issues\u001b[2J  hook      yes      -                     2030-01-02T03:04:05Z  https://a.example/hooks/` + hookTrigger + "\n", 0, []string{"GET /v1/triggers"}},
		{"ls|--limit|0", "--limit must be at least 1", 2, nil},
		{"create|helper|--name|Issues", shown, 0, []string{"GET /v1/agents", `POST /v1/triggers {"enabled":true,"kind":"hook","name":"Issues","target":{"agent_id":"` + agentID + `"}}`}},
		{"create|helper|--name|M|--cron|0 9 * * *|--timezone|Europe/Berlin|--input|{\"text\": \"hi\"}|--paused", "trigger  " + scheduleTrigger + "\nnext     2030-01-02T08:00:00Z\n", 0,
			[]string{"GET /v1/agents", `POST /v1/triggers {"enabled":false,"input":{"text":"hi"},"kind":"schedule","name":"M","schedule":{"cron":"0 9 * * *","timezone":"Europe/Berlin"},"target":{"agent_id":"` + agentID + `"}}`}},
		{"create|helper", `required flag(s) "name" not set`, 2, nil},
		{"create|helper|--name|M|--timezone|UTC", "--timezone: belongs to --cron", 2, nil},
		{"create|helper|--name|M|--input|[1]", "--input: must be a JSON object", 2, nil},
		{"create|nobody|--name|M", `there is no agent with the slug "nobody"`, 1, []string{"GET /v1/agents"}},
		{"disable|000000e2", scheduleTrigger + "  paused\n", 0, []string{"GET /v1/triggers", `PATCH /v1/triggers/` + scheduleTrigger + ` {"enabled":false}`}},
		{"enable|" + scheduleTrigger, scheduleTrigger + "  enabled, next 2030-01-02T08:00:00Z\n", 0, []string{`PATCH /v1/triggers/` + scheduleTrigger + ` {"enabled":true}`}},
		{"rotate|" + strings.ToUpper(hookTrigger), shown, 0, []string{"POST " + one + "/rotate-secret"}},
		{"fire|000000e1", runID + "\n", 0, []string{"GET /v1/triggers", "POST " + one + "/fire {}"}},
		{"fire|" + hookTrigger + `|--input|{"a":1}`, runID + "\n", 0, []string{"POST " + one + `/fire {"input":{"a":1}}`}},
		{"fire|" + hookTrigger + "|--input|x", "--input: must be a JSON object", 2, nil},
		{"fire|0193e111", `no trigger's id ends with "0193e111"`, 1, []string{"GET /v1/triggers"}},
		{"fire|1", `"1" is too short`, 1, []string{"GET /v1/triggers"}},
		{"fire|", `"" is not a valid trigger id`, 1, nil},
		{"rm|" + hookTrigger, "removed\n", 0, []string{"DELETE " + one}},
		{"rm|" + scheduleTrigger, "NOT_FOUND: There is no such trigger", 1, []string{"DELETE /v1/triggers/" + scheduleTrigger}},
	} {
		out, errs, code := svc(t, nil, append([]string{"triggers"}, strings.Split(row.args, "|")...)...)
		if code != row.code || code == 0 && out != row.out || code != 0 && !strings.Contains(errs, row.out) {
			t.Errorf("%s: code %d\n%s%s\nwant %d\n%s", row.args, code, out, errs, row.code, row.out)
		}
		if asked := f.took(); !reflect.DeepEqual(asked, row.asked) {
			t.Errorf("%s: asked %q", row.args, asked)
		}
	}
	for _, args := range []string{"ls", "get|" + hookTrigger, "create|helper|--name|x", "enable|" + scheduleTrigger, "rotate|" + hookTrigger, "fire|" + hookTrigger, "rm|" + hookTrigger} {
		out, errs, code := svc(t, nil, append([]string{"triggers", "--json"}, strings.Split(args, "|")...)...)
		if code != 0 || !json.Valid([]byte(out)) {
			t.Errorf("%s: code %d\n%s%s", args, code, out, errs)
		}
	}
}

// A trigger starts an agent or a workflow, one of them.
func TestTriggersOfWorkflows(t *testing.T) {
	took := recorded(t, map[string]any{
		"GET /v1/workflows": object{"items": []object{{"id": workflowID, "slug": "refunds"}}, "next_cursor": nil},
		"POST /v1/triggers": object{"id": scheduleTrigger, "next_fire_at": "2030-01-02T08:00:00Z"},
	})
	for _, row := range []struct{ args, out, asked string }{
		{"--workflow|refunds", "trigger  " + scheduleTrigger + "\nnext     2030-01-02T08:00:00Z\n", `GET /v1/workflows, POST /v1/triggers {"enabled":true,"kind":"hook","name":"N","target":{"workflow_id":"` + workflowID + `"}}`},
		{"helper|--workflow|refunds", "give an agent or --workflow, one of them", ""},
		{"", "give an agent or --workflow, one of them", ""},
	} {
		args := strings.FieldsFunc("triggers|create|--name|N|"+row.args, func(r rune) bool { return r == '|' })
		out, errs, code := svc(t, nil, args...)
		if wants := map[bool]int{true: 0, false: 2}[row.asked != ""]; code != wants || code == 0 && out != row.out || code != 0 && !strings.Contains(errs, row.out) {
			t.Errorf("%s: code %d\n%s%s", row.args, code, out, errs)
		}
		if asked := strings.Join(took(), ", "); asked != row.asked {
			t.Errorf("%s: asked %s", row.args, asked)
		}
	}
}
