package platform

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/msg"
)

// giveEmbed creates an embed key of the published agent, and an end user.
func (w *world) giveEmbed(p *party) error {
	return w.Store.Change(w.t.Context(), store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		k, err := tx.CreateEmbedKey(ctx, &api.EmbedKeyCreate{AgentID: p.agent, Name: "Shop", AllowedOrigins: []string{"https://shop.example"}})
		if err != nil {
			return nil, err
		}
		p.embedKey, p.publishable = k.ID, k.Key
		p.endUser, err = tx.UpsertEndUser(ctx, "customer-1", ptr("Kim"), nil, json.RawMessage(`{"groups":["gold"],"plan":"pro"}`))
		return nil, err
	})
}

// service.md, Embed key administration; open-parts.md, Embed: each row is one case, and the
// cases run in order on one tenant.
func TestEmbedKeyRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	key := func(name, more string) string {
		return `{"agent_id": "{agent}", "name": "` + name + `", "allowed_origins": ["https://a.example"]` + more + `}`
	}
	origins := func(list string) string {
		return `{"agent_id": "{agent}", "name": "O", "allowed_origins": [` + list + `]}`
	}
	patch := func(name, body, want string) route {
		return route{name, "PATCH", "/v1/embed-keys/{embed_key}", body, 200, "", want, "embed_key.update"}
	}
	refused := func(name, body, want string) route {
		return route{name, "PATCH", "/v1/embed-keys/{embed_key}", body, 400, "VALIDATION", want, ""}
	}
	const one = "/v1/embed-keys/{embed_key}"
	w.routes(w.a.fill(), []route{
		{"list embed keys", "GET", "/v1/embed-keys", "", 200, "", `{"items":[{"id":"{embed_key}","agent_id":"{agent}","name":"Shop","key_prefix":"` + w.a.publishable[:15] + `","allowed_origins":["https://shop.example"],"enabled":true,"rate_limit_per_min":60,"identity_required":false,"has_identity_secret":false,"theme":{},"config":{"starter_prompts":[]},"last_used_at":null,"revoked_at":null,"created_at":"`, ""},
		{"of an agent", "GET", "/v1/embed-keys?agent_id={agent}", "", 200, "", `"id":"{embed_key}"`, ""},
		{"of another one", "GET", "/v1/embed-keys?agent_id={draft}", "", 200, "", `{"items":[]}`, ""},
		{"a page of embed keys", "GET", "/v1/embed-keys?limit=1", "", 200, "", `"next_cursor":null`, ""},
		{"a cursor that is not ours", "GET", "/v1/embed-keys?cursor=x", "", 400, "VALIDATION", "cursor", ""},
		{"read an embed key", "GET", one, "", 200, "", `{"id":"{embed_key}"`, ""},
		{"its snippet has the service's public address", "GET", one, "", 200, "", `"snippet":"\u003cscript async src=\"` + console + `/embed/v1/widget.js\" data-key=\"` + w.a.publishable[:15] + `…\"\u003e\u003c/script\u003e"`, ""},
		{"so have those of a list", "GET", "/v1/embed-keys", "", 200, "", w.a.publishable[:15] + `…\"\u003e\u003c/script\u003e"`, ""},
		{"read an unknown one", "GET", "/v1/embed-keys/{unknown}", "", 404, "NOT_FOUND", "embed key", ""},
		{"make one", "POST", "/v1/embed-keys", key("A", ""), 201, "", `"key":"svc_pk_`, "embed_key.create"},
		{"without an identity secret", "POST", "/v1/embed-keys", key("B", ""), 201, "", `"has_identity_secret":false`, "embed_key.create"},
		{"with one", "POST", "/v1/embed-keys", key("C", `, "with_identity_secret": true`), 201, "", `"identity_secret":"idsec_`, "embed_key.create"},
		{"identity required", "POST", "/v1/embed-keys", key("D", `, "with_identity_secret": true, "identity_required": true`), 201, "", `"identity_required":true,"has_identity_secret":true`, "embed_key.create"},
		{"required, without a secret", "POST", "/v1/embed-keys", key("E", `, "identity_required": true`), 400, "VALIDATION", "identity_required: needs an identity secret: set with_identity_secret", ""},
		{"a paused one", "POST", "/v1/embed-keys", key("F", `, "enabled": false, "rate_limit_per_min": 10000`), 201, "", `"enabled":false,"rate_limit_per_min":10000`, "embed_key.create"},
		{"a rate of 0", "POST", "/v1/embed-keys", key("G", `, "rate_limit_per_min": 0`), 400, "VALIDATION", "rate_limit_per_min", ""},
		{"a rate of 10001", "POST", "/v1/embed-keys", key("G", `, "rate_limit_per_min": 10001`), 400, "VALIDATION", "rate_limit_per_min", ""},
		{"a name that a live key of the agent has", "POST", "/v1/embed-keys", key("Shop", ""), 409, "NAME_TAKEN", "revoke that key first", ""},
		{"another agent's may have it", "POST", "/v1/embed-keys", `{"agent_id": "{draft}", "name": "Shop", "allowed_origins": []}`, 201, "", "", "embed_key.create"},
		{"a name of 120", "POST", "/v1/embed-keys", key(x(120), ""), 201, "", "", "embed_key.create"},
		{"a name of 121", "POST", "/v1/embed-keys", key(x(121), ""), 400, "VALIDATION", "name", ""},
		{"a name with a control character", "POST", "/v1/embed-keys", key(`a\u0007`, ""), 400, "VALIDATION", "name: must not have control characters", ""},
		{"no name", "POST", "/v1/embed-keys", `{"agent_id": "{agent}", "allowed_origins": []}`, 400, "VALIDATION", "name: is required", ""},
		{"no agent", "POST", "/v1/embed-keys", `{"name": "N", "allowed_origins": []}`, 400, "VALIDATION", "agent_id: is required", ""},
		{"no origins", "POST", "/v1/embed-keys", `{"agent_id": "{agent}", "name": "N"}`, 400, "VALIDATION", "allowed_origins: is required", ""},
		{"an unknown agent", "POST", "/v1/embed-keys", `{"agent_id": "{unknown}", "name": "N", "allowed_origins": []}`, 400, "VALIDATION", "agent_id: there is no such agent", ""},
		{"an unknown field", "POST", "/v1/embed-keys", key("N", `, "key": "mine"`), 400, "VALIDATION", "key", ""},
		{"origins in the form of browsers, once each", "POST", "/v1/embed-keys", origins(`"HTTPS://Shop.Example:443", "https://shop.example", "*", "http://localhost:3000"`), 201, "", `"allowed_origins":["https://shop.example","*","http://localhost:3000"]`, "embed_key.create"},
		{"an origin that is none", "POST", "/v1/embed-keys", origins(`"https://a.example", "https://b.example/shop"`), 400, "VALIDATION", "allowed_origins[1]: must end after the host", ""},
		{"plain http elsewhere", "POST", "/v1/embed-keys", origins(`"http://a.example"`), 400, "VALIDATION", "allowed_origins[0]: http:// is for this machine only", ""},
		{"a theme that is none", "POST", "/v1/embed-keys", key("T", `, "theme": {"accent": "red"}`), 400, "VALIDATION", "theme.accent", ""},
		{"a scheme that is none", "POST", "/v1/embed-keys", key("T", `, "theme": {"color_scheme": "blue"}`), 400, "VALIDATION", "theme.color_scheme", ""},
		{"a picture from a plain URL", "POST", "/v1/embed-keys", key("T", `, "theme": {"avatar_url": "http://a.example/x.png"}`), 400, "VALIDATION", "theme.avatar_url: must be an https URL", ""},
		{"five starter prompts", "POST", "/v1/embed-keys", key("T", `, "config": {"starter_prompts": ["1","2","3","4","5"]}`), 400, "VALIDATION", "config.starter_prompts", ""},
		{"an empty starter prompt", "POST", "/v1/embed-keys", key("T", `, "config": {"starter_prompts": [""]}`), 400, "VALIDATION", "config.starter_prompts[0]", ""},
		{"a theme and a config are stored as given", "POST", "/v1/embed-keys", key("T", `, "theme": {"color_scheme": "dark", "z_index": 0}, "config": {"greeting": "Hi\nthere", "show_history": false}`), 201, "",
			`"theme":{"color_scheme":"dark","z_index":0},"config":{"greeting":"Hi\nthere","starter_prompts":[],"show_history":false}`, "embed_key.create"},
		{"a contact that is plain http", "POST", "/v1/embed-keys", key("T", `, "config": {"contact_url": "http://a.example"}`), 400, "VALIDATION", "config.contact_url: must be an https URL", ""},
		{"a contact and sources are stored as given", "POST", "/v1/embed-keys", key("Contact", `, "config": {"contact_url": "mailto:help@a.example", "show_sources": true}`), 201, "",
			`"config":{"starter_prompts":[],"contact_url":"mailto:help@a.example","show_sources":true}`, "embed_key.create"},
		patch("a contact", `{"config": {"contact_url": "https://a.example/contact"}}`, `"config":{"starter_prompts":[],"contact_url":"https://a.example/contact"}`),
		refused("a contact that runs", `{"config": {"contact_url": "javascript:alert(1)"}}`, "config.contact_url: must be an https URL"),
		patch("rename it", `{"name": "Other"}`, `"name":"Other"`),
		patch("other origins", `{"allowed_origins": []}`, `"allowed_origins":[]`),
		patch("a theme in place of the former one", `{"theme": {"accent": "#FF0000"}}`, `"theme":{"accent":"#FF0000"}`),
		patch("a config in place of the former one", `{"config": {"title": "T"}}`, `"config":{"title":"T","starter_prompts":[]}`),
		patch("another rate", `{"rate_limit_per_min": 1}`, `"rate_limit_per_min":1`),
		patch("pause it", `{"enabled": false}`, `"enabled":false`),
		patch("and resume it", `{"enabled": true}`, `"enabled":true`),
		refused("identity without a secret", `{"identity_required": true}`, "identity_required: needs an identity secret: make one first"),
		{"make one", "POST", one + "/identity-secret", "", 200, "", `{"id":"{embed_key}","identity_secret":"idsec_`, "embed_key.identity_secret"},
		{"replace it", "POST", one + "/identity-secret", "", 200, "", `"identity_secret":"idsec_`, "embed_key.identity_secret"},
		patch("identity with a secret", `{"identity_required": true}`, `"identity_required":true,"has_identity_secret":true`),
		refused("another agent", `{"agent_id": "{draft}"}`, "agent_id"),
		refused("with_identity_secret", `{"with_identity_secret": true}`, "with_identity_secret"),
		refused("an origin that is none", `{"allowed_origins": ["a.example"]}`, "allowed_origins[0]: must be https://host[:port]"),
		{"a name that another has", "PATCH", one, `{"name": "A"}`, 409, "NAME_TAKEN", "", ""},
		{"another value", "POST", one + "/rotate", "", 200, "", `"key":"svc_pk_`, "embed_key.rotate"},
		{"revoke it", "DELETE", one, "", 204, "", "", "embed_key.revoke"},
		{"a second time changes nothing", "DELETE", one, "", 204, "", "", ""},
		{"a revoked key is read", "GET", one, "", 200, "", `"revoked_at":"`, ""},
		{"and not listed", "GET", "/v1/embed-keys?agent_id={agent}&limit=100", "", 200, "", `"next_cursor":null`, ""},
		{"but where it is asked for", "GET", "/v1/embed-keys?include_revoked=true", "", 200, "", `"id":"{embed_key}"`, ""},
		{"its name is free", "POST", "/v1/embed-keys", key("Other", ""), 201, "", "", "embed_key.create"},
		{"it is not changed", "PATCH", one, `{"enabled": true}`, 404, "NOT_FOUND", "embed key", ""},
		{"not rotated", "POST", one + "/rotate", "", 404, "NOT_FOUND", "embed key", ""},
		{"and gets no secret", "POST", one + "/identity-secret", "", 404, "NOT_FOUND", "embed key", ""},
		{"revoke an unknown one", "DELETE", "/v1/embed-keys/{unknown}", "", 404, "NOT_FOUND", "embed key", ""},
		{"change an unknown one", "PATCH", "/v1/embed-keys/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "embed key", ""},
		{"rotate an unknown one", "POST", "/v1/embed-keys/{unknown}/rotate", "", 404, "NOT_FOUND", "embed key", ""},
	}, w.a.publishable)
	if got := w.call(w.a, "GET", "/v1/embed-keys", ""); strings.Contains(got.body, w.a.embedKey.String()) {
		t.Error("a revoked key is listed")
	}
}

