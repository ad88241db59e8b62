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
	liveEmbed    = "0193e211-0000-7000-8000-0000000000f1"
	revokedEmbed = "0193e222-0000-7000-8000-0000000000f2"
	kimEndUser   = "0193e311-0000-7000-8000-0000000000f3"
)

// fakeEmbed answers the routes of embed keys and end users as the service does, as far
// as the commands ask.
type fakeEmbed struct {
	base  string
	mu    sync.Mutex // guards asked
	asked []string   // method, path, query, body
}

// snippetOf is the script element as the service answers it: with its public address,
// which is not the one that the command calls.
func snippetOf(key string) string {
	return `<script async src="https://agents.example.com/embed/v1/widget.js" data-key="` + key + `"></script>`
}

func newFakeEmbed(t *testing.T) *fakeEmbed {
	t.Helper()
	f := &fakeEmbed{}
	live := object{"id": liveEmbed, "agent_id": agentID, "name": "Shop\x1b[2J", "key_prefix": "svc_pk_abcdefgh", "allowed_origins": []string{"https://shop.example", "*"}, "enabled": true,
		"rate_limit_per_min": 60, "identity_required": false, "has_identity_secret": true, "last_used_at": "2030-01-02T03:04:05Z", "revoked_at": nil}
	paused := object{"id": liveEmbed, "allowed_origins": []string{}, "enabled": false, "rate_limit_per_min": 5, "identity_required": true, "has_identity_secret": true}
	revoked := object{"id": revokedEmbed, "name": "Old", "key_prefix": "svc_pk_ijklmnop", "allowed_origins": []string{}, "enabled": true, "rate_limit_per_min": 1, "revoked_at": "2030-01-02T03:04:05Z"}
	once := object{"id": liveEmbed, "allowed_origins": []string{"https://shop.example"}, "key": "svc_pk_whole", "identity_secret": "idsec_whole", "snippet": snippetOf("svc_pk_whole")}
	rotated := object{"id": liveEmbed, "allowed_origins": []string{}, "key": "svc_pk_other", "snippet": snippetOf("svc_pk_other")}
	kim := object{"id": kimEndUser, "external_id": "customer-1\x07", "name": "Kim", "email": nil, "tags": []string{"vip", "eu"}, "created_at": "2030-01-02T03:04:05Z"}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		q := r.URL.Query()
		q.Del("limit")
		path := r.URL.Path
		if len(q) > 0 {
			path += "?" + q.Encode()
		}
		f.mu.Lock()
		f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+path+" "+string(body)))
		f.mu.Unlock()
		var said any
		switch at := r.Method + " " + r.URL.Path; at {
		case "GET /v1/agents":
			said = object{"items": []object{{"id": agentID, "slug": "helper"}}, "next_cursor": nil}
		case "GET /v1/embed-keys":
			said = object{"items": []object{live, revoked}, "next_cursor": nil}
		case "POST /v1/embed-keys":
			said = once
		case "GET /v1/embed-keys/" + liveEmbed:
			said = live
		case "PATCH /v1/embed-keys/" + liveEmbed:
			said = paused
		case "POST /v1/embed-keys/" + liveEmbed + "/rotate":
			said = rotated
		case "POST /v1/embed-keys/" + liveEmbed + "/identity-secret":
			said = object{"id": liveEmbed, "identity_secret": "idsec_new"}
		case "GET /v1/end-users":
			said = object{"items": []object{kim}, "next_cursor": nil}
		case "GET /v1/end-users/" + kimEndUser, "PATCH /v1/end-users/" + kimEndUser:
			said = kim
		case "DELETE /v1/embed-keys/" + liveEmbed, "DELETE /v1/end-users/" + kimEndUser:
			w.WriteHeader(http.StatusNoContent)
			return
		default:
			w.WriteHeader(http.StatusNotFound)
			said = object{"status": 404, "code": "NOT_FOUND", "title": "Not found", "detail": "There is no such embed key in this tenant."}
		}
		if err := json.NewEncoder(w).Encode(said); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(srv.Close)
	f.base = srv.URL
	t.Setenv("SVC_URL", srv.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	return f
}

