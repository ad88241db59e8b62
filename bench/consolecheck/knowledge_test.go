package consolecheck

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/playwright-community/playwright-go"
)

// base makes a knowledge base.
func (s *service) base(t *testing.T, name string, more ...any) (id string) {
	t.Helper()
	body := object{"name": name}
	for i := 0; i < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	var made struct{ ID string }
	s.call(t, "POST", "/v1/knowledge-bases", body, &made)
	return made.ID
}

// noDocument are bytes of which no text can be read.
const noDocument = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00"

// nowhere is a web site without pages.
func nowhere(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	return s.URL
}

type kbDocument struct{ ID, Name, Status string }

// document uploads a text and waits until it was read.
func (s *service) document(t *testing.T, base, name, text, status string) (id string) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	w, err := m.CreateFormFile("file", name)
	must(t, err)
	_, err = io.WriteString(w, text)
	must(t, err)
	must(t, m.Close())
	q, err := http.NewRequest("POST", s.url()+"/v1/knowledge-bases/"+base+"/documents", &b)
	must(t, err)
	q.Header.Set("Content-Type", m.FormDataContentType())
	q.Header.Set("Authorization", "Bearer "+s.key)
	q.Header.Set("X-Tenant-Id", s.tenant)
	res, err := (&http.Client{Timeout: patience}).Do(q)
	must(t, err)
	defer res.Body.Close()
	var made struct{ Items []kbDocument }
	must(t, json.NewDecoder(res.Body).Decode(&made))
	if len(made.Items) != 1 {
		t.Fatalf("upload %s: %s", name, res.Status)
	}
	until(t, name+" is "+status, func() bool {
		var d kbDocument
		s.call(t, "GET", "/v1/knowledge-bases/"+base+"/documents/"+made.Items[0].ID, nil, &d)
		return d.Status == status
	})
	return made.Items[0].ID
}