// open-parts.md: http:// is accepted only outside production.
func TestOriginsInProduction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Production = true
	body := `{"agent_id": "{agent}", "name": "P", "allowed_origins": ["https://a.example", "http://localhost:3000"]}`
	if got := w.call(w.a, "POST", "/v1/embed-keys", w.a.fill().Replace(body)); got.status != 400 || !strings.Contains(got.body, "allowed_origins[1]: must begin with https://") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A secret is shown once: no list, audit row or log holds it, but kept responses repeat it.
func TestEmbedSecretsAreShownOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.call(w.a, "POST", "/v1/embed-keys", w.a.fill().Replace(`{"agent_id": "{agent}", "name": "S", "allowed_origins": ["*"], "with_identity_secret": true}`), "Idempotency-Key", "s")
	again := w.call(w.a, "POST", "/v1/embed-keys", w.a.fill().Replace(`{"agent_id": "{agent}", "name": "S", "allowed_origins": ["*"], "with_identity_secret": true}`), "Idempotency-Key", "s")
	if made.status != 201 || made.body != again.body {
		t.Fatalf("%d %s\nagain %s", made.status, made.body, again.body)
	}
	one := "/v1/embed-keys/" + made.get("id").(string)
	rotated := w.call(w.a, "POST", one+"/rotate", "")
	replaced := w.call(w.a, "POST", one+"/identity-secret", "")
	secrets := []string{made.get("key").(string), made.get("identity_secret").(string), rotated.get("key").(string), replaced.get("identity_secret").(string)}
	if slices.Sort(secrets); len(slices.Compact(secrets)) != 4 {
		t.Errorf("two secrets are the same: %v", secrets)
	}
	if got := w.call(w.a, "PATCH", one, `{"enabled": false}`); got.status != 200 {
		t.Fatal(got)
	}
	for _, path := range []string{one, "/v1/embed-keys", "/v1/embed-keys?include_revoked=true&limit=100", "/v1/audit?limit=100"} {
		for _, s := range secrets {
			if body := w.call(w.a, "GET", path, "").body; strings.Contains(body, s) {
				t.Errorf("%s shows %s", path, s)
			}
		}
	}
	var stored string
	w.must(w.admin.QueryRow(t.Context(), "SELECT string_agg(k::text, ' ') FROM embed_keys k").Scan(&stored))
	for _, s := range secrets {
		if strings.Contains(stored, s) || strings.Contains(w.logs.String(), s) {
			t.Errorf("%s is stored or logged in plain", s)
		}
	}
}

func TestEmbedKeysAreForAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range [][2]string{{"GET", ""}, {"POST", ""}, {"GET", "/{embed_key}"}, {"PATCH", "/{embed_key}"}, {"DELETE", "/{embed_key}"}, {"POST", "/{embed_key}/rotate"}, {"POST", "/{embed_key}/identity-secret"}} {
		if got := w.person("member", c[0], "/v1/embed-keys"+w.a.fill().Replace(c[1]), ""); got.status != 403 || got.code() != "FORBIDDEN" {
			t.Errorf("%s %s: %d %s", c[0], c[1], got.status, got.body)
		}
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{{"GET", "", 200}, {"GET", "/{end_user}", 200}, {"PATCH", "/{end_user}", 403}, {"DELETE", "/{end_user}", 403}} {
		if got := w.person("member", c.method, "/v1/end-users"+w.a.fill().Replace(c.path), ""); got.status != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, got.status, got.body)
		}
	}
}

// open-parts.md, End users: each row is one case, and the cases run in order on one tenant.
func TestEndUserRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	const one = "/v1/end-users/{end_user}"
	patch := func(name, body, want string) route {
		return route{name, "PATCH", one, body, 200, "", want, "end_user.update"}
	}
	refused := func(name, body, want string) route {
		return route{name, "PATCH", one, body, 400, "VALIDATION", want, ""}
	}
	kim := `"id":"{end_user}","external_id":"customer-1","name":"Kim","email":null,"attributes":{"groups":["gold"],"meta":{"groups":["gold"],"plan":"pro"}},"tags":[],"residency":null,"created_at":"`
	w.routes(w.a.fill(), []route{
		{"list end users", "GET", "/v1/end-users", "", 200, "", `{"items":[{` + kim, ""},
		{"by what the tenant calls them", "GET", "/v1/end-users?external_id=customer-1", "", 200, "", kim, ""},
		{"by what he calls nobody", "GET", "/v1/end-users?external_id=customer", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"by a tag that nobody has", "GET", "/v1/end-users?tag=vip", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"a cursor that is not ours", "GET", "/v1/end-users?cursor=x", "", 400, "VALIDATION", "cursor", ""},
		{"read one", "GET", one, "", 200, "", "{" + kim, ""},
		{"read an unknown one", "GET", "/v1/end-users/{unknown}", "", 404, "NOT_FOUND", "end user", ""},
		patch("tags", `{"tags": ["vip", "eu"]}`, `"name":"Kim","email":null,"attributes":{"groups":["gold"],"meta":{"groups":["gold"],"plan":"pro"}},"tags":["vip","eu"]`),
		{"by one of his tags", "GET", "/v1/end-users?tag=vip&external_id=customer-1", "", 200, "", `"id":"{end_user}"`, ""},
		patch("name and email", `{"name": null, "email": "kim@example.com"}`, `"name":null,"email":"kim@example.com"`),
		patch("residency", `{"residency": "eu"}`, `"residency":"eu"`),
		patch("none", `{"residency": null}`, `"residency":null`),
		patch("attributes in place of the former ones", `{"attributes": {"a": 1}}`, `"attributes":{"a":1}`),
		refused("attributes that are no object", `{"attributes": [1]}`, "attributes: expected object"),
		refused("attributes that are none", `{"attributes": null}`, "attributes: must not be null"),
		refused("attributes that are too large", `{"attributes": {"a":"`+x(16384)+`"}}`, "attributes: must have at most 16384 bytes"),
		refused("a name of 121", `{"name": "`+x(121)+`"}`, "name: must have 1 to 120 characters"),
		refused("an empty name", `{"name": ""}`, "name: must have 1 to 120 characters"),
		refused("an email of 321", `{"email": "`+x(321)+`"}`, "email: must have 1 to 320 characters"),
		refused("a tag of 61", `{"tags": ["a", "`+x(61)+`"]}`, "tags[1]: must have 1 to 60 characters"),
		refused("a tag twice", `{"tags": ["a", "a"]}`, "tags[1]: is there twice"),
		refused("51 tags", `{"tags": [`+strings.Repeat(`"",`, 50)+`""]}`, "tags"),
		refused("another external id", `{"external_id": "x"}`, "external_id"),
		{"change an unknown one", "PATCH", "/v1/end-users/{unknown}", `{"tags": []}`, 404, "NOT_FOUND", "end user", ""},
		{"delete one", "DELETE", one, "", 204, "", "", "end_user.delete"},
		{"he is gone", "GET", one, "", 404, "NOT_FOUND", "end user", ""},
		{"for every list", "GET", "/v1/end-users", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"and every change", "PATCH", one, `{"tags": []}`, 404, "NOT_FOUND", "end user", ""},
		{"delete him again", "DELETE", one, "", 404, "NOT_FOUND", "end user", ""},
	}, w.a.secret)
	var left string
	w.must(w.admin.QueryRow(t.Context(), "SELECT u::text FROM end_users u WHERE tenant_id = $1", w.a.tenant).Scan(&left))
	for _, of := range []string{"customer-1", "kim", "gold", "vip"} {
		if strings.Contains(strings.ToLower(left), of) {
			t.Errorf("%q of the deleted end user is left: %s", of, left)
		}
	}
}

// The threads of a deleted end user are told to end before the response, up to a limit. A thread
// that cannot be told now does not delay the response.
func TestThreadsOfADeletedEndUser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	give := func(n int) {
		for range n {
			_, err := w.admin.Exec(t.Context(), "INSERT INTO threads (tenant_id, id, agent_id, created_by, end_user_id) VALUES ($1, $2, $3, $4, $5)",
				w.a.tenant, id.New(5), w.a.agent, "embed:eu:"+w.a.endUser.String(), w.a.endUser)
			w.must(err)
		}
	}
	give(threadsAtOnce + 3)
	if got := w.call(w.a, "DELETE", "/v1/end-users/"+w.a.endUser.String(), ""); got.status != 204 {
		t.Fatal(got)
	}
	told := 0
	for _, o := range w.actors.orders() {
		if d, ok := o.(msg.DeleteThread); ok && d.By.Actor == "apikey:"+w.a.key.String() {
			told++
		}
	}
	if told != threadsAtOnce {
		t.Errorf("%d threads are told, want %d", told, threadsAtOnce)
	}
}
