package platform

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsvc/persistence/store"
	"agentsvc/schemas/api"
	"agentsvc/schemas/id"
	"agentsvc/schemas/knowledge"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
	"agentsvc/schemas/testkit"
)

// finder is a search that finds the query itself, and notes what it was asked for.
type finder struct {
	mu    sync.Mutex // guards the fields below
	asked []Query
	fail  error
}

func (f *finder) Search(_ context.Context, _ id.TenantID, q Query) ([]knowledge.Hit, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, q)
	if q.Text == "nothing" {
		return nil, nil
	}
	return []knowledge.Hit{{Text: q.Text, Cite: knowledge.Cite(id.DocumentID{}, 1)}}, f.fail
}

func (f *finder) last() Query {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		return Query{}
	}
	return f.asked[len(f.asked)-1]
}

// wakes notes which actors were woken.
type wakes struct {
	mu  sync.Mutex // guards all
	all []string
}

func (w *wakes) note(kind string, _ id.TenantID, actor id.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, kind+" "+actor.String())
}

// take returns what was noted since the last take, sorted.
func (w *wakes) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	slices.Sort(all)
	return all
}

// sourceGuard refuses localhost, and plain http where it may not be.
func sourceGuard(ctx context.Context, url string, plain bool) error {
	if strings.HasPrefix(url, "http:") && !plain {
		return errors.New("must be https")
	}
	return guard{}.CheckURL(ctx, url)
}

// giveKnowledge creates a base with a document and a source.
func (w *world) giveKnowledge(p *party) error {
	file := id.FileID{UUID: id.NewAnywhere()}
	size, sum, err := w.Files.Put(w.t.Context(), store.DocumentFile(p.tenant, file), strings.NewReader("hello"), 100)
	if err != nil {
		return err
	}
	w.Files.Settle(store.DocumentFile(p.tenant, file), true)
	return w.Store.Change(w.t.Context(), store.By{Tenant: p.tenant, Actor: "system"}, func(ctx context.Context, tx *store.Tx) ([]byte, error) {
		b, err := tx.CreateKnowledgeBase(ctx, &api.KnowledgeBaseCreate{Name: "Guides"})
		if err != nil {
			return nil, err
		}
		docs, _, err := tx.PutDocuments(ctx, b.ID, []store.NewDocument{{File: file, Name: "guide.md", MediaType: "text/markdown", SizeBytes: size, SHA256: sum}})
		if err != nil {
			return nil, err
		}
		cron := "0 4 * * *"
		s, err := tx.CreateSource(ctx, b.ID, &api.SourceCreate{Kind: lifecycle.SourceWeb, Name: "Help", Config: api.Object(`{"url":"https://x.example/help/"}`), Schedule: &cron, Timezone: "Europe/Berlin"})
		if err != nil {
			return nil, err
		}
		p.base, p.document, p.source = b.ID, docs[0].ID, s.ID
		if p.skill, err = makeSkill(ctx, tx, "carrier-claim"); err != nil {
			return nil, err
		}
		return nil, nil
	})
}

