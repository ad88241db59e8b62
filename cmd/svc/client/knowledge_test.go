package client

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	baseID     = "0193f111-0000-7000-8000-00000000ba5e"
	documentID = "0193f111-0000-7000-8000-0000000d0c01"
	failedID   = "0193f111-0000-7000-8000-0000000d0c02"
	sourceID   = "0193f111-0000-7000-8000-0000005c0001"
	personID   = "0193f111-0000-7000-8000-0000000e5e01"
)

func TestKnowledgeCommands(t *testing.T) {
	list := func(items ...object) object { return object{"items": items, "next_cursor": nil} }
	base := object{"id": baseID, "name": "Guides\x1b[2J", "embedding": nil, "updated_at": "2030-01-02T03:04:05Z"}
	ready := object{"id": documentID, "name": "a.md", "size": 1536, "status": "ready", "chunks": 3}
	queued := object{"id": documentID, "name": "a.md", "size": 1536, "status": "queued"}
	failed := object{"id": failedID, "name": "b\x07.pdf", "size": 5 << 20, "status": "failed", "error": "it is encrypted\x1b", "source_id": sourceID}
	src := object{"id": sourceID, "kind": "web", "name": "Help\x07", "enabled": true, "status": "failed", "last_error": "the start page answered 404", "schedule": "0 4 * * *", "listed": 1}
	b := "/v1/knowledge-bases/" + baseID
	took := recorded(t, map[string]any{
		"GET /v1/knowledge-bases": list(base), "GET " + b: base, "POST /v1/knowledge-bases": base,
		"GET " + b + "/documents": list(ready, failed), "POST " + b + "/documents": object{"items": []object{queued, failed}}, "GET " + b + "/documents/" + documentID: ready,
		"GET " + b + "/connectors": list(src), "POST " + b + "/connectors": src, "GET " + b + "/connectors/" + sourceID: src, "POST " + b + "/connectors/" + sourceID + "/sync": object{"status": "queued"},
		"POST " + b + "/search": object{"items": []object{{"document_name": "a.md", "text": "Shoes may be\n sent back\x1b[2J.", "score": 0.81234, "cite": "kb:" + documentID + "#2", "uri": "https://x.example", "why": object{"words_rank": 2, "vectors_rank": nil, "principal": "group:staff"}}}},
		"GET /v1/end-users":     list(object{"id": personID, "external_id": "customer-1"}),
		"DELETE " + b:           object{}, "DELETE " + b + "/documents/" + documentID: object{}, "DELETE " + b + "/connectors/" + sourceID: object{},
	})
	dir := t.TempDir()
	one, two := filepath.Join(dir, "a.md"), filepath.Join(dir, "sub", "a.md")
	if err := os.Mkdir(filepath.Dir(two), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{one, two} {
		if err := os.WriteFile(f, []byte("hello"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		args  string // separated by |
		code  int
		out   string // or what stderr holds
		asked string // the last call
	}{
		{"kb|ls", 0, "0000ba5e  Guides\\u001b[2J  lexical  2030-01-02T03:04:05Z", "GET /v1/knowledge-bases"},
		{"kb|get|0000ba5e", 0, `"id": "` + baseID, "GET " + b},
		{"kb|create|Guides", 0, baseID + "  Guides", `POST /v1/knowledge-bases {"name":"Guides"}`},
		{"kb|create|Guides|--max-tokens|100|--embedding|local/a/b|--description|D", 0, baseID, `POST /v1/knowledge-bases {"chunking":{"max_tokens":100},"description":"D","embedding":{"model":"a/b","provider":"local"},"name":"Guides"}`},
		{"kb|create|Guides|--embedding|local", 2, "--embedding: give the provider's slug", ""},
		{"kb|docs|0000ba5e", 0, "000d0c01  a.md", "GET " + b + "/documents"},
		{"kb|docs|0000ba5e", 0, "5.0 MiB  failed  0       005c0001  it is encrypted\\u001b", "GET " + b + "/documents"},
		{"kb|upload|0000ba5e|" + one, 1, "1 of 2 documents failed", "GET " + b + "/documents/" + documentID},
		{"kb|upload|0000ba5e|" + one, 1, "a.md         1.5 KiB  ready   3", "GET " + b + "/documents/" + documentID},
		{"kb|upload|0000ba5e|" + one + "|--no-wait", 0, "queued", "POST " + b + "/documents"},
		{"kb|upload|0000ba5e|" + one + "|" + two, 2, "have the same name", "GET /v1/knowledge-bases"},
		{"kb|upload|0000ba5e|" + dir, 2, "is not a file", "GET /v1/knowledge-bases"},
		{"kb|upload|0000ba5e|" + dir + "/none", 2, "no such file", "GET /v1/knowledge-bases"},
		{"kb|search|0000ba5e|how|long", 0, "1  0.812  a.md  [kb:" + documentID + "#2]\n   https://x.example\n   Shoes may be sent back\\u001b[2J.", `POST ` + b + `/search {"query":"how long","top_k":5}`},
		{"kb|search|" + baseID + "|q|--as|customer-1|--top|3", 0, "   place 2 by words, seen as group:staff\n", `POST ` + b + `/search {"end_user_id":"` + personID + `","explain":true,"query":"q","top_k":3}`},
		{"kb|search|" + baseID + "|q|--why", 0, "   place 2 by words, seen as group:staff\n", `POST ` + b + `/search {"explain":true,"query":"q","top_k":5}`},
		{"kb|search|" + baseID + "|q|--as|" + personID, 0, "a.md", `POST ` + b + `/search {"end_user_id":"` + personID + `","explain":true,"query":"q","top_k":5}`},
		{"kb|sources|0000ba5e", 0, "005c0001  Help\\u0007  web   yes      failed  -       0 4 * * *  the start page answered 404", "GET " + b + "/connectors"},
		{"kb|connect|0000ba5e|--kind|web|--name|Help|--config|{\"url\":\"https://x.example\"}|--cron|0 4 * * *|--timezone|UTC", 0, "svc kb sync 0000ba5e 005c0001",
			`POST ` + b + `/connectors {"config":{"url":"https://x.example"},"kind":"web","name":"Help","schedule":"0 4 * * *","timezone":"UTC"}`},
		{"kb|connect|0000ba5e|--kind|web|--name|Help|--config|x", 2, "--config: ", "GET /v1/knowledge-bases"},
		{"kb|connect|0000ba5e|--kind|web|--name|Help|--timezone|UTC", 2, "--timezone: belongs to --cron", "GET /v1/knowledge-bases"},
		{"kb|sync|0000ba5e|005c0001", 1, "the sync failed: the start page answered 404", "GET " + b + "/connectors/" + sourceID},
		{"kb|rm|0000ba5e", 0, "removed", "DELETE " + b},
		{"kb|rm|0000ba5e|--document|000d0c01", 0, "removed", "DELETE " + b + "/documents/" + documentID},
		{"kb|rm|0000ba5e|--source|005c0001", 0, "removed", "DELETE " + b + "/connectors/" + sourceID},
		{"kb|get|deadbeef", 1, "no knowledge base's id ends with", "GET /v1/knowledge-bases"},
	} {
		var out, errs bytes.Buffer
		code := execute(within(t, 10*time.Second), strings.Split(row.args, "|"), strings.NewReader(""), &out, &errs)
		asked := took()
		last := ""
		if len(asked) > 0 {
			last = asked[len(asked)-1]
		}
		if code != row.code || !strings.Contains(out.String()+errs.String(), row.out) || last != row.asked {
			t.Errorf("%s: exit %d, asked %q\n%s%s\nwant %d, %q, %q", row.args, code, asked, &out, &errs, row.code, row.asked, row.out)
		}
		if strings.ContainsAny(out.String()+errs.String(), "\x1b\x07") {
			t.Errorf("%s: control characters in %q", row.args, out.String())
		}
	}
}

// The variable of a script may be empty: a flag that names one thing, or filters, does not mean all
// things then. Nothing is asked, and nothing is deleted.
func TestAnEmptyFlagDoesNotMeanAll(t *testing.T) {
	took := recorded(t, map[string]any{"DELETE /v1/knowledge-bases/" + baseID: object{}, "GET /v1/runs": object{"items": []object{}}, "GET /v1/approvals": object{"items": []object{}}})
	for _, args := range []string{
		"kb|rm|" + baseID + "|--document", "kb|rm|" + baseID + "|--source", "kb|docs|" + baseID + "|--source", "kb|docs|" + baseID + "|--status", "kb|search|" + baseID + "|q|--as",
		"approvals|ls|--run", "approvals|ls|--agent", "approvals|ls|--tool", "approvals|ls|--risk", "approvals|ls|--status",
		"runs|ls|--agent", "runs|ls|--workflow", "runs|ls|--trigger", "runs|ls|--status", "runs|ls|--origin", "runs|ls|--code", "runs|ls|--since",
		"skills|runs|--agent-run", "skills|grant|" + baseID + "|--agent", "skills|grant|" + baseID + "|--node", "end-users|ls|--external-id", "end-users|ls|--tag",
		"embed-keys|ls|--agent", "tools|ls|--agent", "triggers|create|--name|x|--workflow", "webhooks|deliveries|" + baseID + "|--status", "webhooks|deliveries|" + baseID + "|--type",
		"workflows|runs|" + baseID + "|--status", "tail|--topics",
	} {
		_, errs, code := svc(t, nil, append(strings.Split(args, "|"), "")...)
		if asked := took(); code != 2 || !strings.Contains(errs, "must not be empty") || len(asked) != 0 {
			t.Errorf("%s: exit %d, asked %q, %s", args, code, asked, errs)
		}
	}
}

func TestKnowledgeWithoutAnything(t *testing.T) {
	none := object{"items": []object{}, "next_cursor": nil}
	b := "/v1/knowledge-bases/" + baseID
	recorded(t, map[string]any{"GET /v1/knowledge-bases": none, "GET " + b + "/documents": none, "GET " + b + "/connectors": none, "POST " + b + "/search": none, "GET /v1/end-users": none})
	for args, want := range map[string]string{"kb|ls": "no knowledge bases\n", "kb|docs|" + baseID: "no documents\n", "kb|docs|" + baseID + "|--status|ready": "no documents fit these filters\n",
		"kb|sources|" + baseID: "no sources\n", "kb|search|" + baseID + "|x": "nothing found\n"} {
		var out bytes.Buffer
		if code := execute(within(t, 10*time.Second), strings.Split(args, "|"), strings.NewReader(""), &out, &out); code != 0 || out.String() != want {
			t.Errorf("%s: exit %d, %q", args, code, &out)
		}
	}
	var errs bytes.Buffer
	if code := execute(within(t, 10*time.Second), []string{"kb", "search", baseID, "x", "--as", "nobody"}, strings.NewReader(""), io.Discard, &errs); code != 1 ||
		!strings.Contains(errs.String(), `there is no end user with the external id "nobody"`) {
		t.Errorf("exit %d, %s", code, &errs)
	}
}

// Files go to the service in requests of at most 20, as they are.
func TestUploadsAreSentInBatches(t *testing.T) {
	var batches []int
	var names []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1 << 20); err != nil {
			t.Error(err)
		}
		files := r.MultipartForm.File["file"]
		batches = append(batches, len(files))
		for _, f := range files {
			names = append(names, f.Filename)
		}
		if len(batches) == 3 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = io.WriteString(w, `{"status":413,"code":"PAYLOAD_TOO_LARGE","detail":"too much"}`)
			return
		}
		_, _ = io.WriteString(w, `{"items":[`+strings.TrimSuffix(strings.Repeat(`{"status":"ready"},`, len(files)), ",")+`]}`)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("SVC_URL", srv.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	dir := t.TempDir()
	args := []string{"kb", "upload", baseID}
	var want []string
	for i := range 41 {
		name := "f" + string(rune('a'+i/26)) + string(rune('a'+i%26)) + ".txt"
		want = append(want, name)
		args = append(args, filepath.Join(dir, name))
		if err := os.WriteFile(args[len(args)-1], []byte(strings.Repeat("x", i)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var errs bytes.Buffer
	if code := execute(within(t, 10*time.Second), args, strings.NewReader(""), io.Discard, &errs); code != 1 || !strings.Contains(errs.String(), "after 40 of 41 files: PAYLOAD_TOO_LARGE") {
		t.Errorf("exit %d, %s", code, &errs)
	}
	if !slices.Equal(batches, []int{20, 20, 1}) || !slices.Equal(names, want) {
		t.Errorf("%v %v", batches, names)
	}
}