// visitorOf makes an end user with groups, as an embed page with identity tokens does.
func (s *service) visitorOf(t *testing.T, external string, groups ...string) (id string) {
	t.Helper()
	var key struct {
		Key            string
		IdentitySecret string `json:"identity_secret"`
	}
	s.call(t, "POST", "/v1/embed-keys", object{"agent_id": s.agent, "name": fmt.Sprintf("Key %d", numbered.Add(1)), "allowed_origins": []string{"https://shop.example.com"}, "with_identity_secret": true}, &key)
	part := func(v any) string {
		b, err := json.Marshal(v)
		must(t, err)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	now := time.Now().Unix()
	token := part(object{"alg": "HS256", "typ": "JWT"}) + "." + part(object{"sub": external, "name": "Ada Lovelace", "meta": object{"groups": groups}, "iat": now, "exp": now + 600})
	mac := hmac.New(sha256.New, []byte(key.IdentitySecret))
	mac.Write([]byte(token))
	token += "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	body, err := json.Marshal(object{"user": object{"token": token}})
	must(t, err)
	q, err := http.NewRequest("POST", s.url()+"/v1/embed/session", bytes.NewReader(body))
	must(t, err)
	for k, v := range map[string]string{"Content-Type": "application/json", "X-Svc-Embed-Key": key.Key, "Origin": "https://shop.example.com", "X-Forwarded-For": address()} {
		q.Header.Set(k, v)
	}
	res, err := (&http.Client{Timeout: patience}).Do(q)
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(t, err)
	if res.StatusCode != 200 {
		t.Fatalf("a session of %s: %s %s", external, res.Status, b)
	}
	var found struct{ Items []struct{ ID string } }
	s.call(t, "GET", "/v1/end-users?external_id="+external, nil, &found)
	if len(found.Items) != 1 {
		t.Fatalf("%d end users %s", len(found.Items), external)
	}
	return found.Items[0].ID
}

// Section 5: a base is made, documents are uploaded, fail with a reason and are deleted, all live.
func TestKnowledgeDocuments(t *testing.T) {
	t.Parallel()
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/knowledge")
	p.heading("Knowledge")
	must(t, p.button("New knowledge base").First().Click())
	dialog := p.byRole("dialog", "New knowledge base")
	must(t, dialog.GetByRole("checkbox", named0("Search by meaning too")).Check())
	name := fmt.Sprintf("Returns %d", numbered.Add(1))
	must(t, p.box("Name").Fill(name))
	must(t, p.box("Provider").Fill("nobody-has-this"))
	must(t, p.box("Model").Fill("small"))
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	must(t, expect.Locator(p.box("Provider")).ToHaveAttribute("aria-invalid", "true"))
	p.accessible("a refused knowledge base")
	must(t, p.box("Provider").Fill("simulated"))
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	p.thing("Knowledge", name)
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No documents yet"}))
	must(t, p.Locator("input[type=file]").SetInputFiles([]playwright.InputFile{
		{Name: "returns.md", MimeType: "text/markdown", Buffer: []byte("# Returns\n\nShoes may be sent back within 30 days.\n")},
		{Name: "broken.pdf", MimeType: "application/pdf", Buffer: []byte(noDocument)},
	}))
	table := p.byRole("table", "Documents")
	ready := table.GetByRole("row").Filter(playwright.LocatorFilterOptions{HasText: "returns.md"})
	must(t, expect.Locator(ready).ToContainText("ready"))
	failed := table.GetByRole("row").Filter(playwright.LocatorFilterOptions{HasText: "broken.pdf"})
	must(t, expect.Locator(failed).ToContainText("failed"))
	must(t, expect.Locator(failed.Locator(".error")).Not().ToBeEmpty())
	must(t, expect.Locator(p.Locator(".kb-progress")).ToHaveText("1 failed"))
	// Dropped files, and what is too much.
	_, err := p.Evaluate(`() => {
		const data = new DataTransfer();
		data.items.add(new File(["Boots may be sent back within 60 days."], "boots.txt", { type: "text/plain" }));
		document.querySelector("[aria-label='Upload documents']").dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
	}`, nil)
	must(t, err)
	must(t, expect.Locator(table.GetByRole("row").Filter(playwright.LocatorFilterOptions{HasText: "boots.txt"})).ToContainText("ready"))
	var many []playwright.InputFile
	for i := range 21 {
		many = append(many, playwright.InputFile{Name: fmt.Sprintf("%d.txt", i), MimeType: "text/plain", Buffer: []byte("x")})
	}
	must(t, p.Locator("input[type=file]").SetInputFiles(many))
	must(t, expect.Locator(p.byRole("region", "Upload documents").GetByRole("alert")).ToContainText("Up to 20 files"))
	if n := v.called("POST /v1/knowledge-bases/"); n != 2 {
		t.Errorf("%d uploads", n)
	}
	// The filter is in the address.
	_, err = p.GetByLabel("Status", playwright.PageGetByLabelOptions{Exact: playwright.Bool(true)}).SelectOption(playwright.SelectOptionValues{Values: &[]string{"failed"}})
	must(t, err)
	must(t, expect.Locator(table.GetByRole("row")).ToHaveCount(2))
	must(t, expect.Page(p.Page).ToHaveURL(regexp.MustCompile("status=failed")))
	must(t, table.GetByRole("link", named0("broken.pdf")).Click())
	region := p.byRole("region", "broken.pdf")
	visible(t, region.GetByRole("alert"))
	p.accessible("a failed document")
	must(t, region.GetByRole("button", named0("Delete")).Click())
	ask := p.byRole("alertdialog", "Delete broken.pdf?")
	must(t, expect.Locator(ask.GetByRole("button", named0("Cancel"))).ToBeFocused())
	must(t, ask.GetByRole("button", named0("Delete")).Click())
	gone(t, region)
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "Nothing fits these filters"}))
	must(t, p.button("Clear filters").Click())
	must(t, expect.Locator(table.GetByRole("row")).ToHaveCount(3))
	// Settings: another cut asks first and indexes anew.
	must(t, p.byRole("tab", "Settings").Click())
	must(t, p.box("Overlap tokens").Fill("9000"))
	must(t, p.button("Save").Click())
	again := p.byRole("alertdialog", "Index "+name+" anew?")
	must(t, again.GetByRole("button", named0("Save")).Click())
	must(t, expect.Locator(p.box("Overlap tokens")).ToHaveAttribute("aria-invalid", "true"))
	must(t, p.box("Overlap tokens").Fill("20"))
	must(t, p.button("Save").Click())
	must(t, again.GetByRole("button", named0("Save")).Click())
	gone(t, again)
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	must(t, p.button("Delete").Click())
	must(t, p.byRole("alertdialog", "Delete "+name+"?").GetByRole("button", named0("Delete")).Click())
	p.heading("Knowledge")
}