// service.md, Knowledge bases; open-parts.md, Knowledge bases, Knowledge: each row is one case, and
// the cases run in order on one tenant.
func TestKnowledgeRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	x := func(n int) string { return strings.Repeat("x", n) }
	const bases, base, docs, doc = "/v1/knowledge-bases", "/v1/knowledge-bases/{base}", "/v1/knowledge-bases/{base}/documents", "/v1/knowledge-bases/{base}/documents/{document}"
	cuts := func(fields string) string { return `{"name": "N", "chunking": {` + fields + `}}` }
	embeds := func(fields string) string { return `{"name": "N", "embedding": {` + fields + `}}` }
	acl := func(items string) string { return `{"items": [` + items + `]}` }
	w.routes(w.a.fill(), []route{
		{"list bases", "GET", bases, "", 200, "", `{"items":[{"id":"{base}","name":"Guides","description":"","chunking":{"max_tokens":400,"overlap_tokens":60},"embedding":null,"created_at":"`, ""},
		{"a cursor that is not ours", "GET", bases + "?cursor=x", "", 400, "VALIDATION", "cursor", ""},
		{"read a base", "GET", base, "", 200, "", `{"id":"{base}","name":"Guides"`, ""},
		{"read an unknown one", "GET", bases + "/{unknown}", "", 404, "NOT_FOUND", "knowledge base", ""},
		{"read what is no id", "GET", bases + "/x", "", 404, "NOT_FOUND", "is not a valid id", ""},
		{"create a base", "POST", bases, `{"name": "N"}`, 201, "", `"name":"N","description":"","chunking":{"max_tokens":400,"overlap_tokens":60},"embedding":null`, "kb.create"},
		{"with everything", "POST", bases, `{"name": "N", "description": "D", "chunking": {"max_tokens": 300, "overlap_tokens": 0}, "embedding": {"provider": "mine", "model": "m"}}`, 201, "",
			`"description":"D","chunking":{"max_tokens":300,"overlap_tokens":0},"embedding":{"provider":"mine","model":"m"}`, "kb.create"},
		{"of small chunks", "POST", bases, cuts(`"max_tokens": 60`), 201, "", `"chunking":{"max_tokens":60,"overlap_tokens":9}`, "kb.create"},
		{"no embedding", "POST", bases, `{"name": "N", "embedding": null}`, 201, "", `"embedding":null`, "kb.create"},
		{"of a provider of the deployment", "POST", bases, embeds(`"provider": "deployed", "model": "m"`), 201, "", `"provider":"deployed"`, "kb.create"},
		{"of an unknown provider", "POST", bases, embeds(`"provider": "nobodys", "model": "m"`), 400, "VALIDATION", "embedding.provider: neither", ""},
		{"a provider without embeddings", "POST", "/v1/model-providers", `{"slug": "claude", "kind": "anthropic", "base_url": "https://x.example", "credentials": {"api_key": "k"}}`, 201, "", "", "model_provider.create"},
		{"of that one", "POST", bases, embeds(`"provider": "claude", "model": "m"`), 400, "VALIDATION", "embedding.provider: that model provider is of the kind anthropic", ""},
		{"an own one of the deployment's name", "POST", "/v1/model-providers", `{"slug": "deployed", "kind": "anthropic", "base_url": "https://x.example", "credentials": {"api_key": "k"}}`, 201, "", "", "model_provider.create"},
		{"which goes before it", "POST", bases, embeds(`"provider": "deployed", "model": "m"`), 400, "VALIDATION", "embedding.provider: that model provider is of the kind anthropic", ""},
		{"without a model", "POST", bases, embeds(`"provider": "mine"`), 400, "VALIDATION", "embedding.model: is required", ""},
		{"a name of 120", "POST", bases, `{"name": "` + x(120) + `"}`, 201, "", "", "kb.create"},
		{"a name of 121", "POST", bases, `{"name": "` + x(121) + `"}`, 400, "VALIDATION", "name", ""},
		{"no name", "POST", bases, `{}`, 400, "VALIDATION", "name: is required", ""},
		{"a description of 2,000", "POST", bases, `{"name": "N", "description": "` + x(2000) + `"}`, 201, "", "", "kb.create"},
		{"a description of 2,001", "POST", bases, `{"name": "N", "description": "` + x(2001) + `"}`, 400, "VALIDATION", "description", ""},
		{"overlap as large as a chunk", "POST", bases, cuts(`"max_tokens": 100, "overlap_tokens": 100`), 400, "VALIDATION", "chunking.overlap_tokens: must be less than max_tokens", ""},
		{"overlap larger than the default", "POST", bases, cuts(`"overlap_tokens": 400`), 400, "VALIDATION", "chunking.overlap_tokens", ""},
		{"overlap below nothing", "POST", bases, cuts(`"overlap_tokens": -1`), 400, "VALIDATION", "chunking.overlap_tokens", ""},
		{"chunks of almost nothing", "POST", bases, cuts(`"max_tokens": 9`), 400, "VALIDATION", "chunking.max_tokens", ""},
		{"chunks too large", "POST", bases, cuts(`"max_tokens": 8001`), 400, "VALIDATION", "chunking.max_tokens", ""},
		{"an unknown field", "POST", bases, `{"name": "N", "settings": 1}`, 400, "VALIDATION", "settings", ""},
		{"rename a base", "PATCH", base, `{"name": "Other", "description": "D"}`, 200, "", `"name":"Other","description":"D"`, "kb.update"},
		{"other chunks", "PATCH", base, `{"chunking": {"max_tokens": 100}}`, 200, "", `"chunking":{"max_tokens":100,"overlap_tokens":60}`, "kb.update"},
		{"too small for its overlap", "PATCH", base, `{"chunking": {"max_tokens": 60}}`, 400, "VALIDATION", "chunking.overlap_tokens", ""},
		{"an embedding", "PATCH", base, `{"embedding": {"provider": "mine", "model": "m"}}`, 200, "", `"embedding":{"provider":"mine","model":"m"}`, "kb.update"},
		{"one of an unknown provider", "PATCH", base, `{"embedding": {"provider": "nobodys", "model": "m"}}`, 400, "VALIDATION", "embedding.provider", ""},
		{"one of a provider without embeddings", "PATCH", base, `{"embedding": {"provider": "claude", "model": "m"}}`, 400, "VALIDATION", "embedding.provider", ""},
		{"the old one stays", "GET", base, "", 200, "", `"provider":"mine"`, ""},
		{"no embedding any more", "PATCH", base, `{"embedding": null}`, 200, "", `"embedding":null`, "kb.update"},
		{"change an unknown one", "PATCH", bases + "/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "knowledge base", ""},

		{"list documents", "GET", docs, "", 200, "", `{"items":[{"id":"{document}","name":"guide.md","media_type":"text/markdown","size":5,"status":"queued","error":null,"chunks":0,"source_id":null,"uri":null,"created_at":"`, ""},
		{"those of a status", "GET", docs + "?status=queued", "", 200, "", `"id":"{document}"`, ""},
		{"those of another", "GET", docs + "?status=ready", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"a status that is none", "GET", docs + "?status=done", "", 400, "VALIDATION", "status", ""},
		{"those of a source", "GET", docs + "?source_id={source}", "", 200, "", `{"items":[],"next_cursor":null}`, ""},
		{"those of an unknown base", "GET", bases + "/{unknown}/documents", "", 404, "NOT_FOUND", "knowledge base", ""},
		{"read a document", "GET", doc, "", 200, "", `{"id":"{document}","name":"guide.md"`, ""},
		{"read an unknown one", "GET", docs + "/{unknown}", "", 404, "NOT_FOUND", "document", ""},
		{"of an unknown base", "GET", bases + "/{unknown}/documents/{document}", "", 404, "NOT_FOUND", "document", ""},
		{"its content", "GET", doc + "/content", "", 200, "", "hello", ""},
		{"the content of an unknown one", "GET", docs + "/{unknown}/content", "", 404, "NOT_FOUND", "document", ""},
		{"an upload that is no form", "POST", docs, `{"file": "x"}`, 415, "UNSUPPORTED_MEDIA_TYPE", "", ""},

		{"an empty ACL", "GET", doc + "/acls", "", 200, "", `{"items":[]}`, ""},
		{"set an ACL", "PUT", doc + "/acls", acl(`{"principal": "public"}, {"principal": "end_user", "id": "{end_user}"}, {"principal": "group", "name": "staff"}, {"principal": "public"}`), 200, "",
			`{"items":[{"principal":"public"},{"principal":"end_user","id":"{end_user}"},{"principal":"group","name":"staff"}]}`, "kb.document.acl.set"},
		{"read it", "GET", doc + "/acls", "", 200, "", `{"items":[{"principal":"public"},{"principal":"end_user","id":"{end_user}"},{"principal":"group","name":"staff"}]}`, ""},
		{"an unknown person", "PUT", doc + "/acls", acl(`{"principal": "end_user", "id": "{unknown}"}`), 404, "NOT_FOUND", "end user", ""},
		{"a person that is no id", "PUT", doc + "/acls", acl(`{"principal": "end_user", "id": "x"}`), 400, "VALIDATION", "items[0].id", ""},
		{"a principal that is none", "PUT", doc + "/acls", acl(`{"principal": "user"}`), 400, "VALIDATION", "items[0].principal", ""},
		{"a group without a name", "PUT", doc + "/acls", acl(`{"principal": "group"}`), 400, "VALIDATION", "items[0].name: is required", ""},
		{"a group's name of 255, as an identity token may name one", "PUT", doc + "/acls", acl(`{"principal": "group", "name": "` + x(255) + `"}`), 200, "", x(255), "kb.document.acl.set"},
		{"a group's name of 256", "PUT", doc + "/acls", acl(`{"principal": "group", "name": "` + x(256) + `"}`), 400, "VALIDATION", "items[0].name", ""},
		{"everybody has no name", "PUT", doc + "/acls", acl(`{"principal": "public", "name": "x"}`), 400, "VALIDATION", "items[0].name", ""},
		{"200 entries", "PUT", doc + "/acls", acl(strings.TrimSuffix(strings.Repeat(`{"principal": "public"},`, 200), ",")), 200, "", `{"items":[{"principal":"public"}]}`, "kb.document.acl.set"},
		{"201 entries", "PUT", doc + "/acls", acl(strings.TrimSuffix(strings.Repeat(`{"principal": "public"},`, 201), ",")), 400, "VALIDATION", "items", ""},
		{"no entries", "PUT", doc + "/acls", `{}`, 400, "VALIDATION", "items: is required", ""},
		{"empty it", "PUT", doc + "/acls", acl(""), 200, "", `{"items":[]}`, "kb.document.acl.set"},
		{"of an unknown document", "PUT", docs + "/{unknown}/acls", acl(""), 404, "NOT_FOUND", "document", ""},

		{"search", "POST", base + "/search", `{"query": "how long"}`, 200, "", `"document_name":"","uri":null,"text":"how long","score":0,"position":0,"cite":"kb:`, ""},
		{"search for a person", "POST", base + "/search", `{"query": "q", "top_k": 50, "end_user_id": "{end_user}"}`, 200, "", `"text":"q"`, ""},
		{"search for nobody", "POST", base + "/search", `{"query": "q", "end_user_id": null}`, 200, "", `"text":"q"`, ""},
		{"search that finds nothing", "POST", base + "/search", `{"query": "nothing"}`, 200, "", `{"items":[]}`, ""},
		{"search for an unknown person", "POST", base + "/search", `{"query": "q", "end_user_id": "{unknown}"}`, 404, "NOT_FOUND", "end user", ""},
		{"search in an unknown base", "POST", bases + "/{unknown}/search", `{"query": "q"}`, 404, "NOT_FOUND", "knowledge base", ""},
		{"search for no text", "POST", base + "/search", `{"query": ""}`, 400, "VALIDATION", "query", ""},
		{"search for nothing at all", "POST", base + "/search", `{}`, 400, "VALIDATION", "query: is required", ""},
		{"a query of 2,000", "POST", base + "/search", `{"query": "` + strings.Repeat("ü", 2000) + `"}`, 200, "", "", ""},
		{"a query of 2,001", "POST", base + "/search", `{"query": "` + x(2001) + `"}`, 400, "VALIDATION", "query", ""},
		{"51 results", "POST", base + "/search", `{"query": "q", "top_k": 51}`, 400, "VALIDATION", "top_k", ""},
		{"no results", "POST", base + "/search", `{"query": "q", "top_k": 0}`, 400, "VALIDATION", "top_k", ""},

		{"delete a document", "DELETE", doc, "", 204, "", "", "kb.document.delete"},
		{"it is gone", "GET", doc, "", 404, "NOT_FOUND", "document", ""},
		{"its ACL too", "GET", doc + "/acls", "", 404, "NOT_FOUND", "document", ""},
		{"its content too", "GET", doc + "/content", "", 404, "NOT_FOUND", "document", ""},
		{"delete it again", "DELETE", doc, "", 404, "NOT_FOUND", "document", ""},
		{"delete a base", "DELETE", base, "", 204, "", "", "kb.delete"},
		{"it is gone too", "GET", base, "", 404, "NOT_FOUND", "knowledge base", ""},
		{"and not searched", "POST", base + "/search", `{"query": "q"}`, 404, "NOT_FOUND", "knowledge base", ""},
		{"with its sources", "GET", base + "/connectors/{source}", "", 404, "NOT_FOUND", "knowledge source", ""},
		{"delete it once more", "DELETE", base, "", 404, "NOT_FOUND", "knowledge base", ""},
	})
}