func (f *fakeEmbed) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func TestEmbedCommands(t *testing.T) {
	f := newFakeEmbed(t)
	script := func(key string) string {
		return "\nThis is not shown again. For your page:\n\n" + snippetOf(key) + "\n"
	}
	key, person := "/v1/embed-keys/"+liveEmbed, "/v1/end-users/"+kimEndUser
	for _, row := range []struct {
		args  string // separated by |
		out   string // or what stderr holds
		code  int
		asked []string
	}{
		{"embed-keys|ls", `EMBED KEY  NAME           PREFIX           STATE    IDENTITY  RATE  USED                  ORIGINS
000000f1   Shop\u001b[2J  svc_pk_abcdefgh  live     optional  60    2030-01-02T03:04:05Z  https://shop.example *
000000f2   ` + "Old            svc_pk_ijklmnop  revoked  no        1     -                     nowhere\n", 0, []string{"GET /v1/embed-keys"}},
		{"embed-keys|ls|--revoked|--agent|helper|--json", "", 0, []string{"GET /v1/agents", "GET /v1/embed-keys?agent_id=" + agentID + "&include_revoked=true"}},
		{"embed-keys|ls|--limit|0", "--limit must be at least 1", 2, nil},
		{"embed-keys|create|helper|--name|Shop|--origin|https://shop.example|--identity-secret", "embed key  " + liveEmbed + "\norigins    https://shop.example\nkey        svc_pk_whole\nidentity   idsec_whole\n" + script("svc_pk_whole"), 0,
			[]string{"GET /v1/agents", `POST /v1/embed-keys {"agent_id":"` + agentID + `","allowed_origins":["https://shop.example"],"name":"Shop","with_identity_secret":true}`}},
		{"embed-keys|create|" + agentID + `|--name|S|--origin|*|--rate|5|--theme|{"accent": "#112233"}|--config|{"title": "T"}|--json`, "", 0,
			[]string{`POST /v1/embed-keys {"agent_id":"` + agentID + `","allowed_origins":["*"],"config":{"title":"T"},"name":"S","rate_limit_per_min":5,"theme":{"accent":"#112233"}}`}},
		{"embed-keys|create|helper|--name|Shop", `required flag(s) "origin" not set`, 2, nil},
		{"embed-keys|create|helper|--name|S|--origin|*|--theme|[1]", "--theme: must be a JSON object", 2, nil},
		{"embed-keys|update|000000f1|--pause|--identity-required|--rate|5|--origin|", liveEmbed + "  paused, identity required, 5 a minute, nowhere\n", 0,
			[]string{"GET /v1/embed-keys?include_revoked=true", "PATCH " + key + ` {"allowed_origins":[],"enabled":false,"identity_required":true,"rate_limit_per_min":5}`}},
		{"embed-keys|update|" + liveEmbed + "|--resume|--json", "", 0, []string{"PATCH " + key + ` {"enabled":true}`}},
		{"embed-keys|update|" + liveEmbed, "nothing to change", 2, nil},
		{"embed-keys|update|" + liveEmbed + "|--pause|--resume", "none of the others can be", 2, nil},
		{"embed-keys|rotate|" + strings.ToUpper(liveEmbed), "embed key  " + liveEmbed + "\norigins    nowhere\nkey        svc_pk_other\n" + script("svc_pk_other"), 0, []string{"POST " + key + "/rotate"}},
		{"embed-keys|identity-secret|" + liveEmbed, "idsec_new\n\nIt is not shown again. Your back end signs identity tokens with it (HS256).\n", 0, []string{"POST " + key + "/identity-secret"}},
		{"embed-keys|revoke|000000f1", "removed\n", 0, []string{"GET /v1/embed-keys?include_revoked=true", "DELETE " + key}},
		{"embed-keys|revoke|" + revokedEmbed, "NOT_FOUND: There is no such embed key", 1, []string{"DELETE /v1/embed-keys/" + revokedEmbed}},
		{"embed-keys|get|0193e211", `no embed key's id ends with "0193e211"`, 1, []string{"GET /v1/embed-keys?include_revoked=true"}},
		{"end-users|ls", `END USER  EXTERNAL ID       NAME  EMAIL  TAGS    SINCE
000000f3  customer-1\u0007  Kim   -      vip eu  2030-01-02T03:04:05Z` + "\n", 0, []string{"GET /v1/end-users"}},
		{"end-users|ls|--external-id|customer-1|--tag|vip|--json", "", 0, []string{"GET /v1/end-users?external_id=customer-1&tag=vip"}},
		{"end-users|get|000000f3|--json", "", 0, []string{"GET /v1/search?q=000000f3", "GET /v1/end-users", "GET " + person}},
		{"end-users|update|" + kimEndUser + `|--name||--email|kim@example.com|--tag|vip,eu|--attributes|{"a":1}`, kimEndUser + `  customer-1\u0007  Kim  -  vip eu` + "\n", 0,
			[]string{"PATCH " + person + ` {"attributes":{"a":1},"email":"kim@example.com","name":null,"tags":["vip","eu"]}`}},
		{"end-users|update|" + kimEndUser, "nothing to change", 2, nil},
		{"end-users|update|" + kimEndUser + "|--attributes|x", "--attributes: must be a JSON object", 2, nil},
		{"end-users|delete|000000f3", "removed\n", 0, []string{"GET /v1/search?q=000000f3", "GET /v1/end-users", "DELETE " + person}},
	} {
		out, errs, code := svc(t, nil, strings.Split(row.args, "|")...)
		asJSON := strings.HasSuffix(row.args, "--json")
		if code != row.code || code == 0 && !asJSON && out != row.out || code != 0 && !strings.Contains(errs, row.out) || asJSON && !json.Valid([]byte(out)) {
			t.Errorf("%s: code %d\n%s%s\nwant %d\n%s", row.args, code, out, errs, row.code, row.out)
		}
		if asked := f.took(); !reflect.DeepEqual(asked, row.asked) {
			t.Errorf("%s: asked %q", row.args, asked)
		}
	}
}