// Sections 4 and 5: who may find a document, and a search in an end user's name that obeys it.
func TestKnowledgeAccess(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "Handbook", "embedding", object{"provider": "simulated", "model": "small"})
	secret := shared.document(t, base, "salaries.md", "Salaries are paid on the last working day of the month.", "ready")
	shared.document(t, base, "holidays.md", "Holidays are 30 days. Salaries go on in holidays.", "ready")
	staff := fmt.Sprintf("ada-%d", numbered.Add(1))
	shared.visitorOf(t, staff, "staff", "finance")
	guest := fmt.Sprintf("guest-%d", numbered.Add(1))
	shared.visitorOf(t, guest)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/knowledge/"+base+"?document="+secret)
	acl := p.byRole("region", "Who may find it")
	must(t, expect.Locator(acl).ToContainText("Every search of the tenant finds it"))
	must(t, p.box("Group name").Fill("finance"))
	p.press("Enter")
	must(t, expect.Locator(acl.GetByRole("list", named0("Entries"))).ToContainText("finance"))
	_, err := acl.GetByLabel("Who", playwright.LocatorGetByLabelOptions{Exact: playwright.Bool(true)}).SelectOption(playwright.SelectOptionValues{Values: &[]string{"end_user"}})
	must(t, err)
	must(t, p.box("End user").Fill("nobody-of-this-name"))
	p.press("Enter")
	must(t, expect.Locator(p.box("End user")).ToHaveAttribute("aria-invalid", "true"))
	must(t, acl.GetByRole("button", named0("Save access")).Click())
	must(t, expect.Locator(acl).ToContainText("Only searches made for 1 group find it."))
	gone(t, acl.GetByRole("button", named0("Save access")))
	must(t, p.byRole("tab", "Search").Click())
	results := p.byRole("list", "Results")
	ask := func(who, query string) {
		must(t, p.byRole("combobox", "End user").Fill(who))
		must(t, p.box("Query").Fill(query))
		p.press("Enter")
	}
	ask("", "salaries")
	must(t, expect.Locator(results.Locator("li")).ToHaveCount(1))
	must(t, expect.Locator(results).ToContainText("holidays.md"))
	must(t, expect.Locator(results).ToContainText("seen by everybody, without an ACL"))
	ask(staff, "salaries")
	must(t, expect.Locator(results.Locator("li")).ToHaveCount(2))
	must(t, expect.Locator(results).ToContainText("seen by group finance"))
	must(t, expect.Locator(results.Locator("li").First()).ToContainText("1st by"))
	must(t, expect.Locator(results).ToContainText("[kb:"+secret+"#0]"))
	must(t, expect.Locator(p.byRole("region", "Search as an end user")).ToContainText("staff, finance"))
	p.accessible("results of a search")
	p.reload() // the search is in the address
	must(t, expect.Locator(results.Locator("li")).ToHaveCount(2))
	ask(guest, "salaries")
	must(t, expect.Locator(results.Locator("li")).ToHaveCount(1))
	ask("who-is-this", "salaries")
	must(t, expect.Locator(p.byRole("combobox", "End user")).ToHaveAttribute("aria-invalid", "true"))
}