// open-parts.md, Knowledge, Credentials: sources, in order on one tenant.
func TestSourceRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const all, one = "/v1/knowledge-bases/{base}/connectors", "/v1/knowledge-bases/{base}/connectors/{source}"
	web := func(more string) string {
		return `{"name": "N", "kind": "web", "config": {"url": "https://y.example/"}` + more + `}`
	}
	w.routes(w.a.fill(), []route{
		{"list sources", "GET", all, "", 200, "", `{"items":[{"id":"{source}","kind":"web","name":"Help","config":{"url":"https://x.example/help/"},"schedule":"0 4 * * *","timezone":"Europe/Berlin","enabled":true,"status":"idle","last_synced_at":null,"last_error":null,"credential_meta":{"keys":[]}`, ""},
		{"of an unknown base", "GET", "/v1/knowledge-bases/{unknown}/connectors", "", 404, "NOT_FOUND", "knowledge base", ""},
		{"read a source", "GET", one, "", 200, "", `{"id":"{source}","kind":"web"`, ""},
		{"read an unknown one", "GET", all + "/{unknown}", "", 404, "NOT_FOUND", "knowledge source", ""},
		{"through an unknown base", "GET", "/v1/knowledge-bases/{unknown}/connectors/{source}", "", 404, "NOT_FOUND", "knowledge source", ""},
		{"add a website", "POST", all, web(""), 201, "", `"schedule":null,"timezone":"UTC","enabled":true,"status":"idle"`, "kb.source.create"},
		{"a website over plain http", "POST", all, `{"name": "N", "kind": "web", "config": {"url": "http://y.example/"}}`, 201, "", `"kind":"web"`, "kb.source.create"},
		{"add uploads", "POST", all, `{"name": "N", "kind": "upload"}`, 201, "", `"kind":"upload","name":"N","config":{},"schedule":null`, "kb.source.create"},
		{"add a wiki", "POST", all, `{"name": "W", "kind": "wiki", "config": {"base_url": "https://w.example"}, "credentials": {"email": "a@example.com", "api_token": "hidden"}}`, 201, "",
			`"credential_meta":{"keys":["api_token","email"]}`, "kb.source.create"},
		{"a wiki over plain http", "POST", all, `{"name": "W", "kind": "wiki", "config": {"base_url": "http://w.example"}, "credentials": {"email": "a@example.com", "api_token": "hidden"}}`, 400, "VALIDATION", "config.base_url: must be https", ""},
		{"to an unknown base", "POST", "/v1/knowledge-bases/{unknown}/connectors", web(""), 404, "NOT_FOUND", "knowledge base", ""},
		{"an address that is refused", "POST", all, `{"name": "N", "kind": "web", "config": {"url": "https://localhost/"}}`, 400, "VALIDATION", "config.url: refused by the outbound guard", ""},
		{"no config", "POST", all, `{"name": "N", "kind": "web"}`, 400, "VALIDATION", "config.url", ""},
		{"another kind", "POST", all, `{"name": "N", "kind": "mail"}`, 400, "VALIDATION", "kind", ""},
		{"credentials of another kind", "POST", all, web(`, "credentials": {"access_token": "hidden"}`), 400, "VALIDATION", "credentials", ""},
		{"no schedule", "POST", all, web(`, "schedule": null`), 201, "", `"schedule":null`, "kb.source.create"},
		{"a schedule that is none", "POST", all, web(`, "schedule": "61 * * * *"`), 400, "VALIDATION", "schedule: minute: 61", ""},
		{"a zone that is none", "POST", all, web(`, "schedule": "0 4 * * *", "timezone": "localtime"`), 400, "VALIDATION", "timezone", ""},
		{"uploads take no schedule", "POST", all, `{"name": "N", "kind": "upload", "schedule": "0 4 * * *"}`, 400, "VALIDATION", "schedule", ""},
		{"rename a source", "PATCH", one, `{"name": "Other"}`, 200, "", `"name":"Other"`, "kb.source.update"},
		{"an empty zone is none", "PATCH", one, `{"timezone": ""}`, 200, "", `"timezone":"UTC"`, "kb.source.update"},
		{"its kind stays", "PATCH", one, `{"kind": "wiki"}`, 400, "VALIDATION", "kind: cannot be changed", ""},
		{"another address", "PATCH", one, `{"config": {"url": "https://z.example/"}}`, 200, "", `"config":{"url":"https://z.example/"}`, "kb.source.update"},
		{"one that is refused", "PATCH", one, `{"config": {"url": "https://localhost/"}}`, 400, "VALIDATION", "config.url", ""},
		{"sync it", "POST", one + "/sync", "", 202, "", `{"status":"queued"}`, "kb.source.sync"},
		{"it is queued", "GET", one, "", 200, "", `"status":"queued"`, ""},
		{"sync it again", "POST", one + "/sync", "", 202, "", `{"status":"queued"}`, "kb.source.sync"},
		{"disable it", "PATCH", one, `{"enabled": false}`, 200, "", `"enabled":false`, "kb.source.update"},
		{"sync a disabled one", "POST", one + "/sync", "", 409, "SOURCE_DISABLED", "", ""},
		{"sync an unknown one", "POST", all + "/{unknown}/sync", "", 404, "NOT_FOUND", "knowledge source", ""},
		{"change an unknown one", "PATCH", all + "/{unknown}", `{"name": "x"}`, 404, "NOT_FOUND", "knowledge source", ""},
		{"remove a source", "DELETE", one, "", 204, "", "", "kb.source.delete"},
		{"it is gone", "GET", one, "", 404, "NOT_FOUND", "knowledge source", ""},
		{"remove it again", "DELETE", one, "", 404, "NOT_FOUND", "knowledge source", ""},
	}, "hidden")

	// A wiki that moves loses its credentials, unless the body has new ones.
	made := w.call(w.a, "POST", w.a.fill().Replace(all), `{"name": "W", "kind": "wiki", "config": {"base_url": "https://w.example"}, "credentials": {"email": "a@example.com", "api_token": "hidden"}}`)
	path := w.a.fill().Replace(all) + "/" + made.get("id").(string)
	for _, c := range []struct {
		name, body string
		dropped    any
		keys       string
	}{
		{"the same origin", `{"config": {"base_url": "https://w.example/wiki", "space_key": "X"}}`, nil, `["api_token","email"]`},
		{"another with credentials", `{"config": {"base_url": "https://v.example"}, "credentials": {"email": "b@example.com", "api_token": "hidden2"}}`, nil, `["api_token","email"]`},
		{"another without", `{"config": {"base_url": "https://u.example"}}`, true, `[]`},
	} {
		got := w.call(w.a, "PATCH", path, c.body)
		if got.status != 200 || got.get("credentials_dropped") != c.dropped || !strings.Contains(got.body, `"credential_meta":{"keys":`+c.keys+`}`) || strings.Contains(got.body, "hidden") {
			t.Errorf("%s: %d %s", c.name, got.status, got.body)
		}
	}
}

