package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Ids of the fake service.
const (
	agentID  = "0193a000-0000-7000-8000-0000000000a1"
	threadID = "0193a000-0000-7000-8000-0000000000b1"
	runID    = "0193a000-0000-7000-8000-0000000000c1"
	firstID  = "0193b111-0000-7000-8000-000000000001"
	secondID = "0193b122-0000-7000-8000-000000000002"
)

// fakeAPI answers as the service does, as far as the commands ask.
type fakeAPI struct {
	*httptest.Server
	frames chan string // to the one stream

	mu        sync.Mutex        // guards the fields below
	asked     []string          // requests but streams: method, path, query, body
	approvals map[string]object // by id
	refuse    map[string]object // problems, by "METHOD path"
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()
	f := &fakeAPI{frames: make(chan string), approvals: map[string]object{}, refuse: map[string]object{}}
	mux := http.NewServeMux()
	answer := func(pattern string, say func(r *http.Request, body []byte) any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if r.Header.Get("Authorization") != "Bearer svc_test" || r.Header.Get("X-Tenant-Id") != "tenant" {
				t.Errorf("%s %s: headers %v", r.Method, r.URL, r.Header)
			}
			line := strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body))
			f.mu.Lock()
			f.asked = append(f.asked, line)
			refused := f.refuse[r.Method+" "+r.URL.Path]
			var said any
			if refused == nil {
				said = say(r, body)
			}
			f.mu.Unlock()
			if refused != nil {
				w.WriteHeader(refused["status"].(int))
				said = refused
			}
			if err := json.NewEncoder(w).Encode(said); err != nil {
				t.Error(err)
			}
		})
	}
	answer("GET /v1/agents", func(*http.Request, []byte) any {
		return object{"items": []object{{"id": agentID, "slug": "helper"}}, "next_cursor": nil}
	})
	answer("GET /v1/approvals", func(r *http.Request, _ []byte) any {
		items := []object{}
		for _, a := range f.approvals {
			if want := r.URL.Query().Get("status"); want == "" || want == a["status"] {
				items = append(items, a)
			}
		}
		slices.SortFunc(items, func(a, b object) int { return strings.Compare(b["id"].(string), a["id"].(string)) })
		return object{"items": items}
	})
	answer("GET /v1/approvals/{id}", func(r *http.Request, _ []byte) any { return f.approvals[r.PathValue("id")] })
	answer("POST /v1/approvals/{id}/decision", func(_ *http.Request, body []byte) any {
		var d decision
		if err := json.Unmarshal(body, &d); err != nil {
			t.Error(err)
		}
		status := map[string]string{"approve": "approved", "edit": "edited", "reject": "rejected", "respond": "responded"}[d.Action]
		if d.Feedback == "half" {
			status = "pending"
		}
		return object{"status": status, "approvals_so_far": 1}
	})
	answer("POST /v1/approvals/bulk-decision", func(_ *http.Request, body []byte) any {
		var b struct{ IDs []string }
		if err := json.Unmarshal(body, &b); err != nil {
			t.Error(err)
		}
		results := []object{}
		for i, id := range b.IDs {
			switch i % 3 {
			case 0:
				results = append(results, object{"id": id, "ok": true, "terminal": true})
			case 1:
				results = append(results, object{"id": id, "ok": true, "terminal": false})
			default:
				results = append(results, object{"id": id, "ok": false, "error": object{"code": "ALREADY_DECIDED", "detail": "It is decided."}})
			}
		}
		return object{"results": results}
	})
	answer("GET /v1/agents/{id}/tools/explain", func(r *http.Request, _ []byte) any {
		return object{"tool": "crm." + r.URL.Query().Get("tool"), "source": "mcp", "verdict": "gate", "why": "a policy asks for it", "grant_id": firstID, "connection_id": nil,
			"approval": object{"risk": "high", "required_approvals": 2, "approver_role": "admin", "sla_minutes": 90.5, "escalate_to_role": "owner", "on_timeout": "reject",
				"policy": object{"id": secondID, "name": "money", "kind": "policy"}},
			"steps": []object{{"what": "manifest", "pattern": "crm.*", "matched": true, "decided": false},
				{"what": "grant", "id": firstID, "pattern": "*", "matched": true, "decided": true, "note": "tenant-wide"}}}
	})
	answer("POST /v1/threads", func(*http.Request, []byte) any { return object{"id": threadID} })
	answer("POST /v1/threads/{id}/messages", func(*http.Request, []byte) any { return object{"run_id": runID, "message_id": firstID} })
	mux.HandleFunc("GET /v1/runs/{id}/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for n := 1; ; n++ {
			select {
			case data := <-f.frames:
				kind, _, _ := strings.Cut(strings.TrimPrefix(data, `{"type":"`), `"`)
				if kind == "cut" {
					return
				}
				if kind == "heartbeat" {
					fmt.Fprintf(w, "event: heartbeat\ndata: %s\n\n", data)
				} else {
					fmt.Fprintf(w, "event: %s\nid: %d\ndata: %s\n\n", kind, n, data)
				}
				w.(http.Flusher).Flush()
				if kind == "run.completed" || kind == "run.failed" {
					return
				}
			case <-r.Context().Done():
				return
			}
		}
	})
	f.Server = httptest.NewServer(mux)
	t.Cleanup(f.Close)
	t.Setenv("SVC_URL", f.URL)
	t.Setenv("SVC_API_KEY", "svc_test")
	t.Setenv("SVC_TENANT", "tenant")
	return f
}