// Section 3: an answer that comes late sets no filters of the page that is open by then.
func TestASearchThatIsLeft(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "Handbook")
	ada := fmt.Sprintf("ada-%d", numbered.Add(1))
	shared.visitorOf(t, ada)
	p := visit(t, shared, look{}).as("member", "/console/knowledge/"+base+"?tab=search")
	must(t, p.byRole("combobox", "End user").Fill(ada))
	must(t, p.box("Query").Fill("salaries"))
	asked, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	must(t, p.Route("**/v1/end-users?*external_id=*", func(r playwright.Route) {
		once.Do(func() { close(asked) })
		go func() {
			<-held
			_ = r.Continue()
		}()
	}))
	click(t, p.button("Search").Last())
	<-asked
	click(t, p.byRole("navigation", "Main").GetByRole("link", named0("Runs")))
	p.heading("Runs")
	_, err := p.ExpectResponse(regexp.MustCompile(`external_id=`), func() error { close(held); return nil })
	must(t, err)
	_, err = p.Evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
	must(t, err)
	if strings.Contains(p.URL(), "?") {
		t.Errorf("led to %s", p.URL())
	}
}

// Section 5: a source is added, fails its sync with a reason, is paused, edited and deleted.
func TestKnowledgeSources(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "Sources")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/knowledge/"+base+"?tab=sources")
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No sources yet"}))
	must(t, p.button("New source").First().Click())
	dialog := p.byRole("dialog", "New source")
	must(t, p.box("Name").Fill("Help pages"))
	must(t, p.box("URLs").Fill("ftp://shop.example.com/"))
	must(t, p.box("Schedule").Fill("every day"))
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	must(t, expect.Locator(p.box("URLs")).ToHaveAttribute("aria-invalid", "true"))
	p.accessible("a refused source")
	must(t, p.box("URLs").Fill(nowhere(t)+"/help/"))
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	must(t, expect.Locator(p.box("Schedule")).ToHaveAttribute("aria-invalid", "true"))
	must(t, p.box("Schedule").Fill("0 4 * * *"))
	must(t, dialog.GetByRole("button", named0("Create")).Click())
	gone(t, dialog)
	region := p.byRole("region", "Help pages")
	must(t, expect.Locator(region).ToContainText("idle"))
	must(t, expect.Locator(region).ToContainText("0 4 * * *"))
	must(t, region.GetByRole("button", named0("Sync now")).Click())
	must(t, expect.Locator(region.GetByRole("alert")).ToContainText("The last sync failed"))
	must(t, expect.Locator(p.byRole("table", "Sources")).ToContainText("failed"))
	p.accessible("a failed source")
	must(t, region.GetByRole("button", named0("Pause")).Click())
	must(t, p.GetByRole("alertdialog").GetByRole("button", named0("Pause")).Click())
	must(t, expect.Locator(region).ToContainText("paused"))
	must(t, expect.Locator(region.GetByRole("button", named0("Sync now"))).ToBeDisabled())
	must(t, region.GetByRole("button", named0("Edit")).Click())
	must(t, p.box("Name").Fill("Help <b>pages</b>\u202e"))
	must(t, p.byRole("dialog", "Edit source").GetByRole("button", named0("Save")).Click())
	hostile := p.GetByRole("region", playwright.PageGetByRoleOptions{Name: regexp.MustCompile("^Help <b>pages")})
	visible(t, hostile)
	must(t, expect.Locator(hostile.GetByRole("heading").First()).ToContainText("U+202E"))
	must(t, hostile.GetByRole("button", named0("Delete")).Click())
	must(t, p.GetByRole("alertdialog").GetByRole("button", named0("Delete")).Click())
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No sources yet"}))
}