// service.md, Knowledge bases: list and search: member; add, change, delete, sync: admin.
func TestWhoMayChangeKnowledge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := strings.NewReplacer("{id}", w.a.base.String(), "{docId}", w.a.document.String(), "{cid}", w.a.source.String())
	bodies := map[string]string{"searchKnowledgeBase": `{"query": "q"}`}
	seen := 0
	for _, r := range w.table.Routes() {
		if r.Tag != knowledgeTag {
			continue
		}
		seen++
		want := 403
		if r.Method == "GET" || r.ID == "searchKnowledgeBase" {
			want = 200
		}
		if got := w.person("member", r.Method, fill.Replace(r.Path), bodies[r.ID]); got.status != want {
			t.Errorf("%s: a member gets %d %s", r.ID, got.status, got.body)
		}
	}
	if seen != 19 {
		t.Errorf("%d routes", seen)
	}
}

// Every change is told to the actor whose row it changes.
func TestKnowledgeChangesWakeTheirActors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	base := "/v1/knowledge-bases/{base}"
	body, form := w.form(upload{"guide.md", "text/markdown", "new"})
	doc, src := msg.KindIngest+" "+w.a.document.String(), msg.KindSync+" "+w.a.source.String()
	for _, c := range []struct {
		method, path, body string
		header             []string
		want               []string
	}{
		{"PATCH", base, `{"name": "x"}`, nil, nil},
		{"PATCH", base, `{"chunking": {"max_tokens": 100}}`, nil, []string{doc}},
		{"PATCH", base, `{"chunking": {"max_tokens": 1000}, "embedding": {"provider": "nobodys", "model": "m"}}`, nil, nil},
		{"POST", base + "/documents", body, form, []string{doc}},
		{"PUT", base + "/documents/{document}/acls", `{"items": []}`, nil, nil},
		{"PATCH", base + "/connectors/{source}", `{"name": "x"}`, nil, []string{src}},
		{"POST", base + "/connectors/{source}/sync", "", nil, []string{src}},
		{"POST", base + "/connectors/{source}/sync", "", nil, nil}, // it is queued already
		{"PATCH", base + "/connectors/{source}", `{"kind": "wiki"}`, nil, nil},
		{"DELETE", base + "/documents/{document}", "", nil, []string{doc}},
		{"DELETE", base + "/documents/{document}", "", nil, nil},
		{"DELETE", base + "/connectors/{source}", "", nil, []string{src}},
		{"DELETE", base, "", nil, []string{doc, src}}, // the search for open work may not have seen them yet
	} {
		got := w.call(w.a, c.method, fill.Replace(c.path), c.body, c.header...)
		if woken := w.wakes.take(); !slices.Equal(woken, c.want) {
			t.Errorf("%s %s %s: %d woke %v, want %v", c.method, c.path, c.body, got.status, woken, c.want)
		}
	}
}