// pending puts an approval into the service.
func (f *fakeAPI) pending(id, tool, args string) object {
	a := object{"id": id, "run_id": runID, "status": "pending", "risk": "high", "assignee_role": "admin", "required_approvals": 2, "approvals_so_far": 1,
		"requested_action": object{"tool": tool, "args": json.RawMessage(args)}, "reasoning_summary": "The customer asked for it.",
		"decisions":  []object{{"principal": "user:u1", "action": "approve", "feedback": "fine with me"}},
		"expires_at": time.Now().Add(90*time.Minute + 30*time.Second)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.approvals[id] = a
	return a
}

func (f *fakeAPI) refuses(method, path, code, detail string, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if code == "" {
		delete(f.refuse, method+" "+path)
		return
	}
	f.refuse[method+" "+path] = object{"status": status, "code": code, "title": "T", "detail": detail}
}

// took answers the requests so far and forgets them.
func (f *fakeAPI) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

// svc runs a command line in this process.
func svc(t *testing.T, in io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(within(t, 20*time.Second), args, in, &out, &errs)
	return out.String(), errs.String(), code
}

func TestApprovalsLs(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", "{ \"amount\": 5,\n \"to\": \"a\u202eb\" }")
	late := f.pending(secondID, "x", `{}`)
	late["expires_at"], late["decisions"], late["reasoning_summary"], late["approvals_so_far"] = time.Now().Add(-time.Second), []object{}, "", 0
	done := f.pending(runID, "done.tool", `{}`)
	done["status"] = "approved"

	out, stderr, code := svc(t, nil, "approvals", "ls")
	want := `APPROVAL                              RISK  LEFT     TOOL        ASSIGNEE  LEDGER
0193b122-0000-7000-8000-000000000002  high  overdue  x           admin     0/2
    args      {}
0193b111-0000-7000-8000-000000000001  high  1h30m    crm.refund  admin     1/2
    args      {"amount":5,"to":"a\u202eb"}
    reasoning The customer asked for it.
    decided   user:u1: approve, fine with me
`
	if code != 0 || stderr != "" || out != want {
		t.Errorf("code %d %s\n%s\nwant\n%s", code, stderr, out, want)
	}
	if out, _, _ := svc(t, nil, "approvals", "ls", "--status", "all"); !strings.Contains(out, "done.tool") || !strings.Contains(out, "  approved  ") {
		t.Errorf("all: %s", out)
	}
	f.took()

	out, _, code = svc(t, nil, "approvals", "ls", "--json", "--status", "expired", "--run", runID, "--agent", "helper", "--risk", "high")
	if code != 0 || strings.Join(strings.Fields(out), "") != `{"items":[]}` {
		t.Errorf("code %d %s", code, out)
	}
	if asked := f.took(); asked[1] != "GET /v1/approvals?agent_id="+agentID+"&risk=high&run_id="+runID+"&status=expired" {
		t.Errorf("asked %v", asked)
	}
	svc(t, nil, "approvals", "ls", "--agent", agentID)
	if asked := f.took(); len(asked) != 1 || asked[0] != "GET /v1/approvals?agent_id="+agentID+"&status=pending" {
		t.Errorf("asked %v", asked)
	}
}

// The characters that a reader would not see, or would see elsewhere, are shown.
func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":"plain äöü 漢字 👍 – “x”"}`: `{"a":"plain äöü 漢字 👍 – “x”"}`,
		"a\nb\tc\rd":                                    `a\nb\tc\rd`,
		"\x1b[2J\x00\x7f":                               `\u001b[2J\u0000\u007f`,
		"a\u202eb\u2066c\u2069\u200f":                   `a\u202eb\u2066c\u2069\u200f`,
		"zero\u200b\u200d\ufeffwidth":                   `zero\u200b\u200d\ufeffwidth`,
		"no\u00a0break\u2028line\u3000":                 `no\u00a0break\u2028line\u3000`,
		"fill\u3164\u2800\ufe0f\u034f":                  `fill\u3164\u2800\ufe0f\u034f`,
		"tag\U000e0041\U000e0101":                       `tag\U000e0041\U000e0101`,
		"private\ue000 \u0378":                          `private\ue000 \u0378`,
		"bytes \xff\xc3 and \ufffd":                     `bytes \xff\xc3 and ` + "\ufffd",
		"next line\u0085, a csi \u009b2J, soft\u00adhy": `next line\u0085, a csi \u009b2J, soft\u00adhy`,
	} {
		if got := visible(in); got != want {
			t.Errorf("visible(%q) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"two\nlines\tand 👩\u200d🚀": "two\nlines\tand 👩\u200d🚀",
		"\x1b]0;title\x07\r":       `\u001b]0;title\u0007\r`,
		"a\u202eb\u2067 \u009b2J":  `a\u202eb\u2067 \u009b2J`,
	} {
		if got := harmless(in); got != want {
			t.Errorf("harmless(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\u202e\x1b[2J\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range visible(s) {
			if !strconv.IsPrint(r) {
				t.Fatalf("%q shows %q", s, r)
			}
		}
		for _, r := range harmless(s) {
			if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || turns(r) {
				t.Fatalf("%q lets %q through", s, r)
			}
		}
	})
}

func TestTimeLeft(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "overdue", 0: "overdue", 1500 * time.Millisecond: "1s", 61 * time.Second: "1m", 3*time.Hour + 5*time.Minute: "3h05m",
		47*time.Hour + 59*time.Minute: "47h59m", 48 * time.Hour: "2d",
	} {
		if got := timeLeft(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}

func TestDecisions(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":5}`)
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte("{\"amount\":7}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	decide := func(id, body string) []string { return []string{"POST /v1/approvals/" + id + "/decision " + body} }
	found := func(asked ...string) []string { return append([]string{"GET /v1/approvals?status=pending"}, asked...) }
	for name, row := range map[string]struct {
		args        []string
		in          string
		code        int
		asked       []string
		out, stderr string
	}{
		"approve":                    {[]string{"approve", firstID}, "", 0, decide(firstID, `{"action":"approve"}`), firstID + "  approved\n", ""},
		"an id in capitals":          {[]string{"approve", strings.ToUpper(firstID)}, "", 0, decide(firstID, `{"action":"approve"}`), firstID + "  approved\n", ""},
		"approve, more are required": {[]string{"approve", firstID, "--feedback", "half"}, "", 0, decide(firstID, `{"action":"approve","feedback":"half"}`), firstID + "  pending, 1 so far\n", ""},
		"reject with feedback":       {[]string{"reject", firstID, "--feedback", "too much"}, "", 0, decide(firstID, `{"action":"reject","feedback":"too much"}`), firstID + "  rejected\n", ""},
		"reject without":             {[]string{"reject", firstID}, "", 0, decide(firstID, `{"action":"reject"}`), firstID + "  rejected\n", ""},
		"respond":                    {[]string{"respond", firstID, "--feedback", "ask me later"}, "", 0, decide(firstID, `{"action":"respond","feedback":"ask me later"}`), firstID + "  responded\n", ""},
		"a prefix that one has":      {[]string{"approve", "0193B11"}, "", 0, found(decide(firstID, `{"action":"approve"}`)...), firstID + "  approved\n", ""},
		"a prefix that two have":     {[]string{"approve", "0193b1"}, "", 1, found(), "", `svc: the ids of 2 pending approvals begin with "0193b1"`},
		"a prefix that none has":     {[]string{"approve", "ffff"}, "", 1, found(), "", `svc: no pending approval's id begins with "ffff"`},
		"an empty id":                {[]string{"approve", ""}, "", 1, found(), "", `svc: no pending approval's id begins with ""`},
		"two are one bulk decision": {[]string{"reject", firstID, "0193b12", firstID, "--feedback", "no"}, "", 0,
			found(`POST /v1/approvals/bulk-decision {"ids":["` + firstID + `","` + secondID + `"],"action":"reject","feedback":"no"}`),
			firstID + "  decided\n" + secondID + "  waits for further approvals\n", ""},
		"one of a bulk decision fails": {[]string{"approve", firstID, secondID, runID}, "", 1,
			[]string{`POST /v1/approvals/bulk-decision {"ids":["` + firstID + `","` + secondID + `","` + runID + `"],"action":"approve"}`},
			firstID + "  decided\n" + secondID + "  waits for further approvals\n" + runID + "  ALREADY_DECIDED: It is decided.\n", "svc: 1 of 3 could not be decided"},
		"edit":             {[]string{"edit", firstID, "--args", `{"amount": 12345678901234567890.10}`}, "", 0, decide(firstID, `{"action":"edit","edited_args":{"amount":12345678901234567890.10}}`), firstID + "  edited\n", ""},
		"edit from a file": {[]string{"edit", "0193b11", "--args", "@" + file}, "", 0, found(decide(firstID, `{"action":"edit","edited_args":{"amount":7}}`)...), firstID + "  edited\n", ""},
		"edit from the input": {[]string{"edit", firstID, "--args", "-", "--feedback", "less"}, "{\"amount\": 1}\n", 0,
			decide(firstID, `{"action":"edit","edited_args":{"amount":1},"feedback":"less"}`), firstID + "  edited\n", ""},
		"edit with --yes":          {[]string{"edit", firstID, "--yes", "--args", "{}"}, "", 0, decide(firstID, `{"action":"edit","edited_args":{}}`), firstID + "  edited\n", ""},
		"edit without arguments":   {[]string{"edit", firstID}, "", 2, nil, "", `svc: required flag(s) "args" not set`},
		"edit with no JSON":        {[]string{"edit", firstID, "--args", "amount=7"}, "", 2, nil, "", "svc: --args: must be a JSON object"},
		"edit with no object":      {[]string{"edit", firstID, "--args", "[1]"}, "", 2, nil, "", "svc: --args: must be a JSON object"},
		"edit with a missing file": {[]string{"edit", firstID, "--args", "@/none"}, "", 2, nil, "", "svc: --args: open /none: no such file or directory"},
		"respond without feedback": {[]string{"respond", firstID}, "", 2, nil, "", `svc: required flag(s) "feedback" not set`},
		"respond, empty feedback":  {[]string{"respond", firstID, "--feedback", ""}, "", 2, nil, "", "svc: --feedback: is what the model hears, it must not be empty"},
		"approve nothing":          {[]string{"approve"}, "", 2, nil, "", "svc: requires at least 1 arg(s), only received 0"},
		"no such command":          {[]string{"promote", firstID}, "", 2, nil, "", `svc: unknown command "promote" for "svc approvals"`},
		"edit takes one id":        {[]string{"edit", firstID, secondID, "--args", "{}"}, "", 2, nil, "", "svc: accepts 1 arg(s), received 2"},
	} {
		t.Run(name, func(t *testing.T) {
			f.took()
			out, stderr, code := svc(t, strings.NewReader(row.in), append([]string{"approvals"}, row.args...)...)
			if code != row.code || out != row.out || strings.TrimSpace(stderr) != row.stderr {
				t.Errorf("code %d, want %d\nout  %q\nwant %q\nerr  %q\nwant %q", code, row.code, out, row.out, stderr, row.stderr)
			}
			if asked := f.took(); !slices.Equal(asked, row.asked) {
				t.Errorf("asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(row.asked, "\n"))
			}
		})
	}

	t.Run("JSON", func(t *testing.T) {
		var one decided
		out, _, code := svc(t, nil, "approvals", "approve", firstID, "--json")
		if json.Unmarshal([]byte(out), &one) != nil || code != 0 || one.Status != "approved" || one.SoFar != 1 {
			t.Errorf("code %d %s", code, out)
		}
		var bulk struct {
			Results []struct {
				ID    string
				OK    bool
				Error *struct{ Code string }
			}
		}
		out, _, code = svc(t, nil, "approvals", "approve", firstID, secondID, runID, "--json")
		if json.Unmarshal([]byte(out), &bulk) != nil || code != 1 || len(bulk.Results) != 3 || !bulk.Results[0].OK || bulk.Results[2].Error.Code != "ALREADY_DECIDED" {
			t.Errorf("code %d %s", code, out)
		}
	})
	t.Run("more than a bulk decision takes", func(t *testing.T) {
		args := []string{"approvals", "approve"}
		for i := range 2*maxBulk + 1 {
			args = append(args, fmt.Sprintf("0193c000-0000-7000-8000-%012d", i))
		}
		f.took()
		out, _, _ := svc(t, nil, args...)
		if asked := f.took(); len(asked) != 3 || strings.Count(asked[0], "0193c000") != maxBulk || strings.Count(asked[2], "0193c000") != 1 || strings.Count(out, "\n") != 2*maxBulk+1 {
			t.Errorf("%d calls, %d lines", len(asked), strings.Count(out, "\n"))
		}
	})
	for code, detail := range map[string]string{
		"ALREADY_DECIDED": "It is decided.", "FORBIDDEN": "It is assigned to owner.", "NOT_FOUND": "There is no such approval.", "INVALID_ARGS": "amount: must be a number",
	} {
		t.Run("refused with "+code, func(t *testing.T) {
			f.refuses("POST", "/v1/approvals/"+firstID+"/decision", code, detail, 409)
			out, stderr, exit := svc(t, nil, "approvals", "approve", firstID)
			if exit != 1 || out != "" || stderr != "svc: "+code+": "+detail+"\n" {
				t.Errorf("code %d %q %q", exit, out, stderr)
			}
		})
	}
}

func TestDifferences(t *testing.T) {
	for name, row := range map[string]struct {
		requested, edited string
		want              []string
	}{
		"the same":            {`{"a":1,"b":[true,null]}`, `{"b":[true,null],"a":1}`, []string{"(the same arguments)"}},
		"changed":             {`{"a":1}`, `{"a":2}`, []string{"~ a: 1 -> 2"}},
		"a number's text":     {`{"a":1.0}`, `{"a":1.00}`, []string{"~ a: 1.0 -> 1.00"}},
		"added and removed":   {`{"a":1}`, `{"b":"x"}`, []string{`- a: 1`, `+ b: "x"`}},
		"deep":                {`{"c":{"items":[{"n":1},{"n":2}]}}`, `{"c":{"items":[{"n":1},{"n":3},{}]}}`, []string{`~ c.items[1].n: 2 -> 3`, `+ c.items[2]: {}`}},
		"a shorter list":      {`{"l":[1,2]}`, `{"l":[1]}`, []string{`- l[1]: 2`}},
		"another kind":        {`{"l":[1]}`, `{"l":{"x":1}}`, []string{`~ l: [1] -> {"x":1}`}},
		"invisible":           {`{"a":"x"}`, "{\"a\":\"x\u200b<\",\"\u202e\":1}", []string{`~ a: "x" -> "x\u200b<"`, `+ \u202e: 1`}},
		"redacted is kept":    {`{"a":"[redacted]","b":1}`, `{"a":"[redacted]","b":2}`, []string{"~ b: 1 -> 2"}},
		"nothing asked for":   {``, `{"a":1}`, []string{`~ (all): "" -> {"a":1}`}},
		"null is not missing": {`{"a":null}`, `{}`, []string{"- a: null"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := differences(json.RawMessage(row.requested), json.RawMessage(row.edited)); !slices.Equal(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestGrantsExplain(t *testing.T) {
	f := newFakeAPI(t)
	out, stderr, code := svc(t, nil, "grants", "explain", "helper", "refund")
	want := `crm.refund may be called once it is approved: a policy asks for it.
grant       ` + firstID + `
approval    high risk, 2 by admin within 90.5 minutes, escalated to owner, on timeout reject; asked for by the policy money

WHAT      ID                                    PATTERN  MATCHED  DECIDED  NOTE
manifest  -                                     crm.*    yes      no       
grant     ` + firstID + `  *        yes      yes      tenant-wide
`
	if code != 0 || stderr != "" || out != want {
		t.Errorf("code %d %s\n%s\nwant\n%s", code, stderr, out, want)
	}
	f.took()
	out, _, code = svc(t, nil, "grants", "explain", agentID, "a b&c", "--json")
	var raw struct{ Tool, Verdict string }
	if code != 0 || json.Unmarshal([]byte(out), &raw) != nil || raw.Tool != "crm.a b&c" || raw.Verdict != "gate" {
		t.Errorf("code %d %s", code, out)
	}
	if asked := f.took(); len(asked) != 1 || asked[0] != "GET /v1/agents/"+agentID+"/tools/explain?tool=a+b%26c" {
		t.Errorf("asked %v", asked)
	}
	if _, stderr, code := svc(t, nil, "grants", "explain", "nobody", "x"); code != 1 || !strings.Contains(stderr, `no agent with the slug "nobody"`) {
		t.Errorf("code %d %s", code, stderr)
	}
	for _, args := range [][]string{{"grants", "explain", "helper"}, {"grants", "bogus"}} {
		if _, _, code := svc(t, nil, args...); code != 2 {
			t.Errorf("%v: code %d", args, code)
		}
	}
}

func requiredFrame(id, tool string) string {
	return `{"type":"approval.required","approval_id":"` + id + `","tool":"` + tool + `","expires_at":"2030-01-02T03:04:05Z"}`
}

const (
	waitingFrame   = `{"type":"run.waiting","status":"waiting_approval"}`
	completedFrame = `{"type":"run.completed","status":"succeeded","output":{"text":"x"},"tokens_in":3,"tokens_out":4,"cost_usd":0.5}`
)

func delta(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return `{"type":"llm.delta","idx":0,"text":` + string(b) + `}`
}

func resumed(id, decision string) string {
	return `{"type":"run.resumed","approval_id":"` + id + `","decision":"` + decision + `"}`
}

// send gives the stream frames, one after the other.
func (f *fakeAPI) send(t *testing.T, frames ...string) {
	t.Helper()
	for _, data := range frames {
		select {
		case f.frames <- data:
		case <-time.After(10 * time.Second):
			t.Fatalf("nobody reads the stream: %s", data)
		}
	}
}

func TestWatchShowsToolsAndApprovals(t *testing.T) {
	f := newFakeAPI(t)
	var out, errs bytes.Buffer
	ended := make(chan int)
	ctx := within(t, 20*time.Second)
	go func() { ended <- execute(ctx, []string{"runs", "watch", runID}, strings.NewReader(""), &out, &errs) }()
	f.send(t, `{"type":"run.started","run_id":"r","agent_id":"a","status":"running"}`, `{"type":"step.started","idx":0,"kind":"llm","name":"m"}`,
		delta("I look it up"), delta(", \x1b[2J\nthen pay."),
		`{"type":"tool.called","idx":1,"tool":"crm.find","args_preview":"{\"q\":\"a\u202eb\"}"}`, `{"type":"tool.result","idx":1,"ok":true,"output_preview":"{\"n\":1}"}`,
		`{"type":"tool.called","idx":2,"tool":"crm.pay","args_preview":"{}"}`, `{"type":"tool.result","idx":2,"ok":false,"output_preview":"\"no\""}`,
		requiredFrame(firstID, "crm.refund"), waitingFrame, `{"type":"heartbeat"}`, resumed(firstID, "edit"), `{"type":"handoff","from":"helper","to":"expert"}`,
		delta("Done."), completedFrame)
	want := `I look it up, \u001b[2J
then pay.
[crm.find {"q":"a\u202eb"}]
[ok {"n":1}]
[crm.pay {}]
[failed "no"]
[crm.refund needs an approval until 2030-01-02T03:04:05Z: svc approvals approve ` + firstID + `]
[waiting for a decision]
[approval ` + firstID + `: edit]
[helper hands over to expert]
Done.
[3 tokens in, 4 out, 0.5000 USD]
`
	if code := <-ended; code != 0 || out.String() != want || errs.String() != "" {
		t.Errorf("code %d %s\n%s\nwant\n%s", code, errs.String(), out.String(), want)
	}
}

// A run may wait for days: a stream that only beats and is cut now and then is
// not lost, one that the service does not serve any more is.
func TestAWaitingStreamIsNotLost(t *testing.T) {
	f := newFakeAPI(t)
	c := &client{base: f.URL, key: "svc_test", tenant: "tenant", http: &http.Client{}, patience: 50 * time.Millisecond}
	ended := make(chan error)
	follow := func() {
		ended <- c.follow(t.Context(), runID, "", func(frame) error { return nil })
	}
	go follow()
	for range 4 { // each time the pause before the next try is longer than patience
		f.send(t, `{"type":"heartbeat"}`, `{"type":"cut"}`)
	}
	f.send(t, completedFrame)
	if err := <-ended; err != nil {
		t.Errorf("a waiting stream: %v", err)
	}
	go follow()
	for cuts := 0; ; cuts++ {
		select {
		case f.frames <- `{"type":"cut"}`:
		case err := <-ended:
			if err == nil || !strings.Contains(err.Error(), "was lost") || cuts == 0 {
				t.Errorf("after %d cuts: %v", cuts, err)
			}
			return
		}
	}
}

// terminal is a person at a terminal.
type terminal struct {
	t        *testing.T
	keyboard *os.File
	in       *os.File
	out      logText
	errs     logText
	ended    chan int
	read     int // of out
}

// atTerminal runs a command whose input is a terminal.
func atTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tt := &terminal{t: t, keyboard: keyboard, in: in, ended: make(chan int, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	go func() { tt.ended <- execute(ctx, args, in, &tt.out, &tt.errs) }()
	t.Cleanup(func() {
		cancel()
		keyboard.Close() // ends a read that is under way
		in.Close()
	})
	return tt
}

func (tt *terminal) types(text string) {
	tt.t.Helper()
	if _, err := tt.keyboard.WriteString(text); err != nil {
		tt.t.Fatal(err)
	}
}

// sees waits until the output goes on with something that ends in text.
func (tt *terminal) sees(text string) string {
	tt.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(10 * time.Second)
	for range tick.C {
		all := tt.out.String()
		if i := strings.Index(all[tt.read:], text); i >= 0 {
			end := tt.read + i + len(text)
			seen := all[tt.read:end]
			tt.read = end
			return seen
		}
		if time.Now().After(deadline) {
			break
		}
	}
	tt.t.Fatalf("no %q in %q (errors %q)", text, tt.out.String()[tt.read:], tt.errs.String())
	return ""
}

func (tt *terminal) leaves(code int) {
	tt.t.Helper()
	select {
	case got := <-tt.ended:
		if got != code {
			tt.t.Errorf("exit code %d, want %d: %s", got, code, tt.errs.String())
		}
	case <-time.After(10 * time.Second):
		tt.t.Fatalf("it has not ended: %q", tt.out.String())
	}
}

// waiting is a chat on a terminal whose first run waits for approvals.
func (f *fakeAPI) waiting(t *testing.T, ids ...string) *terminal {
	t.Helper()
	tt := atTerminal(t, "chat", "helper")
	tt.sees("> ")
	tt.types("do it\n")
	f.send(t, delta("I will."))
	for _, id := range ids {
		f.send(t, requiredFrame(id, "crm.refund"))
	}
	f.send(t, waitingFrame)
	f.took()
	return tt
}

// ends lets the run end and leaves the talk.
func (f *fakeAPI) ends(t *testing.T, tt *terminal) {
	t.Helper()
	f.send(t, completedFrame)
	tt.sees("0.5000 USD]\n> ")
	tt.types("\n")
	tt.leaves(0)
}

func (f *fakeAPI) wants(t *testing.T, asked ...string) {
	t.Helper()
	if got := f.took(); !slices.Equal(got, asked) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(asked, "\n"))
	}
}

const choice = "[a]pprove [r]eject [e]dit re[s]pond [w]ait: "

func TestChatApprovesInPlace(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", "{\"amount\":5,\"to\":\"a\u202eb\"}")
	tt := f.waiting(t, firstID)
	want := `I will.
[waiting for a decision]
crm.refund wants an approval, high risk, 1/2 of role admin so far, 1h30m left
    {
      "amount": 5,
      "to": "a\u202eb"
    }
  because: The customer asked for it.
  user:u1: approve, fine with me
` + choice
	if got := tt.sees(choice); got != want {
		t.Errorf("seen\n%s\nwant\n%s", got, want)
	}
	tt.types("?\n")
	tt.sees(choice)
	tt.types("a\n")
	tt.sees("[approve: approved]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"approve"}`)
	f.send(t, resumed(firstID, "approve"), delta("Paid."))
	tt.sees("[approval " + firstID + ": approve]\nPaid.")
	f.ends(t, tt)
}

func TestChatDecidesSeveral(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":6}`)
	tt := f.waiting(t, firstID, secondID)
	tt.sees(choice)
	tt.types("r\n")
	tt.sees("why (may be empty): ")
	tt.types("too much\n")
	tt.sees("[reject: rejected]\n")
	tt.sees(`"amount": 6`)
	tt.sees(choice)
	tt.types("edit\n")
	tt.sees("(empty: back): ")
	tt.types("\n")
	tt.sees(choice)
	tt.types("e\n")
	tt.sees("(empty: back): ")
	tt.types("amount 7\n")
	tt.sees("[the arguments must be a JSON object]\n")
	tt.sees("(empty: back): ")
	tt.types("{\"amount\":8}\n")
	tt.sees("  ~ amount: 6 -> 8\nsend this? [y/N] ")
	tt.types("n\n")
	tt.sees(choice)
	tt.types("e\n")
	tt.sees("(empty: back): ")
	tt.types("{\"amount\":7}\n")
	tt.sees("send this? [y/N] ")
	tt.types("y\n")
	tt.sees("[edit: edited]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"reject","feedback":"too much"}`,
		"GET /v1/approvals/"+secondID, "POST /v1/approvals/"+secondID+`/decision {"action":"edit","edited_args":{"amount":7}}`)
	f.send(t, resumed(firstID, "reject"), resumed(secondID, "edit"))
	f.ends(t, tt)
}

func TestChatResponds(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	tt := f.waiting(t, firstID)
	tt.sees(choice)
	tt.types("s\n")
	tt.sees("(empty: back): ")
	tt.types("\n")
	tt.sees(choice)
	tt.types("respond\n")
	tt.sees("(empty: back): ")
	tt.types("ask the customer first\n")
	tt.sees("[respond: responded]\n")
	f.wants(t, "GET /v1/approvals/"+firstID, "POST /v1/approvals/"+firstID+`/decision {"action":"respond","feedback":"ask the customer first"}`)
	f.send(t, resumed(firstID, "respond"))
	f.ends(t, tt)
}

// A decision made elsewhere takes the question back; what is typed for it then
// is neither a decision nor a message.
func TestChatNoticesADecisionMadeElsewhere(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	tt := f.waiting(t, firstID)
	tt.sees(choice)
	f.send(t, resumed(firstID, "reject"))
	tt.sees("\n[approval " + firstID + ": reject]\n")
	tt.types("a\n")
	tt.sees("[nothing was asked any more: the line was not used]\n")
	f.send(t, delta("As you like."), completedFrame)
	tt.sees("As you like.\n[3 tokens in, 4 out, 0.5000 USD]\n> ")
	f.wants(t, "GET /v1/approvals/"+firstID)

	// The same, with nothing typed: the next line is a message.
	tt.types("again\n")
	f.send(t, requiredFrame(firstID, "crm.refund"), waitingFrame)
	tt.sees(choice)
	f.send(t, `{"type":"run.failed","code":"CANCELLED","message":"The run was cancelled."}`)
	tt.sees("\n> ")
	f.took()
	tt.types("once more\n")
	f.ends(t, tt)
	f.wants(t, "POST /v1/threads/"+threadID+`/messages {"content":"once more"}`)
	if !strings.Contains(tt.errs.String(), "CANCELLED") {
		t.Errorf("errors %q", tt.errs.String())
	}
}

func TestChatLeavesADecisionToOthers(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	f.pending(secondID, "crm.refund", `{"amount":6}`)
	elsewhere := func(id string) string { return "[decide it elsewhere: svc approvals approve " + id + "]\n" }

	t.Run("wait", func(t *testing.T) {
		tt := f.waiting(t, firstID, secondID)
		tt.sees(choice)
		tt.types("w\n")
		tt.sees(elsewhere(firstID))
		tt.sees(choice)
		tt.types("a\n")
		tt.sees("[approve: approved]\n")
		f.send(t, resumed(firstID, "approve"), resumed(secondID, "approve"))
		f.ends(t, tt)
	})
	t.Run("the end of the input", func(t *testing.T) {
		tt := f.waiting(t, firstID, secondID)
		tt.sees(choice)
		tt.types("\x04")
		tt.sees(elsewhere(firstID) + elsewhere(secondID))
		f.send(t, resumed(firstID, "approve"), resumed(secondID, "approve"), requiredFrame(firstID, "crm.refund"), waitingFrame)
		tt.sees(howToApprove(firstID) + "]\n[waiting for a decision]\n")
		f.ends(t, tt)
	})
	t.Run("nobody here may read it", func(t *testing.T) {
		f.refuses("GET", "/v1/approvals/"+firstID, "FORBIDDEN", "It is assigned to owner.", 403)
		defer f.refuses("GET", "/v1/approvals/"+firstID, "", "", 0)
		tt := f.waiting(t, firstID)
		tt.sees("[FORBIDDEN: It is assigned to owner.]\n" + elsewhere(firstID))
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
	t.Run("it was decided a moment ago", func(t *testing.T) {
		path := "/v1/approvals/" + firstID + "/decision"
		f.refuses("POST", path, "ALREADY_DECIDED", "It is decided.", 409)
		defer f.refuses("POST", path, "", "", 0)
		tt := f.waiting(t, firstID)
		tt.sees(choice)
		tt.types("a\n")
		tt.sees("[ALREADY_DECIDED: It is decided.]\n")
		f.send(t, resumed(firstID, "reject"))
		if seen := tt.sees("reject]\n"); strings.Contains(seen, "elsewhere") {
			t.Errorf("seen %q", seen)
		}
		f.ends(t, tt)
	})
	t.Run("arguments that do not fit are asked for again", func(t *testing.T) {
		path := "/v1/approvals/" + firstID + "/decision"
		f.refuses("POST", path, "INVALID_ARGS", "amount: must be a number", 422)
		tt := f.waiting(t, firstID)
		tt.sees(choice)
		tt.types("e\n")
		tt.sees("back): ")
		tt.types("{\"amount\":\"x\"}\n")
		tt.sees("[y/N] ")
		tt.types("yes\n")
		tt.sees("[INVALID_ARGS: amount: must be a number]\n" + choice)
		f.refuses("POST", path, "", "", 0)
		tt.types("a\n")
		tt.sees("[approve: approved]\n")
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
	t.Run("decided before it could be asked", func(t *testing.T) {
		done := f.pending(firstID, "crm.refund", `{"amount":5}`)
		done["status"] = "approved"
		tt := f.waiting(t, firstID)
		tt.sees("[approval " + firstID + ": approved]\n")
		f.send(t, resumed(firstID, "approve"))
		f.ends(t, tt)
	})
}

// Without a terminal nothing is asked: the line to paste is printed, and the
// stream is followed on.
func TestChatInAPipe(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5}`)
	for _, asJSON := range []bool{false, true} {
		var out, errs bytes.Buffer
		ended := make(chan int)
		args := []string{"chat", "helper"}
		if asJSON {
			args = append(args, "--json")
		}
		ctx := within(t, 20*time.Second)
		go func() { ended <- execute(ctx, args, strings.NewReader("do it\na\n"), &out, &errs) }()
		f.send(t, requiredFrame(firstID, "crm.refund"), waitingFrame, resumed(firstID, "approve"), completedFrame)
		f.send(t, completedFrame) // the second line is a message
		code := <-ended
		want := "[crm.refund needs an approval until 2030-01-02T03:04:05Z: svc approvals approve " + firstID + "]\n[waiting for a decision]\n[approval " + firstID + ": approve]\n"
		if asJSON {
			want = requiredFrame(firstID, "crm.refund") + "\n" + waitingFrame + "\n"
		}
		if code != 0 || !strings.Contains(out.String(), want) || strings.Contains(out.String(), choice) || errs.String() != "" {
			t.Errorf("code %d %s\n%s", code, errs.String(), out.String())
		}
		for _, line := range f.took() {
			if strings.Contains(line, "/v1/approvals") {
				t.Errorf("asked %s", line)
			}
		}
	}
}

func TestEditIsConfirmedOnATerminal(t *testing.T) {
	f := newFakeAPI(t)
	f.pending(firstID, "crm.refund", `{"amount":5,"note":"[redacted]"}`)
	for _, row := range []struct {
		answer string
		code   int
		sent   bool
	}{{"y\n", 0, true}, {"YES\n", 0, true}, {"n\n", 1, false}, {"\n", 1, false}, {"\x04", 1, false}} {
		tt := atTerminal(t, "approvals", "edit", firstID, "--args", `{"amount":7,"note":"[redacted]"}`)
		tt.types(row.answer)
		tt.leaves(row.code)
		if want := "crm.refund, approval " + firstID + "\n  ~ amount: 5 -> 7\nsend this? [y/N] "; !strings.HasPrefix(tt.errs.String(), want) {
			t.Errorf("%q: %q", row.answer, tt.errs.String())
		}
		if sent := len(f.took()) == 2; sent != row.sent {
			t.Errorf("%q: sent is %v", row.answer, sent)
		}
	}
	tt := atTerminal(t, "approvals", "edit", firstID, "--args", `{"amount":7}`, "--yes")
	tt.leaves(0)
	f.wants(t, "POST /v1/approvals/"+firstID+`/decision {"action":"edit","edited_args":{"amount":7}}`)
}