// Section 4: what is typed stays, what others change meanwhile comes in, and neither undoes the other.
func TestKnowledgeChangedByTwo(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "Ours")
	path := "/v1/knowledge-bases/" + base
	doc := shared.document(t, base, "ours.md", "Ours.", "ready")
	var source struct{ ID string }
	shared.call(t, "POST", path+"/connectors", object{"kind": "web", "name": "Pages", "config": object{"urls": []string{nowhere(t)}}}, &source)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "admin"), "/console/knowledge/"+base+"?document="+doc)
	acl := p.byRole("region", "Who may find it")
	entries := acl.GetByRole("list", named0("Entries"))
	must(t, p.box("Group name").Fill("mine"))
	p.press("Enter")
	must(t, expect.Locator(entries).ToContainText("mine"))
	// Neither Close nor a tab loses it.
	ask := p.GetByRole("alertdialog")
	must(t, p.byRole("region", "ours.md").GetByRole("button", named0("Close")).Click())
	must(t, ask.GetByRole("button", named0("Cancel")).Click())
	must(t, p.byRole("tab", "Sources").Click())
	must(t, ask.GetByRole("button", named0("Cancel")).Click())
	shared.call(t, "PUT", path+"/documents/"+doc+"/acls", object{"items": []object{{"principal": "group", "name": "theirs"}}}, nil)
	must(t, expect.Locator(entries).ToContainText("theirs"))
	must(t, expect.Locator(acl.GetByRole("status")).ToContainText("changed elsewhere"))
	p.accessible("an ACL that was changed meanwhile")
	must(t, acl.GetByRole("button", named0("Save access")).Click())
	gone(t, acl.GetByRole("button", named0("Save access")))
	var acls struct{ Items []struct{ Name string } }
	shared.call(t, "GET", path+"/documents/"+doc+"/acls", nil, &acls)
	if len(acls.Items) != 2 {
		t.Errorf("saved: %+v", acls)
	}
	must(t, p.byRole("region", "ours.md").GetByRole("button", named0("Close")).Click())
	gone(t, acl)

	must(t, p.byRole("tab", "Settings").Click())
	must(t, p.box("Description").Fill("What I type"))
	shared.call(t, "PATCH", path, object{"name": "Theirs"}, nil)
	must(t, expect.Locator(p.box("Name")).ToHaveValue("Theirs"))
	must(t, p.button("Save").Click())
	must(t, expect.Locator(p.button("Save")).ToBeDisabled())
	var b struct{ Name, Description string }
	shared.call(t, "GET", path, nil, &b)
	if b.Name != "Theirs" || b.Description != "What I type" {
		t.Errorf("saved: %+v", b)
	}

	p.goTo("/console/knowledge/" + base + "?tab=sources&source=" + source.ID)
	must(t, p.byRole("region", "Pages").GetByRole("button", named0("Edit")).Click())
	dialog := p.byRole("dialog", "Edit source")
	must(t, expect.Locator(dialog.GetByRole("button", named0("Save"))).ToBeDisabled())
	must(t, p.box("Schedule").Fill("0 4 * * *"))
	p.press("Escape")
	must(t, p.byRole("alertdialog", "Discard what you typed?").GetByRole("button", named0("Cancel")).Click())
	shared.call(t, "PATCH", path+"/connectors/"+source.ID, object{"name": "Renamed"}, nil)
	must(t, dialog.GetByRole("button", named0("Save")).Click())
	gone(t, dialog)
	var now struct{ Name, Schedule string }
	shared.call(t, "GET", path+"/connectors/"+source.ID, nil, &now)
	if now.Name != "Renamed" || now.Schedule != "0 4 * * *" {
		t.Errorf("saved: %+v", now)
	}
}