// A search is made for the principals of its person, with the default of five results.
func TestASearchIsMadeForItsPerson(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fill := w.a.fill()
	if _, err := w.admin.Exec(t.Context(), `UPDATE end_users SET attributes = '{"groups":["staff","eu"]}' WHERE id = $1`, w.a.endUser); err != nil {
		t.Fatal(err)
	}
	path := fill.Replace("/v1/knowledge-bases/{base}/search")
	me := []string{"public", "end_user:" + w.a.endUser.String(), "group:staff", "group:eu"}
	for body, want := range map[string]Query{
		`{"query": "q"}`:                 {w.a.base, "q", 5, []string{"public"}, false},
		`{"query": " two ", "top_k": 7}`: {w.a.base, " two ", 7, []string{"public"}, false},
		fill.Replace(`{"query": "q", "top_k": 1, "end_user_id": "{end_user}"}`): {w.a.base, "q", 1, me, false},
		`{"query": "q", "explain": true}`:                                       {w.a.base, "q", 5, []string{"public"}, true},
	} {
		got := w.call(w.a, "POST", path, body)
		if asked := w.finder.last(); got.status != 200 || asked.Base != want.Base || asked.Text != want.Text || asked.TopK != want.TopK || !slices.Equal(asked.Viewer, want.Viewer) {
			t.Errorf("%s: %d, searched %+v, want %+v", body, got.status, asked, want)
		}
	}
	// A repeat under one key is answered without a search.
	n := len(w.finder.asked)
	for range 2 {
		if got := w.call(w.a, "POST", path, `{"query": "q"}`, "Idempotency-Key", "k"); got.status != 200 || got.get("items.0.text") != "q" {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if len(w.finder.asked) != n+1 {
		t.Errorf("%d searches for one key", len(w.finder.asked)-n)
	}
	// An erased person is nobody for whom a search is made.
	w.call(w.a, "DELETE", fill.Replace("/v1/end-users/{end_user}"), "")
	if got := w.call(w.a, "POST", path, fill.Replace(`{"query": "q", "end_user_id": "{end_user}"}`)); got.status != 404 {
		t.Errorf("for an erased person: %d %s", got.status, got.body)
	}
	w.Platform.Searcher = nil
	if got := w.call(w.a, "POST", path, `{"query": "q"}`); got.status != 503 || got.code() != "UNAVAILABLE" {
		t.Errorf("without a search: %d %s", got.status, got.body)
	}
}

// stored returns the contents of a tenant's stored documents, sorted.
func (w *world) stored(p party) (all []string) {
	w.t.Helper()
	files, err := filepath.Glob(filepath.Join(w.dir, "documents", p.tenant.String(), "*"))
	w.must(err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		w.must(err)
		all = append(all, string(b))
	}
	slices.Sort(all)
	return all
}

// notes counts the stored files whose rows nobody has reported.
func (w *world) notes() int {
	w.t.Helper()
	all, err := os.ReadDir(filepath.Join(w.dir, ".tmp"))
	w.must(err)
	return len(all)
}

func (w *world) put(p party, files []upload, header ...string) answer {
	w.t.Helper()
	body, form := w.form(files...)
	return w.call(p, "POST", p.fill().Replace("/v1/knowledge-bases/{base}/documents"), body, append(form, header...)...)
}

// open-parts.md, Documents: an upload stores all of its files or none.
func TestUploadedDocuments(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := func(n int) (all []upload) {
		for i := range n {
			all = append(all, upload{fmt.Sprintf("f%02d.txt", i), "text/plain", fmt.Sprint("content ", i)})
		}
		return all
	}
	check := func(name string, got answer, status int, names ...string) {
		t.Helper()
		if err := newDocument(t).conforms("POST", w.a.fill().Replace("/v1/knowledge-bases/{base}/documents"), got); got.status != status || err != nil {
			t.Fatalf("%s: %d %s %v", name, got.status, got.body, err)
		}
		for i, want := range names {
			if n := got.get(fmt.Sprintf("items.%d.name", i)); n != want {
				t.Errorf("%s: document %d is %v, want %s", name, i, n, want)
			}
		}
		if extra := got.get(fmt.Sprintf("items.%d", len(names))); extra != nil {
			t.Errorf("%s: %v too", name, extra)
		}
	}
	const at = "hello" // of guide.md
	before := w.notes()
	w.wakes.take()
	check("21 files", w.put(w.a, files(21)), 400)
	check("no file", w.put(w.a, nil), 400)
	check("a file without a name", w.put(w.a, []upload{{"ok.txt", "text/plain", "x"}, {"", "text/plain", "x"}}), 400)
	if got := w.stored(w.a); !slices.Equal(got, []string{at}) || w.wakes.take() != nil {
		t.Errorf("refused uploads left %q", got)
	}
	if got := w.call(w.a, "GET", w.a.fill().Replace("/v1/knowledge-bases/{base}/documents"), ""); got.get("items.1") != nil {
		t.Errorf("refused uploads made documents: %s", got.body)
	}
	got := w.put(w.a, files(20))
	check("20 files", got, 202, "f00.txt", "f01.txt", "f02.txt", "f03.txt", "f04.txt", "f05.txt", "f06.txt", "f07.txt", "f08.txt", "f09.txt", "f10.txt", "f11.txt", "f12.txt", "f13.txt", "f14.txt",
		"f15.txt", "f16.txt", "f17.txt", "f18.txt", "f19.txt")
	if woken := w.wakes.take(); len(woken) != 20 || got.get("items.0.status") != "queued" {
		t.Errorf("%d woken, %s", len(woken), got.body)
	}
	if got := w.stored(w.a); len(got) != 21 {
		t.Errorf("%d files are stored", len(got))
	}

	// One name twice: the last wins. A known name: the document is replaced, and its old file goes.
	old := got.get("items.0.id")
	got = w.put(w.a, []upload{{"twice.md", "application/octet-stream", "first"}, {"f00.txt", "text/plain", "replaced"}, {"twice.md", "application/octet-stream", "second"}, {"empty.pdf", "application/octet-stream", ""}})
	check("twice", got, 202, "f00.txt", "twice.md", "empty.pdf")
	if got.get("items.0.id") != old || got.get("items.1.media_type") != "text/markdown" || got.get("items.2.media_type") != "application/pdf" || fmt.Sprint(got.get("items.2.size")) != "0" {
		t.Errorf("%s", got.body)
	}
	stored := w.stored(w.a)
	if len(stored) != 23 || slices.Contains(stored, "first") || slices.Contains(stored, "content 0") || !slices.Contains(stored, "second") || !slices.Contains(stored, "replaced") {
		t.Errorf("stored: %q", stored)
	}
	if down := w.call(w.a, "GET", w.a.fill().Replace("/v1/knowledge-bases/{base}/documents/")+fmt.Sprint(old)+"/content", ""); down.body != "replaced" ||
		!strings.HasPrefix(down.header.Get("Content-Disposition"), `attachment; filename="f00.txt"`) {
		t.Errorf("%v %s", down.header, down.body)
	}

	// A name is counted in characters, and a download tells all of it.
	long := strings.Repeat("ü", 125) + strings.Repeat("退", 126) + ".txt"
	got = w.put(w.a, []upload{{long, "text/plain", "long"}})
	check("a name of 255 characters", got, 202, long)
	down := w.call(w.a, "GET", w.a.fill().Replace("/v1/knowledge-bases/{base}/documents/")+fmt.Sprint(got.get("items.0.id"))+"/content", "")
	if _, params, err := mime.ParseMediaType(down.header.Get("Content-Disposition")); err != nil || params["filename"] != long || down.body != "long" {
		t.Errorf("%v %q %v", err, params, down.header)
	}
	check("a name of 256", w.put(w.a, []upload{{"ü" + long, "text/plain", "longer"}}), 400)

	// A repeat under one key is the first response, and leaves no file.
	first := w.put(w.a, []upload{{"key.txt", "text/plain", "keyed"}}, "Idempotency-Key", "k")
	again := w.put(w.a, []upload{{"key.txt", "text/plain", "keyed"}}, "Idempotency-Key", "k")
	if first.status != 202 || again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%d %s %s", first.status, first.body, again.body)
	}
	if other := w.put(w.a, []upload{{"key.txt", "text/plain", "other"}}, "Idempotency-Key", "k"); other.code() != "IDEMPOTENCY_CONFLICT" {
		t.Errorf("%d %s", other.status, other.body)
	}
	if n := len(w.stored(w.a)); n != 25 {
		t.Errorf("%d files are stored", n)
	}
	testkit.Eventually(t, "no file awaits a sweep", func() bool { return w.notes() == before })
	for _, r := range w.table.Routes() {
		if r.ID == "uploadDocuments" && (r.MaxFile != 50<<20 || r.MaxBody < 20*r.MaxFile) {
			t.Errorf("files of %d bytes, bodies of %d", r.MaxFile, r.MaxBody)
		}
	}
}