// Section 2: a member reads and searches; buttons that write are absent.
func TestKnowledgeForMembers(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "For members")
	doc := shared.document(t, base, "<img src=x onerror=alert(1)>.txt", "Words to find.", "ready")
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/knowledge")
	p.heading("Knowledge")
	visible(t, p.byRole("link", "For members"))
	gone(t, p.button("New knowledge base"))
	must(t, p.byRole("link", "For members").Click())
	p.thing("Knowledge", "For members")
	must(t, p.byRole("table", "Documents").Locator(`[data-id="`+doc+`"]`).GetByRole("link").Click())
	must(t, expect.Locator(p.byRole("region", "Who may find it")).ToContainText("Every search"))
	for _, name := range []string{"Delete", "Choose files", "Add", "Save access"} {
		gone(t, p.button(name))
	}
	if n, err := p.Locator("main img").Count(); err != nil || n != 0 {
		t.Errorf("%d pictures of a name, %v", n, err)
	}
	must(t, p.byRole("tab", "Sources").Click())
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "No sources yet"}))
	gone(t, p.button("New source"))
	must(t, p.byRole("tab", "Settings").Click())
	must(t, expect.Locator(p.box("Name")).ToBeDisabled())
	gone(t, p.button("Save"))
	must(t, p.byRole("tab", "Search").Click())
	must(t, p.box("Query").Fill("words"))
	p.press("Enter")
	must(t, expect.Locator(p.byRole("list", "Results")).ToContainText("Words to find."))
	must(t, p.box("Query").Fill("zeppelin"))
	p.press("Enter")
	visible(t, p.GetByRole("heading", playwright.PageGetByRoleOptions{Name: "Nothing was found"}))
	p.goTo("/console/knowledge/" + strings.Repeat("0", 8) + "-0000-7000-8000-000000000000")
	p.heading("Not found")
	// Errors say what happened, and a try again mends the page.
	must(t, p.Route(regexp.MustCompile(`/v1/knowledge-bases\?`), func(r playwright.Route) {
		_ = r.Fulfill(playwright.RouteFulfillOptions{Status: playwright.Int(500), ContentType: playwright.String("application/problem+json"), Body: `{"title":"It broke","code":"INTERNAL","status":500,"detail":"the disk"}`})
	}))
	p.goTo("/console/knowledge")
	must(t, expect.Locator(p.GetByRole("alert")).ToContainText("INTERNAL"))
	p.accessible("a list that was not read")
	must(t, p.Unroute(regexp.MustCompile(`/v1/knowledge-bases\?`)))
	must(t, p.button("Try again").Click())
	visible(t, p.byRole("link", "For members"))
}

// An answer shows the documents that it cites by their names, which lead to them, and none of its marks: in the playground while the run is
// watched and after a reload, in the thread and in the run.
func TestAnAnswerNamesWhatItCites(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "Handbook of returns")
	doc := shared.document(t, base, "returns.md", "# Returns\n\nShoes may be sent back within thirty days.", "ready")
	var made struct{ Agent struct{ ID string } }
	shared.call(t, "POST", "/v1/agents", object{"name": fmt.Sprintf("Citing %d", numbered.Add(1)), "manifest": object{"model": object{"provider": "simulated", "name": "sim-1"},
		"tools": object{"builtin": []string{"kb.search"}}, "knowledge_bases": []string{base}}}, &made)
	shared.call(t, "POST", "/v1/agents/"+made.Agent.ID+"/versions/1/publish", nil, nil)
	shared.call(t, "POST", "/v1/tool-grants", object{"source": "builtin", "tool_pattern": "kb.search", "effect": "allow", "agent_id": made.Agent.ID}, nil)
	v := visit(t, shared, look{})
	p := v.signedIn(shared.person(t, "member"), "/console/playground?agent="+made.Agent.ID)
	p.heading("Playground")
	log := p.byRole("log", "Conversation")
	named := func(where string, in playwright.Locator) {
		t.Helper()
		link := within(within(in, "list", "Sources"), "link", "returns.md")
		must(t, expect.Locator(link).ToHaveAttribute("href", regexp.MustCompile("/console/knowledge/"+base+`\?document=`+doc+"$")))
		must(t, expect.Locator(in).Not().ToContainText("[kb:"))
		p.accessible("sources " + where)
	}
	must(t, p.box("Message").Fill("/call kb.search {\"query\":\"shoes\"}\n/cite Thirty days."))
	p.press("Enter")
	named("in the playground", log)
	p.reload()
	named("after a reload", log)
	thread := regexp.MustCompile(`thread=([0-9a-f-]{36})`).FindStringSubmatch(p.URL())[1]
	must(t, log.GetByRole("link", playwright.LocatorGetByRoleOptions{Name: regexp.MustCompile("^Run ")}).First().Click())
	must(t, p.byRole("tab", "Conversation").Click())
	named("in the run", p.byRole("tabpanel", "Conversation"))
	p.goTo("/console/threads/" + thread)
	named("in the thread", p.Locator("main"))
	must(t, p.byRole("link", "returns.md").Click())
	p.thing("Knowledge", "Handbook of returns")
	visible(t, p.byRole("region", "Who may find it"))
	shared.call(t, "DELETE", "/v1/knowledge-bases/"+base+"/documents/"+doc, nil, nil)
	p.goTo("/console/threads/" + thread)
	must(t, expect.Locator(p.byRole("list", "Sources")).ToContainText("returns.md"))
	gone(t, p.byRole("link", "returns.md"))
}

// Section 8: axe finds nothing serious, and nothing scrolls sideways.
func TestTheTourOfKnowledge(t *testing.T) {
	t.Parallel()
	base := shared.base(t, "Returns and repairs", "description", "How customers send things back, and what we repair.", "embedding", object{"provider": "simulated", "model": "small"})
	doc := shared.document(t, base, "returns.md", "# Returns\n\nShoes may be sent back within 30 days. Boots may be sent back within 60 days, if they were not worn outside.\n", "ready")
	shared.document(t, base, "repairs.txt", "We repair shoes for two years. Soles are replaced once for free.", "ready")
	shared.document(t, base, "prices.pdf", noDocument, "failed")
	shared.call(t, "PUT", "/v1/knowledge-bases/"+base+"/documents/"+doc+"/acls", object{"items": []object{{"principal": "group", "name": "staff"}, {"principal": "public"}}}, nil)
	var source struct{ ID string }
	shared.call(t, "POST", "/v1/knowledge-bases/"+base+"/connectors", object{"kind": "web", "name": "Help pages", "config": object{"url": nowhere(t) + "/help/", "depth": 1}, "schedule": "0 4 * * *"}, &source)
	email := shared.person(t, "admin")
	for name, l := range map[string]look{"light": {width: 1360, height: 850}, "dark": {width: 1360, height: 850, dark: true}, "phone": {width: 360, height: 740}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := visit(t, shared, l).signedIn(email, "/console/knowledge")
			for _, stop := range []struct{ path, heading string }{
				{"", "Knowledge"},
				{"/" + base + "?document=" + doc, "Knowledge"},
				{"/" + base + "?tab=sources&source=" + source.ID, "Knowledge"},
				{"/" + base + "?tab=search&q=send+shoes+back", "Knowledge"},
				{"/" + base + "?tab=settings", "Knowledge"},
			} {
				p.goTo("/console/knowledge" + stop.path)
				p.heading(stop.heading)
				must(t, expect.Locator(p.Locator(".loading")).ToHaveCount(0))
				p.accessible(stop.path + " in " + name)
				wide, err := p.Evaluate("document.documentElement.scrollWidth - innerWidth")
				must(t, err)
				if wide.(int) > 0 {
					t.Errorf("%s scrolls sideways by %v", stop.path, wide)
				}
			}
			p.goTo("/console/knowledge/" + base + "?tab=sources")
			must(t, p.button("New source").Click())
			p.accessible("New source in " + name)
		})
	}
}
